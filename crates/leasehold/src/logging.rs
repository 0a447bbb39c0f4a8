//! The log: what it has, and in which form. [`crate::mount::log`] decides where it goes.

use std::sync::OnceLock;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::cli::{LogFormat, Logging};
use crate::mount;

/// The filter if nobody has set one. It turns off the index's libraries; the cache reports the failures of
/// the index.
const QUIET: &str = "warn,fjall=off,lsm_tree=off";
/// Follows a level that is set, for the same reason.
const LIBRARIES: &str = "fjall=off,lsm_tree=off";

/// Changes the filter of the log.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts the log. Called once.
pub fn start(logging: &Logging) {
    let (filter, handle) = reload::Layer::new(filter(logging));
    let log = fmt::layer().with_writer(mount::log::Logs::new()).with_ansi(false).with_target(false);
    let named = || std::env::var("LEASEHOLD_LOG_FORMAT").is_ok_and(|named| named == "json");
    let is_json = logging.log_format.map_or_else(named, |format| format == LogFormat::Json);
    let log = if is_json { log.json().boxed() } else { log.boxed() };
    tracing_subscriber::registry().with(filter).with(log).init();
    let _ = FILTER.set(handle);
}

/// From now on, logs what these options say. The form of the log stays.
pub fn change(logging: &Logging) {
    if let Some(handle) = FILTER.get() {
        // It fails only if there is no log any more.
        let _ = handle.reload(filter(logging));
    }
}

fn filter(logging: &Logging) -> EnvFilter {
    match &logging.log_level {
        Some(level) => EnvFilter::new(format!("{LIBRARIES},{level}")),
        None => EnvFilter::try_from_env("LEASEHOLD_LOG").unwrap_or_else(|_| EnvFilter::new(QUIET)),
    }
}
