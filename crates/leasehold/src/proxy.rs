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
use server::{Front, Nqnfs, Replica};

use crate::admin::{Admin, Caches, Sources};
use crate::auditing::AuditLog;
use crate::cli::{Command, Proxy, Version4};
use crate::config::origins::{self as tables, OriginConfig};
use crate::holders::Holders;
use crate::live::Live;
use crate::membership::virtual_server::{Order, VirtualServer};
use crate::metrics::{Measured, Metrics};
use crate::owner::Incarnation;
use crate::reload::{ACCESS, LIMITS, ORIGINS, Reload};
use crate::service::{self, Service};
use crate::stack::{self, End, Keep, Listening, Stack, Told};
use crate::state::{self, Kind, Lock};
use crate::{Failure, cli, config, kerberos, membership, status, tls, usage};
use opening::Opening;
use origin::{Common, Wanted};
use origins::{Origins, Site};
use referrals::Referrals;

pub use origin::{cache_options, check_options, make_state, open_cache, reach, settle, usual_write_behind};

/// The directory of the caches, in that of a proxy of several origins.
const CACHES: &str = "origins";
/// An origin that was found by a referral gets this part of the memory of the one that refers to it. One of
/// another virtual server gets at most this part of the whole.
const MEMORY_PART: usize = 16;

/// Serves until the process is told to stop.
pub async fn run(mut arguments: Proxy, reload: Reload) -> Result<(), Failure> {
    let config = arguments.config.as_deref().filter(|_| arguments.origin.is_none());
    let cluster = config.map(config::cluster::load).transpose()?.flatten();
    let order = Order::from_environment()?;
    let (cluster, order) = match (cluster, order) {
        (Some(cluster), None) => {
            let (tables, directory) =
                (tables::load(config.unwrap_or(Path::new("")))?, site_directory(&arguments)?);
            return Box::pin(membership::run(arguments, cluster, tables, directory, reload)).await;
        }
        (None, Some(_)) => {
            return Err(Failure(
                "the file of this member has no [cluster] any more; restart all members".into(),
            ));
        }
        (cluster, order) => (cluster, order),
    };
    let end = End::listen(reload.has_file())?;
    let virtual_server = match (cluster, order) {
        (Some(cluster), Some(order)) => {
            let (tables, directory) =
                (tables::load(config.unwrap_or(Path::new("")))?, site_directory(&arguments)?);
            let key = arguments.handle_key.as_deref();
            // Those of the file would be those of each virtual server of this machine.
            arguments.network.metrics = cluster.metrics_of(&order.address);
            let tables = (tables, arguments.access.to_server(), &arguments.tls);
            Some(VirtualServer::begin(order, &cluster, tables, key, &directory).await?)
        }
        _ => None,
    };
    let wants = Wants::of(&arguments, virtual_server)?;
    let begun = Begun::new(&arguments, &wants.wanted)?;
    Box::pin(serve(arguments, wants, begun, end, reload)).await
}

/// Checks what a start would refuse before it touches anything: access that contradicts `--tls`, and
/// certificates, also those for origins and for etcd. A start with several origins goes on without one whose
/// files cannot be used.
///
/// # Errors
/// The first mistake.
pub fn check(arguments: &Proxy) -> Result<(), Failure> {
    let wants = Wants::of(arguments, None)?;
    tls::acceptor(&arguments.tls)?;
    wants.wanted.iter().try_for_each(|wanted| tls::check_origin(&wanted.url))?;
    let config = arguments.config.as_deref().filter(|_| arguments.origin.is_none());
    let cluster = config.map(config::cluster::load).transpose()?.flatten();
    let Some(cluster) = cluster else { return Ok(()) };
    refuse_delays(&wants.wanted)?;
    cluster.store().map(drop)
}

/// In a cluster, another member may take an origin over, and it has not what waits on this disk.
fn refuse_delays(wanted: &[Wanted]) -> Result<(), Failure> {
    match wanted.iter().find(|wanted| wanted.writing.is_delayed()) {
        None => Ok(()),
        Some(wanted) => Err(Failure(format!(
            "{}: a member of a cluster cannot delay writes, because another one may take over; remove `sync = false` and \
             `fsync = \"journal\"`",
            wanted.path
        ))),
    }
}

