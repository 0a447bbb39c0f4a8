//! RPCSEC_GSS (RFC 2203): calls whose user has proven who it is, with Kerberos.
//!
//! A client makes a context with the server in calls of the null procedure ([`Acceptor`]). Each further call
//! names the context, and signs its header with the key of the context. According to the flavor, its
//! arguments and results are in plain text (krb5), signed (krb5i) or encrypted (krb5p). A call has a number
//! that the server takes once ([`window`]), so a repeated one does nothing.
//!
//! The module works on a call before the reply cache sees it, and on its reply behind the cache. A client
//! sends a lost call again with the same xid and a new number, and must get the same results.
//!
//! The module assumes that a context belongs to one user from its beginning to its end. Contexts are bounded
//! ([`contexts`]): a client whose context was dropped makes a new one without its user's notice.

mod acceptor;
mod body;
mod contexts;
pub mod initiator;
mod window;
pub mod wire;

use std::fmt;
use std::sync::Arc;

pub use acceptor::{Acceptor, LookUp};
pub(crate) use acceptor::{Admission, Seal};
pub use gss::KRB5_OID;
pub use wire::{Claim, GssCredential, Protection, RPCSEC_GSS};

/// A user of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// The user that a context belongs to.
#[derive(Debug, PartialEq, Eq)]
pub struct User {
    /// The principal, as `user@REALM`.
    pub principal: String,
    /// The user of this system that the principal is. `None` for machines, services and strangers.
    pub unix: Option<UnixUser>,
}

/// The user that made a call, with the proof of a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    /// The user.
    pub user: Arc<User>,
    /// How arguments and results are protected.
    pub protection: Protection,
}

impl Protection {
    /// All of them.
    pub const ALL: [Protection; 3] = [Protection::None, Protection::Integrity, Protection::Privacy];

    /// The number of the pseudo flavor of Kerberos, as MOUNT has it (RFC 2623, section 2.7).
    pub fn pseudo_flavor(self) -> u32 {
        390_002 + self as u32
    }
}

/// The pseudo flavor of Kerberos, as `sec=` of nfs(5) and exports(5) has it.
impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protection::None => "krb5",
            Protection::Integrity => "krb5i",
            Protection::Privacy => "krb5p",
        })
    }
}
