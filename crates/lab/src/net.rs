//! A network that can be slowed and cut: a TCP relay between a proxy and its origin, or between a guest and a server it cannot reach.
//!
//! Each direction of a connection is a reader and a writer with a bounded queue of (due time, bytes) between them: that is the delay.
//! A black hole stops the readers and writers where they stand, so that TCP's own windows fill up as they would; a reset ends the
//! connections with RST and closes the listener, as a host that is up without the service would answer. What passes is read along: a
//! relay counts the NFS calls, whoever answers them.

mod calls;
mod pump;

use crate::origin::{CallCounts, Origin};
use crate::session::Lab;
use calls::{Call, CallReader};
use pump::{Pump, Way};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long an attempt to reach the target may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// How a network fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Connections are reset and new ones refused.
    Reset,
    /// Nothing gets through and nobody is told; what was under way arrives after [`Relay::restore`].
    BlackHole,
}

/// A relay from an address of its own to a target; dropping it resets its connections.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// What the relay's threads share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes relayed: to the target, and from it.
    bytes: [AtomicU64; 2],
    connections: AtomicU64,
    nfs3_calls: Mutex<CallCounts>,
}

/// The program number of NFS.
const NFS: u32 = 100_003;

#[derive(Debug)]
struct State {
    target: SocketAddr,
    cut: Option<Cut>,
    ended: bool,
    delay: Duration,
    /// Counts the resets: a connection made before the last one is dead.
    resets: u64,
    live: Vec<Arc<[TcpStream; 2]>>,
}

impl Relay {
    /// Listens on a free port of `host` and relays to `target`, which need not answer yet.
    pub fn start(host: IpAddr, target: SocketAddr) -> Relay {
        let listener = listen(SocketAddr::new(host, 0));
        let address = listener.local_addr().unwrap_or_else(|error| panic!("lab: relay: {error}"));
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                target,
                cut: None,
                ended: false,
                delay: Duration::ZERO,
                resets: 0,
                live: Vec::new(),
            }),
            changed: Condvar::new(),
            bytes: Default::default(),
            connections: AtomicU64::new(0),
            nfs3_calls: Mutex::default(),
        });
        thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&shared, address, listener)
        });
        Relay { address, shared }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the network until [`Relay::restore`].
    pub fn cut(&self, cut: Cut) {
        let mut state = self.shared.locked();
        state.cut = Some(cut);
        if cut == Cut::Reset {
            state.reset();
        }
        drop(state);
        self.shared.changed.notify_all();
        if cut == Cut::Reset {
            wake(self.address);
        }
    }

    /// Ends a cut.
    pub fn restore(&self) {
        self.shared.locked().cut = None;
        self.shared.changed.notify_all();
    }

    /// Resets the connections there are and takes new ones at once.
    pub fn reset_connections(&self) {
        self.shared.locked().reset();
        self.shared.changed.notify_all();
    }

    /// Relays to another target: connections there are get reset, as by a server that was started again.
    pub fn retarget(&self, target: SocketAddr) {
        self.shared.locked().target = target;
        self.reset_connections();
    }

    /// Delays what passes from now on, in each direction.
    pub fn set_delay(&self, one_way: Duration) {
        self.shared.locked().delay = one_way;
    }

    /// Bytes relayed so far: to the target, and from it.
    pub fn bytes(&self) -> (u64, u64) {
        let [up, down] = &self.shared.bytes;
        (up.load(Ordering::Relaxed), down.load(Ordering::Relaxed))
    }

    /// NFS version 3 calls relayed so far, resent ones included.
    pub fn nfs3_calls(&self) -> CallCounts {
        self.shared.nfs3_calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let mut state = self.shared.locked();
        state.ended = true;
        state.reset();
        drop(state);
        self.shared.changed.notify_all();
        wake(self.address);
    }
}

