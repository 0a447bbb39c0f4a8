//! The body of the fuzz target `sessions`: any sequence of CREATE_SESSION, DESTROY_SESSION, requests in
//! slots, and replies.
//!
//! Each request is executed once, and a retry gets the reply to its own request. The kept replies stay
//! within the budget. A session that is refused or destroyed leaves nothing behind.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::*;

/// Fewer than are asked for.
const SESSIONS_MAX: usize = 4;
/// Enough for a few slots, so that the table asks clients to give some up.
const CACHED_BYTES: usize = 8 << 10;
const STEPS_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq)]
struct Wire;

impl Bond for Wire {
    fn is_closed(&self) -> bool {
        false
    }
}

/// The last request of a slot.
struct Last {
    sequence: u32,
    digest: u64,
    outcome: Outcome,
}

#[derive(Clone, PartialEq)]
enum Outcome {
    Running,
    NotKept,
    Kept(Bytes),
}

#[derive(Default)]
struct World {
    /// The sessions, each with its client and the last request of every slot that was used.
    sessions: Vec<(Sessionid, Clientid, BTreeMap<u32, Last>)>,
    replies: u32,
}

/// Three bytes are one step: the operation, its slot and variant, and its session.
pub fn sessions(input: &[u8]) {
    let mut table = Sessions::new(IdKey::of(1, 2)).up_to(SESSIONS_MAX, CACHED_BYTES);
    let mut world = World::default();
    for step in input.chunks_exact(3).take(STEPS_MAX) {
        world.step(&mut table, step[0], step[1], step[2]);
        world.check(&table);
    }
}

impl World {
    fn step(&mut self, table: &mut Sessions<Wire>, what: u8, bits: u8, which: u8) {
        let at = usize::from(which) % self.sessions.len().max(1);
        match what % 8 {
            0 | 1 => {
                let maker = Maker::of(0, 1);
                let asked = ChannelAttrs {
                    maxrequestsize: 1000,
                    maxresponsesize_cached: 1 << (bits >> 4),
                    maxoperations: 8,
                    maxrequests: u32::from(bits & 15) * 4 + 1,
                    ..ChannelAttrs::default()
                };
                let granted = table.granted(asked, &maker);
                assert!(granted.maxrequests >= 1 && granted.maxrequests <= asked.maxrequests);
                let callbacks = CallbackTerms { program: 9, credential: rpc::Credential::None, minor: 1 };
                let client = Clientid::from(which % 4);
                let made = table.create(client, (granted, asked), callbacks, maker, Some((Wire, false)));
                match made {
                    Ok(id) => self.sessions.push((id, client, BTreeMap::new())),
                    Err(status) => assert!(status == Status::Delay && self.sessions.len() == SESSIONS_MAX),
                }
            }
            2 if !self.sessions.is_empty() => {
                let (id, client, _) = self.sessions.remove(at);
                assert_eq!(table.destroy(id), Ok(client));
                assert_eq!(table.destroy(id), Err(Status::BadSession));
            }
            3 if what & 8 != 0 => {
                let client = Clientid::from(which % 4);
                table.destroy_all(client);
                self.sessions.retain(|(_, of, _)| *of != client);
            }
            4..6 => self.request(table, at, (bits & 31, bits >> 5), what >> 4),
            6 | 7 => self.reply(table, at, u32::from(bits & 31), what & 8 == 0),
            _ => {}
        }
    }

    fn request(&mut self, table: &mut Sessions<Wire>, at: usize, (slot, ahead): (u8, u8), bits: u8) {
        let Some((sessionid, client, used)) = self.sessions.get_mut(at) else { return };
        let slotid = u32::from(slot);
        let last = used.get(&slotid);
        let sequenceid =
            last.map_or(0, |last| last.sequence).wrapping_add(u32::from(ahead % 4)).wrapping_sub(1);
        let (digest, highest_slotid) = (u64::from(bits & 1), u32::from(bits >> 1) * 4);
        let sequence =
            SequenceArgs { sessionid: *sessionid, sequenceid, slotid, highest_slotid, cachethis: true };
        let arriving = Arriving { sequence, digest: Digest(digest), bytes: 100, operations: 2 };
        match table.begin(&arriving, &Wire) {
            Ok(Begun::Execute { client: of, fore, .. }) => {
                assert_eq!(of, *client);
                assert!(last.is_none_or(|last| last.outcome != Outcome::Running), "two at once in one slot");
                assert_eq!(sequenceid, last.map_or(1, |last| last.sequence.wrapping_add(1)));
                used.retain(|slot, last| {
                    let stays = *slot < fore.maxrequests;
                    assert!(stays || last.outcome != Outcome::Running, "a slot is taken away from a request");
                    stays
                });
                if slotid < fore.maxrequests {
                    used.insert(slotid, Last { sequence: sequenceid, digest, outcome: Outcome::Running });
                }
            }
            Ok(Begun::Replay(reply)) => {
                let last = last.filter(|last| (last.sequence, last.digest) == (sequenceid, digest));
                let kept = last.is_some_and(|last| last.outcome == Outcome::Kept(reply.first));
                assert!(kept, "the reply to another request");
            }
            Err(Status::Delay) => assert!(last.is_some_and(|last| last.outcome == Outcome::Running)),
            Err(Status::SeqFalseRetry) => assert!(last.is_some_and(|last| last.digest != digest)),
            Err(Status::RetryUncachedRep) => {
                assert!(last.is_some_and(|last| last.outcome == Outcome::NotKept));
            }
            Err(Status::BadSlot) => assert!(last.is_none()),
            Err(status) => assert_eq!(status, Status::SeqMisordered),
        }
    }

    fn reply(&mut self, table: &mut Sessions<Wire>, at: usize, slot: u32, kept: bool) {
        let Some((id, _, used)) = self.sessions.get_mut(at) else { return };
        let Some(last) = used.get_mut(&slot).filter(|last| last.outcome == Outcome::Running) else { return };
        self.replies += 1;
        let reply = kept.then(|| Bytes::from(self.replies.to_be_bytes().to_vec()));
        last.outcome = reply.clone().map_or(Outcome::NotKept, Outcome::Kept);
        table.complete(*id, slot, reply.map(|first| Message { first, more: Vec::new() }));
    }

    fn check(&self, table: &Sessions<Wire>) {
        assert!(table.ids.len() == self.sessions.len() && self.sessions.len() <= SESSIONS_MAX);
        assert!(table.clients.values().all(|ids| !ids.is_empty()), "a client without sessions");
        for client in 0..4 {
            let of = |(id, of, _): &(Sessionid, Clientid, _)| (*of == client).then_some(*id);
            let expected: Vec<Sessionid> = self.sessions.iter().rev().filter_map(of).collect();
            assert_eq!(table.of(client).map(|(id, _)| id).collect::<Vec<_>>(), expected);
        }
        let total: usize = table.ids.values().map(|session| promised(&session.fore)).sum();
        assert_eq!(table.promises.total(), total);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_request_is_carried_out_once_and_nothing_is_left_of_what_has_ended() {
        protocol::fuzzing::over_corpus("sessions", super::sessions);
    }
}
