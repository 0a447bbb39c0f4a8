//! How the arbiter behaves where the protocols leave it a choice.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use vfs::{Clock, Recovery, SystemClock};

use crate::leases::Terms;

/// `delegations=`: when leases are granted to our clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delegations {
    /// Where they are likely to last: not on files that changed hands recently.
    #[default]
    Auto,
    /// Wherever they are allowed.
    Always,
    /// To nobody.
    Never,
}

/// See the module.
#[derive(Clone)]
pub struct Options {
    /// When to grant.
    pub delegations: Delegations,
    /// Leases out at one time, at most. Each is about 500 bytes here, and some kilobytes at a client.
    pub leases_max: usize,
    /// How long a holder may take to return a recalled lease before it is revoked. A front sets its lease time, so that
    /// a client that is alive always has the time that it was promised.
    pub recall_deadline: Duration,
    /// How long an asker is held while a recall runs, before it is told `Delay`. Most recalls take one round trip and
    /// the flushing of what was written; clients that are told `Delay` sleep for longer than that (Linux: 0.1 s doubling
    /// up to 15 s for v4, 5 s for v3's JUKEBOX). It is below the 7.7 s in which a Linux client over UDP gives its
    /// server up for the first time, and far below the 60 s of TCP.
    pub patience: Duration,
    /// For how long after a conflict nothing is granted on a file.
    pub quiet: Duration,
    /// How long the holder of a write lease may take to say what it has made of a file (CB_GETATTR).
    pub getattr_deadline: Duration,
    /// When leases with a term have ended.
    pub terms: Terms,
    /// After a restart, until the leases with a term of the life before have ended: only holders' writes are let in.
    pub recovery: Arc<Recovery>,
    /// The time of day: `mtime` of a file that its holder has modified.
    pub clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            delegations: Delegations::Auto,
            leases_max: 100_000,
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
            .field("recall_deadline", &self.recall_deadline)
            .field("patience", &self.patience)
            .field("quiet", &self.quiet)
            .field("getattr_deadline", &self.getattr_deadline)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
