//! Grants leases: for GETLEASE, and for requests that are part of other calls.

use protocol::nqnfs::{
    Cachetype, GetleaseArgs, GetleaseOk, LeaseRequest, LeaseResult, Promise, TERM_DEFAULT, TERM_MAX,
};
use std::time::Duration;
use vfs::{Lease, LeaseKind, Status};

use super::Asked;
use super::convert::fattr;
use super::evict::evict;
use crate::shared::Object;
use crate::state::Word;

/// A granted lease whose `modifyrev` is not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    wanted: LeaseRequest,
    cachable: bool,
    duration: u32,
}

impl Grant {
    /// The lease in the form of the reply.
    pub(super) fn at(self, rev: u64) -> LeaseResult {
        let promise = Promise { cachable: self.cachable, duration: self.duration, rev };
        match self.wanted {
            LeaseRequest::None => LeaseResult::None,
            LeaseRequest::Read(_) => LeaseResult::Read(promise),
            LeaseRequest::Write(_) => LeaseResult::Write(promise),
        }
    }
}

/// GETLEASE.
pub(super) async fn getlease(asked: &Asked<'_>, args: GetleaseArgs) -> vfs::Result<GetleaseOk> {
    let object = match args.rw {
        Cachetype::Write => asked.writable(&args.file)?,
        Cachetype::None | Cachetype::Read => asked.object(&args.file)?,
    };
    let wanted = match args.rw {
        Cachetype::None => LeaseRequest::None,
        Cachetype::Read => LeaseRequest::Read(args.duration),
        Cachetype::Write => LeaseRequest::Write(args.duration),
    };
    let grant = grant(asked, &object, wanted).await?;
    let attributes = object.export.fs().getattr(&object.caller, &object.handle).await?;
    let attributes = fattr(asked, &object.export, &attributes).await?;
    let promise = Promise { cachable: grant.cachable, duration: grant.duration, rev: attributes.rev };
    Ok(GetleaseOk { promise, attributes })
}

/// Grants the lease of a call that does not return attributes of its file.
pub(super) async fn granted(
    asked: &Asked<'_>,
    object: &Object,
    wanted: LeaseRequest,
) -> vfs::Result<LeaseResult> {
    if wanted == LeaseRequest::None {
        return Ok(LeaseResult::None);
    }
    let grant = grant(asked, object, wanted).await?;
    let attributes = object.export.fs().getattr(&object.caller, &object.handle).await?;
    Ok(grant.at(asked.front.nqnfs.rev(attributes.change).await?))
}

/// Takes a lease for the client. The caller must fetch the attributes or data of the reply after this, so
/// that the lease covers them.
///
/// # Errors
/// `Delay` if leases of other clients are still valid, if the limit of leases is reached, or if the record
/// cannot be written.
pub(super) async fn grant(asked: &Asked<'_>, object: &Object, wanted: LeaseRequest) -> vfs::Result<Grant> {
    let (kind, duration) = match wanted {
        LeaseRequest::None => return Ok(Grant { wanted, cachable: false, duration: 0 }),
        LeaseRequest::Read(duration) => (LeaseKind::Read, duration),
        LeaseRequest::Write(duration) => (LeaseKind::Write, duration),
    };
    let term = if duration == 0 { TERM_DEFAULT } else { duration.min(TERM_MAX) };
    let refused = Grant { wanted, cachable: false, duration: term };
    // During recovery the state of the previous incarnation is unknown, so no lease is granted.
    if asked.front.nqnfs.recovery.is_on(asked.came) {
        return Ok(refused);
    }
    let Object { export, handle, caller } = object;
    let lease = export.fs().lease(caller, handle, kind, Duration::from_secs(term.into())).await?;
    let Some(lease) = lease.filter(|lease| lease.kind >= kind) else { return Ok(refused) };
    // The client counts from the moment of its request, which was before the call arrived.
    let left = lease.until.map_or(term.into(), |until| until.saturating_duration_since(asked.came).as_secs());
    let kept = keep(asked, object, &lease).await?;
    if !kept || left == 0 {
        return Ok(refused);
    }
    Ok(Grant { wanted, cachable: true, duration: left.min(TERM_MAX.into()) as u32 })
}

/// Enters a lease where recalls find it. False if it has ended already.
async fn keep(asked: &Asked<'_>, object: &Object, lease: &Lease) -> vfs::Result<bool> {
    let (front, export) = (asked.front, object.export.id);
    if let Err(error) = front.nqnfs.record.grant().await {
        tracing::error!(%error, "the record of NQNFS cannot be written: no lease is given out");
        object.export.fs().returned(&object.caller, lease.id).await?;
        return Err(Status::Delay.into());
    }
    // One critical section. If a callback names a lease that neither table has, it is stored for the moment
    // when the lease is entered.
    let mut tables = front.shared.state.tables();
    let now = tokio::time::Instant::now();
    let mut leases = front.nqnfs.leases.lock();
    if !leases.granted(now, export, asked.holder, &object.handle, lease) {
        return Ok(false);
    }
    match tables.early.take(export, lease.id) {
        None => Ok(true),
        Some(Word::Revoked) => {
            leases.revoked(export, lease.id);
            Ok(false)
        }
        Some(Word::Recall(recall)) => {
            if let Some(out) = leases.get(export, lease.id) {
                let front = front.clone();
                tokio::spawn(async move { evict(&front, export, out, recall).await });
            }
            Ok(true)
        }
    }
}
