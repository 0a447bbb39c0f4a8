//! Byte-range locks of kernel clients of versions 2 and 3, which lock through NLM: against each other and
//! against clients of version 4, through restarts of the server and of a client.
//!
//! Promise: lock-exclusion
//! Promise: locks-as-points-of-coherence
//! Promise: lock-manager-callbacks
//! Promise: lock-manager-restarts
//! Promise: locks-at-a-version-3-origin

use std::path::Path;
use std::time::{Duration, Instant};

use lab::{Guest, Knfsd, Lab, Origin, Task, V4_1, V4_2, wait_for};

use crate::locks::{a_waiter_gets_its_turn, each_sees_the_others, hold, may, release, seat};
use crate::restart::COUNT_PL;
use crate::stack::{self, Leasehold};

/// Version 3 with the kernel's lock manager.
pub(crate) const V3_LOCKS: &str = "vers=3,proto=tcp,hard";
/// Version 2, whose lock manager has offsets of 32 bits.
const V2_LOCKS: &str = "vers=2,proto=tcp,hard";
/// The grace period, in seconds.
const LEASE_TIME: &str = "12";
const PATIENCE: Duration = Duration::from_secs(60);

/// Serves a directory, with a port mapper on the lab's address.
fn serve(lab: &Lab) -> Leasehold {
    stack::serve_mapped(lab, &lab.subdirectory("served"), &["--lease-time", LEASE_TIME])
}

/// A guest with the programs that a client of version 3 needs for locks.
pub(crate) fn monitored(lab: &Lab, name: &str) -> Guest {
    let guest = lab.guest(name);
    guest.sh("rpcbind && rpc.statd && rpcinfo -u localhost 100024 1");
    guest
}

/// A count of the lock manager in the status.
fn hosts(serve: &Leasehold, what: &str) -> u64 {
    serve.status()["lock_manager"][what].as_u64().unwrap()
}

#[test]
fn clients_of_versions_2_3_and_4_lock_each_other_out() {
    let Some(lab) = Lab::enter("nlm-serve") else { return };
    let serve = serve(&lab);
    let (one, two, four) = (monitored(&lab, "one"), monitored(&lab, "two"), lab.guest("four"));
    seat(&one, &serve.origin(), V3_LOCKS);
    seat(&two, &serve.origin(), V2_LOCKS);
    seat(&four, &serve.origin(), V4_2);
    one.sh("head -c 1000 /dev/zero >/mnt/nfs/file");
    each_sees_the_others(&[&one, &two, &four]);
    for (holder, waiter) in [(&one, &two), (&two, &one), (&four, &one), (&one, &four)] {
        let began = Instant::now();
        a_waiter_gets_its_turn(holder, waiter);
        // The kernel's lock manager asks again after 30 s, if no GRANTED comes.
        assert!(began.elapsed() < Duration::from_secs(20), "{} waits for {}", waiter.name(), holder.name());
    }
    // The port mapper tells mount(8) the ports, too.
    let origin = serve.origin();
    four.sh("rpcbind && rpc.statd && mkdir /mnt/plain");
    four.sh(&format!(
        "mount -t nfs -o vers=3 {}:{} /mnt/plain && ls /mnt/plain/file",
        origin.host, origin.export
    ));
    four.sh("flock -n /mnt/plain/file true && umount /mnt/plain");
    // flock(2) is a lock of all bytes, also through a descriptor for reading alone.
    one.sh("flock -n /mnt/nfs/file true; flock -n -s /mnt/nfs/file true");
    wait_for("all locks to be gone", PATIENCE, || (hosts(&serve, "files") == 0).then_some(()));
    assert_eq!((hosts(&serve, "waiting"), serve.held("locks")), (0, 0));
}

