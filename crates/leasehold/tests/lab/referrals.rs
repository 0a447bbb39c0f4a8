//! One `serve` refers a kernel client to another `serve`.

use std::net::SocketAddr;

use lab::{Lab, Origin, V3, V4_1, V4_2};

use crate::stack;

/// The port that Linux uses for a referral.
const NFS_PORT: u16 = 2049;

#[test]
fn a_client_follows_a_referral_from_one_serve_to_another() {
    let Some(lab) = Lab::enter("referrals") else { return };
    let served = lab.subdirectory("served");
    std::fs::create_dir(served.join("below")).unwrap();
    std::fs::write(served.join("below/file"), "from the other one\n").unwrap();
    let host = lab.free_address().ip();
    let other = stack::serve_at(&lab, SocketAddr::new(host, NFS_PORT), &served, "other-state", &[]);
    let empty = lab.subdirectory("empty");
    std::fs::write(empty.join("hidden"), "").unwrap();
    let places = format!("/export@{host}");
    let referring =
        stack::serve_at(&lab, lab.free_address(), &empty, "referring-state", &["--refer", &places]);
    let root = Origin { export: "/".to_owned(), ..referring.origin() };
    for version in [V4_2, V4_1] {
        let guest = lab.guest(&format!("client-{}", version.replace(['=', '.', ','], "-")));
        guest.mount_nfs(&root, "/mnt/nfs", version);
        assert_eq!(guest.sh("ls /mnt/nfs"), "export\n");
        assert_eq!(guest.sh("cat /mnt/nfs/export/below/file"), "from the other one\n");
        assert_eq!(guest.sh("ls /mnt/nfs/export"), "below\n");
        guest.sh("echo written >/mnt/nfs/export/below/new; sync");
        assert_eq!(std::fs::read_to_string(served.join("below/new")).unwrap(), "written\n");
        std::fs::remove_file(served.join("below/new")).unwrap();
        assert!(!guest.try_mount_nfs(&referring.origin(), "/mnt/v3", V3).ok(), "v3 has no referrals");
    }
    drop(other);
}

/// The proxy follows instead of its clients, so those of version 3 see the tree, too.
#[test]
fn clients_of_a_proxy_see_one_tree_of_an_origin_that_refers_to_another() {
    let Some(lab) = Lab::enter("one-tree") else { return };
    let served = lab.subdirectory("served");
    std::fs::write(served.join("file"), "from the other one\n").unwrap();
    let host = lab.free_address().ip();
    let other = stack::serve_at(&lab, SocketAddr::new(host, NFS_PORT), &served, "other-state", &[]);
    let tree = lab.subdirectory("tree");
    std::fs::create_dir_all(tree.join("deep/other")).unwrap();
    std::fs::write(tree.join("deep/file"), "from the first one\n").unwrap();
    let config = lab.subdirectory("config").join("serve.toml");
    let export = |directory: &std::path::Path, more: &str| {
        let directory = directory.display();
        format!("[[export]]\ndirectory = '{directory}'\nsecure = false\nroot_squash = false\n{more}")
    };
    let first = export(&tree, "path = '/export'\n");
    let place = format!("path = '/export/deep/other'\nrefer = '/export@{host}'\n");
    let text = format!("rpcbind = false\n{first}{}", export(&tree.join("deep/other"), &place));
    std::fs::write(&config, text).unwrap();
    let (address, state) = (lab.free_address(), lab.subdirectory("referring-state"));
    let program = stack::program().args(["serve", "--config"]).arg(&config);
    let program = program.arg("--listen").arg(address.to_string()).arg("--state").arg(&state);
    let referring = stack::start(&lab, program, address, "/export", state);
    let proxy = stack::proxy_in(&lab, &referring.origin(), "4.2", "cache", &[]);
    for version in [V4_2, V3] {
        let guest = lab.guest(&format!("client-{}", version.replace(['=', '.', ','], "-")));
        guest.mount_nfs(&proxy.origin(), "/mnt/nfs", version);
        assert_eq!(guest.sh("ls /mnt/nfs/deep"), "file\nother\n");
        assert_eq!(guest.sh("cat /mnt/nfs/deep/other/file"), "from the other one\n", "{version}");
        guest.sh("set -e; echo written >/mnt/nfs/deep/other/new; sync");
        assert_eq!(std::fs::read_to_string(served.join("new")).unwrap(), "written\n");
        assert_eq!(
            guest.sh("find /mnt/nfs -type f | sort | xargs cat"),
            "from the first one\nfrom the other one\nwritten\n"
        );
        let devices = guest.sh("stat -c %d /mnt/nfs/deep /mnt/nfs/deep/other/file | sort -u | wc -l");
        assert_eq!(devices.trim(), "2", "they are two file systems");
        assert_eq!(guest.sh("cd /mnt/nfs/deep/other/.. && cat file"), "from the first one\n");
        guest.sh("rm /mnt/nfs/deep/other/new; umount /mnt/nfs/deep/other /mnt/nfs");
    }
    drop(other);
}
