//! Delegations that OPEN asks for and gives (RFC 8881, sections 10.4 and 18.16.3; RFC 7530, section 10.4).

use protocol::nfs4::{
    Ace, NfsSpaceLimit, OPEN4_SHARE_ACCESS_WANT_ANY_DELEG, OPEN4_SHARE_ACCESS_WANT_CANCEL,
    OPEN4_SHARE_ACCESS_WANT_DELEG_MASK, OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
    OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE, OPEN4_SHARE_ACCESS_WANT_READ_DELEG,
    OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, OpenArgs, OpenClaim, OpenDelegation, OpenDelegationType,
    OpenNoneDelegation, OpenReadDelegation, OpenWriteDelegation, Stateid,
};
use vfs::{LeaseKind, Want};

use crate::nfs4::compound::Compound;
use crate::nfs4::state::owners::OwnerName;

/// A delegation that was granted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Granted {
    pub(super) stateid: Stateid,
    pub(super) kind: LeaseKind,
    /// Up to which size of the file space is set aside: see [`vfs::Lease::space_limit`].
    pub(super) space_limit: u64,
    /// It is recalled already.
    pub(super) recalled: bool,
}

/// What lease would be welcome. None to a client that cannot be called back, that has not confirmed its owner, or that
/// opens by a delegation that it has.
pub(super) fn want(compound: &Compound<'_>, args: &OpenArgs, owner: &OwnerName, confirmed: bool) -> Want {
    let can_be_called = {
        let tables = compound.front.state.tables();
        let client = tables.clients.confirmed(owner.client);
        client.is_some_and(|client| compound.front.state.callbacks.is_up(&tables, client))
    };
    match &args.claim {
        // What was held is held still: whether it can be called back shows later.
        OpenClaim::Previous(OpenDelegationType::Read | OpenDelegationType::ReadAttrsDeleg) => {
            return Want::Read;
        }
        OpenClaim::Previous(OpenDelegationType::Write | OpenDelegationType::WriteAttrsDeleg) => {
            return Want::Write;
        }
        OpenClaim::Previous(_) | OpenClaim::DelegateCur(..) | OpenClaim::DelegCurFh(_) => return Want::None,
        _ if !can_be_called || !confirmed => return Want::None,
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

/// What OPEN says of delegations. Nobody is let in without asking: who may, the client finds out with ACCESS.
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

/// The `space_limit` that the holder hears of, in bytes of the file's size.
///
/// Within the limit a holder may answer close(2) before the origin has what was written. A holder that does so must send
/// it before it returns the delegation. Linux does not: it begins to write at the close, and returns the delegation on a
/// recall while those WRITEs are in flight, so that the next open reads what was there before. Linux asks for no kind of
/// delegation, so a client that asks for none is told of no space, and writes before its close is answered.
fn told_limit(minor: u32, args: &OpenArgs, space_limit: u64) -> u64 {
    match wanted(minor, args) {
        OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG | OPEN4_SHARE_ACCESS_WANT_ANY_DELEG => space_limit,
        _ => 0,
    }
}

/// None, and why, if the client asked.
fn none(minor: u32, args: &OpenArgs) -> OpenDelegation {
    OpenDelegation::NoneExt(match wanted(minor, args) {
        OPEN4_SHARE_ACCESS_WANT_NO_PREFERENCE => return OpenDelegation::None,
        OPEN4_SHARE_ACCESS_WANT_NO_DELEG => OpenNoneDelegation::NotWanted,
        OPEN4_SHARE_ACCESS_WANT_CANCEL => OpenNoneDelegation::Cancelled,
        _ => OpenNoneDelegation::Contention { server_will_push_deleg: false },
    })
}
