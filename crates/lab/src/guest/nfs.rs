//! The guest's own NFS client: mounting, unmounting, counting its calls.

use crate::guest::{Guest, Output};
use crate::origin::{CallCounts, Origin};
use std::time::Duration;

/// Mount options of most tests: version 3 over TCP with local locks.
pub const V3: &str = "vers=3,proto=tcp,nolock,hard";
/// The same for version 2.
pub const V2: &str = "vers=2,proto=tcp,nolock,hard";

/// Version 4, minor version 0.
pub const V4_0: &str = "vers=4.0,proto=tcp,hard";
/// Version 4, minor version 1.
pub const V4_1: &str = "vers=4.1,proto=tcp,hard";
/// Version 4, minor version 2.
pub const V4_2: &str = "vers=4.2,proto=tcp,hard";

/// How long mounting may take. mount.nfs itself tries for two minutes, which only hides a wrong address.
const MOUNT_PATIENCE: Duration = Duration::from_secs(45);

impl Guest {
    /// Mounts the export of `origin` at `mountpoint`, which is created. `options` are those of nfs(5); ports
    /// are added. Panics with the message of mount(8).
    #[track_caller]
    pub fn mount_nfs(&self, origin: &Origin, mountpoint: &str, options: &str) {
        let output = self.try_mount_nfs(origin, mountpoint, options);
        assert!(output.ok(), "lab: {}: cannot mount {}: {}", self.name(), origin.url(), output.tail());
    }

    /// Mounts, and returns the result.
    pub fn try_mount_nfs(&self, origin: &Origin, mountpoint: &str, options: &str) -> Output {
        let Origin { host, port, mountport, export } = origin;
        // mount.nfs no longer supports version 2. The kernel does, but needs the address as an option.
        let (how, more) = match options {
            _ if options.contains("vers=2") => (
                "-i",
                format!(",addr={host},mountaddr={host},mountvers=1,mountport={mountport},mountproto=tcp"),
            ),
            _ if options.contains("vers=3") => ("", format!(",mountport={mountport},mountproto=tcp")),
            _ => ("", String::new()),
        };
        self.run_for(MOUNT_PATIENCE, &format!(
            "mkdir -p {mountpoint}; mount {how} -t nfs -o {options},port={port}{more} '{host}:{export}' {mountpoint}"
        ))
    }

    /// Unmounts; panics with the message of umount(8).
    #[track_caller]
    pub fn unmount(&self, mountpoint: &str) {
        self.sh(&format!("umount {mountpoint}"));
    }

    /// Drops the guest kernel's caches, so that its next reads go to the server.
    #[track_caller]
    pub fn drop_caches(&self) {
        self.sh("sync; echo 3 >/proc/sys/vm/drop_caches");
    }

    /// Calls that the guest's NFS client has sent since boot, by version 3 procedure.
    #[track_caller]
    pub fn nfs3_calls(&self) -> CallCounts {
        CallCounts::parse(&self.sh("cat /proc/net/rpc/nfs"))
    }
}
