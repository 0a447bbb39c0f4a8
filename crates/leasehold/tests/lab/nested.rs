//! File systems mounted below an export. Clients cross into them through `serve` and the proxy, and each has
//! its own fsid.

use std::path::PathBuf;
use std::process::Command;

use lab::{Lab, V3};

use crate::stack;

/// A tmpfs on the host; dropping the value unmounts it.
struct Mounted(PathBuf);

impl Mounted {
    fn at(path: PathBuf) -> Mounted {
        std::fs::create_dir(&path).unwrap();
        let done = Command::new("mount").args(["-t", "tmpfs", "nested"]).arg(&path).status().unwrap();
        assert!(done.success());
        Mounted(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily, because the server still has it open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_nested_file_system_is_crossed_and_keeps_its_fsid() {
    let Some(lab) = Lab::enter("nested") else { return };
    let served = lab.subdirectory("served");
    let nested = Mounted::at(served.join("nested"));
    let serve = stack::serve(&lab, &served);
    let mut proxy = stack::proxy(&lab, &serve.origin(), "cache", &[]);
    let guest = lab.guest("client");
    guest.mount_nfs(&proxy.origin(), "/mnt/nfs", V3);
    guest.sh("echo outer >/mnt/nfs/file; echo inner >/mnt/nfs/nested/file");
    assert_eq!(std::fs::read_to_string(nested.0.join("file")).unwrap(), "inner\n");
    let devices = guest.sh("stat -c %d /mnt/nfs/file /mnt/nfs/nested/file | sort -u | wc -l");
    assert_eq!(devices, "2\n", "each file system has an fsid of its own");
    let refused = guest.run("ln /mnt/nfs/file /mnt/nfs/nested/linked");
    assert!(!refused.ok(), "no link crosses");
    // Handles into the nested file system survive the restart and the drop of the caches.
    proxy.kill_and_restart();
    guest.drop_caches();
    assert_eq!(guest.sh("cat /mnt/nfs/file /mnt/nfs/nested/file"), "outer\ninner\n");
    drop(serve);
}
