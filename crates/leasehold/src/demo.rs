//! `leasehold demo`: shows the effect of the cache, in half a minute, on one machine.
//!
//! The demo serves a sample tree, from a directory or from memory. A relay adds the round-trip time of a
//! distant origin, and a proxy caches behind it. One reader reads the tree three times: from the origin,
//! through the proxy with a cold cache, and again with a warm cache.

mod reader;
mod sample;
mod table;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::bench::relay::{self, Relay};
use client::{Origin, ProcedureCounts, Url};
use indicatif::{ProgressBar, ProgressStyle};
use memory::Memory;
use server::{ExportOptions, Squash};
use vfs::FileSystem;

use crate::cli::{Demo, Network, Users, Version4};
use crate::stack::{self, End, Keep, Listening, Stack};
use crate::{Failure, proxy, serve, state};
use reader::Reading;
use table::Row;

/// The parts of the demo, in the order in which they are stopped.
struct Setting {
    proxy: Stack,
    upstream: Arc<dyn Origin>,
    relay: Relay,
    origin: Stack,
    directory: Directory,
}

/// A temporary directory; dropping the value removes it.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the demo.
pub async fn run(arguments: Demo) -> Result<(), Failure> {
    let progress = progress(3 + 3 * sample::FILES as u64);
    progress.set_message("making a sample tree");
    let directory = Directory(std::env::temp_dir().join(format!("leasehold-demo-{}", std::process::id())));
    state::make(&directory.0)?;
    let sample = if arguments.memory { in_memory().await? } else { in_directory(&directory.0)? };
    progress.inc(1);
    let rtt = Duration::from_millis(arguments.rtt_ms);
    let setting = Box::pin(set_up(directory, sample, rtt, &progress)).await?;
    let rows = Box::pin(read_three_times(&setting, &progress)).await?;
    progress.finish_and_clear();
    table::print(&rows, arguments.rtt_ms, arguments.json);
    if arguments.keep {
        crate::output::line(format_args!(
            "The proxy stays up until you press Ctrl-C. As root, mount it with:"
        ));
        crate::output::line(format_args!("  {}", setting.proxy.mount_line(sample::EXPORT)));
        End::listen(false)?.wait().await;
    }
    let Setting { proxy, relay, origin, directory, .. } = setting;
    proxy.stop().await;
    drop(relay);
    origin.stop().await;
    drop(directory);
    Ok(())
}

/// The origin's files, in the temporary directory.
fn in_directory(directory: &Path) -> Result<Arc<dyn FileSystem>, Failure> {
    let sample = directory.join("sample");
    sample::make(&sample).map_err(|error| {
        Failure(format!(
            "cannot write below {}: {error}; the demo needs 30 MB in TMPDIR, or in /tmp",
            sample.display()
        ))
    })?;
    Ok(serve::open_local(&sample, &origin_state(directory)?, serve::How::PLAIN)?)
}

/// The origin's files, in memory.
async fn in_memory() -> Result<Arc<dyn FileSystem>, Failure> {
    let memory = Memory::default();
    let failed =
        |error| Failure(format!("cannot make the sample tree in memory: {error}; please report this bug"));
    sample::load(&memory).await.map_err(failed)?;
    Ok(Arc::new(memory))
}

/// The state directory of the origin.
fn origin_state(directory: &Path) -> Result<PathBuf, Failure> {
    let state = directory.join("origin");
    state::make(&state)?;
    Ok(state)
}

fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    let bar = ProgressBar::new(steps);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

async fn set_up(
    directory: Directory,
    sample: Arc<dyn FileSystem>,
    rtt: Duration,
    progress: &ProgressBar,
) -> Result<Setting, Failure> {
    progress.set_message("starting origin, relay and proxy");
    let origin = start_origin(&directory.0, sample).await?;
    let options = relay::Options { rtt, ..relay::Options::default() };
    let relay = Relay::start(origin.address(), options)
        .map_err(|error| Failure(format!("cannot start the relay: {error}; is loopback up?")))?;
    let upstream = connect(relay.local_addr(), "auto").await?;
    let cache = directory.0.join("cache");
    // Client and origin share one clock, so there is no skew: a file changed a second ago is old enough to be
    // nonracy.
    let clock_skew = Duration::ZERO;
    let mut options = cache::Options { clock_skew, ..proxy::cache_options(upstream.url(), cache.clone()) };
    options.limits.min_free_bytes = 0;
    let opened = proxy::open_cache(upstream.clone(), options).await?;
    let state = proxy::make_state(&cache)?;
    let proxy = serve("demo", opened, &state).await?;
    progress.inc(2);
    Ok(Setting { proxy, upstream, relay, origin, directory })
}