/// The parts that are there before an origin is reached.
struct Begun {
    tls: Option<Arc<rpc::tls::Acceptor>>,
    gss: Option<Arc<rpc::rpcsec_gss::Acceptor>>,
    /// A change of it needs a restart.
    policy: cli::Tls,
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
        Ok(Begun { tls, gss, policy: arguments.tls.clone() })
    }

    fn listening<'b>(&'b self, arguments: &'b Proxy, version4: &'b Version4) -> Listening<'b> {
        Listening {
            network: &arguments.network,
            tls: self.tls.as_ref(),
            gss: self.gss.as_ref(),
            version4,
            users: &arguments.users,
        }
    }

    /// What a reload does besides the configuration.
    fn reopen(&self, stack: &Stack) {
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

/// The directory of a proxy, which nobody else uses; and the only origin, if there is one.
struct Locked {
    state: PathBuf,
    nqnfs: Nqnfs,
    common: Common,
    /// The lock, if it is not that of the only origin.
    lock: Option<Lock>,
}

impl Locked {
    fn new(
        arguments: &Proxy,
        state: PathBuf,
        lock: Option<Lock>,
        virtual_server: Option<Arc<VirtualServer>>,
    ) -> Result<Locked, Failure> {
        let nqnfs = stack::nqnfs(&state)?;
        let audit = AuditLog::open(&arguments.auditing)?;
        let version4 = arguments.version4.clone();
        let common = Common { version4, recovery: nqnfs.recovery(), audit, virtual_server };
        Ok(Locked { state, nqnfs, common, lock })
    }
}

/// Waits until the only origin answers, and opens its cache. None if the process is told to end before.
async fn open_one(
    arguments: &Proxy,
    wanted: Wanted,
    end: &mut End,
) -> Result<Option<(Locked, Opening)>, Failure> {
    let reaching = async {
        let incarnation = Incarnation::begin(&wanted.url, &wanted.directory).await?;
        let origin = reach(&wanted.url, &incarnation.client).await?;
        Ok::<_, Failure>((incarnation, origin))
    };
    // A signal must also end the wait for the origin.
    let (incarnation, origin) = tokio::select! {
        reached = Box::pin(reaching) => reached?,
        () = end.wait() => return Ok(None),
    };
    let locked = Locked::new(arguments, make_state(&wanted.directory)?, None, None)?;
    let opening = Opening::of(wanted, incarnation, origin, &locked.common).await?;
    Ok(Some((locked, opening)))
}

/// Serves these origins.
async fn serve(
    arguments: Proxy,
    wants: Wants,
    begun: Begun,
    mut end: End,
    mut reload: Reload,
) -> Result<(), Failure> {
    let Wants { directory, wanted, is_one, virtual_server } = wants;
    let (others, own): (Vec<_>, Vec<_>) = wanted.iter().cloned().partition(Wanted::is_of_other);
    let configured = own.clone();
    let (locked, mut opening) = if let [one] = &wanted[..]
        && is_one
    {
        let opened = Box::pin(open_one(&arguments, one.clone(), &mut end)).await?;
        let Some((locked, opening)) = opened else { return Ok(()) };
        (locked, vec![opening])
    } else {
        let state = make_state(&directory)?;
        let lock = tokio::select! {
            lock = state::lock_after(&state, &directory) => lock?,
            () = end.wait() => return Ok(()),
        };
        let locked = Locked::new(&arguments, state, Some(lock), virtual_server.clone())?;
        let opening = own.into_iter().map(|wanted| Opening::begin(wanted, locked.common.clone()));
        let opening = opening.collect();
        (locked, opening)
    };
    let Locked { state, nqnfs, common, lock } = locked;
    let referrals = Referrals { answer: arguments.referrals, state: state.clone() };
    let referred = referrals.recorded(&directory, &wanted);
    opening.extend(referred.into_iter().map(|wanted| Opening::begin(wanted, common.clone())));
    let audit = common.audit.clone();
    let exports = tokio::select! {
        exports = opening::exports(&mut opening) => exports,
        () = end.wait() => return Ok(()),
    };
    let exports_of_others = others.iter().map(Wanted::awaited_export);
    let referrals_there = virtual_server.iter().flat_map(|of| of.referrals());
    let exports = exports.into_iter().chain(exports_of_others).chain(referrals_there).collect();
    let wanted = arguments.version4.lease_time;
    let lease_time = opening.iter().map(|opening| opening.lease_time(wanted)).min().unwrap_or(wanted);
    let version4 = Version4 { lease_time, ..arguments.version4.clone() };
    let listening = begun.listening(&arguments, &version4);
    let replica = virtual_server.clone().map(|of| -> Arc<dyn Replica> { of });
    let stack = Stack::start(exports, keep(&arguments, &state, replica), nqnfs, listening).await?;
    let (front, address) = (stack.front().clone(), stack.address());
    let site = Site { front, address, directory: directory.clone(), referrals, common };
    let origins = Origins::start(site, opening).await;
    others.into_iter().for_each(|wanted| origins.join_when_asked(wanted));
    let (admin, measured, usage) = show(&origins, is_one, &stack, &directory)?;
    let metrics = Metrics::start(arguments.network.metrics, measured.clone(), usage).await?;
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
        audit.reopen();
        begun.reopen(&stack);
        let mut change = None;
        let live: &[&[&str]] = if is_one || virtual_server.is_some() {
            &[&LIMITS, &ACCESS]
        } else {
            &[&LIMITS, &ACCESS, &ORIGINS]
        };
        reload.read_again(&live.concat(), |command| {
            let Command::Proxy(new) = command else { return Ok(()) };
            let one = is_one.then_some(&configured[..]);
            let new = Wants::again(new, &begun.policy, &directory, one, virtual_server.as_deref())?;
            origins.check(&new)?;
            begun.prepare(&stack, &new)?;
            origins.apply(&new);
            stack.judge_again();
            change = Some(new);
            Ok(())
        });
        if let Some(wanted) = change {
            // An origin that goes may not answer.
            tokio::select! {
                () = origins.change(wanted) => stack.judge_again(),
                () = end.wait() => break,
            }
        }
        let asking = origins.clone();
        tokio::spawn(async move { asking.ask_now().await });
    }
    service::stopping();
    drop(service);
    upkeep.iter().for_each(tokio::task::JoinHandle::abort);
    admin.begin_end();
    origins.begin_end().await;
    stack.stop().await;
    audit.finish().await;
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
    /// The virtual server of a cluster that this process is.
    virtual_server: Option<Arc<VirtualServer>>,
}

