//! A link: calls one server, and survives the loss of connections.
//!
//! Over TCP, a link has one connection at a time and makes a new one when the old one is lost. Over UDP, it
//! sends datagrams.
//!
//! The link sends a call until the server answers it or the caller's patience ends. Every copy has the same
//! xid, so a server with a reply cache executes the call once. Over TCP, the link resends a call only on a
//! new connection. It closes a connection that has delivered nothing for `timeo` while calls wait. Over UDP,
//! [`crate::congestion`] decides when to send a call and when to resend it.

mod error;
mod socket;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use xdr::{Decoder, Message};

use crate::auth::Credential;
use crate::congestion::{Congestion, Due};
use crate::connection::{Connection, Limits, encode_call};
use crate::message::{self, CallHeader, Incoming};
use crate::pending::{Contents, Pending, Reply, Ticket};
use crate::replay::ReplyCache;
use crate::rpcsec_gss::initiator::{self, Protected};
use crate::server::{Checked, Dispatcher};
use crate::service::{Call, Service};
use crate::tls::{self, TlsLink};
use crate::udp::{self, DATAGRAM_MAX_BYTES};
use crate::wire::Wire;
pub use error::{CallError, NoContext};
use socket::{datagram_socket, dial_from};

/// TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A stream of records.
    Tcp,
    /// Datagrams.
    Udp,
}

/// The local port of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePort {
    /// Any free port.
    Any,
    /// A free port below 1024 if the process may bind one, otherwise any port: nfs(5) `resvport`.
    Reserved,
}

/// How to reach a server.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// The server's address and port.
    pub server: SocketAddr,
    /// TCP or UDP.
    pub transport: Transport,
    /// The local port to use.
    pub source: SourcePort,
    /// The local address to use; `None` leaves it to the routes of this machine.
    pub local: Option<IpAddr>,
    /// nfs(5) `timeo`. Over TCP, how long a connection may be silent while calls wait. Over UDP, the first
    /// retransmission timer.
    pub timeo: Duration,
    /// The longest pause between two attempts to connect.
    pub backoff_max: Duration,
    /// Bounds of the connection.
    pub limits: Limits,
    /// TLS on each connection, over TCP. Without TLS nothing is sent but the question for it.
    pub tls: Option<TlsLink>,
}

impl LinkOptions {
    /// TCP from any port, with the `timeo` of 60 s that nfs(5) documents.
    pub fn new(server: SocketAddr) -> LinkOptions {
        LinkOptions {
            server,
            transport: Transport::Tcp,
            source: SourcePort::Any,
            local: None,
            timeo: Duration::from_secs(60),
            backoff_max: Duration::from_secs(3),
            limits: Limits::default(),
            tls: None,
        }
    }
}

/// A call to be made.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Program number.
    pub program: u32,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the version.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: Credential,
    /// Encoded arguments.
    pub arguments: Message,
}

/// How long a caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Without limit: nfs(5) `hard`.
    Hard,
    /// Until this time: nfs(5) `soft`, or the caller's deadline.
    Until(Instant),
}

/// A successful reply.
#[derive(Debug)]
pub struct Answer {
    /// The results, not yet decoded.
    pub results: Decoder,
    /// The verifier of RPCSEC_GSS in a reply to a call without protection. Empty if there is none.
    pub verifier: Bytes,
    /// The link sent the call more than once, so the server may have executed it more than once.
    pub retransmitted: bool,
}

/// The state of a link's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connected {
    /// Number of connections made so far. A new number means a new connection.
    pub generation: u64,
    /// The latest connection is still up.
    pub up: bool,
}

/// See the module. A link is cheap to share behind an `Arc`. Dropping it ends its tasks.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    options: LinkOptions,
    pending: Arc<Pending>,
    way: Mutex<Option<Way>>,
    wanted: Notify,
    /// A connection is wanted before there is a call for it.
    preparing: AtomicBool,
    congestion: Mutex<Congestion>,
    answering: AtomicBool,
    dispatcher: Option<Arc<Dispatcher>>,
    connected: watch::Sender<Connected>,
    /// Why the last connection has no TLS, until one has it.
    trouble: watch::Sender<Option<Arc<tls::Error>>>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({})", self.options.server)
    }
}

