//! Systems under test: everything between a client and the origin, started and driven in the same way.
//!
//! Each system has its own [`Relay`] in front of the origin. The relay adds the distance and counts the calls
//! to the origin. Servers are processes, so that their CPU time and memory can be measured separately.
//! Everything that a value started ends when the value is dropped.

mod ganesha;
mod kind;
mod leasehold;
mod program;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::Url;
use rpc::SourcePort;
use tokio::runtime::Handle as Runtime;

use crate::interrupt::Interrupt;
use crate::relay::{self, Calls, Relay, Traffic};
use crate::target::{Forgetting, Habits, Mounted, Target, Unmounted};
use crate::workload::Workload;

pub use kind::Kind;
pub use leasehold::Hits;
pub(crate) use leasehold::status;
pub(crate) use program::Program;
pub use program::Usage;

/// Why a system does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program did not start, or did not become ready.
    #[error("cannot start {program}: {why}")]
    Start {
        /// Name of the program.
        program: String,
        /// The cause in one line, with the end of the program's log.
        why: String,
    },
    /// A client could not be made.
    #[error("cannot mount {url}: {why}")]
    Mount {
        /// The URL.
        url: String,
        /// The cause in one line.
        why: String,
    },
    /// The relay or a directory failed.
    #[error("{what}: {source}")]
    Io {
        /// The failed operation.
        what: String,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}

/// Settings and resources shared by all systems of a comparison.
#[derive(Clone, Debug)]
pub struct TestBed {
    /// The runtime of clients and relays.
    pub runtime: Runtime,
    /// The program `leasehold`.
    pub leasehold: PathBuf,
    /// A directory of this machine for all files. Root creates them for ganesha.
    pub directory: PathBuf,
    /// `3`, `4.1` or `4.2`.
    pub vers: String,
    /// The network between clients' side and origin.
    pub network: relay::Options,
    /// How long clients and proxies trust attributes, if counts must not depend on time.
    pub actimeo: Option<Duration>,
    /// Bytes of pages that a client may cache.
    pub memory_bytes: usize,
    /// A directory that the user has mounted, measured as it is.
    pub mounted: Option<PathBuf>,
    /// Ends the comparison early.
    pub interrupt: Interrupt,
}

impl TestBed {
    /// Behaviour of the clients, with or without delegations.
    pub fn habits(&self, delegations: bool) -> Habits {
        let habits = Habits::linux(self.vers != "3");
        let habits = self.actimeo.map_or(habits, |timeout| habits.with_actimeo(timeout));
        Habits { delegations, memory_bytes: self.memory_bytes, ..habits }
    }

    /// A copy that cannot be interrupted, for the cleanup.
    fn for_cleaning(&self) -> TestBed {
        TestBed { interrupt: Interrupt::default(), ..self.clone() }
    }

    /// Connects a client to a server; it works below the directory `base` of the export.
    pub fn client(&self, server: &Address, base: &str, habits: Habits) -> Result<Unmounted, Error> {
        self.interrupt.check().map_err(Error::io("no client"))?;
        let text = server.url(&self.vers, self.actimeo);
        let failed = |why: String| Error::Mount { url: text.clone(), why };
        let url = Url::parse(&text).map_err(|error| failed(error.to_string()))?;
        let origin =
            self.runtime.block_on(client::connect(&url)).map_err(|error| failed(error.to_string()))?;
        // If the URL lets the server choose the version, only the connection knows whether OPENs are sent.
        let habits = Habits { opens: origin.has_opens(), ..habits };
        let client = Unmounted::new(self.runtime.clone(), origin, habits, base);
        client.map(|client| client.interrupted_by(&self.interrupt)).map_err(|error| failed(error.to_string()))
    }

    /// A relay without delay to `target`, for clients that cannot reach `target` themselves.
    ///
    /// # Errors
    /// No free port.
    pub fn near(&self, target: SocketAddr) -> Result<Relay, Error> {
        let _entered = self.runtime.enter();
        let options = relay::Options { listen: self.network.listen, ..relay::Options::default() };
        Relay::start(target, relay::Options { udp: false, ..options })
            .map_err(Error::io("cannot start the relay"))
    }

