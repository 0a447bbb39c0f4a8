//! Systems under test: what stands between a client and the origin, started and driven in the same way.
//!
//! Each has a [`Relay`] of its own in front of the origin, which is the distance, and which counts what goes there.
//! Servers are processes, so that their CPU time and memory are theirs. Everything ends with its value.

mod ganesha;
mod leasehold;
mod program;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::Url;
use tokio::runtime::Handle as Runtime;

use crate::relay::{self, Calls, Relay, Traffic};
use crate::target::{Habits, Mounted, Target, Unmounted};

pub use leasehold::Hits;
pub(crate) use program::Program;
pub use program::Usage;

/// A kind of system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A directory of this machine: what no network can be faster than.
    Local,
    /// Clients of the origin.
    Direct,
    /// `leasehold proxy` on the clients' side.
    Proxy,
    /// `leasehold mount` on the client.
    Mount,
    /// nfs-ganesha as the origin, over the same directory.
    Ganesha,
    /// nfs-ganesha's proxy on the clients' side.
    GaneshaProxy,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] =
        [Kind::Local, Kind::Direct, Kind::Proxy, Kind::Mount, Kind::Ganesha, Kind::GaneshaProxy];

    /// On the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Local => "local",
            Kind::Direct => "direct",
            Kind::Proxy => "proxy",
            Kind::Mount => "mount",
            Kind::Ganesha => "ganesha",
            Kind::GaneshaProxy => "ganesha-proxy",
        }
    }

    /// Has something to keep between two passes.
    pub fn caches(self) -> bool {
        matches!(self, Kind::Proxy | Kind::Mount | Kind::GaneshaProxy)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;
    fn from_str(text: &str) -> Result<Kind, String> {
        Kind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let known = Kind::ALL.map(Kind::name).join(", ");
            format!("`{text}` is no system: known are {known}")
        })
    }
}

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
pub struct Ground {
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
}

impl Ground {
    fn habits(&self, delegations: bool) -> Habits {
        let habits = Habits::linux(self.vers != "3");
        let habits = self.actimeo.map_or(habits, |timeout| habits.with_actimeo(timeout));
        Habits { delegations, memory_bytes: self.memory_bytes, ..habits }
    }

    /// A client of a server, below a directory of its export.
    pub fn client(&self, server: &Address, base: &str, delegations: bool) -> Result<Unmounted, Error> {
        let text = server.url(&self.vers, self.actimeo);
        let failed = |why: String| Error::Mount { url: text.clone(), why };
        let url = Url::parse(&text).map_err(|error| failed(error.to_string()))?;
        let origin =
            self.runtime.block_on(client::connect(&url)).map_err(|error| failed(error.to_string()))?;
        // Where the URL leaves the version to the server, the answer says whether opens are told.
        let habits = Habits { opens: origin.version() != "3", ..self.habits(delegations) };
        let fs = origin.file_system();
        Unmounted::new(self.runtime.clone(), fs, habits, base).map_err(|error| failed(error.to_string()))
    }

