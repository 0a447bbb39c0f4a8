//! What clients are, hold and are called back about.

use protocol::nfs4::{Stateid, Status};
use vfs::{By, HolderId, Share};
use xdr::Message;

use super::compound::Compound;
use crate::front::Object;

/// All clients with their state.
#[derive(Debug, Default)]
pub(crate) struct State {}

/// On what ground an I/O operation comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ground {
    /// The open, if there is one.
    pub(crate) by: By,
    /// Whose it is.
    pub(crate) holder: Option<HolderId>,
}

/// A slot of a session with a request running.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The most bytes in the reply, its RPC header counted.
    pub(crate) reply_bytes_max: u32,
    /// The most bytes in it if it is to be cached whole (`cachethis`).
    pub(crate) cached_bytes_max: Option<u32>,
}

impl Slot {
    /// The reply is made: its results from the compound's status on.
    pub(crate) fn complete(self, _body: &Message) {}
}

impl State {
    /// How long a client's state outlives its last word, in seconds: `lease_time`.
    pub(crate) fn lease_seconds(&self) -> u32 {
        90
    }

    /// What a state id of READ, WRITE and the like stands for: of this object, and good for `share`.
    pub(crate) fn ground(
        &self,
        _compound: &Compound<'_>,
        _object: &Object,
        _stateid: Stateid,
        _share: Share,
    ) -> Result<Ground, Status> {
        Ok(Ground { by: By::Anonymous, holder: None })
    }
}