    /// A relay with the properties of the network.
    fn relay(&self, target: &Address) -> Result<Relay, Error> {
        let _entered = self.runtime.enter();
        Relay::start(target.server, relay::Options { udp: false, source: target.source, ..self.network })
            .map_err(Error::io("cannot start the relay"))
    }

    /// Makes a directory of this name, unless it exists.
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.directory.join(name);
        std::fs::create_dir_all(&path).map_err(Error::io(format!("cannot make {}", path.display())))?;
        Ok(path)
    }
}

/// An export of a server.
#[derive(Clone, Debug)]
pub struct Address {
    /// Address of the server.
    pub server: SocketAddr,
    /// Port of MOUNT for version 3; by default the same port.
    pub mountport: Option<u16>,
    /// Path of the export.
    pub export: String,
    /// Source ports that the server requires.
    pub source: SourcePort,
    /// Further options of its URL, each with a leading `&`.
    pub options: String,
}

impl Address {
    /// The URL for our client and proxy.
    pub fn url(&self, vers: &str, actimeo: Option<Duration>) -> String {
        let Address { server, mountport, export, source, options } = self;
        let from = if *source == SourcePort::Any { "&noresvport" } else { "" };
        let mountport = mountport.map_or_else(String::new, |port| format!("&mountport={port}"));
        let timeouts = actimeo.map_or_else(String::new, |timeout| format!("&actimeo={}", timeout.as_secs()));
        format!("nfs://{server}{export}?vers={vers}{from}{mountport}{timeouts}{options}")
    }

    /// The same export through a relay.
    fn through(&self, relay: &Relay) -> Address {
        Address { server: relay.local_addr(), ..self.clone() }
    }
}

/// The origin: a server of our own over a new directory, or the user's.
#[derive(Debug)]
pub struct Origin {
    /// Its address without the network.
    pub address: Address,
    /// The exported directory, if it is on this machine.
    pub directory: Option<PathBuf>,
    program: Option<Program>,
}

impl Origin {
    /// `leasehold serve` over a new directory.
    pub fn serve(test_bed: &TestBed) -> Result<Origin, Error> {
        let directory = test_bed.subdirectory("export")?;
        let program = leasehold::serve(test_bed, &directory)?;
        let address = program.address(leasehold::EXPORT);
        Ok(Origin { address, directory: Some(directory), program: Some(program) })
    }

    /// Uses a server that runs already.
    pub fn against(test_bed: &TestBed, url: &Url) -> Result<Origin, Error> {
        let port = url.options.port.or(url.port).unwrap_or(2049);
        let wanted = (url.host.as_str(), port);
        let found = test_bed
            .runtime
            .block_on(async { tokio::net::lookup_host(wanted).await.map(|mut all| all.next()) });
        let unknown =
            || Error::Mount { url: url.to_string(), why: format!("the host {} has no address", url.host) };
        let server = found.ok().flatten().ok_or_else(unknown)?;
        let address = Address {
            server,
            mountport: url.options.mountport,
            export: url.export_text(),
            source: if url.options.resvport { SourcePort::Reserved } else { SourcePort::Any },
            options: String::new(),
        };
        Ok(Origin { address, directory: None, program: None })
    }

    /// Resources used by its process.
    fn usage(&self) -> Option<Usage> {
        self.program.as_ref().map(Program::usage)
    }
}

/// Counters of a system from its start to one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Calls at the origin.
    pub calls: Calls,
    /// Bytes to and from the origin.
    pub traffic: Traffic,
    /// Resources used by each server process.
    pub usage: Vec<Usage>,
    /// Hits of our own cache.
    pub hits: Option<Hits>,
}

impl Observation {
    /// The difference to `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Observation) -> Observation {
        let usage = self.usage.iter().map(|now| {
            earlier
                .usage
                .iter()
                .find(|then| then.name == now.name)
                .map_or_else(|| now.clone(), |then| now.since(then))
        });
        Observation {
            calls: self.calls.since(&earlier.calls),
            traffic: Traffic {
                up: self.traffic.up - earlier.traffic.up,
                down: self.traffic.down - earlier.traffic.down,
            },
            usage: usage.collect(),
            hits: self.hits.map(|now| now.since(earlier.hits.unwrap_or_default())),
        }
    }
}

