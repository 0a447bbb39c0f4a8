//! Constants of `linux/fuse.h`.

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// The minor version of this implementation: that of passthrough.
pub const MINOR: u32 = 40;
/// The oldest minor version accepted: extended INIT flags, `max_pages`.
pub const MINOR_MIN: u32 = 31;
/// Size of the header of a request.
pub const IN_HEADER_BYTES: usize = 40;
/// Size of the header of a reply.
pub const OUT_HEADER_BYTES: usize = 16;
/// Upper bound of the size of a WRITE without its data.
pub const WRITE_OVERHEAD_BYTES: usize = 4096;
/// The node of the root.
pub const ROOT: u64 = 1;

/// Opcodes.
pub mod op {
    #![allow(missing_docs, reason = "the names are those of `enum fuse_opcode`")]
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
}

bitflags::bitflags! {
    /// Flags negotiated at INIT. The upper half is `flags2`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Init: u64 {
        /// Several reads of one file at a time.
        const ASYNC_READ = 1;
        /// The kernel forwards `fcntl` locks.
        const POSIX_LOCKS = 1 << 1;
        /// `.` and `..` may be looked up, even in a node that the kernel has forgotten: file handles
        /// outlive it.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes larger than a page.
        const BIG_WRITES = 1 << 5;
        /// The kernel forwards `flock` locks.
        const FLOCK_LOCKS = 1 << 10;
        /// Listings have attributes. `FUSE_READDIRPLUS_AUTO` is not negotiated: a program that reads a
        /// complete directory before its first `stat` would get the attributes of the first page alone.
        const DO_READDIRPLUS = 1 << 13;
        /// Several direct reads and writes at a time.
        const ASYNC_DIO = 1 << 15;
        /// Several lookups and listings of one directory at a time.
        const PARALLEL_DIROPS = 1 << 18;
        /// ECONNABORTED distinguishes an aborted connection from a failed call.
        const ABORT_ERROR = 1 << 21;
        /// The field `max_pages` is valid.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// The file system clears set-id bits.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// The field `flags2` is valid.
        const INIT_EXT = 1 << 30;
        /// Reads may go to a file of this machine.
        const PASSTHROUGH = 1 << 37;
    }
}

bitflags::bitflags! {
    /// Flags of the reply to an OPEN.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fopen: u32 {
        /// No page cache.
        const DIRECT_IO = 1;
        /// The page cache stays valid.
        const KEEP_CACHE = 1 << 1;
        /// The kernel keeps the listing that it reads.
        const CACHE_DIR = 1 << 3;
        /// No FLUSH at close.
        const NOFLUSH = 1 << 5;
        /// Reads go to the backing file.
        const PASSTHROUGH = 1 << 7;
    }
}

bitflags::bitflags! {
    /// The fields that a SETATTR sets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fattr: u32 {
        /// Mode.
        const MODE = 1;
        /// Owner.
        const UID = 1 << 1;
        /// Group.
        const GID = 1 << 2;
        /// Size.
        const SIZE = 1 << 3;
        /// Time of last access.
        const ATIME = 1 << 4;
        /// Time of last modification.
        const MTIME = 1 << 5;
        /// The field `fh` is valid.
        const FH = 1 << 6;
        /// Set the time of last access to now.
        const ATIME_NOW = 1 << 7;
        /// Set the time of last modification to now.
        const MTIME_NOW = 1 << 8;
        /// Clear the set-id bits.
        const KILL_SUIDGID = 1 << 11;
    }
}

/// FUSE_RELEASE_FLOCK_UNLOCK
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// FUSE_LK_FLOCK
pub const LK_FLOCK: u32 = 1;
/// FUSE_WRITE_CACHE: write-back of mapped pages; `fh` may be any open of the file.
pub const WRITE_CACHE: u32 = 1;
/// FUSE_WRITE_LOCKOWNER: set on direct writes only.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// FUSE_READ_LOCKOWNER: set on direct reads only.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// FUSE_WRITE_KILL_SUIDGID
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// FUSE_NOTIFY_INVAL_INODE
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// FUSE_NOTIFY_INVAL_ENTRY
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// FUSE_EXPIRE_ONLY. Older kernels take it for padding and ignore it.
pub const EXPIRE_ONLY: u32 = 1 << 0;
