//! Users who lost a right at the origin. Through a proxy they read nothing newer than the last proof of the
//! right, whatever the proxy has open at the origin.

use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::Arc;

use client::Url;
use vfs::{AccessMask, Caller, FileSystem, Handle, Name, SetAttributes, Stability, StateidBasis, Status};

use crate::program::{Running, Tree};

const BYTES: usize = 80 << 10;
const OWNER: u32 = 2001;

struct Site {
    tree: Tree,
    _origin: Running,
    _proxy: Running,
    /// A client of the proxy, then a client of the origin.
    through: Arc<dyn FileSystem>,
    direct: Arc<dyn FileSystem>,
}

fn owner() -> Caller {
    Caller::unix(OWNER, OWNER, &[])
}

/// A member of the owner's group.
fn member() -> Caller {
    Caller::unix(2005, 2005, &[OWNER])
}

async fn connect(server: &Running, vers: &str) -> Arc<dyn FileSystem> {
    let url = format!("{}&vers={vers}", server.url());
    client::connect(&Url::parse(&url).unwrap()).await.unwrap()
}

impl Site {
    async fn new(origin_vers: &str, client_vers: &str) -> Site {
        let tree = Tree::new();
        let origin = tree.serve();
        let url = format!("{}&vers={origin_vers}", origin.url());
        let proxy = Running::start(&["proxy", &url, "--cache", &tree.path("cache"), "--min-free", "0"]);
        let (through, direct) = (connect(&proxy, client_vers).await, connect(&origin, "3").await);
        Site { tree, _origin: origin, _proxy: proxy, through, direct }
    }

    /// Makes a file of the owner that the group may read.
    fn put(&self, name: &str) {
        let path = self.tree.path(&format!("served/{name}"));
        std::fs::write(&path, vec![b'o'; BYTES]).unwrap();
        chown(&path, Some(OWNER), Some(OWNER)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    }

    /// At the origin, the owner revokes the right and writes.
    async fn revoke(&self, name: &str) {
        let file = find(&self.direct, name).await;
        let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        self.direct.setattr(&owner(), &file, &set, None).await.unwrap();
        let new = vec![b'N'; BYTES].into();
        self.direct
            .write(&owner(), &file, StateidBasis::Anonymous, 0, new, Stability::FileSync)
            .await
            .unwrap();
    }
}

async fn find(fs: &Arc<dyn FileSystem>, name: &str) -> Handle {
    let caller = Caller::unix(0, 0, &[]);
    let root = fs.root(&caller).await.unwrap().handle;
    fs.lookup(&caller, &root, &Name::new(name.as_bytes()).unwrap(), vfs::Want::None)
        .await
        .unwrap()
        .node
        .handle
}

async fn read(fs: &Arc<dyn FileSystem>, caller: &Caller, file: &Handle, offset: u64) -> Result<u8, Status> {
    let read =
        fs.read(caller, file, StateidBasis::Anonymous, offset, 4).await.map_err(|error| error.status)?;
    Ok(read.data.to_bytes().unwrap()[0])
}

// Promise: lost-rights
#[tokio::test]
async fn a_user_who_lost_the_right_reads_nothing_new_through_a_proxy() {
    for (origin, client) in [("4.2", "3"), ("4.2", "4.2"), ("3", "3"), ("3", "4.2")] {
        let site = Site::new(origin, client).await;
        site.put("file");
        let file = find(&site.through, "file").await;
        assert_eq!(read(&site.through, &member(), &file, 0).await, Ok(b'o'), "{origin} {client}");
        site.revoke("file").await;
        for offset in [0, 64 << 10, 0] {
            // The reads come with and without a preceding GETATTR, from the cache or not, and under an open
            // of the proxy or not.
            let got = read(&site.through, &member(), &file, offset).await;
            assert!(matches!(got, Ok(b'o') | Err(Status::Access)), "{origin} {client}: {got:?}");
            let mode = site.through.getattr(&member(), &file).await.unwrap().mode;
            let got = read(&site.through, &member(), &file, offset).await;
            let may_be_old = mode == 0o640 && got == Ok(b'o');
            assert!(may_be_old || got == Err(Status::Access), "{origin} {client}: {mode:o} {got:?}");
        }
        let granted = site.through.access(&member(), &file, AccessMask::READ).await.unwrap().granted;
        assert!(granted.is_empty());
        assert_eq!(read(&site.through, &owner(), &file, 0).await, Ok(b'N'), "{origin} {client}");
        // Now the proxy has the data cached and open. The origin still decides which users may read it.
        for offset in [0, 64 << 10] {
            assert_eq!(read(&site.through, &member(), &file, offset).await, Err(Status::Access));
            assert_eq!(
                read(&site.through, &Caller::unix(7, 7, &[]), &file, offset).await,
                Err(Status::Access)
            );
        }
    }
}
