//! The protocol as a state machine in which every step is a choice.

use stateright::{Model, Property};

/// The safety property.
pub const FRESH: &str = "what a client sees is not older than what was acknowledged before it asked";
/// Evidence that the model makes progress.
const SHARED: &str = "one client caches what the other has written";

const CLIENTS: usize = 2;
/// The term of a lease, in ticks.
const TERM: u8 = 2;

/// The bounds of the model, and the waits of the server.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Total number of ticks.
    pub ticks: u8,
    /// Number of lease requests by each client.
    pub asks: [u8; CLIENTS],
    /// Total number of writes.
    pub writes: u8,
    /// How many ticks each client's clock may fall behind.
    pub drift: u8,
    /// Limit of messages in flight.
    pub messages: usize,
    /// The longest time of a message in flight, in ticks.
    pub delay: u8,
    /// The server's assumption about clocks.
    pub clock_skew: u8,
    /// The server's assumption about writes.
    pub write_slack: u8,
    /// The server's assumption about writes after a restart.
    pub recovery_slack: u8,
    /// How often the server may crash.
    pub server_crashes: u8,
    /// How often a client may crash.
    pub client_crashes: u8,
    /// The server executes a repeated VACATED only once.
    pub vacated_once: bool,
    /// A client does not cache a reply to a request from before its own write.
    pub own_writes_count: bool,
    /// The file does not exist at first: CREATE creates it and brings a write lease.
    pub created: bool,
    /// An eviction since a CREATE was sent may have been of the created file, so the reply to the CREATE
    /// brings no lease then.
    pub evictions_count: bool,
    /// How often each client may leave, with one VACATED for all leases, and come back.
    pub departures: [u8; CLIENTS],
    /// A client that comes back uses a new name.
    pub own_names: bool,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            ticks: 8,
            asks: [1, 1],
            writes: 2,
            drift: 1,
            messages: 2,
            delay: 1,
            clock_skew: 1,
            write_slack: 3,
            recovery_slack: 3,
            server_crashes: 0,
            client_crashes: 0,
            vacated_once: true,
            own_writes_count: true,
            created: false,
            evictions_count: true,
            departures: [0, 0],
            own_names: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    kind: Kind,
    until: u8,
    evicting: bool,
}

/// What a client trusts, by its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Belief {
    kind: Kind,
    until: u8,
    cached: u8,
}

