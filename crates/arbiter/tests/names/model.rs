//! The protocol as a state machine in which every step is a choice.
//!
//! A directory has two names. Changes are numbered in the order in which the holder has answered them. A file
//! is known by the number of the change that made it.

use stateright::{Model, Property};

use super::state::{Body, Change, Holder, Message, NAMES, Names, Server, State};

/// Changes of the holder are done in their order, or listed as conflicts, and nobody else's come between.
pub const ORDER: &str =
    "the names at the server are those after some of the holder's changes, in their order";
/// A reader misses nothing that was answered before it asked, unless the lease was revoked.
pub const FRESH: &str = "a reader sees every change that was answered before it asked";
/// No change is forgotten.
pub const KEPT: &str = "each change that was answered is done, waits, or is listed as a conflict";
/// Evidence that the model makes progress.
const SENT: &str = "a reader is answered after a change";

/// The bounds of the model, and the rules that the protocol needs.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Changes by the holder.
    pub changes: u8,
    /// Changes in one compound.
    pub batch: usize,
    /// Questions of a reader.
    pub looks: u8,
    /// Changes by another client.
    pub others: u8,
    /// Messages in flight.
    pub messages: usize,
    /// How often the server dies, with or without the last change that was not synced.
    pub server_crashes: u8,
    /// How often the holder dies. Its journal stays.
    pub holder_crashes: u8,
    /// The server may revoke a lease that does not come back, and may end its grace period without a reclaim.
    pub revokes: bool,
    /// After a session is lost, the holder compares the names at the server with those after each of its
    /// changes. Otherwise it sends all again that were not acknowledged.
    pub compares: bool,
    /// The holder finds out by which of its changes a file was made.
    pub tags: bool,
    /// It compares only under a lease that stands.
    pub checks: bool,
    /// It compares with what is durable at the server.
    pub durable: bool,
    /// A new session of the holder ends the one before.
    pub ends: bool,
    /// The server takes changes only under a lease that stands.
    pub fences: bool,
    /// The holder returns the lease when all changes are acknowledged, and not when all are sent.
    pub waits: bool,
    /// The server lets nobody look in its grace period.
    pub grace: bool,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            changes: 3,
            batch: 2,
            looks: 1,
            others: 0,
            messages: 2,
            server_crashes: 0,
            holder_crashes: 0,
            revokes: false,
            compares: true,
            tags: true,
            checks: true,
            durable: true,
            ends: true,
            fences: true,
            waits: true,
            grace: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The holder answers a change of one of its users.
    Answer(Change),
    Send,
    /// It forgets a change of its journal that is done.
    Trim,
    Compare,
    ReturnLease,
    /// It notices that the server has restarted.
    Reclaim,
    Deliver(Message),
    Repeat(Message),
    /// The server makes the changes durable, and acknowledges them.
    Sync,
    Recall,
    Revoke,
    EndGrace,
    Look,
    ShowNames,
    ChangeByOther,
    DoByOther,
    /// The server dies. Of the changes that were not durable, so many are kept.
    CrashServer {
        keeps: u8,
    },
    CrashHolder,
}

