//! How long an operation waits for capacity in a file system: see [`crate::state::capacity`].

use tokio::time::Instant;
use vfs::Caller;

use super::Compound;
use crate::nfs4::callbacks;
use crate::shared::Object;
use crate::state::Below;
use crate::state::clients::Client;

impl Compound<'_> {
    /// A file system had no capacity for one more open file. Is another attempt worthwhile before `limit`?
    pub(crate) async fn capacity_for_file(&self, object: &Object, made: u64, limit: Instant) -> bool {
        if self.shared.capacity_below(object.export.id, Below::Files, made).await {
            return true;
        }
        let until = self.held_until(limit);
        // Also for a requester that is not held: its next attempt will find what has been returned.
        let deadline = Some(until.unwrap_or_else(Instant::now));
        let made = object.export.fs().free_capacity(&Caller { deadline, ..object.caller.clone() }).await;
        let now = Instant::now();
        now < limit && (made || until.is_some_and(|until| until <= now))
    }

    /// An OPEN lacks a state id, and no client can be dropped. Asks the client with the most delegations for
    /// a quarter of them: it may keep opens as long as it has these.
    pub(crate) fn ask_for_opens(&self) {
        let shared = self.shared.clone();
        if !shared.state.capacity.may_ask(Instant::now()) {
            return;
        }
        let asked = {
            let tables = shared.state.tables();
            let count = |client: &Client| tables.stateids.delegations_beside_opens(client.id);
            let most = tables.clients.iter().map(|client| (count(client), client.holder)).max();
            most.filter(|(count, _)| *count > 0)
        };
        let Some((count, holder)) = asked else { return };
        tracing::info!("opens are lacking: a client with {count} delegations is asked for a quarter of them");
        let keep = u32::try_from(count - count.div_ceil(4)).unwrap_or(u32::MAX);
        tokio::spawn(async move { callbacks::recall_any(&shared, Some(holder), keep).await });
    }

    /// Does the requester hold nearly all state? Then only its own closes can free capacity.
    pub(crate) fn holds_most(&self) -> bool {
        let tables = self.shared.state.tables();
        let client = tables.client_of(self.holder()).map(|client| client.id);
        client.is_some_and(|client| tables.stateids.is_most(client))
    }

    /// Until when to hold the requester before the next look: at most until another client becomes a
    /// courtesy client. `None` if the requester must not be held.
    fn held_until(&self, limit: Instant) -> Option<Instant> {
        let (now, session) = (Instant::now(), self.slot.as_ref().map(|slot| slot.session));
        let tables = self.shared.state.tables();
        tables.sessions.get(session?).filter(|session| !session.is_crowded())?;
        Some(tables.clients.next_courtesy(now).map_or(limit, |next| next.min(limit)))
    }
}
