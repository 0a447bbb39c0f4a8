//! The slot table of the backchannel, without I/O (RFC 8881, section 2.10.6). It decides which callback is
//! new, which is a resend that gets the kept reply, and which is out of order.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

use bytes::Bytes;
use protocol::nfs4::callback::CbSequenceArgs;
use protocol::nfs4::{Sessionid, Status};

use crate::nfs4::establish::BACK_SLOTS;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct BackSlots {
    session: Option<Sessionid>,
    /// Number of sessions so far: an origin may reuse the id of a session.
    sessions: u64,
    slots: Vec<BackSlot>,
}

#[derive(Clone, Debug, Default)]
struct BackSlot {
    sequence: u32,
    /// Digest of the operations that came with the sequence id.
    digest: u64,
    reply: Reply,
}

/// A callback that is being executed in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    sessions: u64,
    slot: u32,
}

#[derive(Clone, Debug, Default)]
enum Reply {
    /// No callback has come yet.
    #[default]
    None,
    /// The callback is being answered.
    Coming,
    /// The callback got this answer.
    Given(Bytes),
}

/// How to treat a CB_SEQUENCE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// New: execute it, and keep the reply.
    New(Turn),
    /// A resend: send this reply.
    Again(Bytes),
    /// Refuse it with this status.
    Refused(Status),
}

impl BackSlots {
    /// Starts another session, whose slots are unused.
    pub(crate) fn start(&mut self, session: Sessionid) {
        self.session = Some(session);
        self.sessions += 1;
        self.slots = vec![BackSlot::default(); BACK_SLOTS as usize];
    }

    /// Is this the session?
    pub(crate) fn is(&self, session: &Sessionid) -> bool {
        self.session.as_ref() == Some(session)
    }

    /// Classifies a callback. `digest` covers everything after CB_SEQUENCE.
    pub(crate) fn begin(&mut self, args: &CbSequenceArgs, digest: u64) -> Begun {
        if !self.is(&args.sessionid) {
            return Begun::Refused(Status::BadSession);
        }
        if args.highest_slotid >= BACK_SLOTS {
            return Begun::Refused(Status::BadHighSlot);
        }
        let Some(slot) = self.slots.get_mut(args.slotid as usize) else {
            return Begun::Refused(Status::BadSlot);
        };
        let next = args.sequenceid == slot.sequence.wrapping_add(1);
        let again = args.sequenceid == slot.sequence;
        match &slot.reply {
            // Run one callback per slot at a time, even if the origin has given up the one before.
            Reply::Coming if next || again => Begun::Refused(Status::Delay),
            _ if next => {
                *slot = BackSlot { sequence: args.sequenceid, digest, reply: Reply::Coming };
                Begun::New(Turn { sessions: self.sessions, slot: args.slotid })
            }
            Reply::Given(_) if again && slot.digest != digest => Begun::Refused(Status::SeqFalseRetry),
            Reply::Given(reply) if again => Begun::Again(reply.clone()),
            _ => Begun::Refused(Status::SeqMisordered),
        }
    }

    /// Stores the reply to a new callback.
    pub(crate) fn end(&mut self, turn: Turn, reply: Bytes) {
        if let Some(slot) = self.slots.get_mut(turn.slot as usize)
            && turn.sessions == self.sessions
        {
            slot.reply = Reply::Given(reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn args(slotid: u32, sequenceid: u32) -> CbSequenceArgs {
        CbSequenceArgs {
            sessionid: [7; 16],
            sequenceid,
            slotid,
            highest_slotid: slotid,
            cachethis: true,
            referring_call_lists: xdr::List::default(),
        }
    }

    fn new(begun: &Begun) -> Turn {
        match begun {
            Begun::New(turn) => *turn,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_comes_again_is_answered_as_before() {
        let mut slots = BackSlots::default();
        assert_eq!(slots.begin(&args(0, 1), 5), Begun::Refused(Status::BadSession));
        slots.start([7; 16]);
        let turn = new(&slots.begin(&args(0, 1), 5));
        assert_eq!(slots.begin(&args(0, 1), 5), Begun::Refused(Status::Delay));
        assert_eq!(slots.begin(&args(0, 2), 5), Begun::Refused(Status::Delay), "the first is not done");
        slots.end(turn, Bytes::from_static(b"reply"));
        assert_eq!(slots.begin(&args(0, 1), 5), Begun::Again(Bytes::from_static(b"reply")));
        assert_eq!(slots.begin(&args(0, 1), 6), Begun::Refused(Status::SeqFalseRetry));
        assert_eq!(slots.begin(&args(0, 3), 5), Begun::Refused(Status::SeqMisordered));
        assert_eq!(slots.begin(&args(1, 0), 5), Begun::Refused(Status::SeqMisordered));
        assert_eq!(slots.begin(&args(BACK_SLOTS, 1), 5), Begun::Refused(Status::BadHighSlot));
        slots.start([8; 16]);
        assert_eq!(slots.begin(&args(0, 2), 5), Begun::Refused(Status::BadSession));
    }

    #[test]
    fn an_answer_of_an_earlier_session_of_the_same_id_is_not_kept() {
        let mut slots = BackSlots::default();
        slots.start([7; 16]);
        let old = new(&slots.begin(&args(0, 1), 5));
        slots.start([7; 16]);
        let now = new(&slots.begin(&args(0, 1), 6));
        slots.end(old, Bytes::from_static(b"old"));
        assert_eq!(slots.begin(&args(0, 1), 6), Begun::Refused(Status::Delay));
        slots.end(now, Bytes::from_static(b"now"));
        assert_eq!(slots.begin(&args(0, 1), 6), Begun::Again(Bytes::from_static(b"now")));
    }

    proptest! {
        /// However a server numbers its callbacks, each pair of slot and sequence id is executed at most
        /// once. A slot runs one callback at a time. Only a resend gets an earlier answer.
        #[test]
        fn nothing_is_carried_out_twice(
            calls in proptest::collection::vec((0u32..4, 0u32..6, 0u64..2, any::<bool>()), 0..100),
        ) {
            let mut slots = BackSlots::default();
            slots.start([7; 16]);
            let mut done = std::collections::BTreeMap::new();
            let mut running = std::collections::BTreeMap::new();
            for (slot, sequence, digest, answer) in calls {
                match slots.begin(&args(slot, sequence), digest) {
                    Begun::New(turn) => {
                        prop_assert!(done.insert((slot, sequence), digest).is_none());
                        prop_assert!(running.insert(slot, (turn, sequence)).is_none());
                    }
                    Begun::Again(reply) => {
                        prop_assert_eq!(&reply[..], &[slot as u8, sequence as u8][..]);
                        prop_assert_eq!(done.get(&(slot, sequence)), Some(&digest));
                    }
                    Begun::Refused(_) => {}
                }
                if answer && let Some((turn, sequence)) = running.remove(&slot) {
                    slots.end(turn, Bytes::from(vec![slot as u8, sequence as u8]));
                }
            }
        }
    }
}
