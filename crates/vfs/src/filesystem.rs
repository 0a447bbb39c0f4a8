//! The trait between every two layers, and what its operations return.
//!
//! Every operation is one NFS operation with its arguments parsed; its errors are those of RFC 1813 for the procedure
//! of the same name. Post-operation attributes are `Option`s where the protocol below may leave them out: a layer
//! passes on what it got and never invents. A handle that the back end does not know gives `BadHandle` or `Stale`.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Verifier;
use crate::attributes::{Attributes, Device, FileType, SetAttributes, Wcc};
use crate::caller::{AccessMask, Caller};
use crate::data::{CompleteFile, Data};
use crate::error::{Result, Status};
use crate::extended::{Acl, Copied, Extent, Features, ListedXattrs, Place, Sought, XattrHow, XattrName};
use crate::handle::Handle;
use crate::lease::{Adopted, Callbacks, Lease, LeaseId, LeaseKind};
use crate::name::Name;
use crate::open::{Lock, LockRequest, Locked, OpenId, OpenRequest, Opened, Owner, Share, StateidBasis};
use crate::time::Timestamp;

/// Since when the origin has not answered while calls waited; `None` if it answers, or nobody has asked.
pub type UnansweredSince = Option<Instant>;

/// A file with its handle: what names lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its handle.
    pub handle: Handle,
    /// Its attributes, if they came along.
    pub attributes: Option<Attributes>,
}

/// The result of a LOOKUP.
#[derive(Clone, Copy, Debug)]
pub struct Looked {
    /// What the name leads to.
    pub node: Node,
    /// The directory, if its attributes came along.
    pub directory: Option<Attributes>,
}

/// The result of an ACCESS.
#[derive(Clone, Copy, Debug)]
pub struct Accessed {
    /// Those of the asked bits that are granted.
    pub granted: AccessMask,
    /// The object.
    pub attributes: Option<Attributes>,
}

/// The result of asking for a lease on a directory.
#[derive(Clone, Copy, Debug)]
pub struct Delegated {
    /// Those of the asked rights that are granted, and the directory: under the lease, if there is one.
    pub accessed: Accessed,
    /// A lease for reading: on the directory's names, those that are absent included, and on its attributes.
    pub lease: Option<Lease>,
}

/// The result of an operation on a directory, and the lease on it that came along.
#[derive(Clone, Debug)]
pub struct AndDelegated<T> {
    /// That of the operation itself.
    pub result: Result<T>,
    /// A lease like that of [`Delegated`], and the directory under it. What the operation told may be older.
    pub lease: Option<(Lease, Attributes)>,
}

impl<T> AndDelegated<T> {
    /// Without a lease.
    pub fn alone(result: Result<T>) -> AndDelegated<T> {
        AndDelegated { result, lease: None }
    }
}

/// The result of a READ.
#[derive(Clone, Debug)]
pub struct Read {
    /// At most as many bytes as asked; fewer only at the end of the file, or where the back end's own limit is lower.
    pub data: Data,
    /// The data reaches the end of the file.
    pub eof: bool,
    /// The file. What a v3 front is over gives them with every READ or with none: Linux learns the size of a reply's
    /// header from the first one, and takes a later reply with a larger one for an I/O error.
    pub attributes: Option<Attributes>,
}

/// `stable_how` of RFC 1813: how far a WRITE must have come before it is answered.
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
    /// How many bytes were taken; at least one, if any were given.
    pub count: u32,
    /// How durable they are: at least as asked.
    pub stability: Stability,
    /// Changes when unstable data may have been lost.
    pub verifier: Verifier,
    /// The file.
    pub wcc: Wcc,
}

/// The result of a COMMIT.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// Compared with those of the writes.
    pub verifier: Verifier,
    /// The file.
    pub wcc: Wcc,
}

/// `createmode3`, for CREATE and OPEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// An existing file will do; if the attributes give a size, it is set.
    Unchecked,
    /// The name must not exist.
    Guarded,
    /// The name must not exist, unless it was made with this verifier: then the first attempt's answer was lost, and
    /// this one is to end as that did. The verifier may be in the new file's times until whoever asked sets them, which
    /// nobody else does; all other attributes are set as given, but for the size.
    Exclusive(Verifier),
}

