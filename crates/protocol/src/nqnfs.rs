//! NQNFS, program 300105 version 1 (Macklem, *Not Quite NFS, Soft Cache Consistency for NFS*, 1994, appendix).
//!
//! The procedures of NFS version 2 with sizes of 64 bits and times in nanoseconds; a request for a lease before the
//! arguments of each, and the answer to it behind the status of each success; and six procedures more. Where the paper
//! leaves the wire open, docs/reference/nqnfs.md says what was chosen here and why.
//!
//! Handles, names, paths and link targets are those of [`nfs2`].

mod attributes;

use xdr::{Bulk, Decode, Decoder, Encode, Encoder, LinkedList, Xdr};

use crate::nfs2;
use crate::program::program;

pub use attributes::{Fattr, KEEP, KEEP_SIZE, Sattr, Time};
pub use nfs2::{Filename, Handle, LinkArgs, PATH_MAX, Path, ReaddirArgs, ReaddirOk, RenameArgs};

/// The most bytes in a READ or WRITE: the paper lifts the 8 KiB of NFS and names no other bound.
pub const DATA_MAX: u32 = 1 << 20;
/// The most entries in one READDIRLOOK.
pub const ENTRIES_MAX: usize = 4096;
/// The default term of a lease, in seconds (section 4).
pub const TERM_DEFAULT: u32 = 30;
/// The longest term of a lease, in seconds: twice the default (section 4).
pub const TERM_MAX: u32 = 60;

/// In a VACATED: all that the client holds. No server gives out such a handle (docs/reference/nqnfs.md).
pub const EVERYTHING: Handle = [0; nfs2::FHSIZE];

/// `modifyrev`: never zero, and higher each time the file is modified on the server.
pub type Modifyrev = u64;

/// Results of a procedure that carries a piggybacked lease: on failure the status alone.
pub type Reply<T> = crate::Reply<Granted<T>, Stat>;
/// Results of a procedure that does not.
pub type Plain<T> = crate::Reply<T, Stat>;

program! {
    300_105, 1;
    /// Do nothing.
    Null = 0, "NULL", () => ();
    /// Get file attributes.
    Getattr = 1, "GETATTR", Leased<Handle> => Reply<Fattr>;
    /// Set file attributes.
    Setattr = 2, "SETATTR", Leased<SattrArgs> => Reply<Fattr>;
    /// Get file system root; obsolete.
    Root = 3, "ROOT", () => ();
    /// Look up a file name, with a lease on what it leads to.
    Lookup = 4, "LOOKUP", Leased<LookupArgs> => Reply<LookupOk>;
    /// Read from a symbolic link.
    Readlink = 5, "READLINK", Leased<Handle> => Reply<Path>;
    /// Read from a file.
    Read = 6, "READ", Leased<ReadArgs> => Reply<ReadOk>;
    /// Write to cache; never used.
    Writecache = 7, "WRITECACHE", () => ();
    /// Write to a file.
    Write = 8, "WRITE", Leased<WriteArgs> => Reply<Fattr>;
    /// Create a file.
    Create = 9, "CREATE", Leased<CreateArgs> => Reply<DirOpOk>;
    /// Remove a file.
    Remove = 10, "REMOVE", Leased<nfs2::DirOpArgs> => Reply<()>;
    /// Rename a file.
    Rename = 11, "RENAME", Leased<RenameArgs> => Reply<()>;
    /// Create a link to a file.
    Link = 12, "LINK", Leased<LinkArgs> => Reply<()>;
    /// Create a symbolic link.
    Symlink = 13, "SYMLINK", Leased<SymlinkArgs> => Reply<()>;
    /// Create a directory.
    Mkdir = 14, "MKDIR", Leased<CreateArgs> => Reply<DirOpOk>;
    /// Remove a directory.
    Rmdir = 15, "RMDIR", Leased<nfs2::DirOpArgs> => Reply<()>;
    /// Read from a directory.
    Readdir = 16, "READDIR", Leased<ReaddirArgs> => Reply<ReaddirOk>;
    /// Get file system attributes.
    Statfs = 17, "STATFS", Leased<Handle> => Reply<StatfsOk>;
    /// Read from a directory, with handles, attributes and leases of the entries.
    Readdirlook = 18, "READDIRLOOK", Leased<ReaddirlookArgs> => Reply<ReaddirlookOk>;
    /// Get a lease.
    Getlease = 19, "GETLEASE", GetleaseArgs => Plain<GetleaseOk>;
    /// From the client to the server: what was to be evicted has been flushed.
    Vacated = 20, "VACATED", Handle => ();
    /// From the server to the client: flush, and say VACATED.
    Evicted = 21, "EVICTED", Handle => ();
    /// Check permissions on the server.
    Access = 22, "ACCESS", Leased<AccessArgs> => Reply<()>;
}

