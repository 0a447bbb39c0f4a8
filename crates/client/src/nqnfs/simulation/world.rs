//! One run: what happens when, and what all clients saw.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::checker::{Op, check};
use super::faults::Faults;
use super::host::{Host, Purpose, Told};
use super::network::{Answer, Message, Question, Random};
use super::server::Server;

/// Simulated milliseconds. From this time on no new work begins, clients push their writes, and all files are
/// read.
const QUIET_FROM: u64 = 90_000;
/// All files are read once more at this time, when nothing can be in flight.
const AUDIT_FROM: u64 = 200_000;
/// With departures, the last reading is this much later. The last request of a leaving client may leave a
/// lease that runs for its full term.
const LEFT_BEHIND: u64 = 60_000;
/// After the last reading begins, every call is answered within this time.
const ANSWERED: u64 = 15_000;
/// An unanswered call is sent again after this time.
const AGAIN: u64 = 300;
/// EVICTED is sent again after this time.
const EVICT_AGAIN: u64 = 250;
/// Time between two steps of a departure.
const LEAVING: u64 = 50;
/// Time between two cuts. A push before the end of a lease that one cut delays gets through before the next
/// cut.
const BETWEEN_CUTS: u64 = 12_000;

#[derive(Clone, Copy, Debug)]
enum Event {
    Deliver(Message),
    Act(usize),
    Again(usize, u64, u64),
    Evict,
    Wake(usize),
    Push(usize),
    Audit(usize, usize, u64),
    Cut,
    CrashServer,
    RestartServer,
    CrashClient(usize),
    Leave(usize),
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Reads answered from caches.
    pub(super) hits: u64,
    /// Writes under leases.
    pub(super) delayed: u64,
    /// When the server was back, in simulated milliseconds.
    pub(super) restarted: Option<u64>,
    /// When its recovery was to end, by the last write that it had seen.
    pub(super) recovered: Option<u64>,
    /// When it first served anything but a write after that.
    pub(super) served: Option<u64>,
    /// Calls to the server in that time.
    pub(super) asked_meanwhile: u64,
    /// Files created with a lease.
    pub(super) made: u64,
    /// Number of completed departures.
    pub(super) departures: u64,
}

pub(super) struct World {
    faults: Faults,
    random: Random,
    start: Instant,
    at: u64,
    events: BTreeMap<(u64, u64), Event>,
    order: u64,
    server: Server,
    down: bool,
    evicting: bool,
    hosts: Vec<Host>,
    clocks: Vec<f64>,
    lives: Vec<u64>,
    /// The name of each client at the server.
    names: Vec<usize>,
    leaving: Vec<bool>,
    /// When each client's state machine is to be woken, if planned.
    wakes: Vec<Option<u64>>,
    cut: Option<(usize, u64)>,
    values: u64,
    ops: Vec<Vec<Op>>,
    /// Writes whose client has crashed. They took place if the server has received them.
    orphans: BTreeSet<(usize, u64)>,
    stored: BTreeSet<(usize, u64)>,
    /// For each client, what it has written under leases without an acknowledgement of the server.
    local: Vec<BTreeSet<(usize, u64)>>,
    sent: Vec<BTreeSet<u64>>,
    audited: BTreeSet<(usize, usize, u64)>,
    outcome: Outcome,
}