impl Shared {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, calls: &[Call]) {
        let mut counts = self.nfs3_calls.lock().unwrap_or_else(PoisonError::into_inner);
        for call in calls.iter().filter(|call| (call.program, call.version) == (NFS, 3)) {
            counts.add(call.procedure);
        }
    }

    /// Waits while `unfit` says so of the state.
    fn wait_while(&self, unfit: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.locked(), unfit).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn reset(&mut self) {
        self.resets += 1;
        for pair in self.live.drain(..) {
            for stream in pair.iter() {
                // Lingering for no time at all makes the close a RST.
                let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }
}

/// Accepts connections, and closes the listener while the network resets. A black hole takes connections and leaves them lie.
fn accept(shared: &Arc<Shared>, address: SocketAddr, first: TcpListener) {
    let mut listener = Some(first);
    loop {
        {
            let state = shared.wait_while(|state| {
                let refusing = state.cut == Some(Cut::Reset) && !state.ended;
                if refusing {
                    listener = None;
                }
                refusing
            });
            if state.ended {
                return;
            }
        }
        let listening = listener.get_or_insert_with(|| listen(address));
        if let Ok((client, _)) = listening.accept() {
            let shared = Arc::clone(shared);
            thread::spawn(move || join(&shared, client));
        }
    }
}

/// Connects one client to the target and relays until either side ends.
fn join(shared: &Arc<Shared>, client: TcpStream) {
    let (resets, target) = {
        let state = shared.wait_while(|state| state.cut == Some(Cut::BlackHole) && !state.ended);
        if state.ended || state.cut.is_some() {
            return;
        }
        (state.resets, state.target)
    };
    let Ok(server) = TcpStream::connect_timeout(&target, CONNECT_PATIENCE) else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let pair = Arc::new([client, server]);
    {
        let mut state = shared.locked();
        if state.resets != resets {
            return;
        }
        state.live.retain(|pair| Arc::strong_count(pair) > 1);
        state.live.push(Arc::clone(&pair));
    }
    shared.connections.fetch_add(1, Ordering::Relaxed);
    let down = thread::spawn({
        let (shared, pair) = (Arc::clone(shared), Arc::clone(&pair));
        move || {
            Pump { shared: &shared, from: &pair[1], to: &pair[0], way: Way::Down, resets }.run();
        }
    });
    Pump { shared, from: &pair[0], to: &pair[1], way: Way::Up, resets }.run();
    let _ = down.join();
}

fn listen(address: SocketAddr) -> TcpListener {
    // A port that was just in use may take a moment to be free again.
    crate::session::wait_for(&format!("relay at {address}"), Duration::from_secs(10), || {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => None,
            bound => Some(bound.unwrap_or_else(|error| panic!("lab: relay at {address}: {error}"))),
        }
    })
}

/// Gets the accepting thread to look at the state.
fn wake(address: SocketAddr) {
    let _ = TcpStream::connect_timeout(&address, Duration::from_millis(200));
}

/// The relays between somebody and an origin: one to each of its ports.
#[derive(Debug)]
pub struct Link {
    nfs: Relay,
    mount: Option<Relay>,
    origin: Origin,
}

impl Link {
    /// Puts relays on the lab's address in front of `origin`.
    pub fn to(lab: &Lab, origin: &Origin) -> Link {
        let relay = |port| Relay::start(lab.address(), SocketAddr::new(origin.host, port));
        let nfs = relay(origin.port);
        let mount = (origin.mountport != origin.port).then(|| relay(origin.mountport));
        let port = nfs.address().port();
        let mountport = mount.as_ref().map_or(port, |relay| relay.address().port());
        let origin = Origin { host: lab.address(), port, mountport, export: origin.export.clone() };
        Link { nfs, mount, origin }
    }

    /// The origin as seen through the link.
    pub fn origin(&self) -> Origin {
        self.origin.clone()
    }

    /// The relay that NFS goes through.
    pub fn nfs(&self) -> &Relay {
        &self.nfs
    }

    /// NFS version 3 calls sent through the link so far, resent ones included.
    pub fn nfs3_calls(&self) -> CallCounts {
        self.nfs.nfs3_calls()
    }

    /// Cuts both until [`Link::restore`].
    pub fn cut(&self, cut: Cut) {
        self.each(|relay| relay.cut(cut));
    }

    /// Ends a cut.
    pub fn restore(&self) {
        self.each(Relay::restore);
    }

    /// Leads to where the origin is now.
    pub(crate) fn retarget(&self, origin: &Origin) {
        self.nfs.retarget(SocketAddr::new(origin.host, origin.port));
        if let Some(mount) = &self.mount {
            mount.retarget(SocketAddr::new(origin.host, origin.mountport));
        }
    }

    /// Delays both, in each direction.
    pub fn set_delay(&self, one_way: Duration) {
        self.each(|relay| relay.set_delay(one_way));
    }

    fn each(&self, act: impl Fn(&Relay)) {
        act(&self.nfs);
        self.mount.iter().for_each(act);
    }
}

#[cfg(test)]
mod tests;
