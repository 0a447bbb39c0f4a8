//! Handles survive renames and restarts, and never name another file.
//!
//! Promise: stable-handles
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::collections::HashSet;

use common::{Served, is_root, machine, name, serve, serve_by_table, serve_with};
use rustix::mount::{MountFlags, UnmountFlags};
use vfs::{FileSystem, Handle, SetAttributes, Status};

/// Both kinds of handles; kernel handles only if this process may use them.
fn both() -> Vec<Served> {
    vec![serve(), serve_by_table()]
}

#[tokio::test]
async fn handles_are_short_and_differ() {
    for served in both() {
        let root = served.root().await;
        let mut seen = HashSet::from([root]);
        for number in 0..100 {
            let handle = served.create(&machine(), &root, &format!("file-{number}")).await.unwrap();
            assert!(handle.as_bytes().len() <= 19, "{handle}");
            assert!(seen.insert(handle));
        }
    }
}

#[tokio::test]
async fn a_handle_survives_renames_and_restarts() {
    for served in both() {
        let root = served.root().await;
        let a = served
            .fs
            .mkdir(&machine(), &root, &name("a"), &SetAttributes::default(), vfs::Want::None)
            .await
            .unwrap()
            .node
            .handle;
        let b = served
            .fs
            .mkdir(&machine(), &a, &name("b"), &SetAttributes::default(), vfs::Want::None)
            .await
            .unwrap()
            .node
            .handle;
        let file = served.create(&machine(), &b, "file").await.unwrap();
        served.write(&machine(), &file, 0, b"same").await.unwrap();
        let served = served.restarted();
        assert_eq!(served.root().await, root);
        assert_eq!(&served.read(&machine(), &file, 0, 9).await.unwrap().0[..], b"same");
        served.fs.rename(&machine(), &b, &name("file"), &a, &name("moved")).await.unwrap();
        served.fs.rename(&machine(), &root, &name("a"), &root, &name("z")).await.unwrap();
        let served = served.restarted();
        assert_eq!(&served.read(&machine(), &file, 0, 9).await.unwrap().0[..], b"same");
        assert_eq!(served.handle("z/moved").await, file);
        assert_eq!(served.handle("z/b").await, b);
        assert_eq!(served.fs.parent(&machine(), &b).await.unwrap().node.handle, a);
    }
}

#[tokio::test]
async fn handles_from_a_listing_survive_a_restart() {
    for served in both() {
        for number in 0..50 {
            std::fs::write(served.path(format!("file-{number}")), number.to_string()).unwrap();
        }
        let listed = served.list(&served.root().await, 1 << 16, true).await;
        let served = served.restarted();
        for entry in listed {
            let node = entry.node.unwrap();
            let expected = entry.name.to_string()["file-".len()..].to_owned();
            assert_eq!(
                &served.read(&machine(), &node.handle, 0, 9).await.unwrap().0[..],
                expected.as_bytes()
            );
        }
    }
}

#[tokio::test]
async fn a_removed_file_is_stale_even_if_its_inode_is_used_again() {
    for served in both() {
        let root = served.root().await;
        let mut stale = Vec::new();
        for round in 0..20 {
            let file = served.create(&machine(), &root, "file").await.unwrap();
            served.write(&machine(), &file, 0, format!("{round}").as_bytes()).await.unwrap();
            for old in &stale {
                assert_eq!(served.read(&machine(), old, 0, 9).await, Err(Status::Stale));
            }
            stale.push(file);
            if round % 2 == 0 {
                served.fs.remove(&machine(), &root, &name("file")).await.unwrap();
            } else {
                std::fs::remove_file(served.path("file")).unwrap();
            }
        }
        let served = served.restarted();
        served.create(&machine(), &root, "file").await.unwrap();
        for old in &stale {
            assert_eq!(served.fs.getattr(&machine(), old).await.unwrap_err().status, Status::Stale);
        }
    }
}

#[tokio::test]
async fn forged_handles_are_refused() {
    for served in both() {
        let file = served.create(&machine(), &served.root().await, "file").await.unwrap();
        let mut bad: Vec<Vec<u8>> =
            vec![vec![], vec![0], vec![1, 0, 0, 1], vec![2; 18], vec![2; 20], vec![9; 12]];
        for at in 0..file.as_bytes().len() {
            let mut bytes = file.as_bytes().to_vec();
            bytes[at] ^= 0x55;
            bad.push(bytes);
        }
        bad.push(vec![1; 128]);
        bad.push(vec![3; 20]);
        for bytes in bad {
            let status =
                served.fs.getattr(&machine(), &Handle::new(&bytes).unwrap()).await.unwrap_err().status;
            assert!(matches!(status, Status::Stale | Status::BadHandle), "{bytes:x?} gives {status}");
        }
    }
}

#[tokio::test]
async fn a_second_name_keeps_a_handle_of_the_table() {
    let served = serve_by_table();
    let root = served.root().await;
    let file = served.create(&machine(), &root, "one").await.unwrap();
    served.fs.link(&machine(), &file, &root, &name("two")).await.unwrap();
    served.fs.remove(&machine(), &root, &name("two")).await.unwrap();
    let served = served.restarted();
    assert_eq!(served.fs.getattr(&machine(), &file).await.unwrap().nlink, 1);
    std::fs::rename(served.path("one"), served.path("three")).unwrap();
    let served = served.restarted();
    assert_eq!(served.fs.getattr(&machine(), &file).await.unwrap_err().status, Status::Stale);
    assert_eq!(served.handle("three").await, file, "seen again, it is good again");
    assert_eq!(served.fs.getattr(&machine(), &file).await.unwrap().nlink, 1);
}

