//! A network that can be slowed and cut: a TCP relay between a proxy and its origin, or between a guest and a
//! server that it cannot reach.
//!
//! Each direction of a connection has a reader and a writer. Between them is a bounded queue of (due time,
//! bytes), which makes the delay. A black hole stops readers and writers, so that TCP's own windows fill up
//! as on a real network. A reset ends connections with RST and closes the listener, like a running host whose
//! service is down. The relay also parses the traffic and counts NFS calls, whatever server answers them.

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

/// How long connecting to the target may take.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// How a network fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Connections are reset and new ones refused.
    Reset,
    /// No data gets through and neither side gets an error. Data in flight arrives after [`Relay::restore`].
    BlackHole,
}

/// A relay from its own address to a target. Dropping it resets its connections.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// State shared by the relay's threads.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes relayed to the target and from it.
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
    /// Number of resets so far. A connection made before the last reset is dead.
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

    /// The address that the relay listens on.
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

    /// Resets existing connections, and accepts new ones at once.
    pub fn reset_connections(&self) {
        self.shared.locked().reset();
        self.shared.changed.notify_all();
    }

    /// Relays to another target. Resets existing connections, like a server that restarts.
    pub fn retarget(&self, target: SocketAddr) {
        self.shared.locked().target = target;
        self.reset_connections();
    }

    /// Sets the delay in each direction for data that arrives from now on.
    pub fn set_delay(&self, one_way: Duration) {
        self.shared.locked().delay = one_way;
    }

    /// Bytes relayed to the target and from it so far.
    pub fn bytes(&self) -> (u64, u64) {
        let [up, down] = &self.shared.bytes;
        (up.load(Ordering::Relaxed), down.load(Ordering::Relaxed))
    }

    /// NFS version 3 calls relayed so far, including retransmissions.
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

    /// Waits while `unfit` returns true for the state.
    fn wait_while(&self, unfit: impl FnMut(&mut State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.locked(), unfit).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn reset(&mut self) {
        self.resets += 1;
        for pair in self.live.drain(..) {
            for stream in pair.iter() {
                // A linger time of zero makes the close a RST.
                let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
    }
}

/// Accepts connections. Closes the listener while the network resets. A black hole accepts connections and
/// does not serve them.
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

/// Connects one client to the target, and relays until either side ends.
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
    // A port that was in use a moment ago may take some time to become free.
    crate::session::wait_for(&format!("relay at {address}"), Duration::from_secs(10), || {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => None,
            bound => Some(bound.unwrap_or_else(|error| panic!("lab: relay at {address}: {error}"))),
        }
    })
}

/// Makes the accepting thread check the state.
fn wake(address: SocketAddr) {
    let _ = TcpStream::connect_timeout(&address, Duration::from_millis(200));
}

/// The relays in front of an origin, one for each of its ports.
#[derive(Debug)]
pub struct Link {
    nfs: Relay,
    mount: Option<Relay>,
    origin: Origin,
}

impl Link {
    /// Starts relays on the lab's address in front of `origin`.
    pub fn to(lab: &Lab, origin: &Origin) -> Link {
        let relay = |port| Relay::start(lab.address(), SocketAddr::new(origin.host, port));
        let nfs = relay(origin.port);
        let mount = (origin.mountport != origin.port).then(|| relay(origin.mountport));
        let port = nfs.address().port();
        let mountport = mount.as_ref().map_or(port, |relay| relay.address().port());
        let origin = Origin { host: lab.address(), port, mountport, export: origin.export.clone() };
        Link { nfs, mount, origin }
    }

    /// The origin as reached through the link.
    pub fn origin(&self) -> Origin {
        self.origin.clone()
    }

    /// The relay for NFS.
    pub fn nfs(&self) -> &Relay {
        &self.nfs
    }

    /// NFS version 3 calls sent through the link so far, including retransmissions.
    pub fn nfs3_calls(&self) -> CallCounts {
        self.nfs.nfs3_calls()
    }

    /// Cuts both relays until [`Link::restore`].
    pub fn cut(&self, cut: Cut) {
        self.each(|relay| relay.cut(cut));
    }

    /// Ends a cut.
    pub fn restore(&self) {
        self.each(Relay::restore);
    }

    /// Relays to the origin's new address.
    pub(crate) fn retarget(&self, origin: &Origin) {
        self.nfs.retarget(SocketAddr::new(origin.host, origin.port));
        if let Some(mount) = &self.mount {
            mount.retarget(SocketAddr::new(origin.host, origin.mountport));
        }
    }

    /// Sets the delay of both relays in each direction.
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
