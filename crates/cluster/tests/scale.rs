//! A large cluster without faults: the load of the store, how long servers are without a member, and how many
//! move when a member joins, drains or dies.
//!
//! `LEASEHOLD_CLUSTER=MEMBERS,SERVERS` sets the size. Build with `--release` for a hundred members.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeMap;
use std::time::Duration;

use cluster::records::Keys;
use cluster::store::{Change, Committed, Memory, Transaction};
use cluster::{Identity, Member, Moment, Times};

/// From a call to its answer.
const ROUND_TRIP: Duration = Duration::from_millis(5);
/// From the order to stop a server to its end.
const STOP: Duration = Duration::from_millis(200);
/// How often an idle member is asked whether it has something to do, besides when something has happened.
const LOOK: Duration = Duration::from_millis(25);
/// A step of time.
const STEP: Duration = Duration::from_millis(5);

struct Seat {
    member: Member,
    /// The answer on its way, and when it comes.
    answer: Option<(Moment, Committed)>,
    /// Servers that are being stopped.
    stopping: BTreeMap<(String, u64), Moment>,
    /// When it is asked next.
    look: Moment,
}

/// The work of the store so far.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    transactions: u64,
    written: u64,
    read_bytes: u64,
}

struct World {
    now: Moment,
    store: Memory,
    seats: BTreeMap<String, Seat>,
    servers: Vec<String>,
    load: Load,
    /// Since when each server has had no member.
    free: BTreeMap<String, Moment>,
    longest_free: Duration,
}

impl World {
    fn new(servers: usize) -> World {
        let servers: Vec<String> = (0..servers).map(|number| format!("10.0.{number}:2049")).collect();
        World {
            now: Moment::ZERO,
            store: Memory::default(),
            seats: BTreeMap::new(),
            free: servers.iter().map(|server| (server.clone(), Moment::ZERO)).collect(),
            servers,
            load: Load::default(),
            longest_free: Duration::ZERO,
        }
    }

    fn join(&mut self, name: &str) {
        let identity = Identity {
            name: name.to_owned(),
            life: format!("{name}-1"),
            place: format!("{name}:/var/cache/leasehold/site"),
            version: "0.1.0".into(),
            digest: "0123456789abcdef".into(),
        };
        let member = Member::new("site", identity, self.servers.clone(), Times::default());
        self.seats.insert(
            name.to_owned(),
            Seat { member, answer: None, stopping: BTreeMap::new(), look: self.now },
        );
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let now = self.now;
        for seat in self.seats.values_mut() {
            if let Some((_, answer)) = seat.answer.take_if(|(at, _)| *at <= now) {
                seat.member.answered(now, Ok(answer)).unwrap();
                seat.look = now;
                let give = seat.member.orders(now).give;
                for (server, run) in give {
                    seat.stopping.entry((server, run.epoch)).or_insert(now + STOP);
                }
            }
            seat.stopping.retain(|(server, epoch), at| {
                if *at <= now {
                    seat.member.stopped(server, *epoch);
                    seat.look = now;
                }
                *at > now
            });
            if seat.answer.is_some() || now < seat.look {
                continue;
            }
            seat.look = now + LOOK;
            if seat.member.due(now) <= now {
                let transaction = seat.member.next(now);
                let committed = self.store.commit(&transaction);
                count(&mut self.load, &transaction, &committed);
                note(&mut self.free, &mut self.longest_free, now, &committed);
                seat.answer = Some((now + ROUND_TRIP, committed));
            }
        }
    }

    /// The member of each server, by the store.
    fn holders(&mut self) -> BTreeMap<String, String> {
        let committed =
            self.store.commit(&Transaction { prefix: Keys::new("site").live(), ..Transaction::default() });
        holders(&committed).into_iter().filter_map(|(server, holder)| Some((server, holder?))).collect()
    }

    /// Runs until each server has a member, and as many as any other has but for one.
    fn settle(&mut self, limit: Duration) {
        let begun = self.now;
        loop {
            self.run_for(Duration::from_millis(100));
            let mut counts: BTreeMap<String, usize> =
                self.seats.keys().map(|name| (name.clone(), 0)).collect();
            let held = self.holders();
            held.values().for_each(|holder| *counts.entry(holder.clone()).or_default() += 1);
            let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
            if held.len() == self.servers.len() && most - least <= 1 && counts.len() == self.seats.len() {
                return;
            }
            assert!(self.now.saturating_sub(begun) < limit, "{least} to {most} servers each after {limit:?}");
        }
    }
}

