//! `leasehold proxy`: serves remote exports out of a cache on this machine's disk.
//!
//! A proxy has one origin, or several that its configuration file names. With one, the cache is the directory
//! of the proxy, and the proxy begins to serve when the origin answers. With several, each has a directory in
//! that of the proxy, and the proxy serves from the start: see [`origins`].

mod member;
mod opening;
mod origin;
mod origins;
mod referrals;
mod shares;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use serde_json::{Value, json};
use server::{Front, Nqnfs};
use vfs::Recovery;

use crate::admin::{Admin, Caches, Sources};
use crate::auditing::AuditLog;
use crate::cli::{Command, Proxy};
use crate::config::origins::{self as tables, OriginConfig};
use crate::holders::Holders;
use crate::live::Live;
use crate::metrics::{Measured, Metrics};
use crate::owner::Incarnation;
use crate::reload::{ACCESS, LIMITS, ORIGINS, Reload};
use crate::service::{self, Service};
use crate::stack::{self, End, Keep, Listening, Stack, Told};
use crate::state::{self, Kind, Lock};
use crate::{Failure, kerberos, status, tls, usage};
use opening::Opening;
use origin::{Common, Wanted};
use origins::{Origins, Site};
use referrals::Referrals;

pub use origin::{cache_options, check_options, make_state, open_cache, reach, settle};

/// The directory of the caches, in that of a proxy of several origins.
const CACHES: &str = "origins";

/// Serves until the process is told to stop.
pub async fn run(arguments: Proxy, reload: Reload) -> Result<(), Failure> {
    let end = End::listen(reload.has_file())?;
    let wants = Wants::of(&arguments)?;
    let begun = Begun::new(&arguments, &wants.wanted)?;
    Box::pin(serve(arguments, wants, begun, end, reload)).await
}

/// The parts that are there before an origin is reached.
struct Begun {
    tls: Option<Arc<rpc::tls::Acceptor>>,
    gss: Option<Arc<rpc::rpcsec_gss::Acceptor>>,
    audit: AuditLog,
}

impl Begun {
    fn new(arguments: &Proxy, wanted: &[Wanted]) -> Result<Begun, Failure> {
        let tls = tls::acceptor(&arguments.tls)?;
        let gss = kerberos::acceptor(&arguments.kerberos, wanted.iter().map(|wanted| &wanted.access.sec))?;
        for wanted in wanted.iter().filter(|wanted| wanted.url.options.sec.is_some()) {
            if wanted.access.sec.allows(server::Flavor::Sys) {
                crate::output::tell(format_args!(
                    "clients of {} are taken with sec=sys, so they use the tickets of the users that they claim to be; to make them prove it, add --sec krb5:krb5i:krb5p",
                    wanted.path
                ));
            }
        }
        Ok(Begun { tls, gss, audit: AuditLog::open(&arguments.auditing)? })
    }

    fn listening<'b>(&'b self, arguments: &'b Proxy) -> Listening<'b> {
        Listening {
            network: &arguments.network,
            tls: self.tls.as_ref(),
            gss: self.gss.as_ref(),
            version4: &arguments.version4,
            users: &arguments.users,
        }
    }

    fn common(&self, arguments: &Proxy, recovery: Arc<Recovery>) -> Common {
        Common { version4: arguments.version4.clone(), recovery, audit: self.audit.clone() }
    }

    /// What a reload does besides the configuration.
    fn reopen(&self, stack: &Stack) {
        self.audit.reopen();
        tls::reload(self.tls.as_ref());
        stack.front().forget_groups();
    }

    /// Checks and looks up the options of exports that will be in force.
    fn prepare(&self, stack: &Stack, wanted: &[Wanted]) -> Result<(), Failure> {
        wanted.iter().try_for_each(|wanted| kerberos::check_again(self.gss.as_ref(), &wanted.access.sec))?;
        stack.look_up(wanted.iter().map(|wanted| &wanted.access));
        Ok(())
    }
}