/// The result of whatever makes a name.
#[derive(Clone, Copy, Debug)]
pub struct Created {
    /// The new object.
    pub node: Node,
    /// The directory.
    pub directory: Wcc,
}

/// The result of a RENAME.
#[derive(Clone, Copy, Debug)]
pub struct Renamed {
    /// The directory that the name left.
    pub from: Wcc,
    /// The directory that it came to.
    pub to: Wcc,
}

/// What part of a directory to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadDir {
    /// Where to go on; zero from the start.
    pub cookie: u64,
    /// That of the first answer; zero with cookie zero.
    pub verifier: Verifier,
    /// About how many bytes of encoded entries are wanted; a back end may give fewer or a few more, and at least one
    /// entry unless the directory has ended. A front cuts what does not fit.
    pub bytes: u32,
    /// Handles and attributes of the entries are wanted (READDIRPLUS).
    pub plus: bool,
}

/// One entry of a directory. `.` and `..` are never among them: fronts add them.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// Its inode number.
    pub fileid: u64,
    /// Reading from here goes on behind this entry. Never below [`Entry::FIRST_COOKIE`].
    pub cookie: u64,
    /// What it is, if asked for and known.
    pub node: Option<Node>,
}

impl Entry {
    /// Cookies 0, 1 and 2 are the fronts' (start, behind `.`, behind `..`).
    pub const FIRST_COOKIE: u64 = 3;
}

/// Part of a directory.
#[derive(Clone, Debug)]
pub struct Listing {
    /// In the order of the back end.
    pub entries: Vec<Entry>,
    /// To be given with the next cookie.
    pub verifier: Verifier,
    /// The directory ends here.
    pub eof: bool,
    /// The directory.
    pub directory: Option<Attributes>,
}

/// Space and files of a file system (FSSTAT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FsStat {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes free.
    pub free_bytes: u64,
    /// Bytes free for the caller.
    pub available_bytes: u64,
    /// Files in all.
    pub total_files: u64,
    /// Files free.
    pub free_files: u64,
    /// Files free for the caller.
    pub available_files: u64,
    /// For how many seconds the above is not expected to change.
    pub invariant_seconds: u32,
}

/// What a file system can do (FSINFO and PATHCONF).
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
    /// Granule of its time stamps, in nanoseconds.
    pub time_delta_nanoseconds: u64,
    /// Hard links work.
    pub hard_links: bool,
    /// Symbolic links work.
    pub symlinks: bool,
    /// PATHCONF is the same for all of the file system.
    pub homogeneous: bool,
    /// Times can be set.
    pub can_set_time: bool,
    /// Most links to a file.
    pub link_max: u32,
    /// Longest name.
    pub name_max: u32,
    /// Longer names are an error, not cut.
    pub no_trunc: bool,
    /// Only the superuser may change an owner.
    pub chown_restricted: bool,
    /// Case does not matter in names.
    pub case_insensitive: bool,
    /// Case is kept in names.
    pub case_preserving: bool,
    /// What there is besides.
    pub features: Features,
    /// What ranges of a CLONE are multiples of, in bytes, where the file system says so. One that does not may clone all
    /// the same ([`Features::CLONE`]).
    pub clone_block_bytes: Option<u32>,
    /// Bytes that were free for the caller at that moment, if that was told along with the rest.
    pub available_bytes: Option<u64>,
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
        }
    }
}

