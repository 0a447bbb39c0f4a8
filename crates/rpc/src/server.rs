//! Listens for calls on TCP and UDP, within limits for the whole process. [`crate::connections`] decides
//! which connections stay, [`crate::account`] bounds memory, and [`crate::fair`] divides the time between
//! peers.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::account::{Account, Peer};
use crate::auth::Credential;
use crate::connection::{Accepted, Connection, Limits};
use crate::connections::{self, Bounds, Connections, Occupant};
use crate::fair::{Fair, Sharing};
use crate::memory;
use crate::message::{AUTH_REJECTEDCRED, AUTH_TOOWEAK, Refusal};
use crate::pending::Pending;
use crate::replay::{self, ReplyCache, ReplyLifetime, Sender};
use crate::rpcsec_gss::{self, Admission, Seal};
use crate::service::{Answering, Call, Outcome, Remember, Service};
use crate::tls::{Acceptor, TransportSecurity};
use crate::udp;
use crate::wire::Wire;

/// Where a server listens, and its limits.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address and port; port 0 takes a free one, the same for TCP and UDP.
    pub listen: SocketAddr,
    /// Listen on UDP too.
    pub udp: bool,
    /// Most connections at once. Above this limit, connections with nothing in flight give way.
    pub connections_max: usize,
    /// Most bytes of requests and replies in memory, over all connections.
    pub in_flight_max_bytes: usize,
    /// Limits of each connection.
    pub limits: Limits,
    /// How the peers share what the server has.
    pub sharing: Sharing,
    /// Offers TLS on TCP.
    pub tls: Option<Arc<Acceptor>>,
    /// Takes calls of users with a context of Kerberos.
    pub gss: Option<Arc<rpcsec_gss::Acceptor>>,
}

impl ServerOptions {
    /// TCP and UDP on an address, with limits that fit the machine. Raises the limit of open files to the
    /// maximum allowed.
    pub fn new(listen: SocketAddr) -> ServerOptions {
        ServerOptions {
            listen,
            udp: true,
            connections_max: connections::for_descriptors(connections::descriptors()),
            in_flight_max_bytes: memory::default_in_flight(),
            limits: Limits::default(),
            sharing: Sharing::default(),
            tls: None,
            gss: None,
        }
    }
}

/// Most connections that wait to be accepted (listen(2); the system's bound is `net.core.somaxconn`). Beyond
/// that the system drops a SYN, and the client sends the next one after a second. All clients of a site may
/// come back at once after a restart.
const BACKLOG: u32 = 4096;

/// Interval of checking the connections.
const TICK: Duration = Duration::from_secs(1);
/// If the bytes in flight have fallen by this much, the allocator must give memory back to the system.
const FALLEN_BYTES: usize = 64 << 20;
/// The same for buffers that idle connections have given up.
const GIVEN_UP_BYTES: usize = 4 << 20;

/// The connections; the tasks and the server share this table.
type Table = Mutex<Connections<Connection>>;

/// A listening server. Dropping it stops listening and ends its connections.
#[derive(Debug)]
pub struct Server {
    local: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
    connections: Arc<Table>,
    account: Arc<Account>,
    dispatcher: Arc<Dispatcher>,
}

/// The resource usage of a server.
#[derive(Clone, Debug)]
pub struct Load {
    connections: Arc<Table>,
    account: Arc<Account>,
    gss: Option<Arc<rpcsec_gss::Acceptor>>,
}

impl Load {
    /// The contexts of users of Kerberos.
    pub fn contexts(&self) -> usize {
        self.gss.as_ref().map_or(0, |gss| gss.contexts())
    }

    /// The number of connections, and its limit.
    pub fn connections(&self) -> (usize, usize) {
        let table = self.connections.lock();
        (table.len(), table.most())
    }

    /// The bytes in flight, and their limit.
    pub fn in_flight(&self) -> (usize, usize) {
        (self.account.bytes(), self.account.limit())
    }

    /// Calls that have waited because their peer had its part of the calls in progress, or was at a limit of
    /// its rates.
    pub fn waited(&self) -> u64 {
        self.account.fair().waited()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.connections.lock().end_all();
    }
}

impl Server {
    /// Binds the sockets and starts to answer.
    ///
    /// # Errors
    /// The error of `bind`, for instance `AddrInUse`.
    pub async fn start(
        options: ServerOptions,
        service: Arc<dyn Service>,
        replies: Arc<ReplyCache>,
    ) -> io::Result<Server> {
        let dispatcher =
            Arc::new(Dispatcher { service, replies, tls: options.tls.clone(), gss: options.gss.clone() });
        let (listener, datagrams) = bind(options.listen, options.udp).await?;
        let local = listener.local_addr()?;
        let account = Account::beside(options.in_flight_max_bytes, Fair::new(options.sharing));
        let connections = Arc::new(Mutex::new(Connections::new(Bounds::of(options.connections_max))));
        let accepting = Accepting {
            dispatcher: dispatcher.clone(),
            limits: options.limits,
            account: account.clone(),
            connections: Arc::clone(&connections),
        };
        let mut tasks = vec![
            tokio::spawn(accepting.run(listener)),
            tokio::spawn(keep_bounds(account.clone(), Arc::clone(&connections))),
        ];
        if let Some(socket) = datagrams {
            let (dispatcher, account) = (dispatcher.clone(), account.clone());
            tasks.push(tokio::spawn(udp::serve(socket, dispatcher, options.limits.calls_in_flight, account)));
        }
        Ok(Server { local, tasks, connections, account, dispatcher })
    }

