//! The way from the command line to a mount: connect to the origin, open the cache, mount.
//!
//! A signal ends each wait for the origin. Then nothing is mounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use client::{Origin, Url};
use mount::{LookupCache, Mount, MountError};
use vfs::Leases;

use super::guardian::{self, Guardian};
use super::words::Words;
use super::{KIND, read};
use crate::owner::Incarnation;
use crate::stack::End;
use crate::state::{self, Kind, Lock};
use crate::{Failure, cli, proxy};

/// The longest single attempt to reach a server when `retry` is 0.
const ATTEMPT_MAX: Duration = Duration::from_secs(60);

/// What to mount, and where its cache is.
pub struct Plan {
    pub url: Url,
    pub words: Words,
    /// That of the cache. Absolute: the process later changes its working directory to the root.
    pub directory: PathBuf,
}

impl Plan {
    pub fn of(arguments: &cli::Mount) -> Result<Plan, Failure> {
        let (url, words) = read(arguments)?;
        proxy::check_options(&url)?;
        check_directory(&arguments.directory)?;
        let directory = match &words.cache {
            Some(directory) => directory.clone(),
            None => state::default_directory(
                Kind::Cache,
                &format!("mount-{}", state::file_name(&url.to_string())),
            )?,
        };
        let directory = std::path::absolute(&directory).unwrap_or(directory);
        Ok(Plan { url, words, directory })
    }

    fn interrupted(&self) -> Failure {
        Failure(format!("stopped by a signal before {} was mounted; nothing is mounted", self.url))
    }
}

/// A mount, and what it stands on.
pub struct Begun {
    pub origin: Arc<dyn Origin>,
    pub cache: Arc<Cache>,
    pub mounted: Arc<Mount>,
    pub guardian: Option<Guardian>,
    /// Of the directory with the record of state.
    pub lock: Option<Lock>,
}

impl Begun {
    /// Connects, opens the cache and mounts.
    pub async fn begin(arguments: &cli::Mount, plan: &Plan, end: &mut End) -> Result<Begun, Failure> {
        let Plan { url, words, directory } = plan;
        let reaching = async {
            let incarnation = Incarnation::begin(url, directory).await?;
            let origin = reach(url, &incarnation, words.retry).await?;
            Ok::<_, Failure>((incarnation, origin))
        };
        let (incarnation, origin) = tokio::select! {
            reached = reaching => reached?,
            () = end.wait() => return Err(plan.interrupted()),
        };
        let mut options = proxy::cache_options(url, directory.clone());
        words.keeping.apply(&mut options);
        options.write_behind = words.write_behind(url);
        let cache = proxy::open_cache(origin.clone(), options).await?;
        // If the disk is full, mount without a record of state; the next mount then cannot resume.
        let state = directory.join("state");
        let state = state::try_make(&state)?.is_ok().then_some(state);
        let lock = state.as_ref().map(|state| incarnation.keep(state, &*origin)).transpose()?;
        let mounting = async {
            // The programs of the previous incarnation lost their open files with it. Nothing is reclaimed,
            // so the cache may return the rest at once.
            cache.end_reclaim().await;
            proxy::settle(&cache).await?;
            mount_cache(arguments, url, words, &cache, state).await
        };
        let mounted = tokio::select! {
            mounted = mounting => mounted?,
            () = end.wait() => return Err(plan.interrupted()),
        };
        // The guardian must be started by the main thread; this is the main thread.
        let guardian = mounted.connection().map(Guardian::start);
        Ok(Begun { origin, cache, mounted: Arc::new(mounted), guardian, lock })
    }
}

/// Can the directory be mounted on? Checked before the server is contacted, which may take long.
fn check_directory(directory: &Path) -> Result<(), Failure> {
    let absolute = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    guardian::stand_in(&absolute);
    if mount::is_dead(&absolute) {
        // `Mount::start` detaches a dead mount.
        return Ok(());
    }
    let unusable = |source: std::io::Error| {
        Failure(MountError::Directory { directory: directory.to_owned(), source }.to_string())
    };
    let canonical = std::fs::canonicalize(&absolute).map_err(unusable)?;
    if !canonical.is_dir() {
        return Err(unusable(std::io::ErrorKind::NotADirectory.into()));
    }
    match mount::mounted_at(&canonical) {
        Some((kind, _)) if kind == KIND => {
            let at = directory.display();
            Err(Failure(format!(
                "cannot mount on {at}: one of ours is mounted there; `leasehold umount {at}` first"
            )))
        }
        _ => Ok(()),
    }
}

/// Connects to the origin. If it does not answer, tries for as long as `retry` says; with 0, once.
async fn reach(url: &Url, incarnation: &Incarnation, retry: Duration) -> Result<Arc<dyn Origin>, Failure> {
    let silent = || {
        Failure(format!(
            "{url} does not answer; check that the server runs, or wait longer with -o retry=MINUTES"
        ))
    };
    if retry.is_zero() {
        let once =
            tokio::time::timeout(ATTEMPT_MAX, client::connect_as(url, incarnation.client.clone())).await;
        return once.map_err(|_| silent())?.map_err(|error| Failure(error.to_string()));
    }
    tokio::time::timeout(retry, proxy::reach(url, &incarnation.client))
        .await
        .unwrap_or_else(|_| Err(silent()))
}

async fn mount_cache(
    arguments: &cli::Mount,
    url: &Url,
    words: &Words,
    cache: &Arc<Cache>,
    state: Option<PathBuf>,
) -> Result<Mount, Failure> {
    let lookup_cache = match url.options.cache.lookupcache {
        client::LookupCache::All => LookupCache::All,
        client::LookupCache::Positive => LookupCache::Positive,
        client::LookupCache::None => LookupCache::None,
    };
    let options = mount::Options {
        lookup_cache,
        // nfs(5): with noac, writes are synchronous.
        sync: words.sync || !url.options.cache.ac,
        passthrough: words.passthrough,
        local_locks: words.local_locks,
        state,
        ..mount::Options::default()
    };
    let target = words.target(arguments.directory.clone(), Words::shown(&arguments.source, url));
    Mount::start(cache.clone(), target, options).await.map_err(|error| Failure(error.to_string()))
}
