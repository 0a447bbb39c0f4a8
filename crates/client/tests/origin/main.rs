//! Tests of the client against origins: scripted ones, which do what real ones rarely do, and a real one.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without fails it")]

mod capacity4;
mod connecting;
mod delegations4;
mod directories4;
mod everything;
mod ganesha;
mod ganesha4;
mod hostile4;
mod new_directory4;
mod nonsense;
mod operations;
mod piggybacked_leases4;
mod piggybacked_reads4;
mod resends;
mod resends4;
mod restart4;
mod return_all4;
mod scripted;
mod scripted4;
mod state4;