#[test]
fn locks_of_version_3_reach_the_origin_of_a_proxy() {
    let Some(lab) = Lab::enter("nlm-proxy") else { return };
    let origin = stack::serve(&lab, &lab.subdirectory("served"));
    let proxy = stack::proxy_mapped(&lab, &origin.origin(), "4.2", "cache", &[]);
    let (one, direct) = (monitored(&lab, "one"), lab.guest("direct"));
    seat(&one, &proxy.origin(), V3_LOCKS);
    seat(&direct, &origin.origin(), V4_2);
    one.sh("head -c 1000 /dev/zero >/mnt/nfs/file");
    each_sees_the_others(&[&one, &direct]);
    a_waiter_gets_its_turn(&one, &direct);
    a_waiter_gets_its_turn(&direct, &one);
}

#[test]
fn a_client_of_version_3_reclaims_its_lock_after_a_kill() {
    let Some(lab) = Lab::enter("nlm-restart") else { return };
    let mut serve = serve(&lab);
    let (one, two, four) = (monitored(&lab, "one"), monitored(&lab, "two"), lab.guest("four"));
    seat(&one, &serve.origin(), V3_LOCKS);
    seat(&two, &serve.origin(), V3_LOCKS);
    seat(&four, &serve.origin(), V4_2);
    one.sh("head -c 1000 /dev/zero >/mnt/nfs/file");
    let held = hold(&one, "w 100 50 try");
    assert!(!may(&two, "w 120 1"));
    serve.kill_and_restart();
    wait_for("the lock to be reclaimed", PATIENCE, || (hosts(&serve, "files") == 1).then_some(()));
    // Other clients wait for the end of grace, and then find the lock held.
    for other in [&two, &four] {
        assert!(!may(other, "w 120 1"), "{}", other.name());
        assert!(may(other, "w 0 100"), "{}", other.name());
    }
    release(&one, held);
    assert!(may(&two, "w 120 1") && may(&four, "w 120 1"));
}

/// The address of a kernel server itself: the lab's relay does not carry its lock manager.
fn itself(knfsd: &Knfsd) -> Origin {
    Origin { host: knfsd.guest().address(), port: 2049, mountport: 20_048, ..knfsd.origin() }
}

