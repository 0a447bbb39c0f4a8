//! `leasehold proxy`: serves remote exports out of a cache on this machine's disk.
//!
//! A proxy has one origin, or several that its configuration file names. With one, the cache is the directory
//! of the proxy, and the proxy begins to serve when the origin answers. With several, each has a directory in
//! that of the proxy, and the proxy serves from the start: see [`origins`].

mod origin;
mod origins;
mod shares;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use serde_json::{Value, json};
use server::Front;
use vfs::Recovery;

use crate::admin::{Admin, Caches, Sources};
use crate::auditing::AuditLog;
use crate::cli::{Command, Proxy};
use crate::config::origins::{self as tables, OriginConfig};
use crate::holders::{Holders, Listed};
use crate::live::Live;
use crate::metrics::{Awaited, Caching, Measured, Metrics};
use crate::owner::Incarnation;
use crate::reload::{ACCESS, LIMITS, ORIGINS, Reload};
use crate::service::{self, Service};
use crate::stack::{self, End, Keep, Listening, Stack, Told};
use crate::state::{self, Kind, Lock};
use crate::{Failure, kerberos, status, tls, usage};
use origin::{Common, Served, Wanted};
use origins::{Opening, Origins, Site};

pub use origin::{cache_options, check_options, make_state, open_cache, reach, settle};

/// The directory of the caches, in that of a proxy of several origins.
const CACHES: &str = "origins";

/// Serves until the process is told to stop.
pub async fn run(arguments: Proxy, reload: Reload) -> Result<(), Failure> {
    let tables = match (&arguments.origin, &arguments.config) {
        (None, Some(config)) => tables::load(config)?,
        _ => Vec::new(),
    };
    if tables.is_empty() {
        run_one(arguments, reload).await
    } else {
        run_several(arguments, tables, reload).await
    }
}

/// What both kinds of proxy begin with.
struct Begun {
    end: End,
    tls: Option<Arc<rpc::tls::Acceptor>>,
    gss: Option<Arc<rpc::rpcsec_gss::Acceptor>>,
    audit: AuditLog,
}

