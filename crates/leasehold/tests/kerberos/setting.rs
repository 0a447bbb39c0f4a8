//! A realm, a served directory, and users of this machine with tickets.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use client::{Origin, Url};
use lab::Realm;
use vfs::{Caller, Data, Name, StateidBasis, Status, Want};

use crate::program::{Running, Tree};

/// The principal of the server, and that of the client's machine.
pub const SERVER: &str = "nfs/localhost";
pub const MACHINE: &str = "host/client";
/// Users of every Debian machine. The first two have tickets.
pub const DAEMON: u32 = 1;
pub const BIN: u32 = 2;
pub const GAMES: u32 = 5;
pub const BYTES: usize = 3 << 20;

/// See the module.
pub struct Setting<'r> {
    pub realm: &'r Realm,
    pub tree: Tree,
    pub keytab: PathBuf,
    machine: PathBuf,
}

pub fn content() -> Vec<u8> {
    (0..BYTES).map(|at| (at / 7 % 251) as u8).collect()
}

pub fn user(uid: u32) -> Caller {
    Caller::unix(uid, uid, &[])
}

impl Setting<'_> {
    /// `secret` belongs to daemon alone, all may read `open` and write to `all`.
    pub fn new(realm: &Realm) -> Setting<'_> {
        for name in [SERVER, MACHINE] {
            realm.add_service(name);
        }
        for name in ["daemon", "bin", "games"] {
            realm.add_user(name, "a secret");
        }
        let (keytab, machine) = (realm.keytab(&[SERVER]), realm.keytab(&[MACHINE]));
        let tree = Tree::new();
        fs::set_permissions(tree.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(tree.path("tickets")).unwrap();
        let served = |name: &str| format!("{}/{name}", tree.path("served"));
        for (name, owner, mode) in [("secret", DAEMON, 0o600), ("open", 0, 0o644)] {
            fs::write(served(name), content()).unwrap();
            fs::set_permissions(served(name), fs::Permissions::from_mode(mode)).unwrap();
            chown(served(name), Some(owner), Some(owner)).unwrap();
        }
        fs::create_dir(served("all")).unwrap();
        fs::set_permissions(served("all"), fs::Permissions::from_mode(0o777)).unwrap();
        let setting = Setting { realm, tree, keytab, machine };
        setting.log_in("daemon", DAEMON);
        setting.log_in("bin", BIN);
        setting
    }

    /// Gets tickets for a user.
    pub fn log_in(&self, name: &str, uid: u32) {
        self.keep(&self.realm.tickets(name), uid);
    }

    /// Puts tickets where those of a user are.
    pub fn keep(&self, tickets: &PathBuf, uid: u32) {
        let place = format!("{}/krb5cc_{uid}", self.tree.path("tickets"));
        let new = format!("{}/new", self.tree.path("tickets"));
        fs::copy(tickets, &new).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&new, Some(uid), Some(uid)).unwrap();
        fs::rename(new, place).unwrap();
    }

    /// Gets tickets for a user, into the user's persistent keyring.
    pub fn log_in_keyring(&self, name: &str, uid: u32) {
        // The user's programs read the configuration.
        fs::set_permissions(self.realm.directory(), fs::Permissions::from_mode(0o755)).unwrap();
        let cache = format!("KEYRING:persistent:{uid}");
        let mut kinit = self.realm_command_as(uid, &["kinit", "-c", &cache, name]);
        let mut child = kinit.stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"a secret\n").unwrap();
        assert!(child.wait().unwrap().success());
    }

    /// Removes the tickets of a user's persistent keyring. They outlive the realm.
    pub fn log_out_keyring(&self, uid: u32) {
        let cache = format!("KEYRING:persistent:{uid}");
        let ended = self.realm_command_as(uid, &["kdestroy", "-q", "-A", "-c", &cache]).status();
        assert!(ended.unwrap().success());
    }

    fn realm_command_as(&self, uid: u32, words: &[&str]) -> Command {
        let mut command = self.realm.command("setpriv");
        let id = uid.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).args(words).stdin(Stdio::null());
        command
    }

    pub fn serve_at(&self, address: &str, sec: &str) -> Running {
        let (served, state) = (self.tree.path("served"), self.tree.path("state"));
        let keytab = self.keytab.display().to_string();
        let own = ["serve", &served, "--export", "/export", "--state", &state];
        Running::start_at(&[&own[..], &["--sec", sec, "--keytab", &keytab]].concat(), address)
    }

    pub fn serve(&self, sec: &str) -> Running {
        self.serve_at("127.0.0.1:0", sec)
    }

    pub fn proxy(&self, origin: &str, sec: &str) -> Running {
        let (cache, keytab) = (self.tree.path("cache"), self.keytab.display().to_string());
        let own = ["proxy", origin, "--cache", &cache, "--min-free", "0", "--export", "/export"];
        Running::start(&[&own[..], &["--sec", sec, "--keytab", &keytab]].concat())
    }

    /// The options of a client.
    pub fn options(&self, sec: &str) -> String {
        let tickets = self.tree.path("tickets");
        format!("sec={sec},keytab={},ccachedir={tickets}", self.machine.display())
    }

    /// The server has a ticket for its name, so the URL has the name, too.
    pub fn url(&self, server: &Running, version: &str, sec: &str) -> String {
        let options = if sec == "sys" { "sec=sys".to_owned() } else { self.options(sec).replace(',', "&") };
        format!("{}&vers={version}&{options}", server.url().replace("127.0.0.1", "localhost"))
    }

    pub async fn connect(&self, server: &Running, version: &str, sec: &str) -> Arc<dyn Origin> {
        connect(&self.url(server, version, sec)).await.unwrap()
    }
}

pub async fn connect(url: &str) -> Result<Arc<dyn Origin>, String> {
    let url = Url::parse(url).unwrap();
    let connecting = client::connect(&url);
    let connected = tokio::time::timeout(Duration::from_secs(60), connecting).await.unwrap();
    connected.map_err(|error| error.to_string())
}

/// Reads a file of the export as this user.
pub async fn read(client: &Arc<dyn Origin>, uid: u32, name: &str) -> Result<Vec<u8>, Status> {
    let (caller, name) = (user(uid), Name::new(name.as_bytes()).unwrap());
    let looked = client.lookup(&caller, &client.root_handle(), &name, Want::None).await;
    let file = looked.map_err(|error| error.status)?.node.handle;
    let mut all = Vec::new();
    loop {
        let (offset, by) = (all.len() as u64, StateidBasis::Anonymous);
        let read = client.read(&caller, &file, by, offset, 1 << 20).await.map_err(|error| error.status)?;
        let Data::Bytes(bytes) = read.data else { panic!("bytes of a connection") };
        all.extend_from_slice(&bytes);
        if read.eof || bytes.is_empty() {
            return Ok(all);
        }
    }
}
