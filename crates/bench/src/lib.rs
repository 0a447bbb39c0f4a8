//! Measuring: the papers' evaluations repeated beside the peers, single procedures of servers, and the network that both want.
//!
//! [`relay`] is a network with a round trip: what a wide-area link does to a protocol can be seen on one machine.
//! [`workload`] has what the papers ran, on a [`target`]: a mounted directory, or our own client without a mount.
//! [`system`] has what is compared, [`run`](mod@run) compares, [`report`] tells. [`quick`] holds counts to a baseline.
//! [`wire`] asks NFSv3 servers one thing at a time, as fast as they answer. [`native`] holds a mount against the machine's own disk.
//! [`macklem`] repeats the measurements of NQNFS, with mounts of ours.

mod arguments;
mod histogram;
pub mod interrupt;
pub mod macklem;
pub mod native;
mod pass;
pub mod quick;
pub mod random;
pub mod relay;
pub mod report;
pub mod run;
mod sys;
pub mod system;
pub mod target;
pub mod wire;
pub mod workload;

pub use arguments::Arguments;
pub use pass::PassArguments;
