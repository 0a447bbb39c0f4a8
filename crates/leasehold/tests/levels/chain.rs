//! A `serve` and the proxies before it. Level 0 is `serve`, level 1 the proxy of it, and so on.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Origin, Url};
use serde_json::Value;
use tempfile::TempDir;
use vfs::{Caller, Handle, Name, OpenRequest, Opened, Owner, Share, StateidBasis};

use crate::program::{self, Running, path};

/// The number of proxies.
pub const PROXIES: usize = 3;
/// The level that the clients use.
pub const LAST: usize = PROXIES;

pub type Calls = BTreeMap<String, u64>;

pub struct Chain {
    home: TempDir,
    /// Options of each level.
    options: [Vec<String>; LAST + 1],
    levels: [Option<Running>; LAST + 1],
    addresses: [String; LAST + 1],
}

impl Chain {
    /// Starts all levels. `serve` gets `at_origin` as further options, and all get `everywhere`.
    pub fn new(at_origin: &[&str], everywhere: &[&str]) -> Chain {
        let home = tempfile::tempdir().unwrap();
        let served = home.path().join("served");
        std::fs::create_dir(&served).unwrap();
        std::fs::set_permissions(&served, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(served.join("file"), "content").unwrap();
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let mut options = std::array::from_fn(|_| owned(everywhere));
        options[0].extend(owned(at_origin));
        let (levels, addresses) = (std::array::from_fn(|_| None), std::array::from_fn(|_| String::new()));
        let mut chain = Chain { home, options, levels, addresses };
        for level in 0..=LAST {
            std::fs::create_dir(chain.directory(level)).unwrap();
            chain.start(level);
        }
        chain
    }

    /// Starts a level, at its old address if it had one.
    pub fn start(&mut self, level: usize) {
        let (served, directory) = (self.served(), self.directory(level));
        let below = level.checked_sub(1).map(|below| self.url(below, "4.2"));
        let mut words = match &below {
            None => vec!["serve", path(&served), "--export", "/export", "--state", path(&directory)],
            Some(url) => {
                let cache = path(&directory);
                vec!["proxy", url, "--cache", cache, "--min-free", "0", "--prefetch", "0"]
            }
        };
        words.push("--no-rpcbind");
        words.extend(self.options[level].iter().map(String::as_str));
        let address = if self.addresses[level].is_empty() { "127.0.0.1:0" } else { &self.addresses[level] };
        let running = Running::start_at(&words, address);
        self.addresses[level].clone_from(&running.address);
        self.levels[level] = Some(running);
    }

    /// Kills a level with SIGKILL.
    pub fn kill(&mut self, level: usize) {
        self.levels[level] = None;
    }

    /// Sends a signal to a level.
    pub fn signal(&self, level: usize, signal: rustix::process::Signal) {
        let child = &self.levels[level].as_ref().unwrap().child;
        rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
    }

    pub fn served(&self) -> PathBuf {
        self.home.path().join("served")
    }

    fn directory(&self, level: usize) -> PathBuf {
        self.home.path().join(format!("level-{level}"))
    }

    pub fn url(&self, level: usize, vers: &str) -> String {
        format!("nfs://{}/export?noresvport&vers={vers}", self.addresses[level])
    }

    /// A client of a level.
    pub async fn client(&self, level: usize, vers: &str) -> Arc<dyn Origin> {
        client::connect(&Url::parse(&self.url(level, vers)).unwrap()).await.unwrap()
    }

    pub fn status(&self, level: usize) -> Value {
        let output = program::run(&["status", "--json", path(&self.directory(level))]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What clients of this level hold of it.
    pub fn held(&self, level: usize, kind: &str) -> u64 {
        let status = self.status(level);
        // A serve has one for each export.
        let held = if level == 0 { &status["held"]["/export"] } else { &status["held"] };
        held[kind].as_u64().unwrap_or_else(|| panic!("{kind}: {held}"))
    }

    /// The calls of each proxy to the level below it, without those that renew the lease.
    pub fn asked(&self) -> [Calls; PROXIES] {
        std::array::from_fn(|below| {
            let status = self.status(below + 1);
            let of = |(name, of): (&String, &Value)| (name.clone(), of["calls"].as_u64().unwrap());
            let all = status["upstream"].as_object().unwrap().iter().map(of);
            all.filter(|(name, _)| name != "SEQUENCE").collect()
        })
    }

    /// The calls that an event causes at each level.
    pub async fn cost<T>(&self, event: impl Future<Output = T>) -> (T, [Calls; PROXIES]) {
        let before = self.asked();
        let result = event.await;
        let mut cost = self.asked();
        for (now, before) in cost.iter_mut().zip(&before) {
            for (name, count) in now.iter_mut() {
                *count -= before.get(name).copied().unwrap_or(0);
            }
            now.retain(|_, count| *count > 0);
        }
        (result, cost)
    }
}

pub fn user() -> Caller {
    Caller::unix(1000, 1000, &[])
}

pub fn owner(name: &'static str) -> Owner {
    Owner(Bytes::from_static(name.as_bytes()))
}

pub fn named(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

pub fn request(root: &Handle, file: &str, by: &'static str, access: Share) -> OpenRequest {
    OpenRequest::new(*root, Some(named(file)), owner(by), access)
}

pub async fn open(at: &Arc<dyn Origin>, by: &'static str, access: Share) -> Opened {
    at.open(&user(), &request(&at.root_handle(), "file", by, access)).await.unwrap()
}

pub async fn read(at: &Arc<dyn Origin>, opened: &Opened) -> Bytes {
    let read = at.read(&user(), &opened.handle, StateidBasis::Open(opened.id), 0, 100).await.unwrap();
    read.data.to_bytes().unwrap()
}

/// Waits until it is so.
pub async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let waiting = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("{what}"));
}
