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
mod serving;
mod shares;
mod shown;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::Proxy;
use crate::config::origins::{self as tables, OriginConfig};
use crate::membership::virtual_server::{Order, VirtualServer};
use crate::reload::Reload;
use crate::stack::End;
use crate::state::{self, Kind};
use crate::{Failure, cli, config, membership, tls};
use origin::Wanted;
use serving::Begun;

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
    Box::pin(serving::serve(arguments, wants, begun, end, reload)).await
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
