//! Members with clocks that run differently, over a network that loses, delays and cuts, with a store that is
//! away at times. Members are killed, started again, and stopped for a while as a machine that is overloaded.
//! At no moment do two of them answer for one virtual server.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::store::{Committed, Memory, StoreError, Transaction};
use cluster::{Identity, Member, Moment, Refusal, Times};

/// xorshift64*, so that a seed means the same everywhere.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Real time, in milliseconds.
type Millis = u64;
/// A step of time.
const STEP: Millis = 10;

/// A call on its way.
struct Call {
    transaction: Transaction,
    /// When the store carries it out; never, if it is lost.
    at_store: Option<Millis>,
    /// When the answer arrives, if one does.
    answered: Option<Millis>,
    /// When the caller gives up.
    gives_up: Millis,
    result: Option<Committed>,
}

/// A server in a process of a member.
#[derive(Clone, Copy)]
struct Running {
    epoch: u64,
    /// It is being stopped, and is gone then.
    gone: Option<Millis>,
}

struct Process {
    member: Member,
    call: Option<Call>,
    running: BTreeMap<String, Running>,
    /// The end of the term that the servers were told last.
    until: Moment,
}

struct Seat {
    name: String,
    /// Millionths by which its clock is faster than real time.
    drift_ppm: i64,
    offset: Moment,
    lives: u64,
    process: Option<Process>,
    /// Its processes do not run until then.
    stopped_until: Millis,
    cut_until: Millis,
    drains: bool,
}

impl Seat {
    fn clock(&self, real: Millis) -> Moment {
        let micros = i128::from(real) * 1000;
        let drifted = micros + micros * i128::from(self.drift_ppm) / 1_000_000;
        self.offset + Duration::from_micros(u64::try_from(drifted).unwrap())
    }
}

struct World {
    rng: Rng,
    /// The times that the members assume.
    times: Times,
    /// How long after the end of a term a server may stop.
    late: Moment,
    now: Millis,
    store: Memory,
    store_away_until: Millis,
    seats: Vec<Seat>,
    servers: Vec<String>,
    /// Calls whose caller has given up or died, and which the store may still carry out.
    strays: Vec<Call>,
    holders: BTreeMap<(String, u64), String>,
    taken: u64,
    calm: bool,
}

impl World {
    fn new(seed: u64, members: usize, servers: usize, times: Times, drift_ppm: i64) -> World {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let seats = (0..members).map(|number| Seat {
            name: format!("m{number}"),
            drift_ppm: rng.below(2 * drift_ppm.unsigned_abs() + 1) as i64 - drift_ppm,
            offset: Duration::from_secs(rng.below(1_000_000)),
            lives: 0,
            process: None,
            stopped_until: 0,
            cut_until: 0,
            drains: false,
        });
        let seats = seats.collect();
        World {
            rng,
            times,
            late: times.margin.mul_f64(0.9),
            now: 0,
            store: Memory::default(),
            store_away_until: 0,
            seats,
            servers: (0..servers).map(|number| format!("s{number}")).collect(),
            strays: Vec::new(),
            holders: BTreeMap::new(),
            taken: 0,
            calm: false,
        }
    }

    /// A step of time. False if two members answer for one server.
    fn step(&mut self) -> bool {
        self.now += STEP;
        if !self.calm {
            self.harm();
        }
        for index in 0..self.seats.len() {
            self.run(index);
        }
        let mut strays = std::mem::take(&mut self.strays);
        for stray in &mut strays {
            if stray.at_store.is_some_and(|at| at <= self.now) {
                self.store.commit(&stray.transaction);
            }
        }
        strays.retain(|stray| stray.at_store.is_some_and(|at| at > self.now));
        self.strays.extend(strays);
        self.is_sound()
    }

