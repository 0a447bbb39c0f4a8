//! `leasehold serve`: serves directories of this machine, or a computed tree, over NFS.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use local::LocalFs;
use serde_json::json;
use server::exports::ExportId;
use server::{Export, ExportOptions, Nqnfs};
use synthetic::{Shape, Synthetic};
use vfs::{FileSystem, Handle};

use crate::admin::{Admin, Caches, Sources};
use crate::auditing::AuditLog;
use crate::cli::{Command, Serve, Tls, Version4};
use crate::config::exports;
use crate::holders::{Holders, Listed, Place};
use crate::live::Live;
use crate::metrics::{Measured, Metrics, Serving};
use crate::reload::{ACCESS, Reload};
use crate::service::{self, Service};
use crate::stack::{self, End, Keep, Listening, Stack, Told};
use crate::state::{self, Kind};
use crate::{Failure, kerberos, status, tls, usage};

/// The path of a computed tree that has no `--export`.
const COMPUTED: &str = "/synthetic";

/// One tree to serve.
struct Served {
    tree: Tree,
    path: Option<String>,
    options: ExportOptions,
}

/// Where the files of an export come from.
enum Tree {
    Directory { root: PathBuf, how: How },
    Computed(Shape),
}

/// How a directory of this machine is served.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Metadata is on the disk before a reply.
    pub sync: bool,
    /// File systems mounted below the directory are served.
    pub crossmnt: bool,
    /// The limit of delegations, if no other process of this machine uses the directory.
    pub exclusive: Option<usize>,
}

impl How {
    /// Other processes may use the directory, and there is one file system.
    pub const PLAIN: How = How { sync: true, crossmnt: false, exclusive: None };
}

/// Limit of leases of a file system on files that are open without a delegation.
const LEASES_OF_OPENS_MAX: usize = 1 << 18;

impl Tree {
    /// The tree, as messages name it.
    fn name(&self) -> String {
        match self {
            Tree::Directory { root, .. } => root.display().to_string(),
            Tree::Computed(shape) => format!("the tree {shape}"),
        }
    }

    /// The same tree, by the only path of its directory.
    fn canonical(self) -> std::io::Result<Tree> {
        match self {
            Tree::Directory { root, how } => Ok(Tree::Directory { root: std::fs::canonicalize(root)?, how }),
            Tree::Computed(_) => Ok(self),
        }
    }

    /// Names the same [canonical](Tree::canonical) tree after a restart.
    fn identity(&self) -> String {
        match self {
            Tree::Directory { root, .. } => root.to_string_lossy().into_owned(),
            Tree::Computed(shape) => format!("synthetic {shape}"),
        }
    }
}

/// Serves until the process is told to stop.
pub async fn run(arguments: Serve, mut reload: Reload) -> Result<(), Failure> {
    let mut end = End::listen(reload.has_file())?;
    let wanted = directories(&arguments, &arguments.tls)?;
    refuse_overlaps(&wanted)?;
    let tls = tls::acceptor(&arguments.tls)?;
    let gss = kerberos::acceptor(&arguments.kerberos, wanted.iter().map(|served| &served.options.sec))?;
    let state = match &arguments.state {
        Some(state) => state.clone(),
        None => default_state(&arguments)?,
    };
    state::make(&state)?;
    let lock = tokio::select! {
        lock = state::lock_after(&state, &state) => lock?,
        () = end.wait() => return Ok(()),
    };
    let nqnfs = stack::nqnfs(&state)?;
    let audit = AuditLog::open(&arguments.auditing)?;
    let mut exports = Vec::new();
    let mut listed = Vec::new();
    for directory in wanted {
        let (export, shown) = open(directory, &state, &arguments.version4, &nqnfs, &audit)?;
        exports.push(export);
        listed.push(shown);
    }
    let (network, version4) = (&arguments.network, &arguments.version4);
    let listening =
        Listening { network, tls: tls.as_ref(), gss: gss.as_ref(), version4, users: &arguments.users };
    let keep = Keep { state: &state, handle_key: None, replica: None };
    let stack = Stack::start(exports, keep, nqnfs, listening).await?;
    tell_of_user();
    let measured = measured(&stack, &listed, &state);
    let (admin, usage) = show(&stack, &measured, listed, &state)?;
    let metrics = Metrics::start(arguments.network.metrics, measured.clone(), usage).await?;
    for export in stack.front().exports().iter() {
        crate::output::announce(greeting(&export, &stack));
    }
    metrics.iter().for_each(Metrics::announce);
    let service = Service::ready(&format!("serving on {}", stack.address()), &measured);
    while end.next().await == Told::Reload {
        audit.reopen();
        tls::reload(tls.as_ref());
        stack.front().forget_groups();
        reload.read_again(&ACCESS, |command| match command {
            Command::Serve(new) => apply(new, &arguments.tls, gss.as_ref(), &stack),
            _ => Ok(()),
        });
    }
    service::stopping();
    drop(service);
    admin.begin_end();
    stack.stop().await;
    audit.finish().await;
    admin.end(None).await;
    lock.until_exit();
    Ok(())
}