/// The holder of each server in an answer.
fn holders(committed: &Committed) -> BTreeMap<String, Option<String>> {
    let mut found = BTreeMap::new();
    for entry in &committed.entries {
        let Some((_, server)) = entry.key.split_once("live/servers/") else { continue };
        let record: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
        found.insert(server.to_owned(), record["holder"]["member"].as_str().map(str::to_owned));
    }
    found
}

fn count(load: &mut Load, transaction: &Transaction, committed: &Committed) {
    load.transactions += 1;
    load.written +=
        transaction.changes.iter().filter(|change| matches!(change, Change::Put { .. })).count() as u64;
    load.read_bytes +=
        committed.entries.iter().map(|entry| (entry.key.len() + entry.value.len()) as u64).sum::<u64>();
}

/// Notes for how long servers have had no member.
fn note(free: &mut BTreeMap<String, Moment>, longest: &mut Duration, now: Moment, committed: &Committed) {
    for (server, holder) in holders(committed) {
        match holder {
            Some(_) => {
                if let Some(since) = free.remove(&server) {
                    *longest = (*longest).max(now.saturating_sub(since));
                }
            }
            None => {
                free.entry(server).or_insert(now);
            }
        }
    }
}

fn moved(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> usize {
    before.iter().filter(|(server, holder)| after.get(*server) != Some(*holder)).count()
}

fn size() -> (usize, usize) {
    let named = std::env::var("LEASEHOLD_CLUSTER").ok();
    let named = named.as_deref().and_then(|text| text.split_once(','));
    named.map_or((10, 40), |(members, servers)| (members.parse().unwrap(), servers.parse().unwrap()))
}

#[test]
fn a_large_cluster_moves_no_more_than_it_must_and_asks_little_of_the_store() {
    let (members, servers) = size();
    let each = servers / members;
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let mut world = World::new(servers);
    (0..members).for_each(|number| world.join(&format!("member-{number:03}")));
    world.settle(minute);
    eprintln!("{members} members and {servers} servers: all run after {:?}", world.now);
    world.run_for(Times::default().settle);

    // At rest there are the beats alone.
    let before = world.load;
    world.run_for(second * 12);
    let per_second = |of: fn(&Load) -> u64, load: &Load| (of(load) - of(&before)) as f64 / 12.0;
    let beats = members as f64 / Times::default().period().as_secs_f64();
    let transactions = per_second(|load| load.transactions, &world.load);
    let read = per_second(|load| load.read_bytes, &world.load);
    eprintln!("at rest: {transactions:.0} transactions and {:.2} MB read each second", read / 1e6);
    assert!(transactions <= beats * 1.01, "{transactions} transactions each second, and {beats} beats");

    // A member joins.
    let held = world.holders();
    world.join("new");
    world.longest_free = Duration::ZERO;
    world.settle(minute);
    let now = world.holders();
    let moves = moved(&held, &now);
    eprintln!("a member joins: {moves} servers move, each free for {:?} at most", world.longest_free);
    assert!(moves <= each && now.values().filter(|holder| *holder == "new").count() == moves);
    assert!(world.longest_free < second);

    // A member drains.
    let before = world.load;
    let begun = world.now;
    world.longest_free = Duration::ZERO;
    world.seats.get_mut("member-000").unwrap().member.drain(true);
    world.run_for(second * 6);
    let moves = moved(&now, &world.holders());
    let transactions = (world.load.transactions - before.transactions) as f64;
    let transactions = transactions / world.now.saturating_sub(begun).as_secs_f64();
    eprintln!(
        "a member drains: {moves} servers move, each free for {:?} at most; {transactions:.0} transactions each second",
        world.longest_free
    );
    assert!(world.holders().values().all(|holder| holder != "member-000"));
    assert!(moves <= each + 1 && world.longest_free < second);

    // A member dies.
    let held = world.holders();
    world.seats.remove("member-001");
    world.seats.get_mut("member-000").unwrap().member.drain(false);
    let begun = world.now;
    while world.holders().values().any(|holder| holder == "member-001") || world.holders().len() < servers {
        world.run_for(Duration::from_millis(50));
        assert!(world.now.saturating_sub(begun) < minute);
    }
    let took = world.now.saturating_sub(begun);
    let moves = moved(&held, &world.holders());
    eprintln!("a member dies: its servers run elsewhere after {took:?}; {moves} servers have moved");
    assert!(took < Times::default().patience() + Times::default().period() * 2);
}
