//! The end of the process: everything that is held at the origin goes back to it, or is left to the next life, if that
//! will know of it.
//!
//! What is given back is given back many at once, as many as there are slots: at 75 ms of round trip, a thousand opens one
//! after the other would be more than a minute. Then the session ends and the client with it, so that the origin need not
//! wait for the end of a lease before it lets go of anything. An origin that says nothing is waited for as long as one
//! silence may last, and one that is slow as long as it goes on, up to a bound.
//!
//! Assumed: the layer above opens nothing any more.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use vfs::{Caller, LeaseId, OpenId};

use super::establish::SLOTS_MAX;
use super::{Nfs4, Nfs4Client, Phase};

/// So long is nothing heard of an origin until it is given up.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The longest that the end of a process is held up.
pub const FAREWELL_MAX: Duration = Duration::from_secs(30);
/// What was on its way when its turn came is found in the next round.
const ROUNDS_MAX: u32 = 3;

impl Nfs4 {
    /// There is no next life that would want what this one holds: [`FileSystem::shutdown`] gives it back even if it is
    /// recorded, and the record ends with it.
    ///
    /// [`FileSystem::shutdown`]: vfs::FileSystem::shutdown
    pub fn leave_nothing(&self) {
        self.inner.leaves_nothing.store(true, Ordering::Relaxed);
    }

    /// Returns, closes and destroys everything, as far as the origin answers; or leaves it to the next life, if that will
    /// know of it.
    pub(super) async fn give_everything_back(&self) {
        let inner = &self.inner;
        let left = inner.state.lock().is_recorded() && !inner.leaves_nothing.load(Ordering::Relaxed);
        let silent = inner.channel.pulse.watch().borrow().is_some_and(|since| since.elapsed() >= SILENCE_MAX);
        if left || silent {
            inner.phase.send_replace(Phase::Ended);
            return;
        }
        let until = Instant::now() + FAREWELL_MAX;
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
        // The next life is a new incarnation, for which the origin drops whatever it may have kept of this one.
        inner.state.forget();
    }
}

impl Nfs4Client {
    /// Gives back all leases and opens. False if that is not known to have come to an end.
    async fn give_all_back(self: &Arc<Nfs4Client>, until: Instant) -> bool {
        for _ in 0..ROUNDS_MAX {
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
            // What others have sent may bring something, or be about to take it back.
            let Phase::Ready(session) = self.phase.borrow().clone() else { return false };
            let limit = until.min(Instant::now() + SILENCE_MAX);
            if timeout_at(limit, session.idle()).await.is_err() {
                return false;
            }
            if nothing {
                return true;
            }
        }
        true
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

/// Does many things, as many at once as there can be slots. False if none of them came to an end for too long, or if it is
/// late; what is still under way is given up then.
async fn many<F>(until: Instant, work: impl Iterator<Item = F>) -> bool
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut work = work.fuse();
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() < SLOTS_MAX as usize {
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