/// Without the rights of root, the server acts as one user.
fn tell_of_user() {
    let uid = rustix::process::geteuid();
    if !uid.is_root() {
        let uid = uid.as_raw();
        crate::output::tell(format_args!(
            "not root, so only clients that act as user {uid} are served; run as root, or map all clients to it: --all-squash --anonuid {uid}"
        ));
    }
}

/// Starts the admin socket. Returns the source of the metrics of use, too.
fn show(
    stack: &Stack,
    measured: &Measured,
    listed: Vec<Listed>,
    state: &Path,
) -> Result<(Admin, status::Source), Failure> {
    let holders = Holders { front: stack.front().clone(), exports: Live::fixed(listed) };
    let usage = usage::of_server(measured.status.clone(), holders.clone());
    let sources = Sources {
        status: measured.status.clone(),
        usage: usage.clone(),
        cache: Caches::None,
        holders: Some(holders),
        cluster: None,
        before_recording: None,
    };
    Ok((Admin::start(state, sources)?, usage))
}

/// Applies what a reload may change: the options of the exports.
fn apply(
    new: &Serve,
    tls: &Tls,
    gss: Option<&Arc<rpc::rpcsec_gss::Acceptor>>,
    stack: &Stack,
) -> Result<(), Failure> {
    let directories = directories(new, tls)?;
    directories.iter().try_for_each(|served| kerberos::check_again(gss, &served.options.sec))?;
    stack.look_up(directories.iter().map(|served| &served.options));
    directories.into_iter().for_each(|served| change(stack, served));
    stack.judge_again();
    Ok(())
}

/// Sets the options of an export that is served. Others need a restart.
fn change(stack: &Stack, served: Served) {
    let Ok(tree) = served.tree.canonical() else { return };
    let id = ExportId::of(&tree.identity());
    if let Some(export) = stack.front().exports().iter().find(|export| export.id == id) {
        export.set_options(served.options);
    }
}

fn greeting(export: &Export, stack: &Stack) -> String {
    let (path, address) = (&export.path, stack.address());
    if export.is_absent() {
        return format!("referring {path} on {address}; clients are sent to {}", export.options().refer);
    }
    format!("serving {path} on {address}; a client mounts it with: {}", stack.mount_line(path))
}

fn default_state(arguments: &Serve) -> Result<PathBuf, Failure> {
    let named = arguments.directory.as_ref().or(arguments.config.as_ref());
    let canonical = named.map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()));
    let computed = || arguments.synthetic.map(|shape| format!("synthetic {shape}")).unwrap_or_default();
    let name = canonical.map_or_else(computed, |path| path.to_string_lossy().into_owned());
    state::default_directory(Kind::State, &format!("serve-{}", state::file_name(&name)))
}

/// Checks what a start would refuse before it touches anything: exports that contradict others or `--tls`,
/// and certificates.
///
/// # Errors
/// The first mistake.
pub fn check(arguments: &Serve) -> Result<(), Failure> {
    refuse_overlaps(&directories(arguments, &arguments.tls)?)?;
    tls::acceptor(&arguments.tls).map(drop)
}

/// The directories to serve, with options that `--tls` allows.
fn directories(arguments: &Serve, tls: &Tls) -> Result<Vec<Served>, Failure> {
    let mut served = named_directories(arguments)?;
    for one in &mut served {
        let name = one.path.clone().unwrap_or_else(|| one.tree.name());
        one.options.xprtsec = tls::confine(tls, one.options.xprtsec, &name)?;
    }
    Ok(served)
}

fn named_directories(arguments: &Serve) -> Result<Vec<Served>, Failure> {
    let named = arguments.directory.clone().map(|root| Tree::Directory {
        root,
        how: How {
            sync: !arguments.asynchronous,
            crossmnt: !arguments.no_crossmnt,
            exclusive: arguments.exclusive.then_some(arguments.version4.delegations_max),
        },
    });
    if let Some(tree) = named.or(arguments.synthetic.map(Tree::Computed)) {
        let options = ExportOptions {
            refer: arguments.refer.clone().unwrap_or_default(),
            replicas: arguments.replicas.clone().unwrap_or_default(),
            ..arguments.access.to_server()
        };
        return Ok(vec![Served { tree, path: arguments.export.clone(), options }]);
    }
    let Some(config) = &arguments.config else {
        return Err(Failure("nothing to serve: name a directory, or a file with --config".into()));
    };
    let of = |(export, options): (exports::ExportConfig, ExportOptions)| {
        let exclusive = export.exclusive.then_some(arguments.version4.delegations_max);
        let how = How { sync: export.sync, crossmnt: export.crossmnt, exclusive };
        Served { tree: Tree::Directory { root: export.directory, how }, path: export.path, options }
    };
    Ok(exports::load(config)?.into_iter().map(of).collect())
}

