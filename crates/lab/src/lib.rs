//! A test bed: real Linux kernels as NFS clients and servers, nfs-ganesha, and networks that can be cut.
//!
//! A test enters the lab, boots guests (Debian's user-mode Linux, a kernel as an ordinary process), mounts
//! file systems, and runs scripts in the guests:
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
//! The lab is for tests only. If it cannot continue, it panics with a message of one line, and prints the
//! console or log of the guest or program at fault. Everything that a test starts ends with the test, even if
//! the test panics or is killed. On one machine, as many tests as there are lanes can be in the lab at the
//! same time. docs/contributing/lab.md describes the implementation.
//!
//! A [`Realm`] has the Kerberos that a test needs. It works without the lab; see [`with_realm`].

mod close_to_open;
mod coherence;
mod etcd;
mod guard;
mod guest;
mod hand;
mod kernel_caches;
mod lane;
mod log;
mod net;
mod origin;
mod process;
mod realm;
mod require;
mod rng;
mod session;
pub mod suite;

pub use close_to_open::{CloseToOpen, Seat};
pub use coherence::{Coherence, Player, Report};
pub use etcd::{Etcd, EtcdTls};
pub use guest::{Guest, GuestOptions, Output, Task, V2, V3, V4_0, V4_1, V4_2};
pub use hand::{Access, Agent, Hand, Mode, OpenFile, Opened, Stat};
pub use kernel_caches::{keep_kernel_caches, may_drop_kernel_caches};
pub use lane::count as lanes;
pub use net::{Cut, Link, Relay};
pub use origin::ganesha::Ganesha;
pub use origin::knfsd::Knfsd;
pub use origin::{CallCounts, Origin};
pub use process::{Process, Program, freeze};
pub use realm::{REALM, Realm, with_realm};
pub use require::{Missing, is_root, missing, require};
pub use rng::Rng;
pub use session::{Lab, free_port, wait_for};
