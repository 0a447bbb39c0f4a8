//! The basis of READ, WRITE and similar operations: the state that allows them.

use protocol::nfs4::{Stateid, Status};
use vfs::{HolderId, LeaseKind, Principal, Share, StateidBasis};

use super::compound::Compound;
use crate::shared::Object;
use crate::state::stateids::{FileKey, HeldState, Kind, Stateids};

/// The basis of an I/O operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoBasis {
    /// The open, if there is one.
    pub(crate) by: StateidBasis,
    /// The holder of the state.
    pub(crate) holder: Option<HolderId>,
    /// The caller is not the user that opened the file. Such a caller may have the state id without having
    /// the rights, so the rights must be checked.
    pub(crate) is_stranger: bool,
}

impl Compound<'_> {
    /// Resolves the state id of READ, WRITE and similar operations. The state must be of this object and
    /// allow `share`. In minor version 0 this renews the lease of the state's client.
    ///
    /// # Errors
    /// `BadStateid`, `OldStateid`, `StaleStateid`, `Expired`, `DelegRevoked`; `OpenMode`; `Grace` without a
    /// state.
    pub(super) fn resolve_basis(
        &self,
        object: &Object,
        stateid: Stateid,
        share: Share,
    ) -> Result<IoBasis, Status> {
        let mut tables = self.shared.state.tables();
        if stateid == Stateid::ANONYMOUS || stateid == Stateid::BYPASS {
            // State that another client may reclaim could deny the operation. A READ that bypasses locks
            // bypasses this too.
            let bypasses = stateid == Stateid::BYPASS && share == Share::READ;
            if tables.grace.is_on() && !bypasses {
                return Err(Status::Grace);
            }
            return Ok(IoBasis { by: StateidBasis::Anonymous, holder: self.holder(), is_stranger: false });
        }
        let held = self.state(&tables, stateid)?;
        if held.file() != (FileKey { export: object.export.id, handle: object.handle }) {
            return Err(Status::BadStateid);
        }
        let (by, opener) = by(&tables.stateids, held, share)?;
        let is_stranger = *opener != object.caller.principal;
        let io_basis = IoBasis { by, holder: Some(held.holder), is_stranger };
        if self.minor == 0 {
            let client = held.client;
            tables.clients.renew(client, tokio::time::Instant::now());
        }
        Ok(io_basis)
    }
}

/// The stateid basis, and the user that was found to have the rights.
fn by<'s>(
    stateids: &'s Stateids,
    held: &'s HeldState,
    share: Share,
) -> Result<(StateidBasis, &'s Principal), Status> {
    match &held.kind {
        Kind::Open { confirmed: false, .. } => Err(Status::BadStateid),
        Kind::Open { open, access, opener, .. } if access.contains(share) => {
            Ok((StateidBasis::Open(*open), opener))
        }
        // Clients that write parts of pages read the rest (RFC 8881, section 18.22.4). Such a READ goes
        // without the open and is subject to the usual checks.
        Kind::Open { opener, .. } if share == Share::READ => Ok((StateidBasis::Anonymous, opener)),
        Kind::Lock { by: open, .. } => by(stateids, stateids.get(*open).ok_or(Status::BadStateid)?, share),
        Kind::Delegation { kind, opener, .. } if *kind == LeaseKind::Write || share == Share::READ => {
            Ok((StateidBasis::Anonymous, opener))
        }
        Kind::Open { .. } | Kind::Delegation { .. } => Err(Status::OpenMode),
    }
}