impl World {
    pub(super) fn new(seed: u64, faults: Faults) -> World {
        let mut random = Random::new(seed);
        let clients = faults.clients;
        let slow = 1.0 - faults.slowest_clock;
        let clocks = (0..clients).map(|_| 1.0 - slow * random.below(101) as f64 / 100.0).collect();
        let mut world = World {
            server: Server::new(&faults),
            hosts: (0..clients).map(|_| Host::new(1, &faults)).collect(),
            faults,
            start: Instant::now(),
            at: 0,
            events: BTreeMap::new(),
            order: 0,
            down: false,
            evicting: false,
            clocks,
            lives: vec![1; clients],
            names: (0..clients).collect(),
            leaving: vec![false; clients],
            wakes: vec![None; clients],
            cut: None,
            values: 0,
            ops: vec![Vec::new(); faults.all_files()],
            orphans: BTreeSet::new(),
            stored: BTreeSet::new(),
            local: vec![BTreeSet::new(); clients],
            sent: vec![BTreeSet::new(); clients],
            audited: BTreeSet::new(),
            outcome: Outcome::default(),
            random,
        };
        let last = world.last_audit();
        for client in 0..clients {
            let at = world.random.below(2000);
            world.plan(at, Event::Act(client));
            world.plan(QUIET_FROM + 1000, Event::Push(client));
            for file in 0..faults.all_files() {
                world.plan(QUIET_FROM + 1000, Event::Audit(client, file, QUIET_FROM));
                world.plan(last, Event::Audit(client, file, last));
            }
        }
        world.plan_faults();
        world
    }

    fn plan_faults(&mut self) {
        let within = |random: &mut Random| 5_000 + random.below(QUIET_FROM - 10_000);
        if self.faults.server_crash.is_some() {
            let at = within(&mut self.random);
            self.plan(at, Event::CrashServer);
        }
        if self.faults.client_crashes {
            let (at, client) = (within(&mut self.random), self.any_client());
            self.plan(at, Event::CrashClient(client));
        }
        for _ in 0..self.faults.departures {
            let (at, client) = (within(&mut self.random), self.any_client());
            self.plan(at, Event::Leave(client));
        }
        if self.faults.cut_ms > 0 {
            let at = self.random.below(15_000);
            self.plan(at, Event::Cut);
        }
    }

    fn last_audit(&self) -> u64 {
        AUDIT_FROM + if self.faults.departures > 0 { LEFT_BEHIND } else { 0 }
    }

    fn any_client(&mut self) -> usize {
        self.random.below(self.faults.clients as u64) as usize
    }

