//! The task that sends callbacks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use vfs::Callback;

use super::Leases;
use crate::watch::{Events, Seen};

/// How often leased directories are checked for removal. While this process has a directory open, the
/// kernel reports its removal only to watches of the parent.
const LOOK: Duration = Duration::from_secs(2);
/// Pause after an error of the watches.
const EVENTS_PAUSE: Duration = Duration::from_secs(1);

/// Sends callbacks when the kernel or this layer has a reason for them.
pub(super) async fn watch(
    leases: Weak<Leases>,
    attention: Arc<Notify>,
    (mut signal, events): (Signal, Option<Events>),
    callbacks: mpsc::Sender<Callback>,
) {
    let (mut failed, mut looked) = (false, Instant::now());
    loop {
        let Some((due, next)) = leases.upgrade().map(|leases| leases.due(Instant::now())) else { return };
        for callback in due {
            if callbacks.send(callback).await.is_err() {
                break; // the select below notices it
            }
        }
        let wait = async {
            match next {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let seen = async {
            if failed {
                tokio::time::sleep(EVENTS_PAUSE).await;
            }
            match &events {
                Some(events) => events.next().await,
                None => std::future::pending().await,
            }
        };
        let any = leases.upgrade().is_some_and(|leases| leases.watches_any());
        let look = tokio::time::sleep_until(looked + LOOK);
        tokio::select! {
            _ = signal.recv() => {
                if let Some(leases) = leases.upgrade() {
                    leases.look.store(true, Ordering::Release);
                }
            }
            seen = seen => {
                let Some(leases) = leases.upgrade() else { return };
                failed = seen.is_err();
                let seen = seen.unwrap_or_else(|cause| {
                    tracing::warn!("changes of leased directories were missed, and all of them are recalled: {cause}");
                    vec![Seen::Lost]
                });
                leases.seen(&seen);
            }
            () = look, if any => {
                looked = Instant::now();
                leases.upgrade().iter().for_each(|leases| leases.look_for_removed());
            }
            () = attention.notified() => {}
            () = wait => {}
            () = callbacks.closed() => {
                if let Some(leases) = leases.upgrade() {
                    leases.end_all();
                }
                return;
            }
        }
    }
}