/// An origin, or several, whose caches nobody else uses; and the lock of their directory, if it is not that
/// of the only origin.
struct Reached {
    state: PathBuf,
    nqnfs: Nqnfs,
    common: Common,
    opening: Vec<Opening>,
    lock: Option<Lock>,
}

/// The only origin. Waits until it answers.
async fn reach_one(begun: &Begun, arguments: &Proxy, wanted: Wanted) -> Result<Reached, Failure> {
    let incarnation = Incarnation::begin(&wanted.url, &wanted.directory).await?;
    let origin = reach(&wanted.url, &incarnation.client).await?;
    let state = make_state(&wanted.directory)?;
    let nqnfs = stack::nqnfs(&state)?;
    let common = begun.common(arguments, nqnfs.recovery());
    let opening = vec![Opening::of(wanted, incarnation, origin, &common).await?];
    Ok(Reached { state, nqnfs, common, opening, lock: None })
}

/// Several origins, which are reached in the background.
async fn reach_several(
    begun: &Begun,
    arguments: &Proxy,
    directory: &Path,
    wanted: Vec<Wanted>,
) -> Result<Reached, Failure> {
    let state = make_state(directory)?;
    let lock = state::lock_after(&state, directory).await?;
    let nqnfs = stack::nqnfs(&state)?;
    let common = begun.common(arguments, nqnfs.recovery());
    let opening = open_all(wanted, &common).await?;
    Ok(Reached { state, nqnfs, common, opening, lock: Some(lock) })
}

async fn open_all(wanted: Vec<Wanted>, common: &Common) -> Result<Vec<Opening>, Failure> {
    let mut opening = Vec::new();
    for wanted in wanted {
        let incarnation = Incarnation::begin(&wanted.url, &wanted.directory).await?;
        opening.push(Opening::begin(wanted, incarnation, common.clone()));
    }
    Ok(opening)
}

/// Serves these origins.
async fn serve(
    arguments: Proxy,
    wants: Wants,
    begun: Begun,
    mut end: End,
    mut reload: Reload,
) -> Result<(), Failure> {
    let Wants { directory, wanted, is_one } = wants;
    let configured = wanted.clone();
    let reaching = async {
        match (is_one, wanted) {
            (true, mut wanted) if wanted.len() == 1 => reach_one(&begun, &arguments, wanted.remove(0)).await,
            (_, wanted) => reach_several(&begun, &arguments, &directory, wanted).await,
        }
    };
    // A signal must also end the wait for the origin.
    let reached = tokio::select! {
        reached = Box::pin(reaching) => reached?,
        () = end.wait() => return Ok(()),
    };
    let Reached { state, nqnfs, common, mut opening, lock } = reached;
    let referrals = Referrals { answer: arguments.referrals, state: state.clone() };
    for referred in referrals.recorded(&directory, &configured) {
        match open_all(vec![referred], &common).await {
            Ok(one) => opening.extend(one),
            // The next LOOKUP finds it again.
            Err(failure) => crate::output::tell(format_args!("{failure}")),
        }
    }
    let exports = tokio::select! {
        exports = opening::exports(&mut opening) => exports,
        () = end.wait() => return Ok(()),
    };
    let stack = Stack::start(exports, keep(&arguments, &state), nqnfs, begun.listening(&arguments)).await?;
    let (front, address) = (stack.front().clone(), stack.address());
    let site = Site { front, address, directory: directory.clone(), referrals, common };
    let origins = Origins::start(site, opening).await;
    let (admin, measured) = show(&origins, is_one, &stack, &directory)?;
    let metrics = Metrics::start(arguments.network.metrics, measured.clone()).await?;
    let what = match &configured[..] {
        [one] if is_one => one.url.to_string(),
        several => crate::units::counted(several.len() as u64, "origin", "origins"),
    };
    crate::output::announce(match &configured[..] {
        [one] if is_one => {
            format!("proxy of {what} on {address}; a client mounts it with: {}", stack.mount_line(&one.path))
        }
        _ => format!("proxy of {what} on {address}; leasehold status {} shows them", directory.display()),
    });
    origins.announce();
    metrics.iter().for_each(Metrics::announce);
    let service = Service::ready(&format!("proxy of {what} on {address}"), &measured);
    let upkeep = [tokio::spawn(origins.clone().share()), tokio::spawn(origins.clone().ask_about_referrals())];
    while end.next().await == Told::Reload {
        begun.reopen(&stack);
        let mut change = None;
        let live: &[&[&str]] = if is_one { &[&LIMITS, &ACCESS] } else { &[&LIMITS, &ACCESS, &ORIGINS] };
        reload.read_again(&live.concat(), |command| {
            let Command::Proxy(new) = command else { return Ok(()) };
            let new = Wants::again(new, &directory, is_one.then_some(&configured[..]))?;
            origins.check(&new)?;
            begun.prepare(&stack, &new)?;
            change = Some(new);
            Ok(())
        });
        if let Some(wanted) = change {
            origins.change(wanted).await;
            stack.judge_again();
        }
        origins.ask_now().await;
    }
    service::stopping();
    drop(service);
    upkeep.iter().for_each(tokio::task::JoinHandle::abort);
    admin.begin_end();
    origins.begin_end();
    stack.stop().await;
    begun.audit.finish().await;
    origins.end().await;
    admin.end(None).await;
    lock.into_iter().for_each(Lock::until_exit);
    Ok(())
}

