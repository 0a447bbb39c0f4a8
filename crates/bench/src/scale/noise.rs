//! Quiet clients beside a noisy one: how long their calls take alone, beside a noisy client of another
//! server, and beside a noisy client of their own server.
//!
//! Each client is an address of the loopback network, so that the server tells them apart. A quiet client
//! makes one call and waits for the answer, then it pauses. The noisy one keeps many calls in flight on
//! several connections. All share the processors of one machine, and the measurement with another server
//! says what that alone costs. The threads of the noisy client have a lower priority, so that they do not
//! delay the quiet clients themselves.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use protocol::{Call, Reply, mount, nfs3};
use rpc::message::{CallHeader, Incoming, parse_reply};
use rpc::record::{Assembler, mark};
use rpc::{AuthSys, Credential};
use serde::Serialize;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use xdr::{Decode, Encode, Encoder};

use super::site::{self, EXPORT, Serving};
use super::{Error, Options};
use crate::histogram::Histogram;

/// How long each measurement takes.
const MEASURED: Duration = Duration::from_secs(4);
/// The time between the beginning of the noise and the measurement.
const WARM_UP: Duration = Duration::from_millis(500);
/// The shortest time from one call of a quiet client to the next.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// A reply that has not come by then never comes.
const PATIENCE: Duration = Duration::from_secs(20);
const NOISY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// How much lower the priority of the noisy client is (nice(2)).
const NICE: i32 = 5;

/// The load of the noisy client.
#[derive(Clone, Copy, Debug)]
struct Kind {
    name: &'static str,
    procedure: Procedure,
    connections: usize,
    /// Calls in flight on each connection.
    in_flight: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Procedure {
    Getattr,
    Read(u32),
    /// A change, which a directory makes on the threads that its clients share. The quiet clients make
    /// changes too.
    Setattr,
}

const KINDS: [Kind; 5] = [
    Kind { name: "GETATTR", procedure: Procedure::Getattr, connections: 1, in_flight: 256 },
    Kind { name: "GETATTR", procedure: Procedure::Getattr, connections: 8, in_flight: 32 },
    Kind { name: "READ of 64 KiB", procedure: Procedure::Read(64 << 10), connections: 4, in_flight: 32 },
    Kind { name: "READ of 1 MiB", procedure: Procedure::Read(1 << 20), connections: 4, in_flight: 16 },
    Kind { name: "SETATTR", procedure: Procedure::Setattr, connections: 4, in_flight: 64 },
];

/// Latencies of the quiet clients, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Of half of the calls at most.
    pub p50: f64,
    /// Of 99 of 100 calls at most.
    pub p99: f64,
    /// The calls that were measured.
    pub calls: u64,
}

impl Latency {
    fn of(histogram: &Histogram) -> Latency {
        let micros = |percent| histogram.percentile(percent).as_secs_f64() * 1e6;
        Latency { p50: micros(50.0), p99: micros(99.0), calls: histogram.count() }
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>5.0} {:>6.0}", self.p50, self.p99)
    }
}

/// Quiet clients beside one kind of noise.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Beside {
    /// The calls of the noisy client.
    pub noise: &'static str,
    /// Its connections.
    pub connections: usize,
    /// Its calls in flight, over all connections.
    pub in_flight: usize,
    /// The number of quiet clients.
    pub clients: u32,
    /// Without noise.
    pub alone: Latency,
    /// Beside a noisy client of another server.
    pub elsewhere: Latency,
    /// Beside a noisy client of the same server.
    pub beside: Latency,
    /// Calls of the noisy client in a second, at the same server.
    pub noisy_calls: f64,
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Beside { noise, connections, in_flight, clients, alone, elsewhere, beside, noisy_calls } = self;
        write!(
            f,
            "{clients:>9} quiet beside {noise:<14} ({connections} connections, {in_flight:>3} in flight): p50 and p99 {alone} µs alone, {elsewhere} beside another server, {beside} beside; {noisy_calls:.0} noisy calls/s"
        )
    }
}

