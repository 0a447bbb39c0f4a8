//! The body of the fuzz target `owners`: any sequence of requests of open owners and lock owners, their
//! answers, releases, expiries and time.
//!
//! Each request is executed once, and a retry gets the answer to the last request of its own owner. The
//! number of owners stays within its limit, and no owner takes the place of another. Nothing is left of an
//! owner that was forgotten.

use std::collections::BTreeMap;

use vfs::{Handle, HolderId, LeaseId, LeaseKind, Principal};

use super::*;
use crate::exports::ExportId;
use crate::state::ids::IdKey;
use crate::state::stateids::{FileKey, Kind, Standing, Stateids};

const LEASE: Duration = Duration::from_secs(90);
/// Fewer than there are names.
const OWNERS_MAX: usize = 5;
const STEPS_MAX: usize = 1024;
/// A new owner may begin with any of these.
const FIRST: [u32; 4] = [0, 1, 77, u32::MAX];
/// The answers to a request. The first three move the owner's seqid.
const ANSWERS: [Result<(), Status>; 6] = [
    Ok(()),
    Err(Status::Denied),
    Err(Status::Grace),
    Err(Status::BadStateid),
    Err(Status::Resource),
    Err(Status::BadXdr),
];
const MOVING: usize = 3;
/// Number of closed opens that are looked up after each step.
const CLOSED_CHECKED: usize = 16;

/// The model of an owner.
#[derive(Clone, Copy)]
struct Known {
    confirmed: bool,
    /// The seqid of the last request that moved it, and the answer's number.
    last: Option<(u32, u32)>,
    /// The last request, whatever became of it.
    heard: Instant,
    holds: bool,
    closed: Option<StateKey>,
}

struct World {
    table: Owners<u32>,
    now: Instant,
    /// The owners by the number of their name.
    known: BTreeMap<u8, Known>,
    /// The seqids of the requests that are being executed. Their owners may have been forgotten.
    running: BTreeMap<u8, u32>,
    /// Makes keys of opens.
    stateids: Stateids,
    /// The opens that were closed, in order.
    closed: Vec<StateKey>,
    /// Number of answers so far.
    answers: u32,
}

/// Three bytes are one step: the operation, its owner and seqid, and its answer.
pub fn owners(input: &[u8]) {
    let mut world = World {
        table: Owners::default().up_to(OWNERS_MAX),
        now: Instant::now(),
        known: BTreeMap::new(),
        running: BTreeMap::new(),
        stateids: Stateids::new((7, IdKey::of(1, 2))),
        closed: Vec::new(),
        answers: 0,
    };
    for step in input.chunks_exact(3).take(STEPS_MAX) {
        world.step(step[0], step[1], step[2]);
        world.check();
    }
}

impl World {
    fn step(&mut self, what: u8, bits: u8, which: u8) {
        let (owner, ahead) = (bits & 7, u32::from(bits >> 3 & 3));
        let last = self.known.get(&owner).and_then(|known| known.last);
        let first = FIRST[usize::from(which % 4)];
        let seqid = last.map_or(first, |(last, _)| last.wrapping_add(ahead).wrapping_sub(1));
        match (what % 8, self.running.get(&owner).copied()) {
            // The requests of an owner come one after the other.
            (0, None) if kind(owner) == OwnerKind::Open => self.open(owner, seqid),
            (0, None) => self.first_lock(owner, seqid),
            (1, None) => self.request(owner, seqid),
            (2 | 3, Some(seqid)) => self.answer(owner, seqid, what >> 3, which),
            (4, Some(_)) if what & 8 != 0 => drop(self.running.remove(&owner)),
            (5, _) => self.now += LEASE / 4 * u32::from(bits % 8),
            (6, _) => self.forget_idle(),
            (7, None) if what & 8 == 0 => {
                self.table.remove(&name(owner));
                self.known.remove(&owner);
            }
            (7, _) if what & 8 != 0 => {
                self.table.remove_all(name(owner).client);
                self.known.retain(|other, _| name(*other).client != name(owner).client);
            }
            _ => {}
        }
    }

    /// An OPEN.
    fn open(&mut self, owner: u8, seqid: u32) {
        let confirmed = self.known.get(&owner).map(|known| known.confirmed);
        let expected = match confirmed {
            Some(true) => self.expected(owner, seqid),
            Some(false) => Ok(Turn::Anew),
            None if self.known.len() == OWNERS_MAX => Err(Status::Resource),
            None => Ok(Turn::Execute),
        };
        assert_eq!(self.table.begin_open(&name(owner), seqid, self.now), expected);
        if confirmed != Some(true) && expected.is_ok() {
            self.enter(owner, false);
        }
        self.begun(owner, seqid, &expected);
    }

    /// The first LOCK of an owner under an open.
    fn first_lock(&mut self, owner: u8, seqid: u32) {
        let holds = self.known.get(&owner).is_some_and(|known| known.holds);
        if !holds {
            self.known.remove(&owner);
        }
        let is_new = !self.known.contains_key(&owner);
        let expected = match self.expected(owner, seqid) {
            _ if is_new && self.known.len() == OWNERS_MAX => Err(Status::Resource),
            _ if is_new => Ok(Turn::Execute),
            // A retry of a first LOCK is one of its open owner.
            Ok(Turn::Execute) => Ok(Turn::Execute),
            _ => Err(Status::BadSeqid),
        };
        let begun = self.table.begin_lock(&name(owner), seqid, self.now, holds);
        assert_eq!(begun, expected.clone().map(drop));
        if is_new && expected.is_ok() {
            self.enter(owner, true);
        }
        self.begun(owner, seqid, &expected);
    }

