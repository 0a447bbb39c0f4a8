//! Resolves the client or state that an operation names. The peer must be allowed to name it.

use protocol::nfs4::{Clientid, Stateid, Status};

use super::compound::{Compound, File};
use crate::state::Tables;
use crate::state::clients::{Client, Generation};
use crate::state::stateids::{FileKey, HeldState, Kind, Requester};

impl Compound<'_> {
    /// The client that asks about a state id.
    pub(crate) fn requester(&self, tables: &Tables) -> Requester {
        let client =
            if self.minor == 0 { None } else { tables.client_of(self.holder()).map(|client| client.id) };
        Requester { minor: self.minor, client }
    }

    /// The client of minor version 0 with this id, if the peer may name it.
    ///
    /// # Errors
    /// Those of [`crate::state::clients::Clients::of_minor0`].
    pub(crate) fn minor0_client<'t>(&self, tables: &'t Tables, id: Clientid) -> Result<&'t Client, Status> {
        let client = tables.clients.of_minor0(id)?;
        if self.may_name(client) { Ok(client) } else { Err(Status::StaleClientid) }
    }

    /// The state that a state id names, revoked or not, if the peer may name it.
    ///
    /// # Errors
    /// Those of [`crate::state::stateids::Stateids::find_any`].
    pub(crate) fn any_state<'t>(
        &self,
        tables: &'t Tables,
        stateid: Stateid,
    ) -> Result<&'t HeldState, Status> {
        let lives = |number| tables.clients.lives(number);
        let held = tables.stateids.find_any(stateid, self.requester(tables), lives)?;
        self.is_ours(tables, held.client).map(|()| held)
    }

    /// As [`Compound::any_state`], but not revoked.
    ///
    /// # Errors
    /// Those of [`crate::state::stateids::Stateids::find`].
    pub(crate) fn state<'t>(&self, tables: &'t Tables, stateid: Stateid) -> Result<&'t HeldState, Status> {
        let lives = |number| tables.clients.lives(number);
        let held = tables.stateids.find(stateid, self.requester(tables), lives)?;
        self.is_ours(tables, held.client).map(|()| held)
    }

    /// May the peer name state of this client? With sessions, the requester is the client that SEQUENCE
    /// identified, and the lookup has compared it already.
    ///
    /// # Errors
    /// `BadStateid`.
    pub(super) fn is_ours(&self, tables: &Tables, client: Clientid) -> Result<(), Status> {
        if self.minor > 0 {
            return Ok(());
        }
        let client = tables.clients.confirmed(client).ok_or(Status::BadStateid)?;
        if self.may_name(client) { Ok(()) } else { Err(Status::BadStateid) }
    }

    /// In minor version 0: does the peer reach the client? For the holder noted on the connection, this was
    /// checked when it was noted.
    fn may_name(&self, client: &Client) -> bool {
        client.name.generation == Generation::Minor0
            && (self.holder() == Some(client.holder) || client.maker.is_reached_by(&self.maker()))
    }

    /// The open that a state id names, confirmed or not.
    ///
    /// # Errors
    /// Those of [`crate::state::stateids::Stateids::find`]; `BadStateid` if the state is no open, or of
    /// another file.
    pub(crate) fn open_by(&self, stateid: Stateid) -> Result<HeldState, Status> {
        self.held_by(stateid, |kind| matches!(kind, Kind::Open { .. }))
    }

    /// The locks of an owner that a state id names.
    ///
    /// # Errors
    /// As of [`Compound::open_by`].
    pub(crate) fn lock_by(&self, stateid: Stateid) -> Result<HeldState, Status> {
        self.held_by(stateid, |kind| matches!(kind, Kind::Lock { .. }))
    }

    /// May an ACCESS count as an open of the current file? A client that has the file open may share that
    /// OPEN among its programs, as Leasehold does. It then asks with ACCESS whether a further open is
    /// allowed. An answer from attribute timeouts would break close-to-open. A GETATTR alone is a `stat`.
    pub(crate) fn may_stand_for_open(&self) -> bool {
        let (Some(holder), Ok(File::Object(export, handle))) = (self.holder(), self.file()) else {
            return false;
        };
        let is_open = |held: &HeldState| held.holder == holder && matches!(held.kind, Kind::Open { .. });
        let file = FileKey { export: export.id, handle: *handle };
        self.shared.state.tables().stateids.of_file(&file).any(is_open)
    }

    fn held_by(&self, stateid: Stateid, is_it: impl Fn(&Kind) -> bool) -> Result<HeldState, Status> {
        let tables = self.shared.state.tables();
        let held = self.state(&tables, stateid)?;
        let is_of_file = match self.file()? {
            File::Object(export, handle) => held.file() == FileKey { export: export.id, handle: *handle },
            File::Pseudo(_) | File::Absent(_) => false,
        };
        if is_of_file && is_it(&held.kind) { Ok(held.clone()) } else { Err(Status::BadStateid) }
    }
}
