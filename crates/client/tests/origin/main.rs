//! The client against origins: scripted ones, which do what real ones rarely do, and a real one.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without fails it")]

mod along4;
mod connecting;
mod delegations4;
mod directories4;
mod everything;
mod farewell4;
mod ganesha;
mod ganesha4;
mod hostile4;
mod nonsense;
mod operations;
mod resends;
mod resends4;
mod restart4;
mod riding4;
mod room4;
mod scripted;
mod scripted4;
mod state4;
