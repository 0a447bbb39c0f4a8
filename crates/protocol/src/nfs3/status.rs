//! The error statuses (RFC 1813, section 2.6).

crate::reply::failures! {
    /// `nfsstat3` without `NFS3_OK`, which is [`crate::Reply::Ok`].
    Status {
        /// `NFS3ERR_PERM`: not owner.
        Perm = 1,
        /// `NFS3ERR_NOENT`: no such file or directory.
        NoEnt = 2,
        /// `NFS3ERR_IO`: a hard error.
        Io = 5,
        /// `NFS3ERR_NXIO`: no such device or address.
        Nxio = 6,
        /// `NFS3ERR_ACCES`: permission denied.
        Acces = 13,
        /// `NFS3ERR_EXIST`: file exists.
        Exist = 17,
        /// `NFS3ERR_XDEV`: a hard link across devices.
        Xdev = 18,
        /// `NFS3ERR_NODEV`: no such device.
        NoDev = 19,
        /// `NFS3ERR_NOTDIR`: not a directory.
        NotDir = 20,
        /// `NFS3ERR_ISDIR`: is a directory.
        IsDir = 21,
        /// `NFS3ERR_INVAL`: invalid or unsupported argument.
        Inval = 22,
        /// `NFS3ERR_FBIG`: file too large.
        FBig = 27,
        /// `NFS3ERR_NOSPC`: no space left on device.
        NoSpc = 28,
        /// `NFS3ERR_ROFS`: read-only file system.
        Rofs = 30,
        /// `NFS3ERR_MLINK`: too many hard links.
        Mlink = 31,
        /// `NFS3ERR_NAMETOOLONG`: the name is too long.
        NameTooLong = 63,
        /// `NFS3ERR_NOTEMPTY`: the directory is not empty.
        NotEmpty = 66,
        /// `NFS3ERR_DQUOT`: quota exceeded.
        Dquot = 69,
        /// `NFS3ERR_STALE`: the handle's object no longer exists.
        Stale = 70,
        /// `NFS3ERR_REMOTE`: too many levels of remote in path.
        Remote = 71,
        /// `NFS3ERR_BADHANDLE`: an illegal handle.
        BadHandle = 10001,
        /// `NFS3ERR_NOT_SYNC`: the guard of a SETATTR does not match.
        NotSync = 10002,
        /// `NFS3ERR_BAD_COOKIE`: the cookie is stale.
        BadCookie = 10003,
        /// `NFS3ERR_NOTSUPP`: not supported.
        NotSupp = 10004,
        /// `NFS3ERR_TOOSMALL`: the buffer or request is too small.
        TooSmall = 10005,
        /// `NFS3ERR_SERVERFAULT`: an error that maps to none of these.
        ServerFault = 10006,
        /// `NFS3ERR_BADTYPE`: a type of object that the server does not support.
        BadType = 10007,
        /// `NFS3ERR_JUKEBOX`: the operation has started but takes long: retry later with a new xid.
        Jukebox = 10008,
    }
}
