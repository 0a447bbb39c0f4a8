//! Watches for outages: logs them, and calls the origin while it does not answer.
//!
//! An answer from the cache sends no call. While the origin does not answer, one call of the cache itself is
//! therefore always in flight. Without it, nothing would show that the origin is back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::sleep;
use vfs::{Caller, Handle, Result, Status};

use crate::core::Core;
use crate::options::Offline;
use crate::outage::Outage;
use crate::trust::since;

impl Core {
    /// Is there an outage, so that answers come from the cache?
    pub fn is_away(&self) -> bool {
        self.options.offline == Offline::Read && self.link.outage().is_on()
    }

    /// Must a request that needs the origin be put off now?
    pub fn puts_off(&self) -> bool {
        self.options.puts_off && self.link.outage().is_on()
    }

    /// For a request that changes something. It must not be given up once it was sent, so it is not sent.
    ///
    /// # Errors
    /// `Delay` in an outage.
    pub fn may_change(&self) -> Result<()> {
        if self.puts_off() { Err(Status::Delay.into()) } else { Ok(()) }
    }

    /// Logs that a file is read in its last known state, once in each outage.
    pub fn tell_age(&self, handle: &Handle) {
        if !self.link.outage().is_news(handle) {
            return;
        }
        let object = self.glance(handle);
        let (confirmed, place, fileid) = self.with(&object, |state| {
            let fileid = state.attributes().map_or(0, |known| known.fileid);
            (state.confirmed(), state.place.clone(), fileid)
        });
        let age = confirmed.map_or_else(String::new, |at| {
            format!(" as of {} s ago", since(at, self.policy.wall()).as_secs())
        });
        let name = place.map_or_else(String::new, |place| format!(" {}", place.name));
        tracing::warn!("{} does not answer: file{name} (inode {fileid}) is read{age}", self.options.origin);
    }
}

/// Logs outages, and calls the origin while it does not answer, for as long as the cache exists.
pub async fn watcher(core: Weak<Core>) {
    loop {
        let Some(outage) = core.upgrade().map(|core| core.link.outage().clone()) else { return };
        outage.falls_silent().await;
        let Some(core) = core.upgrade() else { return };
        let mut told = false;
        while outage.is_silent() {
            tokio::select! {
                () = probe(&core, &outage) => {}
                () = outage.begins(), if !told => {
                    told = true;
                    let known = match core.options.offline {
                        Offline::Read => "complete files are read in their last known state, ",
                        Offline::Wait => "",
                    };
                    let others = if core.options.puts_off { "are put off" } else { "wait" };
                    tracing::warn!(
                        "{} has not answered for {} s: {known}all other calls {others}",
                        core.options.origin,
                        outage.after().as_secs()
                    );
                }
            }
        }
        outage.forget_news();
        if told {
            tracing::warn!("{} answers again", core.options.origin);
        }
    }
}

/// Sends one call. Waits for its reply, or until the origin answers another call.
async fn probe(core: &Arc<Core>, outage: &Outage) {
    let caller = Caller::machine();
    tokio::select! {
        _ = core.below.root(&caller) => {}
        () = outage.ends() => return,
    }
    // On a soft mount, the call fails soon. The next one need not follow at once.
    tokio::select! {
        () = sleep(Duration::from_secs(1)) => {}
        () = outage.ends() => {}
    }
}