/// A write that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flush {
    value: u8,
    first_sent: u8,
    /// When the server executed it; known to the checker only.
    executed: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Client {
    lag: u8,
    belief: Option<Belief>,
    /// The value to write, and the time on the client's clock by which it must be sent.
    dirty: Option<(u8, u8)>,
    flush: Option<Flush>,
    /// It must vacate when all data is written.
    evicted: bool,
    /// A VACATED without a reply yet.
    vacating: Option<u8>,
    asked: u8,
    vacated: u8,
    /// Replies to requests before this one are ignored.
    barrier: u8,
    /// The CREATE without a reply yet, and the time of its first transmission on the client's clock.
    creating: Option<(u8, u8)>,
    /// How often the client has left.
    incarnation: u8,
    /// The client has left, and has not come back.
    away: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Server {
    value: u8,
    leases: [Option<Lease>; CLIENTS],
    wrote: u8,
    /// The time of the last restart; `None` before the first.
    started: Option<u8>,
    /// The last VACATED executed for each client.
    vacated: [u8; CLIENTS],
    /// Leases of clients that have left.
    old: [Option<Lease>; CLIENTS],
    /// The file exists.
    exists: bool,
    /// The reply to the CREATE that created the file, with its client and number. A CREATE is executed
    /// once, even across crashes.
    made: Option<(u8, u8, Body)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Body {
    /// READ with a request for a lease. `seen` is known to the checker only: the value acknowledged when it
    /// was sent.
    Ask {
        kind: Kind,
        number: u8,
        at: u8,
        seen: u8,
    },
    /// The reply to `Ask`.
    Answer {
        kind: Option<Kind>,
        number: u8,
        at: u8,
        seen: u8,
        value: u8,
    },
    Evicted,
    Vacated(u8),
    VacatedAnswer(u8),
    Write(u8),
    WriteAnswer(u8),
    /// CREATE with a request for a write lease.
    Create {
        number: u8,
        at: u8,
    },
    /// VACATED for all leases.
    Everything,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    client: u8,
    /// The incarnation of the client that sent the message, or that it is for.
    incarnation: u8,
    body: Body,
    sent: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    server: Server,
    clients: [Client; CLIENTS],
    /// Sorted, so that equal states compare equal.
    net: Vec<Message>,
    /// The last write acknowledged to its writer.
    acknowledged: u8,
    written: u8,
    crashes: (u8, u8),
    /// A client received an outdated value.
    stale: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time advances, except on the clock of this client.
    Tick(Option<usize>),
    Ask(usize, Kind),
    Write(usize),
    Flush(usize),
    Vacate(usize),
    EvictAgain(usize),
    VacateAgain(usize),
    Deliver(Message),
    /// The message arrives, and arrives again later.
    Repeat(Message),
    CrashServer,
    CrashClient(usize),
    Create(usize),
    Leave(usize),
    Return(usize),
}

pub struct Protocol(pub Bounds);

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            server: Server { exists: !self.0.created, ..Server::default() },
            clients: [Client::default(); CLIENTS],
            net: Vec::new(),
            acknowledged: 0,
            written: 0,
            crashes: (0, 0),
            stale: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let bounds = &self.0;
        if state.now < bounds.ticks && self.may_tick(state) {
            actions.push(Action::Tick(None));
            // Only the clock of the first client lags: either client may be the reader or the writer.
            if state.clients[0].lag < bounds.drift {
                actions.push(Action::Tick(Some(0)));
            }
        }
        for (it, client) in state.clients.iter().enumerate() {
            if client.away {
                actions.push(Action::Return(it));
                continue;
            }
            let in_net = |wanted: fn(&Body) -> bool| {
                state.net.iter().any(|message| usize::from(message.client) == it && wanted(&message.body))
            };
            let idle = !client.evicted && client.vacating.is_none() && client.dirty.is_none();
            let may_ask = idle && client.asked < bounds.asks[it];
            if may_ask && state.server.exists && !in_net(|body| matches!(body, Body::Ask { .. })) {
                actions.extend([Kind::Read, Kind::Write].map(|kind| Action::Ask(it, kind)));
            }
            // Until the reply, the client knows neither the file nor its handle.
            let makes = if client.creating.is_some() {
                !in_net(|body| matches!(body, Body::Create { .. }))
            } else {
                may_ask && !state.server.exists
            };
            if makes {
                actions.push(Action::Create(it));
            }
            let pushed = client.dirty.is_none() && client.flush.is_none();
            let quiet = pushed && idle && client.creating.is_none();
            if quiet && client.incarnation < bounds.departures[it] {
                actions.push(Action::Leave(it));
            }
            let may_write = client.belief.is_some_and(|belief| belief.kind == Kind::Write);
            if may_write && client.dirty.is_none() && state.written < bounds.writes {
                actions.push(Action::Write(it));
            }
            if client.dirty.is_some() && !in_net(|body| matches!(body, Body::Write(_))) {
                actions.push(Action::Flush(it));
            }
            if client.evicted && client.dirty.is_none() {
                actions.push(Action::Vacate(it));
            }
            if client.vacating.is_some() && !in_net(|body| matches!(body, Body::Vacated(_))) {
                actions.push(Action::VacateAgain(it));
            }
            let evicting = state.server.leases[it].is_some_and(|lease| lease.evicting);
            if evicting && !in_net(|body| matches!(body, Body::Evicted)) {
                actions.push(Action::EvictAgain(it));
            }
            if state.crashes.1 < bounds.client_crashes {
                actions.push(Action::CrashClient(it));
            }
        }
        actions.extend(state.net.iter().map(|message| Action::Deliver(*message)));
        // Among messages with an effect, only the repetition of a VACATED can do harm.
        let vacated = state.net.iter().filter(|message| matches!(message.body, Body::Vacated(_)));
        actions.extend(vacated.map(|message| Action::Repeat(*message)));
        if state.crashes.0 < bounds.server_crashes {
            actions.push(Action::CrashServer);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Tick(lagging) => self.tick(&mut state, lagging),
            Action::Ask(it, kind) => {
                let seen = state.acknowledged;
                let client = &mut state.clients[it];
                let at = before.now - client.lag;
                client.asked += 1;
                let number = client.asked;
                state.send(it, Body::Ask { kind, number, at, seen });
            }
            Action::Write(it) => {
                state.written += 1;
                state.acknowledged = state.written;
                let client = &mut state.clients[it];
                let belief = client.belief.as_mut()?;
                belief.cached = state.written;
                client.dirty = Some((state.written, belief.until));
                // The reply to an earlier request contains the value from before.
                if self.0.own_writes_count {
                    client.barrier = client.asked + 1;
                }
            }
            Action::Flush(it) => {
                let client = &mut state.clients[it];
                let (value, _) = client.dirty?;
                let first = Flush { value, first_sent: before.now, executed: None };
                client.flush.get_or_insert(first);
                state.send(it, Body::Write(value));
            }
            Action::Vacate(it) => {
                let client = &mut state.clients[it];
                client.evicted = false;
                client.vacated += 1;
                client.vacating = Some(client.vacated);
                let number = client.vacated;
                state.send(it, Body::Vacated(number));
            }
            Action::VacateAgain(it) => {
                let number = state.clients[it].vacating?;
                state.send(it, Body::Vacated(number));
            }
            Action::EvictAgain(it) => state.send(it, Body::Evicted),
            Action::Deliver(message) | Action::Repeat(message) => {
                if matches!(action, Action::Deliver(_)) {
                    state.net.retain(|other| *other != message);
                }
                self.deliver(&mut state, message);
            }
            Action::CrashServer => {
                state.crashes.0 += 1;
                let Server { value, vacated, exists, made, .. } = state.server;
                let started = Some(before.now);
                state.server = Server { value, started, vacated, exists, made, ..Server::default() };
            }
            Action::Create(it) => {
                let client = &mut state.clients[it];
                let (number, at) = client.creating.unwrap_or((client.asked + 1, before.now - client.lag));
                client.asked = client.asked.max(number);
                client.creating = Some((number, at));
                state.send(it, Body::Create { number, at });
            }
            Action::Leave(it) => {
                let client = &mut state.clients[it];
                (client.belief, client.away) = (None, true);
                state.send(it, Body::Everything);
            }
            Action::Return(it) => {
                let Client { lag, asked, vacated, incarnation, .. } = state.clients[it];
                let incarnation = incarnation + 1;
                let fresh =
                    Client { lag, asked, vacated, incarnation, barrier: asked + 1, ..Client::default() };
                state.clients[it] = fresh;
                if self.0.own_names {
                    state.server.old[it] = state.server.leases[it].take();
                }
            }
            Action::CrashClient(it) => {
                state.crashes.1 += 1;
                let Client { lag, asked, vacated, dirty, incarnation, .. } = state.clients[it];
                if dirty.is_some() {
                    // Unwritten data is lost, as the paper says; it may arrive nevertheless.
                    state.acknowledged = state.server.value;
                    for message in &mut state.net {
                        if let Body::Ask { seen, .. } | Body::Answer { seen, .. } = &mut message.body {
                            *seen = (*seen).min(state.acknowledged);
                        }
                    }
                    state.net.sort_unstable();
                    state.net.dedup();
                }
                let fresh =
                    Client { lag, asked, vacated, incarnation, barrier: asked + 1, ..Client::default() };
                state.clients[it] = fresh;
            }
        }
        (state != *before).then_some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.net.len() <= self.0.messages
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        vec![
            Property::always(FRESH, |_, state: &State| {
                let fresh =
                    |client: &Client| client.belief.is_none_or(|belief| belief.cached >= state.acknowledged);
                !state.stale && state.clients.iter().all(fresh)
            }),
            Property::sometimes(SHARED, |_, state: &State| {
                let shares = |client: &Client| {
                    client.belief.is_some_and(|belief| belief.kind == Kind::Read && belief.cached > 0)
                };
                state.clients.iter().any(shares)
            }),
        ]
    }
}

