//! Delayed writes (Badros 3.1): a WRITE is answered when its bytes are in memory, and reaches the origin later.
//!
//! | part | what it is |
//! |---|---|
//! | `runs` | bytes of a file that are not at the origin, without overlaps |
//! | `file` | what is delayed of one file, and what is to be sent next: pure bookkeeping |
//! | `flush` | the calls: WRITEs in flight, COMMITs, and those who wait for them |
//! | `limits` | how much may wait, how long, and who is made to |
//! | `pending` | attributes that are set once everything is at the origin |
//! | `space` | how much of it may stay here after a close: pure bookkeeping |
//! | `cover` | closes, WRITEs and refusals, against that account |
//! | `losses` | what was lost after a close, and who is told |
//! | `cut` | truncation and removal, in order with what is delayed |
//!
//! A byte passes through three stages. It is **dirty** until a WRITE takes it; **in flight** until the reply; then
//! **unstable**, if the origin took it without making it durable, until a COMMIT whose verifier is that of the WRITE.
//! It is kept in memory through all three, so that an origin that goes down between WRITE and COMMIT loses nothing, and
//! is the file's contents to every reader here. Dirty and flying bytes are that whatever the origin has. Unstable ones
//! are as long as weak cache consistency data or a lease proves that nobody else has changed the file since. Where that
//! proof is missing (somebody else changed it, the origin went down, or it does not give the data), they are **in
//! doubt**: everything is committed before anything is said of the file, and then the origin is asked.
//!
//! **What is promised**, and to whom: fsync (`commit`) and the close of a writer return when everything written before
//! is at the origin and durable there, or with the error, once. Under a write lease a close sends nothing, as long as the
//! origin has space for it ([`space`]): whoever wants the file elsewhere makes the origin recall the lease, and then
//! everything is sent first.
//!
//! **Assumed**: who writes under an open may write, and the origin will agree; who writes without one is asked for by
//! ACCESS first. If it does not agree in the end, the bytes are dropped, as Linux does, and the writer is told.

mod cover;
mod cut;
mod file;
mod flush;
mod limits;
mod losses;
mod pending;
mod runs;
mod space;

pub use cut::{Cut, Hold};
pub use file::Writes;
pub use flush::Level;
pub use limits::{Delayed, writer};
pub use losses::{Losses, Lost};
pub use pending::Pending;
