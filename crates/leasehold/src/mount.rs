//! `leasehold mount`: mounts a remote export on a directory of this machine, through a cache on its disk.
//!
//! Without `--foreground` the mount is served by a process of its own. The command waits for that process,
//! and returns when the export is mounted or reports why it is not. It starts the process before it has any
//! thread, by executing the program once more. The process writes a line to its standard output when it is
//! ready.

mod begun;
pub mod guardian;
pub mod helper;
pub mod log;
mod marker;
mod places;
pub mod remount;
pub mod unmount;
mod words;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cache::{Cache, Lost, WriteBehind};
use client::Url;
use mount::Mount;
use serde_json::{Value, json};
use vfs::FileSystem;

pub use places::cache_of;

use crate::admin::{Admin, Caches, Sources};
use crate::cli;
use crate::departure::{self, Left};
use crate::live::Live;
use crate::metrics::{Caching, Measured, Metrics};
use crate::reload::Reload;
use crate::service::{self, Service};
use crate::stack::{End, Told};
use crate::state::Lock;
use crate::{Failure, status, tls, usage};
use begun::{Begun, Plan};
use words::Words;

/// The line that the process in the background writes when it is ready.
const READY: &str = "ready";
/// The file system type of our mounts in the kernel's mount table.
const KIND: &str = "fuse.leasehold";
/// How long the kernel may take until it has dropped what it has, before a recording begins anyway.
const ASK_AGAIN_MAX: Duration = Duration::from_secs(5);
/// How long the shutdown waits for a server when there is nothing to store.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts the process in the background and waits until it has mounted. False if it failed; it has reported
/// the cause itself.
pub fn start_in_background() -> Result<bool, Failure> {
    let failed = |error: std::io::Error| {
        Failure(format!("cannot start a process in the background: {error}; mount with --foreground"))
    };
    let mut command = Command::new("/proc/self/exe");
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    if let Some(helper) = helper::Helper::of(&name) {
        command.args(helper.translate(arguments).unwrap_or_default().into_iter().skip(1));
    } else {
        command.args(arguments);
    }
    command.arg("--ready").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let Some(said) = child.stdout.take() else { return Err(failed(std::io::ErrorKind::BrokenPipe.into())) };
    let mut line = String::new();
    let read = BufReader::new(said).read_line(&mut line);
    if read.is_ok() && line.trim_end() == READY {
        return Ok(true);
    }
    child.wait().map_err(failed)?;
    Ok(false)
}

/// Parses the source and the mount options.
///
/// # Errors
/// If one of them is wrong.
fn read(arguments: &cli::Mount) -> Result<(Url, Words), Failure> {
    let mut url = words::source(&arguments.source)?;
    let mut words = Words::new();
    for text in &arguments.options {
        words.take(text, &mut url, arguments.sloppy || remount::is_wanted(arguments))?;
    }
    Ok((url, words))
}

/// Checks the source and the mount options.
///
/// # Errors
/// The first mistake.
pub fn check(arguments: &cli::Mount) -> Result<(), Failure> {
    read(arguments).map(drop)
}

/// Checks them, and the files that they name for TLS.
///
/// # Errors
/// The first mistake.
pub fn check_start(arguments: &cli::Mount) -> Result<(), Failure> {
    tls::check_origin(&read(arguments)?.0)
}

/// Checks a source.
///
/// # Errors
/// If it is none.
pub fn check_source(text: &str) -> Result<(), Failure> {
    words::source(text).map(drop)
}

/// Checks mount options.
///
/// # Errors
/// The first mistake.
pub fn check_words(text: &str) -> Result<(), Failure> {
    Words::new().take(text, &mut words::source("host:/")?, false)
}

/// Ends this process when its parent ends, as long as the parent waits for it: until [`tell`] has reported
/// the mount.
fn end_with_parent(ready: bool) -> Result<(), Failure> {
    let signal = ready.then_some(rustix::process::Signal::TERM);
    rustix::process::set_parent_process_death_signal(signal).map_err(|error| {
        Failure(format!("cannot set the parent-death signal: {error}; mount with --foreground"))
    })
}

