//! Attributes of a file with delayed writes: the arbiter asks the holder of the write lease (CB_GETATTR).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use vfs::{Attributes, Callback, Caller, DelayedAttributes, Handle, Node, Query, Result, Times};

use super::Shell;
use crate::leases::{Use, Writer};

/// Questions about one lease: concurrent requesters share the next answer.
#[derive(Default)]
pub(crate) struct Asked {
    asks: AtomicU64,
    /// The last answer, and the value of `asks` when its question was sent.
    last: tokio::sync::Mutex<(u64, Option<DelayedAttributes>)>,
}

impl Shell {
    /// The attributes of a file, including delayed writes of other holders.
    pub(crate) async fn getattr(self: &Arc<Shell>, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        self.recovered(caller, Use::Read)?;
        let mut lagged = false;
        loop {
            let Some(writer) = self.writer(caller, handle) else {
                return self.below.getattr(caller, handle).await;
            };
            let Some(held) = self.ask(handle, writer).await else {
                self.when_clear(caller, handle, Use::Read, |_, _| ()).await?;
                return self.below.getattr(caller, handle).await;
            };
            let below = self.below.getattr(caller, handle).await?;
            // The layer below has received data of the holder since its answer, or its reply to that data
            // is in flight.
            let lags = held.modified && held.times.is_some_and(|times| times.ctime < below.ctime);
            if lags && !std::mem::replace(&mut lagged, true) {
                continue;
            }
            if let Some(merged) = self.merge(below, writer, held) {
                return Ok(merged);
            }
        }
    }

    /// Fetches attributes that came with another reply again, if another holder has delayed writes.
    pub(crate) async fn refreshed(self: &Arc<Shell>, caller: &Caller, node: &mut Node) -> Result<()> {
        if node.attributes.is_some() && self.writer(caller, &node.handle).is_some() {
            node.attributes = Some(self.getattr(caller, &node.handle).await?);
        }
        Ok(())
    }

    /// Omits attributes that came with another reply, if another holder has delayed writes.
    pub(crate) fn trusted(
        &self,
        caller: &Caller,
        handle: &Handle,
        attributes: Option<Attributes>,
    ) -> Option<Attributes> {
        attributes.filter(|_| self.writer(caller, handle).is_none())
    }

    fn writer(&self, caller: &Caller, handle: &Handle) -> Option<Writer> {
        if self.gauges.write_leases.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.state.lock().leases.writer(Instant::now(), handle, caller.holder)
    }

    /// Asks the holder of a write lease for its changes of the file. `None` if it does not answer in time,
    /// or if its lease is recalled.
    async fn ask(self: &Arc<Shell>, handle: &Handle, writer: Writer) -> Option<DelayedAttributes> {
        let asked = {
            let mut state = self.state.lock();
            if !state.leases.may_be_asked(writer.id) {
                return None;
            }
            state.asked.entry(writer.id).or_default().clone()
        };
        let mine = asked.asks.fetch_add(1, Ordering::SeqCst) + 1;
        let mut last = asked.last.lock().await;
        if last.0 < mine {
            let all = asked.asks.load(Ordering::Acquire);
            *last = (all, self.question(handle, writer).await);
        }
        last.1
    }

    async fn question(self: &Arc<Shell>, handle: &Handle, writer: Writer) -> Option<DelayedAttributes> {
        let deadline = Instant::now() + self.options.getattr_deadline;
        let (answer, answered) = oneshot::channel();
        let (id, change) = (writer.id, writer.change);
        let query = Query { id, handle: *handle, change, times: true, answer, deadline };
        self.gauges.questions.fetch_add(1, Ordering::Relaxed);
        self.with(|state, _| self.post(state, Callback::Getattr(query)));
        timeout_at(deadline, answered).await.ok()?.ok()
    }

    /// Merges the attributes of the layer below with those of the holder. `None` if the lease has ended. If
    /// the holder does not report times, the current time is used (RFC 8881, section 10.4.3).
    fn merge(&self, below: Attributes, writer: Writer, held: DelayedAttributes) -> Option<Attributes> {
        if !held.modified && held.size == below.size {
            return Some(below);
        }
        let change = self.state.lock().leases.modified(writer.id, below.change)?;
        let now = self.options.clock.wall();
        let known = held.times.filter(|times| times.ctime > below.ctime);
        let Times { atime, mtime, ctime } =
            known.unwrap_or(Times { atime: below.atime, mtime: now, ctime: now });
        // The holder's clock may be ahead, but a change is never in the future.
        let ctime = ctime.min(now.max(below.ctime));
        Some(Attributes { size: held.size, change, atime, mtime, ctime, ..below })
    }
}
