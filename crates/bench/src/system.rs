//! Systems under test: what stands between a client and the origin, started and driven in the same way.
//!
//! Each has a [`Relay`] of its own in front of the origin, which is the distance, and which counts what goes there.
//! Servers are processes, so that their CPU time and memory are theirs. Everything ends with its value.

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

pub use kind::Kind;
pub use leasehold::Hits;
pub(crate) use program::Program;
pub use program::Usage;

/// Why a system does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program did not start, or did not become ready.
    #[error("cannot start {program}: {why}")]
    Start {
        /// Which.
        program: String,
        /// In a line, with what it said.
        why: String,
    },
    /// A client could not be made.
    #[error("cannot mount {url}: {why}")]
    Mount {
        /// What.
        url: String,
        /// In a line.
        why: String,
    },
    /// The relay or a directory.
    #[error("{what}: {source}")]
    Io {
        /// What was wanted.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}

/// What all systems of a comparison have in common.
#[derive(Clone, Debug)]
pub struct TestBed {
    /// Clients and relays live in it.
    pub runtime: Runtime,
    /// The program `leasehold`.
    pub leasehold: PathBuf,
    /// A directory of this machine for everything that is made, by root for ganesha.
    pub directory: PathBuf,
    /// `3`, `4.1` or `4.2`.
    pub vers: String,
    /// The network between clients' side and origin.
    pub network: relay::Options,
    /// How long clients and proxies believe attributes, where counts must not depend on time.
    pub actimeo: Option<Duration>,
    /// Bytes of pages of a client.
    pub memory_bytes: usize,
    /// A directory that somebody has mounted, to be measured as it is.
    pub mounted: Option<PathBuf>,
    /// Ends everything before its time.
    pub interrupt: Interrupt,
}

impl TestBed {
    /// Of clients, with or without delegations.
    pub fn habits(&self, delegations: bool) -> Habits {
        let habits = Habits::linux(self.vers != "3");
        let habits = self.actimeo.map_or(habits, |timeout| habits.with_actimeo(timeout));
        Habits { delegations, memory_bytes: self.memory_bytes, ..habits }
    }

    /// The same, not to be interrupted: for what is done at the end.
    fn for_cleaning(&self) -> TestBed {
        TestBed { interrupt: Interrupt::default(), ..self.clone() }
    }

    /// A client of a server, below a directory of its export.
    pub fn client(&self, server: &Address, base: &str, habits: Habits) -> Result<Unmounted, Error> {
        self.interrupt.check().map_err(Error::io("no client"))?;
        let text = server.url(&self.vers, self.actimeo);
        let failed = |why: String| Error::Mount { url: text.clone(), why };
        let url = Url::parse(&text).map_err(|error| failed(error.to_string()))?;
        let origin =
            self.runtime.block_on(client::connect(&url)).map_err(|error| failed(error.to_string()))?;
        // Where the URL leaves the version to the server, the answer says whether opens are told.
        let habits = Habits { opens: origin.version() != "3", ..habits };
        let fs = origin.file_system();
        let client = Unmounted::new(self.runtime.clone(), fs, habits, base);
        client.map(|client| client.interrupted_by(&self.interrupt)).map_err(|error| failed(error.to_string()))
    }

    /// A relay to an address that is near: for those who do not reach it.
    ///
    /// # Errors
    /// There is no port for it.
    pub fn near(&self, target: SocketAddr) -> Result<Relay, Error> {
        let _entered = self.runtime.enter();
        let options = relay::Options { listen: self.network.listen, ..relay::Options::default() };
        Relay::start(target, relay::Options { udp: false, ..options })
            .map_err(Error::io("cannot start the relay"))
    }

    /// A relay to an address.
    fn relay(&self, target: &Address) -> Result<Relay, Error> {
        let _entered = self.runtime.enter();
        Relay::start(target.server, relay::Options { udp: false, source: target.source, ..self.network })
            .map_err(Error::io("cannot start the relay"))
    }

    /// A new directory with this name.
    pub fn subdirectory(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.directory.join(name);
        std::fs::create_dir_all(&path).map_err(Error::io(format!("cannot make {}", path.display())))?;
        Ok(path)
    }
}

/// An export of a server.
#[derive(Clone, Debug)]
pub struct Address {
    /// Where the server answers.
    pub server: SocketAddr,
    /// MOUNT, of version 3; the same port if not given.
    pub mountport: Option<u16>,
    /// What it exports.
    pub export: String,
    /// From which ports it is to be called.
    pub source: SourcePort,
    /// More options of its URL, each with `&` before it.
    pub options: String,
}

impl Address {
    /// As our client and proxy take it.
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
    /// Without any distance.
    pub address: Address,
    /// What it exports, if that is a directory of this machine.
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

    /// A server that runs already.
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

    /// What its process has used.
    fn usage(&self) -> Option<Usage> {
        self.program.as_ref().map(Program::usage)
    }
}

/// What was seen of a system between its start and a moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// At the origin.
    pub calls: Calls,
    /// To and from the origin.
    pub traffic: Traffic,
    /// Of each server process.
    pub usage: Vec<Usage>,
    /// Of our own cache.
    pub hits: Option<Hits>,
}

