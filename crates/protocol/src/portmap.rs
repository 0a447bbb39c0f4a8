//! The port mapper, version 2 (RFC 1833, section 3): the ports of the programs of a machine.
//!
//! CALLIT is left out, because it lets strangers make calls through the server.

use xdr::{LinkedList, Xdr};

use crate::program::program;

/// The port of the port mapper itself.
pub const PORT: u16 = 111;
/// `IPPROTO_TCP`
pub const TCP: u32 = 6;
/// `IPPROTO_UDP`
pub const UDP: u32 = 17;
/// The most entries in a DUMP.
pub const LIST_MAX: usize = 4096;

program! {
    100_000, 2;
    /// Do nothing.
    Null = 0, "NULL", () => ();
    /// Register a program; false if the program and version are registered already.
    Set = 1, "SET", Mapping => bool;
    /// Unregister a program and version for all transports.
    Unset = 2, "UNSET", Mapping => bool;
    /// Get the port of a program; zero if it is not registered. The port of the argument is ignored.
    Getport = 3, "GETPORT", Mapping => u32;
    /// Get all registrations.
    Dump = 4, "DUMP", () => LinkedList<Mapping, LIST_MAX>;
}

/// `mapping`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Mapping {
    /// Program.
    pub prog: u32,
    /// Version.
    pub vers: u32,
    /// [`TCP`] or [`UDP`].
    pub prot: u32,
    /// Port.
    pub port: u32,
}
