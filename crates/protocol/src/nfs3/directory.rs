//! READDIR and READDIRPLUS (RFC 1813, sections 3.3.16 and 3.3.17).

use xdr::{LinkedList, Xdr};

use super::{Fattr, Filename, Handle, Verifier};

/// The most entries in one reply: more than the smallest entries fill 1 MiB.
pub const ENTRIES_MAX: usize = 1 << 16;

/// `READDIR3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirArgs {
    /// The directory.
    pub dir: Handle,
    /// Cookie of the entry to continue after; zero for the start.
    pub cookie: u64,
    /// The verifier from the first reply; zero in the first request.
    pub cookieverf: Verifier,
    /// The most bytes in the reply, counting all of `READDIR3resok`.
    pub count: u32,
}

/// `entry3`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Entry {
    /// Inode number.
    pub fileid: u64,
    /// Name.
    pub name: Filename,
    /// Cookie for continuing after this entry.
    pub cookie: u64,
}

/// `READDIR3resok`, with `dirlist3` inlined.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirOk {
    /// The directory's attributes.
    pub dir_attributes: Option<Fattr>,
    /// The client returns it together with a cookie.
    pub cookieverf: Verifier,
    /// The entries.
    pub entries: LinkedList<Entry, ENTRIES_MAX>,
    /// True at the end of the directory.
    pub eof: bool,
}

/// `READDIRPLUS3args`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirplusArgs {
    /// The directory.
    pub dir: Handle,
    /// Cookie of the entry to continue after; zero for the start.
    pub cookie: u64,
    /// The verifier from the first reply; zero in the first request.
    pub cookieverf: Verifier,
    /// The most bytes of names, fileids and cookies.
    pub dircount: u32,
    /// The most bytes in the reply, counting all of `READDIRPLUS3resok`.
    pub maxcount: u32,
}

/// `entryplus3`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Entryplus {
    /// Inode number.
    pub fileid: u64,
    /// Name.
    pub name: Filename,
    /// Cookie for continuing after this entry.
    pub cookie: u64,
    /// The attributes of the object.
    pub name_attributes: Option<Fattr>,
    /// Its handle.
    pub name_handle: Option<Handle>,
}

/// `READDIRPLUS3resok`, with `dirlistplus3` inlined.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirplusOk {
    /// The directory's attributes.
    pub dir_attributes: Option<Fattr>,
    /// The client returns it together with a cookie.
    pub cookieverf: Verifier,
    /// The entries.
    pub entries: LinkedList<Entryplus, ENTRIES_MAX>,
    /// True at the end of the directory.
    pub eof: bool,
}
