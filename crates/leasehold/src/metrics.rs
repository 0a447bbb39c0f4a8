//! `--metrics`: what Prometheus and an administrator's browser read of a running Leasehold, over HTTP.
//!
//! | path | answers |
//! |---|---|
//! | `/metrics` | the metrics of `families`, in the OpenMetrics text format |
//! | `/healthz` | 200 if the server answers calls and its disk answers, else 503; see `health` |
//! | `/readyz` | 200 if clients are served: the origin answers, and there is no grace period |
//! | `/status` | the JSON of `leasehold status` |
//! | `/` | a page for people: the summary of `leasehold status` and the last hour, from `/overview` |
//!
//! Nothing is counted for the metrics alone: a scrape reads the counters of `status` when it comes. There is
//! no access control, so the default address is that of this machine. `/metrics` shows no names of files, and
//! the page shows them only to browsers on this machine. `/status` of a mount names files that lost data.

mod families;
mod family;
pub mod health;
mod history;
mod process;
mod web;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use arbiter::Arbiter;
use cache::Cache;
use client::Origin;
use server::Front;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Failure;
use crate::live::Live;
use crate::membership::status::NumbersSource;
use crate::status;

/// The parts of a process that are measured.
#[derive(Clone)]
pub struct Measured {
    /// The command.
    pub role: &'static str,
    /// The server, of `serve` and `proxy`.
    pub serving: Option<Serving>,
    /// The caches, of `proxy` and `mount`.
    pub caching: Live<Caching>,
    /// The origins of a proxy that are not served yet.
    pub awaited: Live<Awaited>,
    /// The member of a cluster, if this is the process of one.
    pub cluster: Option<NumbersSource>,
    /// The mount; gone once it is unmounted.
    pub mounted: Weak<mount::Mount>,
    /// The state, for `/status`.
    pub status: status::Source,
    /// The cache or state directory, whose disk must answer.
    pub directory: PathBuf,
}

/// A server and what its clients hold.
#[derive(Clone)]
pub struct Serving {
    /// The server's front.
    pub front: Arc<Front>,
    /// How much of its limits is in use.
    pub load: rpc::Load,
    /// Its exports, by path.
    pub arbiters: Live<(String, Arc<Arbiter>)>,
    /// The address that it listens on.
    pub address: SocketAddr,
}

/// An origin that has not been reached since the start.
#[derive(Clone, Debug)]
pub struct Awaited {
    /// The path of its export.
    pub export: String,
    /// A referral leads to it.
    pub is_elsewhere: bool,
    /// Its URL.
    pub origin: String,
    /// The message of the last attempt.
    pub why: Option<String>,
}

/// A cache and its origin.
#[derive(Clone)]
pub struct Caching {
    /// The path of its export; empty for a mount.
    pub export: String,
    /// A referral leads to it: it is not in the configuration.
    pub is_elsewhere: bool,
    /// The origin.
    pub origin: Arc<dyn Origin>,
    /// The cache.
    pub cache: Arc<Cache>,
}

/// Answers until it is dropped.
#[derive(Debug)]
pub struct Metrics {
    task: JoinHandle<()>,
    address: SocketAddr,
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Metrics {
    /// Listens on `address`, if one is given. `usage` is the source of `leasehold top`.
    pub async fn start(
        address: Option<SocketAddr>,
        measured: Measured,
        usage: status::Source,
    ) -> Result<Option<Metrics>, Failure> {
        let Some(address) = address else { return Ok(None) };
        let failed = |error: std::io::Error| {
            Failure(format!(
                "cannot listen on {address} for metrics: {error}; pass --metrics another port of an address of this machine"
            ))
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let task = tokio::spawn(web::serve(listener, measured, usage));
        Ok(Some(Metrics { task, address }))
    }

    /// Says where it answers.
    pub fn announce(&self) {
        crate::output::announce(format_args!("metrics on http://{}/metrics", self.address));
    }
}
