//! Delayed writes (Badros 3.1): the cache answers a WRITE when its bytes are in memory, and sends them to
//! the origin later.
//!
//! | part | what it holds |
//! |---|---|
//! | `runs` | bytes of a file that are not at the origin, without overlaps |
//! | `file` | what is delayed of one file, and the next call to send: pure bookkeeping |
//! | `flush` | the calls: WRITEs in flight, COMMITs, and their waiters |
//! | `limits` | how many bytes may wait, for how long, and which writers are held back |
//! | `pending` | attributes that are set once everything is at the origin |
//! | `space` | how many bytes may stay here after a close: pure bookkeeping |
//! | `cover` | closes, WRITEs and refusals, entered in that account |
//! | `losses` | bytes that were lost after a close, and how users learn of it |
//! | `cut` | truncation and removal, in order with delayed writes |
//!
//! A byte passes through three stages. It is **dirty** until a WRITE takes it, and **in flight** until the
//! reply. If the origin took it without making it durable, it is then **unstable** until a COMMIT returns
//! the verifier of that WRITE. The cache keeps the byte in memory through all three stages, so an origin
//! that crashes between WRITE and COMMIT loses nothing.
//!
//! For every reader here, the bytes in memory are the file's contents. Dirty bytes and bytes in flight take
//! precedence over whatever the origin has. Unstable bytes do so only while weak cache consistency data or
//! a lease proves that nobody else has changed the file since. The proof is missing if another client
//! changed the file, if the origin crashed, or if the origin does not send that data. Then the bytes are
//! **in doubt**: the cache commits everything before it answers anything about the file, and then asks the
//! origin.
//!
//! **Promise.** fsync (`commit`) and a writer's close return when everything written before is at the
//! origin and durable there. If that fails, they return the error, once. Under a write lease a close sends
//! nothing, as long as the origin has space for the bytes ([`space`]). If another client wants the file,
//! the origin recalls the lease, and the cache sends everything first.
//!
//! **Assumption.** A client that holds an open for writing may write, and the origin will agree. For a
//! writer without an open, the cache asks for ACCESS first. If the origin refuses the bytes in the end, the
//! cache drops them, as Linux does, and reports the error to the writer.

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