pub struct Protocol(pub Bounds);

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let holder = Holder {
            session: 0,
            leased: true,
            recalled: false,
            base: [None; NAMES],
            journal: Vec::new(),
            first: 1,
            done: 0,
            sent: 0,
            compares: false,
            conflicts: Vec::new(),
        };
        let server = Server {
            session: Some(0),
            names: [None; NAMES],
            unsynced: None,
            executed: Some(0),
            leased: true,
            reclaimable: false,
            waiting: None,
            changing: false,
        };
        vec![State {
            holder,
            server,
            net: Vec::new(),
            sessions: 0,
            answered: 0,
            looks: 0,
            others: 0,
            crashes: (0, 0),
            all: Vec::new(),
            effected: 0,
            foreign: [None; NAMES],
            before: 0,
            revoked: false,
            seen: false,
            stale: false,
            wrong: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (bounds, holder, server) = (&self.0, &state.holder, &state.server);
        if holder.leased && !holder.recalled && state.answered < bounds.changes {
            // As long as nobody else changes names, the two names are alike.
            let first = state.answered == 0 && bounds.others == 0;
            let alike = |change: &Change| first && *change == Change::Create(1);
            actions.extend(Change::ALL.into_iter().filter(|change| !alike(change)).map(Action::Answer));
        }
        let connected = server.session == Some(holder.session);
        if holder.leased && connected && !holder.compares {
            if holder.done < holder.journal.len() {
                actions.push(Action::Send);
            }
            let all = if bounds.waits { holder.done } else { holder.sent };
            if holder.recalled && all == holder.journal.len() {
                actions.push(Action::ReturnLease);
            }
        }
        if holder.done > 0 {
            actions.push(Action::Trim);
        }
        let comparable = server.unsynced.is_none() || !bounds.durable;
        if holder.compares && connected && comparable {
            actions.push(Action::Compare);
        }
        if !connected {
            actions.push(Action::Reclaim);
        }
        for message in &state.net {
            // One that is lost is one that is never delivered.
            actions.extend([Action::Deliver(*message), Action::Repeat(*message)]);
        }
        if server.unsynced.is_some() {
            actions.push(Action::Sync);
        }
        let others_wait = server.waiting.is_some() || server.changing;
        if others_wait && server.leased {
            actions.push(Action::Recall);
            if bounds.revokes {
                actions.push(Action::Revoke);
            }
        }
        if server.reclaimable && bounds.revokes {
            actions.push(Action::EndGrace);
        }
        let free = !(server.leased || server.reclaimable && bounds.grace);
        if server.waiting.is_some() && free {
            actions.push(Action::ShowNames);
        }
        if server.changing && free {
            actions.push(Action::DoByOther);
        }
        if server.waiting.is_none() && state.looks < bounds.looks {
            actions.push(Action::Look);
        }
        if !server.changing && state.others < bounds.others {
            actions.push(Action::ChangeByOther);
        }
        if state.crashes.0 < bounds.server_crashes {
            let unsynced = server.unsynced.map_or(0, |(_, _, count)| count);
            actions.extend((0..=unsynced).map(|keeps| Action::CrashServer { keeps }));
        }
        if state.crashes.1 < bounds.holder_crashes {
            actions.push(Action::CrashHolder);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Answer(change) => {
                let holder = &mut state.holder;
                let number = holder.first + holder.journal.len() as u8;
                change.apply(holder.after(holder.journal.len())?, number)?;
                holder.journal.push(change);
                state.all.push(change);
                state.answered += 1;
            }
            Action::Send => {
                let holder = &mut state.holder;
                let count = (holder.journal.len() - holder.done).min(self.0.batch);
                holder.sent = holder.sent.max(holder.done + count);
                let (session, first) = (holder.session, holder.first + holder.done as u8);
                state.send(session, Body::Changes(first, count as u8));
            }
            Action::Trim => {
                let holder = &mut state.holder;
                holder.base = holder.after(1)?;
                holder.journal.remove(0);
                (holder.first, holder.done) = (holder.first + 1, holder.done - 1);
                holder.sent = holder.sent.saturating_sub(1);
            }
            Action::Compare => self.compare(&mut state),
            Action::ReturnLease => {
                (state.holder.leased, state.holder.recalled) = (false, false);
                let session = state.holder.session;
                state.send(session, Body::Return);
            }
            Action::Reclaim => {
                state.begin_session(self.0.ends);
                let holder = &mut state.holder;
                if holder.leased && state.server.reclaimable {
                    (state.server.leased, state.server.reclaimable) = (true, false);
                    holder.compares = self.0.compares;
                    holder.sent = holder.done;
                } else if holder.leased {
                    holder.give_up();
                }
            }
            Action::Deliver(message) => {
                state.net.retain(|other| *other != message);
                self.deliver(&mut state, message);
            }
            Action::Repeat(message) => self.deliver(&mut state, message),
            Action::Sync => {
                state.server.unsynced = None;
                if let (Some(session), Some(number)) = (state.server.session, state.server.executed) {
                    state.send(session, Body::Done(number));
                }
            }
            Action::Recall => {
                let session = state.server.session?;
                state.send(session, Body::Recall);
            }
            Action::Revoke => (state.server.leased, state.revoked) = (false, true),
            Action::EndGrace => (state.server.reclaimable, state.revoked) = (false, true),
            Action::Look => {
                state.looks += 1;
                state.server.waiting = Some(state.answered);
            }
            Action::ShowNames => {
                let asked = state.server.waiting.take()?;
                state.stale |= !state.revoked && state.effected < asked;
                state.seen |= asked > 0 && state.effected > 0;
            }
            Action::ChangeByOther => {
                state.others += 1;
                state.server.changing = true;
            }
            Action::DoByOther => {
                state.server.changing = false;
                // It takes the first name away, or makes it.
                let made = 100 + state.others;
                state.server.names[0] = if state.server.names[0].is_some() { None } else { Some(made) };
                state.foreign = state.server.names;
                state.before = state.answered;
            }
            Action::CrashServer { keeps } => state.crash_server(keeps),
            Action::CrashHolder => {
                state.crashes.1 += 1;
                // What it does not know any more: which changes are done.
                (state.holder.done, state.holder.sent) = (0, 0);
                state.holder.compares = state.holder.leased && self.0.compares;
                if state.server.session.is_some() {
                    state.begin_session(self.0.ends);
                }
            }
        }
        (state != *before).then_some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.net.len() <= self.0.messages
    }

    fn properties(&self) -> Vec<Property<Protocol>> {
        vec![
            Property::always(ORDER, |_, state: &State| !state.wrong),
            Property::always(FRESH, |_, state: &State| !state.stale),
            Property::always(KEPT, |_, state: &State| {
                let holder = &state.holder;
                let waits = |number: u8| number >= holder.first;
                (1..=state.answered).all(|number| {
                    number <= state.effected || waits(number) || holder.conflicts.contains(&number)
                })
            }),
            Property::sometimes(SENT, |_, state: &State| state.seen),
        ]
    }
}