/// The connection or socket in use now.
#[derive(Clone)]
enum Way {
    Stream(Arc<Connection>),
    Datagrams(Arc<UdpSocket>),
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(Way::Stream(connection)) = self.shared.way.lock().take() {
            connection.close();
        }
        // A call borrows the link, so none is in flight any more.
        if !std::thread::panicking() {
            debug_assert_eq!(self.calls_in_flight(), 0, "calls in flight at the end of a link");
            debug_assert!(
                self.shared.congestion.lock().is_idle(),
                "datagrams in flight at the end of a link"
            );
        }
        self.shared.pending.abandon();
    }
}

impl Link {
    /// Creates a link that connects at its first call. It refuses calls that the server makes on the
    /// connection.
    pub fn new(options: LinkOptions) -> Link {
        Link::start(options, None)
    }

    /// Creates a link whose connections also answer calls of the server: a back channel.
    pub fn with_service(options: LinkOptions, service: Arc<dyn Service>, replies: Arc<ReplyCache>) -> Link {
        Link::start(options, Some(Arc::new(Dispatcher { service, replies, tls: None, gss: None })))
    }

    fn start(options: LinkOptions, dispatcher: Option<Arc<Dispatcher>>) -> Link {
        let (transport, timeo) = (options.transport, options.timeo);
        let shared = Arc::new(Shared {
            options,
            pending: Arc::default(),
            way: Mutex::default(),
            wanted: Notify::new(),
            preparing: AtomicBool::new(false),
            congestion: Mutex::new(Congestion::new(timeo)),
            trouble: watch::Sender::default(),
            answering: AtomicBool::new(true),
            dispatcher,
            connected: watch::Sender::default(),
        });
        let task = match transport {
            Transport::Tcp => tokio::spawn(keep_connected(shared.clone())),
            Transport::Udp => tokio::spawn(receive_datagrams(shared.clone())),
        };
        Link { shared, task }
    }

    /// The server's address and port.
    pub fn server(&self) -> SocketAddr {
        self.shared.options.server
    }

    /// Watches the link's connection. State that is bound to a connection must be bound again to the next
    /// one. A link over datagrams never reports a connection.
    pub fn watch(&self) -> watch::Receiver<Connected> {
        self.shared.connected.subscribe()
    }

    /// The state of the connection now.
    pub fn connected(&self) -> Connected {
        *self.shared.connected.borrow()
    }

    /// Tries once to connect before there is a call.
    pub fn prepare(&self) {
        self.shared.preparing.store(true, Ordering::Release);
        self.shared.wanted.notify_one();
    }

