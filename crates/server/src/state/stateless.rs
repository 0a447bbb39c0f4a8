//! Requests of clients without state (v2, v3, NQNFS) during grace.
//!
//! These clients know nothing of grace and have nothing to reclaim. But their requests may conflict with
//! state that other clients held before the restart. The rule: **the server holds every request that an
//! earlier holder's state would have blocked, until every earlier holder has reconnected or its lease has
//! expired.**
//!
//! - The state that can be reclaimed (opens with their deny modes, delegations of files) is known when
//!   grace is over.
//! - Delegations of directories cannot be reclaimed (RFC 8881, section 10.9.5). Their holder trusts one
//!   until it learns of the restart at its first request, or until its lease has expired by its own clock.
//!   Nothing renews that lease.
//!
//! The end of grace covers both cases. Grace ends when every client of the record has returned and has
//! nothing more to reclaim. It also ends when the longest earlier lease has passed since the start.
//! [`Records::lease`] knows that lease, and every renewal happened before the start.
//!
//! Changes of names, WRITE and SETATTR wait for the end of grace. So does READ, because a client that had
//! the file open for writing may have newer data, or may have denied reading. These are the cases in which
//! v4 clients get GRACE (RFC 8881, section 8.4.2.1). Lookups, listings and attributes are answered
//! meanwhile, as for v4 clients. If the record has no client, there is no grace and no request waits.
//!
//! A v3 request waits for [`StateOptions::patience`] and then gets JUKEBOX. Version 2 has no such status. A
//! v2 request in a datagram waits as long and is then dropped, because the client soon sends it again (RFC
//! 1094, section 3). On a connection clients send it again only after a minute, so it waits until grace is
//! over. NQNFS replies TRYLATER at once.
//!
//! A retransmission in any version is treated like a v2 request, because its first transmission may have
//! taken effect before the restart. After JUKEBOX the client would use another xid, and the server could
//! not recognize the repetition.
//!
//! [`Records::lease`]: super::records::Records::lease
//! [`StateOptions::patience`]: super::StateOptions::patience

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use protocol::nfs2;
use rpc::Call;

use super::State;

/// See the module.
#[derive(Debug)]
pub(super) struct Stateless {
    /// Every such request reads this.
    in_grace: AtomicBool,
    over: Notify,
    /// How long a request waits if its client can be told to retry.
    patience: Duration,
    /// How long other requests wait: the longest time until the end of grace is noticed.
    longest: Duration,
}

impl Stateless {
    /// During a grace period of this length, or without one.
    pub(super) fn new(grace: Option<Duration>, patience: Duration) -> Stateless {
        let longest = grace.unwrap_or_default().mul_f32(1.25) + patience;
        Stateless { in_grace: AtomicBool::new(grace.is_some()), over: Notify::new(), patience, longest }
    }

    /// Releases the waiters.
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
        // From here on the end cannot be missed.
        over.as_mut().enable();
        !self.waits() || tokio::time::timeout(longest, over).await.is_ok()
    }
}

impl State {
    /// Must a request of a client without state wait for the end of grace?
    pub(crate) fn delays_stateless(&self) -> bool {
        self.stateless.waits()
    }

    /// Holds a request until grace is over. False if that takes too long; then the request must not be
    /// executed.
    pub(crate) async fn after_grace(&self, call: &Call) -> bool {
        let cannot_be_told = call.resent || call.header.version == nfs2::VERSION;
        let Stateless { patience, longest, .. } = self.stateless;
        let comes_again_soon = call.connection.is_none();
        let longest = if cannot_be_told && !comes_again_soon { longest } else { patience };
        self.stateless.wait(longest).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

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
