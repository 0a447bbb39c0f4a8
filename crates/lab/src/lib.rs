//! A test bed: real Linux kernels as NFS clients and servers, nfs-ganesha, networks that can be cut.
//!
//! A test enters the lab, boots guests (Debian's user-mode Linux, a kernel as an ordinary process), mounts what it wants to try and runs
//! scripts in them:
//!
//! ```no_run
//! use lab::{Ganesha, Lab, V3};
//!
//! let Some(lab) = Lab::enter("readme") else { return };
//! let origin = Ganesha::start(&lab);
//! let guest = lab.guest("client");
//! guest.mount_nfs(&origin.origin(), "/mnt/nfs", V3);
//! assert_eq!(guest.run("cd /mnt/nfs && echo hello > f && cat f").text, "hello\n");
//! ```
//!
//! The lab is for tests and speaks their language: what cannot go on panics with one line that says why, and prints the console or log
//! of whoever is to blame. Everything it starts ends with the test, also when the test panics or is killed. As many
//! tests are in the lab, machine-wide, as it has lanes: one for each processor. docs/contributing/lab.md tells how it works inside.

mod close_to_open;
mod coherence;
mod guard;
mod guest;
mod hand;
mod lane;
mod log;
mod net;
mod origin;
mod process;
mod require;
mod rng;
mod session;
pub mod suite;

pub use close_to_open::{CloseToOpen, Seat};
pub use coherence::{Coherence, Player, Report};
pub use guest::{Guest, GuestOptions, Output, Task, V2, V3, V4_0, V4_1, V4_2};
pub use hand::{Access, Agent, Hand, Mode, OpenFile, Opened, Stat};
pub use net::{Cut, Link, Relay};
pub use origin::ganesha::Ganesha;
pub use origin::knfsd::Knfsd;
pub use origin::{CallCounts, Origin};
pub use process::{Process, Program};
pub use require::{Missing, is_root, missing, require};
pub use rng::Rng;
pub use session::{Lab, free_port, wait_for};
