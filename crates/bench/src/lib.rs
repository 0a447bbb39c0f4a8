//! Benchmarks: the papers' evaluations repeated together with the peers, single procedures of servers, and
//! the simulated network for both.
//!
//! - [`relay`] is a network with a round trip. It shows on one machine the effect of a wide-area link on a
//!   protocol.
//! - [`workload`] has the workloads of the papers. They run on a [`target`]: a mounted directory, or our own
//!   client without a mount.
//! - [`system`] has the systems to compare, [`run`](mod@run) compares them, and [`report`] presents the
//!   results. [`quick`] compares counts with a baseline.
//! - [`wire`] sends one kind of call to NFSv3 servers, as fast as they answer.
//! - [`native`] compares a mount with the machine's own disk.
//! - [`macklem`] repeats the measurements of NQNFS with our mounts.
//! - [`scale`] measures how costs grow with the number of files, names, leases and clients.

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
pub mod scale;
mod sys;
pub mod system;
pub mod target;
pub mod wire;
pub mod workload;

pub use arguments::Arguments;
pub use pass::PassArguments;