/// Measures each kind of noise with so many quiet clients.
pub(super) fn measure(
    options: &Options,
    clients: u32,
    mut progress: impl FnMut(&Beside),
) -> Result<Vec<Beside>, Error> {
    let mut rows = Vec::new();
    for kind in KINDS {
        let (here, there) = (Site::start(options)?, Site::start(options)?);
        let quiet = |noise: Option<&Site>| -> io::Result<(Latency, f64)> {
            let noise = noise.map(|site| Noise::start(site, kind)).transpose()?;
            let latencies = quiet(&here, kind, clients)?;
            Ok((Latency::of(&latencies), noise.map_or(0.0, Noise::end)))
        };
        let failed = |source| Error::Walk { what: format!("{} by many clients", kind.name), source };
        let (alone, _) = quiet(None).map_err(failed)?;
        let (elsewhere, _) = quiet(Some(&there)).map_err(failed)?;
        let (beside, noisy_calls) = quiet(Some(&here)).map_err(failed)?;
        let Kind { name: noise, connections, in_flight, .. } = kind;
        let in_flight = connections * in_flight;
        let row = Beside { noise, connections, in_flight, clients, alone, elsewhere, beside, noisy_calls };
        progress(&row);
        rows.push(row);
        here.end();
        there.end();
    }
    Ok(rows)
}

/// A server, and the file that is used.
struct Site {
    serving: Serving,
    address: SocketAddr,
    file: nfs3::Handle,
    scratch: std::path::PathBuf,
}

impl Site {
    fn start(options: &Options) -> Result<Site, Error> {
        let scratch = site::directory(options)?;
        let serving = Serving::start_directory(options, &scratch)?;
        let address = serving.address();
        let failed = |source| Error::Walk { what: format!("{} at {address}", site::FILE), source };
        let file = find(address).map_err(failed)?;
        Ok(Site { serving, address, file, scratch })
    }

    fn end(self) {
        self.serving.end();
        site::remove(&self.scratch);
    }
}

fn find(server: SocketAddr) -> io::Result<nfs3::Handle> {
    let mut wire = connect(NOISY, server)?;
    let export = mount::Dirpath::new(EXPORT.to_owned()).unwrap_or_default();
    let Reply::Ok(root) = ask::<mount::v3::call::Mnt>(&mut wire, &export)? else {
        return Err(io::ErrorKind::PermissionDenied.into());
    };
    let name = nfs3::Filename::new(site::FILE.to_owned()).unwrap_or_default();
    let what = nfs3::DirOpArgs { dir: root.fhandle, name };
    match ask::<nfs3::call::Lookup>(&mut wire, &nfs3::LookupArgs { what })? {
        Reply::Ok(found) => Ok(found.object),
        Reply::Fail(..) => Err(io::ErrorKind::NotFound.into()),
    }
}

fn ask<C: Call>(wire: &mut std::net::TcpStream, args: &C::Args) -> io::Result<C::Results> {
    wire.write_all(&encode::<C>(args)?)?;
    let mut assembler = Assembler::new(rpc::RECORD_MAX_BYTES);
    loop {
        if let Some(record) = assembler.take().map_err(io::Error::other)? {
            let Ok(Incoming::Reply { rest, .. }) = Incoming::parse(record) else { return Err(strange()) };
            let mut results = parse_reply(rest).map_err(io::Error::other)?.map_err(|_| strange())?;
            return C::Results::decode(&mut results).map_err(io::Error::other);
        }
        read_more(wire, &mut assembler)?;
    }
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a strange reply")
}

/// A call with its record mark.
fn encode<C: Call>(args: &C::Args) -> io::Result<Vec<u8>> {
    let credential = Credential::Sys(AuthSys::default());
    let (program, version, procedure) = (C::PROGRAM, C::VERSION, C::NUMBER);
    let mut encoder = Encoder::new();
    CallHeader { xid: 1, program, version, procedure, credential }.encode(&mut encoder);
    args.encode(&mut encoder);
    let message = encoder.finish().to_bytes()?;
    Ok([&mark(message.len())[..], &message[..]].concat())
}

fn call(procedure: Procedure, file: nfs3::Handle) -> io::Result<Vec<u8>> {
    match procedure {
        Procedure::Getattr => encode::<nfs3::call::Getattr>(&nfs3::GetattrArgs { object: file }),
        Procedure::Read(count) => encode::<nfs3::call::Read>(&nfs3::ReadArgs { file, offset: 0, count }),
        Procedure::Setattr => {
            let mtime = nfs3::SetTime::SetToServerTime;
            let new_attributes = nfs3::Sattr { mtime, ..nfs3::Sattr::default() };
            encode::<nfs3::call::Setattr>(&nfs3::SetattrArgs { object: file, new_attributes, guard: None })
        }
    }
}

