//! An origin that does not answer: when that counts as an outage, and which messages are logged.
//!
//! The layer below reports since when calls have gone unanswered ([`vfs::FileSystem::unanswered_since`]).
//! With `offline=read`, an outage begins when this has lasted for a while. During an outage, known data is
//! answered without a call. The outage ends with the first answer of the origin.
//!
//! An answer from the cache sends no call. While the origin does not answer, one call of the cache itself is
//! therefore always in flight. Without it, nothing would show that the origin is back.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use vfs::{Caller, Handle, UnansweredSince};

use crate::core::Core;
use crate::options::{Offline, Options};
use crate::trust::since;

/// The largest number of files that are logged as read offline in one outage.
const TOLD_MAX: usize = 10_000;

/// Watches for outages.
#[derive(Debug)]
pub struct Outage {
    silence: Option<watch::Receiver<UnansweredSince>>,
    after: Duration,
    told: Mutex<HashSet<Handle>>,
}

impl Outage {
    /// Configured by the options. `silence` is the report of the layer below.
    pub fn new(options: &Options, silence: Option<watch::Receiver<UnansweredSince>>) -> Outage {
        let silence = silence.filter(|_| options.offline == Offline::Read);
        Outage { silence, after: options.offline_after, told: Mutex::default() }
    }

    /// Can there be an outage at all?
    pub fn is_possible(&self) -> bool {
        self.silence.is_some()
    }

    /// Is there an outage now?
    pub fn is_on(&self) -> bool {
        self.silence
            .as_ref()
            .and_then(|silence| *silence.borrow())
            .is_some_and(|since| since.elapsed() >= self.after)
    }

    /// Waits for an outage; for ever, if there cannot be one.
    pub async fn begins(&self) {
        let Some(mut silence) = self.silence.clone() else { return std::future::pending().await };
        loop {
            let since: Option<Instant> = *silence.borrow_and_update();
            let changed = match since {
                None => silence.changed().await,
                Some(since) if since.elapsed() >= self.after => return,
                Some(since) => {
                    let left = self.after.saturating_sub(since.elapsed());
                    timeout(left, silence.changed()).await.unwrap_or(Ok(()))
                }
            };
            if changed.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Are calls unanswered, for however short a time?
    fn is_silent(&self) -> bool {
        self.silence.as_ref().is_some_and(|silence| silence.borrow().is_some())
    }

    /// Waits until calls are unanswered; for ever, if nothing reports that.
    async fn falls_silent(&self) {
        let Some(mut silence) = self.silence.clone() else { return std::future::pending().await };
        if silence.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the origin answers.
    async fn ends(&self) {
        let Some(mut silence) = self.silence.clone() else { return };
        let _ = silence.wait_for(Option::is_none).await;
    }

    /// Is this file to be logged for the first time in this outage?
    fn is_news(&self, handle: &Handle) -> bool {
        let mut told = self.told.lock();
        told.len() < TOLD_MAX && told.insert(*handle)
    }
}

impl Core {
    /// Is there an outage, so that answers come from the cache?
    pub fn is_away(&self) -> bool {
        self.link.outage().is_on()
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
                    tracing::warn!(
                        "{} has not answered for {} s: complete files are read in their last known state, all other calls wait",
                        core.options.origin,
                        outage.after.as_secs()
                    );
                }
            }
        }
        outage.told.lock().clear();
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