impl Wants {
    fn of(arguments: &Proxy, virtual_server: Option<Arc<VirtualServer>>) -> Result<Wants, Failure> {
        let tables = match (&arguments.origin, &arguments.config) {
            (None, Some(config)) => tables::load(config)?,
            _ => Vec::new(),
        };
        if tables.is_empty() {
            let one = the_one(arguments, &arguments.tls)?;
            let directory = one.directory.clone();
            return Ok(Wants { directory, wanted: vec![one], is_one: true, virtual_server: None });
        }
        let directory = site_directory(arguments)?;
        let tables = own(tables, virtual_server.as_deref());
        let wanted = several(arguments, &arguments.tls, &directory, tables)?;
        if virtual_server.is_some() {
            refuse_delays(&wanted)?;
        }
        Ok(Wants { directory, wanted, is_one: false, virtual_server })
    }

    /// The origins after a reload. `one` is the only one, whose URL and path need a restart to change.
    fn again(
        arguments: &Proxy,
        tls: &cli::Tls,
        directory: &Path,
        one: Option<&[Wanted]>,
        virtual_server: Option<&VirtualServer>,
    ) -> Result<Vec<Wanted>, Failure> {
        if let Some([one, ..]) = one {
            let new = the_one_of(arguments, tls, one.url.clone())?;
            return Ok(vec![Wanted { path: one.path.clone(), directory: directory.to_owned(), ..new }]);
        }
        let tables = arguments.config.as_deref().map(tables::load).transpose()?.unwrap_or_default();
        if tables.is_empty() {
            return Err(Failure(
                "a proxy of several origins becomes one of a single origin by a restart".into(),
            ));
        }
        several(arguments, tls, directory, own(tables, virtual_server))
    }
}

