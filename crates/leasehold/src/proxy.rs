//! `leasehold proxy`: serves a remote export out of a cache on this machine's disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arbiter::Arbiter;
use cache::{Cache, Consistency, LookupCache, Timeouts};
use client::{Origin, Url};
use serde_json::{Value, json};
use server::Front;
use server::exports::ExportId;
use vfs::FileSystem;

use crate::admin::{Admin, Sources};
use crate::auditing::AuditLog;
use crate::cli::{Command, Proxy, Tls};
use crate::holders::{Holders, Listed};
use crate::metrics::{Caching, Measured, Metrics};
use crate::owner::Incarnation;
use crate::reload::{ACCESS, LIMITS, Reload};
use crate::service::{self, Service};
use crate::stack::{self, End, Keep, Listening, Stack, Told};
use crate::state::{self, Kind};
use crate::{Failure, cachectl, kerberos, status, tls, usage};

/// An attempt to connect is reported when it takes longer than this.
const QUIET: Duration = Duration::from_secs(1);
/// The longest pause between two attempts to reach an origin that does not answer.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Serves until the process is told to stop.
pub async fn run(arguments: Proxy, mut reload: Reload) -> Result<(), Failure> {
    let mut end = End::listen(reload.has_file())?;
    let url = &arguments.origin;
    check_options(url)?;
    let tls = tls::acceptor(&arguments.tls)?;
    let gss = kerberos::acceptor(&arguments.kerberos, std::iter::once(&arguments.access.sec))?;
    if url.options.sec.is_some() && arguments.access.sec.allows(server::Flavor::Sys) {
        crate::output::tell(format_args!(
            "clients are taken with sec=sys, so they use the tickets of the users that they claim to be; to make them prove it, add --sec krb5:krb5i:krb5p"
        ));
    }
    let directory = match &arguments.cache {
        Some(directory) => directory.clone(),
        None => state::default_directory(Kind::Cache, &state::file_name(&url.to_string()))?,
    };
    let incarnation = tokio::select! {
        incarnation = Incarnation::begin(url, &directory) => incarnation?,
        () = end.wait() => return Ok(()),
    };
    // A signal must also end the wait for the origin.
    let origin = tokio::select! {
        origin = reach(url, &incarnation.client) => origin?,
        () = end.wait() => return Ok(()),
    };
    let mut options = cache_options(url, directory.clone());
    arguments.keeping.apply(&mut options);
    let cache = open_cache(origin.clone(), options).await?;
    // The directory may be that of a mount that was killed.
    settle(&cache).await?;
    let state = make_state(&directory)?;
    let nqnfs = stack::nqnfs(&state)?;
    let arbiter = stack::arbiter(cache.clone(), &arguments.version4, &nqnfs, true);
    let lock = incarnation.keep(&state, &*origin)?;
    origin.holds_for_others();
    let handle_key = arguments.handle_key.clone().unwrap_or_else(|| state.join("handle.key"));
    let path = arguments.export.clone().unwrap_or_else(|| url.export_text());
    let listed = listed(ExportId::of(&url.to_string()), &path, arbiter.clone(), &cache);
    let audit = AuditLog::open(&arguments.auditing)?;
    let audited = audit.over(arbiter.clone(), &path, &listed.place);
    let options = access(&arguments, &arguments.tls, &path)?;
    let export = stack::export(&url.to_string(), path.clone(), audited, options);
    let (network, version4) = (&arguments.network, &arguments.version4);
    let listening =
        Listening { network, tls: tls.as_ref(), gss: gss.as_ref(), version4, users: &arguments.users };
    let keep = Keep { state: &state, handle_key: &handle_key };
    let stack = Stack::start(vec![export], keep, nqnfs, listening).await?;
    let measured = measured(&stack, &path, &arbiter, Caching { origin, cache: cache.clone() }, &directory);
    let holders = Holders { front: stack.front().clone(), exports: vec![listed] };
    let usage = usage::of_server(measured.status.clone(), holders.clone());
    let status = measured.status.clone();
    let holders = Some(holders);
    let sources = Sources { status, usage, cache: Some(cache.clone()), holders, before_recording: None };
    let admin = Admin::start(&directory, sources)?;
    let metrics = Metrics::start(arguments.network.metrics, measured.clone()).await?;
    crate::output::announce(format_args!(
        "proxy of {url} on {}; a client mounts it with: {}",
        stack.address(),
        stack.mount_line(&path)
    ));
    metrics.iter().for_each(Metrics::announce);
    let service = Service::ready(&format!("proxy of {url} on {}", stack.address()), &measured);
    while end.next().await == Told::Reload {
        audit.reopen();
        tls::reload(tls.as_ref());
        stack.front().forget_groups();
        reload.read_again(&[&LIMITS[..], &ACCESS[..]].concat(), |command| {
            let Command::Proxy(new) = command else { return Ok(()) };
            let options = access(new, &arguments.tls, &path)?;
            kerberos::check_again(gss.as_ref(), &options.sec)?;
            cache.set_limits(new.keeping.limits());
            stack.look_up(std::iter::once(&options));
            stack.front().exports().iter().for_each(|export| export.set_options(options.clone()));
            stack.judge_again();
            Ok(())
        });
    }
    service::stopping();
    drop(service);
    drop(cache);
    admin.begin_end();
    stack.stop().await;
    audit.finish().await;
    admin.end(None).await;
    lock.until_exit();
    Ok(())
}

