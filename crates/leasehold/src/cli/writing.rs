//! When the writes of a proxy's clients reach the origin.

use clap::Args;

/// When writes reach the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Writes")]
pub struct Writing {
    /// Answer unstable WRITEs from here, and send them to the origin later: at a COMMIT, for another client
    /// of the origin, or after 30 s. What waits under a write delegation is also in a journal on this disk
    #[arg(long = "async")]
    pub delayed: bool,
    /// Where data must be before COMMIT is answered. `origin`: there. `journal`: on this disk, the only copy
    /// until it is sent, if the file is under a write delegation; implies --async
    #[arg(long, value_enum, value_name = "WHERE", default_value_t)]
    pub fsync: FsyncAnswer,
}

/// `--fsync`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum FsyncAnswer {
    /// At the origin
    #[default]
    Origin,
    /// In the journal on this disk
    Journal,
}

impl Writing {
    /// Those of one origin, where the keys of its table say something else.
    pub fn of_one(self, delayed: Option<bool>, fsync: Option<FsyncAnswer>) -> Writing {
        Writing { delayed: delayed.unwrap_or(self.delayed), fsync: fsync.unwrap_or(self.fsync) }
    }

    /// Are writes delayed?
    pub fn is_delayed(self) -> bool {
        self.delayed || self.fsync == FsyncAnswer::Journal
    }

    /// What answers an fsync.
    pub fn fsync(self) -> cache::Fsync {
        match self.fsync {
            FsyncAnswer::Origin => cache::Fsync::Origin,
            FsyncAnswer::Journal => cache::Fsync::Journal,
        }
    }
}
