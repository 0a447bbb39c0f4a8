//! NFS version 3 (RFC 1813).

mod attributes;
mod directory;
mod filesystem;
mod io;
mod names;
mod status;

pub use attributes::*;
pub use directory::*;
pub use filesystem::*;
pub use io::*;
pub use names::*;
pub use status::Status;

use crate::program::program;

/// `NFS3_FHSIZE`: the most bytes in a handle.
pub const FHSIZE: usize = 64;
/// The most bytes in a name on the wire. The RFC sets no bound. A name longer than [`NAME_MAX`] gets
/// NAMETOOLONG, and for that the server must be able to decode it.
pub const NAME_BOUND: usize = 4096;
/// The longest name in the file systems of this project and of Linux.
pub const NAME_MAX: usize = 255;
/// The most bytes in the target of a symbolic link.
pub const PATH_MAX: usize = 4096;

/// `nfs_fh3`.
pub type Handle = xdr::Inline<FHSIZE>;
/// `filename3`.
pub type Filename = xdr::Opaque<NAME_BOUND>;
/// `nfspath3`.
pub type Nfspath = xdr::Opaque<PATH_MAX>;
/// `cookieverf3`, `createverf3` and `writeverf3`.
pub type Verifier = [u8; 8];
/// Results of a procedure: on failure the status and `F`.
pub type Reply<T, F> = crate::Reply<T, Status, F>;

program! {
    100_003, 3;
    /// Do nothing.
    Null = 0, "NULL", () => ();
    /// Get file attributes.
    Getattr = 1, "GETATTR", GetattrArgs => Reply<GetattrOk, ()>;
    /// Set file attributes.
    Setattr = 2, "SETATTR", SetattrArgs => Reply<SetattrOk, WccData>;
    /// Look up a file name.
    Lookup = 3, "LOOKUP", LookupArgs => Reply<LookupOk, Option<Fattr>>;
    /// Check access permission.
    Access = 4, "ACCESS", AccessArgs => Reply<AccessOk, Option<Fattr>>;
    /// Read from a symbolic link.
    Readlink = 5, "READLINK", ReadlinkArgs => Reply<ReadlinkOk, Option<Fattr>>;
    /// Read from a file.
    Read = 6, "READ", ReadArgs => Reply<ReadOk, Option<Fattr>>;
    /// Write to a file.
    Write = 7, "WRITE", WriteArgs => Reply<WriteOk, WccData>;
    /// Create a file.
    Create = 8, "CREATE", CreateArgs => Reply<CreateOk, WccData>;
    /// Create a directory.
    Mkdir = 9, "MKDIR", MkdirArgs => Reply<CreateOk, WccData>;
    /// Create a symbolic link.
    Symlink = 10, "SYMLINK", SymlinkArgs => Reply<CreateOk, WccData>;
    /// Create a special device.
    Mknod = 11, "MKNOD", MknodArgs => Reply<CreateOk, WccData>;
    /// Remove a file.
    Remove = 12, "REMOVE", RemoveArgs => Reply<RemoveOk, WccData>;
    /// Remove a directory.
    Rmdir = 13, "RMDIR", RemoveArgs => Reply<RemoveOk, WccData>;
    /// Rename a file or directory.
    Rename = 14, "RENAME", RenameArgs => Reply<RenameRes, RenameRes>;
    /// Create a link to an object.
    Link = 15, "LINK", LinkArgs => Reply<LinkRes, LinkRes>;
    /// Read from a directory.
    Readdir = 16, "READDIR", ReaddirArgs => Reply<ReaddirOk, Option<Fattr>>;
    /// Extended read from a directory.
    Readdirplus = 17, "READDIRPLUS", ReaddirplusArgs => Reply<ReaddirplusOk, Option<Fattr>>;
    /// Get dynamic file system information.
    Fsstat = 18, "FSSTAT", FsArgs => Reply<FsstatOk, Option<Fattr>>;
    /// Get static file system information.
    Fsinfo = 19, "FSINFO", FsArgs => Reply<FsinfoOk, Option<Fattr>>;
    /// Retrieve POSIX information.
    Pathconf = 20, "PATHCONF", FsArgs => Reply<PathconfOk, Option<Fattr>>;
    /// Commit cached data on a server to stable storage.
    Commit = 21, "COMMIT", CommitArgs => Reply<CommitOk, WccData>;
}
