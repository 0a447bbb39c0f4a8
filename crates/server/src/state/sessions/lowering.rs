//! Asks a client to use fewer slots (RFC 8881, sections 2.10.6.1 and 18.46.3).
//!
//! The reply to SEQUENCE carries a target below the highest slot. When the client uses the slot of that
//! reply again, it has seen the target. If a later request reports that no slot above the target is in use,
//! the server removes those slots and the replies in them. A client that ignores the target keeps its
//! slots.

use protocol::nfs4::SequenceArgs;

use super::slots::Slots;

/// A session with no more slots than this is not asked to give any up.
const SLOTS_ENOUGH: u32 = 8;

/// The request to a client to give up slots.
#[derive(Debug, Default)]
pub(super) struct Lowering {
    /// The highest slot that should stay.
    target: Option<u32>,
    /// The slot whose reply carried the target first.
    told_in: Option<u32>,
    seen: bool,
}

impl Lowering {
    /// Asks for half of the slots, unless there are few or the client was already asked. True if it asks
    /// now.
    pub(super) fn ask(&mut self, slots: u32) -> bool {
        let asks = self.target.is_none() && slots > SLOTS_ENOUGH;
        if asks {
            *self = Lowering { target: Some((slots / 2).max(SLOTS_ENOUGH) - 1), ..Lowering::default() };
        }
        asks
    }

    /// Was the client asked, and has it not given up the slots yet?
    pub(super) fn is_asked(&self) -> bool {
        self.target.is_some()
    }

    /// Processes a new request in a slot. Returns the new number of slots if it is lower from now on.
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
