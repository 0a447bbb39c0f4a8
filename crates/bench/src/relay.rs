//! A network between two ends on one machine: a relay that delays, limits bandwidth, counts, and can be cut
//! or fail periodically.
//!
//! Bytes that arrive on one side leave on the other half a round trip later, in order, as on a long wire.
//! Each direction of the relay is one [`Line`]. All connections share its bandwidth.
//!
//! The relay terminates each TCP connection and opens its own to the target, so that each side gets its
//! acknowledgements from the relay at once. Packet loss and congestion are not modelled. The bytes in flight
//! are bounded for each direction of each connection. At the bound the relay stops reading, and TCP's window
//! stops the sender. Datagrams over the bound are lost. Jitter delays bytes and never reorders them, as
//! queues on a path do.
//!
//! The relay also parses the traffic and counts NFS calls by kind ([`Calls`]). Several relays may share an
//! emulated server of limited capacity at their far end ([`Station`]).

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

/// The largest allowed bound of the bytes in flight in each direction of a connection.
const BUFFER_MAX_BYTES: usize = 1 << 30;

/// The properties of a relay.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The address to listen on. Port 0 selects a free port, the same for TCP and UDP.
    pub listen: SocketAddr,
    /// The round trip that the relay adds: half of it in each direction.
    pub rtt: Duration,
    /// The longest random delay added to a round trip: up to half of it in each direction, uniformly
    /// distributed.
    pub jitter: Duration,
    /// Seed of the jitter: the same seed gives the same delays in the same order.
    pub seed: u64,
    /// When the network fails; `None` means never.
    pub outages: Option<Outages>,
    /// Bandwidth of each direction, for all connections together; `None` means unlimited.
    pub bytes_per_second: Option<NonZeroU64>,
    /// The most bytes in flight in each direction of each connection. A connection can transfer at most this
    /// much per half round trip.
    pub buffer_bytes: usize,
    /// Also relay UDP.
    pub udp: bool,
    /// Source ports of the TCP connections to the target. `secure` exports require reserved ports.
    pub source: SourcePort,
}

impl Default for Options {
    /// No delay, no bandwidth limit, a free port of 127.0.0.1, TCP and UDP, 16 MiB in flight.
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
    /// The default options with a round trip.
    pub fn rtt(rtt: Duration) -> Options {
        Options { rtt, ..Options::default() }
    }
}

/// How a network fails. Both ways lose datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Connections are reset. A new connection is reset as soon as it is made.
    Reset,
    /// No data gets through and neither side gets an error. Bytes in flight in connections arrive after
    /// [`Relay::restore`].
    BlackHole,
}

/// Bytes that a relay has delivered.
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

/// State shared by the tasks of a relay.
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

/// Whether the network works.
#[derive(Clone, Copy, Debug, Default)]
struct Network {
    cut: Option<Cut>,
    /// Number of resets so far. A connection made before the last reset is dead.
    resets: u64,
}

impl Relay {
    /// Listens, and relays to `target`, which need not answer yet. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// Errors of `bind`, for instance `AddrInUse`.
    pub fn start(target: SocketAddr, options: Options) -> io::Result<Relay> {
        Relay::start_before(None, target, options)
    }

    /// As `start`, with a station in front of the target. Such a relay accepts only RPC: it ends any other
    /// stream.
    ///
    /// # Errors
    /// Errors of `bind`, for instance `AddrInUse`.
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
        // A station serves a call once all of it has arrived. The bound must leave capacity for the call, its
        // record marks, and the next read.
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

    /// The address that the relay listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Bytes delivered so far.
    pub fn bytes(&self) -> Traffic {
        Traffic { up: self.shared.up.bytes(), down: self.shared.down.bytes() }
    }

    /// NFS calls sent to the target so far, including retransmissions.
    pub fn calls(&self) -> Calls {
        self.shared.tap.calls()
    }

    /// TCP connections made through the relay so far.
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
    // If a free TCP port is taken for UDP, try another one; only with port 0.
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