/// Mounts, and serves until the mount is unmounted or the process is told to stop.
pub async fn run(arguments: cli::Mount, mut reload: Reload) -> Result<(), Failure> {
    let mut end = End::listen(reload.has_file())?;
    end_with_parent(arguments.ready)?;
    let plan = Plan::of(&arguments)?;
    let log = plan.words.log.as_deref().map(log::open).transpose()?;
    let begun = Box::pin(Begun::begin(&arguments, &plan, &mut end)).await?;
    let Plan { url, words, directory } = &plan;
    let place = places::remember(begun.mounted.directory(), directory);
    let marker =
        marker::set(&Words::shown(&arguments.source, url), begun.mounted.directory(), &words.remembered);
    let measured = measured(&begun, directory);
    let (admin, metrics) = show(&begun, &measured, directory, words.metrics).await?;
    if let Some(metrics) = metrics.as_ref().filter(|_| !arguments.ready) {
        metrics.announce();
    }
    tell(&arguments, url, &begun.mounted, log)?;
    let service = Service::ready(&format!("{url} on {}", begun.mounted.directory().display()), &measured);
    drop(measured);
    let told = async {
        while end.next().await == Told::Reload {
            reload.read_again(&[], |_| Ok(()));
        }
    };
    tokio::select! {
        () = begun.mounted.ended() => {}
        () = told => {}
    }
    service::stopping();
    drop(service);
    // From here on signals are ignored, because dirty data is worth waiting for.
    admin.begin_end();
    let Begun { origin, cache, mounted, guardian, lock } = begun;
    into_inner(mounted).await.stop(PATIENCE).await;
    drop(guardian);
    drop(marker);
    // The next mount does not resume the opens and locks of this one's programs, so return everything to the
    // server.
    origin.leave_nothing();
    let finished = departure::told(&url.to_string(), &cache, finish(url, &cache)).await;
    drop(place);
    admin.end(finished.as_ref().err().map(|failure| failure.0.clone())).await;
    // Keep the lock until the process exits. Then the next mount begins when this process cannot touch the
    // directory any more.
    lock.into_iter().for_each(Lock::until_exit);
    finished
}

/// Opens the admin socket and the port of the metrics.
async fn show(
    begun: &Begun,
    measured: &Measured,
    directory: &Path,
    metrics: Option<SocketAddr>,
) -> Result<(Admin, Option<Metrics>), Failure> {
    let usage = usage::of_mount(measured.status.clone(), Arc::downgrade(&begun.mounted), begun.cache.clone());
    let asked = Arc::downgrade(&begun.mounted);
    let sources = Sources {
        status: measured.status.clone(),
        usage: usage.clone(),
        cache: Caches::One(begun.cache.clone()),
        holders: None,
        cluster: None,
        before_recording: Some(Arc::new(move || Box::pin(make_kernel_ask(asked.clone())))),
    };
    let admin = Admin::start(directory, sources)?;
    Ok((admin, Metrics::start(metrics, measured.clone(), usage).await?))
}

/// The kernel asks again for what it has, so that a recording sees it.
async fn make_kernel_ask(mounted: Weak<Mount>) {
    if let Some(mounted) = mounted.upgrade() {
        mounted.make_kernel_ask(ASK_AGAIN_MAX).await;
    }
}

/// Stores dirty data and returns all state to the server. Waits as long as the server makes progress.
///
/// # Errors
/// If data is lost.
async fn finish(url: &Url, cache: &Cache) -> Result<(), Failure> {
    let unmount_max = WriteBehind::default().unmount_max;
    let mut shutdown = std::pin::pin!(cache.shutdown());
    let mut seen = None;
    loop {
        // Even when nothing is left to store, returning the state may take long.
        let storing = cache.stats().dirty_files > 0;
        let patience = PATIENCE + if storing { unmount_max } else { client::RETURN_ALL_MAX };
        if tokio::time::timeout(patience, &mut shutdown).await.is_ok() {
            break;
        }
        let now = (Left::of(cache), cache.stats().flushed_bytes);
        if seen.replace(now) == Some(now) {
            break;
        }
    }
    match Left::of(cache) {
        Left { bytes: 0, .. } => all_taken(url, &cache.lost_untold()),
        Left { files, bytes, .. } => Err(Failure(format!(
            "{url} took nothing for {} s: {bytes} bytes of delayed writes of {files} files are not sent; the next \
             mount sends what is in its journal",
            unmount_max.as_secs()
        ))),
    }
}

