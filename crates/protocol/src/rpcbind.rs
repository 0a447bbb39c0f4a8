//! RPCBIND, versions 3 and 4 (RFC 1833, section 2): the port mapper with universal addresses.
//!
//! CALLIT, BCAST and INDIRECT are left out, because they let strangers make calls through the server.

use xdr::{LinkedList, Opaque, Xdr};

/// The most bytes in a network id, an address or an owner.
pub const TEXT_MAX: usize = 256;
/// The most entries in a DUMP.
pub const LIST_MAX: usize = 4096;

/// A string of [`Rpcb`].
pub type Text = Opaque<TEXT_MAX>;
/// `rpcblist`.
pub type Rpcblist = LinkedList<Rpcb, LIST_MAX>;

/// `rpcb`: where a program listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Xdr)]
pub struct Rpcb {
    /// Program.
    pub prog: u32,
    /// Version.
    pub vers: u32,
    /// `tcp`, `udp`, `tcp6` or `udp6`.
    pub netid: Text,
    /// Universal address: `192.0.2.1.8.1`.
    pub addr: Text,
    /// The user that registered it.
    pub owner: Text,
}

/// Version 3.
pub mod v3 {
    use super::{Rpcb, Rpcblist, Text};
    use crate::program::program;

    program! {
        100_000, 3;
        /// Do nothing.
        Null = 0, "NULL", () => ();
        /// Register a program.
        Set = 1, "SET", Rpcb => bool;
        /// Unregister a program and version, for one network id or for all.
        Unset = 2, "UNSET", Rpcb => bool;
        /// Get the address of a program; empty if it is not registered.
        Getaddr = 3, "GETADDR", Rpcb => Text;
        /// Get all registrations.
        Dump = 4, "DUMP", () => Rpcblist;
        /// Get the time, in seconds since 1970.
        Gettime = 6, "GETTIME", () => u32;
    }
}

/// Version 4.
pub mod v4 {
    use super::{Rpcb, Rpcblist, Text};
    use crate::program::program;

    program! {
        100_000, 4;
        /// Do nothing.
        Null = 0, "NULL", () => ();
        /// Register a program.
        Set = 1, "SET", Rpcb => bool;
        /// Unregister a program and version, for one network id or for all.
        Unset = 2, "UNSET", Rpcb => bool;
        /// Get the address of a program, if need be of another version of it.
        Getaddr = 3, "GETADDR", Rpcb => Text;
        /// Get all registrations.
        Dump = 4, "DUMP", () => Rpcblist;
        /// Get the time, in seconds since 1970.
        Gettime = 6, "GETTIME", () => u32;
        /// Get the address of a program, of this version alone.
        Getversaddr = 9, "GETVERSADDR", Rpcb => Text;
    }
}