/// A client that goes directly to the origin, and its relay. The client is dropped first: without the relay
/// it could not close its state at the server.
pub struct Beside {
    /// The client.
    pub client: Arc<dyn Target>,
    _relay: Option<Relay>,
}

/// Calls that a mount may still owe when it ends: delayed data, and the times of those writes that it has
/// already reported.
const STORING: [&str; 3] = ["WRITE", "COMMIT", "SETATTR"];

/// A running system.
#[derive(Debug)]
pub struct System<'g> {
    test_bed: &'g TestBed,
    origin: &'g Origin,
    kind: Kind,
    /// Directory of this system.
    directory: PathBuf,
    /// Relay to the origin; `None` without a network.
    relay: Option<Relay>,
    /// The address that clients mount.
    front: Address,
    programs: Vec<Program>,
    /// Number of clients.
    clients: usize,
    /// Caches may fetch ahead of readers.
    guesses: bool,
    /// FUSE mounts, one per client.
    mounted: Vec<PathBuf>,
}

impl<'g> System<'g> {
    /// Starts a system with empty caches, for the clients of a workload. `name` is the name of its directory.
    pub fn start(
        test_bed: &'g TestBed,
        origin: &'g Origin,
        kind: Kind,
        name: &str,
        workload: &Workload,
    ) -> Result<System<'g>, Error> {
        let directory = test_bed.subdirectory(name)?;
        let front = origin.address.clone();
        let mut system = System {
            test_bed,
            origin,
            kind,
            directory,
            relay: None,
            front,
            programs: Vec::new(),
            clients: workload.clients,
            guesses: workload.guesses,
            mounted: Vec::new(),
        };
        if kind == Kind::Ganesha {
            let export = origin.directory.as_deref().unwrap_or(Path::new("/nonexistent"));
            let ganesha = ganesha::server(test_bed, export, &system.directory)?;
            system.front = ganesha.address(ganesha::EXPORT);
            system.programs.push(ganesha);
        }
        if !matches!(kind, Kind::Local | Kind::Dir) {
            let relay = test_bed.relay(&system.front)?;
            system.front = system.front.through(&relay);
            system.relay = Some(relay);
        }
        system.start_caches()?;
        Ok(system)
    }

    /// Starts the programs on the clients' side. They use the disk cache of their previous run.
    fn start_caches(&mut self) -> Result<(), Error> {
        let Some(relay) = &self.relay else { return Ok(()) };
        let (test_bed, directory) = (self.test_bed, &self.directory.clone());
        let far = self.origin.address.through(relay);
        match self.kind {
            Kind::Proxy => {
                let proxy = leasehold::proxy(test_bed, &far, directory, self.guesses)?;
                self.front = proxy.address(&far.export);
                self.programs.push(proxy);
            }
            Kind::GaneshaProxy => {
                let proxy = ganesha::proxy(test_bed, &far, directory)?;
                self.front = proxy.address(ganesha::EXPORT);
                self.programs.push(proxy);
            }
            Kind::Mount => {
                for number in 0..self.clients {
                    let (program, mounted) =
                        leasehold::mount(test_bed, &far, (directory, number), self.guesses)?;
                    self.programs.push(program);
                    self.mounted.push(mounted);
                }
            }
            Kind::Local | Kind::Direct | Kind::DirectSync | Kind::Ganesha | Kind::Dir => {}
        }
        Ok(())
    }

    /// Ends the programs on the clients' side in order. So they return all their delegations to the origin,
    /// and no mount is left without a server.
    fn end_caches(&mut self) {
        self.programs.drain(..).rev().for_each(Program::end);
        for mounted in self.mounted.drain(..) {
            // This fails if the program has already unmounted.
            let mut command = std::process::Command::new("umount");
            let _ = command.arg("-l").arg(mounted).stderr(std::process::Stdio::null()).status();
        }
    }

    /// Restarts the programs on the clients' side.
    pub fn restart(&mut self) -> Result<(), Error> {
        if self.kind.caches() {
            self.end_caches();
            self.start_caches()?;
        }
        Ok(())
    }

    /// The address that its clients mount.
    pub fn front(&self) -> &Address {
        &self.front
    }

    /// Prepares the next pass: clients are mounted anew, and keep their disk caches.
    pub fn next_pass(&mut self, restart: bool) -> Result<(), Error> {
        if restart || self.kind == Kind::Mount { self.restart() } else { Ok(()) }
    }

    /// A freshly mounted client that works below the directory `base` of the export.
    pub fn client(&self, number: usize, base: &str, delegations: bool) -> Result<Arc<dyn Target>, Error> {
        let habits = self.test_bed.habits(delegations);
        let habits = Habits { synchronous: self.kind == Kind::DirectSync, ..habits };
        let at_home = || Mounted::new(self.directory.join(base), Forgetting::Everything);
        Ok(match (self.kind, &self.test_bed.mounted, self.mounted.get(number)) {
            (Kind::Local, ..) => Arc::new(at_home()),
            (Kind::Dir, Some(mounted), _) => {
                Arc::new(Mounted::new(mounted.join(base), Forgetting::WhatWasOpened))
            }
            (.., Some(mounted)) => {
                let cache = leasehold::cache_directory(&self.directory, number);
                Arc::new(Mounted::new(mounted.join(base), Forgetting::WhatWasOpened).with_cache(cache))
            }
            _ => Arc::new(self.test_bed.client(&self.front, base, habits)?),
        })
    }

    /// A client that does not go through the system. Its distance to the origin is that of the system.
    pub fn beside(&self, base: &str) -> Result<Beside, Error> {
        if matches!(self.kind, Kind::Local | Kind::Dir) {
            return Ok(Beside { client: self.client(0, base, false)?, _relay: None });
        }
        let target = match self.kind {
            Kind::Ganesha => self.programs.first().map(|ganesha| ganesha.address(ganesha::EXPORT)),
            _ => None,
        };
        let target = target.unwrap_or_else(|| self.origin.address.clone());
        let relay = self.test_bed.relay(&target)?;
        let client = self.test_bed.client(&target.through(&relay), base, self.test_bed.habits(false))?;
        Ok(Beside { client: Arc::new(client), _relay: Some(relay) })
    }

    /// Calls at the origin so far, without upkeep.
    pub fn calls(&self) -> u64 {
        self.relay.as_ref().map_or(0, |relay| relay.calls().total_of_work())
    }

    /// The observation before a pass. Resets the peaks, so that memory is measured for the pass alone.
    pub fn observe_first(&self) -> Observation {
        self.programs.iter().chain(&self.origin.program).for_each(Program::forget_peak);
        self.observe()
    }

    /// The observation so far.
    pub fn observe(&self) -> Observation {
        let mut observation = Observation::default();
        if let Some(relay) = &self.relay {
            (observation.calls, observation.traffic) = (relay.calls(), relay.bytes());
        }
        observation.usage = self.programs.iter().map(Program::usage).collect();
        if !matches!(self.kind, Kind::Ganesha | Kind::Local | Kind::Dir) {
            observation.usage.extend(self.origin.usage());
        }
        let caches = match self.kind {
            Kind::Proxy => 1,
            Kind::Mount => self.clients,
            _ => 0,
        };
        let hits = (0..caches)
            .filter_map(|number| leasehold::hits(&leasehold::cache_directory(&self.directory, number)));
        observation.hits = hits.reduce(Hits::and);
        observation
    }

    /// The observation after delayed operations have been sent, because they belong to the workload. A mount
    /// must end for this: it may keep writes as long as no other client wants the file.
    pub fn settled(&mut self) -> Observation {
        self.settle();
        let mut observation = self.observe();
        if self.kind == Kind::Mount {
            self.end_caches();
            let Some(relay) = &self.relay else { return observation };
            // Do not count calls of the shutdown, because they are not counted for other systems either.
            // Bytes are not counted by kind, so those of a mount include its shutdown.
            let late = relay.calls().since(&observation.calls).only(&STORING);
            observation.calls.add(&late);
            observation.traffic = relay.bytes();
        }
        observation
    }

    /// Waits until no call has gone to the origin for a while.
    fn settle(&self) {
        let Some(relay) = &self.relay else { return };
        // A proxy closes a file one second after its last client.
        const QUIET: Duration = Duration::from_millis(1300);
        const PATIENCE: Duration = Duration::from_secs(15);
        let started = Instant::now();
        let (mut last, mut since) = (relay.calls().total_of_work(), Instant::now());
        let waits = || started.elapsed() < PATIENCE && !self.test_bed.interrupt.is_told();
        while since.elapsed() < QUIET + self.test_bed.network.rtt && waits() {
            std::thread::sleep(Duration::from_millis(50));
            let now = relay.calls().total_of_work();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
    }
}

