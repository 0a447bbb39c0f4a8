//! The user and the peer that made a client record or a session, and which other peers may use it.
//!
//! Under `AUTH_SYS` nothing proves that two connections are of one host. A client may reconnect from
//! another port, and from another of its addresses. So a record belongs to its maker's *principal*. A peer
//! *reaches* the record if every export that admits the maker admits this peer too. Such a peer could do by
//! itself all that the maker may do.

use std::net::IpAddr;

use super::clients::Principal;
use crate::exports::Admitting;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    pub(crate) principal: Principal,
    pub(crate) address: IpAddr,
    pub(crate) admitting: Admitting,
}

impl Maker {
    /// May the other peer use a record or session of this one?
    pub(crate) fn is_reached_by(&self, other: &Maker) -> bool {
        other.admitting.covers(&self.admitting)
    }

    /// May the other peer change a record or session of this one?
    pub(crate) fn is(&self, other: &Maker) -> bool {
        self.principal == other.principal && self.is_reached_by(other)
    }

    /// A user of a peer that is admitted by the exports whose bits are set in `exports`.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of(uid: u32, exports: u64) -> Maker {
        let address = IpAddr::from([127, 0, 0, 1]);
        Maker { principal: Principal::User(uid), address, admitting: Admitting::of(exports) }
    }
}
