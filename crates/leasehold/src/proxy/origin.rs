//! One origin of a proxy: how it is reached, its cache, and what clients hold of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arbiter::Arbiter;
use cache::{Cache, Consistency, LookupCache, Timeouts, WriteBehind};
use client::{Origin, Url};
use serde_json::{Value, json};
use server::Export;
use server::exports::ExportId;
use vfs::{FileSystem, Recovery};

use crate::auditing::AuditLog;
use crate::cli::Version4;
use crate::cli::cache::Keeping;
use crate::cli::writing::Writing;
use crate::holders::Listed;
use crate::membership::virtual_server::{self, VirtualServer};
use crate::metrics::Caching;
use crate::owner::Incarnation;
use crate::state::{self, Lock};
use crate::{Failure, cachectl, stack, status};

/// An attempt to connect is reported when it takes longer than this.
const QUIET: Duration = Duration::from_secs(1);
/// One of several origins begins with this part of the cache, until the first division.
const FIRST_PART: u64 = 64;
/// The longest pause between two attempts to reach an origin that does not answer.
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The characters of a directory's name that tell whose it is. The path of an admin socket has 107 bytes.
const READABLE_MAX: usize = 24;

/// The most delayed bytes of one file: enough for a COMMIT at a time on a link of 300 MB/s and 200 ms.
const FILE_DELAYED_MAX_BYTES: usize = 512 << 20;

/// An origin that is to be served.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Where it is.
    pub url: Url,
    /// The path that clients mount.
    pub path: String,
    /// Its cache.
    pub directory: PathBuf,
    /// Its options of exports(5).
    pub access: server::ExportOptions,
    /// The options of its cache; the size is that of the caches of all origins.
    pub keeping: Keeping,
    /// When writes reach the origin.
    pub writing: Writing,
    /// Its part of the cache, in proportion to those of the others.
    pub cache_share: u32,
    /// It is one of several. While it is away, its clients are told to come back later and do not wait, so
    /// that they go on with others.
    pub among_others: bool,
    /// The referral that leads to it, if it is not in the configuration.
    pub referred: Option<Referred>,
}

impl Wanted {
    /// Its id in handles.
    pub fn id(&self) -> ExportId {
        ExportId::of(&self.url.to_string())
    }

    /// Is it that of another virtual server? Then clients of versions 2 and 3 alone use it here.
    pub fn is_of_other(&self) -> bool {
        self.access.serves_older
    }

    /// Do clients reach it by way of another origin or virtual server? Then it says nothing about the health
    /// of this one.
    pub fn is_elsewhere(&self) -> bool {
        self.referred.is_some() || self.is_of_other()
    }

    /// May an earlier process have left something that is to be sent or given back?
    pub fn has_been_used(&self) -> bool {
        virtual_server::was_held(&state_of(&self.directory)) || cache::is_there(&self.directory)
    }

    /// Its export before it is reached.
    pub fn awaited_export(&self) -> Export {
        let export = Export::awaited(self.id(), self.path.clone(), self.access.clone());
        if self.among_others { export.among_others() } else { export }
    }

    /// The name of the directory of its cache, among those of others.
    pub fn directory_name(url: &Url) -> String {
        let text = url.to_string();
        let readable: String = state::file_name(&text).chars().take(READABLE_MAX).collect();
        format!("{readable}-{:08x}", ExportId::of(&text).0)
    }

    /// How its writes are delayed. `None` if they go through.
    fn write_behind(&self) -> Option<WriteBehind> {
        // nfs(5): with noac, writes are synchronous.
        let delays = self.writing.is_delayed() && self.url.options.cache.ac;
        let usual = usual_write_behind(&self.url);
        delays.then(|| WriteBehind { fsync: self.writing.fsync(), shared: true, ..usual })
    }

    /// The limits of its cache, if that may have so many bytes of file data.
    pub fn limits(&self, bytes: u64) -> cache::Limits {
        let limits = self.keeping.limits();
        let all = u128::from(limits.size_max_bytes.max(1));
        let part = |of: u64| u64::try_from(u128::from(of) * u128::from(bytes) / all).unwrap_or(bytes);
        cache::Limits { size_max_bytes: bytes, size_soft_bytes: limits.size_soft_bytes.map(part), ..limits }
    }
}

/// A referral of another origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referred {
    /// The URL of that origin, without options.
    pub by: String,
    /// How many referrals lead here.
    pub depth: usize,
}

