//! The cluster as a state machine in which every step is a choice.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::Moment;
use cluster::store::{Memory, StoreError};
use stateright::{Model, Property};

use crate::bounds::{Bounds, Start, address};
use crate::state::{Seat, Spent, State};

/// The safety property.
pub const ONE: &str = "at most one member answers for a server";
/// Each epoch of a server has one holder.
pub const EPOCHS: &str = "each holder has an epoch of its own";
/// Evidence that the model makes progress, as the next one.
pub const FENCED: &str = "a server was taken over from a member that was fenced";
pub const GIVEN: &str = "a server was given away and taken by another member";

/// A set of members, one bit for each.
type Set = u8;

/// The clocks on which a tick passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clocks {
    All,
    First,
    Others,
}

impl Clocks {
    fn has(self, it: usize) -> bool {
        match self {
            Clocks::All => true,
            Clocks::First => it == 0,
            Clocks::Others => it > 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A tick passes. Each member of the set that has no call sends one just before. Each member of the set
    /// whose call was carried out gets the answer just after.
    Tick(Clocks, Set),
    /// A member sends a call and the store carries it out, in one tick. True: the answer comes in that tick.
    Exchange(usize, bool),
    /// The store carries out a call that was sent in an earlier tick. True: the answer comes in this tick.
    CarryOut(usize, bool),
    /// The caller gets no answer. If the store has not carried the call out, it may do so later.
    GiveUp(usize),
    /// The store carries out a call whose caller is not there any more.
    CarryOutStray(usize),
    /// Kills a member, and starts it again. True: in another place.
    Kill(usize, bool),
    Drain(usize),
    Leave(usize),
    /// The user has stopped a server that was not ordered any more, and reports it.
    Stopped(usize, usize),
}

pub struct World(pub Bounds);

impl World {
    fn may_send(&self, it: usize, seat: &Seat) -> bool {
        seat.sent < self.0.sends[it] && seat.member.due(seat.now()) <= seat.now()
    }

    fn start(&self, clocks: &[u8]) -> State {
        let bounds = &self.0;
        let seat = |(index, clock): (usize, &u8)| Seat {
            member: bounds.member(index, 0, 0),
            clock: *clock,
            incarnation: 0,
            place: 0,
            sent: 0,
            draining: false,
            call: None,
            running: BTreeMap::new(),
            until: Moment::ZERO,
        };
        let mut state = State {
            store: Memory::default(),
            seats: clocks.iter().enumerate().map(seat).collect(),
            strays: Vec::new(),
            spent: Spent::default(),
            fenced: false,
            given: false,
            epoch_reused: false,
        };
        let others = 1..state.seats.len();
        let order: Vec<usize> = match bounds.start {
            Start::Empty => Vec::new(),
            // Each looks and joins, the first takes, and the others see that.
            Start::Held => {
                let joins = others.clone().flat_map(|it| [it, it]);
                [0, 0].into_iter().chain(joins).chain([0]).chain(others).collect()
            }
            Start::SameName => [0, 0, 0].into_iter().chain(others).collect(),
        };
        for it in order {
            state.transact(it).unwrap();
        }
        for seat in &mut state.seats {
            seat.sent = 0;
        }
        // It may be giving some of them away already.
        assert_eq!(state.seats[0].running.is_empty(), bounds.start == Start::Empty);
        state
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    /// The clock of the first member is ahead of the others by 0 to `skew` ticks at any time. It can lose
    /// `skew` ticks if it is ahead at first, and gain them if it is not.
    fn init_states(&self) -> Vec<State> {
        let ahead = |ahead: u8| {
            let mut clocks = vec![0; self.0.sends.len()];
            clocks[0] = ahead;
            self.start(&clocks)
        };
        if self.0.skew == 0 { vec![ahead(0)] } else { vec![ahead(0), ahead(self.0.skew)] }
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let (bounds, spent) = (&self.0, &state.spent);
        let (first, others) = (state.seats[0].clock, state.seats[1].clock);
        let both = first < bounds.ticks && others < bounds.ticks;
        let gains = first < others + bounds.skew && first < bounds.ticks;
        let ticks = [(Clocks::All, both), (Clocks::First, gains), (Clocks::Others, first > others)];
        for (clocks, _) in ticks.into_iter().filter(|(_, may)| *may) {
            let talks = |(it, seat): (usize, &Seat)| match &seat.call {
                None => self.may_send(it, seat),
                Some(call) => call.result.is_some(),
            } && clocks.has(it);
            let talking = state.seats.iter().enumerate().filter(|seat| talks(*seat));
            let talking = talking.fold(0, |set, (it, _)| set | 1 << it);
            let subsets = (0..=talking).filter(|set: &Set| set & !talking == 0);
            actions.extend(subsets.map(|set| Action::Tick(clocks, set)));
        }
        actions.extend((0..state.strays.len()).map(Action::CarryOutStray));
        for (it, seat) in state.seats.iter().enumerate() {
            match &seat.call {
                None if self.may_send(it, seat) => {
                    actions.extend([true, false].map(|answered| Action::Exchange(it, answered)));
                }
                None => {}
                Some(call) => {
                    if call.result.is_none() {
                        actions.extend([true, false].map(|answered| Action::CarryOut(it, answered)));
                    }
                    if spent.unknown < bounds.unknown {
                        actions.push(Action::GiveUp(it));
                    }
                }
            }
            if spent.kills < bounds.kills {
                actions.push(Action::Kill(it, false));
            }
            if spent.moves < bounds.moves {
                actions.push(Action::Kill(it, true));
            }
            if spent.drains < bounds.drains {
                actions.push(Action::Drain(it));
            }
            if spent.leaves < bounds.leaves {
                actions.push(Action::Leave(it));
            }
            // A server that was killed at the end of a term has stopped, too.
            let has_stopped = |server: &usize| match seat.running.get(&address(*server)) {
                Some(running) => running.stopping,
                None => seat
                    .member
                    .view()
                    .is_some_and(|view| view.holder(&address(*server)) == Some(&bounds.name(it)[..])),
            };
            let servers = (0..bounds.servers).filter(has_stopped);
            actions.extend(servers.map(|server| Action::Stopped(it, server)));
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Tick(clocks, set) => {
                for it in (0..state.seats.len()).filter(|it| clocks.has(*it)) {
                    let talks = set & 1 << it != 0;
                    let answers = state.seats[it].call.is_some();
                    if talks && !answers {
                        state.send(it);
                    }
                    state.seats[it].tick(self.0.late);
                    if talks && answers {
                        state.answer_with_result(it)?;
                    }
                }
            }
            Action::Exchange(it, answered) | Action::CarryOut(it, answered) => {
                if matches!(action, Action::Exchange(..)) {
                    state.send(it);
                }
                state.carry_out(it)?;
                if answered {
                    state.answer_with_result(it)?;
                }
            }
            Action::GiveUp(it) => {
                state.spent.unknown += 1;
                let call = state.seats[it].call.take();
                state.stray(call);
                state.answer(it, Err(StoreError::Unknown(String::new())));
            }
            Action::CarryOutStray(number) => {
                let transaction = state.strays.remove(number);
                state.commit(&transaction);
            }
            Action::Kill(it, elsewhere) => {
                let seat = &mut state.seats[it];
                let count = if elsewhere { &mut state.spent.moves } else { &mut state.spent.kills };
                *count += 1;
                seat.incarnation += 1;
                seat.place += u8::from(elsewhere);
                seat.member = self.0.member(it, seat.incarnation, seat.place);
                (seat.running, seat.until, seat.draining) = (BTreeMap::new(), Moment::ZERO, false);
                let call = seat.call.take();
                state.stray(call);
            }
            Action::Drain(it) => {
                state.spent.drains += 1;
                let seat = &mut state.seats[it];
                seat.draining = !seat.draining;
                Arc::make_mut(&mut seat.member).drain(seat.draining);
                seat.publish();
            }
            Action::Leave(it) => {
                state.spent.leaves += 1;
                Arc::make_mut(&mut state.seats[it].member).leave();
                state.seats[it].publish();
            }
            Action::Stopped(it, server) => {
                let seat = &mut state.seats[it];
                let held = seat.member.view().and_then(|view| view.servers.get(&address(server)));
                let epoch = held.map_or(0, |(record, _)| record.epoch);
                let epoch = seat.running.get(&address(server)).map_or(epoch, |running| running.epoch);
                if !self.0.lies {
                    seat.running.remove(&address(server));
                }
                Arc::make_mut(&mut seat.member).stopped(&address(server), epoch);
                seat.publish();
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<World>> {
        vec![
            Property::always(ONE, |model: &World, state: &State| {
                (0..model.0.servers).map(address).all(|server| {
                    state.seats.iter().filter(|seat| seat.running.contains_key(&server)).count() <= 1
                })
            }),
            Property::always(EPOCHS, |_, state: &State| !state.epoch_reused),
            Property::sometimes(FENCED, |_, state: &State| state.fenced),
            Property::sometimes(GIVEN, |_, state: &State| state.given),
        ]
    }
}
