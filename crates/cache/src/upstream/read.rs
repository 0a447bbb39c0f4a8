//! READ at the origin, and what its answer proves of the caller's right.
//!
//! An origin may carry out a READ under an open or a delegation of ours without asking whether this user may read: RFC
//! 8881 lets it, and `serve` does. The success of such a READ proves nothing, and its bytes may be newer than the answer
//! by which the user was let in before. So where the origin has an open or a delegation for us
//! - the caller's right has to be known by itself, from ACCESS or from an OPEN of the caller; else ACCESS asks for it;
//! - the answer is given only if its attributes left the right standing: a READ that shows a state which nobody of ours
//!   had seen is followed by an ACCESS, and withheld if that does not grant it.
//!
//! ACCESS does not know everything. The owner of a file may always read it, and who may execute it may read it to do so:
//! those are let through. Who has the file open for reading, by an open of its own user, was let in then, and goes on as far
//! as the origin lets it; that proves nothing for later.
//!
//! Without state at the origin, each READ is decided for its own caller, and its success is a proof.
//!
//! **Assumed**: between the GETATTR and the READ of one compound nobody takes a right away and writes.

use std::sync::Arc;

use vfs::{AccessMask, Caller, Principal, Read, Result, Share, StateidBasis, Status};

use crate::core::Core;
use crate::lease::HeldLease;
use crate::object::{ObjectState, Opening, Seen};
use crate::table::Object;

/// A READ that the caller may have.
pub struct Answered {
    pub read: Read,
    /// Its success proves the caller's right.
    pub proves: bool,
}

/// Whose READ it is: the caller, and by which open of the layer above.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    pub caller: &'a Caller,
    pub by: StateidBasis,
    /// What ACCESS has just answered to this very request.
    pub told: Option<AccessMask>,
}

/// How a caller stands to the data of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// The origin has granted it.
    Granted,
    /// It owns the file, or may execute it: ACCESS does not count that.
    Overrides,
    /// It was let in when it opened the file, and has lost the right since.
    Opened,
    Refused,
}

impl Core {
    /// Has the origin an open or a delegation for us by which it may let anybody's READ pass?
    pub fn reads_by_ours(&self, state: &ObjectState) -> bool {
        // Where there are leases and no opens, each READ is its user's.
        !self.leases_alone() && (state.opens.covers(Share::READ.into()) || state.lease.is_some())
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
            // What came may be newer than what is known of the right.
            self.stand_to_read(&Reader { told: None, ..reader }, object).await?;
            return Ok(Answered { read, proves: false });
        }
        Ok(Answered { read, proves: standing == Standing::Overrides })
    }

    /// Something else is about to be done with the data under the open at the origin: may the caller read it now?
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

    /// How the caller stands to the data, which ACCESS tells if that is not known, or not in its favour.
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
        // Without attributes: those that are known are not of this call.
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
            } else if state.opens.is_read_by(reader.by, principal) {
                Standing::Opened
            } else {
                Standing::Refused
            }
        })
    }

    /// Is the right of whoever was let in still known, now that this has been seen? Under a lease nobody else changes the
    /// file, whatever of ours is under way.
    fn still_stands(&self, reader: &Reader, object: &Arc<Object>, seen: Option<Seen>) -> bool {
        self.with(object, |state| {
            let leased = state.lease.as_ref().is_some_and(HeldLease::is_valid);
            let clear = leased || matches!(seen, Some(Seen::Known | Seen::Late));
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
