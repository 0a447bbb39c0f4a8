//! Revalidation: one GETATTR for all requesters that arrive before it is sent.
//!
//! An open must be answered from a GETATTR that was sent after the open arrived. While a GETATTR is in
//! flight, new requesters wait. When it ends, the first of them sends the next one, and all that had arrived
//! by then share its answer. The queue is the object's `revalidation` lock: it is fair, and a requester that
//! gives up leaves no trace.

use std::sync::Arc;

use tokio::time::timeout;
use vfs::{Attributes, Caller, Result, Status};

use crate::core::Core;
use crate::object::{Opening, Seen};
use crate::prefetch::LISTING_PATIENCE;
use crate::table::Object;

impl Core {
    /// The attributes of an object, requested from the origin after the event `arrived`.
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
        // The call that this one waited for may have brought a lease, or may have put the reports of our
        // changes in order.
        if let Some(attributes) = self.with(object, |state| state.believed(true).copied()) {
            return Ok(attributes);
        }
        self.know_limits(caller, &object.handle).await;
        if self.may_bring_lease(object) {
            // The same call may bring a lease, and would then be the last one needed.
            let asked = self.policy.event();
            self.counters.revalidations.bump();
            let result = self.ask_delegated(caller, object).await;
            if let Some(result) = result.map(|accessed| accessed.attributes).transpose() {
                if !is_the_callers_own(&result) {
                    *latest = Some((asked, result.clone()));
                }
                return result;
            }
        }
        let sent = self.policy.sending();
        self.counters.revalidations.bump();
        self.counters.getattr.bump();
        let result = self.below.getattr(caller, &object.handle).await;
        self.link.on_round_trip(sent.at.elapsed());
        let result = match result {
            Ok(attributes) => Ok(self.with(object, |state| {
                match state.observe(&self.policy, &attributes, &sent, Opening::Yes) {
                    // A later state is known, which is as good an answer.
                    Seen::Late => state.attributes().copied().unwrap_or(attributes),
                    Seen::Known { .. } | Seen::Unclear => attributes,
                }
            })),
            Err(error) => {
                self.note_error(object, &error, &sent);
                Err(error)
            }
        };
        if !is_the_callers_own(&result) {
            *latest = Some((sent.sequence, result.clone()));
        }
        result
    }

    /// The attributes, as fresh as the caller wants them: without a call, if a lease or attribute timeouts
    /// allow it.
    pub async fn fresh(&self, caller: &Caller, object: &Arc<Object>, arrived: u64) -> Result<Attributes> {
        let open = self.policy.is_open(caller);
        if let Some(attributes) = self.with(object, |state| state.believed(open).copied()) {
            return Ok(attributes);
        }
        self.ask_attributes(caller, object, arrived).await
    }

    /// Asks the origin for the attributes. Unless the caller opens, one READDIR may bring those of all files
    /// of the directory, and a guess may be bringing them now.
    pub async fn ask_attributes(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        arrived: u64,
    ) -> Result<Attributes> {
        if !self.policy.is_open(caller) {
            let siblings = timeout(LISTING_PATIENCE, Box::pin(self.ask_siblings(caller, object)));
            if siblings.await.unwrap_or(false)
                && let Some(attributes) = self.with(object, |state| state.believed(false).copied())
            {
                return Ok(attributes);
            }
            self.step_at(caller, object, false);
            if Box::pin(self.wait_for_siblings(object)).await
                && let Some(attributes) = self.with(object, |state| state.believed(false).copied())
            {
                return Ok(attributes);
            }
        }
        self.revalidate(caller, object, arrived).await
    }
}

/// Says the result something about its caller alone? Others then ask for themselves.
fn is_the_callers_own(result: &Result<Attributes>) -> bool {
    result.as_ref().is_err_and(|error| error.status == Status::NoTicket)
}