impl State {
    fn send(&mut self, client: usize, body: Body) {
        let incarnation = self.clients[client].incarnation;
        let message = Message { client: client as u8, incarnation, body, sent: self.now };
        if let Err(at) = self.net.binary_search(&message) {
            self.net.insert(at, message);
        }
    }
}

impl Protocol {
    /// Time may advance only if everything has happened that the network and the clients must do before.
    fn may_tick(&self, state: &State) -> bool {
        state.clients.iter().all(|client| {
            let clock = state.now - client.lag;
            // Either clock may advance: a write that must have been sent by the next tick must be sent now.
            let left = client.dirty.is_none_or(|(_, until)| client.flush.is_some() || clock < until);
            let arrived = client.flush.is_none_or(|flush| match flush.executed {
                None => state.now < flush.first_sent + self.0.delay,
                Some(at) => state.now < at + self.0.delay,
            });
            left && arrived
        })
    }

    fn tick(&self, state: &mut State, lagging: Option<usize>) {
        state.now += 1;
        let (now, delay) = (state.now, self.0.delay);
        state.net.retain(|message| now <= message.sent + delay);
        for (it, client) in state.clients.iter_mut().enumerate() {
            client.lag += u8::from(lagging == Some(it));
            let clock = now - client.lag;
            client.belief = client.belief.filter(|belief| clock < belief.until);
        }
    }

