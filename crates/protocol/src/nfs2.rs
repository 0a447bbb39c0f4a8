//! NFS version 2 (RFC 1094), with the file types that all implementations added to it.

use xdr::{Bulk, LinkedList, Opaque, Xdr};

use crate::program::program;

/// `FHSIZE`: the bytes in a handle.
pub const FHSIZE: usize = 32;
/// `MAXNAMLEN`: the most bytes in a name.
pub const NAME_MAX: usize = 255;
/// `MAXPATHLEN`: the most bytes in the target of a symbolic link.
pub const PATH_MAX: usize = 1024;
/// `MAXDATA`: the most bytes in a READ or WRITE.
pub const DATA_MAX: u32 = 8192;
/// The most entries in one reply: more than the smallest entries fill [`DATA_MAX`].
pub const ENTRIES_MAX: usize = 1024;
/// A field of [`Sattr`] with this value is not changed.
pub const KEEP: u32 = u32::MAX;

/// `fhandle`.
pub type Handle = [u8; FHSIZE];
/// `filename`.
pub type Filename = Opaque<NAME_MAX>;
/// `path`.
pub type Path = Opaque<PATH_MAX>;
/// Results of a procedure: on failure only the status.
pub type Reply<T> = crate::Reply<T, Stat>;

program! {
    100_003, 2;
    /// Do nothing.
    Null = 0, "NULL", () => ();
    /// Get file attributes.
    Getattr = 1, "GETATTR", Handle => Reply<Fattr>;
    /// Set file attributes.
    Setattr = 2, "SETATTR", SattrArgs => Reply<Fattr>;
    /// Get file system root; obsolete.
    Root = 3, "ROOT", () => ();
    /// Look up a file name.
    Lookup = 4, "LOOKUP", DirOpArgs => Reply<DirOpOk>;
    /// Read from a symbolic link.
    Readlink = 5, "READLINK", Handle => Reply<Path>;
    /// Read from a file.
    Read = 6, "READ", ReadArgs => Reply<ReadOk>;
    /// Write to cache; never used.
    Writecache = 7, "WRITECACHE", () => ();
    /// Write to a file.
    Write = 8, "WRITE", WriteArgs => Reply<Fattr>;
    /// Create a file.
    Create = 9, "CREATE", CreateArgs => Reply<DirOpOk>;
    /// Remove a file.
    Remove = 10, "REMOVE", DirOpArgs => Reply<()>;
    /// Rename a file.
    Rename = 11, "RENAME", RenameArgs => Reply<()>;
    /// Create a link to a file.
    Link = 12, "LINK", LinkArgs => Reply<()>;
    /// Create a symbolic link.
    Symlink = 13, "SYMLINK", SymlinkArgs => Reply<()>;
    /// Create a directory.
    Mkdir = 14, "MKDIR", CreateArgs => Reply<DirOpOk>;
    /// Remove a directory.
    Rmdir = 15, "RMDIR", DirOpArgs => Reply<()>;
    /// Read from a directory.
    Readdir = 16, "READDIR", ReaddirArgs => Reply<ReaddirOk>;
    /// Get file system attributes.
    Statfs = 17, "STATFS", Handle => Reply<StatfsOk>;
}

crate::reply::failures! {
    /// `stat` without `NFS_OK`, which is [`crate::Reply::Ok`].
    Stat {
        /// `NFSERR_PERM`: not owner.
        Perm = 1,
        /// `NFSERR_NOENT`: no such file or directory.
        NoEnt = 2,
        /// `NFSERR_IO`: a hard error.
        Io = 5,
        /// `NFSERR_NXIO`: no such device or address.
        Nxio = 6,
        /// `NFSERR_ACCES`: permission denied.
        Acces = 13,
        /// `NFSERR_EXIST`: file exists.
        Exist = 17,
        /// `NFSERR_NODEV`: no such device.
        NoDev = 19,
        /// `NFSERR_NOTDIR`: not a directory.
        NotDir = 20,
        /// `NFSERR_ISDIR`: is a directory.
        IsDir = 21,
        /// `NFSERR_FBIG`: file too large.
        FBig = 27,
        /// `NFSERR_NOSPC`: no space left on device.
        NoSpc = 28,
        /// `NFSERR_ROFS`: read-only file system.
        Rofs = 30,
        /// `NFSERR_NAMETOOLONG`: the name is too long.
        NameTooLong = 63,
        /// `NFSERR_NOTEMPTY`: the directory is not empty.
        NotEmpty = 66,
        /// `NFSERR_DQUOT`: quota exceeded.
        Dquot = 69,
        /// `NFSERR_STALE`: the handle's object no longer exists.
        Stale = 70,
        /// `NFSERR_WFLUSH`: the write cache was flushed to disk.
        Wflush = 99,
    }
}

