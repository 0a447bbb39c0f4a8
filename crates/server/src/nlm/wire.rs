//! The messages of all versions as one: offsets of 64 bits, and a range without an end as `u64::MAX`.

use bytes::{BufMut, Bytes, BytesMut};
use protocol::nlm::{Holder, Lock as WireLock, Netobj, Stat, TestReply};
use vfs::locks::is_range;
use vfs::{HolderId, Lock, LockKind, Owner, Status};

use crate::state::names;
use crate::state::owners::OwnerKind;

/// The most bytes of an owner of another protocol that a client is told.
const FOREIGN_OWNER_BYTES: usize = 64;
/// Before the client's string in an owner: see [`names`].
const OWNER_PREFIX_BYTES: usize = 9;

/// The offset of a version.
pub(super) trait Offset: Copy + Send + Sync + 'static {
    /// As 64 bits.
    fn wide(self) -> u64;
    /// From 64 bits; the largest offset if it does not fit.
    fn narrow(wide: u64) -> Self;
    /// The status, in the words of this version.
    fn stat(stat: Stat) -> Stat;
}

impl Offset for u32 {
    fn wide(self) -> u64 {
        self.into()
    }

    fn narrow(wide: u64) -> u32 {
        u32::try_from(wide).unwrap_or(u32::MAX)
    }

    /// Versions 1 and 3 end at `DENIED_GRACE_PERIOD`.
    fn stat(stat: Stat) -> Stat {
        match stat {
            Stat::Deadlck | Stat::Rofs | Stat::StaleFh | Stat::Fbig | Stat::Failed => Stat::DeniedNolocks,
            other => other,
        }
    }
}

impl Offset for u64 {
    fn wide(self) -> u64 {
        self
    }

    fn narrow(wide: u64) -> u64 {
        wide
    }

    fn stat(stat: Stat) -> Stat {
        stat
    }
}

/// The lock of a call, with an owner that is unique among all clients.
///
/// # Errors
/// `FBig` if it goes beyond the largest offset.
pub(super) fn lock<N: Offset>(wire: &WireLock<N>, holder: HolderId, exclusive: bool) -> Result<Lock, Status> {
    let (offset, length) = (wire.offset.wide(), wire.length.wide());
    let length = if length == 0 { u64::MAX } else { length };
    if !is_range(offset, length) {
        return Err(Status::FBig);
    }
    let mut name = BytesMut::with_capacity(4 + wire.oh.len());
    name.put_u32(wire.svid);
    name.put_slice(&wire.oh);
    let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
    Ok(Lock { owner: names::owner(holder, OwnerKind::Lock, &name), kind, offset, length })
}

/// The lock that conflicts. `is_host` says whether a holder is a host of NLM, whose owner is told as it is.
pub(super) fn denied<N: Offset>(lock: &Lock, is_host: impl Fn(HolderId) -> bool) -> TestReply<N> {
    let name = lock.owner.0.get(OWNER_PREFIX_BYTES..).unwrap_or_default();
    let of_host = names::holder(&lock.owner).is_some_and(is_host);
    let (svid, oh) = match name.split_first_chunk::<4>() {
        Some((svid, oh)) if of_host => (u32::from_be_bytes(*svid), oh),
        _ => (0, &name[..name.len().min(FOREIGN_OWNER_BYTES)]),
    };
    let has_end = lock.end() != u64::MAX;
    TestReply::Denied(Holder {
        exclusive: lock.kind == LockKind::Exclusive,
        svid,
        oh: Netobj::new(Bytes::copy_from_slice(oh)).unwrap_or_default(),
        offset: N::narrow(lock.offset),
        length: N::narrow(if has_end { lock.length } else { 0 }),
    })
}

/// The owner of a lock, as its host names it.
pub(super) fn client_owner(owner: &Owner) -> &[u8] {
    owner.0.get(OWNER_PREFIX_BYTES + 4..).unwrap_or_default()
}

/// The owner of the opens of a user of a host.
pub(super) fn opener(holder: HolderId, uid: u32) -> Owner {
    names::owner(holder, OwnerKind::Open, &uid.to_be_bytes())
}

/// The owner of a DOS share.
pub(super) fn sharer(holder: HolderId, oh: &[u8]) -> Owner {
    // No user's open has an owner of this length.
    let mut name = BytesMut::with_capacity(5 + oh.len());
    name.put_slice(b"share");
    name.put_slice(oh);
    names::owner(holder, OwnerKind::Open, &name)
}

/// `nlm4_stats` of an error.
pub(super) fn stat(status: Status) -> Stat {
    match status {
        Status::Denied | Status::LocksHeld | Status::ShareDenied => Stat::Denied,
        // The client asks again after a few seconds.
        Status::Delay | Status::Grace | Status::NoGrace => Stat::DeniedGracePeriod,
        Status::Rofs => Stat::Rofs,
        Status::Stale | Status::BadHandle => Stat::StaleFh,
        Status::FBig => Stat::Fbig,
        Status::Access
        | Status::NoTicket
        | Status::Perm
        | Status::Resource
        | Status::ReclaimBad
        | Status::NotSupp
        | Status::NoSpc
        | Status::Dquot => Stat::DeniedNolocks,
        _ => Stat::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire<N>(offset: N, length: N) -> WireLock<N> {
        WireLock {
            caller_name: protocol::nlm::CallerName::default(),
            fh: Netobj::default(),
            oh: Netobj::new(&b"7@pc"[..]).unwrap(),
            svid: 7,
            offset,
            length,
        }
    }

    #[test]
    fn a_length_of_zero_has_no_end() {
        let of = |offset, length| lock(&wire(offset, length), HolderId(1), true).map(|lock| lock.length);
        assert_eq!(of(5u64, 0), Ok(u64::MAX));
        assert_eq!(of(5, 7), Ok(7));
        assert_eq!(of(u64::MAX, 2), Err(Status::FBig));
        assert_eq!(
            lock(&wire(u32::MAX, u32::MAX), HolderId(1), true).map(|lock| lock.end()),
            Ok(2 * 0xffff_ffff)
        );
    }

    #[test]
    fn an_owner_of_a_host_is_told_as_it_is() {
        let held = lock(&wire(5u64, 0), HolderId(1), false).unwrap();
        let told: TestReply<u64> = denied(&held, |holder| holder == HolderId(1));
        let oh = Netobj::new(&b"7@pc"[..]).unwrap();
        assert_eq!(told, TestReply::Denied(Holder { exclusive: false, svid: 7, oh, offset: 5, length: 0 }));
        let TestReply::Denied(foreign) = denied::<u32>(&held, |_| false) else { panic!("it conflicts") };
        assert_eq!((foreign.svid, foreign.oh.len()), (0, 8));
        let short = Lock { owner: Owner(Bytes::from_static(b"x")), offset: 1 << 40, ..held };
        let TestReply::Denied(foreign) = denied::<u32>(&short, |_| true) else { panic!("it conflicts") };
        assert_eq!((foreign.offset, foreign.oh.len()), (u32::MAX, 0));
    }

    #[test]
    fn versions_1_and_3_have_fewer_words() {
        assert_eq!(<u32 as Offset>::stat(Stat::StaleFh), Stat::DeniedNolocks);
        assert_eq!(<u32 as Offset>::stat(Stat::Blocked), Stat::Blocked);
        assert_eq!(<u64 as Offset>::stat(Stat::StaleFh), Stat::StaleFh);
    }
}
