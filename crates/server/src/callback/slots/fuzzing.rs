//! The body of the fuzz target `backchannel`: any sequence of callbacks, losses, late arrivals and answers
//! of a client.
//!
//! As long as the client is honest, a callback gets the result of its own execution alone, no two callbacks
//! are sent under one sequence id of a slot, and the slots are never out of step. A client may lie. Then
//! each slot still carries one callback at a time, and is free again once its callback has ended.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt;

use super::*;

const SLOTS: u32 = 2;
/// Requests or answers in flight; beyond it the oldest is lost.
const IN_FLIGHT_MAX: usize = 16;
const STEPS_MAX: usize = 1024;
/// Requests that a callback may need at most once nothing is lost any more.
const REQUESTS_MAX: usize = 4;
/// The answers with which an honest client may refuse a request before it looks at its slot.
const REFUSALS: [Status; 3] = [Status::Delay, Status::BadSession, Status::ServerFault];
/// The lies of a client.
const LIES: [Result<(), Option<Status>>; 6] = [
    Ok(()),
    Err(Some(Status::SeqMisordered)),
    Err(Some(Status::SeqFalseRetry)),
    Err(Some(Status::RetryUncachedRep)),
    Err(Some(Status::OpNotInSession)),
    Err(None),
];

/// A callback in a slot.
struct Call {
    taken: Taken,
    operation: u32,
    /// The request whose answer counts.
    waits_for: Option<u32>,
}

/// A request in the network.
#[derive(Clone, Copy)]
struct Request {
    id: u32,
    place: Place,
    /// None if CB_SEQUENCE is alone.
    operation: Option<u32>,
}

/// An answer in the network.
#[derive(Clone, Copy)]
struct Answer {
    to: u32,
    place: Place,
    sequence: Result<(), Option<Status>>,
    /// The operation whose result follows.
    operation: Option<u32>,
}

/// A slot of the client, with the last request in it.
#[derive(Clone, Copy, Default)]
struct ClientSlot {
    sequence: u32,
    operation: Option<u32>,
    /// The request that is being executed.
    running: Option<Request>,
}

struct World {
    slots: Arc<BackSlots>,
    calls: Vec<Call>,
    client: [ClientSlot; SLOTS as usize],
    requests: Vec<Request>,
    answers: Vec<Answer>,
    /// The callback that was sent under each sequence id of each slot.
    sent: BTreeMap<(u32, u32), u32>,
    /// The client tells another request under a known sequence id from a retry, which it need not do.
    detects: bool,
    /// The client keeps answers although nobody asked for that.
    caches: bool,
    honest: bool,
    last: u32,
}

/// The first byte tells how the client keeps answers. Of the rest, two bytes are one step: the operation,
/// and its callback, request or answer.
pub fn backchannel(input: &[u8]) {
    let Some((kind, steps)) = input.split_first() else { return };
    let mut world = World {
        slots: Arc::new(BackSlots::new(SLOTS)),
        calls: Vec::new(),
        client: <_>::default(),
        requests: Vec::new(),
        answers: Vec::new(),
        sent: BTreeMap::new(),
        detects: kind & 1 != 0,
        caches: kind & 2 != 0,
        honest: true,
        last: 0,
    };
    for step in steps.chunks_exact(2).take(STEPS_MAX) {
        world.step(step[0], step[1].into());
        world.check();
    }
    world.settle();
}

impl World {
    fn step(&mut self, what: u8, which: usize) {
        match what % 8 {
            0 => self.begin(),
            1 => {
                if let Some(request) = take(&mut self.requests, which) {
                    self.arrive(request);
                    if what & 8 == 0 {
                        self.execute(request.place.slot);
                    }
                }
            }
            2 => self.execute(which as u32 % SLOTS),
            3 => {
                if let Some(answer) = take(&mut self.answers, which) {
                    self.answered(answer);
                }
            }
            4 if what & 8 == 0 => drop(take(&mut self.requests, which)),
            4 => drop(take(&mut self.answers, which)),
            // One connection does not answer, or the pause is over: the next attempt.
            5 if !self.calls.is_empty() => self.ask(which % self.calls.len()),
            // The callback is given up.
            6 => drop(take(&mut self.calls, which)),
            7 => self.refuse(what >> 3, which),
            _ => {}
        }
    }

    fn begin(&mut self) {
        let taken = self.slots.clone().take().now_or_never().flatten();
        assert_eq!(taken.is_some(), self.calls.len() < SLOTS as usize);
        if let Some(taken) = taken {
            self.last += 1;
            self.calls.push(Call { taken, operation: self.last, waits_for: None });
            self.ask(self.calls.len() - 1);
        }
    }

