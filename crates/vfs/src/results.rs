//! Results of the operations of a [`FileSystem`](crate::FileSystem), and the arguments of READDIR and
//! CREATE.
//!
//! Post-operation attributes are `Option`s where the protocol below may leave them out. A layer passes on
//! what it got and never invents attributes.

use crate::Verifier;
use crate::attributes::{Attributes, FileType, Wcc};
use crate::caller::AccessMask;
use crate::data::Data;
use crate::error::{Error, Result};
use crate::extended::Features;
use crate::handle::Handle;
use crate::lease::Lease;
use crate::name::Name;
use crate::open::Opened;

/// A file and its handle: the target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes, if the reply has them.
    pub attributes: Option<Attributes>,
}

/// The result of a LOOKUP.
#[derive(Clone, Copy, Debug)]
pub struct Looked {
    /// The target of the name.
    pub node: Node,
    /// The directory's attributes, if the reply has them.
    pub directory: Option<Attributes>,
    /// The lease on the directory, if the request wanted one and the reply brought it.
    pub directory_lease: Option<DirectoryLease>,
}

/// The result of an ACCESS.
#[derive(Clone, Copy, Debug)]
pub struct Accessed {
    /// The granted rights among those that the caller asked for.
    pub granted: AccessMask,
    /// The object's attributes, if the reply has them.
    pub attributes: Option<Attributes>,
}

/// The result of a request for a lease on a directory.
#[derive(Clone, Copy, Debug)]
pub struct Delegated {
    /// The granted rights, and the directory's attributes. They hold under the lease, if there is one.
    pub accessed: Accessed,
    /// A read lease on the directory's names (absent names included) and on its attributes.
    pub lease: Option<Lease>,
}

/// A read lease on a directory that came with the reply to another operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryLease {
    /// The lease, as [`Leases::delegate`](crate::Leases::delegate) grants it.
    pub lease: Lease,
    /// The directory's attributes under the lease. Other attributes in the same reply may be older.
    pub attributes: Attributes,
}

impl DirectoryLease {
    /// A lease with the attributes under it; `None` if either is missing.
    pub fn pair(lease: Option<Lease>, attributes: Option<Attributes>) -> Option<DirectoryLease> {
        lease.zip(attributes).map(|(lease, attributes)| DirectoryLease { lease, attributes })
    }
}

/// A result that may bring a lease on the directory that the operation named.
pub trait BringsDirectoryLease {
    /// Puts a lease into the result.
    fn set_directory_lease(&mut self, lease: Option<DirectoryLease>);

    /// Takes the lease out of the result.
    fn take_directory_lease(&mut self) -> Option<DirectoryLease>;

    /// Puts a lease into the result of an operation, whether it succeeded or not: a LOOKUP of an absent name
    /// may bring a lease too.
    fn attach(mut result: Result<Self>, lease: Option<DirectoryLease>) -> Result<Self>
    where
        Self: Sized,
    {
        match &mut result {
            Ok(done) => done.set_directory_lease(lease),
            Err(Error { directory_lease, .. }) => *directory_lease = lease.map(Box::new),
        }
        result
    }

    /// Takes the lease out of the result of an operation.
    fn detach(result: &mut Result<Self>) -> Option<DirectoryLease>
    where
        Self: Sized,
    {
        match result {
            Ok(done) => done.take_directory_lease(),
            Err(error) => error.directory_lease.take().map(|lease| *lease),
        }
    }
}

impl BringsDirectoryLease for Looked {
    fn set_directory_lease(&mut self, lease: Option<DirectoryLease>) {
        self.directory_lease = lease;
    }

    fn take_directory_lease(&mut self) -> Option<DirectoryLease> {
        self.directory_lease.take()
    }
}

impl BringsDirectoryLease for Opened {
    fn set_directory_lease(&mut self, lease: Option<DirectoryLease>) {
        self.directory_lease = lease.map(Box::new);
    }

    fn take_directory_lease(&mut self) -> Option<DirectoryLease> {
        self.directory_lease.take().map(|lease| *lease)
    }
}

impl BringsDirectoryLease for Listing {
    fn set_directory_lease(&mut self, lease: Option<DirectoryLease>) {
        self.directory_lease = lease;
    }

    fn take_directory_lease(&mut self) -> Option<DirectoryLease> {
        self.directory_lease.take()
    }
}

/// The result of a READ.
#[derive(Clone, Debug)]
pub struct Read {
    /// At most as many bytes as the caller asked for. There are fewer only at the end of the file, or where
    /// the back end's own limit is lower.
    pub data: Data,
    /// The data reaches the end of the file.
    pub eof: bool,
    /// The file's attributes. A back end below a v3 front gives them with every READ or with none: Linux
    /// learns the size of a reply's header from the first reply, and reports an I/O error for a later one
    /// with a larger header.
    pub attributes: Option<Attributes>,
}

/// `stable_how` of RFC 1813: how durable a WRITE must be before the server answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stability {
    /// May be lost until COMMIT.
    Unstable,
    /// The data is durable.
    DataSync,
    /// The data and all metadata are durable.
    FileSync,
}

/// The result of a WRITE.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Number of bytes written; at least one, if the caller gave any.
    pub count: u32,
    /// How durable they are: at least as durable as the caller asked.
    pub stability: Stability,
    /// Changes when the server may have lost unstable data.
    pub verifier: Verifier,
    /// The file before and after.
    pub wcc: Wcc,
}

/// The result of a COMMIT.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// The caller compares it with the verifiers of its writes.
    pub verifier: Verifier,
    /// The file before and after.
    pub wcc: Wcc,
}