/// The origins that a configuration names.
struct Wants {
    /// The directory of the proxy.
    directory: PathBuf,
    wanted: Vec<Wanted>,
    /// A URL names the only origin, and not a table.
    is_one: bool,
}

impl Wants {
    fn of(arguments: &Proxy) -> Result<Wants, Failure> {
        let tables = match (&arguments.origin, &arguments.config) {
            (None, Some(config)) => tables::load(config)?,
            _ => Vec::new(),
        };
        if tables.is_empty() {
            let one = the_one(arguments)?;
            return Ok(Wants { directory: one.directory.clone(), wanted: vec![one], is_one: true });
        }
        let directory = site_directory(arguments)?;
        let wanted = several(arguments, &directory, tables)?;
        Ok(Wants { directory, wanted, is_one: false })
    }

    /// The origins after a reload. `one` is the only one, whose URL and path need a restart to change.
    fn again(arguments: &Proxy, directory: &Path, one: Option<&[Wanted]>) -> Result<Vec<Wanted>, Failure> {
        if let Some([one, ..]) = one {
            let new = the_one_of(arguments, one.url.clone())?;
            return Ok(vec![Wanted { path: one.path.clone(), directory: directory.to_owned(), ..new }]);
        }
        let tables = arguments.config.as_deref().map(tables::load).transpose()?.unwrap_or_default();
        if tables.is_empty() {
            return Err(Failure(
                "a proxy of several origins becomes one of a single origin by a restart".into(),
            ));
        }
        several(arguments, directory, tables)
    }
}

fn keep<'p>(arguments: &'p Proxy, state: &'p Path) -> Keep<'p> {
    Keep { state, handle_key: arguments.handle_key.as_deref() }
}

/// The directory of a proxy of several origins.
fn site_directory(arguments: &Proxy) -> Result<PathBuf, Failure> {
    if let Some(directory) = &arguments.cache {
        return Ok(directory.clone());
    }
    let config = arguments.config.clone().unwrap_or_default();
    let config = std::fs::canonicalize(&config).unwrap_or(config);
    state::default_directory(Kind::Cache, &format!("proxy-{}", state::file_name(&config.to_string_lossy())))
}

/// The origin of a proxy that has one.
fn the_one(arguments: &Proxy) -> Result<Wanted, Failure> {
    let url = arguments.origin.clone();
    let url = url.ok_or_else(|| Failure("there is no origin: name a URL, or a file with --config".into()))?;
    check_options(&url)?;
    the_one_of(arguments, url)
}

