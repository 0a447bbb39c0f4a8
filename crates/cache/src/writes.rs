//! Delayed writes (Badros 3.1): a WRITE is answered when its bytes are in memory, and reaches the origin
//! later.
//!
//! | module | responsibility |
//! |---|---|
//! | `runs` | bytes of a file that are not at the origin, without overlaps |
//! | `file` | the delayed writes of one file, and what to send next: pure bookkeeping |
//! | `flush` | the calls: WRITEs in flight, COMMITs, and their waiters |
//! | `limits` | how much may be delayed, for how long, and which writers must wait |
//! | `pending` | attributes that are set once everything is at the origin |
//! | `space` | how much delayed data may stay here after a close: pure bookkeeping |
//! | `cover` | closes, WRITEs and refusals, against the account of `space` |
//! | `losses` | data that was lost after a close, and which clients are told |
//! | `cut` | truncation and removal, in order with the delayed writes |
//! | `entering` | which steps are entered in the journal |
//! | `refused` | writes that the origin refuses although an fsync was answered |
//! | `restoring` | writes that an earlier process has left there |
//! | `verifier` | the write verifier: clients learn from it what was lost |
//!
//! A byte passes through three stages. It is **dirty** until a WRITE takes it, and then **in flight** until
//! the reply. If the origin took it without making it durable, it is **unstable** until a COMMIT whose
//! verifier is that of the WRITE.
//!
//! The byte is kept in memory through all three stages, so an origin that restarts between WRITE and COMMIT
//! loses nothing. To every reader here, the byte is the contents of the file. For dirty bytes and bytes in
//! flight this holds whatever the origin has. For unstable bytes it holds as long as weak cache consistency
//! data or a lease proves that no other client has changed the file since.
//!
//! Unstable bytes without that proof are **in doubt**: another client changed the file, the origin restarted,
//! or the origin reports no weak cache consistency data. The cache then commits everything before it answers
//! anything about the file, and asks the origin afterwards.
//!
//! **Promise**: fsync (`commit`) and the close of a writer return when everything written before is durable
//! at the origin, or with the error, once. With `fsync=journal` the local disk may take the place of the
//! origin ([`syncing`]). Under a write lease, a close sends nothing, as long as the origin has space for the
//! data ([`space`]). If another client wants the file, the origin recalls the lease, and the cache sends
//! everything first.
//!
//! **Assumption**: a writer with an open may write, and the origin will agree. For a writer without one, the
//! cache asks by ACCESS first. If the origin refuses in the end, the cache drops the bytes, as Linux does,
//! and tells the writer.

mod cover;
mod cut;
mod entering;
mod file;
mod flush;
mod limits;
mod losses;
mod pending;
mod refused;
mod restoring;
mod revoked;
mod runs;
mod space;
mod syncing;
mod verifier;

pub use cut::{Cut, Hold};
pub use entering::journal_of;
pub use file::Writes;
pub use flush::Level;
pub use limits::{Delayed, writer};
pub use losses::{Losses, Lost};
pub use pending::Pending;
pub use restoring::Unsettled;
pub use verifier::{forget_verifier, verifier_of};
