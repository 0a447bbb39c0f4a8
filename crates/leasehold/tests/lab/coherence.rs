//! Kernel clients of all versions on one proxy, and one client of its origin, use the same files at once.
//! They play with and without delegations, through restarts, cuts and losses. `LAB_STEPS` sets the number of
//! steps, `LAB_SEED` repeats the acts of each player.
//!
//! Promise: close-to-open
//! Promise: version-4-opens
//! Promise: locks-as-points-of-coherence

use std::time::Duration;

use lab::{
    Coherence, Cut, Guest, Knfsd, Lab, Link, Mode, Origin, Player, Report, Rng, Seat, V3, V4_0, V4_1, V4_2,
    wait_for,
};

use crate::stack;

/// Acts of each player in one stretch.
const STEPS: usize = 150;
/// The shortest lease time that is allowed, so that a wait for its end takes only seconds.
const LEASE: [&str; 2] = ["--lease-time", "5"];
/// The clock tick of an older kernel, and some more.
const GRANULARITY: Duration = Duration::from_millis(22);
/// Bytes written before a close.
const CLOSED_BYTES: usize = 300_000;
/// A lease, a grace period and a recall. Twice, because one may follow the other.
const PATIENCE: Duration = Duration::from_secs(30);

fn steps() -> usize {
    std::env::var("LAB_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(STEPS)
}

/// A player on a mount of its own. Names that a client caches are not tested here. Locks of version 3 are
/// local.
fn player(guest: &Guest, origin: &Origin, version: &str) -> Player {
    guest.mount_nfs(origin, "/mnt/nfs", &format!("{version},lookupcache=none"));
    Player::new(Seat::new(guest.name(), guest.hand(), "/mnt/nfs"), version != V3)
}

/// Two clients of the proxy, which uses `vers` at the origin, and one client of the origin.
fn play(lab: &Lab, origin: &Origin, vers: &str, versions: [&str; 3]) -> Report {
    play_with(lab, origin, vers, versions, &[])
}

/// The same with further options of the proxy.
fn play_with(lab: &Lab, origin: &Origin, vers: &str, versions: [&str; 3], more: &[&str]) -> Report {
    let proxy = stack::proxy_in(lab, origin, vers, "cache", more);
    let guests = ["near", "near-too", "far"].map(|name| lab.guest(name));
    let origins = [&proxy.origin(), &proxy.origin(), origin];
    let mut players: Vec<Player> = Vec::new();
    for ((guest, origin), version) in guests.iter().zip(origins).zip(versions) {
        players.push(player(guest, origin, version));
    }
    let report = Coherence::new(players, GRANULARITY).run(steps(), &mut Rng::from_environment());
    eprintln!("lab: {}: {versions:?}: {:?}", lab.name(), proxy.status()["held"]);
    report
}

#[test]
fn clients_of_version_4_are_coherent_before_serve() {
    let Some(lab) = Lab::enter("coherence-serve") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let report = play(&lab, &serve.origin(), "4.2", [V4_1, V4_2, V4_2]);
    assert!(report.reads > 0 && report.locks > 0);
}

#[test]
fn clients_of_versions_3_and_4_0_are_coherent_before_serve() {
    let Some(lab) = Lab::enter("coherence-old") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    play(&lab, &serve.origin(), "4.1", [V3, V4_0, V4_1]);
}

#[test]
fn clients_of_version_4_are_coherent_before_knfsd() {
    let Some(lab) = Lab::enter("coherence-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    play(&lab, &knfsd.origin_v4(), "4.2", [V4_0, V4_1, V4_2]);
}

// Promise: delayed-writes-of-a-proxy
#[test]
fn clients_are_coherent_before_serve_while_the_proxy_delays_writes() {
    let Some(lab) = Lab::enter("coherence-async") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    play_with(&lab, &serve.origin(), "4.2", [V3, V4_2, V4_2], &["--async"]);
}

// Promise: delayed-writes-of-a-proxy
#[test]
fn clients_are_coherent_before_knfsd_while_the_journal_answers_commits() {
    let Some(lab) = Lab::enter("coherence-journal") else { return };
    let knfsd = Knfsd::start(&lab);
    play_with(&lab, &knfsd.origin_v4(), "4.2", [V4_1, V4_2, V4_2], &["--fsync", "journal"]);
}

/// Kernels among themselves, for comparison.
#[test]
fn kernels_are_coherent_without_us() {
    if std::env::var_os("LAB_STEPS").is_none() {
        eprintln!("kernels by themselves are played by hand: LAB_STEPS=1000");
        return;
    }
    let Some(lab) = Lab::enter("coherence-kernels") else { return };
    let knfsd = Knfsd::start(&lab);
    let guests = ["one", "two", "three"].map(|name| lab.guest(name));
    let players = guests.iter().map(|guest| player(guest, &knfsd.origin_v4(), V4_2)).collect();
    Coherence::new(players, GRANULARITY).run(steps(), &mut Rng::from_environment());
}

#[test]
fn clients_of_one_proxy_are_coherent_before_an_origin_of_version_3() {
    let Some(lab) = Lab::enter("coherence-v3") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    play(&lab, &serve.origin(), "3", [V4_1, V4_2, V3]);
}

/// The same with short leases, and with access to the processes and links that a fault hits.
struct Stage {
    serve: stack::Leasehold,
    proxy: stack::Leasehold,
    /// The link of the first client to the proxy.
    way: Link,
    guests: Vec<Option<Guest>>,
    game: Coherence,
    rng: Rng,
}

impl Stage {
    /// `locks` says which players use locks.
    fn set(lab: &Lab, locks: [bool; 3]) -> Stage {
        Stage::set_with(lab, locks, &[])
    }

    /// The same with further options of the proxy.
    fn set_with(lab: &Lab, locks: [bool; 3], more: &[&str]) -> Stage {
        let serve = stack::serve_with(lab, &lab.subdirectory("served"), &LEASE);
        let proxy = stack::proxy_in(lab, &serve.origin(), "4.2", "cache", &[&LEASE, more].concat());
        let way = Link::to(lab, &proxy.origin());
        let guests = ["near", "near-too", "far"].map(|name| lab.guest(name));
        let origins = [way.origin(), proxy.origin(), serve.origin()];
        let players = guests.iter().zip(origins).zip([V4_1, V4_2, V4_1]).zip(locks).map(
            |(((guest, origin), version), locks)| {
                guest.mount_nfs(&origin, "/mnt/nfs", &format!("{version},lookupcache=none"));
                Player::new(Seat::new(guest.name(), guest.hand(), "/mnt/nfs"), locks)
            },
        );
        let game = Coherence::new(players.collect(), Duration::ZERO);
        let guests = guests.into_iter().map(Some).collect();
        Stage { serve, proxy, way, guests, game, rng: Rng::from_environment() }
    }

    fn run(&mut self) -> Report {
        self.game.run(steps(), &mut self.rng)
    }
}

/// Waits until the players have done this many more acts.
fn acts(made: &dyn Fn() -> usize, more: usize) {
    let from = made();
    wait_for("the players to go on", 4 * PATIENCE, || (made() >= from + more).then_some(()));
}

#[test]
fn clients_are_coherent_through_restarts_of_the_origin() {
    let Some(lab) = Lab::enter("coherence-origin") else { return };
    let mut stage = Stage::set(&lab, [true; 3]);
    let Stage { serve, game, rng, .. } = &mut stage;
    let report = game.run_while(steps(), rng, |made| {
        for _ in 0..2 {
            acts(made, steps() / 3);
            serve.kill_and_restart();
        }
    });
    assert!(report.slowest < PATIENCE, "{report}");
}

#[test]
fn clients_are_coherent_through_kills_of_the_proxy() {
    through_kills_of_the_proxy("coherence-proxy", &[]);
}

// Promise: delayed-writes-of-a-proxy
#[test]
fn clients_are_coherent_through_kills_of_a_proxy_that_delays_writes() {
    through_kills_of_the_proxy("coherence-kept", &["--fsync", "journal"]);
}

fn through_kills_of_the_proxy(name: &str, more: &[&str]) {
    let Some(lab) = Lab::enter(name) else { return };
    // The client of the origin takes no locks here; `restart` tests its locks through kills of the proxy.
    let mut stage = Stage::set_with(&lab, [true, true, false], more);
    let Stage { proxy, game, rng, .. } = &mut stage;
    let report = game.run_while(steps(), rng, |made| {
        for _ in 0..2 {
            acts(made, steps() / 3);
            proxy.kill_and_restart();
        }
    });
    assert!(report.slowest < PATIENCE, "{report}");
}

#[test]
fn clients_are_coherent_after_one_was_lost_with_its_delegations() {
    let Some(lab) = Lab::enter("coherence-lost") else { return };
    let mut stage = Stage::set(&lab, [true; 3]);
    stage.run();
    assert!(stage.proxy.held("opens") > 0);
    stage.guests[0] = None;
    stage.game.leave(0);
    let report = stage.run();
    assert!(report.slowest < PATIENCE, "{report}");
}

#[test]
fn clients_are_coherent_after_one_was_cut_off_and_came_back() {
    let Some(lab) = Lab::enter("coherence-cut") else { return };
    // A Linux 6.1 client drops locks that it may have lost, with an I/O error.
    let mut stage = Stage::set(&lab, [false, true, true]);
    stage.run();
    // The cut also hits recalls, so they get no reply. A client that trusts a delegation beyond its lease is
    // not tested, so this player pauses.
    stage.way.cut(Cut::BlackHole);
    stage.game.rest(0, true);
    let report = stage.run();
    assert!(report.slowest < PATIENCE, "{report}");
    stage.way.restore();
    let guest = stage.guests[0].as_ref().unwrap();
    // A Linux client learns from any reply that it has lost delegations. Until it has freed them, it trusts
    // them.
    let back = || guest.run_for(PATIENCE, "stat -f /mnt/nfs >/dev/null").ok() && stage.proxy.revoked() == 0;
    wait_for("the client to come back", 2 * PATIENCE, || back().then_some(()));
    stage.game.rest(0, false);
    stage.run();
}

/// Under a write delegation with enough space, Linux starts to write at a close without waiting. It also
/// returns the delegation without waiting.
// Promise: close-of-a-linux-client
#[test]
fn a_close_of_a_kernel_under_a_write_delegation_is_seen_by_the_next_open() {
    let Some(lab) = Lab::enter("coherence-close") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let guests = ["writer", "reader"].map(|name| lab.guest(name));
    let [mut writer, mut reader] = guests.each_ref().map(|guest| {
        guest.mount_nfs(&serve.origin(), "/mnt/nfs", V4_1);
        guest.hand()
    });
    for round in 0..steps() {
        let path = format!("/mnt/nfs/{round}");
        let content = vec![round as u8 | 1; CLOSED_BYTES];
        let file = writer.open(&path, Mode::Create).unwrap().file;
        writer.write_at(file, 0, &content).unwrap();
        writer.close(file).unwrap();
        let file = reader.open(&path, Mode::Read).unwrap().file;
        let read = reader.read_at(file, 0, CLOSED_BYTES).unwrap();
        assert!(read == content, "round {round}: {} bytes of {CLOSED_BYTES}", read.len());
        reader.close(file).unwrap();
    }
}
