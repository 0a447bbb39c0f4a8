//! The one translation from errors of the kernel to statuses of the interface.

use rustix::io::Errno;
use vfs::Status;

/// The status for an error.
///
/// `Delay` is for temporary conditions: another process's lease that is being broken, a full table, a lack
/// of memory. A busy mount point and a running program map to `Access`, as v2 and v3 have no better status.
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