/// The origins of this process.
fn own(tables: Vec<OriginConfig>, virtual_server: Option<&VirtualServer>) -> Vec<OriginConfig> {
    match virtual_server {
        Some(of) => of.of_process(tables),
        None => tables,
    }
}

fn keep<'p>(arguments: &'p Proxy, state: &'p Path, replica: Option<Arc<dyn Replica>>) -> Keep<'p> {
    Keep { state, handle_key: arguments.handle_key.as_deref(), replica }
}

/// The directory of an origin, in that of a proxy of several.
pub fn directory_of(directory: &Path, url: &client::Url) -> PathBuf {
    directory.join(CACHES).join(Wanted::directory_name(url))
}

/// The directory of a proxy of several origins.
fn site_directory(arguments: &Proxy) -> Result<PathBuf, Failure> {
    if let Some(directory) = &arguments.cache {
        return Ok(directory.clone());
    }
    let config = arguments.config.as_deref().and_then(Path::file_stem).unwrap_or_default();
    state::default_directory(Kind::Cache, &format!("proxy-{}", state::file_name(&config.to_string_lossy())))
}

/// The origin of a proxy that has one.
fn the_one(arguments: &Proxy, tls: &cli::Tls) -> Result<Wanted, Failure> {
    let url = arguments.origin.clone();
    let url = url.ok_or_else(|| Failure("there is no origin: name a URL, or a file with --config".into()))?;
    check_options(&url)?;
    the_one_of(arguments, tls, url)
}

fn the_one_of(arguments: &Proxy, tls: &cli::Tls, url: client::Url) -> Result<Wanted, Failure> {
    let directory = match &arguments.cache {
        Some(directory) => directory.clone(),
        None => state::default_directory(Kind::Cache, &state::file_name(&url.to_string()))?,
    };
    let path = arguments.export.clone().unwrap_or_else(|| url.export_text());
    let options = arguments.access.to_server();
    let access = server::ExportOptions { xprtsec: tls::confine(tls, options.xprtsec, &path)?, ..options };
    Ok(Wanted {
        url,
        path,
        directory,
        access,
        keeping: arguments.keeping.clone(),
        writing: arguments.writing,
        cache_share: 1,
        among_others: false,
        referred: None,
    })
}

/// The origins of a proxy that has several.
fn several(
    arguments: &Proxy,
    tls: &cli::Tls,
    directory: &Path,
    tables: Vec<OriginConfig>,
) -> Result<Vec<Wanted>, Failure> {
    let whole = arguments.access.to_server();
    let others = tables.iter().filter(|table| table.is_of_other()).count();
    let count = tables.len() - others;
    // The origins of other virtual servers have a quarter of the memory besides, at most.
    let part_of_others = MEMORY_PART.max(4 * others);
    let mut wanted: Vec<Wanted> = Vec::new();
    for table in tables {
        let access = table.access(&whole);
        let xprtsec = tls::confine(tls, access.xprtsec, &table.path)?;
        let own = directory_of(directory, &table.url);
        let of_other = table.is_of_other();
        wanted.push(Wanted {
            url: table.url,
            path: table.path,
            directory: own,
            access: server::ExportOptions { xprtsec, ..access },
            keeping: arguments
                .keeping
                .of_one_among(if of_other { part_of_others } else { count }, table.offline),
            writing: arguments.writing.of_one(table.delayed, table.fsync),
            cache_share: table.cache_share,
            among_others: true,
            referred: None,
        });
    }
    Ok(wanted)
}

/// Starts the admin socket. Returns the sources of the metrics, too.
fn show(
    origins: &Arc<Origins>,
    is_one: bool,
    stack: &Stack,
    directory: &Path,
) -> Result<(Admin, Measured, status::Source), Failure> {
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
        cluster: None,
        mounted: Weak::new(),
        status: status.clone(),
        directory: directory.to_owned(),
    };
    let holders = Holders { front: stack.front().clone(), exports: listed };
    let usage = usage::of_server(status.clone(), holders.clone());
    let sources = Sources {
        status,
        usage: usage.clone(),
        cache: caches,
        holders: Some(holders),
        cluster: None,
        before_recording: None,
    };
    Ok((Admin::start(directory, sources)?, measured, usage))
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
