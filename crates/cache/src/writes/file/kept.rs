//! What a close has left unsent of a file, and what became of it.

use tokio::time::Instant;
use vfs::{Fsid, Status};

use super::Writes;
use crate::writes::space::{Claim, Space, Verdict};

/// A close was answered while something of the file was not at the origin.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    fsid: Fsid,
    /// Up to which size of the file the origin has promised space.
    limit: Option<u64>,
    /// What is on the account of the file system for it.
    claim: Claim,
}

impl Writes {
    /// Bytes that the origin has not taken yet.
    fn outstanding(&self) -> u64 {
        self.unsent() + self.in_flight.iter().map(|write| write.bytes.len() as u64).sum::<u64>()
    }

    /// A close asks whether these bytes may stay here. The origin's file has `size` bytes, and space is set aside for it up
    /// to `limit`.
    pub fn keep(
        &mut self,
        space: &mut Space,
        fsid: Fsid,
        size: u64,
        limit: Option<u64>,
        now: Instant,
    ) -> Verdict {
        let before = self.kept.map(|kept| kept.claim).unwrap_or_default();
        space.adjust(before, Claim::default());
        let limit = limit.filter(|limit| self.end().is_none_or(|end| end <= *limit));
        let promise = limit.map(|limit| limit.saturating_sub(size));
        let (verdict, claim) = space.decide(self.outstanding(), promise, now);
        if verdict == Verdict::Keep {
            let limit = limit.filter(|_| claim.unpromised == 0);
            self.kept = Some(Kept { fsid, limit, claim });
        } else {
            space.adjust(Claim::default(), before);
        }
        verdict
    }

    /// The claim has changed with what is not at the origin: what it was and is, on which account. Ends with the last byte.
    pub fn settle_claim(&mut self) -> Option<(Fsid, Claim, Claim)> {
        let kept = self.kept?;
        let promised = kept.limit.is_some_and(|limit| self.end().is_none_or(|end| end <= limit));
        let claim = Claim::of(self.outstanding(), promised);
        self.kept = (!self.is_clean()).then_some(Kept { claim, ..kept });
        (claim != kept.claim).then_some((kept.fsid, kept.claim, claim))
    }

    /// Has a close said that all is safe, although it is not at the origin yet? On which account.
    pub fn kept_on(&self) -> Option<Fsid> {
        self.kept.map(|kept| kept.fsid)
    }

    /// Has the origin promised to take it?
    pub fn is_promised(&self) -> bool {
        self.kept.is_some_and(|kept| kept.limit.is_some())
    }

    /// Was something lost that a close has said to be safe, and has nobody been told?
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Somebody is told now.
    pub fn take_lost(&mut self) -> Option<Status> {
        if self.lost { self.take_error() } else { None }
    }

    /// The error that nobody has been told of yet; it is still to be told.
    pub fn untold(&self) -> Option<Status> {
        self.error
    }
}
