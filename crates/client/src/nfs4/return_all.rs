//! The end of the process: all state at the origin goes back to it, or is left to the next incarnation if
//! there will be one.
//!
//! Many objects go back at once, as many as there are slots. With a round trip of 75 ms, a thousand opens one
//! after the other would take more than a minute. Then the session is destroyed, and the client id with it.
//! So the origin can free its records at once and need not wait for the end of the lease. An origin that says
//! nothing is given up after one `SILENCE_MAX`. A slow one may continue up to `RETURN_ALL_MAX`.
//!
//! The module assumes that the layer above opens nothing any more.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use vfs::{Caller, LeaseId, OpenId};

use super::{Nfs4, Nfs4Client, Phase};

/// An origin that sends nothing for this long is given up.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The longest delay of the end of the process.
pub const RETURN_ALL_MAX: Duration = Duration::from_secs(30);
/// Number of rounds. A request that was in flight in one round is handled in the next.
const ROUNDS_MAX: u32 = 3;
/// Requests in flight at a time.
const AT_ONCE_MAX: usize = 64;

impl Nfs4 {
    /// Returns, closes and destroys everything, as far as the origin answers. If the state is recorded for
    /// the next incarnation, leaves it there.
    pub(super) async fn give_everything_back(&self) {
        let inner = &self.inner;
        let left = inner.state.lock().is_recorded() && !inner.leaves_nothing.load(Ordering::Relaxed);
        let silent = inner.channel.pulse.watch().borrow().is_some_and(|since| since.elapsed() >= SILENCE_MAX);
        if left || silent {
            inner.phase.send_replace(Phase::Ended);
            return;
        }
        let until = Instant::now() + RETURN_ALL_MAX;
        let given_back = inner.give_all_back(until).await;
        let Phase::Ready(session) = inner.phase.send_replace(Phase::Ended) else { return };
        if !given_back {
            tracing::info!(
                "server {} does not answer: it keeps what we held until the lease ends",
                inner.server
            );
            return;
        }
        let limit = until.min(Instant::now() + SILENCE_MAX);
        let destroyed = async {
            inner.destroy_session(session.id, limit).await?;
            inner.destroy_clientid(session.clientid, limit).await
        };
        if let Ok(Err(refused)) = timeout_at(limit, destroyed).await {
            tracing::info!(?refused, "server {} keeps our record until the lease ends", inner.server);
        }
        // The next incarnation has a new verifier, so the origin drops whatever it may have kept of this one.
        inner.state.forget();
    }
}

impl Nfs4Client {
    /// Gives back all delegations and opens. Returns false if it is not certain that this finished.
    async fn give_all_back(self: &Arc<Nfs4Client>, until: Instant) -> bool {
        for _ in 0..ROUNDS_MAX {
            let listed = self.state.lock().last_name();
            let leases: Vec<LeaseId> = self.state.lock().leases().map(|(id, _)| id).collect();
            let opens: Vec<OpenId> = self.state.lock().opens().map(|(id, _)| id).collect();
            let nothing = leases.is_empty() && opens.is_empty();
            let returns = leases.into_iter().map(|id| self.clone().return_last(id, until));
            if !many(until, returns).await {
                return false;
            }
            if !many(until, opens.into_iter().map(|id| self.clone().close_last(id, until))).await {
                return false;
            }
            // Other requests in flight may bring new state, or may be about to give some back.
            let Phase::Ready(session) = self.phase.borrow().clone() else { return false };
            let limit = until.min(Instant::now() + SILENCE_MAX);
            if timeout_at(limit, session.idle()).await.is_err() {
                return false;
            }
            self.check_counters(listed);
            if nothing {
                return true;
            }
        }
        true
    }

    /// Checks the counters after a round. If no state has come since its list was made, none is left.
    fn check_counters(&self, listed: u64) {
        let state = self.state.lock();
        if state.last_name() == listed {
            debug_assert_eq!(state.opens().count(), 0, "opens at the origin after all were closed");
            debug_assert_eq!(state.leases().count(), 0, "delegations after all were returned");
        }
    }

    async fn return_last(self: Arc<Nfs4Client>, id: LeaseId, until: Instant) {
        let caller = Caller { deadline: Some(until), ..Caller::machine() };
        if let Err(error) = self.give_back(&caller, id).await {
            tracing::debug!(%error, "a delegation could not be returned");
        }
    }

    async fn close_last(self: Arc<Nfs4Client>, id: OpenId, until: Instant) {
        let caller = Caller { deadline: Some(until), ..Caller::machine() };
        let Some(open) = self.state.lock().close(id) else { return };
        if let Err(error) = self.close(&caller, id, open).await {
            tracing::debug!(%error, "an open could not be closed");
        }
    }
}

/// Runs many futures, at most [`AT_ONCE_MAX`] at a time. Returns false if none finished for
/// `SILENCE_MAX`, or after `until`; it then drops the unfinished ones.
async fn many<F>(until: Instant, work: impl Iterator<Item = F>) -> bool
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut work = work.fuse();
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() < AT_ONCE_MAX {
            let Some(next) = work.next() else { break };
            under_way.spawn(next);
        }
        let limit = until.min(Instant::now() + SILENCE_MAX);
        match timeout_at(limit, under_way.join_next()).await {
            Ok(None) => return true,
            Ok(Some(_)) => {}
            Err(_) => return false,
        }
    }
}
