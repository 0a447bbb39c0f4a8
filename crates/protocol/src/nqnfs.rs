//! NQNFS, program 300105 version 1 (Macklem, *Not Quite NFS, Soft Cache Consistency for NFS*, 1994,
//! appendix).
//!
//! It has the procedures of NFS version 2 with 64-bit sizes and times in nanoseconds, and six more. A lease
//! request precedes the arguments of each procedure, and its result follows the status of each success. If
//! the paper leaves the wire format open, docs/reference/nqnfs.md gives the choice and the reason.
//!
//! Handles, names, paths and link targets are those of [`nfs2`].
//! Handles, names, paths and link targets are those of [`nfs2`].

mod attributes;

use xdr::{Bulk, Decode, Decoder, Encode, Encoder, LinkedList, Xdr};

use crate::nfs2;
use crate::program::program;

pub use attributes::{Fattr, KEEP, KEEP_SIZE, Sattr, Time};
pub use nfs2::{Filename, Handle, LinkArgs, PATH_MAX, Path, ReaddirArgs, ReaddirOk, RenameArgs};

/// The most bytes in a READ or WRITE. The paper lifts the 8 KiB limit of NFS and gives no other bound.
pub const DATA_MAX: u32 = 1 << 20;
/// The most entries in one READDIRLOOK.
pub const ENTRIES_MAX: usize = 4096;
/// The default term of a lease, in seconds (section 4).
pub const TERM_DEFAULT: u32 = 30;
/// The longest term of a lease, in seconds: twice the default (section 4).
pub const TERM_MAX: u32 = 60;

/// In a VACATED: everything that the client holds. No server issues this handle (docs/reference/nqnfs.md).
pub const EVERYTHING: Handle = [0; nfs2::FHSIZE];

/// `modifyrev`: never zero, and it increases each time the file is modified on the server.
pub type Modifyrev = u64;

/// Results of a procedure that carries a piggybacked lease: on failure only the status.
pub type Reply<T> = crate::Reply<Granted<T>, Stat>;
/// Results of a procedure without a piggybacked lease.
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
    /// Look up a file name, with a lease on its object.
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
    /// From client to server: the client has flushed the file that it was asked to evict.
    Vacated = 20, "VACATED", Handle => ();
    /// From server to client: flush the file, and reply with VACATED.
    Evicted = 21, "EVICTED", Handle => ();
    /// Check permissions on the server.
    Access = 22, "ACCESS", Leased<AccessArgs> => Reply<()>;
}

/// `stat` without `NFS_OK`, which is [`crate::Reply::Ok`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stat {
    /// A status of NFS version 2, all of which are valid here, or an unknown value.
    V2(nfs2::Stat),
    /// `NQNFS_EXPIRED`: the lease that the call relies on has ended.
    Expired,
    /// `NQNFS_TRYLATER`: retry later.
    Trylater,
    /// `NQNFS_AUTHERR`: the caller is not authorized.
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

/// `cachetype`: the requested type of lease, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum Cachetype {
    /// `NQLNONE`
    None = 0,
    /// `NQLREAD`
    Read = 1,
    /// `NQLWRITE`
    Write = 2,
}

/// `getleaserequest`: precedes the arguments. It is for the file that the procedure operates on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub enum LeaseRequest {
    /// No lease.
    #[default]
    #[xdr(case = 0)]
    None,
    /// A read-caching lease for this many seconds.
    #[xdr(case = 1)]
    Read(u32),
    /// A write-caching lease for this many seconds.
    #[xdr(case = 2)]
    Write(u32),
}

/// `getleaserequestres`: follows the status of a success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Xdr)]
pub enum LeaseResult {
    /// No lease was requested, or none was granted.
    #[default]
    #[xdr(case = 0)]
    None,
    /// The result of a request for reading.
    #[xdr(case = 1)]
    Read(Promise),
    /// The result of a request for writing.
    #[xdr(case = 2)]
    Write(Promise),
}

/// The promise of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Promise {
    /// The file may be cached. If not, the lease is a non-caching one: during its term all operations go to
    /// the server.
    pub cachable: bool,
    /// Seconds from the time when the server issued the lease.
    pub duration: u32,
    /// Data cached before is valid if it has this revision.
    pub rev: Modifyrev,
}

/// Arguments with a piggybacked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Leased<T> {
    /// The lease requested for the file that the procedure operates on.
    pub lease: LeaseRequest,
    /// The arguments.
    pub args: T,
}

/// Results of a success with the result of a piggybacked request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Granted<T> {
    /// The granted lease.
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
    /// Seconds of a read-caching lease on the object of the name; zero for none.
    pub duration: u32,
    /// The directory.
    pub dir: Handle,
    /// The name in it.
    pub name: Filename,
}

/// `lookup_diropres` of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct LookupOk {
    /// The lease on the object of the name.
    pub lookup_lease: LeaseResult,
    /// The handle of the object.
    pub file: Handle,
    /// Its attributes.
    pub attributes: Fattr,
}

/// `diropres` of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DirOpOk {
    /// The handle of the new object.
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
    /// First byte; without meaning if `append` is set.
    pub offset: u64,
    /// Append the bytes at the end of the file, as it is when the server writes them.
    pub append: bool,
    /// The bytes.
    pub data: Bulk,
}

/// `createargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CreateArgs {
    /// Directory and name (`where`).
    pub location: nfs2::DirOpArgs,
    /// Its initial attributes.
    pub attributes: Sattr,
}

/// `symlinkargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SymlinkArgs {
    /// Directory and name of the link.
    pub from: nfs2::DirOpArgs,
    /// Its target.
    pub to: Path,
    /// Its initial attributes; servers ignore them.
    pub attributes: Sattr,
}

/// `nqnfs_statfsres` of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct StatfsOk {
    /// Preferred bytes in a READ or WRITE.
    pub tsize: u32,
    /// Bytes in a block.
    pub bsize: u32,
    /// Total blocks.
    pub blocks: u32,
    /// Free blocks.
    pub bfree: u32,
    /// Free blocks available to the caller.
    pub bavail: u32,
    /// Files in the file system.
    pub files: u32,
    /// Number of files that can still be created.
    pub files_free: u32,
}

/// Arguments of READDIRLOOK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirlookArgs {
    /// The directory.
    pub file: Handle,
    /// Cookie of the entry to continue after; zero for the start.
    pub cookie: u32,
    /// The most bytes in the reply.
    pub cnt: u32,
    /// Seconds of a read-caching lease on each entry; zero for none.
    pub duration: u32,
}

/// `entry` of READDIRLOOK.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Entry {
    /// Not zero if the entry may be cached.
    pub cachable: u32,
    /// Term of the lease on it in seconds; zero if there is none.
    pub duration: u32,
    /// Data cached before is valid if it has this revision.
    pub rev: Modifyrev,
    /// Its handle.
    pub entry_fh: Handle,
    /// Its attributes.
    pub entry_attrib: Fattr,
    /// Inode number.
    pub fid: u32,
    /// Name.
    pub name: Filename,
    /// Cookie for continuing after this entry.
    pub cookie: u32,
}

/// `readdirlookres` of success.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirlookOk {
    /// The entries.
    pub entries: LinkedList<Entry, ENTRIES_MAX>,
    /// True at the end of the directory.
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
    /// Check permission to read.
    pub read: bool,
    /// Check permission to write.
    pub write: bool,
    /// Check permission to execute, or to look up names.
    pub exec: bool,
}
