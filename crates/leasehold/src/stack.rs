//! The parts that `serve`, `proxy` and `demo` share: exports, the NFS front, and the server on a port.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arbiter::{Arbiter, Delegations};
use rpc::fair::{Rates, Sharing};
use rpc::tls::Acceptor;
use rpc::{Load, ReplyCache, Server, ServerOptions, TransportSecurity, rpcsec_gss};
use server::exports::{ExportId, ExportsError};
use server::portmapper::Portmapper;
use server::rpcbind::Registration;
use server::{
    Bounds, Export, ExportOptions, Exports, Front, Groups, HandleKey, Handles, Nqnfs, NqnfsOptions, Replica,
    StateOptions,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use vfs::{FileSystem, Recovery};

use crate::Failure;
use crate::cli::{Delegate, Network, Users, Version4};
use crate::hosts::HostLookUp;
use crate::live::Live;
use crate::metrics::Serving;
use crate::users::Nsswitch;

/// The shortest grace period. A Linux client whose connection is refused waits three seconds before it
/// connects again, and then needs a moment to reclaim.
const GRACE_MIN: Duration = Duration::from_secs(6);
/// Room for revoked delegations of all clients, besides those that are held.
const REVOKED_MAX: usize = 1 << 16;

/// A running server.
pub struct Stack {
    server: Arc<Server>,
    hosts: HostLookUp,
    front: Arc<Front>,
    registration: Option<Registration>,
    /// Takes the place of rpcbind where none runs.
    _portmapper: Option<Portmapper>,
}

/// How a stack listens.
#[derive(Clone, Copy)]
pub struct Listening<'o> {
    /// Where.
    pub network: &'o Network,
    /// Offers TLS.
    pub tls: Option<&'o Arc<Acceptor>>,
    /// Takes users of Kerberos.
    pub gss: Option<&'o Arc<rpcsec_gss::Acceptor>>,
    /// The NFSv4 options.
    pub version4: &'o Version4,
    /// The options of users.
    pub users: &'o Users,
}

/// An arbiter over a back end or a cache. With `leases_take_capacity`, a lease takes capacity there.
pub fn arbiter(
    below: Arc<dyn FileSystem>,
    version4: &Version4,
    recovery: Arc<Recovery>,
    leases_take_capacity: bool,
) -> Arc<Arbiter> {
    let options = arbiter::Options {
        delegations: match version4.delegations {
            Delegate::Auto => Delegations::Auto,
            Delegate::Always => Delegations::Always,
            Delegate::Never => Delegations::Never,
        },
        leases_max: version4.delegations_max,
        leases_take_capacity,
        recall_deadline: Duration::from_secs(version4.lease_time.into()),
        recovery,
        ..arbiter::Options::default()
    };
    Arc::new(Arbiter::with_options(below, options))
}

/// Opens the record of NQNFS leases in the state directory, which the previous incarnation has left.
pub fn nqnfs(state: &Path) -> Result<Nqnfs, Failure> {
    let terms = arbiter::leases::Terms::default();
    let options = NqnfsOptions {
        directory: Some(state.to_owned()),
        terms: terms.longest + terms.clock_skew,
        write_slack: terms.write_slack,
        ..NqnfsOptions::default()
    };
    Nqnfs::open(&options).map_err(|error| {
        Failure(format!(
            "cannot use the record of NQNFS leases in {}: {error}; make it readable and writable",
            state.display()
        ))
    })
}

/// The export of a file system. `identity` must name the same export on every machine.
pub fn export(identity: &str, path: String, fs: Arc<dyn FileSystem>, options: ExportOptions) -> Export {
    Export::new(ExportId::of(identity), path, fs, options)
}

/// The files of a stack that must survive a restart.
pub struct Keep<'p> {
    /// The state directory. It exists and belongs to us.
    pub state: &'p Path,
    /// The file with the handle key, if not one in the state directory.
    pub handle_key: Option<&'p Path>,
    /// Where another machine finds the record of clients.
    pub replica: Option<Arc<dyn Replica>>,
}

/// How `--memory-in-flight` is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    /// For requests and replies in progress.
    in_flight: usize,
    /// For replies that sessions cache.
    cached: usize,
}

impl Memory {
    fn of(listen: &Network) -> Memory {
        let given = listen.memory_in_flight.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let all = given.unwrap_or_else(rpc::memory::default_in_flight);
        Memory { in_flight: all - all / 4, cached: all / 4 }
    }
}

/// The limits of each client.
fn rates(network: &Network) -> Rates {
    Rates { operations: network.client_ops_max, bytes: network.client_bytes_max }
}

