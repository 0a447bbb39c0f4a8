//! The cost of a recall for the requester: Nache's Table 1 (2007, section 3), repeated.
//!
//! A client of the proxy uses a file, so the proxy has a delegation of the origin and the client has one of
//! the proxy. Then a client of the origin opens the file for reading and writing, and that open is timed.
//! The origin is `serve`, and both links to it have the same round trip. The paper's clients spent most of
//! the time asleep for a second after NFS4ERR_DELAY; that must not happen here.

use std::time::Duration;

use lab::{Guest, Lab, Link, Task, V4_1, wait_for};

use crate::stack::{self, Leasehold};

/// Files of each kind. Each measurement needs a new file, because after a conflict a file gets no delegation
/// for a while.
const TIMES: usize = 5;
/// Dirty bytes of the holder of a write delegation when it is recalled.
const DIRTY_BYTES: usize = 1 << 20;
/// Time that the programs in the guests and this machine may add to the fastest measurement.
const MACHINE: Duration = Duration::from_millis(60);

/// `open.pl FILE`: prints how long an open for reading and writing takes, in milliseconds.
const OPEN_PL: &str = r#"cat >/tmp/open.pl <<'PERL'
use Time::HiRes qw(time);
my $start = time; open(my $fh, "+<", $ARGV[0]) or die "open: $!";
printf "%.3f", (time - $start) * 1000;
PERL
"#;

/// `dirty.pl FILE BYTES`: opens and writes, and keeps the data dirty until it is killed.
const DIRTY_PL: &str = r#"cat >/tmp/dirty.pl <<'PERL'
open(my $fh, "+<", $ARGV[0]) or die "open: $!";
$| = 1; syswrite($fh, "x" x $ARGV[1]) == $ARGV[1] or die "write: $!"; print "dirty\n";
sleep 1000;
PERL
"#;

/// The clients and servers, with their round trips.
struct Stage {
    holder: Guest,
    asker: Guest,
    serve: Leasehold,
    /// Kept, because dropping them ends them.
    _proxy: Leasehold,
    _ways: [Link; 2],
}

impl Stage {
    fn set(lab: &Lab, round_trip: Duration) -> Stage {
        let served = lab.subdirectory("served");
        for (kind, file) in
            ["none", "read", "write"].iter().flat_map(|kind| (0..TIMES).map(move |n| (kind, n)))
        {
            std::fs::write(served.join(format!("{kind}-{file}")), "content").unwrap();
        }
        let serve = stack::serve(lab, &served);
        let ways = [(); 2].map(|()| Link::to(lab, &serve.origin()));
        let proxy = stack::proxy_in(lab, &ways[0].origin(), "4.2", "cache", &[]);
        let (holder, asker) = (lab.guest("holder"), lab.guest("asker"));
        holder.sh(DIRTY_PL);
        holder.mount_nfs(&proxy.origin(), "/mnt/nfs", V4_1);
        asker.sh(OPEN_PL);
        asker.mount_nfs(&ways[1].origin(), "/mnt/nfs", V4_1);
        ways.iter().for_each(|way| way.set_delay(round_trip / 2));
        Stage { holder, asker, serve, _proxy: proxy, _ways: ways }
    }

    /// The milliseconds of each conflicting open.
    fn conflicts(&self, kind: &str, use_it: impl Fn(&str) -> Option<Task>) -> Vec<f64> {
        let conflict = |file: usize| {
            let path = format!("/mnt/nfs/{kind}-{file}");
            let recalled_before = self.serve.held("recalls");
            let using = use_it(&path);
            // Look up the directory first, because that is not to be measured.
            let milliseconds = self.asker.sh(&format!("ls /mnt/nfs >/dev/null; perl /tmp/open.pl {path}"));
            let recalled = self.serve.held("recalls") - recalled_before;
            assert_eq!(recalled, u64::from(kind != "none"), "recalls of {path}");
            drop(using);
            milliseconds.trim().parse().unwrap()
        };
        (0..TIMES).map(conflict).collect()
    }

    fn read(&self, path: &str) {
        self.holder.sh(&format!("cat {path} >/dev/null"));
    }

    fn dirty(&self, path: &str) -> Task {
        let task = self.holder.spawn(&format!("perl /tmp/dirty.pl {path} {DIRTY_BYTES}"));
        wait_for("dirty pages", Duration::from_secs(30), || task.output().contains("dirty").then_some(()));
        task
    }
}

fn fastest(milliseconds: &[f64]) -> Duration {
    Duration::from_secs_f64(milliseconds.iter().copied().fold(f64::INFINITY, f64::min) / 1000.0)
}

/// The three rows of the table.
fn table_1(lab: &Lab, round_trip: Duration) -> [Duration; 3] {
    let stage = Stage::set(lab, round_trip);
    let none = stage.conflicts("none", |_| None);
    let read = stage.conflicts("read", |path| {
        stage.read(path);
        None
    });
    let write = stage.conflicts("write", |path| Some(stage.dirty(path)));
    eprintln!("lab: {}: ms of an open: no delegation {none:?}, read {read:?}, dirty {write:?}", lab.name());
    [none, read, write].map(|milliseconds| fastest(&milliseconds))
}

#[test]
fn a_conflicting_open_takes_milliseconds_nearby() {
    let Some(lab) = Lab::enter_alone("recall-near") else { return };
    let [_, read, write] = table_1(&lab, Duration::ZERO);
    assert!(read < Duration::from_millis(10), "{read:?}");
    // The same, plus a megabyte that goes to two disks, with a COMMIT.
    assert!(write < Duration::from_millis(100), "{write:?}");
}

#[test]
fn a_conflicting_open_takes_three_round_trips_far_away() {
    let Some(lab) = Lab::enter_alone("recall-far") else { return };
    let round_trip = Duration::from_millis(75);
    let [none, read, write] = table_1(&lab, round_trip);
    assert!(none >= round_trip, "{none:?}: the relay does not delay");
    assert!(read <= 3 * round_trip + MACHINE, "{read:?}");
    // If the holder flushes, that adds a WRITE and a COMMIT. Linux 6.1 does not flush while it has the file
    // open.
    assert!(write <= 5 * round_trip + MACHINE, "{write:?}");
}
