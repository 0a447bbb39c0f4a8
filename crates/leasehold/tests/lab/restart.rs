//! `kill -9` of a proxy whose client holds opens, a byte-range lock and a delegation. The origin keeps all
//! of that state, and the new proxy resumes it without an OPEN.
//!
//! Promise: held-state

use std::path::Path;
use std::time::Duration;

use lab::{Guest, Knfsd, Lab, Origin, Task, V4_1, V4_2, wait_for};

use crate::stack::{self, Leasehold};

const PATIENCE: Duration = Duration::from_secs(60);

/// `hold.pl FILE RELEASE`: opens, locks bytes 100 to 149, and prints `held`. When the file RELEASE exists,
/// it writes the locked bytes. If the lock was lost meanwhile, that write fails.
pub const HOLD_PL: &str = r#"cat >/tmp/hold.pl <<'PERL'
use Fcntl; use IO::Handle;
my ($file, $release) = @ARGV;
open(my $fh, "+<", $file) or die "open: $!";
my $lock = pack("ssx4qqlx4", F_WRLCK, 0, 100, 50, 0);
fcntl($fh, F_SETLK, $lock) or die "lock: $!";
$| = 1; print "held\n";
while (!-e $release) { select(undef, undef, undef, 0.02) }
sysseek($fh, 100, 0); syswrite($fh, "mine") == 4 or die "write: $!";
$fh->sync or die "sync: $!";
close($fh) or die "close: $!";
PERL
cat >/tmp/try.pl <<'PERL'
use Fcntl;
open(my $fh, "+<", $ARGV[0]) or die "open: $!";
my $lock = pack("ssx4qqlx4", F_WRLCK, 0, 120, 1, 0);
fcntl($fh, F_SETLK, $lock) or do { print "denied\n"; exit 3 };
PERL
"#;

fn hold(guest: &Guest, file: &str) -> Task {
    guest.sh("rm -f /tmp/release");
    let task = guest.spawn(&format!("perl /tmp/hold.pl /mnt/nfs/{file} /tmp/release"));
    wait_for("a lock", PATIENCE, || task.output().contains("held").then_some(()));
    task
}

/// May this guest lock a byte of the file `locked`, from 100 to 149?
pub fn may_lock(guest: &Guest) -> bool {
    let output = guest.run("perl /tmp/try.pl /mnt/nfs/locked");
    assert!(output.ok() || output.code == 3, "{}", output.text);
    output.ok()
}

/// Makes a file to read and a file to lock, directly at the origin.
const PREPARE: &str =
    "head -c 300000 /dev/urandom >read; head -c 1000 /dev/zero >locked; chmod 666 locked; sync";

/// A client of the proxy goes on while the proxy is killed twice. A client of the origin never gets the lock
/// in between.
fn survives(lab: &Lab, origin: &Origin) {
    let mut proxy = stack::proxy_in(lab, origin, "4.2", "cache", &[]);
    let (one, direct) = (lab.guest("one"), lab.guest("direct"));
    for (guest, server) in [(&one, &proxy.origin()), (&direct, origin)] {
        guest.sh(HOLD_PL);
        guest.mount_nfs(server, "/mnt/nfs", if guest.name() == "one" { V4_1 } else { V4_2 });
    }
    // The kernel's server grants neither locks nor delegations during lockd's grace period.
    let holding = hold(&one, "locked");
    // Wait until the timestamps are nonracy.
    one.sh("while [ $(($(date +%s) - $(stat -c %Z /mnt/nfs/read))) -lt 5 ]; do sleep 0.2; done");
    one.drop_caches();
    let sum = one.sh("sha256sum </mnt/nfs/read");
    let reading = one.spawn(
        "exec 5</mnt/nfs/read; echo open; while [ ! -e /tmp/release ]; do sleep 0.1; done; sha256sum <&5",
    );
    wait_for("an open", PATIENCE, || reading.output().contains("open").then_some(()));
    assert!(!may_lock(&direct), "held before anything happens");
    let delegations = |proxy: &Leasehold| {
        proxy.status()["cache"]["leases_read"].as_u64().unwrap_or(0)
            + proxy.status()["cache"]["leases_write"].as_u64().unwrap_or(0)
    };
    assert!(delegations(&proxy) > 0, "{:?}", proxy.upstream_calls());

    for _ in 0..2 {
        // By now the index contains what the proxy knows.
        std::thread::sleep(Duration::from_millis(500));
        proxy.process.kill();
        assert!(!may_lock(&direct), "the proxy is down, and the lock is held");
        proxy.process.restart();
        proxy.wait();
        assert!(!may_lock(&direct), "the proxy is up, and the lock is held");
        // The client must notice the restart and reclaim.
        one.drop_caches();
        assert_eq!(one.sh("timeout 60 sha256sum </mnt/nfs/read"), sum);
        assert!(!may_lock(&direct), "the lock was reclaimed");
        let calls = proxy.upstream_calls();
        eprintln!("lab: {}: upstream after a restart: {calls:?}", lab.name());
        let of = |name: &str| calls.iter().find(|(other, _)| other == name).map_or(0, |(_, calls)| *calls);
        assert_eq!((of("OPEN"), of("READ"), of("LOCK")), (0, 0, 0), "{calls:?}");
        assert!(delegations(&proxy) > 0, "the delegation is held still");
    }
    one.sh("touch /tmp/release");
    let output = holding.wait(PATIENCE);
    assert!(output.ok(), "{}", output.text);
    let output = reading.wait(PATIENCE);
    assert!(output.ok() && output.text.contains(sum.split(' ').next().unwrap_or("?")), "{}", output.text);
    wait_for("the lock to be free", PATIENCE, || may_lock(&direct).then_some(()));
    assert_eq!(direct.sh("dd if=/mnt/nfs/locked bs=1 skip=100 count=4 status=none"), "mine");
}

