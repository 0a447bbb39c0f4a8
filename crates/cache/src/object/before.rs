//! The state of an object before a call: it decides what the reply may still change.

use super::ObjectState;

/// The state of an object before a call was sent.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub epoch: u64,
    pub names_generation: u64,
    pub rights_generation: u64,
}

impl Before {
    /// The present state.
    pub fn of(state: &ObjectState) -> Before {
        let (names_generation, rights_generation) = (state.names.generation, state.rights.generation());
        Before { epoch: state.epoch(), names_generation, rights_generation }
    }
}