fn connect(from: Ipv4Addr, server: SocketAddr) -> io::Result<std::net::TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect_timeout(&server.into(), PATIENCE)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket.into())
}

fn read_more(stream: &std::net::TcpStream, assembler: &mut Assembler) -> io::Result<()> {
    assembler.reserve(256 << 10);
    match crate::sys::read_more(stream, &mut assembler.buffer)? {
        0 => Err(io::ErrorKind::ConnectionReset.into()),
        _ => Ok(()),
    }
}

/// A noisy client, on threads of its own.
struct Noise {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<io::Result<()>>>,
    since: Instant,
}

impl Noise {
    fn start(site: &Site, kind: Kind) -> io::Result<Noise> {
        let (stop, calls) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut threads = Vec::new();
        for _ in 0..kind.connections {
            let mut stream = connect(NOISY, site.address)?;
            let call = call(kind.procedure, site.file)?;
            let (stop, calls) = (stop.clone(), calls.clone());
            threads.push(std::thread::spawn(move || {
                let ours = rustix::process::getpriority_process(None).unwrap_or(0);
                let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), ours + NICE);
                make_noise(&mut stream, &call, kind.in_flight, &stop, &calls)
            }));
        }
        std::thread::sleep(WARM_UP);
        calls.store(0, Ordering::Relaxed);
        Ok(Noise { stop, calls, threads, since: Instant::now() })
    }

    /// Ends the noise. Returns its calls in a second.
    fn end(self) -> f64 {
        let rate = self.calls.load(Ordering::Relaxed) as f64 / self.since.elapsed().as_secs_f64();
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            // A connection that broke is seen in the rate.
            let _ = thread.join();
        }
        rate
    }
}

/// Keeps so many calls in flight.
fn make_noise(
    stream: &mut std::net::TcpStream,
    call: &[u8],
    in_flight: usize,
    stop: &AtomicBool,
    calls: &AtomicU64,
) -> io::Result<()> {
    let mut assembler = Assembler::new(rpc::RECORD_MAX_BYTES);
    stream.write_all(&call.repeat(in_flight))?;
    while !stop.load(Ordering::Relaxed) {
        read_more(stream, &mut assembler)?;
        let mut answered = 0;
        while assembler.take().map_err(io::Error::other)?.is_some() {
            answered += 1;
        }
        calls.fetch_add(answered as u64, Ordering::Relaxed);
        stream.write_all(&call.repeat(answered))?;
    }
    // The server gives up what it still has for us.
    stream.shutdown(std::net::Shutdown::Both)?;
    let _ = stream.read(&mut [0; 1]);
    Ok(())
}

/// The latencies of so many quiet clients.
fn quiet(site: &Site, kind: Kind, clients: u32) -> io::Result<Histogram> {
    let procedure =
        if kind.procedure == Procedure::Setattr { Procedure::Setattr } else { Procedure::Getattr };
    let (call, server) = (call(procedure, site.file)?, site.address);
    let pause = PAUSE_MIN.max(Duration::from_millis(clients.into()));
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for number in 0..clients {
                let [_, _, high, low] = number.to_be_bytes();
                let stream = connect(Ipv4Addr::new(127, 1, high, low), server)?;
                stream.set_nonblocking(true)?;
                let stream = tokio::net::TcpStream::from_std(stream)?;
                let first = pause * number / clients;
                tasks.spawn(one_quiet(stream, call.clone(), first, pause));
            }
            let mut all = Histogram::default();
            while let Some(task) = tasks.join_next().await {
                all.merge(&task.map_err(io::Error::other)??);
            }
            Ok(all)
        })
    });
    thread.join().unwrap_or_else(|_| Err(strange()))
}

/// One quiet client, which makes its first call after `first`.
async fn one_quiet(
    mut stream: tokio::net::TcpStream,
    call: Vec<u8>,
    first: Duration,
    pause: Duration,
) -> io::Result<Histogram> {
    let mut latencies = Histogram::default();
    let end = Instant::now() + MEASURED;
    let mut reply = Vec::new();
    tokio::time::sleep(first).await;
    while Instant::now() < end {
        let sent = Instant::now();
        stream.write_all(&call).await?;
        let length = stream.read_u32().await? & !(1 << 31);
        reply.resize(length as usize, 0);
        stream.read_exact(&mut reply).await?;
        latencies.add(sent.elapsed());
        tokio::time::sleep(pause).await;
    }
    Ok(latencies)
}
