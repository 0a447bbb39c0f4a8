//! One run: what happens when, and what everybody saw.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use super::checker::{Op, check};
use super::host::{Host, Purpose, Told};
use super::network::{Message, Question, Random};
use super::server::Server;

pub(super) const FILES: usize = 2;
const CLIENTS: usize = 3;
/// A run, in simulated milliseconds; for the last part of it nothing new is begun.
const END: u64 = 125_000;
const QUIET_FROM: u64 = 45_000;
/// A call that was not answered is sent again after this.
const AGAIN: u64 = 300;

/// What goes wrong in one run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// One message in so many is lost; none if 0.
    pub(super) lost_of: u64,
    /// One in so many comes twice.
    pub(super) twice_of: u64,
    /// How long a message is under way at most, in milliseconds.
    pub(super) delay_ms: u64,
    /// The rate of the slowest clock of a client.
    pub(super) slowest_clock: f64,
    pub(super) server_crashes: bool,
    pub(super) client_crashes: bool,
    /// A client is cut off from the server for a while.
    pub(super) cut_off: bool,
    pub(super) clock_skew_ms: u64,
    pub(super) write_slack_ms: u64,
    pub(super) quiet_s: u64,
    pub(super) records: usize,
    pub(super) tell: bool,
}

impl Faults {
    /// Those of a seed, within what the protocol assumes.
    pub(super) fn of(seed: u64) -> Faults {
        let mut random = Random::new(seed ^ 0x6e71);
        Faults {
            lost_of: [0, 20, 10, 5][random.below(4) as usize],
            twice_of: [0, 20, 5][random.below(3) as usize],
            delay_ms: [5, 100, 400][random.below(3) as usize],
            slowest_clock: [1.0, 0.97, 0.955][random.below(3) as usize],
            server_crashes: random.once_in(3),
            client_crashes: random.once_in(3),
            cut_off: false,
            clock_skew_ms: 3000,
            write_slack_ms: 8000,
            quiet_s: [0, 0, 5, 30][random.below(4) as usize],
            records: [1, 2, 100][random.below(3) as usize],
            tell: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Deliver(Message),
    Act(usize),
    Again(usize, u64, u64),
    Evict,
    Wake(usize),
    CrashServer,
    CrashClient(usize),
}

pub(super) struct World {
    faults: Faults,
    random: Random,
    start: Instant,
    at: u64,
    events: BTreeMap<(u64, u64), Event>,
    order: u64,
    server: Server,
    hosts: Vec<Host>,
    clocks: [f64; CLIENTS],
    lives: [u64; CLIENTS],
    cut: Option<(usize, u64, u64)>,
    values: u64,
    ops: [Vec<Op>; FILES],
    /// Writes that a crash has made nobody's: they took place if the server has had them.
    orphans: BTreeSet<(usize, u64)>,
    stored: BTreeSet<(usize, u64)>,
    /// What each client has written under leases.
    local: [BTreeSet<(usize, u64)>; CLIENTS],
    sent: Vec<BTreeSet<u64>>,
    hits: u64,
}

impl World {
    pub(super) fn new(seed: u64, faults: Faults) -> World {
        let mut random = Random::new(seed);
        let mut clocks = [1.0; CLIENTS];
        for clock in &mut clocks {
            *clock = 1.0 - (1.0 - faults.slowest_clock) * random.below(101) as f64 / 100.0;
        }
        let mut world = World {
            server: Server::new(&faults),
            hosts: (0..CLIENTS).map(|_| Host::new(1)).collect(),
            faults,
            start: Instant::now(),
            at: 0,
            events: BTreeMap::new(),
            order: 0,
            clocks,
            lives: [1; CLIENTS],
            cut: None,
            values: 0,
            ops: Default::default(),
            orphans: BTreeSet::new(),
            stored: BTreeSet::new(),
            local: Default::default(),
            sent: vec![BTreeSet::new(); CLIENTS],
            hits: 0,
            random,
        };
        for client in 0..CLIENTS {
            let at = world.random.below(2000);
            world.plan(at, Event::Act(client));
            world.plan(0, Event::Wake(client));
        }
        world.plan(0, Event::Evict);
        world.plan_faults();
        world
    }

    fn plan_faults(&mut self) {
        let within = |random: &mut Random| 5_000 + random.below(QUIET_FROM - 10_000);
        if self.faults.server_crashes {
            let at = within(&mut self.random);
            self.plan(at, Event::CrashServer);
        }
        if self.faults.client_crashes {
            let (at, client) = (within(&mut self.random), self.random.below(CLIENTS as u64) as usize);
            self.plan(at, Event::CrashClient(client));
        }
        if self.faults.cut_off {
            let (from, client) =
                (3_000 + self.random.below(5_000), self.random.below(CLIENTS as u64) as usize);
            self.cut = Some((client, from, from + 20_000 + self.random.below(30_000)));
        }
    }

    fn plan(&mut self, after: u64, event: Event) {
        self.order += 1;
        self.events.insert((self.at + after, self.order), event);
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.at)
    }

    /// What a client's clock says.
    fn clock(&self, client: usize) -> Instant {
        self.start + Duration::from_micros((self.at as f64 * 1000.0 * self.clocks[client]) as u64)
    }

    /// Runs to the end. Gives how many reads were answered from caches, or what was wrong.
    pub(super) fn run(mut self) -> Result<u64, String> {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at > END {
                break;
            }
            self.at = at;
            self.happen(event);
        }
        for (file, ops) in self.ops.iter().enumerate() {
            // What a crash lost before it reached the server was never there.
            let gone = |op: &&Op| {
                !self.orphans.contains(&(file, op.value)) || self.stored.contains(&(file, op.value))
            };
            let mut real: Vec<Op> = ops.iter().filter(gone).copied().collect();
            for op in real.iter_mut().filter(|op| op.write && self.orphans.contains(&(file, op.value))) {
                op.ended = u64::MAX;
            }
            check(&real).map_err(|fault| format!("file {file}: {fault}"))?;
        }
        if self.faults.lost_of != 5 && !self.faults.cut_off {
            for (client, host) in self.hosts.iter().enumerate() {
                let dirty = host.files.iter().any(|known| known.dirty.is_some());
                let silent = host.waiting.values().any(|waiting| waiting.purpose != Purpose::Read);
                if dirty && silent && self.at + 1000 < END {
                    return Err(format!("client {client} never got rid of what it wrote"));
                }
                if host.leases.len() > FILES {
                    return Err(format!("client {client} remembers {} files", host.leases.len()));
                }
            }
        }
        Ok(self.hits)
    }

