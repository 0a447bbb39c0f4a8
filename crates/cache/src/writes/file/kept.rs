//! What a close has left unsent of a file, and the claim that covers it.

use tokio::time::Instant;
use vfs::{Fsid, Status};

use super::Writes;
use crate::writes::space::{Claim, Space, Verdict};

/// The cache answered a close while some bytes of the file were not at the origin.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    fsid: Fsid,
    /// The origin has promised space up to this file size, in bytes.
    limit: Option<u64>,
    /// The claim that the account of the file system holds for this file.
    claim: Claim,
}

impl Writes {
    /// Bytes that the origin has not taken yet.
    fn outstanding(&self) -> u64 {
        self.unsent() + self.in_flight.iter().map(|write| write.bytes.len() as u64).sum::<u64>()
    }

    /// Decides at a close whether the unsent bytes may stay here. `size` is the file's size at the origin;
    /// the origin has set space aside up to the size `limit`. All in bytes.
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

    /// Recomputes the claim from the bytes that are not at the origin. If it changed, returns the file
    /// system with the claim before and after. When the file is clean, it is no longer kept.
    pub fn settle_claim(&mut self) -> Option<(Fsid, Claim, Claim)> {
        let kept = self.kept?;
        let promised = kept.limit.is_some_and(|limit| self.end().is_none_or(|end| end <= limit));
        let claim = Claim::of(self.outstanding(), promised);
        self.kept = (!self.is_clean()).then_some(Kept { claim, ..kept });
        (claim != kept.claim).then_some((kept.fsid, kept.claim, claim))
    }

    /// The file system whose account holds a claim of this file. None if no close left bytes unsent.
    pub fn kept_on(&self) -> Option<Fsid> {
        self.kept.map(|kept| kept.fsid)
    }

    /// Has the origin promised space for the kept bytes?
    pub fn is_promised(&self) -> bool {
        self.kept.is_some_and(|kept| kept.limit.is_some())
    }

    /// Were bytes lost that a close reported as safe, without an error to any caller since?
    pub fn is_lost(&self) -> bool {
        self.lost
    }

    /// Takes the error of such a loss, to report it.
    pub fn take_lost(&mut self) -> Option<Status> {
        if self.lost { self.take_error() } else { None }
    }

    /// The error that no caller has received yet. It stays, to be reported later.
    pub fn untold(&self) -> Option<Status> {
        self.error
    }
}
