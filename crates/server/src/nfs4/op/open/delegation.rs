//! Delegations that OPEN requests and grants (RFC 8881, sections 10.4 and 18.16.3; RFC 7530, section 10.4).

use protocol::nfs4::{
    Ace, NfsSpaceLimit, OPEN4_SHARE_ACCESS_WANT_ANY_DELEG, OPEN4_SHARE_ACCESS_WANT_CANCEL,
    OPEN4_SHARE_ACCESS_WANT_DELEG_MASK, OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
    OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE, OPEN4_SHARE_ACCESS_WANT_READ_DELEG,
    OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, OpenArgs, OpenClaim, OpenDelegation, OpenDelegationType,
    OpenNoneDelegation, OpenReadDelegation, OpenWriteDelegation, Stateid,
};
use vfs::{LeaseKind, Want};

use crate::nfs4::compound::Compound;
use crate::state::owners::OwnerName;

/// A delegation that was granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) stateid: Stateid,
    pub(super) kind: LeaseKind,
    /// The file size up to which space is reserved: see [`vfs::Lease::space_limit`].
    pub(super) space_limit: u64,
    /// It was recalled already.
    pub(super) recalled: bool,
}

/// The lease to request from the file system. None if the client cannot be called back, has not confirmed
/// its owner, or opens under a delegation that it has.
pub(super) fn want(compound: &Compound<'_>, args: &OpenArgs, owner: &OwnerName, confirmed: bool) -> Want {
    let can_be_called = {
        let tables = compound.shared.state.tables();
        let client = tables.clients.confirmed(owner.client);
        client.is_some_and(|client| compound.shared.callbacks.is_up(&tables, client))
    };
    match &args.claim {
        // A delegation that is reclaimed still exists. Whether the client can be called back shows later.
        OpenClaim::Previous(OpenDelegationType::Read | OpenDelegationType::ReadAttrsDeleg) => {
            return Want::Read;
        }
        OpenClaim::Previous(OpenDelegationType::Write | OpenDelegationType::WriteAttrsDeleg) => {
            return Want::Write;
        }
        OpenClaim::Previous(_) | OpenClaim::DelegateCur(..) | OpenClaim::DelegCurFh(_) => return Want::None,
        _ if !can_be_called || !confirmed => return Want::None,
        // The client would lock under it without a call, before a host has reclaimed its lock.
        _ if compound.shared.state.do_hosts_reclaim() => return Want::None,
        _ => {}
    }
    match wanted(compound.minor, args) {
        OPEN4_SHARE_ACCESS_WANT_READ_DELEG => Want::Read,
        OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG => Want::Write,
        OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE | OPEN4_SHARE_ACCESS_WANT_ANY_DELEG => Want::Any,
        _ => Want::None,
    }
}

fn wanted(minor: u32, args: &OpenArgs) -> u32 {
    if minor == 0 { 0 } else { args.share_access & OPEN4_SHARE_ACCESS_WANT_DELEG_MASK }
}

/// The delegation in the reply to OPEN. Its permissions are empty, so the client must send ACCESS for each
/// user.
pub(super) fn answer(minor: u32, args: &OpenArgs, granted: Option<&Granted>) -> OpenDelegation {
    let permissions = Ace::default();
    let reclaimed = matches!(args.claim, OpenClaim::Previous(_));
    match granted {
        Some(Granted { stateid, kind: LeaseKind::Write, space_limit, recalled }) => {
            OpenDelegation::Write(OpenWriteDelegation {
                stateid: *stateid,
                recall: reclaimed && *recalled,
                space_limit: NfsSpaceLimit::Size(told_limit(minor, args, *space_limit)),
                permissions,
            })
        }
        Some(Granted { stateid, recalled, .. }) => OpenDelegation::Read(OpenReadDelegation {
            stateid: *stateid,
            recall: reclaimed && *recalled,
            permissions,
        }),
        None => none(minor, args),
    }
}

/// The `space_limit` that the holder gets, in bytes of the file's size.
///
/// Within the limit a holder may complete close(2) before the origin has the written data. Such a holder
/// must send the data before it returns the delegation. Linux does not: it starts the WRITEs at the close,
/// and on a recall returns the delegation while those WRITEs are in flight. The next open would then read
/// old data.
///
/// Linux asks for no particular kind of delegation. So a client that asks for none gets a limit of zero,
/// and writes the data before its close completes.
fn told_limit(minor: u32, args: &OpenArgs, space_limit: u64) -> u64 {
    match wanted(minor, args) {
        OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG | OPEN4_SHARE_ACCESS_WANT_ANY_DELEG => space_limit,
        _ => 0,
    }
}

/// No delegation, with the reason if the client asked for one.
fn none(minor: u32, args: &OpenArgs) -> OpenDelegation {
    OpenDelegation::NoneExt(match wanted(minor, args) {
        OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => return OpenDelegation::None,
        OPEN4_SHARE_ACCESS_WANT_NO_DELEG => OpenNoneDelegation::NotWanted,
        OPEN4_SHARE_ACCESS_WANT_CANCEL => OpenNoneDelegation::Cancelled,
        _ => OpenNoneDelegation::Contention { server_will_push_deleg: false },
    })
}