/// `ftype`. The RFC ends at `Lnk`; the values for sockets and named pipes are those that all implementations
/// use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Xdr)]
pub enum Ftype {
    /// `NFNON`: not a file.
    Non = 0,
    /// `NFREG`
    Reg = 1,
    /// `NFDIR`
    Dir = 2,
    /// `NFBLK`
    Blk = 3,
    /// `NFCHR`
    Chr = 4,
    /// `NFLNK`
    Lnk = 5,
    /// `NFSOCK`
    Sock = 6,
    /// `NFBAD`
    Bad = 7,
    /// `NFFIFO`
    Fifo = 8,
}

/// `timeval`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Xdr)]
pub struct Timeval {
    /// Seconds since 1970.
    pub seconds: u32,
    /// Microseconds in the second. In [`Sattr`] one million means the server's own time (a convention of all
    /// Unix systems).
    pub useconds: u32,
}

/// `fattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Fattr {
    /// Type of file.
    pub ftype: Ftype,
    /// The complete `st_mode`: permission bits, and the type again.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u32,
    /// Bytes in a block of disk.
    pub blocksize: u32,
    /// Device number.
    pub rdev: u32,
    /// Blocks of 512 bytes in use.
    pub blocks: u32,
    /// File system.
    pub fsid: u32,
    /// Inode number.
    pub fileid: u32,
    /// Last access.
    pub atime: Timeval,
    /// Last change of the data.
    pub mtime: Timeval,
    /// Last change of data or attributes.
    pub ctime: Timeval,
}

/// `sattr`: fields equal to [`KEEP`] are not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct Sattr {
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u32,
    /// Last access.
    pub atime: Timeval,
    /// Last change of the data.
    pub mtime: Timeval,
}

/// `sattrargs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct SattrArgs {
    /// The file.
    pub file: Handle,
    /// What to set.
    pub attributes: Sattr,
}

/// `diropargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct DirOpArgs {
    /// The directory.
    pub dir: Handle,
    /// The name in it.
    pub name: Filename,
}

/// `diropres` of success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct DirOpOk {
    /// The handle of the object.
    pub file: Handle,
    /// Its attributes.
    pub attributes: Fattr,
}

/// `readargs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReadArgs {
    /// The file.
    pub file: Handle,
    /// First byte.
    pub offset: u32,
    /// Number of bytes.
    pub count: u32,
    /// Not used.
    pub totalcount: u32,
}

/// `readres` of success.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct ReadOk {
    /// The file's attributes.
    pub attributes: Fattr,
    /// The bytes.
    pub data: Bulk,
}

/// `writeargs`.
#[derive(Clone, Debug, PartialEq, Xdr)]
pub struct WriteArgs {
    /// The file.
    pub file: Handle,
    /// Not used.
    pub beginoffset: u32,
    /// First byte.
    pub offset: u32,
    /// Not used.
    pub totalcount: u32,
    /// The bytes.
    pub data: Bulk,
}

/// `createargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct CreateArgs {
    /// Directory and name (`where`).
    pub location: DirOpArgs,
    /// Its initial attributes.
    pub attributes: Sattr,
}

/// `renameargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct RenameArgs {
    /// The old name.
    pub from: DirOpArgs,
    /// The new one.
    pub to: DirOpArgs,
}

/// `linkargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct LinkArgs {
    /// The file.
    pub from: Handle,
    /// Its additional name.
    pub to: DirOpArgs,
}

/// `symlinkargs`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct SymlinkArgs {
    /// Directory and name of the link.
    pub from: DirOpArgs,
    /// Its target.
    pub to: Path,
    /// Its initial attributes; servers ignore them.
    pub attributes: Sattr,
}

/// `readdirargs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirArgs {
    /// The directory.
    pub dir: Handle,
    /// Cookie of the entry to continue after; zero for the start. The four bytes are opaque: only the server
    /// may interpret them.
    pub cookie: u32,
    /// The most bytes in the reply.
    pub count: u32,
}

/// `entry`.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct Entry {
    /// Inode number.
    pub fileid: u32,
    /// Name.
    pub name: Filename,
    /// Cookie for continuing after this entry.
    pub cookie: u32,
}

/// `readdirres` of success.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub struct ReaddirOk {
    /// The entries.
    pub entries: LinkedList<Entry, ENTRIES_MAX>,
    /// True at the end of the directory.
    pub eof: bool,
}

/// `statfsres` of success.
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
}
