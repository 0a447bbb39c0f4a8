//! Requests of clients that have no state (v2, v3, NQNFS), in the period of grace.
//!
//! They know of no grace and have nothing to reclaim, but what they ask for may be in the way of what others held before
//! the restart. The rule: **nothing that a holder of before would have kept off is let through until no holder of before
//! believes in what he held without having heard of the restart.**
//!
//! - What can be reclaimed (opens with what they deny, delegations of files) is known when grace is over.
//! - What cannot (delegations of directories: RFC 8881, section 10.9.5) is believed in by its holder until he hears of the
//!   restart at his first request, or until his lease, which nobody renews, has run out by his own clock.
//!
//! The end of grace covers both: it comes when every client of the record has come and has said that it has nothing more
//! to reclaim, or when so much time has gone by since the start as the longest lease of before ([`Records::lease`] knows
//! it; what was renewed was renewed before the start).
//!
//! Changes of names, WRITE and SETATTR wait for it, and so does READ: who had the file for writing may have newer data, or
//! may have denied it. That is what v4 clients are told GRACE for (RFC 8881, section 8.4.2.1). Names and attributes are
//! shown meanwhile, as to those. Where no client is in the record there is no grace, and nobody waits.
//!
//! A request of v3 is held for [`StateOptions::patience`] and then told JUKEBOX. Version 2 has no such word: in a datagram
//! it is held as long and then dropped, since the client sends it again soon (RFC 1094, section 3); on a connection, where
//! clients send again after a minute, until grace is over. So is what may have taken effect before the restart, whatever
//! its version: told to come again, it would come under another xid, and nobody would know it. NQNFS says TRYLATER at once.
//!
//! [`Records::lease`]: super::records::Records::lease
//! [`StateOptions::patience`]: super::StateOptions::patience

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use protocol::nfs2;
use rpc::Call;

use super::State;
use crate::front::Front;

/// See the module.
#[derive(Debug)]
pub(super) struct Stateless {
    /// Looked at by every such request.
    in_grace: AtomicBool,
    over: Notify,
    /// How long a request is held that can be told to come again.
    patience: Duration,
    /// And one that cannot: for as long as grace may last, and until that is noticed.
    longest: Duration,
}

impl Stateless {
    /// In a period of grace of this length, or in none.
    pub(super) fn new(grace: Option<Duration>, patience: Duration) -> Stateless {
        let longest = grace.unwrap_or_default().mul_f32(1.25) + patience;
        Stateless { in_grace: AtomicBool::new(grace.is_some()), over: Notify::new(), patience, longest }
    }

    /// Those who wait may go on.
    pub(super) fn grace_is_over(&self) {
        self.in_grace.store(false, Ordering::Release);
        self.over.notify_waiters();
    }

    fn waits(&self) -> bool {
        self.in_grace.load(Ordering::Acquire)
    }

    async fn wait(&self, longest: Duration) -> bool {
        let over = self.over.notified();
        tokio::pin!(over);
        // From here on the end is not missed.
        over.as_mut().enable();
        !self.waits() || tokio::time::timeout(longest, over).await.is_ok()
    }
}

impl Front {
    /// Holds a request until the period of grace is over. False if that takes too long: it is not to be carried out.
    pub(crate) async fn after_grace(self: &Arc<Front>, call: &Call) -> bool {
        if !self.state.stateless.waits() {
            return true;
        }
        // Nobody else may come who would make the time pass.
        State::start(self);
        let cannot_be_told = call.resent || call.header.version == nfs2::VERSION;
        let Stateless { patience, longest, .. } = self.state.stateless;
        let comes_again_soon = call.connection.is_none();
        let longest = if cannot_be_told && !comes_again_soon { longest } else { patience };
        self.state.stateless.wait(longest).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_goes_on_at_the_end_or_is_told_in_time() {
        let patience = Duration::from_secs(5);
        let stateless = Arc::new(Stateless::new(Some(Duration::from_secs(90)), patience));
        assert!(!stateless.wait(patience).await, "grace goes on");
        let waiting = tokio::spawn({
            let stateless = stateless.clone();
            async move { stateless.wait(patience).await }
        });
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(!waiting.is_finished());
        stateless.grace_is_over();
        assert!(waiting.await.unwrap() && stateless.wait(patience).await && !stateless.waits());
    }
}
