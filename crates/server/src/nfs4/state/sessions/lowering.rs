//! Asking a client to do with fewer slots (RFC 8881, sections 2.10.6.1 and 18.46.3).
//!
//! The reply to SEQUENCE carries a target below the highest slot there is. The client has seen it when it uses the slot of
//! that reply again. From then on a request that says that no slot above the target is in use lets us take those away, with
//! the replies in them. A client that does not care keeps what it has.

use protocol::nfs4::SequenceArgs;

use super::slots::Slots;

/// A session of no more slots is not asked for any.
const SLOTS_ENOUGH: u32 = 8;

/// What a client was asked for.
#[derive(Debug, Default)]
pub(super) struct Lowering {
    /// The highest slot that is to stay.
    target: Option<u32>,
    /// The slot whose reply told it first.
    told_in: Option<u32>,
    seen: bool,
}

impl Lowering {
    /// Ask for half of the slots, unless they are few or the client has been asked.
    pub(super) fn ask(&mut self, slots: u32) -> bool {
        let asks = self.target.is_none() && slots > SLOTS_ENOUGH;
        if asks {
            *self = Lowering { target: Some((slots / 2).max(SLOTS_ENOUGH) - 1), ..Lowering::default() };
        }
        asks
    }

    /// The client was asked, and has more slots still.
    pub(super) fn is_asked(&self) -> bool {
        self.target.is_some()
    }

    /// A new request has come in a slot: how many slots there are from now on, if there are fewer.
    pub(super) fn arrives(&mut self, sequence: &SequenceArgs, slots: &mut Slots) -> Option<u32> {
        let target = self.target?;
        match self.told_in {
            None => self.told_in = Some(sequence.slotid),
            Some(slot) => self.seen |= slot == sequence.slotid,
        }
        let lowered = self.seen && sequence.highest_slotid <= target && slots.truncate(target + 1);
        lowered.then(|| {
            *self = Lowering::default();
            target + 1
        })
    }

    /// `sr_target_highest_slotid` of a session whose highest slot is this one.
    pub(super) fn target(&self, highest: u32) -> u32 {
        self.target.map_or(highest, |target| target.min(highest))
    }
}
