//! The error of the interface: an NFS status, and what the reply brought besides.
//!
//! The set of statuses is closed. Each layer maps the errors below it to a status in one place, and each
//! front maps the statuses to its protocol's codes in one place.

use crate::attributes::Attributes;
use crate::results::DirectoryLease;

/// The result of every operation of the interface.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason of a failure: the error names of RFC 1813 (section 2.6) and RFC 8881 (section 15) without the
/// prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Status {
    /// Not the owner.
    #[error("operation not permitted")]
    Perm,
    /// No such file or directory.
    #[error("no such file or directory")]
    NoEnt,
    /// A hard error of a device or of the origin, or an origin that did not answer a `soft` client.
    #[error("input/output error")]
    Io,
    /// No such device or address.
    #[error("no such device or address")]
    Nxio,
    /// Permission denied.
    #[error("permission denied")]
    Access,
    /// The user has no ticket of Kerberos that the origin takes, so the origin was not asked.
    #[error("no ticket of Kerberos")]
    NoTicket,
    /// The name exists.
    #[error("file exists")]
    Exist,
    /// A link or rename across file systems.
    #[error("cross-device link")]
    Xdev,
    /// No such device.
    #[error("no such device")]
    NoDev,
    /// Not a directory.
    #[error("not a directory")]
    NotDir,
    /// A directory where none may be.
    #[error("is a directory")]
    IsDir,
    /// An argument that makes no sense for the operation.
    #[error("invalid argument")]
    Inval,
    /// The file would be too large.
    #[error("file too large")]
    FBig,
    /// No space left.
    #[error("no space left on device")]
    NoSpc,
    /// A read-only file system or export.
    #[error("read-only file system")]
    Rofs,
    /// Too many hard links.
    #[error("too many links")]
    Mlink,
    /// The name is longer than the file system allows.
    #[error("file name too long")]
    NameTooLong,
    /// The directory is not empty.
    #[error("directory not empty")]
    NotEmpty,
    /// Over quota.
    #[error("disk quota exceeded")]
    Dquot,
    /// The handle was good once and names nothing now.
    #[error("stale file handle")]
    Stale,
    /// The handle was never one of ours.
    #[error("bad file handle")]
    BadHandle,
    /// The guard of a SETATTR does not hold.
    #[error("guard does not match")]
    NotSync,
    /// The cookie of a directory read means nothing any more.
    #[error("bad directory cookie")]
    BadCookie,
    /// The back end does not offer the operation.
    #[error("operation not supported")]
    NotSupp,
    /// The buffer given is too small for even one entry.
    #[error("buffer too small")]
    TooSmall,
    /// A fault of our own making.
    #[error("server fault")]
    ServerFault,
    /// A type of file that the back end cannot make.
    #[error("bad file type")]
    BadType,
    /// Try again a little later: JUKEBOX of v3, DELAY of v4.
    #[error("try again later")]
    Delay,
    /// There is no capacity for one more open, lock or lease until a holder gives one up
    /// ([`Opens::free_capacity`]). A client sees `Delay`.
    ///
    /// [`Opens::free_capacity`]: crate::Opens::free_capacity
    #[error("too much is held already")]
    Resource,
    /// An open of another owner denies this share.
    #[error("share denied")]
    ShareDenied,
    /// A byte-range lock of another owner conflicts.
    #[error("lock denied")]
    Denied,
    /// The open does not have the access that the operation needs.
    #[error("not opened for that")]
    OpenMode,
    /// The owner still holds locks.
    #[error("locks are held")]
    LocksHeld,
    /// The grace period: clients reclaim state from before a restart, and the server grants nothing new.
    #[error("in the period of grace")]
    Grace,
    /// A reclaim outside of a grace period.
    #[error("nothing to reclaim")]
    NoGrace,
    /// The client did not hold the state that it reclaims.
    #[error("that was not held")]
    ReclaimBad,
    /// The object has no extended attribute of that name.
    #[error("no such extended attribute")]
    NoXattr,
    /// The extended attribute is too large for the file system.
    #[error("extended attribute too large")]
    XattrTooBig,
    /// The open or lock does not exist.
    #[error("bad state id")]
    BadStateId,
}

/// A failed operation, and what its reply brought all the same.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{status}")]
pub struct Error {
    /// The reason.
    pub status: Status,
    /// Attributes of the object (of the directory, if the operation takes a name) after the failure. Version
    /// 3 sends them with errors too.
    pub attributes: Option<Box<Attributes>>,
    /// The lease on the directory, if the request wanted one and the reply brought it although the operation
    /// failed.
    pub directory_lease: Option<Box<DirectoryLease>>,
}

impl Error {
    /// The same failure with attributes of the object asked.
    #[must_use]
    pub fn with(mut self, attributes: Option<Attributes>) -> Error {
        self.attributes = attributes.map(Box::new);
        self
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Error {
        Error { status, attributes: None, directory_lease: None }
    }
}