    /// Waits until TLS fails, and says why. A caller that makes a single call need not wait for the attempts
    /// after that.
    pub async fn tls_failed(&self) -> Arc<tls::Error> {
        let mut trouble = self.shared.trouble.subscribe();
        loop {
            if let Some(error) = trouble.borrow_and_update().clone() {
                return error;
            }
            // The sender lives as long as the link.
            if trouble.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The number of calls whose callers wait for an answer.
    pub fn calls_in_flight(&self) -> usize {
        self.shared.pending.len()
    }

    /// Makes a call and waits for its results. Dropping the future forgets the call, which the server may
    /// still execute.
    pub async fn call(&self, call: Outgoing, patience: Patience) -> Result<Answer, CallError> {
        let xid = self.xid();
        let (program, version, procedure) = (call.program, call.version, call.procedure);
        let header = CallHeader { xid, program, version, procedure, credential: call.credential };
        let message = encode_call(&header, call.arguments);
        let bytes = message.len();
        let reply = self.send(xid, (program, procedure), Contents::Plain(message), bytes, patience).await?;
        let (verifier, results) = message::parse_reply_with(reply.rest)?;
        Ok(Answer { results: results?, verifier, retransmitted: reply.sends > 1 })
    }

    /// An xid for [`Link::call_protected`].
    pub fn xid(&self) -> u32 {
        self.shared.pending.xid()
    }

    /// As [`Link::call`], for a user with a context. If the server has lost the context, the caller makes
    /// another one and the call again, with the same xid.
    ///
    /// # Errors
    /// [`CallError::Context`] if the context cannot protect the call, or has not made the reply.
    pub async fn call_protected(
        &self,
        call: Arc<Protected>,
        patience: Patience,
    ) -> Result<Answer, CallError> {
        let unprotected =
            |error: initiator::Error| CallError::Context(NoContext::of(&error, &error.to_string()));
        let bytes = Protected::prepare(&call).await.map_err(unprotected)?;
        let (xid, kind) = (call.xid(), (call.program(), call.procedure()));
        let contents = Contents::Protected(call.clone());
        let reply = match self.send(xid, kind, contents, bytes, patience).await {
            Err(CallError::Closed) => {
                return Err(call
                    .failure()
                    .map_or(CallError::Closed, |why| CallError::Context(NoContext::because(&why))));
            }
            reply => reply?,
        };
        match Protected::reply(&call, reply.rest).await {
            Ok(results) => Ok(Answer { results, verifier: Bytes::new(), retransmitted: call.sends() > 1 }),
            Err(initiator::Error::Refused(refusal)) => Err(refusal.into()),
            Err(initiator::Error::Xdr(error)) => Err(error.into()),
            Err(error) => Err(unprotected(error)),
        }
    }

    /// Sends a call of so many bytes, and waits for its reply.
    async fn send(
        &self,
        xid: u32,
        kind: crate::congestion::Kind,
        contents: Contents,
        bytes: usize,
        patience: Patience,
    ) -> Result<Reply, CallError> {
        let shared = &self.shared;
        if shared.options.transport == Transport::Udp && bytes > DATAGRAM_MAX_BYTES {
            return Err(CallError::TooLarge(bytes));
        }
        let protected = match &contents {
            Contents::Plain(_) => None,
            Contents::Protected(call) => Some(call.clone()),
        };
        let mut ticket = shared.pending.enter(xid, contents);
        let reply = match shared.options.transport {
            Transport::Tcp => {
                shared.send(xid);
                match protected {
                    None => self.wait_for_stream(&mut ticket, patience).await?,
                    Some(call) => Box::pin(self.keep_in_window(&call, &mut ticket, patience)).await?,
                }
            }
            Transport::Udp => {
                let _entered = Entered::new(shared, xid, kind);
                wait_for_reply(&mut ticket, patience).await?
            }
        };
        if !shared.answering.swap(true, Ordering::Relaxed) {
            tracing::warn!("server {} OK", shared.options.server);
        }
        if shared.options.tls.is_some() && shared.trouble.borrow().is_some() {
            shared.note_tls(None);
        }
        Ok(reply)
    }

    /// Sends a call again when its number has fallen out of the server's window.
    async fn keep_in_window(
        &self,
        call: &Protected,
        ticket: &mut Ticket,
        patience: Patience,
    ) -> Result<Reply, CallError> {
        let mut waiting = std::pin::pin!(self.wait_for_stream(ticket, patience));
        loop {
            match timeout(WINDOW_CHECK, &mut waiting).await {
                Ok(reply) => return reply,
                Err(_) if call.is_behind() => self.shared.send(call.xid()),
                Err(_) => {}
            }
        }
    }

    async fn wait_for_stream(&self, ticket: &mut Ticket, patience: Patience) -> Result<Reply, CallError> {
        let timer = self.shared.options.timeo;
        loop {
            let left = match patience {
                Patience::Hard => timer,
                Patience::Until(deadline) => deadline.saturating_duration_since(Instant::now()).min(timer),
            };
            match timeout(left, &mut ticket.reply).await {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(_)) => return Err(CallError::Closed),
                Err(_) if left < timer || patience == Patience::Until(Instant::now()) => {
                    return Err(CallError::TimedOut);
                }
                Err(_) => self.shared.not_answering(),
            }
        }
    }
}

/// Interval of looking whether a protected call must be sent again. It is longer than calls usually take.
const WINDOW_CHECK: Duration = Duration::from_secs(2);

/// Waits for the reply to a call over datagrams. The link's task resends the call meanwhile.
async fn wait_for_reply(ticket: &mut Ticket, patience: Patience) -> Result<Reply, CallError> {
    let reply = match patience {
        Patience::Hard => (&mut ticket.reply).await,
        Patience::Until(deadline) => {
            timeout_at(deadline, &mut ticket.reply).await.map_err(|_| CallError::TimedOut)?
        }
    };
    reply.map_err(|_| CallError::Closed)
}

/// Counts a call against the congestion window for as long as its caller waits.
struct Entered<'s> {
    shared: &'s Shared,
    xid: u32,
}

