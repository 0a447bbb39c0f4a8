//! The FUSE protocol over `/dev/fuse` (`linux/fuse.h`, protocol 7.31 and later).
//!
//! Each read of the device returns one request; each write takes one reply or one notification. Numbers
//! have the machine's byte order. A request is parsed once into a value that owns its data; a malformed
//! request gets EINVAL. Pure: this module makes no system call.
//!
//! The project implements the protocol itself because no library offers two things that this front needs.
//! The first is FUSE_INTERRUPT; without it, a process that waits for a lock or a dead server cannot be
//! killed. The second are the flags that tell `flock` from `fcntl` and request the clearing of set-id bits.

pub mod abi;
pub mod reply;
pub mod request;
