//! UDP: each client address gets its own socket to the target. A datagram is lost if capacity, peer or
//! network is missing.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use tokio::net::UdpSocket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

use super::Shared;
use super::alarm::Alarm;
use super::line::Line;
use super::station::Station;

/// The most clients at once. Beyond it, the relay forgets the client that has been idle longest.
const CLIENTS_MAX: usize = 256;
/// The largest possible datagram.
const DATAGRAM_MAX_BYTES: usize = 65_507;
/// The least that a datagram counts towards the bound: the memory overhead of a small one.
const DATAGRAM_MIN_COST_BYTES: usize = 256;

struct Client {
    up: Entrance,
    task: AbortHandle,
    last_heard: Instant,
}

/// Relays datagrams until the task is aborted.
pub(super) async fn relay(socket: UdpSocket, shared: Arc<Shared>) {
    let socket = Arc::new(socket);
    let mut clients: HashMap<SocketAddr, Client> = HashMap::new();
    let mut tasks = JoinSet::new();
    let mut buffer = vec![0; DATAGRAM_MAX_BYTES];
    loop {
        while tasks.try_join_next().is_some() {}
        // An error is an ICMP message about an earlier datagram.
        let Ok((count, peer)) = socket.recv_from(&mut buffer).await else { continue };
        if clients.get(&peer).is_none_or(|client| client.task.is_finished()) {
            forget_one(&mut clients);
            let (up, exit) = line_up(shared.buffer_bytes);
            let task = tasks.spawn(serve(shared.clone(), socket.clone(), peer, exit));
            clients.insert(peer, Client { up, task, last_heard: Instant::now() });
        }
        if let Some(client) = clients.get_mut(&peer) {
            client.last_heard = Instant::now();
            client.up.enter(&shared, &shared.up, &buffer[..count]);
        }
    }
}

fn forget_one(clients: &mut HashMap<SocketAddr, Client>) {
    if clients.len() < CLIENTS_MAX {
        return;
    }
    let longest = clients.iter().min_by_key(|(_, client)| client.last_heard).map(|(peer, _)| *peer);
    if let Some(client) = longest.and_then(|peer| clients.remove(&peer)) {
        client.task.abort();
    }
}

/// Relays both directions of one client.
async fn serve(shared: Arc<Shared>, socket: Arc<UdpSocket>, peer: SocketAddr, up: Exit) {
    let run = async {
        let ours = UdpSocket::bind((unspecified(shared.target), 0)).await?;
        ours.connect(shared.target).await?;
        let (down, exit) = line_up(shared.buffer_bytes);
        let incoming = async {
            let mut buffer = vec![0; DATAGRAM_MAX_BYTES];
            loop {
                if let Ok(count) = ours.recv(&mut buffer).await {
                    down.enter(&shared, &shared.down, &buffer[..count]);
                }
            }
        };
        let upward = async {
            let Some(station) = shared.station.as_deref() else {
                return up.run(&shared, &shared.up, &ours, None).await;
            };
            let (enter, leave) = mpsc::unbounded_channel(); // each datagram holds capacity, which bounds it
            let leaving = Exit(leave).run(&shared, &shared.up, &ours, None);
            tokio::try_join!(up.wait(station, enter), leaving).map(drop)
        };
        let downward = exit.run(&shared, &shared.down, &socket, Some(peer));
        tokio::select! {
            ended = upward => ended,
            ended = downward => ended,
            () = incoming => Ok(()),
        }
    };
    let ended: io::Result<()> = run.await;
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a client's datagrams are relayed no more");
    }
}

fn unspecified(target: SocketAddr) -> IpAddr {
    if target.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

struct Datagram {
    due: Instant,
    bytes: Box<[u8]>,
    /// Released when the bytes have left.
    #[expect(dead_code, reason = "held, not read")]
    capacity: OwnedSemaphorePermit,
}

/// The end at which datagrams enter a line.
struct Entrance {
    queue: mpsc::UnboundedSender<Datagram>,
    capacity: Arc<Semaphore>,
}

/// The end at which datagrams leave a line.
struct Exit(mpsc::UnboundedReceiver<Datagram>);

/// A queue of datagrams, bounded by the capacity that each of them holds.
fn line_up(buffer_bytes: usize) -> (Entrance, Exit) {
    let (queue, exit) = mpsc::unbounded_channel();
    (Entrance { queue, capacity: Arc::new(Semaphore::new(buffer_bytes)) }, Exit(exit))
}

impl Entrance {
    fn enter(&self, shared: &Shared, line: &Line, bytes: &[u8]) {
        let cost = bytes.len().max(DATAGRAM_MIN_COST_BYTES) as u32;
        let Ok(capacity) = self.capacity.clone().try_acquire_many_owned(cost) else { return };
        if shared.network.borrow().cut.is_none() {
            let due = line.due(Instant::now(), bytes.len());
            let _ = self.queue.send(Datagram { due, bytes: bytes.into(), capacity });
        }
    }
}

impl Exit {
    /// Queues the datagrams that leave the line in front of a station.
    async fn wait(mut self, station: &Station, enter: mpsc::UnboundedSender<Datagram>) -> io::Result<()> {
        let mut alarm = Alarm::new()?;
        while let Some(datagram) = self.0.recv().await {
            alarm.until(datagram.due).await?;
            let due = station.take(&Bytes::copy_from_slice(&datagram.bytes));
            let _ = enter.send(Datagram { due, ..datagram });
        }
        Ok(())
    }

    /// Sends the datagrams that leave the line to `to`, or to the address that the socket is connected to.
    async fn run(
        mut self,
        shared: &Shared,
        line: &Line,
        socket: &UdpSocket,
        to: Option<SocketAddr>,
    ) -> io::Result<()> {
        let mut alarm = Alarm::new()?;
        while let Some(datagram) = self.0.recv().await {
            alarm.until(datagram.due).await?;
            let complete = shared.network.borrow().cut.is_none();
            let sent = match to {
                _ if !complete => continue,
                Some(peer) => socket.send_to(&datagram.bytes, peer).await,
                None => socket.send(&datagram.bytes).await,
            };
            // An error means that the datagram is lost.
            if sent.is_ok() {
                line.count(datagram.bytes.len());
                if to.is_none() {
                    shared.tap.datagram(&datagram.bytes);
                }
            }
        }
        Ok(())
    }
}