/// The options of the export, as `--tls` allows them.
fn access(arguments: &Proxy, tls: &Tls, path: &str) -> Result<server::ExportOptions, Failure> {
    let options = arguments.access.to_server();
    Ok(server::ExportOptions { xprtsec: tls::confine(tls, options.xprtsec, path)?, ..options })
}

/// Checks options of a URL that each are right.
///
/// # Errors
/// If they contradict each other.
pub fn check_options(url: &Url) -> Result<(), Failure> {
    let wrong = |error: client::UrlError| Failure(error.to_string());
    url.options.tls_files().map_err(wrong)?;
    url.options.kerberos().map(|_| ()).map_err(wrong)
}

/// Connects to the origin. If it does not answer, tries again (unless the URL says `soft`); if it refuses,
/// fails.
pub async fn reach(url: &Url, incarnation: &client::Incarnation) -> Result<Arc<dyn Origin>, Failure> {
    let mut pause = Duration::from_millis(500);
    let mut told = false;
    loop {
        let mut connecting = std::pin::pin!(client::connect_as(url, incarnation.clone()));
        let connected = if let Ok(soon) = tokio::time::timeout(QUIET, &mut connecting).await {
            soon
        } else {
            if !std::mem::replace(&mut told, true) {
                crate::output::tell(format_args!("{} has not answered yet; still waiting", url.host));
            }
            connecting.await
        };
        match connected {
            Ok(origin) => return Ok(origin),
            Err(silent) if silent.is_no_answer() && !url.options.soft => {
                crate::output::tell(format_args!("{silent}; still trying"));
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(RETRY_MAX);
            }
            Err(refused) => return Err(Failure(refused.to_string())),
        }
    }
}