    fn happen(&mut self, event: Event) {
        if self.faults.tell && !matches!(event, Event::Wake(_) | Event::Evict | Event::Again(..)) {
            println!("{:>7} {event:?}", self.at);
        }
        match event {
            Event::Deliver(message) => self.deliver(message),
            Event::Act(client) => self.act(client),
            Event::Again(client, life, xid) => {
                if self.lives[client] == life && self.hosts[client].waiting.contains_key(&xid) {
                    self.send_call(client, xid);
                }
            }
            Event::Evict => {
                self.server.tick(self.now());
                let evicting: Vec<(usize, usize)> = self.server.evicting.values().copied().collect();
                for (client, file) in evicting {
                    self.send(client, Message::Evicted { client, file });
                }
                self.plan(250, Event::Evict);
            }
            Event::Wake(client) => {
                self.settle(client);
                self.plan(200, Event::Wake(client));
            }
            Event::CrashServer => {
                let now = self.now();
                self.server.crash(now);
            }
            Event::CrashClient(client) => self.crash_client(client),
        }
    }

    fn crash_client(&mut self, client: usize) {
        self.lives[client] += 1;
        let host = std::mem::replace(&mut self.hosts[client], Host::new(self.lives[client]));
        self.orphans.append(&mut self.local[client]);
        for waiting in host.waiting.values() {
            if let (Question::Write { file, value, .. }, Purpose::Write) = (waiting.question, waiting.purpose)
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
        let (now, at, file) = (self.clock(client), self.at, self.random.below(FILES as u64) as usize);
        let told = if self.random.once_in(4) {
            self.values += 1;
            let value = self.values;
            let told = self.hosts[client].write(now, at, (file, value), &mut self.random);
            if told.is_some() {
                self.local[client].insert((file, value));
            }
            told
        } else if self.random.once_in(8) {
            self.hosts[client].flush(now, at, file);
            None
        } else {
            self.hosts[client].leases.used(now, &super::server::handle(file));
            self.hosts[client].read(now, at, file, &mut self.random)
        };
        self.told(told);
        self.settle(client);
        let pause = 20 + self.random.below(800);
        self.plan(pause, Event::Act(client));
    }

    fn told(&mut self, told: Option<Told>) {
        let ended = self.at;
        match told {
            Some(Told::Read { file, value, began, hit }) => {
                self.hits += u64::from(hit);
                self.ops[file].push(Op { value, write: false, began, ended });
            }
            Some(Told::Wrote { file, value, began }) => {
                self.ops[file].push(Op { value, write: true, began, ended });
            }
            None => {}
        }
        if self.faults.tell && told.is_some() {
            println!("{:>7} {told:?}", self.at);
        }
    }

    /// What follows for a client, and the calls that it makes.
    fn settle(&mut self, client: usize) {
        let (now, at) = (self.clock(client), self.at);
        self.hosts[client].settle(now, at, &mut self.random);
        let fresh: Vec<u64> = self.hosts[client]
            .waiting
            .keys()
            .filter(|xid| !self.sent[client].contains(xid))
            .copied()
            .collect();
        for xid in fresh {
            self.sent[client].insert(xid);
            self.send_call(client, xid);
        }
    }

    fn send_call(&mut self, client: usize, xid: u64) {
        let Some(waiting) = self.hosts[client].waiting.get(&xid) else { return };
        let question = waiting.question;
        self.send(client, Message::Call { client, xid, question });
        let life = self.lives[client];
        self.plan(AGAIN, Event::Again(client, life, xid));
    }

    fn send(&mut self, client: usize, message: Message) {
        let cut = self.cut.is_some_and(|(who, from, to)| who == client && (from..to).contains(&self.at));
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
            Message::Call { client, xid, question } => {
                let now = self.now();
                let answer = self.server.answer(now, client, xid, question);
                if let Question::Write { file, value, .. } = question
                    && self.server.value(file) == value
                {
                    self.stored.insert((file, value));
                }
                self.send(client, Message::Reply { client, xid, answer });
            }
            Message::Reply { client, xid, answer } => {
                let (now, at) = (self.clock(client), self.at);
                let told = self.hosts[client].reply(now, at, xid, answer);
                self.told(told);
                self.settle(client);
            }
            Message::Evicted { client, file } => {
                self.hosts[client].evicted(file);
                self.settle(client);
            }
        }
    }
}
