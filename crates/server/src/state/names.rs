//! Owner names as file systems see them: unique among the clients of all fronts.
//!
//! ```text
//! holder 8 | kind 1 | the client's string
//! ```

use bytes::{BufMut, Bytes, BytesMut};
use protocol::nfs4::{Limited, LockDenied, NfsLockType, SHORT_OWNER_BYTES, StateOwner};
use siphasher::sip128::SipHasher13;
use vfs::{HolderId, Lock, LockKind, Owner};

use super::State;
use super::owners::OwnerKind;

/// The owner of an open or a lock.
pub(crate) fn owner(holder: HolderId, kind: OwnerKind, name: &[u8]) -> Owner {
    let mut bytes = BytesMut::with_capacity(9 + name.len());
    bytes.put_u64(holder.0);
    bytes.put_u8(match kind {
        OwnerKind::Open => 0,
        OwnerKind::Lock => 1,
    });
    bytes.put_slice(name);
    Owner(bytes.freeze())
}

/// The holder to which an owner belongs.
pub(crate) fn holder(owner: &Owner) -> Option<HolderId> {
    owner.0.first_chunk::<8>().map(|holder| HolderId(u64::from_be_bytes(*holder)))
}

/// The owner as clients see it. An owner that is not a v4 client's has a zero client id.
pub(crate) fn lock_owner(state: &State, owner: &Owner) -> StateOwner {
    let clientid = holder(owner)
        .and_then(|holder| state.tables().clients.holder(holder).map(|client| client.id))
        .unwrap_or_default();
    let name = owner.0.get(9..).map(Bytes::copy_from_slice).unwrap_or_default();
    StateOwner { clientid, owner: Limited::new(name).unwrap_or_default() }
}

/// The conflicting lock. If its owner's name is too long for some clients, a hash replaces the name. A
/// denied client uses the name only to see whether two owners are the same.
pub(crate) fn denied(state: &State, lock: &Lock) -> LockDenied {
    let mut owner = lock_owner(state, &lock.owner);
    if owner.owner.len() > SHORT_OWNER_BYTES {
        let hash = SipHasher13::new().hash(&owner.owner).as_bytes();
        owner.owner = Limited::new(hash.to_vec()).unwrap_or_default();
    }
    LockDenied {
        offset: lock.offset,
        length: lock.length,
        locktype: match lock.kind {
            LockKind::Shared => NfsLockType::Read,
            LockKind::Exclusive => NfsLockType::Write,
        },
        owner,
    }
}