impl<'s> Entered<'s> {
    fn new(shared: &'s Shared, xid: u32, kind: crate::congestion::Kind) -> Entered<'s> {
        shared.congestion.lock().enter(xid, kind);
        shared.pump();
        // Wake the receiving task: the timer of this call may now be the earliest.
        shared.wanted.notify_one();
        Entered { shared, xid }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.shared.congestion.lock().forget(self.xid);
        self.shared.pump();
    }
}

impl Shared {
    /// Sends a call over the current connection or socket. If there is none, wakes the task that connects.
    fn send(&self, xid: u32) {
        // Do not hold the lock while sending: a large message takes a while. If the connection ends
        // meanwhile, the call is lost, and `adopt` sends it again over the next connection.
        let way = self.way.lock().clone();
        match way {
            None => self.wanted.notify_one(),
            Some(Way::Stream(connection)) => {
                if let Some(sending) = self.pending.sending(xid)
                    && !connection.send_call(sending)
                {
                    self.pending.forget(xid);
                }
            }
            Some(Way::Datagrams(socket)) => {
                if let Some(message) =
                    self.pending.sending(xid).and_then(|sending| sending.contents.message())
                    && let Ok(bytes) = message.to_bytes()
                {
                    crate::term::check();
                    // A full buffer or an unreachable host counts as a lost datagram: the timer resends it.
                    let _ = socket.try_send(&bytes);
                }
            }
        }
    }

    /// Sends the datagrams that are due.
    fn pump(&self) {
        if self.way.lock().is_none() {
            return;
        }
        let due = self.congestion.lock().poll(Instant::now());
        for Due { xid, sends } in due {
            if sends > 3 {
                self.not_answering();
            }
            self.send(xid);
        }
    }

    /// Installs a new connection, and sends every waiting call over it.
    fn adopt(&self, way: Way) {
        *self.way.lock() = Some(way);
        for xid in self.pending.xids() {
            self.send(xid);
        }
    }

    /// TLS has failed, or works again. A new reason is logged once.
    fn note_tls(&self, failed: Option<tls::Error>) {
        let server = self.options.server;
        self.trouble.send_if_modified(|trouble| {
            let (before, now) =
                (trouble.as_ref().map(ToString::to_string), failed.as_ref().map(ToString::to_string));
            if before == now {
                return false;
            }
            if let Some(error) = &now {
                tracing::warn!("no TLS with server {server}: {error}");
            } else {
                tracing::warn!("TLS with server {server} OK");
            }
            *trouble = failed.map(Arc::new);
            true
        });
    }