    /// A handle that reports the usage.
    pub fn load(&self) -> Load {
        let (connections, account) = (Arc::clone(&self.connections), self.account.clone());
        Load { connections, account, gss: self.dispatcher.gss.clone() }
    }

    /// [`Service::admits`] answers otherwise from now on. Ends the connections of peers for whom it does: they
    /// connect again.
    pub fn judge_again(&self, service: &dyn Service) {
        self.connections.lock().judge_again(|connection, listed| {
            let (peer, security) = (connection.peer(), connection.security());
            self.dispatcher.lists_by(service, peer) == listed
                && service.admits(peer, security) == connection.is_admitted()
        });
    }

    /// The address and port on which the server listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

async fn bind(address: SocketAddr, udp: bool) -> io::Result<(TcpListener, Option<UdpSocket>)> {
    // A free TCP port need not be free for UDP: with port 0, try a few.
    let mut attempts = if address.port() == 0 { 16 } else { 1 };
    loop {
        let listener = listen(address)?;
        if !udp {
            return Ok((listener, None));
        }
        attempts -= 1;
        match UdpSocket::bind(listener.local_addr()?).await {
            Ok(socket) => return Ok((listener, Some(socket))),
            Err(error) if attempts == 0 => return Err(error),
            Err(_) => {}
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Without it, connections of a predecessor in TIME_WAIT would keep the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// The context for every new connection.
struct Accepting {
    dispatcher: Arc<Dispatcher>,
    limits: Limits,
    account: Arc<Account>,
    connections: Arc<Table>,
}

impl Accepting {
    async fn run(self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.take(stream, peer),
                Err(error) => {
                    // Most likely the process has no descriptor left. One becomes free when the tasks of a
                    // connection have ended.
                    let relieved = self.connections.lock().relieve(Instant::now());
                    tracing::warn!(%error, relieved, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(if relieved { 5 } else { 100 })).await;
                }
            }
        }
    }

    fn take(&self, stream: TcpStream, address: SocketAddr) {
        let (peer, now) = (Peer::from(address.ip()), Instant::now());
        let admitted = self.dispatcher.service.admits(address, TransportSecurity::None);
        let listed = self.dispatcher.lists(address);
        if !self.connections.lock().admit(peer, listed, now) {
            tracing::warn!(peer = %address.ip(), "too many busy connections: a new one is closed");
            return;
        }
        let accepted = Accepted { admitted, listed, share: self.account.share(peer) };
        let dispatcher = Some(self.dispatcher.clone());
        let wire = Wire::new(stream, None);
        match Connection::start(wire, Arc::<Pending>::default(), dispatcher, self.limits, Some(accepted)) {
            Ok(connection) => {
                self.connections.lock().enter(peer, listed, Arc::downgrade(&connection), now);
                // The rules may have changed in between, and `judge_again` has not seen this connection.
                let now_admitted = self.dispatcher.service.admits(address, TransportSecurity::None);
                if now_admitted != admitted || self.dispatcher.lists(address) != listed {
                    Occupant::end(&*connection);
                }
            }
            Err(error) => tracing::debug!(%error, "a connection that ended as it began"),
        }
    }
}

/// Ends connections that exceed their time, and connections of a peer that starves others. Gives memory back
/// to the system.
async fn keep_bounds(account: Arc<Account>, connections: Arc<Table>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut given_up = 0;
    loop {
        ticks.tick().await;
        let now = Instant::now();
        given_up += connections.lock().tick(now);
        account.fair().forget_absent();
        if let Some(peer) = account.starving_others() {
            let ended = connections.lock().end_stalled(peer, now);
            if ended > 0 {
                tracing::warn!(
                    ?peer,
                    ended,
                    "connections that take no replies kept others from being served"
                );
            }
        }
        if account.fallen_by(FALLEN_BYTES) > 0 || given_up > GIVEN_UP_BYTES {
            given_up = 0;
            // An error means that the runtime is shutting down, so ignore it.
            let _ = tokio::task::spawn_blocking(memory::give_back).await;
        }
    }
}

/// A service behind its reply cache.
pub(crate) struct Dispatcher {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) replies: Arc<ReplyCache>,
    /// Offers TLS to callers.
    pub(crate) tls: Option<Arc<Acceptor>>,
    /// Checks calls with a context. Without it, they are refused.
    pub(crate) gss: Option<Arc<rpcsec_gss::Acceptor>>,
}

/// A call whose user is checked, if there is anything to check.
pub(crate) struct Unanswered {
    pub(crate) call: Call,
    /// Protects the reply.
    seal: Option<Seal>,
}

/// The result of [`Dispatcher::check`].
pub(crate) enum Checked {
    /// The call may run.
    Call(Unanswered),
    /// It must not run.
    Answered(Outcome),
    /// The check takes time: one or the other comes later.
    Later(Pin<Box<dyn Future<Output = Result<Unanswered, Outcome>> + Send>>),
}

impl std::fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dispatcher")
    }
}

