//! The bounds of the model, and the environment of the members.

use std::sync::Arc;
use std::time::Duration;

use cluster::{Identity, Member, Times};

/// The name of the cluster.
pub const CLUSTER: &str = "c";

/// The state at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// No member has sent anything.
    Empty,
    /// The first member has all servers. The others are in, and have not seen that.
    Held,
    /// The first member has all servers. The others have the same name and other places.
    SameName,
}

/// The bounds of the model, and the environment of the members.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub start: Start,
    pub servers: usize,
    /// How many transactions each member may send. The length is the number of members.
    pub sends: &'static [u8],
    /// No clock passes this tick.
    pub ticks: u8,
    /// How often a caller may get no answer.
    pub unknown: u8,
    /// How often a member may be killed. It starts again in the same place.
    pub kills: u8,
    /// How often a member may be killed and start again in another place.
    pub moves: u8,
    /// How often a member may be told to drain or to take part again.
    pub drains: u8,
    /// How often a member may be told to leave.
    pub leaves: u8,
    /// The times that the members assume.
    pub times: Times,
    /// How many ticks the clock of the first member may lose or gain against the others in all.
    pub skew: u8,
    /// How many ticks after the end of its term a server answers no more.
    pub late: u8,
    /// A server goes on after its user has reported that it stopped.
    pub lies: bool,
}

/// A term of two ticks. A period is zero ticks, so a member may send at any moment.
pub const TIMES: Times = Times {
    term: Duration::from_nanos(2),
    drift_ppm: 0,
    margin: Duration::from_nanos(1),
    settle: Duration::from_secs(1),
};

/// A patience that is one tick longer: clocks may differ by one tick in a term.
pub const DRIFT: Times = Times { drift_ppm: 200_000, ..TIMES };

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            start: Start::Held,
            servers: 1,
            sends: &[1, 3],
            ticks: 4,
            unknown: 0,
            kills: 0,
            moves: 0,
            drains: 0,
            leaves: 0,
            times: TIMES,
            skew: 0,
            late: 1,
            lies: false,
        }
    }
}

pub fn address(server: usize) -> String {
    format!("s{server}")
}

impl Bounds {
    pub fn name(&self, index: usize) -> String {
        format!("m{}", if self.start == Start::SameName { 0 } else { index })
    }

    /// A new process of a member.
    pub fn member(&self, index: usize, incarnation: u8, place: u8) -> Arc<Member> {
        let identity = Identity {
            name: self.name(index),
            life: format!("{index}-{incarnation}"),
            place: format!("p{index}-{place}"),
            version: "1".into(),
            digest: "d".into(),
        };
        Arc::new(Member::new(CLUSTER, identity, (0..self.servers).map(address).collect(), self.times))
    }
}
