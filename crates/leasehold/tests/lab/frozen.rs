//! A client that holds a delegation is frozen (as when its machine is suspended) while another client
//! writes. It resumes after the delegation was revoked.
//!
//! A server cannot reach such a client. After resuming, the client may read from its own page cache until it
//! talks to the server; only its kernel controls that. It talks to the server within a lease time, to renew
//! its lease, and learns that its state is lost. This test checks what can be promised: from then on, the
//! client reads the new content and never again the old one.
//!
//! Promise: frozen-clients

use std::time::{Duration, Instant};

use lab::{Guest, Lab, V4_1};
use rustix::process::{Pid, Signal};

use crate::stack;

const LEASE_SECONDS: u64 = 10;
/// Time that the programs in the guest and this machine may add.
const MACHINE: Duration = Duration::from_secs(2);

/// A stopped guest kernel; dropping the value resumes it.
struct Frozen(Pid);

impl Frozen {
    fn new(guest: &Guest) -> Frozen {
        let kernel = kernel_of(guest);
        lab::freeze(kernel);
        Frozen(kernel)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, Signal::CONT);
    }
}

/// The process that is the guest's kernel: our child process with the guest's address on its command line.
/// The guest's programs are processes that it traces, so they stop with it.
fn kernel_of(guest: &Guest) -> Pid {
    let address = format!("LAB_ADDRESS={}", guest.address());
    let ours = |pid: &u32| {
        let of = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&of("stat")).into_owned();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)).map(str::to_owned);
        parent == Some(std::process::id().to_string())
            && String::from_utf8_lossy(&of("cmdline")).split('\0').any(|word| word == address)
    };
    let pids =
        std::fs::read_dir("/proc").unwrap().filter_map(|it| it.unwrap().file_name().to_str()?.parse().ok());
    let found: Vec<u32> = pids.filter(ours).collect();
    let [kernel] = found[..] else { panic!("the kernel of {}: {found:?}", guest.name()) };
    Pid::from_raw(kernel as i32).unwrap()
}

#[test]
fn a_client_that_was_frozen_reads_what_others_wrote_within_a_lease_time() {
    let Some(lab) = Lab::enter("frozen") else { return };
    let served = lab.subdirectory("served");
    std::fs::write(served.join("file"), "before").unwrap();
    let options = ["--lease-time", &LEASE_SECONDS.to_string()];
    let serve = stack::serve_with(&lab, &served, &options);
    let proxy = stack::proxy_in(&lab, &serve.origin(), "4.2", "cache", &options);
    let (holder, writer) = (lab.guest("holder"), lab.guest("writer"));
    holder.mount_nfs(&proxy.origin(), "/mnt/nfs", V4_1);
    writer.mount_nfs(&serve.origin(), "/mnt/nfs", V4_1);
    assert_eq!(holder.sh("cat /mnt/nfs/file"), "before");
    let calls = proxy.upstream_calls();
    assert_eq!(holder.sh("cat /mnt/nfs/file"), "before");
    assert!(proxy.held("read_leases") + proxy.held("write_leases") > 0, "it has a delegation");

    let frozen = Frozen::new(&holder);
    // The client does not answer the recall, so the delegation is revoked.
    writer.sh("printf after >/mnt/nfs/file");
    drop(frozen);

    let thawed = Instant::now();
    let mut fresh = 0;
    while fresh < 20 {
        let began = thawed.elapsed();
        let read = holder.sh("cat /mnt/nfs/file; grep -w SEQUENCE: /proc/self/mountstats | cut -d' ' -f 1-4");
        let text = read.lines().next().unwrap();
        if let Some(sequences) = text.strip_prefix("before") {
            assert_eq!(fresh, 0, "it had read what was written");
            assert!(began < Duration::from_secs(LEASE_SECONDS) + MACHINE, "{began:?}");
            eprintln!("lab: frozen: {began:?} after the thaw it reads what was there before: {sequences}");
        } else {
            assert!(text.starts_with("after"), "{read}");
            fresh += 1;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!("lab: frozen: asked upstream: {:?}", stack::between(&calls, &proxy.upstream_calls()));
}
