//! Revalidation: one GETATTR for all who ask while it has not been sent.
//!
//! An open must be answered from a GETATTR that was sent after the open arrived. While one is under way, those who
//! arrive wait; when it ends, the first of them sends the next, and all who had arrived by then share its answer. The
//! lock of the object's slot is that queue: it is fair, and who gives up waiting leaves no trace.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vfs::{Attributes, Caller, Result};

use crate::core::Core;
use crate::object::{Opening, Seen};
use crate::table::Object;

impl Core {
    /// The attributes of an object, asked of the origin after the event `arrived`.
    pub async fn revalidate(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        arrived: u64,
    ) -> Result<Attributes> {
        let mut latest = object.revalidation.lock().await;
        if let Some((sent, result)) = &*latest
            && *sent > arrived
        {
            return result.clone();
        }
        // What was asked for meanwhile may have brought a lease, or put what our own changes told in order.
        if let Some(attributes) = self.with(object, |state| state.believed(true).copied()) {
            return Ok(attributes);
        }
        self.know_limits(caller, &object.handle).await;
        if self.delegates.load(Ordering::Relaxed) && self.wants_directory(object) {
            // The same call may bring a lease, so that it is the last.
            let asked = self.policy.event();
            self.counters.revalidations.bump();
            let result = self.ask_delegated(caller, object).await;
            if let Some(result) = result.map(|accessed| accessed.attributes).transpose() {
                *latest = Some((asked, result.clone()));
                return result;
            }
        }
        let sent = self.policy.sending();
        self.counters.revalidations.bump();
        self.counters.getattr.bump();
        let result = self.below.getattr(caller, &object.handle).await;
        self.pace.lock().on_round_trip(sent.at.elapsed());
        let result = match result {
            Ok(attributes) => Ok(self.with(object, |state| {
                match state.observe(&self.policy, &attributes, &sent, Opening::Yes) {
                    // A later state is known: it is as good an answer.
                    Seen::Late => state.attributes().copied().unwrap_or(attributes),
                    Seen::Known | Seen::Unclear => attributes,
                }
            })),
            Err(error) => {
                self.note_error(object, &error, &sent);
                Err(error)
            }
        };
        *latest = Some((sent.sequence, result.clone()));
        result
    }

    /// As fresh as the caller wants them: without a call, if a lease or attribute timeouts allow it.
    pub async fn fresh(&self, caller: &Caller, object: &Arc<Object>, arrived: u64) -> Result<Attributes> {
        let open = self.policy.is_open(caller);
        if let Some(attributes) = self.with(object, |state| state.believed(open).copied()) {
            return Ok(attributes);
        }
        self.revalidate(caller, object, arrived).await
    }
}
