//! `--manage-gids`: groups are those of the server, whatever a client claims. The servers run with a user
//! database of their own, in a mount namespace, so these tests need root.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::Url;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use vfs::{Caller, FileSystem, Name, StateidBasis, Status, Want};

use crate::program::{Running, Tree};

/// A user of the server with forty groups, from `FIRST` on.
const USER: u32 = 4343;
const FIRST: u32 = 5001;
const LAST: u32 = FIRST + 39;
/// A user that the server does not know.
const STRANGER: u32 = 4444;

/// A user database, as files that are bound over those of /etc.
struct Database {
    directory: tempfile::TempDir,
}

impl Database {
    fn new() -> Database {
        let database = Database { directory: tempfile::tempdir().unwrap() };
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
        let line = format!("manygroups:x:{USER}:{USER}::/:/bin/false\n");
        std::fs::write(database.path("passwd"), passwd + &line).unwrap();
        database.set_groups(FIRST..=LAST);
        database
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Sets the groups of the user. The file stays the same inode, which is bound.
    fn set_groups(&self, groups: impl Iterator<Item = u32>) {
        let system = std::fs::read_to_string("/etc/group").unwrap();
        let lines = groups.map(|group| format!("group{group}:x:{group}:manygroups\n"));
        std::fs::write(self.path("group"), system + &lines.collect::<Vec<_>>().concat()).unwrap();
    }

    fn start(&self, arguments: &[&str]) -> Running {
        Running::start_bound(&[("passwd", &self.path("passwd")), ("group", &self.path("group"))], arguments)
    }
}

/// Makes a file that only the members of one group may read.
fn put(served: &Path, name: &str, group: u32) {
    std::fs::write(served.join(name), name).unwrap();
    chown(served.join(name), Some(0), Some(group)).unwrap();
    std::fs::set_permissions(served.join(name), std::fs::Permissions::from_mode(0o640)).unwrap();
}

async fn connect(server: &Running, vers: &str) -> Arc<dyn FileSystem> {
    let url = format!("{}&vers={vers}", server.url());
    client::connect(&Url::parse(&url).unwrap()).await.unwrap()
}

async fn read(fs: &Arc<dyn FileSystem>, caller: &Caller, name: &str) -> Result<Vec<u8>, Status> {
    let root = fs.root(&Caller::machine()).await.unwrap().handle;
    let looked = fs.lookup(caller, &root, &Name::new(name.as_bytes()).unwrap(), Want::None).await;
    let handle = looked.map_err(|error| error.status)?.node.handle;
    let read = fs.read(caller, &handle, StateidBasis::Anonymous, 0, 100).await;
    read.map(|read| read.data.to_bytes().unwrap().to_vec()).map_err(|error| error.status)
}

// Promise: groups-of-the-server
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_those_of_the_server_and_not_those_that_a_client_claims() {
    if !geteuid().is_root() {
        return;
    }
    let (tree, database) = (Tree::new(), Database::new());
    put(&tree.directory.path().join("served"), "secret", LAST);
    let (served, state) = (tree.path("served"), tree.path("state"));
    let serve = ["serve", &served, "--export", "/export", "--state", &state, "--manage-gids"];
    let origin = database.start(&serve);
    let proxy = tree.proxy_with(&origin, &[]);
    let member = Caller::unix(USER, USER, &[]);
    for (server, vers) in [(&origin, "3"), (&origin, "4.2"), (&proxy, "3"), (&proxy, "4.2")] {
        let fs = connect(server, vers).await;
        assert_eq!(read(&fs, &member, "secret").await, Ok(b"secret".to_vec()), "vers={vers}");
        for claims in [Caller::unix(STRANGER, STRANGER, &[LAST]), Caller::unix(0xffff_fff0, 1, &[LAST])] {
            assert_eq!(read(&fs, &claims, "secret").await, Err(Status::Access), "vers={vers}: {claims:?}");
        }
        // As with rpc.mountd(8), the primary group stays that of the client.
        let primary = Caller::unix(STRANGER, LAST, &[]);
        assert_eq!(read(&fs, &primary, "secret").await, Ok(b"secret".to_vec()), "vers={vers}");
    }
    // The answer is cached until SIGHUP.
    let fs = connect(&origin, "3").await;
    database.set_groups(FIRST..LAST);
    assert_eq!(read(&fs, &member, "secret").await, Ok(b"secret".to_vec()));
    kill_process(Pid::from_child(&origin.child), Signal::HUP).unwrap();
    let began = Instant::now();
    while read(&fs, &member, "secret").await != Err(Status::Access) {
        assert!(began.elapsed() < Duration::from_secs(60), "SIGHUP forgets the groups");
    }
}

// Promise: more-than-sixteen-groups
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_manages_groups_reads_for_all_of_them_from_an_origin_that_takes_sixteen() {
    if !geteuid().is_root() {
        return;
    }
    let (tree, database) = (Tree::new(), Database::new());
    let served = tree.directory.path().join("served");
    for group in [FIRST, LAST - 1, LAST, LAST + 1] {
        put(&served, &format!("of{group}"), group);
    }
    for origin_vers in ["3", "4.2"] {
        let origin = tree.serve();
        let cache = tree.path(&format!("cache-{origin_vers}"));
        std::fs::create_dir(&cache).unwrap();
        let url = format!("{}&vers={origin_vers}", origin.url());
        let proxy = database.start(&["proxy", &url, "--cache", &cache, "--min-free", "0", "--manage-gids"]);
        for vers in ["3", "4.2"] {
            let fs = connect(&proxy, vers).await;
            let member = Caller::unix(USER, USER, &[]);
            // The second round comes from the cache.
            for round in 0..2 {
                for group in [FIRST, LAST - 1, LAST] {
                    let name = format!("of{group}");
                    let got = read(&fs, &member, &name).await;
                    assert_eq!(got, Ok(name.clone().into_bytes()), "{origin_vers} {vers} {round} {name}");
                }
                let other = read(&fs, &member, &format!("of{}", LAST + 1)).await;
                assert_eq!(other, Err(Status::Access), "{origin_vers} {vers} {round}");
                let claims = Caller::unix(STRANGER, STRANGER, &[LAST]);
                assert_eq!(read(&fs, &claims, &format!("of{LAST}")).await, Err(Status::Access));
            }
        }
    }
}
