//! Nache's Table 2 (2007, section 6), repeated with kernel clients and compared with the goals of this
//! project.
//!
//! Promise: exclusion-under-a-lease
//! Promise: delegations-of-the-origin

use lab::{Knfsd, Lab, Origin, V4_1};

use crate::stack::{self, Leasehold, between};

const FILES: u64 = 100;

/// `rounds.pl ROUNDS`: in each round OPEN, LOCK, READ, UNLOCK and CLOSE of each of the 100 files (Table 2).
const ROUNDS_PL: &str = r#"cat >/tmp/rounds.pl <<'PERL'
use Fcntl;
for my $round (1 .. $ARGV[0]) {
    for my $file (1 .. 100) {
        open(my $fh, "<", "/mnt/nfs/files/$file") or die "open: $!";
        my $lock = pack("ssx4qqlx4", F_RDLCK, 0, 0, 0, 0);
        fcntl($fh, F_SETLKW, $lock) or die "lock: $!";
        sysread($fh, my $data, 8192) == 4096 or die "read: $!";
        my $unlock = pack("ssx4qqlx4", F_UNLCK, 0, 0, 0, 0);
        fcntl($fh, F_SETLK, $unlock) or die "unlock: $!";
    }
}
PERL
"#;

/// Two clients, eight rounds. Returns the calls to the origin in the first round of both, and in all other
/// rounds.
fn table_2(lab: &Lab, origin: &Origin, prepare: impl Fn(&str)) -> (Calls, Calls) {
    prepare("mkdir files; for f in $(seq 100); do head -c 4096 /dev/urandom >files/$f; done; sync");
    let proxy = stack::proxy_in(lab, origin, "4.2", "cache", &["--prefetch", "0"]);
    let guests = ["one", "two"].map(|name| lab.guest(name));
    for guest in &guests {
        guest.sh(ROUNDS_PL);
        guest.mount_nfs(&proxy.origin(), "/mnt/nfs", V4_1);
        guest.sh("ls /mnt/nfs");
    }
    let first = Calls::during(&proxy, || {
        for guest in &guests {
            guest.sh("perl /tmp/rounds.pl 1");
        }
    });
    let rest = Calls::during(&proxy, || {
        let running: Vec<_> = guests.iter().map(|guest| guest.spawn("perl /tmp/rounds.pl 7")).collect();
        for task in running {
            let output = task.wait(std::time::Duration::from_secs(120));
            assert!(output.ok(), "{}", output.text);
        }
    });
    eprintln!("lab: {}: first round {:?}, seven more {:?}", lab.name(), first.0, rest.0);
    (first, rest)
}

/// Calls to the origin by operation, and the READs that were piggybacked on OPENs.
struct Calls(Vec<(String, u64)>, u64);

impl Calls {
    fn during(proxy: &Leasehold, work: impl FnOnce()) -> Calls {
        let (before, reads) = (proxy.upstream_calls(), proxy.reads());
        work();
        let calls = between(&before, &proxy.upstream_calls());
        let alone = calls.iter().find(|(name, _)| name == "READ").map_or(0, |(_, calls)| *calls);
        Calls(calls, proxy.reads() - reads - alone)
    }

    fn of(&self, operation: &str) -> u64 {
        self.0.iter().find(|(name, _)| name == operation).map_or(0, |(_, calls)| *calls)
    }

    fn of_all_but(&self, operations: &[&str]) -> Vec<&(String, u64)> {
        self.0.iter().filter(|(name, _)| !operations.contains(&name.as_str())).collect()
    }
}

#[test]
fn two_clients_under_write_delegations_cost_one_open_and_one_read_for_each_file() {
    let Some(lab) = Lab::enter("nache-serve") else { return };
    let served = lab.subdirectory("served");
    let serve = stack::serve(&lab, &served);
    let guest = lab.guest("writer");
    guest.mount_nfs(&serve.origin(), "/mnt/nfs", V4_1);
    let prepare = |script: &str| drop(guest.sh(&format!("cd /mnt/nfs; {script}; cd /; umount /mnt/nfs")));
    let (first, rest) = table_2(&lab, &serve.origin(), prepare);
    // Each READ is piggybacked on its OPEN.
    assert_eq!((first.of("OPEN"), first.of("READ"), first.of("GETATTR")), (FILES, 0, 0));
    assert_eq!((first.1, rest.1), (FILES, 0));
    assert!(rest.of_all_but(&["SEQUENCE"]).is_empty(), "{:?}", rest.0);
}

#[test]
fn two_clients_under_read_delegations_cost_locks_besides() {
    let Some(lab) = Lab::enter("nache-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    if knfsd.guest().linux() >= (6, 6) {
        eprintln!(
            "lab: {}: this server delegates writing, and what that costs is counted before serve",
            lab.name()
        );
        return;
    }
    let (first, rest) = table_2(&lab, &knfsd.origin_v4(), |script| drop(knfsd.sh(script)));
    assert_eq!((first.of("OPEN"), first.of("READ")), (FILES, 0));
    assert_eq!((first.1, rest.1), (FILES, 0));
    // The guest's clock differs from the host's. Its two directories may look racy, and then the proxy asks
    // again.
    assert!(first.of("GETATTR") <= 4, "{:?}", first.0);
    assert!(rest.of_all_but(&["SEQUENCE", "LOCK", "LOCKU"]).is_empty(), "{:?}", rest.0);
}