    fn plan(&mut self, after: u64, event: Event) {
        self.order += 1;
        self.events.insert((self.at + after, self.order), event);
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.at)
    }

    /// The time of a client's clock.
    fn clock(&self, client: usize) -> Instant {
        self.start + Duration::from_micros((self.at as f64 * 1000.0 * self.clocks[client]) as u64)
    }

    /// Runs to the end. An error says what was wrong.
    pub(super) fn run(mut self) -> Result<Outcome, String> {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > self.last_audit() + ANSWERED {
                break;
            }
            self.at = at;
            self.happen(event);
        }
        self.check_histories()?;
        self.check_ends()?;
        Ok(self.outcome)
    }

    fn check_histories(&self) -> Result<(), String> {
        for (file, ops) in self.ops.iter().enumerate() {
            // A write that a crash lost before it reached the server never took place.
            let orphan = |op: &Op| self.orphans.contains(&(file, op.value));
            let there = |op: &&Op| !orphan(op) || self.stored.contains(&(file, op.value));
            let mut real: Vec<Op> = ops.iter().filter(there).copied().collect();
            for op in real.iter_mut().filter(|op| op.write && orphan(op)) {
                op.ended = u64::MAX;
            }
            check(&real).map_err(|fault| format!("file {file}: {fault}"))?;
        }
        Ok(())
    }

    /// At the end no client waits, and nothing is left over.
    fn check_ends(&self) -> Result<(), String> {
        for (client, host) in self.hosts.iter().enumerate() {
            if let Some(file) = host.files.iter().position(|known| known.dirty.is_some()) {
                return Err(format!("client {client} never got rid of what it wrote to file {file}"));
            }
            let lacks = |file: &usize| !self.audited.contains(&(client, *file, self.last_audit()));
            if let Some(file) = (0..self.faults.all_files()).find(lacks) {
                return Err(format!("client {client} could not read file {file} in the end"));
            }
            if host.leases.len() > self.faults.all_files() {
                return Err(format!("client {client} remembers {} files", host.leases.len()));
            }
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) {
        let dull = matches!(event, Event::Wake(_) | Event::Evict | Event::Again(..) | Event::Audit(..));
        if self.faults.tell && !dull {
            println!("{:>7} {event:?}", self.at);
        }
        match event {
            Event::Deliver(message) => self.deliver(message),
            Event::Act(client) => self.act(client),
            Event::Again(client, incarnation, xid) => {
                if self.lives[client] == incarnation && self.hosts[client].waiting.contains_key(&xid) {
                    self.send_call(client, xid);
                }
            }
            Event::Evict => self.evict(),
            Event::Wake(client) => {
                self.wakes[client] = None;
                self.settle(client);
            }
            Event::Push(client) => self.push(client),
            Event::Audit(client, file, round) => self.audit(client, file, round),
            Event::Cut => self.cut(),
            Event::CrashServer => {
                self.down = true;
                self.plan(self.faults.server_crash.unwrap_or(0), Event::RestartServer);
            }
            Event::RestartServer => {
                self.down = false;
                self.server.crash(self.now());
                self.outcome.restarted = Some(self.at);
            }
            Event::CrashClient(client) => self.crash_client(client),
            Event::Leave(client) => self.leave(client),
        }
    }

    fn cut(&mut self) {
        if self.at > QUIET_FROM {
            return;
        }
        let client = self.any_client();
        let length = self.random.below(self.faults.cut_ms);
        self.cut = Some((client, self.at + length));
        let next = length + BETWEEN_CUTS + self.random.below(15_000);
        self.plan(next, Event::Cut);
    }

    /// Sends EVICTED again and again, as long as a client has not vacated.
    fn evict(&mut self) {
        self.evicting = false;
        self.server.tick(self.now());
        let evicting: Vec<(usize, usize)> = self.server.evicting.values().copied().collect();
        for (name, file) in evicting {
            let client = name % self.faults.clients;
            self.send(client, Message::Evicted { client, name, file });
        }
        self.evict_if_needed(EVICT_AGAIN);
    }

    fn evict_if_needed(&mut self, after: u64) {
        if !self.evicting && !self.server.evicting.is_empty() {
            self.evicting = true;
            self.plan(after, Event::Evict);
        }
    }

    fn leave(&mut self, client: usize) {
        self.leaving[client] = true;
        let (now, at) = (self.clock(client), self.at);
        let over = self.hosts[client].leave(now, at);
        self.settle(client);
        if !over {
            return self.plan(LEAVING, Event::Leave(client));
        }
        self.leaving[client] = false;
        self.outcome.departures += 1;
        self.live_again(client);
        self.hosts[client] = Host::new(self.lives[client], &self.faults);
        // Everything has been pushed.
        self.local[client].clear();
        self.sent[client].clear();
    }

    /// Starts another incarnation of a client. To the server, it is another client.
    fn live_again(&mut self, client: usize) {
        self.lives[client] += 1;
        self.names[client] += self.faults.clients;
    }

    fn crash_client(&mut self, client: usize) {
        self.live_again(client);
        let fresh = Host::new(self.lives[client], &self.faults);
        let host = std::mem::replace(&mut self.hosts[client], fresh);
        self.orphans.append(&mut self.local[client]);
        for waiting in host.waiting.values() {
            if let (
                Question::Write { file, value, .. } | Question::Create { file, value, .. },
                Purpose::Write | Purpose::Make,
            ) = (waiting.question, waiting.purpose)
            {
                self.ops[file].push(Op { value, write: true, began: waiting.began, ended: u64::MAX });
            }
        }
        self.sent[client].clear();
    }

    fn act(&mut self, client: usize) {
        if self.at > QUIET_FROM {
            return;
        }
        if self.leaving[client] {
            return self.plan(self.faults.pause_ms, Event::Act(client));
        }
        let (now, at) = (self.clock(client), self.at);
        let any = self.random.once_in(self.faults.others_of);
        let files = self.faults.files;
        let own = if any { self.random.below(files as u64) as usize } else { client % files };
        let file = self.perhaps_made(own);
        self.hosts[client].leases.used(now, &super::server::handle(file));
        let told = if !self.server.exists(file) || (file >= files && self.random.once_in(10)) {
            self.make(client, file);
            None
        } else if self.random.once_in(self.faults.writes_of) {
            self.values += 1;
            let value = self.values;
            self.hosts[client].write(now, at, (file, value), &mut self.random)
        } else if self.random.once_in(8) {
            self.hosts[client].flush(now, at, file);
            None
        } else {
            self.hosts[client].read(now, at, file, &mut self.random)
        };
        self.told(client, told);
        self.settle(client);
        let pause = 20 + self.random.below(self.faults.pause_ms);
        self.plan(pause, Event::Act(client));
    }

    /// Mostly picks one of the files that must be created first, if there are any.
    fn perhaps_made(&mut self, file: usize) -> usize {
        let made = self.faults.made as u64;
        if made == 0 || self.random.once_in(3) {
            return file;
        }
        self.faults.files + self.random.below(made) as usize
    }

    fn make(&mut self, client: usize, file: usize) {
        self.values += 1;
        let (now, at, value) = (self.clock(client), self.at, self.values);
        let mut waiting = self.hosts[client].waiting.values();
        if waiting.all(|waiting| waiting.purpose != Purpose::Make) {
            self.hosts[client].make(now, at, (file, value), &mut self.random);
        }
    }

    /// Pushes everything, like an fsync.
    fn push(&mut self, client: usize) {
        let (now, at) = (self.clock(client), self.at);
        let dirty = |host: &Host, file: usize| host.files[file].dirty.is_some();
        for file in 0..self.faults.all_files() {
            if dirty(&self.hosts[client], file) {
                self.hosts[client].flush(now, at, file);
            }
        }
        self.settle(client);
        if (0..self.faults.all_files()).any(|file| dirty(&self.hosts[client], file)) {
            self.plan(1000, Event::Push(client));
        }
    }

    /// Reads a file at the server, and repeats that until it is answered.
    fn audit(&mut self, client: usize, file: usize, round: u64) {
        if self.audited.contains(&(client, file, round)) {
            return;
        }
        let question = Question::Read { file, seconds: 0 };
        // A client does not ask the server for a file that it has not pushed yet.
        let settled = self.hosts[client].files[file].is_settled();
        if settled && self.hosts[client].waiting.values().all(|waiting| waiting.question != question) {
            let (now, at) = (self.clock(client), self.at);
            self.hosts[client].audit(now, at, file);
            self.settle(client);
        }
        self.plan(500, Event::Audit(client, file, round));
    }

    fn told(&mut self, client: usize, told: Option<Told>) {
        let ended = self.at;
        match told {
            Some(Told::Read { file, value, began, hit }) => {
                self.outcome.hits += u64::from(hit);
                self.ops[file].push(Op { value, write: false, began, ended });
                for round in [QUIET_FROM, self.last_audit()].into_iter().filter(|round| began > *round) {
                    self.audited.insert((client, file, round));
                }
            }
            Some(Told::Wrote { file, value, began, delayed }) => {
                if delayed {
                    self.local[client].insert((file, value));
                    self.outcome.delayed += 1;
                }
                self.ops[file].push(Op { value, write: true, began, ended });
            }
            None => {}
        }
        if self.faults.tell && told.is_some() {
            println!("{:>7} {client} {told:?}", self.at);
        }
    }

    /// Carries out a client's effects, and sends the calls that it makes.
    fn settle(&mut self, client: usize) {
        let (now, at) = (self.clock(client), self.at);
        self.hosts[client].settle(now, at, &mut self.random);
        let sent = &self.sent[client];
        let waiting = self.hosts[client].waiting.keys();
        let fresh: Vec<u64> = waiting.filter(|xid| !sent.contains(xid)).copied().collect();
        let incarnation = self.lives[client];
        for xid in fresh {
            self.sent[client].insert(xid);
            // A call after NQNFS_TRYLATER has a pause before it.
            match self.hosts[client].waiting.get(&xid).map_or(0, |waiting| waiting.pause) {
                0 => self.send_call(client, xid),
                pause => self.plan(pause, Event::Again(client, incarnation, xid)),
            }
        }
        self.plan_wake(client);
    }

    fn plan_wake(&mut self, client: usize) {
        let Some(tick) = self.hosts[client].leases.next_tick() else { return };
        let passed = tick.saturating_duration_since(self.start).as_secs_f64() * 1000.0;
        let at = ((passed / self.clocks[client]).ceil() as u64 + 1).max(self.at + 1);
        if self.wakes[client].is_none_or(|planned| at < planned) {
            self.wakes[client] = Some(at);
            self.plan(at - self.at, Event::Wake(client));
        }
    }

    fn send_call(&mut self, client: usize, xid: u64) {
        let Some(waiting) = self.hosts[client].waiting.get(&xid) else { return };
        let question = waiting.question;
        let name = self.names[client];
        self.send(client, Message::Call { client, name, xid, question });
        let incarnation = self.lives[client];
        self.plan(AGAIN, Event::Again(client, incarnation, xid));
    }

    fn send(&mut self, client: usize, message: Message) {
        let cut = self.cut.is_some_and(|(who, until)| who == client && self.at < until);
        if cut || self.random.once_in(self.faults.lost_of) {
            return;
        }
        let copies = 1 + u64::from(self.random.once_in(self.faults.twice_of));
        for _ in 0..copies {
            let delay = 1 + self.random.below(self.faults.delay_ms);
            self.plan(delay, Event::Deliver(message));
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Call { client, name, xid, question } => {
                if !self.down {
                    self.call((client, name), xid, question);
                }
            }
            Message::Reply { client, xid, answer } => {
                let (now, at) = (self.clock(client), self.at);
                if let Some(waiting) = self.hosts[client].waiting.get(&xid)
                    && let (Question::Write { file, value, .. }, Purpose::Own, Answer::Done { .. }) =
                        (waiting.question, waiting.purpose, answer)
                {
                    // Earlier writes of the client to this file are settled too.
                    self.local[client].retain(|(of, written)| *of != file || *written > value);
                }
                let told = self.hosts[client].reply(now, at, xid, answer);
                self.told(client, told);
                self.settle(client);
            }
            Message::Evicted { client, name, file } => {
                let now = self.clock(client);
                if name != self.names[client] {
                    return;
                }
                self.hosts[client].evicted(now, file);
                self.settle(client);
            }
        }
    }

    fn call(&mut self, (client, name): (usize, usize), xid: u64, question: Question) {
        let now = self.now();
        let answer = self.server.answer(now, name, xid, question);
        if let Question::Write { file, value, .. } | Question::Create { file, value, .. } = question
            && self.server.value(file) == value
        {
            self.stored.insert((file, value));
        }
        if let Some(ends) = self.server.recovers_until() {
            self.outcome.recovered = Some(ends.duration_since(self.start).as_millis() as u64);
            self.outcome.asked_meanwhile += 1;
        }
        let served = self.server.served_first;
        self.outcome.served = served.map(|at| at.duration_since(self.start).as_millis() as u64);
        if let (Question::Create { .. }, Answer::Done { granted: Some(_), .. }) = (question, answer) {
            self.outcome.made += 1;
        }
        self.send(client, Message::Reply { client, xid, answer });
        self.evict_if_needed(0);
    }
}
