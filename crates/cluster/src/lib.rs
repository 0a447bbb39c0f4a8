//! A cluster of proxies: its members, and which of them runs which **virtual server**.
//!
//! A virtual server is an NFS server as clients see it: an address, some exports, and the records of its
//! clients. At any time one member runs it at most. If that member dies, another one takes the server over,
//! and clients recover as they do after a restart of a server.
//!
//! The members share a [`store`], which is etcd. Each has a record there, with a number that grows: the
//! *beat*. Each virtual server has a record with its holder and its *epoch*, which grows when it is taken.
//! All members follow four rules ([`member`]):
//!
//! 1. A member changes the store only on the condition that its own record is still the one that it wrote
//!    last. Each change is a beat.
//! 2. A beat that was carried out gives the member a *term*: a time for which it may run its servers,
//!    **counted from the moment when it sent the beat**, by its own clock. When the term ends, its servers
//!    stop, whether or not it can reach the store.
//! 3. A member that has seen no beat of another one for longer than a term removes that record. This is
//!    *fencing*. It waits by its own clock, from the moment when it saw the last beat, and adds what clocks
//!    may differ ([`Times`]).
//! 4. A server whose holder has no record may be taken.
//!
//! So two members never run the same server: the one that takes it has waited until the term of the other
//! one was over. This assumes nothing about the time of the store, nor about wall clocks. It assumes that
//! clocks run equally fast, but for [`Times::drift_ppm`], and that they go on while a machine sleeps.
//!
//! Leases of etcd are not used. A server of etcd 3.4 that was stopped for a while can acknowledge the renewal
//! of a lease, and the lease ends seconds later nevertheless (etcd issues 12528 and 15247). Transactions do
//! not have this fault.
//!
//! The machine has no I/O: time and answers go in, transactions and orders come out. [`driver`] runs it.

pub mod assign;
pub mod driver;
pub mod etcd;
pub mod member;
pub mod records;
pub mod store;
pub mod times;

pub use driver::{Driver, Handle, State, Trouble, now};
pub use member::{Identity, Member, Orders, Refusal, Run, View};
pub use times::{Moment, Times};