    fn harm(&mut self) {
        let count = self.seats.len() as u64;
        let index = self.rng.below(count) as usize;
        if self.rng.one_in(2_000) {
            self.die(index);
        }
        if self.rng.one_in(2_000) {
            self.seats[index].stopped_until = self.now + self.rng.below(20_000);
        }
        if self.rng.one_in(1_000) {
            self.seats[index].cut_until = self.now + self.rng.below(20_000);
        }
        if self.rng.one_in(if self.seats[index].drains { 300 } else { 3_000 }) {
            let drains = !self.seats[index].drains;
            self.seats[index].drains = drains;
            if let Some(process) = &mut self.seats[index].process {
                process.member.drain(drains);
            }
        }
        if self.rng.one_in(5_000) {
            self.store_away_until = self.now + self.rng.below(15_000);
        }
    }

    fn die(&mut self, index: usize) {
        if let Some(call) = self.seats[index].process.take().and_then(|process| process.call) {
            self.strays.push(call);
        }
    }

    fn start(&mut self, index: usize) {
        let seat = &mut self.seats[index];
        seat.lives += 1;
        let identity = Identity {
            name: seat.name.clone(),
            life: format!("{}-{}", seat.name, seat.lives),
            place: seat.name.clone(),
            version: "1".into(),
            digest: "d".into(),
        };
        let mut member = Member::new("test", identity, self.servers.clone(), self.times);
        member.drain(seat.drains);
        seat.process = Some(Process { member, call: None, running: BTreeMap::new(), until: Moment::ZERO });
    }

    fn run(&mut self, index: usize) {
        if self.seats[index].stopped_until > self.now {
            self.carry(index);
            return;
        }
        if self.seats[index].process.is_none() {
            if self.calm || self.rng.one_in(300) {
                self.start(index);
            }
            return;
        }
        self.carry(index);
        self.talk(index);
        self.obey(index);
    }

    /// The network and the store go on while a member does not.
    fn carry(&mut self, index: usize) {
        let now = self.now;
        let Some(process) = &mut self.seats[index].process else { return };
        if let Some(call) = &mut process.call
            && call.result.is_none()
            && call.at_store.is_some_and(|at| at <= now)
        {
            call.result = Some(self.store.commit(&call.transaction));
        }
    }

    fn talk(&mut self, index: usize) {
        let now = self.now;
        let clock = self.seats[index].clock(now);
        let is_away = self.seats[index].cut_until > now || self.store_away_until > now;
        let process = self.seats[index].process.as_mut().unwrap();
        if let Some(call) = &mut process.call {
            let answer = match (&call.result, call.answered) {
                (Some(result), Some(at)) if at <= now && now <= call.gives_up => Ok(result.clone()),
                _ if now >= call.gives_up => Err(StoreError::Unknown("no answer".into())),
                _ => return,
            };
            let call = process.call.take().unwrap();
            if answer.is_err() && call.result.is_none() {
                self.strays.push(call);
            }
            let process = self.seats[index].process.as_mut().unwrap();
            let refused = process.member.answered(clock, answer);
            if let Err(refusal @ (Refusal::Foreign { .. } | Refusal::WentBack { .. })) = refused {
                panic!("{refusal}");
            }
        } else if process.member.due(clock) <= clock {
            let transaction = process.member.next(clock);
            let (there, back) = (1 + self.rng.below(40), 1 + self.rng.below(40));
            // Some come much later, after the caller has sent others.
            let late = if !self.calm && self.rng.one_in(50) { self.rng.below(12_000) } else { 0 };
            let lost = |rng: &mut Rng, calm: bool| !calm && rng.one_in(40);
            let at_store = (!is_away && !lost(&mut self.rng, self.calm)).then_some(now + there + late);
            let answered = at_store.map(|at| at + back).filter(|_| !lost(&mut self.rng, self.calm));
            let call = Call { transaction, at_store, answered, gives_up: now + 2000, result: None };
            self.seats[index].process.as_mut().unwrap().call = Some(call);
        }
    }

