//! READ at the origin, and what its reply proves about the caller's right.
//!
//! An origin may carry out a READ under an open or delegation of ours without checking this user's right:
//! RFC 8881 allows it, and `serve` does it. The success of such a READ proves nothing, and its bytes may be
//! newer than the answer that granted the right. Two rules apply where the origin has an open or delegation
//! of ours:
//! - The caller's right must be known otherwise, from ACCESS or from an OPEN by the caller. If it is not
//!   known, the cache asks ACCESS.
//! - The reply is given only if its attributes leave the right in force. If the READ shows a state that the
//!   cache had not seen, an ACCESS follows. If that does not grant the right, the reply is withheld.
//!
//! ACCESS does not know everything. The owner of a file may always read it, and a user with the right to
//! execute it may read it for that: the cache lets both through. If this user holds an open for reading,
//! the right was checked at the open. Such a caller goes on reading as far as the origin allows, which
//! proves nothing for later.
//!
//! Without state at the origin, the origin decides each READ for its own caller, and success is a proof.
//!
//! **Assumption**: between the GETATTR and the READ of one compound, no other client removes a right and
//! then writes.

use std::sync::Arc;

use vfs::{AccessMask, Caller, Principal, Read, Result, Share, StateidBasis, Status};

use crate::core::Core;
use crate::held_lease::HeldLease;
use crate::object::{ObjectState, Opening, Seen};
use crate::table::Object;

/// The reply to a READ that the caller may have.
pub struct Answered {
    pub read: Read,
    /// Its success proves the caller's right.
    pub proves: bool,
}

/// The caller of a READ, and the open of the layer above that it names.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    pub caller: &'a Caller,
    pub by: StateidBasis,
    /// The rights that ACCESS has just returned for this request.
    pub told: Option<AccessMask>,
}

/// The caller's right to the data of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The origin has granted it.
    Granted,
    /// The caller owns the file, or may execute it: ACCESS does not count that as reading.
    Overrides,
    /// The caller had the right when it opened the file, and has lost it since.
    Opened,
    Refused,
}

impl Core {
    /// Has the origin an open or delegation of ours under which it may let any user's READ pass?
    pub fn reads_by_ours(&self, state: &ObjectState) -> bool {
        // Over an origin with leases alone, the origin decides each READ for its own user.
        !self.leases_alone() && (state.held.opens.covers(Share::READ.into()) || state.held.lease.is_some())
    }

    /// READ, under the open at the origin if there is one.
    ///
    /// # Errors
    /// `Access` also if the origin has an open for us, and ACCESS does not grant this caller reading.
    pub async fn read_below(
        &self,
        reader: Reader<'_>,
        object: &Arc<Object>,
        offset: u64,
        count: u32,
    ) -> Result<Answered> {
        let caller = reader.caller;
        if !self.with(object, |state| self.reads_by_ours(state)) {
            let read = self.send_read(caller, object, offset, count).await?;
            let proves = !self.with(object, |state| self.reads_by_ours(state));
            return Ok(Answered { read, proves });
        }
        let standing = self.stand_to_read(&reader, object).await?;
        let sent = self.policy.sending();
        let read = self.send_read(caller, object, offset, count).await?;
        let seen = self.observe(object, read.attributes.as_ref(), &sent, Opening::No);
        if standing != Standing::Opened && !self.still_stands(&reader, object, seen) {
            // The bytes may be newer than the known right.
            self.stand_to_read(&Reader { told: None, ..reader }, object).await?;
            return Ok(Answered { read, proves: false });
        }
        Ok(Answered { read, proves: standing == Standing::Overrides })
    }

    /// Another operation is about to use the data under the open at the origin: may the caller read it now?
    ///
    /// # Errors
    /// `Access`.
    pub async fn may_use_data(&self, caller: &Caller, by: StateidBasis, object: &Arc<Object>) -> Result<()> {
        let (ours, leased) = self.with(object, |state| (self.reads_by_ours(state), state.leased().is_some()));
        if !ours {
            return Ok(());
        }
        let told =
            if leased { None } else { Some(self.ask_right(caller, object, AccessMask::READ).await?.granted) };
        self.stand_to_read(&Reader { caller, by, told }, object).await.map(drop)
    }

    /// The caller's standing. If it is not known, or would be a refusal, asks ACCESS.
    async fn stand_to_read(&self, reader: &Reader<'_>, object: &Arc<Object>) -> Result<Standing> {
        let known = self.with(object, |state| self.standing(state, reader));
        let standing = match known {
            Some(standing) if standing != Standing::Refused || reader.told.is_some() => standing,
            _ => {
                let accessed = self.ask_right(reader.caller, object, AccessMask::READ).await?;
                let reader = Reader { told: Some(accessed.granted), ..*reader };
                self.with(object, |state| self.standing(state, &reader)).unwrap_or(Standing::Refused)
            }
        };
        // The error has no attributes: those that are known do not come from this call.
        if standing == Standing::Refused { Err(Status::Access.into()) } else { Ok(standing) }
    }

    fn standing(&self, state: &mut ObjectState, reader: &Reader) -> Option<Standing> {
        let principal = &reader.caller.principal;
        let told = |bit| reader.told.map(|granted: AccessMask| granted.contains(bit));
        let may = told(AccessMask::READ).or_else(|| self.may(state, principal, AccessMask::READ));
        if may == Some(true) {
            return Some(Standing::Granted);
        }
        let execute = told(AccessMask::EXECUTE).or_else(|| self.may(state, principal, AccessMask::EXECUTE));
        let owns = |uid| matches!(principal, Principal::Unix(credential) if credential.uid == uid);
        may.map(|_| {
            if execute == Some(true) || state.attributes().is_some_and(|known| owns(known.uid)) {
                Standing::Overrides
            } else if state.held.opens.is_read_by(reader.by, principal) {
                Standing::Opened
            } else {
                Standing::Refused
            }
        })
    }

    /// Is the caller's right still known, given the state that its READ showed? Under a lease no other
    /// client changes the file, whatever operations of ours are in flight.
    fn still_stands(&self, reader: &Reader, object: &Arc<Object>, seen: Option<Seen>) -> bool {
        self.with(object, |state| {
            let leased = state.held.lease.as_ref().is_some_and(HeldLease::is_valid);
            let clear = leased || matches!(seen, Some(Seen::Known { .. } | Seen::Late));
            let known = Reader { told: None, ..*reader };
            let mut stands =
                || matches!(self.standing(state, &known), Some(Standing::Granted | Standing::Overrides));
            clear && stands()
        })
    }

    async fn send_read(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        self.counters.read.bump();
        if let Some(usage) = self.use_open(object, Share::READ) {
            let by = StateidBasis::Open(usage.id);
            match self.below.read(caller, &object.handle, by, offset, count).await {
                Err(error) if super::is_lost(&error) => self.lose_open(object, usage.id, &error),
                result => return result,
            }
        }
        self.below.read(caller, &object.handle, StateidBasis::Anonymous, offset, count).await
    }
}
