//! The error statuses (RFC 8881, section 15.1; RFC 7862, section 11.1; RFC 8276, section 8.5).

use std::fmt;

/// A status without a body, which may be `NFS4_OK`.
pub type Outcome = crate::Reply<(), Status>;

macro_rules! statuses {
    ($($variant:ident = $value:literal, $text:literal, $doc:literal;)*) => {
        crate::reply::failures! {
            /// `nfsstat4` without `NFS4_OK`, which is the `Ok` of a result.
            Status {
                $(#[doc = concat!("`NFS4ERR_", $text, "`: ", $doc, ".")] $variant = $value,)*
            }
        }

        impl Status {
            /// All known statuses.
            pub const ALL: &'static [Status] = &[$(Status::$variant),*];

            /// Its name in the RFC without the prefix; `None` if it is unknown.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Status::$variant => Some($text),)*
                    Status::Other(_) => None,
                }
            }
        }
    };
}

statuses! {
    Perm = 1, "PERM", "not owner";
    NoEnt = 2, "NOENT", "no such file or directory";
    Io = 5, "IO", "a hard error";
    Nxio = 6, "NXIO", "no such device or address";
    Access = 13, "ACCESS", "permission denied";
    Exist = 17, "EXIST", "file exists";
    Xdev = 18, "XDEV", "a link or rename across file systems";
    NotDir = 20, "NOTDIR", "not a directory";
    IsDir = 21, "ISDIR", "is a directory";
    Inval = 22, "INVAL", "invalid argument";
    FBig = 27, "FBIG", "file too large";
    NoSpc = 28, "NOSPC", "no space left on device";
    Rofs = 30, "ROFS", "read-only file system";
    Mlink = 31, "MLINK", "too many hard links";
    NameTooLong = 63, "NAMETOOLONG", "the name is too long";
    NotEmpty = 66, "NOTEMPTY", "the directory is not empty";
    Dquot = 69, "DQUOT", "quota exceeded";
    Stale = 70, "STALE", "the handle names nothing any more";
    BadHandle = 10001, "BADHANDLE", "an illegal handle";
    BadCookie = 10003, "BAD_COOKIE", "the cookie is stale";
    NotSupp = 10004, "NOTSUPP", "not supported";
    TooSmall = 10005, "TOOSMALL", "the buffer or request is too small";
    ServerFault = 10006, "SERVERFAULT", "an error that maps to none of these";
    BadType = 10007, "BADTYPE", "a type of object that CREATE does not make";
    Delay = 10008, "DELAY", "not soon done: try again later";
    Same = 10009, "SAME", "NVERIFY found the attributes the same";
    Denied = 10010, "DENIED", "a lock is in the way";
    Expired = 10011, "EXPIRED", "the lease of the state is over";
    Locked = 10012, "LOCKED", "a mandatory lock is in the way";
    Grace = 10013, "GRACE", "the server is in its grace period";
    FhExpired = 10014, "FHEXPIRED", "a volatile handle has expired";
    ShareDenied = 10015, "SHARE_DENIED", "a share reservation is in the way";
    WrongSec = 10016, "WRONGSEC", "the security flavor is not allowed here";
    ClidInuse = 10017, "CLID_INUSE", "another principal has the client's name";
    Resource = 10018, "RESOURCE", "resource exhaustion, in minor version 0";
    Moved = 10019, "MOVED", "the file system is elsewhere";
    NoFileHandle = 10020, "NOFILEHANDLE", "there is no current handle";
    MinorVersMismatch = 10021, "MINOR_VERS_MISMATCH", "the minor version is not supported";
    StaleClientid = 10022, "STALE_CLIENTID", "the client id is of an earlier server";
    StaleStateid = 10023, "STALE_STATEID", "the state id is of an earlier server";
    OldStateid = 10024, "OLD_STATEID", "the state id's seqid is out of date";
    BadStateid = 10025, "BAD_STATEID", "the state id is none";
    BadSeqid = 10026, "BAD_SEQID", "the owner's seqid is not the next one";
    NotSame = 10027, "NOT_SAME", "VERIFY found, or a cookie verifier shows, a difference";
    LockRange = 10028, "LOCK_RANGE", "the lock range overlaps one that it does not equal";
    Symlink = 10029, "SYMLINK", "the object is a symbolic link";
    RestoreFh = 10030, "RESTOREFH", "there is no saved handle";
    LeaseMoved = 10031, "LEASE_MOVED", "a file system under the lease is elsewhere";
    AttrNotSupp = 10032, "ATTRNOTSUPP", "an attribute that is not supported";
    NoGrace = 10033, "NO_GRACE", "nothing can be reclaimed now";
    ReclaimBad = 10034, "RECLAIM_BAD", "the reclaim does not fit what the server knows";
    ReclaimConflict = 10035, "RECLAIM_CONFLICT", "the reclaim is in conflict with another state";
    BadXdr = 10036, "BADXDR", "the arguments cannot be decoded";
    LocksHeld = 10037, "LOCKS_HELD", "locks would be left behind";
    OpenMode = 10038, "OPENMODE", "the file is not open in this way";
    BadOwner = 10039, "BADOWNER", "an owner that cannot be translated";
    BadChar = 10040, "BADCHAR", "a character that the server does not support";
    BadName = 10041, "BADNAME", "a name that the server does not support";
    BadRange = 10042, "BAD_RANGE", "a lock range that the server does not support";
    LockNotSupp = 10043, "LOCK_NOTSUPP", "an upgrade or downgrade of a lock is not supported";
    OpIllegal = 10044, "OP_ILLEGAL", "there is no such operation";
    Deadlock = 10045, "DEADLOCK", "waiting for the lock would be a deadlock";
    FileOpen = 10046, "FILE_OPEN", "the file is open";
    AdminRevoked = 10047, "ADMIN_REVOKED", "the state was revoked by the administrator";
    CbPathDown = 10048, "CB_PATH_DOWN", "the client cannot be called back";
    BadIomode = 10049, "BADIOMODE", "an illegal or unfit layout I/O mode";
    BadLayout = 10050, "BADLAYOUT", "an illegal layout";
    BadSessionDigest = 10051, "BAD_SESSION_DIGEST", "the digest of the SSV is wrong";
    BadSession = 10052, "BADSESSION", "there is no such session";
    BadSlot = 10053, "BADSLOT", "the slot is out of range";
    CompleteAlready = 10054, "COMPLETE_ALREADY", "RECLAIM_COMPLETE was already sent";
    ConnNotBoundToSession = 10055, "CONN_NOT_BOUND_TO_SESSION", "the connection is not of the session";
    DelegAlreadyWanted = 10056, "DELEG_ALREADY_WANTED", "the delegation is already wanted";
    BackChanBusy = 10057, "BACK_CHAN_BUSY", "the backchannel has requests outstanding";
    LayoutTryLater = 10058, "LAYOUTTRYLATER", "no layout now: try again later";
    LayoutUnavailable = 10059, "LAYOUTUNAVAILABLE", "no layout of the file can be had";
    NoMatchingLayout = 10060, "NOMATCHING_LAYOUT", "the client has no such layout";
    RecallConflict = 10061, "RECALLCONFLICT", "a layout that is being recalled is in the way";
    UnknownLayoutType = 10062, "UNKNOWN_LAYOUTTYPE", "the layout type is not supported";
    SeqMisordered = 10063, "SEQ_MISORDERED", "the slot's sequence id is not the next one";
    SequencePos = 10064, "SEQUENCE_POS", "SEQUENCE that is not the first operation";
    ReqTooBig = 10065, "REQ_TOO_BIG", "the request is larger than the session has";
    RepTooBig = 10066, "REP_TOO_BIG", "the reply would be larger than the session has";
    RepTooBigToCache = 10067, "REP_TOO_BIG_TO_CACHE", "the reply would be larger than the session caches";
    RetryUncachedRep = 10068, "RETRY_UNCACHED_REP", "a retry of what was not to be cached";
    UnsafeCompound = 10069, "UNSAFE_COMPOUND", "the reply could not be cached safely";
    TooManyOps = 10070, "TOO_MANY_OPS", "more operations than the session has";
    OpNotInSession = 10071, "OP_NOT_IN_SESSION", "an operation that needs SEQUENCE before it";
    HashAlgUnsupp = 10072, "HASH_ALG_UNSUPP", "no hash algorithm of the SSV is supported";
    ClientidBusy = 10074, "CLIENTID_BUSY", "the client id still has state";
    PnfsIoHole = 10075, "PNFS_IO_HOLE", "I/O at a hole of the layout";
    SeqFalseRetry = 10076, "SEQ_FALSE_RETRY", "a retry that is another request";
    BadHighSlot = 10077, "BAD_HIGH_SLOT", "the highest slot is out of range";
    DeadSession = 10078, "DEADSESSION", "the session is gone, but its replies are not";
    EncrAlgUnsupp = 10079, "ENCR_ALG_UNSUPP", "no encryption algorithm of the SSV is supported";
    PnfsNoLayout = 10080, "PNFS_NO_LAYOUT", "I/O without a layout";
    NotOnlyOp = 10081, "NOT_ONLY_OP", "an operation that must be the only one";
    WrongCred = 10082, "WRONG_CRED", "the state is another principal's";
    WrongType = 10083, "WRONG_TYPE", "the object is of a type that this cannot be done with";
    DirDelegUnavail = 10084, "DIRDELEG_UNAVAIL", "the directory delegation is not available";
    RejectDeleg = 10085, "REJECT_DELEG", "the client rejects the delegation offered";
    ReturnConflict = 10086, "RETURNCONFLICT", "the layout is being returned";
    DelegRevoked = 10087, "DELEG_REVOKED", "the delegation was revoked";
    PartnerNotSupp = 10088, "PARTNER_NOTSUPP", "the other server does not support the copy";
    PartnerNoAuth = 10089, "PARTNER_NO_AUTH", "the other server does not authorize the copy";
    UnionNotSupp = 10090, "UNION_NOTSUPP", "a case of a union that is not supported";
    OffloadDenied = 10091, "OFFLOAD_DENIED", "the copy is not offloaded here";
    WrongLfs = 10092, "WRONG_LFS", "the label is of another format";
    BadLabel = 10093, "BADLABEL", "the label is not valid";
    OffloadNoReqs = 10094, "OFFLOAD_NO_REQS", "the copy cannot be made as required";
    NoXattr = 10095, "NOXATTR", "there is no such extended attribute";
    Xattr2Big = 10096, "XATTR2BIG", "the extended attribute is too big";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "NFS4ERR_{name}"),
            None => write!(f, "NFS4 status {}", u32::from(*self)),
        }
    }
}

/// `NFS4_OK` is `Ok`.
impl From<Result<(), Status>> for Outcome {
    fn from(result: Result<(), Status>) -> Outcome {
        match result {
            Ok(()) => Outcome::Ok(()),
            Err(status) => Outcome::Fail(status, ()),
        }
    }
}