/// The target for the files of a system, so that its clients find them below `base`. It is the origin without
/// the network. For a system without a network it is the directory that the system of that name will use.
pub fn preparer(
    test_bed: &TestBed,
    origin: &Origin,
    kind: Kind,
    name: &str,
    base: &str,
) -> Result<Arc<dyn Target>, Error> {
    if kind == Kind::Local {
        let directory = test_bed.subdirectory(&format!("{name}/{base}"))?;
        return Ok(Arc::new(Mounted::new(directory, Forgetting::Everything)));
    }
    if let (Kind::Dir, Some(mounted)) = (kind, &test_bed.mounted) {
        let directory = mounted.join(base);
        std::fs::create_dir_all(&directory)
            .map_err(Error::io(format!("cannot make {}", directory.display())))?;
        return Ok(Arc::new(Mounted::new(directory, Forgetting::WhatWasOpened)));
    }
    let root = test_bed.client(&origin.address, "", test_bed.habits(false))?;
    crate::target::make_all(&root, base).map_err(Error::io(format!("cannot make {base} on the origin")))?;
    drop(root);
    Ok(Arc::new(test_bed.client(&origin.address, base, test_bed.habits(false))?))
}

/// Removes everything that was prepared and written below `base`. Works after an interruption too.
pub fn clean(test_bed: &TestBed, origin: &Origin, base: &str) -> Result<(), Error> {
    let failed = || Error::io(format!("cannot remove {base} from the origin"));
    let Some(directory) = test_bed.mounted.as_ref().or(origin.directory.as_ref()) else {
        let test_bed = test_bed.for_cleaning();
        let root = test_bed.client(&origin.address, "", test_bed.habits(false))?;
        return crate::target::remove_all(&root, base).map_err(failed());
    };
    match std::fs::remove_dir_all(directory.join(base)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed()(error)),
        _ => Ok(()),
    }
}

