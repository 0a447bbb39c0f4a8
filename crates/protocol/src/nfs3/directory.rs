//! READDIR and READDIRPLUS (RFC 1813, sections 3.3.16 and 3.3.17).

use xdr::{LinkedList, Xdr};

use super::{Fattr, Filename, Handle, Verifier};

/// The most entries in one answer: more than the smallest entries fill 1 MiB.
pub const ENTRIES_MAX: usize = 1 << 16;

/// `READDIR3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirArgs {
    /// The directory.
    pub dir: Handle,
    /// Behind which entry to go on; zero from the start.
    pub cookie: u64,
    /// That of the first answer; zero at first.
    pub cookieverf: Verifier,
    /// The most bytes in the answer, all of `READDIR3resok` counted.
    pub count: u32,
}

/// `entry3`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Entry {
    /// Inode number.
    pub fileid: u64,
    /// Name.
    pub name: Filename,
    /// Where reading goes on behind it.
    pub cookie: u64,
}

/// `READDIR3resok`, with `dirlist3` in place.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirOk {
    /// The directory's attributes.
    pub dir_attributes: Option<Fattr>,
    /// To be given with the next cookie.
    pub cookieverf: Verifier,
    /// The entries.
    pub entries: LinkedList<Entry, ENTRIES_MAX>,
    /// The directory ends here.
    pub eof: bool,
}

/// `READDIRPLUS3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirplusArgs {
    /// The directory.
    pub dir: Handle,
    /// Behind which entry to go on; zero from the start.
    pub cookie: u64,
    /// That of the first answer; zero at first.
    pub cookieverf: Verifier,
    /// The most bytes of names, fileids and cookies.
    pub dircount: u32,
    /// The most bytes in the answer, all of `READDIRPLUS3resok` counted.
    pub maxcount: u32,
}

/// `entryplus3`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Entryplus {
    /// Inode number.
    pub fileid: u64,
    /// Name.
    pub name: Filename,
    /// Where reading goes on behind it.
    pub cookie: u64,
    /// What the name leads to.
    pub name_attributes: Option<Fattr>,
    /// Its handle.
    pub name_handle: Option<Handle>,
}

/// `READDIRPLUS3resok`, with `dirlistplus3` in place.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirplusOk {
    /// The directory's attributes.
    pub dir_attributes: Option<Fattr>,
    /// To be given with the next cookie.
    pub cookieverf: Verifier,
    /// The entries.
    pub entries: LinkedList<Entryplus, ENTRIES_MAX>,
    /// The directory ends here.
    pub eof: bool,
}
