//! An origin that is being reached, in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use client::Origin;
use futures_util::future::join_all;
use server::Export;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use vfs::FileSystem;

use super::origin::{Common, Served, Wanted, lease_time, reach};
use crate::Failure;
use crate::owner::Incarnation;

/// How long clients of all origins wait for one at the start.
const FIRST_MAX: Duration = Duration::from_secs(2);

/// The lease time that an origin is supposed to have that has not answered yet. It is the default of Linux
/// and of ours.
const AWAITED_LEASE_TIME: Duration = Duration::from_secs(90);

/// A served origin, and the file system for its clients.
pub type Opened = (Served, Arc<dyn FileSystem>);

/// An origin that is being reached.
pub struct Opening {
    /// Its configuration.
    pub wanted: Wanted,
    task: JoinHandle<Result<Opened, Failure>>,
    /// The result of the task, until it is used.
    pub opened: Option<Result<Opened, Failure>>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Opening {
    /// Begins to reach it.
    pub fn begin(wanted: Wanted, common: Common) -> Opening {
        let of = wanted.clone();
        let task = tokio::spawn(async move {
            let incarnation = Incarnation::begin(&of.url, &of.directory).await?;
            let origin = reach(&of.url, &incarnation.client).await?;
            Served::open(&of, incarnation, origin, &common).await
        });
        Opening { wanted, task, opened: None }
    }

    /// Opens the cache of an origin that was reached already.
    ///
    /// # Errors
    /// If the directory of the cache cannot be used.
    pub async fn of(
        wanted: Wanted,
        incarnation: Incarnation,
        origin: Arc<dyn Origin>,
        common: &Common,
    ) -> Result<Opening, Failure> {
        let opened = Served::open(&wanted, incarnation, origin, common).await?;
        let task = tokio::spawn(async { Err(Failure("it was reached".into())) });
        Ok(Opening { wanted, task, opened: Some(Ok(opened)) })
    }

    /// Waits until it is reached, or until the attempt has failed.
    pub async fn finish(&mut self) {
        if self.opened.is_none() {
            let ended = (&mut self.task).await;
            let failed =
                |error| Err(Failure(format!("cannot open the cache of {}: {error}", self.wanted.url)));
            self.opened = Some(ended.unwrap_or_else(failed));
        }
    }

    /// The lease time of a proxy of it, if `wanted` is configured ([`lease_time`]).
    pub fn lease_time(&self, wanted: u32) -> u32 {
        let at_origin = match &self.opened {
            Some(Ok((served, _))) => served.caching.origin.lease_time(),
            _ => Some(AWAITED_LEASE_TIME),
        };
        lease_time(wanted, at_origin)
    }

    /// Its export, without a file system if there is none yet.
    pub fn export(&self) -> Export {
        let export = self.wanted.awaited_export();
        match &self.opened {
            Some(Ok((_, fs))) => export.with(fs.clone()),
            _ => export,
        }
    }
}

/// The exports of these origins. Waits a little for their file systems, so that clients of a proxy that
/// restarts are rarely put off.
pub async fn exports(opening: &mut [Opening]) -> Vec<Export> {
    let all = join_all(opening.iter_mut().map(Opening::finish));
    // Those that have not answered by then are awaited.
    let _ = timeout(FIRST_MAX, all).await;
    opening.iter().map(Opening::export).collect()
}
