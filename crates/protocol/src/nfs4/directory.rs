//! READDIR (RFC 8881, section 18.23).

use xdr::{LinkedList, Xdr};

use super::{Bitmap, Component, Fattr, Verifier};

/// The most entries in one answer: more than the smallest entries fill 1 MiB.
pub const ENTRIES_MAX: usize = 1 << 16;

/// `READDIR4args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirArgs {
    /// Behind which entry to go on; zero from the start. 1 and 2 are never cookies.
    pub cookie: u64,
    /// That of the first answer; zero at first.
    pub cookieverf: Verifier,
    /// About how many bytes of names and cookies.
    pub dircount: u32,
    /// The most bytes in the answer, all of `READDIR4resok` counted.
    pub maxcount: u32,
    /// The attributes wanted of each entry.
    pub attr_request: Bitmap,
}

/// `entry4`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Entry {
    /// Where reading goes on behind it.
    pub cookie: u64,
    /// Name.
    pub name: Component,
    /// What the name leads to.
    pub attrs: Fattr,
}

impl Entry {
    /// The number of bytes on the wire, that which says that it follows counted.
    pub fn encoded_len(&self) -> usize {
        4 + 8 + 4 + self.name.len() + xdr::padding(self.name.len()) + self.attrs.encoded_len()
    }
}

/// `READDIR4resok`, with `dirlist4` in place.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirOk {
    /// To be given with the next cookie.
    pub cookieverf: Verifier,
    /// The entries.
    pub entries: LinkedList<Entry, ENTRIES_MAX>,
    /// The directory ends here.
    pub eof: bool,
}