/// The proxy is the client of a lock manager here. A client of the kernel server competes with its clients.
#[test]
fn a_proxy_locks_at_a_kernel_server_of_version_3() {
    let Some(lab) = Lab::enter("nlm-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    // Linux 6.12 and 7.2 grant a write delegation of a file that a client of version 3 has locked for
    // reading. Its holder may then lock for writing without a call. Without leases there is no delegation.
    knfsd.guest().sh("echo 0 >/proc/sys/fs/leases-enable");
    let mut proxy = stack::proxy(&lab, &itself(&knfsd), "cache", &["--lease-time", "5"]);
    let (one, two, direct) = (lab.guest("one"), lab.guest("two"), lab.guest("direct"));
    seat(&one, &proxy.origin(), V4_1);
    seat(&two, &proxy.origin(), V4_2);
    seat(&direct, &knfsd.origin_v4(), V4_2);
    one.sh("head -c 1000 /dev/zero >/mnt/nfs/file");
    each_sees_the_others(&[&one, &two, &direct]);
    a_waiter_gets_its_turn(&one, &direct);
    a_waiter_gets_its_turn(&direct, &one);
    // The lock manager restarts and forgets all locks. In its grace period the proxy reclaims its own.
    let held = hold(&one, "w 100 50 try");
    knfsd.guest().sh("echo 12 >/proc/sys/fs/nfs/nlm_grace_period");
    knfsd.stop_service();
    let locks = proxy.upstream("LOCK");
    knfsd.start_service();
    wait_for("the lock to be reclaimed", PATIENCE, || (proxy.upstream("LOCK") >= locks + 2).then_some(()));
    for other in [&direct, &two] {
        assert!(!may(other, "w 120 1"), "{}", other.name());
        assert!(may(other, "w 0 100"), "{}", other.name());
    }
    // The proxy is killed. Its next process finds in its record what the server still holds for it.
    proxy.kill_and_restart();
    assert!(!may(&direct, "w 120 1"));
    assert!(!may(&two, "w 120 1"), "after the proxy's grace period");
    release(&one, held);
    assert!(may(&direct, "w 120 1") && may(&two, "w 120 1"));
    // A lock whose client does not come back is given up after the grace period.
    let held = hold(&one, "w 100 50 try");
    drop((held, one));
    proxy.kill_and_restart();
    assert!(!may(&direct, "w 120 1"), "in the proxy's grace period");
    wait_for("the lock to be given up", PATIENCE, || may(&direct, "w 120 1").then_some(()));
}

/// The proxy holds the lock at its origin meanwhile, so a client of the origin never gets it.
#[test]
fn a_lock_of_version_3_outlives_a_kill_of_the_proxy() {
    let Some(lab) = Lab::enter("nlm-proxy-restart") else { return };
    let origin = stack::serve(&lab, &lab.subdirectory("served"));
    let mut proxy =
        stack::proxy_mapped(&lab, &origin.origin(), "4.2", "cache", &["--lease-time", LEASE_TIME]);
    let (one, two, direct) = (monitored(&lab, "one"), monitored(&lab, "two"), lab.guest("direct"));
    seat(&one, &proxy.origin(), V3_LOCKS);
    seat(&two, &proxy.origin(), V3_LOCKS);
    seat(&direct, &origin.origin(), V4_2);
    one.sh("head -c 1000 /dev/zero >/mnt/nfs/file");
    let held = hold(&one, "w 100 50 try");
    assert!(!may(&direct, "w 120 1"));
    // By then the index has what the proxy holds.
    std::thread::sleep(Duration::from_millis(500));
    proxy.process.kill();
    assert!(!may(&direct, "w 120 1"), "the proxy is down");
    proxy.process.restart();
    proxy.wait();
    wait_for("the lock to be reclaimed", PATIENCE, || {
        assert!(!may(&direct, "w 120 1"), "the proxy is up");
        (hosts(&proxy, "files") == 1).then_some(())
    });
    assert!(!may(&two, "w 120 1") && may(&two, "w 0 100"), "grace is over");
    assert!(!may(&direct, "w 120 1"), "grace is over");
    release(&one, held);
    assert!(may(&direct, "w 120 1") && may(&two, "w 120 1"));
}

#[test]
fn a_client_of_version_3_that_restarts_loses_its_locks() {
    let Some(lab) = Lab::enter("nlm-reboot") else { return };
    let serve = serve(&lab);
    let (one, two) = (monitored(&lab, "one"), monitored(&lab, "two"));
    seat(&one, &serve.origin(), V3_LOCKS);
    seat(&two, &serve.origin(), V3_LOCKS);
    one.sh("head -c 1000 /dev/zero >/mnt/nfs/file");
    let held = hold(&one, "w 0 0 try");
    assert!(!may(&two, "w 120 1"));
    // What a client does when it boots after a crash. Its program still runs here, and has lost its lock.
    one.sh("sm-notify -f");
    wait_for("the lock to be free", PATIENCE, || may(&two, "w 120 1").then_some(()));
    release(&one, held);
}

/// Two clients of version 3 and one of version 4 increment one number, while the server is killed. If two
/// clients held the lock at once or read stale data, an increment would be lost.
#[test]
fn what_is_counted_under_locks_of_version_3_adds_up_through_kills() {
    let Some(lab) = Lab::enter("nlm-count") else { return };
    let served = lab.subdirectory("served");
    std::fs::write(served.join("number"), "00000000\n").unwrap();
    let mut serve = stack::serve_mapped(&lab, &served, &["--lease-time", "5"]);
    let guests = [monitored(&lab, "one"), monitored(&lab, "two"), lab.guest("four")];
    let at = serve.origin();
    let tasks = count(&guests, [(&at, V3_LOCKS), (&at, V3_LOCKS), (&at, V4_2)]);
    for _ in 0..3 {
        std::thread::sleep(Duration::from_secs(8));
        serve.kill_and_restart();
    }
    std::thread::sleep(Duration::from_secs(10));
    adds_up(&guests, tasks, &served);
}

/// A client of version 3 and one of version 4 at a proxy, and one of version 4 at its origin, likewise. The
/// holder of a lock sees what the last holder wrote, wherever that one was.
#[test]
fn what_is_counted_at_a_proxy_and_its_origin_adds_up() {
    let Some(lab) = Lab::enter("nlm-proxy-count") else { return };
    let served = lab.subdirectory("served");
    std::fs::write(served.join("number"), "00000000\n").unwrap();
    let origin = stack::serve(&lab, &served);
    let proxy = stack::proxy_mapped(&lab, &origin.origin(), "4.2", "cache", &[]);
    let guests = [monitored(&lab, "one"), lab.guest("four"), lab.guest("direct")];
    let (at, beside) = (proxy.origin(), origin.origin());
    let tasks = count(&guests, [(&at, V3_LOCKS), (&at, V4_2), (&beside, V4_2)]);
    std::thread::sleep(Duration::from_secs(10));
    adds_up(&guests, tasks, &served);
}

/// The same with an origin of version 3, at whose lock manager the proxy locks. Both are killed meanwhile.
#[test]
fn what_is_counted_at_a_proxy_and_its_origin_of_version_3_adds_up() {
    let Some(lab) = Lab::enter("nlm-origin-count") else { return };
    let served = lab.subdirectory("served");
    std::fs::write(served.join("number"), "00000000\n").unwrap();
    let brief = ["--lease-time", "5"];
    let mut origin = stack::serve_with(&lab, &served, &brief);
    let mut proxy = stack::proxy(&lab, &origin.origin(), "cache", &brief);
    let guests = [lab.guest("one"), lab.guest("two"), lab.guest("direct")];
    let (at, beside) = (proxy.origin(), origin.origin());
    let tasks = count(&guests, [(&at, V4_1), (&at, V4_2), (&beside, V4_2)]);
    for _ in 0..2 {
        std::thread::sleep(Duration::from_secs(6));
        origin.kill_and_restart();
        std::thread::sleep(Duration::from_secs(12));
        proxy.kill_and_restart();
    }
    std::thread::sleep(Duration::from_secs(10));
    adds_up(&guests, tasks, &served);
}

/// Lets each guest count at its server.
fn count(guests: &[Guest; 3], at: [(&Origin, &str); 3]) -> Vec<Task> {
    let start = |(guest, (server, options)): (&Guest, (&Origin, &str))| {
        guest.sh(COUNT_PL);
        guest.mount_nfs(server, "/mnt/nfs", options);
        guest.spawn("perl /tmp/count.pl /mnt/nfs/number")
    };
    guests.iter().zip(at).map(start).collect()
}

/// Ends the counting: the number is the sum of what the guests have added.
fn adds_up(guests: &[Guest; 3], tasks: Vec<Task>, served: &Path) {
    guests.iter().for_each(|guest| drop(guest.sh("touch /tmp/release")));
    let mut added = Vec::new();
    for task in tasks {
        let output = task.wait(Duration::from_secs(120));
        assert!(output.ok(), "{}", output.text);
        let count = output.text.rsplit("added ").next().and_then(|count| count.trim().parse::<u64>().ok());
        added.push(count.unwrap());
    }
    let number: u64 = std::fs::read_to_string(served.join("number")).unwrap().trim().parse().unwrap();
    eprintln!("lab: {added:?} were added, {number} is in the file");
    assert_eq!(added.iter().sum::<u64>(), number);
    assert!(added.iter().all(|count| *count > 0), "{added:?}");
}
