//! The body of the fuzz target `callbacks`: any sequence of sessions, callbacks of an origin and replies.
//!
//! Each callback is executed once, and a slot executes one at a time. Only a resend gets a kept reply, and
//! the reply is its own. A callback in the name of another session, and one without a valid place in its
//! slot, changes nothing.

use std::collections::BTreeMap;

use xdr::List;

use super::*;

const STEPS_MAX: usize = 1024;
/// The ids that an origin gives to its sessions. It may give one twice.
const IDS: u8 = 3;

/// The last callback of a slot.
#[derive(Clone)]
struct Last {
    sequence: u32,
    digest: u64,
    /// None while the callback is being executed.
    reply: Option<Bytes>,
}

#[derive(Default)]
struct World {
    table: BackSlots,
    /// The id of the session, and how many sessions there have been.
    session: Option<Sessionid>,
    sessions: u64,
    /// The slots of the session that were used.
    last: BTreeMap<u32, Last>,
    /// The callbacks that are being executed, each with the number of its session and its slot.
    running: Vec<(Turn, u64, u32)>,
    replies: u32,
}

/// Three bytes are one step: the operation, its session and slot, and its sequence id.
pub fn callbacks(input: &[u8]) {
    let mut world = World::default();
    for step in input.chunks_exact(3).take(STEPS_MAX) {
        world.step(step[0], step[1], step[2]);
        world.check();
    }
}

impl World {
    fn step(&mut self, what: u8, bits: u8, which: u8) {
        let id = [bits & 3; 16];
        match what % 8 {
            0 if what & 8 != 0 && bits & 3 < IDS => {
                self.table.start(id);
                self.session = Some(id);
                self.sessions += 1;
                self.last.clear();
            }
            1..6 => {
                // Most callbacks come in the session.
                let id = if what & 8 == 0 { self.session.unwrap_or(id) } else { id };
                self.callback(id, bits >> 2, (which, what >> 4));
            }
            6 | 7 if !self.running.is_empty() => self.reply(usize::from(which) % self.running.len()),
            _ => {}
        }
    }

    fn callback(&mut self, id: Sessionid, slot: u8, (which, more): (u8, u8)) {
        let slotid = match slot % 8 {
            slot @ 0..5 => u32::from(slot),
            5 => BACK_SLOTS - 1,
            6 => BACK_SLOTS,
            _ => u32::MAX,
        };
        let last = self.last.get(&slotid).cloned();
        let before = last.as_ref().map_or(0, |last| last.sequence);
        let sequenceid = before.wrapping_add(u32::from(which % 4)).wrapping_sub(1);
        let highest_slotid = [0, slotid, BACK_SLOTS - 1, BACK_SLOTS][usize::from(more & 3)];
        let referring_call_lists = List::default();
        let args = CbSequenceArgs {
            sessionid: id,
            sequenceid,
            slotid,
            highest_slotid,
            cachethis: true,
            referring_call_lists,
        };
        let digest = u64::from(which >> 2 & 1);
        let is_new = sequenceid == before.wrapping_add(1);
        let is_last = last.is_some() && sequenceid == before;
        let expected = match &last {
            _ if self.session != Some(id) => Err(Status::BadSession),
            _ if highest_slotid >= BACK_SLOTS => Err(Status::BadHighSlot),
            _ if slotid >= BACK_SLOTS => Err(Status::BadSlot),
            Some(Last { reply: None, .. }) if is_new || is_last => Err(Status::Delay),
            _ if is_new => Ok(None),
            Some(last) if is_last && last.digest != digest => Err(Status::SeqFalseRetry),
            Some(last) if is_last => Ok(last.reply.clone()),
            _ => Err(Status::SeqMisordered),
        };
        let unchanged = format!("{:?}", self.table);
        match self.table.begin(&args, digest) {
            Begun::New(turn) => {
                assert_eq!(expected, Ok(None), "carried out twice, or at the wrong place");
                self.last.insert(slotid, Last { sequence: sequenceid, digest, reply: None });
                self.running.push((turn, self.sessions, slotid));
                return;
            }
            Begun::Again(reply) => assert_eq!(expected, Ok(Some(reply)), "the reply to another callback"),
            Begun::Refused(status) => assert_eq!(expected, Err(status)),
        }
        assert_eq!(format!("{:?}", self.table), unchanged);
    }

    /// A callback has been executed. Its session may have ended.
    fn reply(&mut self, at: usize) {
        let (turn, session, slot) = self.running.remove(at);
        self.replies += 1;
        let reply = Bytes::from(self.replies.to_be_bytes().to_vec());
        self.table.end(turn, reply.clone());
        if session == self.sessions
            && let Some(last) = self.last.get_mut(&slot)
        {
            last.reply = Some(reply);
        }
    }

    fn check(&self) {
        let running = |slot: u32| {
            self.running.iter().filter(|(_, session, of)| (*session, *of) == (self.sessions, slot)).count()
        };
        for (number, slot) in self.table.slots.iter().enumerate() {
            let number = number as u32;
            match (&slot.reply, self.last.get(&number)) {
                (Reply::None, None) => assert_eq!(slot.sequence, 0),
                (Reply::Coming, Some(last)) => {
                    assert!(last.reply.is_none() && last.sequence == slot.sequence && running(number) == 1);
                }
                (Reply::Given(reply), Some(last)) => {
                    assert!(last.reply.as_ref() == Some(reply) && last.sequence == slot.sequence);
                    assert_eq!(running(number), 0);
                }
                (reply, _) => unreachable!("slot {number} has {reply:?}"),
            }
        }
        let slots = if self.session.is_some() { BACK_SLOTS as usize } else { 0 };
        assert_eq!(self.table.slots.len(), slots);
        assert!((0..IDS).all(|id| self.table.is(&[id; 16]) == (self.session == Some([id; 16]))));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_callback_is_carried_out_once_in_its_session_and_gets_its_own_reply() {
        protocol::fuzzing::over_corpus("callbacks", super::callbacks);
    }
}