    /// Any other request.
    fn request(&mut self, owner: u8, seqid: u32) {
        let expected = self.expected(owner, seqid);
        assert_eq!(self.table.begin(&name(owner), seqid, self.now), expected);
        self.begun(owner, seqid, &expected);
    }

    /// How the model treats a request of a known owner.
    fn expected(&self, owner: u8, seqid: u32) -> Result<Turn<u32>, Status> {
        match self.known.get(&owner).map(|known| known.last) {
            Some(None) => Ok(Turn::Execute),
            Some(Some((last, answer))) if last == seqid => Ok(Turn::Replay(answer)),
            Some(Some((last, _))) if last == seqid.wrapping_sub(1) => Ok(Turn::Execute),
            _ => Err(Status::BadSeqid),
        }
    }

    fn enter(&mut self, owner: u8, confirmed: bool) {
        let known = Known { confirmed, last: None, heard: self.now, holds: false, closed: None };
        self.known.insert(owner, known);
    }

    fn begun(&mut self, owner: u8, seqid: u32, turn: &Result<Turn<u32>, Status>) {
        let now = self.now;
        self.know(owner, |known| known.heard = now);
        if matches!(turn, Ok(Turn::Execute | Turn::Anew)) {
            self.running.insert(owner, seqid);
        }
    }

    /// The running request ends. It may have confirmed the owner, closed an open, or taken state.
    fn answer(&mut self, owner: u8, seqid: u32, did: u8, which: u8) {
        let name = name(owner);
        if name.kind == OwnerKind::Open && did & 1 != 0 {
            self.table.confirm(&name);
            self.know(owner, |known| known.confirmed = true);
        }
        if name.kind == OwnerKind::Open && did & 2 != 0 {
            let key = self.closed_open(name.client);
            self.table.closed(&name, key);
            self.know(owner, |known| known.closed = Some(key));
        }
        let at = usize::from(which) % ANSWERS.len();
        self.answers += 1;
        let answer = self.answers;
        self.table.finish(&name, seqid, ANSWERS[at], answer);
        self.running.remove(&owner);
        self.know(owner, |known| {
            known.holds = did & 4 != 0;
            known.last = if at < MOVING { Some((seqid, answer)) } else { known.last };
        });
    }

    fn forget_idle(&mut self) {
        let (known, now) = (&mut self.known, self.now);
        let holds = |name: &OwnerName| known.get(&number(name)).is_some_and(|known| known.holds);
        self.table.forget_idle(now, LEASE, holds);
        known.retain(|_, known| known.holds || now.duration_since(known.heard) <= LEASE);
    }

    fn know(&mut self, owner: u8, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.known.get_mut(&owner) {
            change(known);
        }
    }

    /// The key of an open that has just been closed. No other open has it.
    fn closed_open(&mut self, client: Clientid) -> StateKey {
        let kind = Kind::Delegation {
            lease: LeaseId(self.closed.len() as u64),
            kind: LeaseKind::Read,
            opener: Principal::Machine,
            standing: Standing::Good,
        };
        let file = FileKey { export: ExportId(1), handle: Handle::new(b"f").expect("one byte") };
        let key = self.stateids.insert((client, HolderId(client)), file, kind).expect("it is alone").key;
        self.stateids.remove(key);
        self.closed.push(key);
        key
    }

    fn check(&self) {
        let table = &self.table;
        assert!(table.by_name.len() == self.known.len() && self.known.len() <= OWNERS_MAX);
        assert_eq!(table.has_capacity(), self.known.len() < OWNERS_MAX);
        let mut closers = BTreeMap::new();
        for (owner, known) in &self.known {
            assert_eq!(table.is_confirmed(&name(*owner)), known.confirmed);
            let held = &table.by_name[&name(*owner)];
            assert_eq!((held.last, held.used, held.closed), (known.last, known.heard, known.closed));
            closers.extend(known.closed.map(|key| (key, *owner)));
        }
        assert_eq!(table.closed.len(), closers.len(), "a close of nobody");
        for key in self.closed.iter().rev().take(CLOSED_CHECKED) {
            assert_eq!(table.closer(*key).map(number), closers.get(key).copied());
        }
        for client in [1, 2] {
            assert_eq!(table.any_of(client), self.known.keys().any(|owner| name(*owner).client == client));
        }
    }
}

fn kind(owner: u8) -> OwnerKind {
    if owner & 1 == 0 { OwnerKind::Open } else { OwnerKind::Lock }
}

/// One of two owners of each kind and client. Their names are the same for both kinds and clients.
fn name(owner: u8) -> OwnerName {
    let name = if owner & 4 == 0 { &b"a"[..] } else { b"b" };
    OwnerName {
        client: Clientid::from(owner >> 1 & 1) + 1,
        kind: kind(owner),
        name: Bytes::from_static(name),
    }
}

fn number(name: &OwnerName) -> u8 {
    let (kind, client) = (u8::from(name.kind == OwnerKind::Lock), (name.client - 1) as u8);
    kind | client << 1 | u8::from(name.name[..] == b"b"[..]) << 2
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_request_of_an_owner_is_carried_out_once_and_nothing_is_left_of_the_forgotten() {
        protocol::fuzzing::over_corpus("owners", super::owners);
    }
}
