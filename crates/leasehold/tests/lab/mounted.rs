//! `leasehold mount` on the host beside a kernel's client in a guest. Two mounts and that client keep
//! close-to-open with all three origins, whatever their caches contain.
//!
//! Promise: opens-through-a-mount

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use lab::{CloseToOpen, Ganesha, Hand, Knfsd, Lab, Origin, Process, Rng, Seat, V3, V4_2};

use crate::stack;

const PATIENCE: Duration = Duration::from_secs(30);

/// A mount on the host. Drop it before the lab.
pub struct Mounted {
    process: Process,
    at: tempfile::TempDir,
}

impl Mounted {
    /// Mounts an origin, with the cache in a directory of the lab.
    pub fn new(lab: &Lab, origin: &Origin, cache: &str, options: &str) -> Mounted {
        let at = tempfile::tempdir().unwrap();
        let words = format!("cache={},minfree=0,{options}", lab.subdirectory(cache).display());
        let program = stack::program().args(["mount", "--foreground"]).arg(origin.url()).arg(at.path());
        let process = program.args(["-o", &words]).start(lab);
        process.wait_for_line(" is mounted on ", PATIENCE);
        Mounted { process, at }
    }

    /// The mount point.
    pub fn at(&self) -> &Path {
        self.at.path()
    }

    /// The output of `leasehold status --json`.
    pub fn status(&self) -> serde_json::Value {
        let mut status = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        let output = status.args(["status", "--json"]).arg(self.at()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Unmounts, which stores all data at the origin.
    pub fn unmount(mut self) {
        assert!(self.process.terminate(PATIENCE).success(), "{}", self.process.log());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-lq").arg(self.at()).stderr(Stdio::null()).status();
    }
}

/// The origin for version 3 and for version 4. The kernel's client mounts the first one.
fn play(lab: &Lab, origins: [&Origin; 2]) {
    play_with(lab, [(origins[0], "3"), (origins[1], "4.2")], (origins[0], V3));
}

/// The same, with the origins and versions of the two mounts and of the kernel's client.
fn play_with(lab: &Lab, mounts: [(&Origin, &str); 2], (origin, version): (&Origin, &str)) {
    // With timeouts longer than the test, only opens reveal changes.
    let mounts = [("a", mounts[0]), ("b", mounts[1])].map(|(name, (origin, version))| {
        Mounted::new(lab, origin, name, &format!("vers={version},actimeo=3600"))
    });
    let guest = lab.guest("direct");
    guest.mount_nfs(origin, "/mnt/nfs", &format!("{version},noacl"));
    let seat = |name: &str, at: &Mounted| Seat::new(name, Hand::on_host(), PathBuf::from(at.at()));
    let direct = Seat::new(guest.name(), guest.hand(), "/mnt/nfs");
    let mut seats = [seat("mount a", &mounts[0]), seat("mount b", &mounts[1]), direct];
    let rounds = std::env::var("LAB_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let checker = CloseToOpen { rounds, ..CloseToOpen::default() };
    let reads = checker.run(&mut seats, &mut Rng::from_environment());
    eprintln!("lab: {}: {reads} reads, none stale", lab.name());
    drop(seats);
    mounts.into_iter().for_each(Mounted::unmount);
}

#[test]
fn mounts_and_a_kernel_keep_close_to_open_before_serve() {
    let Some(lab) = Lab::enter("mounted-serve") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    play(&lab, [&serve.origin(); 2]);
}

#[test]
fn mounts_and_a_kernel_keep_close_to_open_before_ganesha() {
    let Some(lab) = Lab::enter("mounted-ganesha") else { return };
    let ganesha = Ganesha::start(&lab);
    play(&lab, [&ganesha.origin(); 2]);
}

#[test]
fn mounts_and_a_kernel_keep_close_to_open_before_knfsd() {
    let Some(lab) = Lab::enter("mounted-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    let (three, four) = (knfsd.origin(), knfsd.origin_v4());
    // From 6.6 on this server grants write delegations. It then does not ask the holder when a client of
    // version 3 asks for attributes (docs/semantics.md). Linux's client of version 4 opens a known file by
    // its handle. A mount may still have a replaced file open, so the client must look each name up.
    let looks_up = format!("{V4_2},lookupcache=none");
    let (first, direct) = if knfsd.guest().linux() < (6, 6) {
        ((&three, "3"), (&three, V3))
    } else {
        ((&four, "4.1"), (&four, &*looks_up))
    };
    play_with(&lab, [first, (&four, "4.2")], direct);
}