#[test]
fn a_proxy_before_serve_goes_on_with_what_it_held() {
    let Some(lab) = Lab::enter("restart-serve") else { return };
    let served = lab.subdirectory("served");
    let made = std::process::Command::new("sh").current_dir(&served).args(["-c", PREPARE]).status();
    assert!(made.unwrap().success());
    let serve = stack::serve(&lab, &served);
    survives(&lab, &serve.origin());
}

#[test]
fn a_proxy_before_the_kernels_server_goes_on_with_what_it_held() {
    let Some(lab) = Lab::enter("restart-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    knfsd.sh(PREPARE);
    survives(&lab, &knfsd.origin_v4());
}

/// Without its record, the proxy is a new client. Its state is lost, and it must not pretend otherwise.
#[test]
fn a_lock_that_cannot_be_proven_is_lost_and_not_given_twice() {
    let Some(lab) = Lab::enter("restart-lost") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let origin = serve.origin();
    let mut proxy = stack::proxy_in(&lab, &origin, "4.2", "cache", &[]);
    let (one, direct) = (lab.guest("one"), lab.guest("direct"));
    for (guest, server) in [(&one, &proxy.origin()), (&direct, &origin)] {
        guest.sh(HOLD_PL);
        guest.mount_nfs(server, "/mnt/nfs", V4_2);
    }
    one.sh("head -c 1000 /dev/zero >/mnt/nfs/locked");
    let holding = hold(&one, "locked");
    assert!(!may_lock(&direct));
    proxy.process.kill();
    std::fs::write(lab.directory().join("cache/state/client.state"), "damage").unwrap();
    proxy.process.restart();
    proxy.wait();
    // Now another client may take the lock, and the first client must not believe that it still has it.
    wait_for("the lock to be free", PATIENCE, || may_lock(&direct).then_some(()));
    one.sh("timeout 60 ls -l /mnt/nfs; touch /tmp/release");
    let output = holding.wait(PATIENCE);
    assert!(!output.ok(), "a lock that was lost is written under: {}", output.text);
}

/// `count.pl FILE`: under a lock, adds one to the number in the file, until /tmp/release exists. Prints how
/// often.
pub(crate) const COUNT_PL: &str = r#"cat >/tmp/count.pl <<'PERL'
use Fcntl; use IO::Handle;
my $added = 0;
while (!-e "/tmp/release") {
    open(my $fh, "+<", $ARGV[0]) or die "open: $!";
    my $lock = pack("ssx4qqlx4", F_WRLCK, 0, 0, 0, 0);
    fcntl($fh, F_SETLKW, $lock) or die "lock: $!";
    sysread($fh, my $number, 20) or die "read: $!";
    sysseek($fh, 0, 0);
    syswrite($fh, sprintf("%08d\n", $number + 1)) == 9 or die "write: $!";
    $fh->sync or die "sync: $!";
    my $unlock = pack("ssx4qqlx4", F_UNLCK, 0, 0, 0, 0);
    fcntl($fh, F_SETLK, $unlock) or die "unlock: $!";
    close($fh) or die "close: $!";
    $added++;
    select(undef, undef, undef, 0.01 * rand);
}
print "added $added\n";
PERL
"#;

/// Clients increment one number under a lock while `kill` kills servers between them and it. If two of them
/// held the lock at once or read stale data, an increment would be lost.
pub(crate) fn adds_up(lab: &Lab, clients: &[(&str, Origin, &str)], number: &Path, kill: impl FnOnce()) {
    std::fs::write(number, "00000000\n").unwrap();
    let counting: Vec<(Guest, Task)> = clients
        .iter()
        .map(|(name, server, version)| {
            let guest = lab.guest(name);
            guest.sh(COUNT_PL);
            guest.mount_nfs(server, "/mnt/nfs", version);
            let task = guest.spawn("perl /tmp/count.pl /mnt/nfs/number");
            (guest, task)
        })
        .collect();
    kill();
    std::thread::sleep(Duration::from_secs(2));
    let mut added = Vec::new();
    counting.iter().for_each(|(guest, _)| drop(guest.sh("touch /tmp/release")));
    // The guests stay until all have ended.
    let (_guests, tasks): (Vec<Guest>, Vec<Task>) = counting.into_iter().unzip();
    for task in tasks {
        let output = task.wait(Duration::from_secs(120));
        assert!(output.ok(), "{}", output.text);
        let count = output.text.rsplit("added ").next().and_then(|count| count.trim().parse::<u64>().ok());
        added.push(count.unwrap());
    }
    let counted: u64 = std::fs::read_to_string(number).unwrap().trim().parse().unwrap();
    eprintln!("lab: {}: {added:?}, and {counted} in the file", lab.name());
    assert_eq!(added.iter().sum::<u64>(), counted);
    assert!(added.iter().all(|count| *count > 0), "{added:?}");
}

/// Two clients of the proxy and one of its origin count while the proxy is killed repeatedly.
#[test]
fn what_is_counted_under_a_lock_adds_up_through_kills() {
    let Some(lab) = Lab::enter("restart-count") else { return };
    let served = lab.subdirectory("served");
    let serve = stack::serve(&lab, &served);
    let origin = serve.origin();
    let mut proxy = stack::proxy_in(&lab, &origin, "4.2", "cache", &[]);
    let clients = [("one", proxy.origin(), V4_1), ("two", proxy.origin(), V4_2), ("direct", origin, V4_2)];
    let mut rng = lab::Rng::from_environment();
    adds_up(&lab, &clients, &served.join("number"), || {
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(1500 + rng.below(2000) as u64));
            proxy.kill_and_restart();
        }
    });
}