impl Stack {
    /// Starts to serve.
    pub async fn start(
        exports: Vec<Export>,
        keep: Keep<'_>,
        nqnfs: Nqnfs,
        Listening { network: listen, tls, gss, version4, users }: Listening<'_>,
    ) -> Result<Stack, Failure> {
        let exports = Exports::new(exports).map_err(|error: ExportsError| Failure(error.to_string()))?;
        let in_state = |what: &str, error: std::io::Error| {
            Failure(format!(
                "cannot use {what} in {}: {error}; make it readable and writable",
                keep.state.display()
            ))
        };
        let key_file = keep.handle_key.map_or_else(|| keep.state.join("handle.key"), Path::to_owned);
        let key = handle_key(&key_file)?;
        let handles = Handles::open(key, keep.state).map_err(|error| in_state("the handle table", error))?;
        let replies = ReplyCache::open(keep.state).map_err(|error| in_state("the reply log", error))?;
        let lease = Duration::from_secs(version4.lease_time.into());
        let directory = Some(keep.state.to_owned());
        let memory = Memory::of(listen);
        let defaults = Bounds::default();
        // Each export has its own limit. Revoked ones that clients have not freed yet come on top.
        let granted = version4.delegations_max.saturating_mul(exports.iter().count());
        let delegations = defaults.delegations.max(granted.saturating_add(REVOKED_MAX));
        let bounds = Bounds { cached_bytes: memory.cached, delegations, ..defaults };
        let replica = keep.replica.clone();
        let has_replica = replica.is_some();
        let grace = lease.max(GRACE_MIN);
        let state = StateOptions { directory, lease, grace, bounds, replica, ..StateOptions::default() };
        let front = Front::with_leases(exports, handles, &state, nqnfs)
            .map_err(|error| in_state("the records of NFSv4 clients", error))?;
        if has_replica {
            front
                .replicate()
                .await
                .map_err(|error| Failure(format!("cannot store the record of clients: {error}")))?;
        }
        if users.manage_gids {
            front.manage_gids(Groups::new(Nsswitch));
        }
        front.look_up_names(Nsswitch);
        front.begin().await;
        let hosts = HostLookUp::start(front.clone()).await?;
        let options = ServerOptions {
            udp: !listen.no_udp,
            in_flight_max_bytes: memory.in_flight,
            sharing: Sharing { rates: rates(listen), ..Sharing::default() },
            tls: tls.cloned(),
            gss: gss.cloned(),
            ..ServerOptions::new(listen.listen)
        };
        let server = Server::start(options, front.clone(), replies)
            .await
            .map_err(|error| cannot_listen(listen.listen, &error))?;
        let server = Arc::new(server);
        hosts.serving(&server);
        let registration = register(&server, listen).await;
        let portmapper = map_ports(&front, &server, listen, registration.is_some()).await;
        front.listening(server.local_addr());
        Ok(Stack { server, hosts, front, registration, _portmapper: portmapper })
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// How much of its limits is in use.
    pub fn load(&self) -> Load {
        self.server.load()
    }

    /// The source of its metrics. `arbiters` has its exports by path.
    pub fn serving(&self, arbiters: Live<(String, Arc<Arbiter>)>) -> Serving {
        Serving { front: self.front.clone(), load: self.load(), arbiters, address: self.address() }
    }

    /// The NFS front, which has the exports and the counters.
    pub fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// Looks up the names of clients in options that will be set. Blocks for up to ten seconds.
    pub fn look_up<'o>(&self, options: impl Iterator<Item = &'o ExportOptions>) {
        let lists = options.map(|options| options.clients.clone()).collect();
        tokio::task::block_in_place(|| self.hosts.prepare(lists));
    }

    /// Options of exports have changed. Connections of clients that were admitted and are not any more end,
    /// and so do those of clients that were not.
    pub fn judge_again(&self) {
        self.server.judge_again(&*self.front);
    }

    /// The command that mounts an export of this server, on every machine that can reach its address.
    pub fn mount_line(&self, path: &str) -> String {
        mount_line(&self.front, self.address(), path)
    }

    /// Stops serving, then shuts down the file systems, which store their dirty data.
    pub async fn stop(self) {
        if let Some(registration) = self.registration {
            registration.unregister().await;
        }
        drop(self.server);
        let exports: Vec<_> = self.front.exports().iter().collect();
        // One that waits for its origin must not keep the others.
        futures_util::future::join_all(exports.iter().map(|export| export.fs().shutdown())).await;
    }
}

/// The key of a file; makes the file if it is not there.
///
/// # Errors
/// If it cannot be used.
pub fn handle_key(file: &Path) -> Result<HandleKey, Failure> {
    HandleKey::load_or_create(file).map_err(|error| {
        let way_out = match error.kind() {
            std::io::ErrorKind::StorageFull => "; free some space there",
            // This error names its own way out.
            _ if error.get_ref().is_some() => "",
            _ => "; it must be a file of 16 secret bytes that this user may read",
        };
        Failure(format!("cannot use the handle key {}: {error}{way_out}", file.display()))
    })
}