async fn start_origin(directory: &Path, sample: Arc<dyn FileSystem>) -> Result<Stack, Failure> {
    let state = origin_state(directory)?;
    serve("demo-origin", sample, &state).await
}

/// Serves a tree to this machine.
async fn serve(name: &str, tree: Arc<dyn FileSystem>, state: &Path) -> Result<Stack, Failure> {
    let version4 = Version4::default();
    let nqnfs = stack::nqnfs(state)?;
    let arbiter = stack::arbiter(tree, &version4, nqnfs.recovery(), true);
    let served = stack::export(name, sample::EXPORT.to_owned(), arbiter, open_to_all());
    let keep = Keep { state, handle_key: None, replica: None };
    let listening = Listening {
        network: &loopback(),
        tls: None,
        gss: None,
        version4: &version4,
        users: &Users::default(),
    };
    Stack::start(vec![served], keep, nqnfs, listening).await
}

/// Only this machine can reach the demo. All callers act as the user who runs it, so that user can read the
/// sample tree and need not be root.
fn open_to_all() -> ExportOptions {
    let anonuid = rustix::process::geteuid().as_raw();
    let anongid = rustix::process::getegid().as_raw();
    ExportOptions { secure: false, squash: Squash::All, anonuid, anongid, ..ExportOptions::default() }
}

fn loopback() -> Network {
    Network {
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        no_udp: true,
        no_rpcbind: true,
        memory_in_flight: None,
        client_ops_max: None,
        client_bytes_max: None,
        metrics: None,
    }
}

async fn connect(server: SocketAddr, vers: &str) -> Result<Arc<dyn Origin>, Failure> {
    let failed = |error: String| Failure(format!("the demo cannot reach its own server: {error}"));
    let url = Url::parse(&format!("nfs://{server}{}?noresvport&vers={vers}", sample::EXPORT))
        .map_err(|error| failed(error.to_string()))?;
    client::connect(&url).await.map_err(|error| failed(error.to_string()))
}

/// The reader uses version 3, which needs one call for each step. The proxy uses the best version that the
/// origin speaks.
async fn read_three_times(setting: &Setting, progress: &ProgressBar) -> Result<Vec<Row>, Failure> {
    let direct = connect(setting.relay.local_addr(), "3").await?;
    let client = connect(setting.proxy.address(), "3").await?;
    let mut rows = Vec::new();
    for (name, reader, counted) in [
        ("direct", &direct, &direct),
        ("proxy, cold", &client, &setting.upstream),
        ("proxy, warm", &client, &setting.upstream),
    ] {
        progress.set_message(format!("reading: {name}"));
        let before = counted.calls();
        let start = tokio::time::Instant::now();
        let Reading { files, bytes, checksum } = reader::read_tree(&**reader, progress).await?;
        let seconds = start.elapsed().as_secs_f64();
        let asked = since(&before, counted.calls());
        rows.push(Row {
            name,
            seconds,
            origin_calls: asked.iter().map(|(_, calls, _)| calls).sum(),
            origin_bytes: asked.iter().map(|(_, _, bytes)| bytes).sum(),
            files,
            bytes,
            checksum,
            calls: asked.iter().map(|(name, calls, _)| (*name, *calls)).collect(),
        });
    }
    if rows.iter().any(|row| row.checksum != rows[0].checksum) {
        return Err(Failure("the three readings of the sample tree differ; please report this bug".into()));
    }
    Ok(rows)
}

type Counted = Vec<(&'static str, ProcedureCounts)>;

/// Calls and bytes by procedure between two counts.
fn since(before: &Counted, after: Counted) -> Vec<(&'static str, u64, u64)> {
    let bytes = |counts: &ProcedureCounts| counts.bytes_sent + counts.bytes_received;
    let grown = after.into_iter().map(|(name, now)| {
        let then = before.iter().find(|(other, _)| *other == name).map(|(_, counts)| *counts);
        let (calls, moved) = then.map_or((0, 0), |then| (then.calls, bytes(&then)));
        (name, now.calls - calls, bytes(&now) - moved)
    });
    grown.filter(|(_, calls, _)| *calls > 0).collect()
}