/// The parts of a proxy that its origins have in common.
#[derive(Clone)]
pub struct Common {
    /// The NFSv4 options.
    pub version4: Version4,
    /// The recovery of NQNFS leases.
    pub recovery: Arc<Recovery>,
    /// The audit log.
    pub audit: AuditLog,
    /// The virtual server of a cluster that this process is.
    pub virtual_server: Option<Arc<VirtualServer>>,
}

/// An origin that is served.
pub struct Served {
    /// The origin and its cache.
    pub caching: Caching,
    /// What clients hold.
    pub listed: Listed,
    /// Keeps other processes from its cache.
    _lock: Lock,
}

impl Served {
    /// Opens the cache of an origin that was reached. Returns the file system for clients, too.
    ///
    /// # Errors
    /// If the directory of the cache cannot be used.
    pub async fn open(
        wanted: &Wanted,
        incarnation: Incarnation,
        origin: Arc<dyn Origin>,
        common: &Common,
    ) -> Result<(Served, Arc<dyn FileSystem>), Failure> {
        let mut options = cache_options(&wanted.url, wanted.directory.clone());
        wanted.keeping.apply(&mut options);
        if wanted.among_others {
            options.limits = wanted.limits(wanted.keeping.cache_size / FIRST_PART);
        }
        options.write_behind = wanted.write_behind();
        options.puts_off = wanted.among_others;
        options.leaves_given = true;
        if let Some(server) = &common.virtual_server {
            options.taken_over = virtual_server::is_taken_over(&state_of(&wanted.directory));
            origin.replicate_record(server.replica(&wanted.url));
        }
        let was_taken_over = options.taken_over;
        let cache = open_cache(origin.clone(), options).await?;
        if was_taken_over {
            let of = state_of(&wanted.directory);
            virtual_server::forget_taken_over(&of).map_err(|error| {
                Failure(format!("cannot remove a file in {}: {error}; make it writable", of.display()))
            })?;
        }
        // The directory may be that of a mount that was killed.
        settle(&cache).await?;
        let state = make_state(&wanted.directory)?;
        let lease_time = lease_time(common.version4.lease_time, origin.lease_time());
        let version4 = Version4 { lease_time, ..common.version4.clone() };
        let arbiter = stack::arbiter(cache.clone(), &version4, common.recovery.clone(), true);
        let lock = incarnation.keep(&state, &*origin)?;
        origin.holds_for_others();
        let listed = listed(wanted.id(), &wanted.path, arbiter.clone(), &cache);
        let audited = common.audit.over(arbiter, &wanted.path, &listed.place);
        let is_elsewhere = wanted.is_elsewhere();
        let caching = Caching { export: wanted.path.clone(), is_elsewhere, origin, cache };
        Ok((Served { caching, listed, _lock: lock }, audited))
    }

    /// Its part of the status.
    pub fn status(&self) -> Value {
        status(&self.caching, &self.listed.arbiter)
    }
}

/// The lease time of a proxy, in seconds, if `wanted` is configured. If the origin recalls a delegation, a
/// client that does not answer must lose its own before the origin revokes that of the proxy. So a client
/// gets less time than the origin gives, and along a chain of proxies each level gets less.
pub fn lease_time(wanted: u32, at_origin: Option<Duration>) -> u32 {
    let Some(at_origin) = at_origin else { return wanted };
    let recall = arbiter::recall_time(cache::recall_time(at_origin));
    wanted.min(u32::try_from(recall.as_secs()).unwrap_or(u32::MAX)).max(1)
}

/// What a status says of an origin.
pub fn status(Caching { origin, cache, .. }: &Caching, arbiter: &Arbiter) -> Value {
    let origin = &**origin;
    json!({
        "origin": origin.url().to_string(),
        "origin_version": origin.version(),
        "held": status::held(&arbiter.held()),
        "link": status::link(origin),
        "upstream": status::upstream(origin),
        "cache": status::cache(&cache.stats()),
    })
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

/// The limits of delayed writes that a URL and the memory of this machine imply.
pub fn usual_write_behind(url: &Url) -> WriteBehind {
    let usual = WriteBehind::default();
    let file_max_bytes = rpc::memory::default_in_flight().min(FILE_DELAYED_MAX_BYTES) as u64;
    WriteBehind {
        wsize: url.options.wsize.unwrap_or(usual.wsize),
        file_max_bytes,
        dirty_max_bytes: 2 * file_max_bytes,
        ..usual
    }
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