impl Protocol {
    fn deliver(&self, state: &mut State, message: Message) {
        let Message { session, body } = message;
        let heard = match body {
            Body::Changes(..) | Body::Return if self.0.ends => state.server.session == Some(session),
            Body::Changes(..) | Body::Return => state.server.session.is_some(),
            _ => state.holder.session == session,
        };
        if !heard {
            return;
        }
        match body {
            Body::Changes(first, count) => self.execute(state, session, first, count),
            Body::Done(number) => {
                let holder = &mut state.holder;
                let place = (number + 1).saturating_sub(holder.first) as usize;
                if place <= holder.journal.len() {
                    holder.done = holder.done.max(place);
                }
            }
            Body::Refused => {
                if state.holder.leased {
                    state.holder.give_up();
                }
            }
            Body::Recall => state.holder.recalled |= state.holder.leased,
            Body::Return => state.server.leased = false,
        }
    }

    /// Changes come to the server. Those that it has done in this session are acknowledged again.
    fn execute(&self, state: &mut State, session: u8, first: u8, count: u8) {
        let server = &mut state.server;
        if self.0.fences && !server.leased {
            return state.send(session, Body::Refused);
        }
        let next = server.executed.map_or(first, |executed| executed + 1);
        let end = first + count;
        if first > next || server.unsynced.is_some() {
            return;
        }
        if next >= end {
            return state.send(session, Body::Done(end - 1));
        }
        server.unsynced = Some((server.names, next, end - next));
        server.executed = Some(end - 1);
        for number in next..end {
            let change = state.all[usize::from(number) - 1];
            // A server says that the name exists, or does not. The holder takes the change for done.
            state.server.names = change.apply(state.server.names, number).unwrap_or(state.server.names);
            state.judge(number);
        }
    }

    /// The holder compares the names at the server with those after each of its changes.
    fn compare(&self, state: &mut State) {
        let (there, leased) = (state.server.names, state.server.leased);
        let holder = &mut state.holder;
        if self.0.checks && !leased {
            return holder.give_up();
        }
        let first = holder.first;
        let unknown = |file: u8| file >= first;
        let same = |names: Names| {
            names.iter().zip(there).all(|(expected, found)| match (expected, found) {
                (Some(expected), Some(found)) if !self.0.tags && unknown(*expected) => unknown(found),
                (expected, found) => *expected == found,
            })
        };
        let fits = (holder.done..=holder.journal.len()).find(|count| holder.after(*count).is_some_and(&same));
        holder.compares = false;
        match fits {
            Some(count) => (holder.done, holder.sent) = (count, count),
            None => state.wrong = true,
        }
    }
}