/// `stat`, less `NFS_OK`, which [`crate::Reply::Ok`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stat {
    /// One of NFS version 2, all of whose values this version has; or one that nobody knows.
    V2(nfs2::Stat),
    /// `NQNFS_EXPIRED`: the lease that the call relies on has ended.
    Expired,
    /// `NQNFS_TRYLATER`: not now.
    Trylater,
    /// `NQNFS_AUTHERR`: the caller is not who may ask.
    Autherr,
}

impl From<u32> for Stat {
    fn from(value: u32) -> Stat {
        match value {
            500 => Stat::Expired,
            501 => Stat::Trylater,
            502 => Stat::Autherr,
            other => Stat::V2(nfs2::Stat::from(other)),
        }
    }
}

impl From<Stat> for u32 {
    fn from(status: Stat) -> u32 {
        match status {
            Stat::Expired => 500,
            Stat::Trylater => 501,
            Stat::Autherr => 502,
            Stat::V2(status) => status.into(),
        }
    }
}

impl Encode for Stat {
    fn encode(&self, encoder: &mut Encoder) {
        encoder.u32(u32::from(*self));
    }
}

impl Decode for Stat {
    fn decode(decoder: &mut Decoder) -> Result<Stat, xdr::Error> {
        decoder.u32().map(Stat::from)
    }
}

/// `cachetype`: the type of lease asked for, where one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum Cachetype {
    /// `NQLNONE`
    None = 0,
    /// `NQLREAD`
    Read = 1,
    /// `NQLWRITE`
    Write = 2,
}

/// `getleaserequest`: before the arguments. It is for the file that the procedure operates on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub enum LeaseRequest {
    /// No lease.
    #[default]
    #[xdr(case = 0)]
    None,
    /// A read-caching lease for so many seconds.
    #[xdr(case = 1)]
    Read(u32),
    /// A write-caching lease for so many seconds.
    #[xdr(case = 2)]
    Write(u32),
}

/// `getleaserequestres`: behind the status of a success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub enum LeaseResult {
    /// None was asked for, or none was given.
    #[default]
    #[xdr(case = 0)]
    None,
    /// To a request for reading.
    #[xdr(case = 1)]
    Read(Promise),
    /// To a request for writing.
    #[xdr(case = 2)]
    Write(Promise),
}

/// What a lease promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Promise {
    /// The file may be cached. If not, the lease is a non-caching one: all goes to the server for its term.
    pub cachable: bool,
    /// Seconds from when it was issued on the server.
    pub duration: u32,
    /// What is cached from before is good if it has this.
    pub rev: Modifyrev,
}

/// Arguments with a piggybacked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Leased<T> {
    /// What lease is wanted of the file operated on.
    pub lease: LeaseRequest,
    /// The arguments.
    pub args: T,
}

/// Results of success with the answer to a piggybacked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Granted<T> {
    /// What lease was given.
    pub lease: LeaseResult,
    /// The results.
    pub results: T,
}

/// `sattrargs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SattrArgs {
    /// The file.
    pub file: Handle,
    /// What to set.
    pub attributes: Sattr,
}

