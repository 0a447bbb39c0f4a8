//! The user and the peer that made a client record or a session, and which others may use it.
//!
//! Under `AUTH_SYS` nothing proves that two connections are of one host: a client may reconnect from another port, and over
//! another of its addresses. So a record is its maker's *principal*, and any peer *reaches* it that every export admits
//! which admits its maker. Such a peer could do by itself all that the maker may do.

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
    /// May the other peer use what this one made?
    pub(crate) fn is_reached_by(&self, other: &Maker) -> bool {
        other.admitting.covers(&self.admitting)
    }

    /// May the other change what this one made?
    pub(crate) fn is(&self, other: &Maker) -> bool {
        self.principal == other.principal && self.is_reached_by(other)
    }

    /// A user of a peer that the first exports of a table admit, a bit for each.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of(uid: u32, exports: u64) -> Maker {
        let address = IpAddr::from([127, 0, 0, 1]);
        Maker { principal: Principal::User(uid), address, admitting: Admitting::of(exports) }
    }
}
