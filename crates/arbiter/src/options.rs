//! Behaviour of the arbiter where the protocols leave a choice.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use vfs::{Clock, Recovery, SystemClock};

use crate::leases::Terms;

/// `delegations=`: when clients get leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delegations {
    /// If a lease is likely to last: not on files with a recent conflict.
    #[default]
    Auto,
    /// Whenever the rules permit.
    Always,
    /// Never.
    Never,
}

/// The options. See the module.
#[derive(Clone)]
pub struct Options {
    /// When to grant leases.
    pub delegations: Delegations,
    /// Limit of leases. Each takes about 550 bytes here, and some kilobytes at a client.
    pub leases_max: usize,
    /// A lease that was used within this time is not recalled to grant another one ([`vfs::turnover`]).
    pub idle_min: Duration,
    /// A lease takes capacity of the layer below. If it has none left, leases are recalled.
    pub leases_take_capacity: bool,
    /// Time for a holder to return a recalled lease before it is revoked. A front sets this to its lease
    /// time, so that a live client always has the time that it was promised.
    pub recall_deadline: Duration,
    /// How long a requester waits for a recall before it gets `Delay`. Most recalls take one round trip and
    /// the flush of written data. A client that gets `Delay` sleeps longer than that (Linux: 0.1 s doubling
    /// up to 15 s for v4, 5 s for JUKEBOX of v3). The value is below 7.7 s, when a Linux client over UDP
    /// first considers its server dead, and far below the 60 s of TCP.
    pub patience: Duration,
    /// How long after a conflict no lease is granted on the file.
    pub quiet: Duration,
    /// Time for the holder of a write lease to report its changes of a file (CB_GETATTR).
    pub getattr_deadline: Duration,
    /// Parameters of leases with a term.
    pub terms: Terms,
    /// After a restart, until the leases with a term from the incarnation before have ended: only writes of
    /// their holders are admitted.
    pub recovery: Arc<Recovery>,
    /// The time of day, for the `mtime` of a file that its holder has modified.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            delegations: Delegations::Auto,
            leases_max: 1_000_000,
            idle_min: Duration::from_secs(30),
            leases_take_capacity: true,
            recall_deadline: Duration::from_secs(45),
            patience: Duration::from_secs(5),
            quiet: Duration::from_secs(30),
            getattr_deadline: Duration::from_secs(1),
            terms: Terms::default(),
            recovery: Arc::default(),
            clock: Arc::new(SystemClock),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("delegations", &self.delegations)
            .field("leases_max", &self.leases_max)
            .field("idle_min", &self.idle_min)
            .field("leases_take_capacity", &self.leases_take_capacity)
            .field("recall_deadline", &self.recall_deadline)
            .field("patience", &self.patience)
            .field("quiet", &self.quiet)
            .field("getattr_deadline", &self.getattr_deadline)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