/// `lookup_diropargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LookupArgs {
    /// For so many seconds a read-caching lease on what the name leads to; zero for none.
    pub duration: u32,
    /// The directory.
    pub dir: Handle,
    /// The name in it.
    pub name: Filename,
}

/// `lookup_diropres` of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LookupOk {
    /// The lease on what the name leads to.
    pub lookup_lease: LeaseResult,
    /// What that is.
    pub file: Handle,
    /// Its attributes.
    pub attributes: Fattr,
}

/// `diropres` of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DirOpOk {
    /// What was made.
    pub file: Handle,
    /// Its attributes.
    pub attributes: Fattr,
}

/// `nqnfs_readargs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadArgs {
    /// The file.
    pub file: Handle,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub count: u32,
}

/// `readres` of success.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct ReadOk {
    /// The file's attributes.
    pub attributes: Fattr,
    /// The bytes.
    pub data: Bulk,
}

/// `nqnfs_writeargs`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct WriteArgs {
    /// The file.
    pub file: Handle,
    /// First byte; means nothing if `append` is set.
    pub offset: u64,
    /// The bytes go behind the last, wherever that is when the server writes them.
    pub append: bool,
    /// The bytes.
    pub data: Bulk,
}

/// `createargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CreateArgs {
    /// Directory and name (`where`).
    pub location: nfs2::DirOpArgs,
    /// Its first attributes.
    pub attributes: Sattr,
}

/// `symlinkargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SymlinkArgs {
    /// Directory and name of the link.
    pub from: nfs2::DirOpArgs,
    /// Its target.
    pub to: Path,
    /// Its first attributes; servers ignore them.
    pub attributes: Sattr,
}

/// `nqnfs_statfsres` of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct StatfsOk {
    /// Preferred bytes in a READ or WRITE.
    pub tsize: u32,
    /// Bytes in a block.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u32,
    /// Blocks free.
    pub bfree: u32,
    /// Blocks free for the caller.
    pub bavail: u32,
    /// Files in the file system.
    pub files: u32,
    /// Further files that can be made.
    pub files_free: u32,
}

/// Arguments of READDIRLOOK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirlookArgs {
    /// The directory.
    pub file: Handle,
    /// Behind which entry to go on; zero from the start.
    pub cookie: u32,
    /// The most bytes in the answer.
    pub cnt: u32,
    /// For so many seconds a read-caching lease on each entry; zero for none.
    pub duration: u32,
}

/// `entry` of READDIRLOOK.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Entry {
    /// Not zero if the entry may be cached.
    pub cachable: u32,
    /// For so many seconds; zero if there is no lease on it.
    pub duration: u32,
    /// What is cached of it from before is good if it has this.
    pub rev: Modifyrev,
    /// Its handle.
    pub entry_fh: Handle,
    /// Its attributes.
    pub entry_attrib: Fattr,
    /// Inode number.
    pub fid: u32,
    /// Name.
    pub name: Filename,
    /// Where reading goes on behind it.
    pub cookie: u32,
}

/// `readdirlookres` of success.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirlookOk {
    /// The entries.
    pub entries: LinkedList<Entry, ENTRIES_MAX>,
    /// The directory ends here.
    pub eof: bool,
}

/// Arguments of GETLEASE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetleaseArgs {
    /// The file.
    pub file: Handle,
    /// The type.
    pub rw: Cachetype,
    /// The term in seconds.
    pub duration: u32,
}

/// `getleaseres` of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct GetleaseOk {
    /// The lease.
    pub promise: Promise,
    /// The file's attributes.
    pub attributes: Fattr,
}

/// Arguments of ACCESS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct AccessArgs {
    /// The file.
    pub file: Handle,
    /// Is reading allowed?
    pub read: bool,
    /// Is writing?
    pub write: bool,
    /// Is executing, or looking names up?
    pub exec: bool,
}
