//! The program against hostile users and peers. Each finding of a hostile review is a test here, or in
//! `server/tests/v4_state/adversaries` where the wire protocol is enough.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod bounds;
mod damage;
mod disk;
mod groups;
mod hostile;
mod liar;
#[path = "../program/mod.rs"]
mod program;
mod rights;
mod watch;
mod wire;
