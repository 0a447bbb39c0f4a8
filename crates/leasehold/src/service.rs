//! What a service manager wants to know: systemd's READY, STATUS, STOPPING and WATCHDOG (sd_notify(3)).
//! Without NOTIFY_SOCKET in the environment, as outside systemd, all of this does nothing.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::JoinHandle;

use crate::metrics::{Measured, health};

/// How much longer than this moment the shutdown may take, each time it reports progress.
const STOP_EXTENSION: Duration = Duration::from_secs(60);

/// Tells that the service is ready, and answers the watchdog until it is dropped.
#[derive(Debug)]
pub struct Service {
    watchdog: Option<JoinHandle<()>>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.watchdog.iter().for_each(JoinHandle::abort);
    }
}

impl Service {
    /// The service serves now. `status` is what `systemctl status` shows.
    ///
    /// If the unit has a watchdog (WatchdogSec=), it is answered as long as a NULL call to the own port is.
    /// systemd ends and restarts a process that does not answer.
    pub fn ready(status: &str, measured: &Measured) -> Service {
        tracing::info!("{status}; version {}, process {}", env!("CARGO_PKG_VERSION"), std::process::id());
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
        let watchdog = sd_notify::watchdog_enabled()
            .map(|interval| tokio::spawn(answer_watchdog(interval / 2, measured.clone())));
        Service { watchdog }
    }
}

/// The service runs. It has no port of its own by which a watchdog could see that.
pub fn started(status: &str) {
    tracing::info!("{status}; version {}, process {}", env!("CARGO_PKG_VERSION"), std::process::id());
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Answers the watchdog of a process without a port, as long as its runtime goes on, until it is dropped.
pub fn watched() -> Service {
    let answer = async |interval: Duration| loop {
        tell(&[NotifyState::Watchdog]);
        tokio::time::sleep(interval).await;
    };
    let watchdog = sd_notify::watchdog_enabled().map(|interval| tokio::spawn(answer(interval / 2)));
    Service { watchdog }
}

/// The service reads its configuration again.
pub fn reloading() {
    tell(&[NotifyState::Reloading]);
}

/// The service has its new configuration.
pub fn reloaded() {
    tell(&[NotifyState::Ready]);
}

/// The shutdown has begun.
pub fn stopping() {
    tracing::info!("shutting down");
    tell(&[NotifyState::Stopping]);
}

/// The shutdown makes progress, and needs more time than TimeoutStopSec= says.
pub fn still_stopping(left: &str) {
    let more = u32::try_from(STOP_EXTENSION.as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::Status(left), NotifyState::ExtendTimeoutUsec(more)]);
}

async fn answer_watchdog(interval: Duration, measured: Measured) {
    loop {
        match health::server(&measured).await {
            Ok(()) => tell(&[NotifyState::Watchdog]),
            Err(trouble) => tracing::error!("the watchdog is not answered: {trouble}"),
        }
        tokio::time::sleep(interval).await;
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!("systemd is not told: {error}");
    }
}