/// Refuses an exclusive export whose directory is within that of another export, or around it. The clients of
/// two exports are strangers to each other, and an exclusive export notices no stranger.
fn refuse_overlaps(served: &[Served]) -> Result<(), Failure> {
    let roots = served.iter().filter_map(|served| match &served.tree {
        Tree::Directory { root, how } => {
            Some((std::fs::canonicalize(root).unwrap_or_else(|_| root.clone()), how.exclusive.is_some()))
        }
        Tree::Computed(_) => None,
    });
    let roots: Vec<(PathBuf, bool)> = roots.collect();
    for (index, (one, exclusive)) in roots.iter().enumerate() {
        let others = roots.iter().enumerate().filter(|(other, _)| *other != index);
        let overlaps = |other: &Path| one.starts_with(other) || other.starts_with(one);
        if let Some((_, (other, _))) =
            others.into_iter().find(|(_, (other, _))| *exclusive && overlaps(other))
        {
            return Err(Failure(format!(
                "cannot serve {} as exclusive: {} is exported too, and one is within the other; remove one of the \
                 exports, or serve without exclusive",
                one.display(),
                other.display()
            )));
        }
    }
    Ok(())
}

fn open(
    served: Served,
    state: &Path,
    version4: &Version4,
    nqnfs: &Nqnfs,
    audit: &AuditLog,
) -> Result<(Export, Listed), Failure> {
    let Served { tree, path, options } = served;
    let name = tree.name();
    let tree = tree.canonical().map_err(|error| {
        Failure(format!(
            "cannot serve {name}: {error}; name a directory that exists and that this user may read"
        ))
    })?;
    let identity = tree.identity();
    let exclusive = matches!(tree, Tree::Directory { how: How { exclusive: Some(_), .. }, .. });
    let (fs, place, default_path): (Arc<dyn FileSystem>, Arc<Place>, &str) = match tree {
        Tree::Directory { root, how } => {
            let own_state = state.join(state::file_name(&identity));
            state::make(&own_state)?;
            let fs = open_local(&root, &own_state, how)?;
            (fs.clone(), Arc::new(move |handle: &Handle| fs.path_of(handle)), &identity)
        }
        Tree::Computed(shape) => (Arc::new(Synthetic::new(shape)), Arc::new(|_: &Handle| None), COMPUTED),
    };
    let arbiter = stack::arbiter(fs, version4, nqnfs.recovery(), !exclusive);
    let path = path.unwrap_or_else(|| default_path.to_owned());
    let audited = audit.over(arbiter.clone(), &path, &place);
    let export = stack::export(&identity, path.clone(), audited, options);
    let listed = Listed { id: export.id, path, arbiter, place };
    Ok((export, listed))
}

/// Opens a directory as a file system.
pub fn open_local(directory: &Path, state: &Path, how: How) -> Result<Arc<LocalFs>, Failure> {
    let How { sync, crossmnt, exclusive } = how;
    let mut options = local::Options { sync, crossmnt, ..local::Options::new(state) };
    if let Some(delegations_max) = exclusive {
        options.exclusive = true;
        options.leases_max = delegations_max.saturating_add(LEASES_OF_OPENS_MAX);
    }
    let fs = LocalFs::open(directory, options).map_err(|error| Failure(error.to_string()))?;
    Ok(Arc::new(fs))
}

/// The sources of the admin socket and the metrics.
fn measured(stack: &Stack, exports: &[Listed], state: &Path) -> Measured {
    let arbiters = exports.iter().map(|export| (export.path.clone(), export.arbiter.clone()));
    let serving = stack.serving(Live::fixed(arbiters.collect()));
    let shown = serving.clone();
    Measured {
        role: "serve",
        serving: Some(serving),
        caching: Live::fixed(Vec::new()),
        awaited: Live::fixed(Vec::new()),
        cluster: None,
        mounted: Weak::new(),
        status: status::source(move || status_of(&shown)),
        directory: state.to_owned(),
    }
}

fn status_of(Serving { front, load, arbiters, .. }: &Serving) -> serde_json::Value {
    let held = arbiters.now().into_iter().map(|(path, arbiter)| (path, status::held(&arbiter.held())));
    json!({
        "role": "serve",
        "exports": status::exports(front),
        "calls": status::calls(front),
        "clients": status::clients(front),
        "lock_manager": status::lock_manager(front),
        "groups": status::groups(front),
        "load": status::load(load),
        "held": held.collect::<serde_json::Map<_, _>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(root: &str, exclusive: bool) -> Served {
        let how = How { exclusive: exclusive.then_some(1), ..How::PLAIN };
        Served {
            tree: Tree::Directory { root: root.into(), how },
            path: None,
            options: ExportOptions::default(),
        }
    }

    // Promise: exclusive-exports
    #[test]
    fn an_exclusive_directory_is_in_no_other_export() {
        for (one, other) in [("/srv", "/srv/projects"), ("/srv/projects", "/srv"), ("/srv", "/srv")] {
            let refused = refuse_overlaps(&[served(one, false), served(other, true)]);
            assert!(refused.unwrap_err().0.contains("is exported too"), "{one} and {other}");
            assert!(refuse_overlaps(&[served(one, false), served(other, false)]).is_ok());
        }
        assert!(refuse_overlaps(&[served("/srv", true), served("/srv2", true)]).is_ok());
    }
}
