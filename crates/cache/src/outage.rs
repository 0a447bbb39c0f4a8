//! An origin that does not answer: when that counts as an outage. `watcher` logs it.
//!
//! The layer below reports since when calls have gone unanswered ([`vfs::FileSystem::unanswered_since`]).
//! With `offline=read` or [`Options::puts_off`], an outage begins when this has lasted for a while. During an
//! outage, known data is answered without a call, and with `puts_off` all other requests are put off. The
//! outage ends with the first answer of the origin.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use vfs::{Handle, UnansweredSince};

use crate::options::{Offline, Options};

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
        let silence = silence.filter(|_| options.offline == Offline::Read || options.puts_off);
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
    pub fn is_silent(&self) -> bool {
        self.silence.as_ref().is_some_and(|silence| silence.borrow().is_some())
    }

    /// Waits until calls are unanswered; for ever, if nothing reports that.
    pub async fn falls_silent(&self) {
        let Some(mut silence) = self.silence.clone() else { return std::future::pending().await };
        if silence.wait_for(Option::is_some).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the origin answers.
    pub async fn ends(&self) {
        let Some(mut silence) = self.silence.clone() else { return };
        let _ = silence.wait_for(Option::is_none).await;
    }

    /// Is this file to be logged for the first time in this outage?
    pub fn is_news(&self, handle: &Handle) -> bool {
        let mut told = self.told.lock();
        told.len() < TOLD_MAX && told.insert(*handle)
    }

    /// The outage is over: its files may be logged again in the next one.
    pub fn forget_news(&self) {
        self.told.lock().clear();
    }

    /// How long calls must go unanswered before an outage begins.
    pub fn after(&self) -> Duration {
        self.after
    }
}
