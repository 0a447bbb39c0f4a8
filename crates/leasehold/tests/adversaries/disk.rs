//! Other users of the machine can neither read the directories of a proxy and a server nor redirect their
//! files.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use client::{Nfs3, Url};
use vfs::{Caller, FileSystem, Name, StateidBasis};

use crate::program::{Tree, fails_with, run};

fn chmod(path: impl AsRef<Path>, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// All entries below a directory that are open to other users.
fn open_to_others(directory: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(there) = std::fs::symlink_metadata(&path) else { continue }; // it went meanwhile
        if there.permissions().mode() & 0o077 != 0 {
            found.push((path.clone(), there.permissions().mode() & 0o7777));
        }
        if there.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    found
}

#[tokio::test]
async fn what_a_proxy_and_a_server_keep_is_for_their_user_alone() {
    let tree = Tree::new();
    std::fs::write(tree.path("served/file"), vec![b's'; 200 << 10]).unwrap();
    // systemd makes CacheDirectory= and StateDirectory= with this mode.
    chmod(tree.path("cache"), 0o755);
    chmod(tree.path("state"), 0o755);
    let origin = tree.serve();
    let proxy = tree.proxy(&origin);
    let through = Nfs3::connect(&Url::parse(&proxy.url()).unwrap()).await.unwrap();
    let caller = Caller::unix(0, 0, &[]);
    let root = through.root(&caller).await.unwrap().handle;
    let file = through
        .lookup(&caller, &root, &Name::new(b"file").unwrap(), vfs::Want::None)
        .await
        .unwrap()
        .node
        .handle;
    for offset in [0, 64 << 10, 128 << 10] {
        through.read(&caller, &file, StateidBasis::Anonymous, offset, 64 << 10).await.unwrap();
    }
    for kept in ["cache", "state"] {
        assert_eq!(open_to_others(Path::new(&tree.path(kept))), vec![], "{kept}");
    }
    assert!(Path::new(&tree.path("cache/objects")).is_dir() && Path::new(&tree.path("cache/state")).is_dir());
}

#[test]
fn a_link_in_a_directory_of_ours_leads_nowhere() {
    let tree = Tree::new();
    let precious = tree.path("precious");
    std::fs::write(&precious, b"precious").unwrap();
    let url = "nfs://127.0.0.1:1/export?noresvport";
    for link in ["cache/lock", "cache/state/lock", "cache/state/client.owner", "cache/objects/00"] {
        let _ = std::fs::remove_dir_all(tree.path("cache"));
        let path = PathBuf::from(tree.path(link));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        if link != "cache/lock" {
            std::fs::write(tree.path("cache/lock"), b"").unwrap();
        }
        symlink(&precious, &path).unwrap();
        fails_with(&run(&["proxy", url, "--cache", &tree.path("cache")]), &["is a symbolic link", link]);
        assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    }
    symlink(&precious, tree.path("state/lock")).unwrap();
    let serve = ["serve", &tree.path("served"), "--state", &tree.path("state")];
    fails_with(&run(&serve), &["is a symbolic link", "state/lock"]);
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let tree = Tree::new();
    chmod(tree.path("cache"), 0o777);
    chmod(tree.path("state"), 0o1777);
    let url = "nfs://127.0.0.1:1/export?noresvport";
    fails_with(
        &run(&["proxy", url, "--cache", &tree.path("cache")]),
        &["other users may write to", &tree.path("cache")],
    );
    let serve = ["serve", &tree.path("served"), "--state", &tree.path("state")];
    fails_with(&run(&serve), &["other users may write to", &tree.path("state")]);
    if rustix::process::geteuid().is_root() {
        chmod(tree.path("cache"), 0o700);
        std::os::unix::fs::chown(tree.path("cache"), Some(65534), None).unwrap();
        fails_with(&run(&["proxy", url, "--cache", &tree.path("cache")]), &["belongs to user 65534"]);
    }
}

#[test]
fn a_key_that_others_may_know_is_refused() {
    let tree = Tree::new();
    let key = tree.path("state/handle.key");
    std::fs::write(&key, [7; 16]).unwrap();
    chmod(&key, 0o644);
    std::fs::write(tree.path("state/lock"), b"").unwrap();
    let serve = ["serve", &tree.path("served"), "--state", &tree.path("state")];
    fails_with(&run(&serve), &["handle.key", "0644", "0600"]);
    let config = tree.path("exports.toml");
    let exports = format!("[[export]]\ndirectory = \"{}\"\nclients = [\"\"]\n", tree.path("served"));
    std::fs::write(&config, exports).unwrap();
    let serve = ["serve", "--config", &config, "--state", &tree.path("state")];
    fails_with(&run(&serve), &["no client address"]);
}