impl Dispatcher {
    /// May this peer call at all, over a connection that it can have?
    fn lists(&self, peer: SocketAddr) -> bool {
        self.lists_by(&*self.service, peer)
    }

    fn lists_by(&self, service: &dyn Service, peer: SocketAddr) -> bool {
        let possible = |security: &TransportSecurity| match (&self.tls, security) {
            (Some(tls), TransportSecurity::Mtls) => tls.verifies_clients(),
            (None, TransportSecurity::Mtls | TransportSecurity::Tls) => false,
            (Some(_), TransportSecurity::Tls) | (_, TransportSecurity::None) => true,
        };
        TransportSecurity::ALL.into_iter().filter(possible).any(|security| service.admits(peer, security))
    }

    /// Answers a call, or returns the reply that the cache keeps for it. `admitted` is the answer of
    /// [`Service::admits`] for the peer.
    pub(crate) fn answer(
        self: &Arc<Dispatcher>,
        Unanswered { call, seal }: Unanswered,
        admitted: bool,
    ) -> Answering {
        if !admitted {
            return Box::pin(std::future::ready(self.service.turn_away(&call)));
        }
        match seal {
            None => self.answer_bare(call),
            Some(seal) => {
                let (xid, answering) = (call.header.xid, self.answer_bare(call));
                Box::pin(async move { seal.outcome(xid, answering.await).await })
            }
        }
    }

    /// Checks the user of a call, before anything is kept of the call.
    pub(crate) fn check(self: &Arc<Dispatcher>, mut call: Call, admitted: bool) -> Checked {
        let Credential::Gss(claim) = &call.header.credential else {
            // Without Kerberos, the peer was admitted for calls that prove nothing.
            if admitted && self.gss.is_some() && !self.service.takes(&call) {
                return Checked::Answered(self.service.turn_away(&call));
            }
            return Checked::Call(Unanswered { call, seal: None });
        };
        let Some(gss) = self.gss.clone().filter(|_| admitted) else {
            let refusal = if admitted { AUTH_REJECTEDCRED } else { AUTH_TOOWEAK };
            return Checked::Answered(Refusal::Auth(refusal).into());
        };
        let claim = claim.clone();
        Checked::Later(Box::pin(async move {
            match gss.admit(&mut call, &claim).await {
                Admission::Execute(seal) => Ok(Unanswered { call, seal: Some(seal) }),
                Admission::Answered(outcome) => Err(outcome),
            }
        }))
    }

    fn answer_bare(self: &Arc<Dispatcher>, call: Call) -> Answering {
        match self.service.remember(&call) {
            Remember::No => self.service.clone().call(call),
            Remember::Reply => Box::pin(self.clone().answer_once(call, None, ReplyLifetime::Kept)),
            Remember::UntilHeard { sessionless } => {
                Box::pin(self.clone().answer_once(call, sessionless, ReplyLifetime::UntilHeard))
            }
            Remember::InSession { sessionless } => {
                Box::pin(self.clone().answer_once(call, Some(sessionless), ReplyLifetime::Slot))
            }
        }
    }

    async fn answer_once(
        self: Arc<Dispatcher>,
        mut call: Call,
        sessionless: Option<Bytes>,
        lifetime: ReplyLifetime,
    ) -> Outcome {
        let connection = call.connection.as_ref().map(|connection| connection.number_of_one_that_remembers());
        let sender = Sender { address: call.peer, connection };
        let arguments = call.arguments.rest();
        let arguments = (&arguments[..], sessionless.as_deref());
        let (slot, resent) = match self.replies.admit(sender, &call.header, arguments, lifetime) {
            replay::Admission::Execute { slot, resent } => {
                call.resent = resent;
                (slot, resent)
            }
            replay::Admission::Answered(message) => return Outcome::Reply(message),
            replay::Admission::Running(mut done) => {
                return match done.wait_for(Option::is_some).await {
                    Ok(message) => message.clone().map_or(Outcome::Drop, Outcome::Reply),
                    // The call was given up. The client sends it again, and then it runs again.
                    Err(_) => Outcome::Drop,
                };
            }
        };
        let outcome = self.service.clone().call(call).await;
        match &outcome {
            Outcome::Reply(message) => slot.complete(message),
            Outcome::PutOff(message) => slot.put_off(message),
            // An earlier incarnation may have executed this call, so its next copy must be marked as resent
            // again.
            Outcome::Drop if resent => {}
            Outcome::Refuse(_) | Outcome::Drop => slot.forget(),
        }
        outcome
    }
}

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Outcome {
        Outcome::Refuse(refusal)
    }
}
