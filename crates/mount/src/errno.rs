//! The one translation from statuses of the file system below to error numbers of the kernel.

use rustix::io::Errno;
use vfs::Status;

/// The error number for a status.
pub fn errno(status: Status) -> Errno {
    match status {
        Status::Perm => Errno::PERM,
        Status::NoEnt => Errno::NOENT,
        Status::Nxio => Errno::NXIO,
        Status::Access | Status::NoTicket | Status::ShareDenied => Errno::ACCESS,
        Status::Exist => Errno::EXIST,
        Status::Xdev => Errno::XDEV,
        Status::NoDev => Errno::NODEV,
        Status::NotDir => Errno::NOTDIR,
        Status::IsDir => Errno::ISDIR,
        Status::Inval => Errno::INVAL,
        Status::FBig => Errno::FBIG,
        Status::NoSpc => Errno::NOSPC,
        Status::Rofs => Errno::ROFS,
        Status::Mlink => Errno::MLINK,
        Status::NameTooLong => Errno::NAMETOOLONG,
        Status::NotEmpty => Errno::NOTEMPTY,
        Status::Dquot => Errno::DQUOT,
        Status::Stale | Status::BadHandle => Errno::STALE,
        Status::NotSupp | Status::BadType => Errno::OPNOTSUPP,
        Status::Denied | Status::Delay | Status::Grace | Status::NotSync => Errno::AGAIN,
        Status::Resource => Errno::NFILE,
        Status::OpenMode | Status::BadStateId => Errno::BADF,
        Status::LocksHeld => Errno::BUSY,
        Status::NoXattr => Errno::NODATA,
        Status::XattrTooBig => Errno::RANGE,
        Status::NoGrace | Status::ReclaimBad => Errno::NOLCK,
        Status::Io | Status::BadCookie | Status::TooSmall | Status::ServerFault => Errno::IO,
    }
}

/// The error number for a failure.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub fn of(error: vfs::Error) -> Errno {
    errno(error.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_retries_hang_on_is_what_the_kernel_waits_for() {
        assert_eq!(errno(Status::Stale), Errno::STALE, "the kernel walks the path again");
        assert_eq!(errno(Status::NotSupp), Errno::OPNOTSUPP, "posix_fallocate writes zeros itself");
        assert_eq!(errno(Status::NoXattr), Errno::NODATA);
    }
}