    /// A relay to an address.
    fn relay(&self, target: SocketAddr) -> Result<Relay, Error> {
        let _entered = self.runtime.enter();
        Relay::start(target, relay::Options { udp: false, ..self.network })
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
    /// More options of its URL, each with `&` before it.
    pub options: String,
}

impl Address {
    /// As our client and proxy take it.
    pub fn url(&self, vers: &str, actimeo: Option<Duration>) -> String {
        let Address { server, mountport, export, options } = self;
        let mountport = mountport.map_or_else(String::new, |port| format!("&mountport={port}"));
        let timeouts = actimeo.map_or_else(String::new, |timeout| format!("&actimeo={}", timeout.as_secs()));
        format!("nfs://{server}{export}?vers={vers}&noresvport{mountport}{timeouts}{options}")
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
    pub fn serve(ground: &Ground) -> Result<Origin, Error> {
        let directory = ground.subdirectory("export")?;
        let program = leasehold::serve(ground, &directory)?;
        let address = program.address(leasehold::EXPORT);
        Ok(Origin { address, directory: Some(directory), program: Some(program) })
    }

    /// A server that runs already.
    pub fn against(ground: &Ground, url: &Url) -> Result<Origin, Error> {
        let port = url.options.port.or(url.port).unwrap_or(2049);
        let wanted = (url.host.as_str(), port);
        let found = ground
            .runtime
            .block_on(async { tokio::net::lookup_host(wanted).await.map(|mut all| all.next()) });
        let unknown =
            || Error::Mount { url: url.to_string(), why: format!("the host {} has no address", url.host) };
        let server = found.ok().flatten().ok_or_else(unknown)?;
        let address = Address {
            server,
            mountport: url.options.mountport,
            export: url.export_text(),
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

/// A running system.
#[derive(Debug)]
pub struct System<'g> {
    ground: &'g Ground,
    origin: &'g Origin,
    kind: Kind,
    /// Its own directory.
    directory: PathBuf,
    /// To the origin; none without a network.
    relay: Option<Relay>,
    /// Where clients mount.
    front: Address,
    programs: Vec<Program>,
    /// A FUSE mount.
    mounted: Option<PathBuf>,
}

impl<'g> System<'g> {
    /// Starts one, its caches empty. `name` is that of its directory.
    pub fn start(
        ground: &'g Ground,
        origin: &'g Origin,
        kind: Kind,
        name: &str,
    ) -> Result<System<'g>, Error> {
        let directory = ground.subdirectory(name)?;
        let front = origin.address.clone();
        let mut system = System {
            ground,
            origin,
            kind,
            directory,
            relay: None,
            front,
            programs: Vec::new(),
            mounted: None,
        };
        if kind == Kind::Ganesha {
            let export = origin.directory.as_deref().unwrap_or(Path::new("/nonexistent"));
            let ganesha = ganesha::server(ground, export, &system.directory)?;
            system.front = ganesha.address(ganesha::EXPORT);
            system.programs.push(ganesha);
        }
        if kind != Kind::Local {
            let relay = ground.relay(system.front.server)?;
            system.front = system.front.through(&relay);
            system.relay = Some(relay);
        }
        system.start_caches()?;
        Ok(system)
    }

    /// Starts what stands on the clients' side, over what it left on disk the last time.
    fn start_caches(&mut self) -> Result<(), Error> {
        let System { ground, directory, relay: Some(relay), .. } = &*self else { return Ok(()) };
        let far = self.origin.address.through(relay);
        match self.kind {
            Kind::Proxy => {
                let proxy = leasehold::proxy(ground, &far, directory)?;
                self.front = proxy.address(&far.export);
                self.programs.push(proxy);
            }
            Kind::GaneshaProxy => {
                let proxy = ganesha::proxy(ground, &far, directory)?;
                self.front = proxy.address(ganesha::EXPORT);
                self.programs.push(proxy);
            }
            Kind::Mount => {
                let (program, mounted) = leasehold::mount(ground, &far, directory)?;
                self.programs.push(program);
                self.mounted = Some(mounted);
            }
            Kind::Local | Kind::Direct | Kind::Ganesha => {}
        }
        Ok(())
    }

    /// Ends what stands on the clients' side and starts it again.
    pub fn restart(&mut self) -> Result<(), Error> {
        if self.kind.caches() {
            self.programs.drain(..).for_each(Program::end);
            self.start_caches()?;
        }
        Ok(())
    }

    /// A client that has just been mounted, working below a directory of the export.
    pub fn client(&self, base: &str, delegations: bool) -> Result<Arc<dyn Target>, Error> {
        match (&self.kind, &self.mounted) {
            (Kind::Local, _) => Ok(Arc::new(Mounted::new(self.directory.join(base)))),
            (_, Some(mounted)) => Ok(Arc::new(Mounted::new(mounted.join(base)))),
            _ => Ok(Arc::new(self.ground.client(&self.front, base, delegations)?)),
        }
    }

    /// A client that does not go through the system, as far from the origin as it is.
    pub fn beside(&self, base: &str) -> Result<(Option<Relay>, Arc<dyn Target>), Error> {
        if self.kind == Kind::Local {
            return Ok((None, self.client(base, false)?));
        }
        let target = match self.kind {
            Kind::Ganesha => self.programs.first().map(|ganesha| ganesha.address(ganesha::EXPORT)),
            _ => None,
        };
        let target = target.unwrap_or_else(|| self.origin.address.clone());
        let relay = self.ground.relay(target.server)?;
        let client = self.ground.client(&target.through(&relay), base, false)?;
        Ok((Some(relay), Arc::new(client)))
    }

    /// What was seen so far.
    pub fn observe(&self) -> Observation {
        let mut observation = Observation::default();
        if let Some(relay) = &self.relay {
            (observation.calls, observation.traffic) = (relay.calls(), relay.bytes());
        }
        observation.usage = self.programs.iter().map(Program::usage).collect();
        if self.kind != Kind::Ganesha && self.kind != Kind::Local {
            observation.usage.extend(self.origin.usage());
        }
        if matches!(self.kind, Kind::Proxy | Kind::Mount) {
            observation.hits = leasehold::hits(&leasehold::cache_directory(&self.directory));
        }
        observation
    }

    /// Waits until nothing has gone to the origin for a while: what is sent late belongs to what was done.
    pub fn settle(&self) {
        let Some(relay) = &self.relay else { return };
        // A proxy closes a file a second after its last client.
        const QUIET: Duration = Duration::from_millis(1300);
        const PATIENCE: Duration = Duration::from_secs(15);
        let started = Instant::now();
        let (mut last, mut since) = (relay.calls().total_of_work(), Instant::now());
        while since.elapsed() < QUIET + self.ground.network.rtt && started.elapsed() < PATIENCE {
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
    ground: &Ground,
    origin: &Origin,
    kind: Kind,
    name: &str,
    base: &str,
) -> Result<Arc<dyn Target>, Error> {
    if kind == Kind::Local {
        return Ok(Arc::new(Mounted::new(ground.subdirectory(&format!("{name}/{base}"))?)));
    }
    let root = ground.client(&origin.address, "", false)?;
    crate::target::make_all(&root, base).map_err(Error::io(format!("cannot make {base} on the origin")))?;
    drop(root);
    Ok(Arc::new(ground.client(&origin.address, base, false)?))
}

/// Removes what was prepared and written below `base`.
pub fn clean(ground: &Ground, origin: &Origin, base: &str) -> Result<(), Error> {
    let failed = || Error::io(format!("cannot remove {base} from the origin"));
    let Some(directory) = &origin.directory else {
        let root = ground.client(&origin.address, "", false)?;
        return crate::target::remove_all(&root, base).map_err(failed());
    };
    match std::fs::remove_dir_all(directory.join(base)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed()(error)),
        _ => Ok(()),
    }
}

impl Drop for System<'_> {
    /// In order, so that nothing that was delegated to it is left at the origin, and no mount without a server.
    fn drop(&mut self) {
        self.programs.drain(..).rev().for_each(Program::end);
        if let Some(mounted) = &self.mounted {
            // It fails where the program has unmounted.
            let mut command = std::process::Command::new("umount");
            let _ = command.arg("-l").arg(mounted).stderr(std::process::Stdio::null()).status();
        }
    }
}

/// Why a kind of system cannot be measured here, if so.
pub fn missing(ground: &Ground, kind: Kind, against: bool) -> Option<String> {
    let root = rustix::process::geteuid().is_root();
    match kind {
        Kind::Local | Kind::Direct | Kind::Proxy => None,
        Kind::Mount if !leasehold::has_mount(&ground.leasehold) => {
            Some("this build has no `mount`".to_owned())
        }
        Kind::Mount => (!root).then(|| "mounting wants root".to_owned()),
        Kind::Ganesha if against => {
            Some("it serves a directory of this machine, and --against names a server".to_owned())
        }
        Kind::Ganesha | Kind::GaneshaProxy if ground.vers == "3" => {
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
