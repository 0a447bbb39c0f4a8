//! READDIR (RFC 8881, section 18.23).

use xdr::{LinkedList, Xdr};

use super::{Bitmap, Component, Fattr, Verifier};

/// The most entries in one reply: more than the smallest entries fill 1 MiB.
pub const ENTRIES_MAX: usize = 1 << 16;

/// `READDIR4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirArgs {
    /// Cookie of the entry to continue after; zero for the start. 1 and 2 are never cookies.
    pub cookie: u64,
    /// The verifier from the first reply; zero in the first request.
    pub cookieverf: Verifier,
    /// Approximate limit of the bytes of names and cookies.
    pub dircount: u32,
    /// The most bytes in the reply, counting all of `READDIR4resok`.
    pub maxcount: u32,
    /// The requested attributes of each entry.
    pub attr_request: Bitmap,
}

/// `entry4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Entry {
    /// Cookie for continuing after this entry.
    pub cookie: u64,
    /// Name.
    pub name: Component,
    /// The attributes of the object.
    pub attrs: Fattr,
}

impl Entry {
    /// The number of bytes on the wire, including the flag that announces the entry.
    pub fn encoded_len(&self) -> usize {
        4 + 8 + 4 + self.name.len() + xdr::padding(self.name.len()) + self.attrs.encoded_len()
    }
}

/// `READDIR4resok`, with `dirlist4` inlined.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirOk {
    /// The client returns it together with a cookie.
    pub cookieverf: Verifier,
    /// The entries.
    pub entries: LinkedList<Entry, ENTRIES_MAX>,
    /// True at the end of the directory.
    pub eof: bool,
}