/// Reports files whose data the server refused after their close had succeeded, if no program has been given
/// the error.
///
/// # Errors
/// If there are such files.
fn all_taken(url: &Url, lost: &[Lost]) -> Result<(), Failure> {
    let Some(first) = lost.first() else { return Ok(()) };
    let (path, status) = (&first.path, first.status);
    let others = match lost.len() - 1 {
        0 => String::new(),
        1 => " and to another file, which the log names,".to_owned(),
        others => format!(" and to {others} other files, which the log names,"),
    };
    Err(Failure(format!("{path} of {url}: {status}; data written to it{others} is lost; write it again")))
}

/// Waits for the last reference. The task of the admin socket drops its reference when it ends.
async fn into_inner(mut mounted: Arc<Mount>) -> Mount {
    loop {
        match Arc::try_unwrap(mounted) {
            Ok(mount) => return mount,
            Err(shared) => mounted = shared,
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reports that the export is mounted, and whether locks are local.
fn tell(arguments: &cli::Mount, url: &Url, mounted: &Mount, log: Option<File>) -> Result<(), Failure> {
    let at = mounted.directory().display();
    if !mounted.has_locks() {
        crate::output::tell(format_args!(
            "locks on {at} are local to this machine: other clients of the server do not see them"
        ));
    }
    if !arguments.ready {
        crate::output::announce(format_args!(
            "{url} is mounted on {at}; unmount it with: leasehold umount {at}"
        ));
        if log.is_some() {
            log::leave_stderr(log);
        }
        return Ok(());
    }
    let failed = |errno: rustix::io::Errno| {
        Failure(format!("cannot go to the background: {errno}; mount with --foreground"))
    };
    end_with_parent(false)?;
    // The parent and its terminal go away. A working directory inside another mount would keep that mount
    // busy.
    rustix::process::setsid().map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)?;
    log::leave_stderr(log);
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| Failure(format!("cannot open /dev/null: {error}; mount with --foreground")))?;
    crate::output::announce(READY);
    rustix::stdio::dup2_stdout(&null).map_err(failed)?;
    rustix::stdio::dup2_stderr(&null).map_err(failed)
}

/// The sources of the admin socket and the metrics.
fn measured(begun: &Begun, directory: &Path) -> Measured {
    let (origin, cache) = (begun.origin.clone(), begun.cache.clone());
    let caching = Caching { export: String::new(), is_elsewhere: false, origin, cache };
    let (shown, below) = (Arc::downgrade(&begun.mounted), caching.clone());
    Measured {
        role: "mount",
        serving: None,
        caching: Live::fixed(vec![caching]),
        awaited: Live::fixed(Vec::new()),
        cluster: None,
        mounted: shown.clone(),
        status: status::source(move || status_of(&shown, &below)),
        directory: directory.to_owned(),
    }
}

fn status_of(mounted: &Weak<Mount>, Caching { origin, cache, .. }: &Caching) -> Value {
    let origin = &**origin;
    let Some(mounted) = mounted.upgrade() else {
        return json!({
            "role": "mount",
            "origin": origin.url().to_string(),
            "ending": Left::of(cache).to_string(),
            "link": status::link(origin),
            "upstream": status::upstream(origin),
            "cache": status::cache(&cache.stats()),
        });
    };
    let stats = mounted.stats();
    json!({
        "role": "mount",
        "origin": origin.url().to_string(),
        "origin_version": origin.version(),
        "mounted_on": mounted.directory().to_string_lossy(),
        "locks": if stats.locks { "at the origin" } else { "on this machine alone" },
        "read_path": if stats.passthrough { "cache files by the kernel, if complete" } else { "through this process" },
        "kernel": {
            "requests": stats.requests,
            "waiting": stats.waiting,
            "files_known": stats.nodes,
            "files_open": stats.open,
            "opens_passthrough": stats.opens_passed,
            "opens_ordinary": stats.opens_ordinary,
            "given_up": stats.abandoned,
            "recalls": stats.recalls,
        },
        "link": status::link(origin),
        "upstream": status::upstream(origin),
        "cache": status::cache(&cache.stats()),
        "lost": status::lost(cache),
    })
}
