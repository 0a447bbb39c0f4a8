//! The state that an operation names, which must be of the current file.

use protocol::nfs4::{Stateid, Status};

use super::stateids::{FileKey, Held, Kind};
use super::{State, Tables};
use crate::nfs4::compound::{Compound, File};

impl Compound<'_> {
    /// The open that a state id stands for, confirmed or not.
    ///
    /// # Errors
    /// Those of [`super::stateids::Stateids::find`]; `BadStateid` if it is none, or of another file.
    pub(crate) fn open_by(&self, stateid: Stateid) -> Result<Held, Status> {
        self.held_by(stateid, |kind| matches!(kind, Kind::Open { .. }))
    }

    /// The locks of an owner that a state id stands for.
    ///
    /// # Errors
    /// As of [`Compound::open_by`].
    pub(crate) fn lock_by(&self, stateid: Stateid) -> Result<Held, Status> {
        self.held_by(stateid, |kind| matches!(kind, Kind::Lock { .. }))
    }

    fn held_by(&self, stateid: Stateid, is_it: impl Fn(&Kind) -> bool) -> Result<Held, Status> {
        let tables = self.front.state.tables();
        let Tables { stateids, clients, .. } = &*tables;
        let held = stateids.find(stateid, State::asker(self, &tables), |number| clients.lives(number))?;
        let is_of_file = match self.file()? {
            File::Object(export, handle) => held.file == FileKey { export: export.id, handle: *handle },
            File::Pseudo(_) | File::Absent(_) => false,
        };
        if is_of_file && is_it(&held.kind) { Ok(held.clone()) } else { Err(Status::BadStateid) }
    }
}