/// The command that mounts an export of a server at this address.
pub fn mount_line(front: &Front, address: SocketAddr, path: &str) -> String {
    let host = if address.ip().is_unspecified() { hostname() } else { address.ip().to_string() };
    let port = match address.port() {
        2049 => String::new(),
        other => format!(",port={other}"),
    };
    let security = front.exports().by_path(path.as_bytes()).map(|(export, _)| {
        let options = export.options();
        let xprtsec = if options.xprtsec.allows(TransportSecurity::None) { "" } else { ",xprtsec=tls" };
        let first = options.sec.iter().next().filter(|flavor| flavor.is_kerberos());
        format!("{xprtsec}{}", first.map(|flavor| format!(",sec={flavor}")).unwrap_or_default())
    });
    let security = security.unwrap_or_default();
    format!("mount -t nfs -o vers=4.2{port}{security} {host}:{path} /mnt")
}

async fn register(server: &Server, listen: &Network) -> Option<Registration> {
    if listen.no_rpcbind || server.local_addr().ip().is_loopback() {
        return None;
    }
    let registered = Registration::register(server.local_addr().port(), !listen.no_udp).await;
    let registration = registered.unwrap_or_else(|refused| {
        tracing::warn!("{refused}");
        None
    })?;
    if registration.has_others() {
        tracing::warn!(
            "rpcbind has another lock manager or rpc.statd of this machine: clients of versions 2 and 3 cannot lock here; unmount NFS of version 3 and stop rpc.statd, or let the clients mount with nolock"
        );
    }
    Some(registration)
}

/// Starts a port mapper at the address of the server, if there is none on this machine.
async fn map_ports(
    front: &Arc<Front>,
    server: &Server,
    listen: &Network,
    has_rpcbind: bool,
) -> Option<Portmapper> {
    let serves = server.local_addr();
    if listen.no_rpcbind || has_rpcbind || serves.ip().is_loopback() {
        return None;
    }
    let at = SocketAddr::new(serves.ip(), protocol::portmap::PORT);
    match Portmapper::start(front.clone(), serves, !listen.no_udp, at).await {
        Ok(portmapper) => Some(portmapper),
        Err(error) => {
            tracing::warn!(
                "no rpcbind runs, and {at} cannot take its place: {error}; clients of versions 2 and 3 mount with port=, mountport= and nolock, or start rpcbind"
            );
            None
        }
    }
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Failure {
    let way_out = match error.kind() {
        std::io::ErrorKind::AddrInUse if address.port() == 2049 => {
            "another server uses the port (the kernel's nfsd?): stop it, or pass --listen ADDR:PORT"
        }
        std::io::ErrorKind::AddrInUse => "another server uses the port: stop it, or pass --listen ADDR:PORT",
        std::io::ErrorKind::PermissionDenied => {
            "only root may listen on ports below 1024: pass --listen ADDR:PORT with a higher port"
        }
        _ => "pass --listen an address of this machine",
    };
    Failure(format!("cannot listen on {address}: {error}; {way_out}"))
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What a signal tells a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// To end: SIGTERM, SIGINT, SIGQUIT. SIGHUP too, if a person has started the process in a terminal, which
    /// is then gone.
    End,
    /// To read its configuration again: SIGHUP.
    Reload,
}

/// Receives SIGTERM, SIGINT, SIGQUIT and SIGHUP from the start, so that a signal before the first wait is
/// not lost. By default the last two would end the process at once, with its delayed writes and its mount.
pub struct End {
    ending: Vec<Signal>,
    reloading: Option<Signal>,
}

impl End {
    /// Starts to receive the signals. With a configuration file, SIGHUP is not the end. If SIGHUP is ignored,
    /// as under nohup(1), it stays ignored.
    pub fn listen(has_file: bool) -> Result<End, Failure> {
        let failed = |error: std::io::Error| Failure(format!("cannot listen for signals: {error}"));
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::quit()];
        let mut ending = kinds.into_iter().map(signal).collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let mut reloading = None;
        if !is_ignored(SignalKind::hangup()) {
            let hangup = signal(SignalKind::hangup()).map_err(failed)?;
            if has_file || !std::io::stdin().is_terminal() {
                reloading = Some(hangup);
            } else {
                ending.push(hangup);
            }
        }
        Ok(End { ending, reloading })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Told {
        std::future::poll_fn(|context| {
            let mut came = |signal: &mut Signal| signal.poll_recv(context).is_ready();
            if self.ending.iter_mut().any(&mut came) {
                return Poll::Ready(Told::End);
            }
            if self.reloading.as_mut().is_some_and(came) { Poll::Ready(Told::Reload) } else { Poll::Pending }
        })
        .await
    }

    /// Waits until the process is told to end.
    pub async fn wait(&mut self) {
        while self.next().await != Told::End {}
    }
}

/// Was this process started with the signal ignored?
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}