    fn deliver(&self, state: &mut State, message: Message) {
        let it = usize::from(message.client);
        let (here, away) = (state.clients[it].incarnation == message.incarnation, state.clients[it].away);
        let from_server = !matches!(
            message.body,
            Body::Ask { .. } | Body::Create { .. } | Body::Vacated(_) | Body::Write(_) | Body::Everything
        );
        if from_server && (away || !here) {
            return;
        }
        match message.body {
            // No client gets the reply to a request from before it left. A lease that the request may take
            // is no worse than any lease that expires.
            Body::Ask { .. } | Body::Create { .. } if !here => {}
            Body::Everything => {
                let leases = &mut state.server.leases;
                let of = if here || !self.0.own_names { &mut leases[it] } else { &mut state.server.old[it] };
                *of = None;
            }
            Body::Create { number, at } => self.create(state, it, (number, at)),
            Body::Ask { kind, number, at, seen } => self.ask(state, message, (kind, number, at, seen)),
            Body::Answer { kind, number, at, seen, value } => {
                state.stale |= value < seen && number >= state.clients[it].barrier;
                let client = &mut state.clients[it];
                client.creating.take_if(|(creating, _)| *creating == number);
                let clock = state.now - client.lag;
                let usable = number >= client.barrier && at + TERM > clock && client.dirty.is_none();
                if let Some(kind) = kind.filter(|_| usable) {
                    // A renewal extends the lease, and never makes the value older.
                    let before = client.belief;
                    let until = before.map_or(at + TERM, |before| before.until.max(at + TERM));
                    let kind = before.map_or(kind, |before| before.kind.max(kind));
                    let cached = before.map_or(value, |before| before.cached.max(value));
                    client.belief = Some(Belief { kind, until, cached });
                }
            }
            Body::Evicted => {
                let client = &mut state.clients[it];
                client.belief = None;
                // The client does not know the handle of the file yet, and might take the eviction for that
                // of another file.
                if self.0.evictions_count || client.creating.is_none() {
                    client.barrier = client.asked + 1;
                }
                client.evicted = client.vacating.is_none();
            }
            Body::Vacated(number) => {
                let before = &mut state.server.vacated[it];
                if number > *before || !self.0.vacated_once {
                    *before = number.max(*before);
                    state.server.leases[it] = None;
                }
                state.send(it, Body::VacatedAnswer(number));
            }
            Body::VacatedAnswer(number) => {
                let client = &mut state.clients[it];
                client.vacating = client.vacating.filter(|vacating| *vacating != number);
            }
            Body::Write(value) => self.write(state, message, value),
            Body::WriteAnswer(value) => {
                let client = &mut state.clients[it];
                client.flush = client.flush.filter(|flush| flush.value != value);
                client.dirty = client.dirty.filter(|(dirty, _)| *dirty != value);
            }
        }
    }

