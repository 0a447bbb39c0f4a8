//! What `serve`, `proxy` and `demo` have in common: exports behind a front behind a port.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use arbiter::{Arbiter, Delegations};
use rpc::{Load, ReplyCache, Server, ServerOptions};
use server::exports::{ExportId, ExportsError};
use server::rpcbind::Registration;
use server::{
    Bounds, Export, ExportOptions, Exports, Front, HandleKey, Handles, Nqnfs, NqnfsOptions, StateOptions,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use vfs::FileSystem;

use crate::Failure;
use crate::cli::{Delegate, Network, Version4};

/// A server that answers.
pub struct Stack {
    server: Server,
    front: Arc<Front>,
    registration: Option<Registration>,
}

/// The arbiter over a back end, or over a cache.
pub fn arbiter(below: Arc<dyn FileSystem>, version4: &Version4, nqnfs: &Nqnfs) -> Arc<Arbiter> {
    let options = arbiter::Options {
        delegations: match version4.delegations {
            Delegate::Auto => Delegations::Auto,
            Delegate::Always => Delegations::Always,
            Delegate::Never => Delegations::Never,
        },
        leases_max: version4.delegations_max,
        recall_deadline: Duration::from_secs(version4.lease_time.into()),
        recovery: nqnfs.recovery(),
        ..arbiter::Options::default()
    };
    Arc::new(Arbiter::with_options(below, options))
}

/// What the life before left of the leases of NQNFS, in the state directory.
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

/// The export of an arbiter. `identity` names the same thing on every machine.
pub fn export(identity: &str, path: String, fs: Arc<Arbiter>, options: ExportOptions) -> Export {
    Export { id: ExportId::of(identity), path, fs, options }
}

/// Where and how a stack keeps what must last.
pub struct Keep<'p> {
    /// A directory that exists and is ours.
    pub state: &'p Path,
    /// The file of the handle key.
    pub handle_key: &'p Path,
}

/// How `--memory-in-flight` is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Memory {
    /// For requests and replies that are under way.
    in_flight: usize,
    /// For replies that sessions keep.
    cached: usize,
}

impl Memory {
    fn of(listen: &Network) -> Memory {
        let given = listen.memory_in_flight.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let all = given.unwrap_or_else(rpc::memory::default_in_flight);
        Memory { in_flight: all - all / 4, cached: all / 4 }
    }
}

impl Stack {
    /// Starts to answer.
    pub async fn start(
        exports: Vec<Export>,
        keep: Keep<'_>,
        nqnfs: Nqnfs,
        listen: &Network,
        version4: &Version4,
    ) -> Result<Stack, Failure> {
        let exports = Exports::new(exports).map_err(|error: ExportsError| Failure(error.to_string()))?;
        let in_state = |what: &str, error: std::io::Error| {
            Failure(format!(
                "cannot use {what} in {}: {error}; make it readable and writable",
                keep.state.display()
            ))
        };
        let key = HandleKey::load_or_create(keep.handle_key).map_err(|error| {
            let way_out = match error.kind() {
                std::io::ErrorKind::StorageFull => "; make room there",
                // It has its own.
                _ if error.get_ref().is_some() => "",
                _ => "; it must be a file of 16 secret bytes that we may read",
            };
            Failure(format!("cannot use the handle key {}: {error}{way_out}", keep.handle_key.display()))
        })?;
        let handles = Handles::open(key, keep.state).map_err(|error| in_state("the handle table", error))?;
        let replies = ReplyCache::open(keep.state).map_err(|error| in_state("the reply log", error))?;
        let lease = Duration::from_secs(version4.lease_time.into());
        let directory = Some(keep.state.to_owned());
        let memory = Memory::of(listen);
        let bounds = Bounds { cached_bytes: memory.cached, ..Bounds::default() };
        let state = StateOptions { directory, lease, grace: lease, bounds, ..StateOptions::default() };
        let front = Front::with_leases(exports, handles, &state, nqnfs)
            .map_err(|error| in_state("the records of NFSv4 clients", error))?;
        front.begin().await;
        let options = ServerOptions {
            udp: !listen.no_udp,
            in_flight_max_bytes: memory.in_flight,
            ..ServerOptions::new(listen.listen)
        };
        let server = Server::start(options, front.clone(), replies)
            .await
            .map_err(|error| cannot_listen(listen.listen, &error))?;
        let registration = register(&server, listen).await;
        Ok(Stack { server, front, registration })
    }

    /// Where it answers.
    pub fn address(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// How much of its bounds is in use.
    pub fn load(&self) -> Load {
        self.server.load()
    }

    /// What it has answered.
    pub fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// How to mount an export of this server, from this machine or, if it listens there, from others.
    pub fn mount_line(&self, path: &str) -> String {
        let address = self.address();
        let host = if address.ip().is_unspecified() { hostname() } else { address.ip().to_string() };
        let port = match address.port() {
            2049 => String::new(),
            other => format!(",port={other}"),
        };
        format!("mount -t nfs -o vers=4.2{port} {host}:{path} /mnt")
    }

    /// Stops answering, then lets the back ends store what they have in memory.
    pub async fn stop(self) {
        if let Some(registration) = self.registration {
            registration.unregister().await;
        }
        drop(self.server);
        for export in self.front.exports().iter() {
            export.fs.shutdown().await;
        }
    }
}

async fn register(server: &Server, listen: &Network) -> Option<Registration> {
    if listen.no_rpcbind || server.local_addr().ip().is_loopback() {
        return None;
    }
    Registration::register(server.local_addr().port(), !listen.no_udp).await.unwrap_or_else(|refused| {
        tracing::warn!("{refused}");
        None
    })
}

fn cannot_listen(address: SocketAddr, error: &std::io::Error) -> Failure {
    let way_out = match error.kind() {
        std::io::ErrorKind::AddrInUse if address.port() == 2049 => {
            "another server has the port (the kernel's nfsd?): stop it, or give --listen ADDR:PORT"
        }
        std::io::ErrorKind::AddrInUse => "another server has the port: stop it, or give --listen ADDR:PORT",
        std::io::ErrorKind::PermissionDenied => {
            "ports below 1024 are for root: give --listen ADDR:PORT with a higher one"
        }
        _ => "give --listen an address of this machine",
    };
    Failure(format!("cannot listen on {address}: {error}; {way_out}"))
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// SIGTERM, SIGINT, SIGQUIT and SIGHUP, listened for from the first moment: one that comes before anybody waits is not
/// lost. Left to themselves the last two would end the process at once, with what it has delayed, and with its mount.
pub struct End {
    signals: Vec<Signal>,
}

impl End {
    /// From now on these signals are ours; but SIGHUP is not if whoever has started us wants it ignored, as nohup(1) does.
    pub fn listen() -> Result<End, Failure> {
        let mut kinds = vec![SignalKind::terminate(), SignalKind::interrupt(), SignalKind::quit()];
        if !is_ignored(SignalKind::hangup()) {
            kinds.push(SignalKind::hangup());
        }
        let failed = |error: std::io::Error| Failure(format!("cannot listen for signals: {error}"));
        let signals = kinds.into_iter().map(signal).collect::<Result<_, _>>().map_err(failed)?;
        Ok(End { signals })
    }

    /// Waits until the process is told to end.
    pub async fn wait(&mut self) {
        std::future::poll_fn(|context| {
            let came = |signal: &mut Signal| signal.poll_recv(context).is_ready();
            if self.signals.iter_mut().any(came) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Did whoever has started this process want a signal ignored?
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}