#[tokio::test]
async fn two_servers_do_not_share_a_table() {
    let served = serve_by_table();
    let second = local::LocalFs::open(&served.directory, served.options.clone());
    let message = second.err().unwrap().to_string();
    assert!(
        message.contains("cannot keep file handles in") && message.contains("no other server"),
        "{message}"
    );
}

#[tokio::test]
async fn a_directory_moved_out_has_no_parent() {
    let home = tempfile::TempDir::new().unwrap();
    let outside = home.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let served = common::serve_in(home, |_| ());
    let root = served.root().await;
    let a = served
        .fs
        .mkdir(&machine(), &root, &name("a"), &SetAttributes::default(), vfs::Want::None)
        .await
        .unwrap()
        .node
        .handle;
    std::fs::rename(served.path("a"), outside.join("a")).unwrap();
    assert_eq!(served.fs.parent(&machine(), &a).await.unwrap_err().status, Status::Access);
}

#[test]
fn what_cannot_be_served_is_said_in_one_line() {
    let home = tempfile::TempDir::new().unwrap();
    let options = local::Options::new(home.path().join("state"));
    let message = local::LocalFs::open(&home.path().join("missing"), options).err().unwrap().to_string();
    assert!(message.starts_with("cannot serve ") && message.contains("No such file"), "{message}");
}

/// A tmpfs that is unmounted after the test.
struct Mounted(std::path::PathBuf);

impl Mounted {
    fn tmpfs(at: std::path::PathBuf) -> Option<Mounted> {
        std::fs::create_dir_all(&at).unwrap();
        match rustix::mount::mount("tmpfs", &at, "tmpfs", MountFlags::empty(), Some(c"size=1m")) {
            Ok(()) => Some(Mounted(at)),
            Err(errno) => {
                eprintln!("skipped: mounting a tmpfs is refused: {errno}");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn file_systems_below_are_crossed() {
    if !is_root() {
        return;
    }
    for served in both() {
        let Some(_mounted) = Mounted::tmpfs(served.path("deep/mnt with space")) else { return };
        std::fs::write(served.path("deep/mnt with space/file"), "inside").unwrap();
        let root = served.find(&machine(), "").await.unwrap();
        let inner = served.find(&machine(), "deep/mnt with space").await.unwrap();
        let file = served.find(&machine(), "deep/mnt with space/file").await.unwrap();
        let fsid = |node: &vfs::Node| node.attributes.unwrap().fsid;
        assert_ne!(fsid(&root), fsid(&inner));
        assert_eq!(fsid(&inner), fsid(&file));
        assert!(file.handle.as_bytes().len() <= 19);
        let deep = served.handle("deep").await;
        assert_eq!(served.fs.parent(&machine(), &inner.handle).await.unwrap().node.handle, deep);
        let listed = served.list(&deep, 1000, true).await;
        assert!(listed[0].node.is_none(), "a mount point is looked up, not listed");
        let across =
            served.fs.rename(&machine(), &inner.handle, &name("file"), &deep, &name("f")).await.unwrap_err();
        assert_eq!(across.status, Status::Xdev);
        let served = served.restarted();
        assert_eq!(&served.read(&machine(), &file.handle, 0, 9).await.unwrap().0[..], b"inside");
        assert_eq!(fsid(&served.find(&machine(), "deep/mnt with space").await.unwrap()), fsid(&inner));
    }
}

#[tokio::test]
async fn file_systems_below_are_hidden_without_crossmnt() {
    if !is_root() {
        return;
    }
    let home = tempfile::TempDir::new().unwrap();
    let served = common::serve_in(home, |_| ());
    std::fs::create_dir(served.path("mnt")).unwrap();
    std::fs::write(served.path("mnt/under"), "").unwrap();
    let Some(_mounted) = Mounted::tmpfs(served.path("mnt")) else { return };
    let (directory, options) =
        (served.directory.clone(), local::Options { crossmnt: false, ..served.options.clone() });
    let hidden = Served { fs: local::LocalFs::open(&directory, options).unwrap(), ..served };
    assert_eq!(hidden.find(&machine(), "mnt/under").await.map(|_| ()), Ok(()));
    assert_eq!(
        hidden.fs.fsid(),
        hidden.find(&machine(), "mnt").await.unwrap().attributes.unwrap().fsid.major
    );
}

#[tokio::test]
async fn few_descriptors_are_enough() {
    let served = serve_with(|options| (options.descriptors_max, options.sync) = (16, false));
    let root = served.root().await;
    let mut handles = Vec::new();
    for number in 0..200 {
        let file = served.create(&machine(), &root, &format!("{number}")).await.unwrap();
        served.write(&machine(), &file, 0, number.to_string().as_bytes()).await.unwrap();
        handles.push(file);
    }
    for (number, file) in handles.iter().enumerate() {
        assert_eq!(&served.read(&machine(), file, 0, 9).await.unwrap().0[..], number.to_string().as_bytes());
    }
}