    /// Starts and stops servers.
    fn obey(&mut self, index: usize) {
        let now = self.now;
        let clock = self.seats[index].clock(now);
        let name = self.seats[index].name.clone();
        let takes = 1 + self.rng.below(400);
        let process = self.seats[index].process.as_mut().unwrap();
        let orders = process.member.orders(clock);
        let Some(until) = orders.until.filter(|until| clock < *until) else {
            // Killed, as the term is over.
            if clock >= process.until + self.late {
                process.running.clear();
            }
            return;
        };
        process.until = until;
        for (server, run) in &orders.run {
            let running = process.running.get(server);
            if running.is_none_or(|running| running.epoch != run.epoch)
                && running.is_none_or(|r| r.gone.is_none())
            {
                process.running.insert(server.clone(), Running { epoch: run.epoch, gone: None });
                self.taken += 1;
                let holder = self.holders.entry((server.clone(), run.epoch)).or_insert_with(|| name.clone());
                assert_eq!(*holder, name, "{server} has two holders in epoch {}", run.epoch);
            }
        }
        let never_ran = orders.give.iter().filter(|(server, _)| !process.running.contains_key(*server));
        let mut stopped: Vec<(String, u64)> =
            never_ran.map(|(server, run)| (server.clone(), run.epoch)).collect();
        for (server, running) in &mut process.running {
            match running.gone {
                None if !orders.run.contains_key(server) => running.gone = Some(now + takes),
                Some(gone) if gone <= now => stopped.push((server.clone(), running.epoch)),
                _ => {}
            }
        }
        for (server, epoch) in stopped {
            process.running.remove(&server);
            process.member.stopped(&server, epoch);
        }
    }

    /// Servers stop at the end of the term, and no later than the margin after it, whatever their member
    /// does.
    fn answers(&self, seat: &Seat, server: &str) -> bool {
        let Some(process) = &seat.process else { return false };
        process.running.contains_key(server) && seat.clock(self.now) < process.until + self.late
    }

    fn is_sound(&self) -> bool {
        self.servers
            .iter()
            .all(|server| self.seats.iter().filter(|seat| self.answers(seat, server)).count() <= 1)
    }

    /// The members that answer for the servers.
    fn served(&self) -> BTreeMap<&str, &str> {
        let by = |server: &String| self.seats.iter().find(|seat| self.answers(seat, server));
        self.servers.iter().filter_map(|server| Some((server.as_str(), &by(server)?.name[..]))).collect()
    }

    fn calm_down(&mut self) {
        self.calm = true;
        self.store_away_until = 0;
        for seat in &mut self.seats {
            (seat.cut_until, seat.drains, seat.stopped_until) = (0, false, 0);
            if let Some(process) = &mut seat.process {
                process.member.drain(false);
            }
        }
    }
}

fn times() -> Times {
    Times { settle: Duration::from_secs(5), drift_ppm: 20_000, ..Times::default() }
}

#[test]
fn no_two_members_ever_answer_for_one_server() {
    let seeds = std::env::var("LEASEHOLD_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(60);
    let mut taken = 0;
    for seed in 1..=seeds {
        let mut world = World::new(seed, 3 + (seed % 3) as usize, 4, times(), 20_000);
        for _ in 0..12_000 {
            assert!(world.step(), "seed {seed}, at {} ms", world.now);
        }
        world.calm_down();
        for _ in 0..6_000 {
            assert!(world.step(), "seed {seed}, calm, at {} ms", world.now);
        }
        let served = world.served();
        assert_eq!(served.len(), 4, "seed {seed}: all are served in the end: {served:?}");
        let by: BTreeSet<&&str> = served.values().collect();
        assert!(by.len() >= 3, "seed {seed}: and the members share them: {served:?}");
        taken += world.taken;
    }
    eprintln!("{seeds} seeds of two minutes, servers were started {taken} times");
    assert!(taken > seeds * 10);
}

/// If clocks differ more than the members assume, or a server stops later, the simulation finds it.
#[test]
fn bounds_that_are_too_small_are_found_out() {
    let wrong = [
        (Times { drift_ppm: 0, margin: Duration::ZERO, ..times() }, 200_000, Duration::ZERO),
        (Times { drift_ppm: 20_000, margin: Duration::ZERO, ..times() }, 20_000, Duration::from_secs(2)),
    ];
    for (assumed, drift_ppm, late) in wrong {
        let broken = (1..=60).any(|seed| {
            let mut world = World::new(seed, 3, 4, assumed, drift_ppm);
            world.late = late;
            (0..12_000).any(|_| !world.step())
        });
        assert!(broken, "{assumed:?} with {drift_ppm} ppm, {late:?} late");
    }
}
