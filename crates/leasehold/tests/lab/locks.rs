//! Byte-range locks between clients of the proxy and of its origin, with fcntl(2), as programs use them.
//!
//! Promise: lock-exclusion

use std::time::Duration;

use lab::{Guest, Knfsd, Lab, Origin, Task, V4_1, V4_2, wait_for};

use crate::stack;

const PATIENCE: Duration = Duration::from_secs(60);

/// `lock.pl FILE r|w START LENGTH try|wait [RELEASE]`: locks, prints `held`, and holds until the file
/// RELEASE exists.
const LOCK_PL: &str = r#"cat >/tmp/lock.pl <<'PERL'
use Fcntl;
my ($file, $kind, $start, $length, $how, $release) = @ARGV;
open(my $fh, "+<", $file) or die "open: $!";
my $lock = pack("ssx4qqlx4", $kind eq "w" ? F_WRLCK : F_RDLCK, 0, $start, $length, 0);
fcntl($fh, $how eq "wait" ? F_SETLKW : F_SETLK, $lock) or do { print "denied\n"; exit 3 };
$| = 1; print "held\n";
while (defined $release && !-e $release) { select(undef, undef, undef, 0.02) }
PERL
"#;

pub(crate) fn seat(guest: &Guest, origin: &Origin, options: &str) {
    guest.sh(LOCK_PL);
    guest.mount_nfs(origin, "/mnt/nfs", options);
}

/// Takes a lock and keeps it until [`release`].
pub(crate) fn hold(guest: &Guest, arguments: &str) -> Task {
    guest.sh("rm -f /tmp/release");
    let task = guest.spawn(&format!("perl /tmp/lock.pl /mnt/nfs/file {arguments} /tmp/release"));
    wait_for("a lock", PATIENCE, || task.output().contains("held").then_some(()));
    task
}

pub(crate) fn release(guest: &Guest, task: Task) {
    guest.sh("touch /tmp/release");
    assert!(task.wait(PATIENCE).ok());
}

pub(crate) fn may(guest: &Guest, arguments: &str) -> bool {
    let output = guest.run(&format!("perl /tmp/lock.pl /mnt/nfs/file {arguments} try"));
    assert!(output.ok() || output.code == 3, "{}", output.text);
    output.ok()
}

/// In every pair, each client sees the other's locks.
pub(crate) fn each_sees_the_others(guests: &[&Guest]) {
    for holder in guests {
        let held = hold(holder, "w 100 50 try");
        for other in guests {
            if other.name() == holder.name() {
                continue;
            }
            let pair = format!("{} holds, {} tries", holder.name(), other.name());
            assert!(!may(other, "w 120 1"), "{pair}");
            assert!(!may(other, "r 149 10"), "{pair}");
            assert!(may(other, "w 0 100") && may(other, "w 150 10"), "{pair}");
        }
        release(holder, held);
        let shared = hold(holder, "r 0 10 try");
        for other in guests {
            let pair = format!("{} shares, {} tries", holder.name(), other.name());
            assert!(may(other, "r 5 10"), "{pair}");
            assert!(other.name() == holder.name() || !may(other, "w 5 10"), "{pair}");
        }
        release(holder, shared);
    }
}

/// A waiter gets the lock when it is released.
pub(crate) fn a_waiter_gets_its_turn(holder: &Guest, waiter: &Guest) {
    let held = hold(holder, "w 0 0 try");
    waiter.sh("rm -f /tmp/release; touch /tmp/release");
    let waiting = waiter.spawn("perl /tmp/lock.pl /mnt/nfs/file w 0 0 wait /tmp/release");
    assert!(!may(waiter, "w 0 0"));
    release(holder, held);
    assert!(waiting.wait(PATIENCE).ok());
}

#[test]
fn clients_of_serve_lock_each_other_out() {
    let Some(lab) = Lab::enter("locks-serve") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let (one, two) = (lab.guest("one"), lab.guest("two"));
    seat(&one, &serve.origin(), V4_1);
    seat(&two, &serve.origin(), V4_2);
    one.sh("head -c 1000 /dev/zero >/mnt/nfs/file");
    each_sees_the_others(&[&one, &two]);
    a_waiter_gets_its_turn(&one, &two);
}

#[test]
fn clients_of_the_proxy_and_of_its_origin_lock_each_other_out() {
    let Some(lab) = Lab::enter("locks-proxy") else { return };
    let knfsd = Knfsd::start(&lab);
    let proxy = stack::proxy_in(&lab, &knfsd.origin_v4(), "4.2", "cache", &[]);
    let (one, two, direct) = (lab.guest("one"), lab.guest("two"), lab.guest("direct"));
    seat(&one, &proxy.origin(), V4_1);
    seat(&two, &proxy.origin(), V4_2);
    seat(&direct, &knfsd.origin_v4(), V4_2);
    one.sh("head -c 1000 /dev/zero >/mnt/nfs/file");
    each_sees_the_others(&[&one, &two, &direct]);
    a_waiter_gets_its_turn(&one, &two);
    a_waiter_gets_its_turn(&direct, &one);
}
