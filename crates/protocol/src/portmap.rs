//! The port mapper, version 2 (RFC 1833, section 3): which port a program of this machine answers on.
//!
//! CALLIT is left out: it lets strangers call through us.

use xdr::{LinkedList, Xdr};

use crate::program::program;

/// The port that the port mapper itself answers on.
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
    /// Forget a program and version, for all transports.
    Unset = 2, "UNSET", Mapping => bool;
    /// The port of a program; zero if it is not registered. The port of the argument is ignored.
    Getport = 3, "GETPORT", Mapping => u32;
    /// All that is registered.
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
