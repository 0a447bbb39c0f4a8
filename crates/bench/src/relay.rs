//! A network between two ends of one machine: a relay that delays, caps, counts, and can be cut or lost now and then.
//!
//! What comes in on one side leaves on the other half a round trip later, in order, as it would on a long wire. Each
//! direction of the relay is one [`Line`], shared by all connections: its bandwidth is theirs together.
//! A TCP connection is taken apart and joined anew, so that each side acknowledges to the relay at once: losses and
//! congestion are not modelled. Bytes under way are bounded for each direction of each connection; beyond the bound
//! nothing more is read, and TCP's own window tells the sender. Datagrams beyond it are lost. Jitter delays and never
//! reorders, as queues on the way do. What passes is read along, and NFS calls are counted by kind ([`Calls`]).
//! At its far end there may be a server of limited capacity, which relays share ([`Station`]).

mod alarm;
mod datagram;
mod line;
mod outage;
mod preset;
mod station;
mod stream;
mod tap;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpc::SourcePort;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::random::Random;

pub use outage::Outages;
pub use preset::{Preset, parse_rtt};
pub use station::{MACKLEM, Served, Station};
pub use tap::Calls;

use line::{Jitter, Line};
use tap::Tap;

/// The most that may be under way in each direction of a connection.
const BUFFER_MAX_BYTES: usize = 1 << 30;

/// What a relay is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where it listens; port 0 takes a free one, the same for TCP and UDP.
    pub listen: SocketAddr,
    /// The round trip that it adds: half of it in each direction.
    pub rtt: Duration,
    /// The most that a round trip may take beyond that: half of it in each direction, anything up to it being as likely.
    pub jitter: Duration,
    /// Of the jitter: the same seed gives the same delays in the same order.
    pub seed: u64,
    /// When the network is lost, if ever.
    pub outages: Option<Outages>,
    /// Bandwidth of each direction, for all connections together; `None` is no bound.
    pub bytes_per_second: Option<NonZeroU64>,
    /// Bytes under way at most in each direction of each connection. It bounds the rate of a connection to this much
    /// in each half of a round trip.
    pub buffer_bytes: usize,
    /// Relay UDP too.
    pub udp: bool,
    /// From which ports it calls the target over TCP: exports that are `secure` want reserved ones.
    pub source: SourcePort,
}

impl Default for Options {
    /// No delay, no cap, on a free port of 127.0.0.1, TCP and UDP, 16 MiB under way.
    fn default() -> Options {
        Options {
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            rtt: Duration::ZERO,
            jitter: Duration::ZERO,
            seed: 1,
            outages: None,
            bytes_per_second: None,
            buffer_bytes: 16 << 20,
            udp: true,
            source: SourcePort::Any,
        }
    }
}

impl Options {
    /// The default with a round trip.
    pub fn rtt(rtt: Duration) -> Options {
        Options { rtt, ..Options::default() }
    }
}

/// How a network fails. Datagrams are lost in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Connections are reset, new ones too as soon as they are made.
    Reset,
    /// Nothing gets through and nobody is told. What was under way in connections arrives after [`Relay::restore`].
    BlackHole,
}

/// Bytes that came out of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the target.
    pub up: u64,
    /// From the target.
    pub down: u64,
}

/// A running relay. Dropping it resets its connections and frees its port.
#[derive(Debug)]
pub struct Relay {
    local: SocketAddr,
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

/// What the tasks of a relay share.
#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    source: SourcePort,
    buffer_bytes: usize,
    network: watch::Sender<Network>,
    station: Option<Arc<Station>>,
    up: Line,
    down: Line,
    tap: Tap,
    connections: AtomicU64,
}

/// Whether the network is there.
#[derive(Clone, Copy, Debug, Default)]
struct Network {
    cut: Option<Cut>,
    /// Counts the resets: a connection made before the last one is dead.
    resets: u64,
}

impl Relay {
    /// Listens, and relays to `target`, which need not answer yet. Wants a tokio runtime around it.
    ///
    /// # Errors
    /// What `bind` says, for instance `AddrInUse`.
    pub fn start(target: SocketAddr, options: Options) -> io::Result<Relay> {
        Relay::start_before(None, target, options)
    }

    /// The same, with a station before the target. Then it relays RPC and nothing else: a stream that is something else is ended.
    ///
    /// # Errors
    /// What `bind` says, for instance `AddrInUse`.
    pub fn start_before(
        station: Option<Arc<Station>>,
        target: SocketAddr,
        options: Options,
    ) -> io::Result<Relay> {
        let (listener, datagrams) = bind(options)?;
        let local = listener.local_addr()?;
        let line = |direction| {
            let jitter =
                Jitter { most: options.jitter / 2, random: Random::part(options.seed, &[direction]) };
            Line::new(options.rtt / 2, options.bytes_per_second, jitter)
        };
        // A call is served when all of it is there, so there must be room for it, its marks, and what is read next.
        let whole_call = if station.is_some() { tap::CALL_MAX_BYTES + stream::CHUNK_BYTES } else { 0 };
        let least = stream::CHUNK_BYTES + whole_call;
        let shared = Arc::new(Shared {
            target,
            source: options.source,
            buffer_bytes: options.buffer_bytes.clamp(least, BUFFER_MAX_BYTES),
            network: watch::Sender::default(),
            station,
            up: line(0),
            down: line(1),
            tap: Tap::default(),
            connections: AtomicU64::new(0),
        });
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut tasks = vec![tokio::spawn(stream::accept(listener, shared.clone()))];
        if let Some(socket) = datagrams {
            let socket = tokio::net::UdpSocket::from_std(socket)?;
            tasks.push(tokio::spawn(datagram::relay(socket, shared.clone())));
        }
        if let Some(outages) = options.outages {
            tasks.push(tokio::spawn(outage::keep_losing(shared.clone(), outages)));
        }
        Ok(Relay { local, shared, tasks })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Bytes that have come through so far.
    pub fn bytes(&self) -> Traffic {
        Traffic { up: self.shared.up.bytes(), down: self.shared.down.bytes() }
    }

    /// NFS calls that have gone to the target so far, resent ones included.
    pub fn calls(&self) -> Calls {
        self.shared.tap.calls()
    }

    /// TCP connections made through it so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Cuts the network until [`Relay::restore`].
    pub fn cut(&self, cut: Cut) {
        self.shared.cut(cut);
    }

    /// Ends a cut.
    pub fn restore(&self) {
        self.shared.restore();
    }
}

impl Shared {
    fn cut(&self, cut: Cut) {
        self.network.send_modify(|network| {
            network.cut = Some(cut);
            network.resets += u64::from(cut == Cut::Reset);
        });
    }

    fn restore(&self) {
        self.network.send_modify(|network| network.cut = None);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn bind(options: Options) -> io::Result<(TcpListener, Option<UdpSocket>)> {
    // A free TCP port need not be free for UDP: with port 0, try a few.
    let mut attempts = if options.listen.port() == 0 { 16 } else { 1 };
    let listener = loop {
        let listener = TcpListener::bind(options.listen)?;
        listener.set_nonblocking(true)?;
        if !options.udp {
            return Ok((listener, None));
        }
        attempts -= 1;
        match UdpSocket::bind(listener.local_addr()?) {
            Ok(socket) => {
                socket.set_nonblocking(true)?;
                break (listener, Some(socket));
            }
            Err(error) if attempts == 0 => return Err(error),
            Err(_) => {}
        }
    };
    Ok(listener)
}

#[cfg(test)]
mod tests;
