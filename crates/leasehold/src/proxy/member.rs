//! One of several origins, from its configuration to its end.

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use server::exports::ExportId;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::origin::{Served, Wanted};
use crate::Failure;
use crate::admin::Admin;

/// See the module.
pub struct Member {
    /// Its id in handles.
    pub id: ExportId,
    /// Its configuration.
    pub wanted: RwLock<Wanted>,
    /// How far it is.
    pub stage: Mutex<Stage>,
    /// Since when it is there.
    pub since: Instant,
    /// It leaves the configuration, or the process ends.
    pub leaves: watch::Sender<bool>,
    /// The task that reaches it.
    pub joining: Mutex<Option<JoinHandle<()>>>,
    /// The limits of its cache that were set last.
    pub limits: Mutex<Option<cache::Limits>>,
}

/// How far an origin is.
pub enum Stage {
    /// It is that of another virtual server, and no client has asked for it here.
    Unasked,
    /// It has not been reached since this time, for a reason if an attempt has failed.
    Awaited {
        /// Since when.
        since: Instant,
        /// The message of the last attempt.
        why: Option<String>,
    },
    /// It is served. Its admin socket is in the directory of its cache.
    Served(Arc<Served>, Option<Admin>),
}

impl Member {
    /// An origin that is to be reached.
    pub fn new(wanted: Wanted) -> Arc<Member> {
        Member::at(wanted, Stage::Awaited { since: Instant::now(), why: None })
    }

    /// An origin that is to be reached when a client asks for it.
    pub fn unasked(wanted: Wanted) -> Arc<Member> {
        Member::at(wanted, Stage::Unasked)
    }

    fn at(wanted: Wanted, stage: Stage) -> Arc<Member> {
        Arc::new(Member {
            id: wanted.id(),
            wanted: RwLock::new(wanted),
            stage: Mutex::new(stage),
            since: Instant::now(),
            leaves: watch::Sender::new(false),
            joining: Mutex::default(),
            limits: Mutex::default(),
        })
    }

    /// Its configuration.
    pub fn wanted(&self) -> Wanted {
        self.wanted.read().clone()
    }

    /// The origin, if it is served.
    pub fn served(&self) -> Option<Arc<Served>> {
        match &*self.stage.lock() {
            Stage::Served(served, _) => Some(served.clone()),
            Stage::Awaited { .. } | Stage::Unasked => None,
        }
    }

    /// A client has asked for it.
    pub fn ask(&self) {
        *self.stage.lock() = Stage::Awaited { since: Instant::now(), why: None };
    }

    /// May it have something in its cache?
    pub fn is_asked_for(&self) -> bool {
        !matches!(*self.stage.lock(), Stage::Unasked)
    }

    /// It is not served any more. Its admin socket ends; so does its lock, when what is returned is dropped.
    pub fn leave(&self) -> Option<Arc<Served>> {
        let gone = Stage::Awaited { since: Instant::now(), why: None };
        match std::mem::replace(&mut *self.stage.lock(), gone) {
            Stage::Served(served, _) => Some(served),
            Stage::Awaited { .. } | Stage::Unasked => None,
        }
    }

    /// The origin is not served for this reason. Tells it, if it is news.
    pub fn note(&self, failure: &Failure) {
        let Stage::Awaited { why, .. } = &mut *self.stage.lock() else { return };
        if why.replace(failure.0.clone()).as_ref() != Some(&failure.0) {
            crate::output::tell(format_args!("{failure}; clients of {} wait", self.wanted.read().path));
        }
    }

    /// Its part of the status.
    pub fn status(&self) -> Value {
        let Wanted { url, directory, referred, .. } = self.wanted();
        let mut status = match &*self.stage.lock() {
            Stage::Served(served, _) => served.status(),
            Stage::Awaited { since, why } => json!({
                "origin": url.to_string(),
                "awaited_ms": since.elapsed().as_millis() as u64,
                "why": why,
            }),
            Stage::Unasked => json!({ "origin": url.to_string(), "unasked": true }),
        };
        status["directory"] = json!(directory.display().to_string());
        if let Some(referred) = referred {
            status["referred_by"] = json!(referred.by);
        }
        status
    }
}
