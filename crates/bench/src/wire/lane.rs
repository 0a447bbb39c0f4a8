//! One connection that is never idle: a closed loop of blocking system calls.
//!
//! Each slot holds one call in flight. One `read` may return replies for several slots; one `write` then
//! sends the next calls of all these slots. A `write` never deadlocks with the loop's own reading. The
//! requests fit into the socket buffers, or the server reads them because it has no other work to wait for.

use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use protocol::nfs3::Procedure;
use rpc::SourcePort;
use rpc::message::{Incoming, parse_reply};
use rpc::record::Assembler;
use socket2::{Domain, Socket, Type};

use super::script::Script;
use super::server::Server;
use super::tree::random;
use super::{Error, Fault};
use crate::histogram::Histogram;

/// The most slots. The slot number is stored in the low bits of the xid.
pub(super) const SLOTS_MAX: usize = 256;
/// How long to wait for a reply.
const PATIENCE: Duration = Duration::from_secs(10);
/// A call longer than this is sent on its own, without copying it into the shared buffer.
const GATHER_MAX_BYTES: usize = 16 << 10;
/// If a reply lacks at least `LOW_WATER_MIN` bytes, wake up only after up to `LOW_WATER_MAX` more bytes have
/// arrived.
const LOW_WATER_MIN: usize = 64 << 10;
const LOW_WATER_MAX: usize = 256 << 10;
/// Buffer capacity for one read.
const READ_BYTES: usize = 128 << 10;
/// The range of reserved ports that Linux uses for RPC clients.
const RESERVED_PORTS: std::ops::Range<u16> = 665..1024;

/// The time of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Replies count from here.
    pub(super) from: Instant,
    /// Replies no longer count from here.
    pub(super) until: Instant,
}

impl Window {
    pub(super) fn starting(now: Instant, warm_up: Duration, duration: Duration) -> Window {
        Window { from: now + warm_up, until: now + warm_up + duration }
    }
}

/// The results of a measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) latency: Histogram,
    pub(super) bytes: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Tally) {
        self.latency.merge(&other.latency);
        self.bytes += other.bytes;
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Lane {
    stream: TcpStream,
    assembler: Assembler,
    /// The xid of the next call. The slot number replaces its low bits.
    xid: u32,
    /// Current value of `SO_RCVLOWAT`.
    low_water: usize,
}

/// A call in flight.
#[derive(Clone, Copy)]
struct InFlight {
    xid: u32,
    procedure: Procedure,
    since: Instant,
}

impl Lane {
    pub(super) fn connect(server: &Server) -> Result<Lane, Error> {
        let connect = || {
            let stream = connect(server.address, server.source)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            io::Result::Ok(stream)
        };
        let stream = connect().map_err(|source| Error::Connect { server: server.address, source })?;
        Ok(Lane { stream, assembler: Assembler::new(rpc::RECORD_MAX_BYTES), xid: random(), low_water: 1 })
    }

    /// Runs a script with `slots` calls in flight until the window closes and every call is answered. Blocks
    /// the thread.
    pub(super) fn run(
        &mut self,
        script: &mut Script,
        slots: usize,
        window: Window,
        stop: &AtomicBool,
    ) -> Result<Tally, Fault> {
        let mut tally = Tally::default();
        let mut out = Vec::with_capacity(2 * GATHER_MAX_BYTES);
        let mut now = Instant::now();
        let mut in_flight = Vec::with_capacity(slots);
        for slot in 0..slots {
            in_flight.push(self.issue(script, slot, now, &mut out)?);
        }
        let mut outstanding = slots;
        while outstanding > 0 {
            self.stream.write_all(&out)?;
            out.clear();
            self.read(script.reply_bytes())?;
            now = Instant::now();
            let counts = now >= window.from && now < window.until;
            let over = now >= window.until || stop.load(Ordering::Relaxed);
            while let Some(record) = self.assembler.take()? {
                let Incoming::Reply { xid, rest } = Incoming::parse(record)? else {
                    return Err(Fault::Stray);
                };
                let slot = xid as usize % SLOTS_MAX;
                let call = in_flight.get_mut(slot).filter(|call| call.xid == xid).ok_or(Fault::Stray)?;
                let bytes = script.heard(call.procedure, parse_reply(rest)??)?;
                if counts {
                    tally.latency.add(now - call.since);
                    tally.bytes += bytes;
                }
                if over {
                    call.xid = !xid; // Answered: no second reply to this call counts.
                    outstanding -= 1;
                } else {
                    *call = self.issue(script, slot, now, &mut out)?;
                }
            }
        }
        Ok(tally)
    }

    /// Waits for data and reads it. If a large part of a reply is missing, waits for a large part of it.
    fn read(&mut self, reply_bytes: usize) -> Result<(), Fault> {
        self.assembler.reserve(READ_BYTES);
        let buffer = &mut self.assembler.buffer;
        if buffer.is_empty() {
            // Reserve capacity for one reply and the beginning of the next, so that little has to be moved on
            // the next read.
            buffer.reserve(reply_bytes + LOW_WATER_MIN);
        }
        let missing = missing_bytes(buffer);
        let low_water = if missing < LOW_WATER_MIN { 1 } else { missing.min(LOW_WATER_MAX) };
        if low_water != self.low_water {
            crate::sys::set_receive_low_water(&self.stream, low_water as u32)?;
            self.low_water = low_water;
        }
        loop {
            match crate::sys::read_more(&self.stream, buffer) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Fault::NoReply);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Appends the next call of a slot to `out`, or sends it if it is long.
    fn issue(
        &mut self,
        script: &mut Script,
        slot: usize,
        now: Instant,
        out: &mut Vec<u8>,
    ) -> Result<InFlight, Fault> {
        self.xid = self.xid.wrapping_add(SLOTS_MAX as u32);
        let xid = self.xid & !(SLOTS_MAX as u32 - 1) | slot as u32;
        let call = script.next(slot);
        call.set_xid(xid);
        if call.bytes.len() > GATHER_MAX_BYTES {
            self.stream.write_all(out)?;
            out.clear();
            self.stream.write_all(&call.bytes)?;
        } else {
            out.extend_from_slice(&call.bytes);
        }
        Ok(InFlight { xid, procedure: call.procedure, since: now })
    }
}

/// The number of bytes missing from the record at the front of the buffer; 0 if the record mark is not there
/// yet.
fn missing_bytes(buffer: &[u8]) -> usize {
    let mark = buffer.first_chunk::<4>().map_or(0, |mark| u32::from_be_bytes(*mark) & !(1 << 31));
    (4 + mark as usize).saturating_sub(buffer.len())
}

fn connect(server: SocketAddr, source: SourcePort) -> io::Result<TcpStream> {
    let any = |port| match server {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    };
    if source == SourcePort::Reserved {
        let offset = random() as usize % RESERVED_PORTS.len();
        for port in RESERVED_PORTS.skip(offset).chain(RESERVED_PORTS.take(offset)) {
            let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
            match socket.bind(&any(port).into()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
                Err(_) => continue,
            }
            match socket.connect_timeout(&server.into(), PATIENCE) {
                // An earlier connection may still occupy the same pair of ports (TIME_WAIT).
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
                connected => return connected.map(|()| socket.into()),
            }
        }
    }
    TcpStream::connect_timeout(&server, PATIENCE)
}