fn the_one_of(arguments: &Proxy, url: client::Url) -> Result<Wanted, Failure> {
    let directory = match &arguments.cache {
        Some(directory) => directory.clone(),
        None => state::default_directory(Kind::Cache, &state::file_name(&url.to_string()))?,
    };
    let path = arguments.export.clone().unwrap_or_else(|| url.export_text());
    let options = arguments.access.to_server();
    let access =
        server::ExportOptions { xprtsec: tls::confine(&arguments.tls, options.xprtsec, &path)?, ..options };
    let keeping = arguments.keeping.clone();
    Ok(Wanted { url, path, directory, access, keeping, cache_share: 1, among_others: false, referred: None })
}

/// The origins of a proxy that has several.
fn several(arguments: &Proxy, directory: &Path, tables: Vec<OriginConfig>) -> Result<Vec<Wanted>, Failure> {
    let whole = arguments.access.to_server();
    let count = tables.len();
    let mut wanted: Vec<Wanted> = Vec::new();
    for table in tables {
        let access = table.access(&whole);
        let xprtsec = tls::confine(&arguments.tls, access.xprtsec, &table.path)?;
        let own = directory.join(CACHES).join(state::file_name(&table.url.to_string()));
        if let Some(other) = wanted.iter().find(|other| other.directory == own) {
            return Err(Failure(format!(
                "the caches of {} and {} would be in one directory, {}: serve one of them by a proxy of its own",
                other.url,
                table.url,
                own.display()
            )));
        }
        wanted.push(Wanted {
            url: table.url,
            path: table.path,
            directory: own,
            access: server::ExportOptions { xprtsec, ..access },
            keeping: arguments.keeping.of_one_among(count, table.offline),
            cache_share: table.cache_share,
            among_others: true,
            referred: None,
        });
    }
    Ok(wanted)
}

/// Starts the admin socket. Returns the source of the metrics, too.
fn show(
    origins: &Arc<Origins>,
    is_one: bool,
    stack: &Stack,
    directory: &Path,
) -> Result<(Admin, Measured), Failure> {
    let of = || origins.clone();
    let status = {
        let (front, load, of) = (stack.front().clone(), stack.load(), of());
        status::source(move || status_of(&front, &load, &of, is_one))
    };
    let (caching, awaited, listed) = (of(), of(), of());
    let listed = Live::of(move || listed.listed());
    let caches = of();
    let caches = Caches::Several { caches: Live::of(move || caches.caches()), own: directory.to_owned() };
    let of_exports = listed.clone();
    let arbiters =
        Live::of(move || of_exports.now().into_iter().map(|listed| (listed.path, listed.arbiter)).collect());
    let measured = Measured {
        role: "proxy",
        serving: Some(stack.serving(arbiters)),
        caching: Live::of(move || caching.caching()),
        awaited: Live::of(move || awaited.awaited()),
        mounted: Weak::new(),
        status: status.clone(),
        directory: directory.to_owned(),
    };
    let holders = Holders { front: stack.front().clone(), exports: listed };
    let usage = usage::of_server(status.clone(), holders.clone());
    let sources = Sources { status, usage, cache: caches, holders: Some(holders), before_recording: None };
    Ok((Admin::start(directory, sources)?, measured))
}

/// With the sums over all origins, and each by itself if there are several.
fn status_of(front: &Front, load: &rpc::Load, origins: &Origins, is_one: bool) -> Value {
    let each = origins.status();
    let first = origins.first_status();
    let mut total = status::total::of(each.values(), &["held", "link", "upstream", "cache"]);
    if is_one && let Some(first) = &first {
        total["origin"] = first["origin"].clone();
        total["origin_version"] = first["origin_version"].clone();
    } else {
        total["origin"] = json!(crate::units::counted(each.len() as u64, "origin", "origins"));
    }
    if !is_one || each.len() > 1 {
        total["origins"] = Value::Object(each);
    }
    status::total::join(status_of_clients(front, load), total)
}

/// The state of the clients' side of a proxy.
fn status_of_clients(front: &Front, load: &rpc::Load) -> Value {
    json!({
        "role": "proxy",
        "exports": status::exports(front),
        "calls": status::calls(front),
        "clients": status::clients(front),
        "lock_manager": status::lock_manager(front),
        "groups": status::groups(front),
        "load": status::load(load),
    })
}