impl Drop for System<'_> {
    fn drop(&mut self) {
        self.end_caches();
    }
}

/// The reason why a kind of system cannot be measured here, if there is one.
pub fn missing(test_bed: &TestBed, kind: Kind, against: bool) -> Option<String> {
    let root = rustix::process::geteuid().is_root();
    match kind {
        Kind::Local | Kind::Direct | Kind::DirectSync | Kind::Proxy | Kind::Dir => None,
        Kind::Mount if !leasehold::has_mount(&test_bed.leasehold) => {
            Some("this build has no `mount`".to_owned())
        }
        Kind::Mount => (!root).then(|| "mounting wants root".to_owned()),
        Kind::Ganesha if against => {
            Some("it serves a directory of this machine, and --against names a server".to_owned())
        }
        Kind::Ganesha | Kind::GaneshaProxy if test_bed.vers == "3" => {
            Some("it wants an rpcbind for version 3: measure it with --vers 4.2".to_owned())
        }
        Kind::Ganesha | Kind::GaneshaProxy if !root => Some("it wants root".to_owned()),
        Kind::Ganesha => ganesha::missing("libfsalvfs.so", "nfs-ganesha nfs-ganesha-vfs"),
        Kind::GaneshaProxy => ganesha::missing("libfsalproxy_v4.so", "nfs-ganesha nfs-ganesha-proxy-v4"),
    }
}

/// A free TCP port of the loopback address.
pub(crate) fn free_port() -> Result<SocketAddr, Error> {
    let bound =
        std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    bound.map_err(Error::io("no free port on loopback"))
}
