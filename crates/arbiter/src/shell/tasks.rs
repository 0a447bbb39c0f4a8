//! Background tasks: callbacks from the layer below, callbacks to the front, deadlines.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use vfs::{Callback, Caller, DelayedAttributes, Query};

use super::{Shell, State, detach};
use crate::leases::Writer;

/// The tasks of one arbiter. They end when this is dropped.
#[derive(Default)]
pub(crate) struct Tasks(Mutex<Vec<JoinHandle<()>>>);

impl Tasks {
    /// Starts the tasks, if there is a runtime and they are not running.
    pub(crate) fn start(&self, shell: &Arc<Shell>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut tasks = self.0.lock();
        if !tasks.is_empty() {
            return;
        }
        tasks.push(runtime.spawn(shell.clone().deliver()));
        tasks.push(runtime.spawn(shell.clone().watch_deadlines()));
        if let Some(callbacks) = shell.below.callbacks() {
            tasks.push(runtime.spawn(shell.clone().attend(callbacks)));
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in self.0.lock().drain(..) {
            task.abort();
        }
    }
}

impl Shell {
    /// Sends the callbacks in the outbox to the front.
    async fn deliver(self: Arc<Shell>) {
        loop {
            self.outbox_filled.notified().await;
            while let Ok(permit) = self.up.reserve().await {
                let mut state = self.state.lock();
                match state.outbox.pop_front() {
                    Some(callback) => permit.send(callback),
                    None => break,
                }
            }
        }
    }

    async fn watch_deadlines(self: Arc<Shell>) {
        loop {
            let next = self.with(|state, now| {
                state.leases.expire(now);
                state.alarm = state.leases.next_expiry();
                state.alarm
            });
            match next {
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.deadlines_changed.notified() => {}
                },
                None => self.deadlines_changed.notified().await,
            }
        }
    }

    /// Handles the callbacks of the layer below.
    async fn attend(self: Arc<Shell>, mut callbacks: vfs::Callbacks) {
        while let Some(callback) = callbacks.recv().await {
            match callback {
                Callback::Recall(recall) => self.with(|state, now| state.leases.recalled_below(now, &recall)),
                Callback::Revoked { id, .. } => self.with(|state, now| state.leases.revoked_below(now, id)),
                Callback::RecallAny { keep, .. } => {
                    self.with(|state, now| state.leases.keep_below(now, keep as usize));
                }
                Callback::Getattr(query) => self.answer(query),
                notify @ Callback::NotifyLock { .. } => self.with(|state, _| self.post(state, notify)),
            }
        }
    }

    /// The layer below asks about delayed changes of a file under its write lease.
    fn answer(self: &Arc<Shell>, query: Query) {
        let writer = |state: &mut State, now: Instant| state.leases.writer_under(now, query.id);
        let writer: Option<Writer> = self.with(writer);
        if let Some(Writer { id, change }) = writer {
            self.with(|state, _| self.post(state, Callback::Getattr(Query { id, change, ..query })));
            return;
        }
        // The arbiter delays nothing, so the layer below has all data.
        let shell = self.clone();
        detach(async move {
            if let Ok(attributes) = shell.below.getattr(&Caller::machine(), &query.handle).await {
                // The layer below may have stopped waiting.
                let _ = query.answer.send(DelayedAttributes {
                    modified: false,
                    size: attributes.size,
                    times: None,
                });
            }
        });
    }
}