    fn ask(&mut self, at: usize) {
        self.last += 1;
        let call = &mut self.calls[at];
        let place = call.taken.ask();
        assert!(place.slot < SLOTS && place.highest_slot == SLOTS - 1);
        call.waits_for = Some(self.last);
        let operation = (!place.alone).then_some(call.operation);
        if let Some(operation) = operation {
            let first = *self.sent.entry((place.slot, place.sequence)).or_insert(operation);
            assert!(!self.honest || first == operation, "two callbacks under one sequence id");
        }
        put(&mut self.requests, Request { id: self.last, place, operation });
    }

    /// A request arrives at the client (RFC 8881, section 2.10.6.1).
    fn arrive(&mut self, request: Request) {
        let Request { id, place, operation } = request;
        let slot = &mut self.client[place.slot as usize];
        let next = place.sequence == slot.sequence.wrapping_add(1);
        let again = place.sequence == slot.sequence;
        let answer = |sequence, operation| Answer { to: id, place, sequence, operation };
        let refused = |status| answer(Err(Some(status)), None);
        let said = match slot.running {
            Some(_) if next || again => refused(Status::Delay),
            None if next => {
                *slot = ClientSlot { sequence: place.sequence, operation, running: Some(request) };
                return;
            }
            None if again && self.detects && operation != slot.operation => refused(Status::SeqFalseRetry),
            None if again && self.caches => answer(Ok(()), slot.operation),
            None if again => refused(Status::RetryUncachedRep),
            _ => refused(Status::SeqMisordered),
        };
        put(&mut self.answers, said);
    }

    /// The client answers the request that it is executing.
    fn execute(&mut self, slot: u32) {
        let slot = &mut self.client[slot as usize];
        if let Some(Request { id: to, place, operation }) = slot.running.take() {
            let answer = Answer { to, place, sequence: Ok(()), operation };
            put(&mut self.answers, answer);
        }
    }

    fn answered(&mut self, answer: Answer) {
        let waits = |call: &Call| call.waits_for == Some(answer.to);
        let Some(at) = self.calls.iter().position(waits) else { return };
        let out_of_step = answer.sequence == Err(Some(Status::SeqMisordered));
        assert!(!self.honest || !out_of_step, "the slot is out of step");
        self.calls[at].waits_for = None;
        match self.calls[at].taken.answered(answer.sequence) {
            Next::Done => {
                let call = self.calls.remove(at);
                let own = answer.operation == Some(call.operation);
                assert!(!self.honest || own, "the result of another callback");
                assert_eq!(call.taken.sequence, answer.place.sequence.wrapping_add(1), "it was not used up");
            }
            Next::Again => self.ask(at),
            Next::AgainLater => {}
            Next::Down => drop(self.calls.remove(at)),
        }
    }

    /// The client refuses a request, or lies.
    fn refuse(&mut self, how: u8, which: usize) {
        let how = usize::from(how);
        let Some(request) = take(&mut self.requests, which) else { return };
        let sequence = if let Some(refusal) = REFUSALS.get(how % 16) {
            Err(Some(*refusal))
        } else {
            self.honest = false;
            LIES[how % LIES.len()]
        };
        put(&mut self.answers, Answer { to: request.id, place: request.place, sequence, operation: None });
    }

    fn check(&self) {
        let slots = self.slots.slots.lock();
        let busy: BTreeSet<u32> = (0..SLOTS).filter(|slot| slots[*slot as usize].busy).collect();
        let taken: BTreeSet<u32> = self.calls.iter().map(|call| call.taken.number).collect();
        assert!(busy == taken && taken.len() == self.calls.len(), "two callbacks in one slot");
        assert_eq!(self.slots.free.available_permits(), SLOTS as usize - self.calls.len());
    }

    /// From now on nothing is lost or late. A callback in each slot ends, and gets its result if the client
    /// was honest.
    fn settle(&mut self) {
        self.calls.clear();
        self.requests.clear();
        self.answers.clear();
        (0..SLOTS).for_each(|slot| self.execute(slot));
        self.answers.clear();
        (0..SLOTS).for_each(|_| self.begin());
        self.check();
        let mut asked = 0;
        while let Some(request) = take(&mut self.requests, 0) {
            asked += 1;
            assert!(asked <= REQUESTS_MAX * SLOTS as usize, "it is asked again and again");
            self.arrive(request);
            self.execute(request.place.slot);
            let answer = take(&mut self.answers, 0).expect("the client has answered");
            self.answered(answer);
        }
        assert!(self.calls.is_empty(), "a callback that never ends");
        self.check();
    }
}

/// Takes any of these.
fn take<T>(from: &mut Vec<T>, which: usize) -> Option<T> {
    (!from.is_empty()).then(|| from.remove(which % from.len()))
}

fn put<T>(to: &mut Vec<T>, one: T) {
    if to.len() == IN_FLIGHT_MAX {
        to.remove(0);
    }
    to.push(one);
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_callback_gets_its_own_result_and_a_slot_carries_one_at_a_time() {
        protocol::fuzzing::over_corpus("backchannel", super::backchannel);
    }
}