/// `createmode3`, for CREATE and OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// An existing file is accepted. If the attributes give a size, the file gets that size.
    Unchecked,
    /// The name must not exist.
    Guarded,
    /// The name must not exist, unless an earlier attempt made it with this verifier. In that case the reply
    /// to the earlier attempt was lost, and this attempt succeeds. The new file's times may hold the verifier
    /// until the requester sets them. All other attributes except the size are set as given.
    Exclusive(Verifier),
}

/// The result of an operation that makes a name.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// The new object.
    pub node: Node,
    /// The directory before and after.
    pub directory: Wcc,
    /// MKDIR only: a read lease on the new directory, if the request wanted one and the reply brought it. The
    /// caller then has all rights on the directory, and the directory is empty.
    pub lease: Option<Lease>,
}

/// The result of a RENAME.
#[derive(Clone, Copy, Debug)]
pub struct Renamed {
    /// The directory of the old name.
    pub from: Wcc,
    /// The directory of the new name.
    pub to: Wcc,
}

/// What part of a directory to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadDir {
    /// The cookie of the entry to go on behind; zero reads from the start.
    pub cookie: u64,
    /// The verifier of the first reply; zero with cookie zero.
    pub verifier: Verifier,
    /// The approximate size of the reply in bytes of encoded entries. A back end may give fewer or a few more
    /// bytes, and at least one entry unless the directory has ended. A front cuts entries that do not fit.
    pub bytes: u32,
    /// The reply is to have handles and attributes of the entries (READDIRPLUS).
    pub plus: bool,
    /// The caller would like a lease on the directory with the reply, if that costs no further call.
    pub want_directory_lease: bool,
    /// Names and types are enough if they are known here and most attributes are not. The caller then asks
    /// for the attributes that it needs.
    pub names_suffice: bool,
}

/// One entry of a directory. Back ends never return `.` and `..`: fronts add them.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// Its inode number.
    pub fileid: u64,
    /// A READDIR with this cookie goes on behind this entry. Never below [`Entry::FIRST_COOKIE`].
    pub cookie: u64,
    /// Its handle and attributes, if the caller asked for them and the back end knows them.
    pub node: Option<Node>,
    /// Its type, if that is known without recent attributes ([`ReadDir::names_suffice`]).
    pub file_type: Option<FileType>,
}

impl Entry {
    /// Fronts use cookies 0, 1 and 2: the start, behind `.`, and behind `..`.
    pub const FIRST_COOKIE: u64 = 3;
}

/// Part of a directory.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The entries, in the order of the back end.
    pub entries: Vec<Entry>,
    /// The verifier for the next READDIR.
    pub verifier: Verifier,
    /// The directory has no further entries.
    pub eof: bool,
    /// The directory's attributes, if the reply has them.
    pub directory: Option<Attributes>,
    /// The lease on the directory, if the request wanted one and the reply brought it.
    pub directory_lease: Option<DirectoryLease>,
}

/// Space and files of a file system (FSSTAT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStat {
    /// Total bytes.
    pub total_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Bytes that the caller may use.
    pub available_bytes: u64,
    /// Total files (inodes).
    pub total_files: u64,
    /// Free files.
    pub free_files: u64,
    /// Files that the caller may make.
    pub available_files: u64,
    /// For so many seconds the server expects no change of the above.
    pub invariant_seconds: u32,
}

/// Limits and abilities of a file system (FSINFO and PATHCONF).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsLimits {
    /// Most bytes in a READ.
    pub read_max: u32,
    /// Preferred bytes in a READ.
    pub read_preferred: u32,
    /// Most bytes in a WRITE.
    pub write_max: u32,
    /// Preferred bytes in a WRITE.
    pub write_preferred: u32,
    /// Preferred bytes in a READDIR.
    pub readdir_preferred: u32,
    /// Largest file.
    pub file_size_max: u64,
    /// Granularity of its timestamps, in nanoseconds.
    pub time_delta_nanoseconds: u64,
    /// Hard links work.
    pub hard_links: bool,
    /// Symbolic links work.
    pub symlinks: bool,
    /// PATHCONF is the same for all of the file system.
    pub homogeneous: bool,
    /// SETATTR can set times.
    pub can_set_time: bool,
    /// Most links to a file.
    pub link_max: u32,
    /// Longest name.
    pub name_max: u32,
    /// A longer name is an error; the server does not cut it.
    pub no_trunc: bool,
    /// Only the superuser may change an owner.
    pub chown_restricted: bool,
    /// Names that differ only in case are the same name.
    pub case_insensitive: bool,
    /// The server keeps the case of names.
    pub case_preserving: bool,
    /// Operations beyond version 3.
    pub features: Features,
    /// Block size of CLONE ranges in bytes, where the server says it. A server that does not say it may still
    /// clone ([`Features::CLONE`]).
    pub clone_block_bytes: Option<u32>,
    /// Bytes that the caller could use at that moment, if the reply has them.
    pub available_bytes: Option<u64>,
    /// Requests that the server takes from one client at a time (the slots of a session).
    pub concurrent_max: u32,
}

impl Default for FsLimits {
    /// A Linux file system behind 1 MiB transfers.
    fn default() -> FsLimits {
        FsLimits {
            read_max: 1 << 20,
            read_preferred: 1 << 20,
            write_max: 1 << 20,
            write_preferred: 1 << 20,
            readdir_preferred: 1 << 16,
            file_size_max: i64::MAX as u64,
            time_delta_nanoseconds: 1,
            hard_links: true,
            symlinks: true,
            homogeneous: true,
            can_set_time: true,
            link_max: 32_000,
            name_max: 255,
            no_trunc: true,
            chown_restricted: true,
            case_insensitive: false,
            case_preserving: true,
            features: Features::empty(),
            clone_block_bytes: None,
            available_bytes: None,
            concurrent_max: 64,
        }
    }
}