    fn not_answering(&self) {
        if self.answering.swap(false, Ordering::Relaxed) {
            tracing::warn!("server {} not responding, still trying", self.options.server);
        }
    }
}

/// Limit of one attempt to connect. After a network outage, a new attempt gets through sooner than the
/// kernel's next SYN of an old one.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Connects whenever a call waits, and gives up silent connections.
async fn keep_connected(shared: Arc<Shared>) {
    let mut backoff = Duration::from_millis(50);
    loop {
        while shared.pending.is_empty() && !shared.preparing.swap(false, Ordering::AcqRel) {
            shared.wanted.notified().await;
        }
        let patience = shared.options.timeo.clamp(Duration::from_secs(1), CONNECT_MAX);
        let connecting = timeout(patience, connect(&shared.options));
        let wire = connecting.await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        let started = match wire {
            Ok(wire) => Connection::start(
                wire,
                shared.pending.clone(),
                shared.dispatcher.clone(),
                shared.options.limits,
                None,
            ),
            Err(error) if error.is_about_tls() => {
                let text = error.to_string();
                shared.note_tls(Some(error));
                Err(io::Error::other(text))
            }
            Err(error) => Err(error.into()),
        };
        match started {
            Ok(connection) => {
                // Raise the generation before sending anything. If a caller gets an answer at generation G,
                // then its call was sent on connection G or an earlier one.
                shared.connected.send_modify(|connected| {
                    *connected = Connected { generation: connected.generation + 1, up: true };
                });
                shared.adopt(Way::Stream(connection.clone()));
                watch(&shared, &connection).await;
                *shared.way.lock() = None;
                shared.connected.send_modify(|connected| connected.up = false);
                // A server that accepts connections and stays silent does not recover sooner if it is asked
                // more often. Reset the backoff only if the server has sent something within the last second.
                let spoke = connection.has_received();
                if let Some(failure) = connection.take_failure().filter(tls::Error::is_about_tls) {
                    shared.note_tls(Some(failure));
                }
                if spoke && connection.last_received() > Instant::now() - Duration::from_secs(1) {
                    backoff = Duration::from_millis(50);
                }
            }
            Err(error) => {
                tracing::debug!(server = %shared.options.server, %error, "cannot connect");
                if backoff >= shared.options.backoff_max && !shared.pending.is_empty() {
                    shared.not_answering();
                }
            }
        }
        sleep(backoff).await;
        backoff = (backoff * 2).min(shared.options.backoff_max);
    }
}

/// Returns when the connection has ended, or when it has been silent for `timeo` while calls wait.
async fn watch(shared: &Shared, connection: &Connection) {
    let timeo = shared.options.timeo;
    loop {
        if timeout(timeo / 4, connection.closed()).await.is_ok() {
            return;
        }
        let silent = connection.last_received().elapsed() > timeo;
        let waited = shared.pending.oldest_sent().is_some_and(|sent| sent.elapsed() > timeo);
        if silent && waited {
            tracing::debug!(server = %shared.options.server, "silent connection given up");
            connection.close();
            return;
        }
    }
}

/// Connects to a server over TCP, from the kind of port that `source` asks for.
///
/// # Errors
/// The error of `connect`. If no reserved port can be bound, the call uses any port: the server decides
/// whether to accept it.
pub async fn dial(server: SocketAddr, source: SourcePort) -> io::Result<TcpStream> {
    dial_from(&LinkOptions { source, ..LinkOptions::new(server) }).await
}

/// Connects, with TLS if it is wanted.
async fn connect(options: &LinkOptions) -> Result<Wire, tls::Error> {
    let stream = dial_from(options).await?;
    let session = match &options.tls {
        None => None,
        Some(TlsLink { connector, probe }) => {
            stream.set_nodelay(true)?;
            Some(connector.secure(&stream, *probe).await?)
        }
    };
    Ok(Wire::new(stream, session))
}

async fn receive_datagrams(shared: Arc<Shared>) {
    let Some(socket) = datagram_socket(&shared.options).await else { return shared.pending.abandon() };
    let socket = Arc::new(socket);
    *shared.way.lock() = Some(Way::Datagrams(socket.clone()));
    let mut buffer = BytesMut::new();
    let places = Arc::new(Semaphore::new(shared.options.limits.calls_in_flight));
    loop {
        buffer.resize(DATAGRAM_MAX_BYTES, 0);
        shared.pump();
        let due = shared.congestion.lock().next_due();
        let received = tokio::select! {
            received = socket.recv(&mut buffer) => received,
            () = until(due) => continue,
            // A new call may have an earlier timer.
            () = shared.wanted.notified() => continue,
        };
        // An error is an ICMP message about an earlier datagram; the timer of that call handles the loss.
        let Ok(length) = received else { continue };
        let datagram = buffer.split_to(length).freeze();
        match (Incoming::parse(datagram), &shared.dispatcher) {
            (Ok(Incoming::Reply { xid, rest }), _) => {
                shared.congestion.lock().answered(Instant::now(), xid);
                shared.pending.complete(xid, rest);
            }
            (Ok(Incoming::Call(header, arguments)), Some(dispatcher)) => {
                // Drop calls above the limit, as a network drops datagrams: the server sends them again.
                let Ok(place) = places.clone().try_acquire_owned() else { continue };
                let peer = shared.options.server;
                let call = Call {
                    header,
                    arguments,
                    peer,
                    connection: None,
                    datagrams: None,
                    resent: false,
                    groups: None,
                };
                if let Checked::Call(call) = dispatcher.check(call, true) {
                    tokio::spawn(udp::answer(socket.clone(), dispatcher.clone(), call, place));
                }
            }
            _ => {}
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
