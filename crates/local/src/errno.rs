//! The one place where an error of the kernel becomes a status of the interface.

use rustix::io::Errno;
use vfs::Status;

/// What NFS calls this error.
///
/// `Delay` is for what passes by itself: another's file lease being broken, a table that is full, memory. A busy
/// mount point and the text of a running program are `Access`, as there is no better name in v2 and v3.
pub(crate) fn status(errno: Errno) -> Status {
    match errno {
        Errno::PERM => Status::Perm,
        Errno::NOENT => Status::NoEnt,
        Errno::NXIO => Status::Nxio,
        Errno::ACCESS | Errno::BUSY | Errno::TXTBSY => Status::Access,
        Errno::EXIST => Status::Exist,
        Errno::XDEV => Status::Xdev,
        Errno::NODEV => Status::NoDev,
        Errno::NOTDIR => Status::NotDir,
        Errno::ISDIR => Status::IsDir,
        Errno::INVAL | Errno::LOOP => Status::Inval,
        Errno::FBIG | Errno::OVERFLOW => Status::FBig,
        Errno::NOSPC => Status::NoSpc,
        Errno::ROFS => Status::Rofs,
        Errno::MLINK => Status::Mlink,
        Errno::NAMETOOLONG => Status::NameTooLong,
        Errno::NOTEMPTY => Status::NotEmpty,
        Errno::DQUOT => Status::Dquot,
        Errno::STALE => Status::Stale,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => Status::NotSupp,
        Errno::NODATA => Status::NoXattr,
        Errno::TOOBIG | Errno::RANGE => Status::XattrTooBig,
        Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::INTR | Errno::TIMEDOUT => {
            Status::Delay
        }
        _ => Status::Io,
    }
}
