//! On what ground READ, WRITE and the like come.

use protocol::nfs4::{Stateid, Status};
use vfs::{HolderId, LeaseKind, Principal, Share, StateidBasis};

use super::State;
use super::stateids::{FileKey, HeldState, Kind, Stateids};
use crate::front::Object;
use crate::nfs4::compound::Compound;

/// On what ground an I/O operation comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IoBasis {
    /// The open, if there is one.
    pub(crate) by: StateidBasis,
    /// Whose it is.
    pub(crate) holder: Option<HolderId>,
    /// The caller is not who opened the file: it may have the state id without having the rights.
    pub(crate) is_stranger: bool,
}

impl State {
    /// What a state id of READ, WRITE and the like stands for: of this object, and good for `share`. It renews the
    /// lease of whoever has it.
    ///
    /// # Errors
    /// `BadStateid`, `OldStateid`, `StaleStateid`, `Expired`, `DelegRevoked`; `OpenMode`; `Grace` without a state.
    pub(crate) fn io_basis(
        &self,
        compound: &Compound<'_>,
        object: &Object,
        stateid: Stateid,
        share: Share,
    ) -> Result<IoBasis, Status> {
        let mut tables = self.tables();
        if stateid == Stateid::ANONYMOUS || stateid == Stateid::BYPASS {
            // What others may reclaim could deny it. Who reads past locks reads past this too.
            let bypasses = stateid == Stateid::BYPASS && share == Share::READ;
            if tables.grace.is_on() && !bypasses {
                return Err(Status::Grace);
            }
            return Ok(IoBasis {
                by: StateidBasis::Anonymous,
                holder: compound.holder(),
                is_stranger: false,
            });
        }
        let held = compound.state(&tables, stateid)?;
        if held.file != (FileKey { export: object.export.id, handle: object.handle }) {
            return Err(Status::BadStateid);
        }
        let (by, opener) = by(&tables.stateids, held, share)?;
        let is_stranger = *opener != object.caller.principal;
        let io_basis = IoBasis { by, holder: Some(held.holder), is_stranger };
        if compound.minor == 0 {
            let client = held.client;
            tables.clients.renew(client, tokio::time::Instant::now());
        }
        Ok(io_basis)
    }
}

/// By what it is done, and who was found to have the rights.
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
        // Clients that write parts of pages read the rest (RFC 8881, section 18.22.4): if they may, without that open.
        Kind::Open { opener, .. } if share == Share::READ => Ok((StateidBasis::Anonymous, opener)),
        Kind::Lock { by: open, .. } => by(stateids, stateids.get(*open).ok_or(Status::BadStateid)?, share),
        Kind::Delegation { kind, opener, .. } if *kind == LeaseKind::Write || share == Share::READ => {
            Ok((StateidBasis::Anonymous, opener))
        }
        Kind::Open { .. } | Kind::Delegation { .. } => Err(Status::OpenMode),
    }
}
