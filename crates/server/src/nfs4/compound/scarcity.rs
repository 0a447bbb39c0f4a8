//! How long an operation waits for capacity in a file system: see [`crate::state::capacity`].

use tokio::time::Instant;
use vfs::Caller;

use super::Compound;
use crate::shared::Object;
use crate::state::Below;

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