    fn is_over(&self, state: &State, lease: Lease) -> bool {
        let end = lease.until + self.0.clock_skew;
        match lease.kind {
            Kind::Read => end <= state.now,
            Kind::Write => end.max(state.server.wrote) + self.0.write_slack <= state.now,
        }
    }

    fn is_recovering(&self, state: &State) -> bool {
        state.server.started.is_some_and(|started| {
            let terms = started + TERM + self.0.clock_skew;
            state.now < terms.max(state.server.wrote) + self.0.recovery_slack
        })
    }

    /// CREATE: a file that does not exist gets a lease, since no other client can know it. An existing one
    /// gets none.
    fn create(&self, state: &mut State, it: usize, (number, at): (u8, u8)) {
        if let Some((client, made, body)) = state.server.made
            && (usize::from(client), made) == (it, number)
        {
            return state.send(it, body);
        }
        if self.is_recovering(state) {
            return;
        }
        let (seen, value) = (0, state.server.value);
        let kind = (!state.server.exists).then_some(Kind::Write);
        let body = Body::Answer { kind, number, at, seen, value };
        if !state.server.exists {
            state.server.exists = true;
            state.server.made = Some((it as u8, number, body));
            let lease = Lease { kind: Kind::Write, until: state.now + TERM, evicting: false };
            state.server.leases[it] = Some(lease);
        }
        state.send(it, body);
    }

    /// Is there no conflicting lease of a client that has left? Such a client cannot be evicted.
    fn is_left_behind(&self, state: &mut State, kind: Kind) -> bool {
        for it in 0..CLIENTS {
            state.server.old[it] = state.server.old[it].filter(|lease| !self.is_over(state, *lease));
        }
        state.server.old.iter().flatten().all(|lease| kind == Kind::Read && lease.kind == Kind::Read)
    }

    /// Is there no conflicting lease of the other client? If there is one, it is evicted.
    fn clear(&self, state: &mut State, it: usize, kind: Kind) -> bool {
        if !self.is_left_behind(state, kind) {
            return false;
        }
        let other = 1 - it;
        let Some(lease) = state.server.leases[other] else { return true };
        if self.is_over(state, lease) {
            state.server.leases[other] = None;
            return true;
        }
        if kind == Kind::Read && lease.kind == Kind::Read {
            return true;
        }
        if !lease.evicting {
            state.server.leases[other] = Some(Lease { evicting: true, ..lease });
            state.send(other, Body::Evicted);
        }
        false
    }

    fn ask(&self, state: &mut State, message: Message, (kind, number, at, seen): (Kind, u8, u8, u8)) {
        let it = usize::from(message.client);
        if self.is_recovering(state) {
            return;
        }
        if !self.clear(state, it, kind) {
            // The request waits, within its delay.
            state.send_again(message);
            return;
        }
        let mine = state.server.leases[it].filter(|lease| !self.is_over(state, *lease));
        let granted = !mine.is_some_and(|lease| lease.evicting);
        if granted {
            let until = mine.map_or(0, |lease| lease.until).max(state.now + TERM);
            let kind = mine.map_or(kind, |lease| lease.kind.max(kind));
            state.server.leases[it] = Some(Lease { kind, until, evicting: false });
        }
        let value = state.server.value;
        let kind = granted.then_some(kind);
        state.send(it, Body::Answer { kind, number, at, seen, value });
    }

    fn write(&self, state: &mut State, message: Message, value: u8) {
        let it = usize::from(message.client);
        if !self.clear(state, it, Kind::Write) {
            state.send_again(message);
            return;
        }
        state.server.value = value;
        state.server.wrote = state.now;
        if let Some(flush) = state.clients[it].flush.as_mut().filter(|flush| flush.value == value) {
            flush.executed.get_or_insert(state.now);
        }
        state.send(it, Body::WriteAnswer(value));
    }
}

impl State {
    fn send_again(&mut self, message: Message) {
        if let Err(at) = self.net.binary_search(&message) {
            self.net.insert(at, message);
        }
    }
}
