//! What the kernel and a FUSE file system say to each other over `/dev/fuse` (`linux/fuse.h`, protocol 7.31 and later).
//!
//! Every read of the device gives one request, every write takes one reply or one notification; all numbers are of the
//! machine's own byte order. Requests are parsed once into values that own what they need; a request that does not
//! parse is answered with EINVAL. Pure: no system call is made here.
//!
//! The protocol is spoken here and not through a library because two things that this front needs are not to be had
//! there: FUSE_INTERRUPT (without it, who waits for a lock or for a silent server cannot be killed), and the flags that
//! tell `flock` from `fcntl` and say that set-id bits are to go.

pub mod abi;
pub mod reply;
pub mod request;
