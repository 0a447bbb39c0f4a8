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