/// A file system, as seen from the layer above. Object-safe; every method may be called concurrently.
#[async_trait]
pub trait FileSystem: Send + Sync + 'static {
    /// The root of what is exported, with attributes.
    async fn root(&self, caller: &Caller) -> Result<Node>;

    /// Attributes of a file.
    async fn getattr(&self, caller: &Caller, handle: &Handle) -> Result<Attributes>;

    /// Sets attributes; with `guard`, only if ctime still equals it (else `NotSync`).
    async fn setattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        set: &SetAttributes,
        guard: Option<Timestamp>,
    ) -> Result<Wcc>;

    /// Which of the `asked` rights the caller has. Only ever an answer of the authority, fresh or remembered.
    async fn access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Result<Accessed>;

    /// What a name in a directory leads to.
    async fn lookup(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Looked>;

    /// The directory that a directory is in; of the root, the root itself.
    async fn parent(&self, caller: &Caller, directory: &Handle) -> Result<Looked>;

    /// The target of a symbolic link, at most 4,096 bytes.
    async fn readlink(&self, caller: &Caller, handle: &Handle) -> Result<(Bytes, Option<Attributes>)>;

    /// Reads at most `count` bytes at `offset`.
    async fn read(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        count: u32,
    ) -> Result<Read>;

    /// Writes `data` at `offset`.
    async fn write(
        &self,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Written>;

    /// Makes unstable writes of `count` bytes at `offset` durable; a `count` of zero is to the end of the file. Where
    /// writes are delayed, their errors are told here or by `close`, once.
    async fn commit(&self, caller: &Caller, handle: &Handle, offset: u64, count: u32) -> Result<Commit>;

    /// Makes a regular file.
    async fn create(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created>;

    /// Makes a directory.
    async fn mkdir(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> Result<Created>;

    /// Makes a symbolic link to `target`, which is any bytes but NUL, at most 4,096 of them.
    async fn symlink(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        target: &[u8],
        set: &SetAttributes,
    ) -> Result<Created>;

    /// Makes a device, socket or named pipe.
    async fn mknod(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        file_type: FileType,
        device: Device,
        set: &SetAttributes,
    ) -> Result<Created>;

    /// Removes a name that is not a directory's.
    async fn remove(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc>;

    /// Removes an empty directory.
    async fn rmdir(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Wcc>;

    /// Renames, replacing what the new name led to.
    async fn rename(
        &self,
        caller: &Caller,
        from: &Handle,
        from_name: &Name,
        to: &Handle,
        to_name: &Name,
    ) -> Result<Renamed>;

    /// Makes another name for a file. `node` of the result is the file.
    async fn link(&self, caller: &Caller, file: &Handle, directory: &Handle, name: &Name) -> Result<Created>;

    /// Reads part of a directory.
    async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing>;

    /// Space and files.
    async fn fsstat(&self, caller: &Caller, handle: &Handle) -> Result<FsStat>;

    /// What the file system can do.
    async fn limits(&self, caller: &Caller, handle: &Handle) -> Result<FsLimits>;

    /// Opens a file, atomically with its creation, the grant of a lease and the reading of its attributes.
    async fn open(&self, _caller: &Caller, _request: &OpenRequest) -> Result<Opened> {
        Err(Status::NotSupp.into())
    }

    /// Gives up part of an open's share; `access` and `deny` must be a combination that the open once had.
    async fn downgrade(&self, _caller: &Caller, _open: OpenId, _access: Share, _deny: Share) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    /// Does what the end of this open would do about delayed writes, and tells of their errors, while the open goes on: one
    /// of several descriptors has been closed. `NotSupp` where no writes are delayed: then COMMIT does it.
    async fn flush(&self, _caller: &Caller, _open: OpenId) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    /// Ends an open; it is over even with an error, which is that of a delayed write.
    async fn close(&self, _caller: &Caller, _open: OpenId) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    /// Takes a byte-range lock; never waits. What the owner holds of the range changes its kind.
    async fn lock(&self, _caller: &Caller, _open: OpenId, _request: &LockRequest) -> Result<Locked> {
        Err(Status::NotSupp.into())
    }

    /// Gives up whatever `owner` holds of a range.
    async fn unlock(
        &self,
        _caller: &Caller,
        _open: OpenId,
        _owner: &Owner,
        _range: (u64, u64),
    ) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    /// The lock that would deny this one, if any.
    async fn test(&self, _caller: &Caller, _handle: &Handle, _lock: &Lock) -> Result<Option<Lock>> {
        Err(Status::NotSupp.into())
    }

    /// Does `owner` hold any lock of the open's file? Without a call to the origin.
    fn holds_locks(&self, _open: OpenId, _owner: &Owner) -> bool {
        false
    }

    /// Until when what this layer last said of a file, and of the name that it was found under, may be believed without
    /// asking: attribute timeouts, and not what a lease vouches for, which is known to who has it. `None`: not at all.
    fn believed_until(&self, _handle: &Handle) -> Option<Instant> {
        None
    }

    /// Grows each time that another client was seen to have changed names in this directory. Attribute timeouts prove no name
    /// in it that was told before. Without a call to the origin.
    fn names_doubted(&self, _directory: &Handle) -> u64 {
        0
    }

    /// All of an open file, if it is on this machine and valid as far as the layer knows, and the caller may read it.
    /// Without a call to the origin: what the open showed is what counts.
    async fn complete_file(&self, _caller: &Caller, _open: OpenId) -> Option<CompleteFile> {
        None
    }

    /// The stream of callbacks about what this layer grants. There is one; it can be taken once. `None` if the layer
    /// calls nobody back, or the stream has been taken.
    fn callbacks(&self) -> Option<Callbacks> {
        None
    }

    /// What is still held below from before the process was started. Asked once, after [`callbacks`](FileSystem::callbacks)
    /// was taken and before anything else: the layer above then holds it as if it had asked for it in this process.
    fn adopted(&self) -> Adopted {
        Adopted::default()
    }

    /// Nobody reclaims anything any more that was held before the process was started (RFC 8881, section 8.4.2): what was
    /// adopted and not reclaimed goes. Said once by the front; until then `reclaim` of an open or a lock is granted if the
    /// adopted ones cover it.
    async fn end_reclaim(&self) {}

    /// A lease comes back, recalled or not.
    async fn returned(&self, _caller: &Caller, _lease: LeaseId) -> Result<()> {
        Err(Status::NotSupp.into())
    }

    /// A lease with a term of its own, without an open: granted to the caller's holder, or renewed (NQNFS, section 4).
    /// It ends by itself `term` after the call; until it has truly ended, or was returned, nobody is let in its way.
    /// `None` if there is to be no caching now, because others use the file too, or the layer below grants nothing.
    ///
    /// # Errors
    /// `Delay` if what others hold did not come back in time, or the bound on leases was reached.
    async fn lease(
        &self,
        _caller: &Caller,
        _handle: &Handle,
        _kind: LeaseKind,
        _term: Duration,
    ) -> Result<Option<Lease>> {
        Ok(None)
    }

    /// ACCESS of a directory, and along with it a lease on it, if there is one to be had (GET_DIR_DELEGATION, RFC 8881,
    /// section 18.39). The lease covers all names in the directory, which ones there are not, and its attributes: whoever
    /// else makes, removes or renames a name there, or changes the directory itself, waits until it is returned. What is
    /// *behind* the names it does not cover. The caller's holder may change the directory under it.
    ///
    /// # Errors
    /// Those of ACCESS.
    async fn delegate(&self, caller: &Caller, directory: &Handle, asked: AccessMask) -> Result<Delegated> {
        Ok(Delegated { accessed: self.access(caller, directory, asked).await?, lease: None })
    }

    /// LOOKUP, and along with it a lease on the directory, as [`FileSystem::delegate`] gives it, if there is one to be had
    /// without another call. Whether the name is there or not has no say in that.
    async fn lookup_and_delegate(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
    ) -> AndDelegated<Looked> {
        AndDelegated::alone(self.lookup(caller, directory, name).await)
    }

    /// An open by name that makes nothing, and a lease on the directory in the same way.
    async fn open_and_delegate(&self, caller: &Caller, request: &OpenRequest) -> AndDelegated<Opened> {
        AndDelegated::alone(self.open(caller, request).await)
    }

    /// An open that makes nothing, and along with it a READ of `part` (offset and count) under it, if there is one to be had without
    /// another call. The bytes are those of the attributes that the open tells, or later ones; if it brings a lease, they were
    /// read under that. With `delegate`, a lease on the directory comes along as with [`FileSystem::open_and_delegate`].
    /// No READ where it failed or was not tried: whoever wants the bytes asks for them, and hears why.
    async fn open_and_read(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        _part: (u64, u32),
        delegate: bool,
    ) -> (AndDelegated<Opened>, Option<Read>) {
        let opened = if delegate {
            self.open_and_delegate(caller, request).await
        } else {
            AndDelegated::alone(self.open(caller, request).await)
        };
        (opened, None)
    }

    /// READDIR, and a lease on the directory in the same way.
    async fn readdir_and_delegate(
        &self,
        caller: &Caller,
        directory: &Handle,
        part: ReadDir,
    ) -> AndDelegated<Listing> {
        AndDelegated::alone(self.readdir(caller, directory, part).await)
    }

    /// MKDIR, and along with it a lease like that of [`FileSystem::delegate`] on the directory that is made, if there is one to
    /// be had without another call. It also tells that the caller has all rights on that, and that nothing is in it.
    async fn mkdir_and_delegate(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        set: &SetAttributes,
    ) -> Result<(Created, Option<Lease>)> {
        Ok((self.mkdir(caller, directory, name, set).await?, None))
    }

    /// Does a name lead anywhere, as far as is remembered? Without a call to the origin, and not to be relied on: it may
    /// say which way is likely to be the shorter. `None` where looking is as good as remembering.
    fn is_remembered(&self, _directory: &Handle, _name: &Name) -> Option<bool> {
        None
    }

    /// The access control list.
    async fn acl(&self, _caller: &Caller, _handle: &Handle) -> Result<Acl> {
        Err(Status::NotSupp.into())
    }

    /// Sets the access control list.
    async fn set_acl(&self, _caller: &Caller, _handle: &Handle, _acl: &Acl) -> Result<Wcc> {
        Err(Status::NotSupp.into())
    }

    /// The value of an extended attribute.
    async fn getxattr(&self, _caller: &Caller, _handle: &Handle, _name: &XattrName) -> Result<Bytes> {
        Err(Status::NotSupp.into())
    }

    /// Sets an extended attribute.
    async fn setxattr(
        &self,
        _caller: &Caller,
        _handle: &Handle,
        _name: &XattrName,
        _value: Bytes,
        _how: XattrHow,
    ) -> Result<Wcc> {
        Err(Status::NotSupp.into())
    }

    /// Names of extended attributes from `cookie` (zero: the first) on, about `bytes` bytes of them.
    async fn listxattrs(
        &self,
        _caller: &Caller,
        _handle: &Handle,
        _cookie: u64,
        _bytes: u32,
    ) -> Result<ListedXattrs> {
        Err(Status::NotSupp.into())
    }

    /// Removes an extended attribute.
    async fn removexattr(&self, _caller: &Caller, _handle: &Handle, _name: &XattrName) -> Result<Wcc> {
        Err(Status::NotSupp.into())
    }

    /// Where the next data or hole begins.
    ///
    /// # Errors
    /// `Nxio` if `offset` is at or behind the end, or no data follows.
    async fn seek(
        &self,
        _caller: &Caller,
        _handle: &Handle,
        _by: StateidBasis,
        _offset: u64,
        _what: Extent,
    ) -> Result<Sought> {
        Err(Status::NotSupp.into())
    }

    /// Reserves space for a range, and lets the file grow to its end.
    async fn allocate(&self, _caller: &Caller, _at: Place, _length: u64) -> Result<Wcc> {
        Err(Status::NotSupp.into())
    }

    /// Makes a range a hole.
    async fn deallocate(&self, _caller: &Caller, _at: Place, _length: u64) -> Result<Wcc> {
        Err(Status::NotSupp.into())
    }

    /// Copies `count` bytes (zero: to the end) between two places of this file system.
    async fn copy(&self, _caller: &Caller, _from: Place, _to: Place, _count: u64) -> Result<Copied> {
        Err(Status::NotSupp.into())
    }

    /// Makes a range share its blocks with another, or fails; a `count` of zero is to the end.
    async fn clone_range(&self, _caller: &Caller, _from: Place, _to: Place, _count: u64) -> Result<Wcc> {
        Err(Status::NotSupp.into())
    }

    /// Something failed with `Resource`: has what the layers above hold unused called back, and waits until some of it has
    /// come, no longer than the caller's deadline. True if it is worth another try.
    async fn free_capacity(&self, _caller: &Caller) -> bool {
        false
    }

    /// Since when calls have been made in vain: nothing has been heard of the origin, though somebody waits for it. The
    /// layer that makes the calls tells, the layers above pass it on. `None` where there is nobody to wait for.
    fn unanswered_since(&self) -> Option<watch::Receiver<UnansweredSince>> {
        None
    }

    /// The layer above is about to end: it asks for nothing that brings a lease any more, and those that it returns from now
    /// on may be told of all at once, by [`FileSystem::shutdown`].
    fn prepare_shutdown(&self) {}

    /// Leaves nothing behind: stores what is only in memory. Called once, before the process ends in order.
    async fn shutdown(&self) {}
}