impl Begun {
    fn new(arguments: &Proxy, reload: &Reload, wanted: &[Wanted]) -> Result<Begun, Failure> {
        let end = End::listen(reload.has_file())?;
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
        Ok(Begun { end, tls, gss, audit: AuditLog::open(&arguments.auditing)? })
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

/// A proxy of one origin.
async fn run_one(arguments: Proxy, mut reload: Reload) -> Result<(), Failure> {
    let wanted = the_one(&arguments)?;
    let mut begun = Begun::new(&arguments, &reload, std::slice::from_ref(&wanted))?;
    let (url, directory) = (&wanted.url, &wanted.directory);
    let incarnation = tokio::select! {
        incarnation = Incarnation::begin(url, directory) => incarnation?,
        () = begun.end.wait() => return Ok(()),
    };
    // A signal must also end the wait for the origin.
    let origin = tokio::select! {
        origin = reach(url, &incarnation.client) => origin?,
        () = begun.end.wait() => return Ok(()),
    };
    let state = make_state(directory)?;
    let nqnfs = stack::nqnfs(&state)?;
    let common = begun.common(&arguments, nqnfs.recovery());
    let (served, fs) = Served::open(&wanted, incarnation, origin, &common).await?;
    let Served { caching, listed, lock } = served;
    let export = stack::export(&url.to_string(), wanted.path.clone(), fs, wanted.access.clone());
    let stack =
        Stack::start(vec![export], keep(&arguments, &state), nqnfs, begun.listening(&arguments)).await?;
    let shown = Shown {
        caching: Live::fixed(vec![caching.clone()]),
        caches: Caches::One(caching.cache.clone()),
        listed: Live::fixed(vec![listed.clone()]),
        awaited: Live::fixed(Vec::new()),
    };
    let status = {
        let (front, load, arbiter, below) =
            (stack.front().clone(), stack.load(), listed.arbiter, caching.clone());
        status::source(move || status_of_one(&front, &load, &arbiter, &below))
    };
    let (admin, measured) = shown.answer(&stack, directory, status)?;
    let metrics = Metrics::start(arguments.network.metrics, measured.clone()).await?;
    crate::output::announce(format_args!(
        "proxy of {url} on {}; a client mounts it with: {}",
        stack.address(),
        stack.mount_line(&wanted.path)
    ));
    metrics.iter().for_each(Metrics::announce);
    let service = Service::ready(&format!("proxy of {url} on {}", stack.address()), &measured);
    let cache = caching.cache.clone();
    drop(caching);
    while begun.end.next().await == Told::Reload {
        begun.reopen(&stack);
        reload.read_again(&[&LIMITS[..], &ACCESS[..]].concat(), |command| {
            let Command::Proxy(new) = command else { return Ok(()) };
            // Its path needs a restart.
            let new = Wanted { path: wanted.path.clone(), ..the_one_of(new, url.clone())? };
            begun.prepare(&stack, std::slice::from_ref(&new))?;
            cache.set_limits(new.keeping.limits());
            stack.front().exports().iter().for_each(|export| export.set_options(new.access.clone()));
            stack.judge_again();
            Ok(())
        });
    }
    service::stopping();
    drop(service);
    drop(cache);
    admin.begin_end();
    stack.stop().await;
    begun.audit.finish().await;
    admin.end(None).await;
    lock.until_exit();
    Ok(())
}

/// A proxy of several origins.
async fn run_several(arguments: Proxy, tables: Vec<OriginConfig>, mut reload: Reload) -> Result<(), Failure> {
    let directory = site_directory(&arguments)?;
    let wanted = several(&arguments, &directory, tables)?;
    let mut begun = Begun::new(&arguments, &reload, &wanted)?;
    let state = make_state(&directory)?;
    let beginning = async {
        let lock = state::lock_after(&state, &directory).await?;
        let mut incarnations = Vec::new();
        for wanted in &wanted {
            incarnations.push(Incarnation::begin(&wanted.url, &wanted.directory).await?);
        }
        Ok::<(Lock, Vec<Incarnation>), Failure>((lock, incarnations))
    };
    let (lock, incarnations) = tokio::select! {
        begun = beginning => begun?,
        () = begun.end.wait() => return Ok(()),
    };
    let nqnfs = stack::nqnfs(&state)?;
    let common = begun.common(&arguments, nqnfs.recovery());
    let opening = wanted.into_iter().zip(incarnations);
    let mut opening: Vec<Opening> =
        opening.map(|(wanted, incarnation)| Opening::begin(wanted, incarnation, common.clone())).collect();
    let exports = tokio::select! {
        exports = origins::exports(&mut opening) => exports,
        () = begun.end.wait() => return Ok(()),
    };
    let stack = Stack::start(exports, keep(&arguments, &state), nqnfs, begun.listening(&arguments)).await?;
    let site = Site { front: stack.front().clone(), address: stack.address(), common };
    let origins = Origins::start(site, opening);
    let of = |origins: &Arc<Origins>| origins.clone();
    let (caching, caches, listed, awaited) = (of(&origins), of(&origins), of(&origins), of(&origins));
    let shown = Shown {
        caching: Live::of(move || caching.caching()),
        caches: Caches::Several(Live::of(move || caches.caches())),
        listed: Live::of(move || listed.listed()),
        awaited: Live::of(move || awaited.awaited()),
    };
    let status = {
        let (front, load, of) = (stack.front().clone(), stack.load(), origins.clone());
        status::source(move || status_of_several(&front, &load, &of))
    };
    let (admin, measured) = shown.answer(&stack, &directory, status)?;
    let metrics = Metrics::start(arguments.network.metrics, measured.clone()).await?;
    let what = crate::units::counted(origins.status().len() as u64, "origin", "origins");
    crate::output::announce(format_args!(
        "proxy of {what} on {}; leasehold status {} shows them",
        stack.address(),
        directory.display()
    ));
    metrics.iter().for_each(Metrics::announce);
    let service = Service::ready(&format!("proxy of {what} on {}", stack.address()), &measured);
    let shares = tokio::spawn({
        let origins = origins.clone();
        async move { origins.share().await }
    });
    while begun.end.next().await == Told::Reload {
        begun.reopen(&stack);
        let mut change = None;
        reload.read_again(&[&LIMITS[..], &ACCESS[..], &ORIGINS[..]].concat(), |command| {
            let Command::Proxy(new) = command else { return Ok(()) };
            let tables = new.config.as_deref().map(tables::load).transpose()?.unwrap_or_default();
            if tables.is_empty() {
                return Err(Failure(
                    "a proxy of several origins becomes one of a single origin by a restart".into(),
                ));
            }
            let wanted = several(new, &directory, tables)?;
            origins.check(&wanted)?;
            begun.prepare(&stack, &wanted)?;
            change = Some(wanted);
            Ok(())
        });
        if let Some(wanted) = change {
            origins.change(wanted).await;
            stack.judge_again();
        }
    }
    service::stopping();
    drop(service);
    shares.abort();
    admin.begin_end();
    origins.begin_end();
    stack.stop().await;
    begun.audit.finish().await;
    origins.end().await;
    admin.end(None).await;
    lock.until_exit();
    Ok(())
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
    Ok(Wanted { url, path, directory, access, keeping, cache_share: 1, puts_off: false })
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
            puts_off: true,
        });
    }
    Ok(wanted)
}

/// The sources of the admin socket and of the metrics.
struct Shown {
    caching: Live<Caching>,
    caches: Caches,
    listed: Live<Listed>,
    awaited: Live<Awaited>,
}

impl Shown {
    /// Starts the admin socket in this directory. Returns the source of the metrics, too.
    fn answer(
        self,
        stack: &Stack,
        directory: &Path,
        status: status::Source,
    ) -> Result<(Admin, Measured), Failure> {
        let Shown { caching, caches, listed, awaited } = self;
        let of = listed.clone();
        let arbiters =
            Live::of(move || of.now().into_iter().map(|listed| (listed.path, listed.arbiter)).collect());
        let measured = Measured {
            role: "proxy",
            serving: Some(stack.serving(arbiters)),
            caching,
            awaited,
            mounted: Weak::new(),
            status: status.clone(),
            directory: directory.to_owned(),
        };
        let holders = Holders { front: stack.front().clone(), exports: listed };
        let usage = usage::of_server(status.clone(), holders.clone());
        let sources =
            Sources { status, usage, cache: caches, holders: Some(holders), before_recording: None };
        Ok((Admin::start(directory, sources)?, measured))
    }
}

/// The state of the clients' side of a proxy.
fn status_of(front: &Front, load: &rpc::Load) -> Value {
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

fn status_of_one(front: &Front, load: &rpc::Load, arbiter: &arbiter::Arbiter, caching: &Caching) -> Value {
    status::total::join(status_of(front, load), origin::status(caching, arbiter))
}

/// With the sums over all origins, and each by itself.
fn status_of_several(front: &Front, load: &rpc::Load, origins: &Origins) -> Value {
    let each = origins.status();
    let total = status::total::of(each.values(), &["held", "link", "upstream", "cache"]);
    let mut status = status::total::join(status_of(front, load), total);
    status["origin"] = json!(crate::units::counted(each.len() as u64, "origin", "origins"));
    status["origins"] = Value::Object(each);
    status
}