/// Sends or keeps what an earlier process has delayed. Tells how much is left if that takes long.
pub async fn settle(cache: &Cache) -> Result<(), Failure> {
    let files = cache.unsettled();
    let mut settling = std::pin::pin!(cache.settle_restored());
    let mut pause = QUIET;
    loop {
        if let Ok(settled) = tokio::time::timeout(pause, &mut settling).await {
            return settled.map_err(|error| Failure(error.to_string()));
        }
        // Without delayed writes they are kept, and none is sent.
        if files == 0 {
            continue;
        }
        crate::output::tell(format_args!(
            "sending delayed writes of an earlier process: {} of {files} files are left",
            cache.unsettled()
        ));
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// The cache options that a URL implies.
pub fn cache_options(url: &Url, directory: PathBuf) -> cache::Options {
    let wanted = &url.options.cache;
    let mut options = cache::Options::new(directory, url.to_string());
    options.consistency = if wanted.cto { Consistency::CloseToOpen } else { Consistency::NoCto };
    options.timeouts = if wanted.ac {
        Timeouts {
            acregmin: wanted.acregmin,
            acregmax: wanted.acregmax,
            acdirmin: wanted.acdirmin,
            acdirmax: wanted.acdirmax,
        }
    } else {
        Timeouts::noac()
    };
    options.lookup_cache = match wanted.lookupcache {
        client::LookupCache::All => LookupCache::All,
        client::LookupCache::Positive => LookupCache::Positive,
        client::LookupCache::None => LookupCache::None,
    };
    options
}

/// Opens a cache over an origin. Warns if its disk has less free space than the cache must leave.
pub async fn open_cache(origin: Arc<dyn FileSystem>, options: cache::Options) -> Result<Arc<Cache>, Failure> {
    let (directory, wanted) = (options.directory.clone(), options.limits.min_free_bytes);
    let cache = Cache::open(origin, options).await.map_err(|error| Failure(error.to_string()))?;
    let free = rustix::fs::statvfs(&directory).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    if let Ok(free) = free.as_ref().map(|free| free >> 20)
        && free < wanted >> 20
    {
        crate::output::tell(format_args!(
            "no data is cached in {}: its disk has {free} MiB free, and {} MiB must stay free; free some space, or lower --min-free (for a mount: minfree=)",
            directory.display(),
            wanted >> 20
        ));
    }
    Ok(cache)
}

fn state_of(cache: &Path) -> PathBuf {
    cache.join("state")
}

/// Makes the `state` directory of a cache: the part that cannot be fetched again.
pub fn make_state(cache: &Path) -> Result<PathBuf, Failure> {
    let state = state_of(cache);
    state::make(&state)?;
    Ok(state)
}

/// The export, as what clients hold of it is listed.
fn listed(id: ExportId, path: &str, arbiter: Arc<Arbiter>, cache: &Arc<Cache>) -> Listed {
    let cache = cache.clone();
    let place = move |handle: &vfs::Handle| {
        let names = cache.path_of(handle)?;
        Some(names.iter().fold(b"/".to_vec(), |path, name| cachectl::path::join(&path, name.as_bytes())))
    };
    Listed { id, path: path.to_owned(), arbiter, place: Arc::new(place) }
}

/// The sources of the admin socket and the metrics.
fn measured(
    stack: &Stack,
    path: &str,
    arbiter: &Arc<Arbiter>,
    caching: Caching,
    directory: &Path,
) -> Measured {
    let serving = stack.serving(vec![(path.to_owned(), arbiter.clone())]);
    let (front, load, arbiter, below) =
        (serving.front.clone(), serving.load.clone(), arbiter.clone(), caching.clone());
    Measured {
        serving: Some(serving),
        caching: Some(caching),
        mounted: Weak::new(),
        status: status::source(move || status_of(&front, &load, &arbiter, &below)),
        directory: directory.to_owned(),
    }
}

fn status_of(
    front: &Front,
    load: &rpc::Load,
    arbiter: &Arbiter,
    Caching { origin, cache }: &Caching,
) -> Value {
    let origin = &**origin;
    json!({
        "role": "proxy",
        "origin": origin.url().to_string(),
        "origin_version": origin.version(),
        "exports": status::exports(front),
        "calls": status::calls(front),
        "clients": status::clients(front),
        "lock_manager": status::lock_manager(front),
        "groups": status::groups(front),
        "load": status::load(load),
        "held": status::held(&arbiter.held()),
        "link": status::link(origin),
        "upstream": status::upstream(origin),
        "cache": status::cache(&cache.stats()),
    })
}
