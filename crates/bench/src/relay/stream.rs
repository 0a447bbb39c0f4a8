//! TCP: each client connection is joined to a connection to the target, with one pump per direction.
//!
//! In front of a [`Station`] a stream is split into messages. Each message leaves as one fragment when the
//! station releases it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rpc::record::{self, Assembler};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::alarm::Alarm;
use super::line::Line;
use super::station::Station;
use super::tap::{CALL_MAX_BYTES, StreamTap};
use super::{Cut, Network, Shared};

/// Bytes per read.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
/// How long the target may take to accept a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Accepts connections. They end with this task.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    connections.spawn(join(client, shared.clone()));
                }
                // Most likely there are no free descriptors: let some connections close before the next try.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Relays one connection until both sides have ended it, one side has failed, or the network resets it.
async fn join(mut client: TcpStream, shared: Arc<Shared>) {
    // Any end but an orderly one must be a reset, also if the task is aborted.
    let _ = reset_on_close(&client);
    let mut network = shared.network.subscribe();
    let started = *network.borrow();
    let reset = async {
        let over = |now: &Network| now.resets != started.resets || now.cut == Some(Cut::Reset);
        let _ = network.wait_for(over).await;
    };
    let relaying = async {
        open(&mut shared.network.subscribe()).await;
        let connecting =
            tokio::time::timeout(CONNECT_PATIENCE, rpc::link::dial(shared.target, shared.source));
        let mut server = connecting.await.map_err(|_| io::ErrorKind::TimedOut)??;
        reset_on_close(&server)?;
        shared.connections.fetch_add(1, Ordering::Relaxed);
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        tokio::try_join!(
            pump(
                &shared,
                &shared.up,
                from_client,
                to_server,
                Some(shared.tap.stream()),
                shared.station.as_deref()
            ),
            pump(&shared, &shared.down, from_server, to_client, None, None),
        )?;
        socket2::SockRef::from(&server).set_linger(None)?;
        io::Result::Ok(())
    };
    let ended = tokio::select! {
        ended = relaying => ended.is_ok(),
        () = reset => false,
    };
    if ended {
        let _ = socket2::SockRef::from(&client).set_linger(None);
    }
}

/// Makes the close a RST: a linger time of zero has this effect.
fn reset_on_close(stream: &TcpStream) -> io::Result<()> {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Waits until the network is no longer a black hole.
async fn open(network: &mut watch::Receiver<Network>) {
    // The wait cannot fail: the relay keeps the sender alive, and this task ends with the relay.
    let _ = network.wait_for(|now| now.cut != Some(Cut::BlackHole)).await;
}

/// Bytes in flight, their capacity in the bound, and the time when they leave.
struct Chunk {
    due: Instant,
    bytes: Box<[u8]>,
    /// Released when the bytes have left.
    capacity: OwnedSemaphorePermit,
}

/// Moves bytes in one direction until the stream ends there, and then ends the other side.
async fn pump(
    shared: &Shared,
    line: &Line,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut tap: Option<StreamTap<'_>>,
    station: Option<&Station>,
) -> io::Result<()> {
    let (enter, arrive) = mpsc::unbounded_channel::<Chunk>(); // bounded by the capacity that each chunk holds
    let (mut leave, waiting) = match station {
        None => (arrive, None),
        Some(station) => {
            let (enter, leave) = mpsc::unbounded_channel(); // the same bound
            (leave, Some(Waiting::new(station, enter).run(arrive)))
        }
    };
    let capacity = Arc::new(Semaphore::new(shared.buffer_bytes));
    let step = line.step_bytes(CHUNK_BYTES);
    let reading = async move {
        let mut network = shared.network.subscribe();
        let mut buffer = vec![0; step];
        loop {
            let mut held =
                capacity.clone().acquire_many_owned(step as u32).await.map_err(io::Error::other)?;
            open(&mut network).await;
            let count = from.read(&mut buffer).await?;
            let due = line.due(Instant::now(), count);
            let bytes = buffer[..count].into();
            let Some(capacity) = held.split(count) else { return Err(io::ErrorKind::InvalidData.into()) };
            if enter.send(Chunk { due, bytes, capacity }).is_err() || count == 0 {
                return Ok(());
            }
        }
    };
    let writing = async move {
        let mut network = shared.network.subscribe();
        let mut alarm = Alarm::new()?;
        while let Some(chunk) = leave.recv().await {
            alarm.until(chunk.due).await?;
            open(&mut network).await;
            if chunk.bytes.is_empty() {
                break;
            }
            // Count the call before it leaves, so that a client that has the reply finds the call counted.
            if let Some(tap) = &mut tap {
                tap.feed(&chunk.bytes);
            }
            line.count(chunk.bytes.len());
            to.write_all(&chunk.bytes).await?;
        }
        to.shutdown().await
    };
    let waiting = async move {
        match waiting {
            Some(waiting) => waiting.await,
            None => Ok(()),
        }
    };
    tokio::try_join!(reading, waiting, writing).map(drop)
}

/// Makes the messages of a stream wait for the station.
struct Waiting<'s> {
    station: &'s Station,
    assembler: Assembler,
    /// The capacity held by the bytes of an incomplete message.
    capacity: Option<OwnedSemaphorePermit>,
    enter: mpsc::UnboundedSender<Chunk>,
}

impl<'s> Waiting<'s> {
    fn new(station: &'s Station, enter: mpsc::UnboundedSender<Chunk>) -> Waiting<'s> {
        Waiting { station, assembler: Assembler::new(CALL_MAX_BYTES), capacity: None, enter }
    }

    /// Queues the chunks of the line at the station, as they arrive.
    async fn run(mut self, mut arrive: mpsc::UnboundedReceiver<Chunk>) -> io::Result<()> {
        let mut alarm = Alarm::new()?;
        while let Some(chunk) = arrive.recv().await {
            alarm.until(chunk.due).await?;
            if chunk.bytes.is_empty() {
                let _ = self.enter.send(chunk);
                break;
            }
            self.line_up(chunk)?;
        }
        Ok(())
    }

    fn line_up(&mut self, chunk: Chunk) -> io::Result<()> {
        BytesMut::extend_from_slice(&mut self.assembler.buffer, &chunk.bytes);
        let mut capacity = chunk.capacity;
        if let Some(earlier) = self.capacity.take() {
            capacity.merge(earlier);
        }
        while let Some(message) = self.assembler.take().map_err(io::Error::other)? {
            // The bytes after the message keep their own capacity. The message takes all of the rest,
            // including that of its marks.
            let complete = capacity.num_permits().saturating_sub(self.assembler.buffer.len());
            let Some(capacity) = capacity.split(complete) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let bytes = [&record::mark(message.len())[..], &message].concat().into();
            let _ = self.enter.send(Chunk { due: self.station.take(&message), bytes, capacity });
        }
        self.capacity = Some(capacity);
        Ok(())
    }
}
