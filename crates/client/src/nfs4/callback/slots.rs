//! The slot table of the backchannel, without I/O: which callback is new, which comes again and is answered as before,
//! and which is out of order (RFC 8881, section 2.10.6).

use bytes::Bytes;
use protocol::nfs4::callback::CbSequenceArgs;
use protocol::nfs4::{Sessionid, Status};

use crate::nfs4::establish::BACK_SLOTS;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct BackSlots {
    session: Option<Sessionid>,
    slots: Vec<BackSlot>,
}

#[derive(Clone, Debug, Default)]
struct BackSlot {
    sequence: u32,
    reply: Reply,
}

#[derive(Clone, Debug, Default)]
enum Reply {
    /// Nothing has come yet.
    #[default]
    None,
    /// It is being answered.
    Coming,
    /// It was answered so.
    Given(Bytes),
}

/// What a CB_SEQUENCE is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// New: carry it out, and keep the reply.
    New,
    /// Answered before.
    Again(Bytes),
    /// No good.
    Refused(Status),
}

impl BackSlots {
    /// Another session: nothing has come yet.
    pub(crate) fn start(&mut self, session: Sessionid) {
        self.session = Some(session);
        self.slots = vec![BackSlot::default(); BACK_SLOTS as usize];
    }

    /// Is this the session?
    pub(crate) fn is(&self, session: &Sessionid) -> bool {
        self.session.as_ref() == Some(session)
    }

    pub(crate) fn begin(&mut self, args: &CbSequenceArgs) -> Begun {
        if !self.is(&args.sessionid) {
            return Begun::Refused(Status::BadSession);
        }
        if args.highest_slotid >= BACK_SLOTS {
            return Begun::Refused(Status::BadHighSlot);
        }
        let Some(slot) = self.slots.get_mut(args.slotid as usize) else {
            return Begun::Refused(Status::BadSlot);
        };
        if args.sequenceid == slot.sequence.wrapping_add(1) {
            slot.sequence = args.sequenceid;
            slot.reply = Reply::Coming;
            return Begun::New;
        }
        match &slot.reply {
            Reply::Given(reply) if args.sequenceid == slot.sequence => Begun::Again(reply.clone()),
            Reply::Coming if args.sequenceid == slot.sequence => Begun::Refused(Status::Delay),
            _ => Begun::Refused(Status::SeqMisordered),
        }
    }

    /// A new one was answered.
    pub(crate) fn end(&mut self, args: &CbSequenceArgs, reply: Bytes) {
        if !self.is(&args.sessionid) {
            return;
        }
        if let Some(slot) = self.slots.get_mut(args.slotid as usize)
            && slot.sequence == args.sequenceid
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

    #[test]
    fn what_comes_again_is_answered_as_before() {
        let mut slots = BackSlots::default();
        assert_eq!(slots.begin(&args(0, 1)), Begun::Refused(Status::BadSession));
        slots.start([7; 16]);
        assert_eq!(slots.begin(&args(0, 1)), Begun::New);
        assert_eq!(slots.begin(&args(0, 1)), Begun::Refused(Status::Delay));
        slots.end(&args(0, 1), Bytes::from_static(b"reply"));
        assert_eq!(slots.begin(&args(0, 1)), Begun::Again(Bytes::from_static(b"reply")));
        assert_eq!(slots.begin(&args(0, 3)), Begun::Refused(Status::SeqMisordered));
        assert_eq!(slots.begin(&args(1, 0)), Begun::Refused(Status::SeqMisordered));
        assert_eq!(slots.begin(&args(BACK_SLOTS, 1)), Begun::Refused(Status::BadHighSlot));
        slots.start([8; 16]);
        assert_eq!(slots.begin(&args(0, 2)), Begun::Refused(Status::BadSession));
    }

    proptest! {
        /// However a server numbers its callbacks, each pair of slot and sequence id is carried out at most once.
        #[test]
        fn nothing_is_carried_out_twice(calls in proptest::collection::vec((0u32..4, 0u32..6, any::<bool>()), 0..100)) {
            let mut slots = BackSlots::default();
            slots.start([7; 16]);
            let mut done = std::collections::BTreeSet::new();
            for (slot, sequence, answer) in calls {
                let args = args(slot, sequence);
                match slots.begin(&args) {
                    Begun::New => {
                        prop_assert!(done.insert((slot, sequence)));
                        if answer {
                            slots.end(&args, Bytes::from(vec![slot as u8, sequence as u8]));
                        }
                    }
                    Begun::Again(reply) => prop_assert_eq!(&reply[..], &[slot as u8, sequence as u8][..]),
                    Begun::Refused(_) => {}
                }
            }
        }
    }
}
