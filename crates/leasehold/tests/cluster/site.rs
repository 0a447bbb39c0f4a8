//! An etcd, two origins, two virtual servers, and members.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Origin, Url};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vfs::{
    Caller, Lock, LockKind, LockRequest, Locked, Name, OpenRequest, Opened, Owner, Share, Stability,
    StateidBasis, Status,
};

use crate::program::{self, Running, path};

/// The longest that anything here may take: a term, a grace period, and the delay of a busy machine.
pub const LONGEST: Duration = Duration::from_secs(60);

pub struct Site {
    pub home: tempfile::TempDir,
    pub etcd: lab::Etcd,
    _origins: Vec<Running>,
    origin_ports: Vec<String>,
    pub servers: [SocketAddr; 2],
    members: BTreeMap<&'static str, Running>,
}

impl Site {
    /// With these members.
    pub fn new(members: &[&'static str]) -> Site {
        let home = tempfile::tempdir().unwrap();
        let etcd = lab::Etcd::start(1);
        secret(&home.path().join("key"), 7);
        let mut origins = Vec::new();
        for name in ["a", "b"] {
            let served = home.path().join(name);
            std::fs::create_dir(&served).unwrap();
            std::fs::write(served.join("file"), "content").unwrap();
            std::os::unix::fs::chown(served.join("file"), Some(1000), Some(1000)).unwrap();
            let state = home.path().join(format!("state-{name}"));
            let export = format!("/{name}");
            let words =
                ["serve", path(&served), "--export", &export, "--state", path(&state), "--no-rpcbind"];
            origins.push(Running::start(&words));
        }
        let origin_ports = origins.iter().map(|origin| origin.address.clone()).collect();
        let free = |last: u8| {
            let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, last), 0)).unwrap();
            listener.local_addr().unwrap()
        };
        let servers = [free(5), free(6)];
        let mut site =
            Site { home, etcd, _origins: origins, origin_ports, servers, members: BTreeMap::new() };
        members.iter().for_each(|name| site.start(name));
        for server in [0, 1] {
            site.holder(server);
        }
        site
    }

    /// The configuration of a member, with lines before its tables.
    pub fn config(&self, member: &str, more: &str) -> PathBuf {
        let file = self.home.path().join(format!("{member}.toml"));
        let home = self.home.path().display();
        let [one, two] = self.servers;
        let text = format!(
            "cache = '{home}/m-{member}'\nhandle_key = '{home}/key'\nroot_squash = false\nsecure = false\n\
             rpcbind = false\nmin_free = '0'\nlease_time = 10\n{more}\n\
             [cluster]\nname = 'site'\nmember = '{member}'\nendpoints = {:?}\nterm = 4\n\
             [[server]]\naddress = '{one}'\n[[server]]\naddress = '{two}'\n\
             [[origin]]\nurl = 'nfs://{}/a?noresvport'\nserver = '{one}'\n\
             [[origin]]\nurl = 'nfs://{}/b?noresvport'\nserver = '{two}'\n",
            self.etcd.endpoints(),
            self.origin_ports[0],
            self.origin_ports[1],
        );
        std::fs::write(&file, text).unwrap();
        file
    }

    /// Starts a member, or starts it again.
    pub fn start(&mut self, member: &'static str) {
        let config = self.config(member, "");
        self.start_with(member, &config);
    }

    /// Starts a member with this configuration.
    pub fn start_with(&mut self, member: &'static str, config: &std::path::Path) {
        let running = Running::start(&["proxy", "--config", path(config)]);
        self.members.insert(member, running);
    }

    /// Kills the process of a member with SIGKILL. Those of its servers end with it.
    pub fn kill(&mut self, member: &str) {
        self.members.remove(member);
    }

    /// Stops a member with SIGTERM.
    pub fn terminate(&mut self, member: &str) -> String {
        self.members.remove(member).unwrap().terminate()
    }

    /// The directory of a member.
    pub fn directory(&self, member: &str) -> PathBuf {
        self.home.path().join(format!("m-{member}"))
    }

    /// The process of a member, and those of its servers.
    pub fn processes(&self, member: &str) -> Vec<Pid> {
        let own = Pid::from_child(&self.members[member].child);
        // Each thread has its own list of children.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", own.as_raw_nonzero())).unwrap();
        let of = |task: std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("children")).unwrap_or_default()
        };
        let children: Vec<String> = tasks.filter_map(Result::ok).map(of).collect();
        let children: Vec<Pid> = children
            .iter()
            .flat_map(|children| children.split_whitespace())
            .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            .collect();
        std::iter::once(own).chain(children).collect()
    }

    /// Sends a signal to a member and its servers.
    pub fn signal(&self, member: &str, signal: Signal) {
        // The servers first, so that the member does not see them stop.
        self.processes(member).iter().rev().for_each(|pid| kill_process(*pid, signal).unwrap());
    }

    /// What a member says of the cluster.
    pub fn status(&self, member: &str) -> Value {
        let output = program::run(&["cluster", "status", "--json", path(&self.directory(member))]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// The member that has a server, by what these members say. Waits until there is one.
    pub fn holder_by(&self, server: usize, members: &[&'static str]) -> &'static str {
        let address = self.servers[server].to_string();
        let begun = Instant::now();
        loop {
            for asked in members {
                let status = self.status(asked);
                let servers = status["servers"].as_array().cloned().unwrap_or_default();
                let named = servers.iter().find(|of| of["address"] == address.as_str());
                let holder = named.and_then(|of| of["member"].as_str()).unwrap_or_default().to_owned();
                if let Some(member) = members.iter().find(|member| **member == holder) {
                    return member;
                }
            }
            assert!(begun.elapsed() < LONGEST, "nobody has {address}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The member that has a server.
    pub fn holder(&self, server: usize) -> &'static str {
        let members: Vec<&'static str> = self.members.keys().copied().collect();
        self.holder_by(server, &members)
    }

    /// Waits until another member has the server.
    pub fn moved(&self, server: usize, from: &str) -> &'static str {
        let begun = Instant::now();
        loop {
            let now = self.holder(server);
            if now != from {
                return now;
            }
            assert!(begun.elapsed() < LONGEST, "{from} still has it");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a member is in the cluster.
    pub async fn joined(&self, member: &str) {
        let begun = Instant::now();
        while self.status(member)["in"] != true {
            assert!(begun.elapsed() < LONGEST, "{member} is not in");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A client of a virtual server, at its origin.
    pub async fn client(&self, server: usize) -> Arc<dyn Origin> {
        self.client_at(server, ["a", "b"][server], "4.2").await
    }

    /// A client of a virtual server, at any export and over any version.
    pub async fn client_at(&self, server: usize, export: &str, vers: &str) -> Arc<dyn Origin> {
        let url = format!("nfs://{}/{export}?noresvport&vers={vers}", self.servers[server]);
        let begun = Instant::now();
        loop {
            match client::connect(&Url::parse(&url).unwrap()).await {
                Ok(client) => return client,
                Err(error) => assert!(begun.elapsed() < LONGEST, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// When the file was changed last. Unlike an open of the file, this look recalls no delegation from a
    /// proxy that is stopped.
    pub fn changed(&self, server: usize) -> std::time::SystemTime {
        let file = self.home.path().join(["a", "b"][server]).join("file");
        file.metadata().unwrap().modified().unwrap()
    }

    pub fn content(&self, server: usize) -> Vec<u8> {
        std::fs::read(self.home.path().join(["a", "b"][server]).join("file")).unwrap()
    }
}

/// Writes a handle key.
pub fn secret(file: &std::path::Path, byte: u8) {
    std::fs::write(file, [byte; 16]).unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

pub fn user() -> Caller {
    Caller::unix(1000, 1000, &[])
}

fn owner(name: &'static str) -> Owner {
    Owner(Bytes::from_static(name.as_bytes()))
}

async fn waiting<T>(mut attempt: impl AsyncFnMut() -> Result<T, vfs::Error>) -> T {
    let begun = Instant::now();
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) if matches!(error.status, Status::Delay | Status::Grace) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(begun.elapsed() < LONGEST, "it is put off again and again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Opens the file for reading and writing.
pub async fn open(at: &Arc<dyn Origin>, by: &'static str) -> Opened {
    let share = Share::READ | Share::WRITE;
    let request = OpenRequest::new(at.root_handle(), Some(Name::new(b"file").unwrap()), owner(by), share);
    waiting(async || at.open(&user(), &request).await).await
}

pub async fn lock(at: &Arc<dyn Origin>, opened: &Opened, by: &'static str) -> Locked {
    let lock = Lock { owner: owner(by), kind: LockKind::Exclusive, offset: 0, length: 10 };
    let request = LockRequest { lock, wait: false, reclaim: false };
    waiting(async || at.lock(&user(), opened.id, &request).await).await
}

pub async fn write(at: &Arc<dyn Origin>, opened: &Opened, byte: u8) {
    let (data, by) = (Bytes::from(vec![byte; 7]), StateidBasis::Open(opened.id));
    let write = async || {
        at.write(&user(), &opened.handle, by, 0, data.clone(), Stability::FileSync).await.map(|_| ())
    };
    tokio::time::timeout(LONGEST, waiting(write)).await.expect("an answer in a minute");
}