impl Observation {
    /// What was seen after `earlier`.
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

/// A client of the origin, and its way there. It goes first: without the way it could not take its leave.
pub struct Beside {
    /// The client.
    pub client: Arc<dyn Target>,
    _relay: Option<Relay>,
}

/// What a mount owes when it ends: the data, and the times that it has shown for it.
const STORING: [&str; 3] = ["WRITE", "COMMIT", "SETATTR"];

/// A running system.
#[derive(Debug)]
pub struct System<'g> {
    test_bed: &'g TestBed,
    origin: &'g Origin,
    kind: Kind,
    /// Its own directory.
    directory: PathBuf,
    /// To the origin; none without a network.
    relay: Option<Relay>,
    /// Where clients mount.
    front: Address,
    programs: Vec<Program>,
    /// How many clients it is to have.
    clients: usize,
    /// FUSE mounts, one for each client.
    mounted: Vec<PathBuf>,
}

impl<'g> System<'g> {
    /// Starts one, its caches empty, for so many clients. `name` is that of its directory.
    pub fn start(
        test_bed: &'g TestBed,
        origin: &'g Origin,
        kind: Kind,
        name: &str,
        clients: usize,
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
            clients,
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

    /// Starts what stands on the clients' side, over what it left on disk the last time.
    fn start_caches(&mut self) -> Result<(), Error> {
        let Some(relay) = &self.relay else { return Ok(()) };
        let (test_bed, directory) = (self.test_bed, &self.directory.clone());
        let far = self.origin.address.through(relay);
        match self.kind {
            Kind::Proxy => {
                let proxy = leasehold::proxy(test_bed, &far, directory)?;
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
                    let (program, mounted) = leasehold::mount(test_bed, &far, directory, number)?;
                    self.programs.push(program);
                    self.mounted.push(mounted);
                }
            }
            Kind::Local | Kind::Direct | Kind::DirectSync | Kind::Ganesha | Kind::Dir => {}
        }
        Ok(())
    }

    /// Ends what stands on the clients' side, in order, so that nothing that was delegated to it is left at the origin, and
    /// no mount without a server.
    fn end_caches(&mut self) {
        self.programs.drain(..).rev().for_each(Program::end);
        for mounted in self.mounted.drain(..) {
            // It fails where the program has unmounted.
            let mut command = std::process::Command::new("umount");
            let _ = command.arg("-l").arg(mounted).stderr(std::process::Stdio::null()).status();
        }
    }

    /// Ends what stands on the clients' side and starts it again.
    pub fn restart(&mut self) -> Result<(), Error> {
        if self.kind.caches() {
            self.end_caches();
            self.start_caches()?;
        }
        Ok(())
    }

    /// Where its clients mount.
    pub fn front(&self) -> &Address {
        &self.front
    }

    /// Between two passes: clients are mounted anew, and keep what is on their disks.
    pub fn next_pass(&mut self, restart: bool) -> Result<(), Error> {
        if restart || self.kind == Kind::Mount { self.restart() } else { Ok(()) }
    }

    /// A client that has just been mounted, working below a directory of the export.
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

    /// A client that does not go through the system, as far from the origin as it is.
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

    /// What was seen so far, before a pass: what processes take is told of the pass alone.
    pub fn observe_first(&self) -> Observation {
        self.programs.iter().chain(&self.origin.program).for_each(Program::forget_peak);
        self.observe()
    }

    /// What was seen so far.
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

    /// What was seen, once what is sent late has been sent: it belongs to what was done. A mount ends for it, since it may
    /// keep writes as long as nobody else wants the file.
    pub fn settled(&mut self) -> Observation {
        self.settle();
        let mut observation = self.observe();
        if self.kind == Kind::Mount {
            self.end_caches();
            let Some(relay) = &self.relay else { return observation };
            // What a client gives back when it goes is not counted of the others either. Bytes are not told apart by kind: a
            // mount's are with what it gives back.
            let late = relay.calls().since(&observation.calls).only(&STORING);
            observation.calls.add(&late);
            observation.traffic = relay.bytes();
        }
        observation
    }

    /// Waits until nothing has gone to the origin for a while.
    fn settle(&self) {
        let Some(relay) = &self.relay else { return };
        // A proxy closes a file a second after its last client.
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

/// Where the files of a system are to be put for its clients to find them below `base`: through the origin and without any
/// distance, or, for what has no network, in the directory that the system of that name will have.
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

/// Removes what was prepared and written below `base`, also after an interruption.
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

/// Why a kind of system cannot be measured here, if so.
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

/// A free port of loopback for TCP.
pub(crate) fn free_port() -> Result<SocketAddr, Error> {
    let bound =
        std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    bound.map_err(Error::io("no free port on loopback"))
}
