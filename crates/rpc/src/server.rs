//! Listening for calls, on TCP and UDP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::connection::{Connection, Limits};
use crate::message::Refusal;
use crate::pending::Pending;
use crate::replay::{Admission, Lasting, ReplyCache, Sender};
use crate::service::{Answering, Call, Outcome, Remember, Service};
use crate::udp;

/// Where and within which bounds to listen.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// Address and port; port 0 takes a free one, the same for TCP and UDP.
    pub listen: SocketAddr,
    /// UDP too.
    pub udp: bool,
    /// Connections at once; more are closed as they come.
    pub connections_max: usize,
    /// Of each connection.
    pub limits: Limits,
}

impl ServerOptions {
    /// TCP and UDP on an address, with the usual bounds.
    pub fn new(listen: SocketAddr) -> ServerOptions {
        ServerOptions { listen, udp: true, connections_max: 4096, limits: Limits::default() }
    }
}

/// A listening server. Dropping it stops listening and ends its connections' intake.
#[derive(Debug)]
pub struct Server {
    local: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
    connections: Arc<parking_lot::Mutex<Vec<std::sync::Weak<Connection>>>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        for connection in self.connections.lock().drain(..) {
            if let Some(connection) = connection.upgrade() {
                connection.close();
            }
        }
    }
}

impl Server {
    /// Binds and starts to answer.
    ///
    /// # Errors
    /// What `bind` says, for instance `AddrInUse`.
    pub async fn start(
        options: ServerOptions,
        service: Arc<dyn Service>,
        replies: Arc<ReplyCache>,
    ) -> io::Result<Server> {
        let dispatcher = Arc::new(Dispatcher { service, replies });
        let (listener, datagrams) = bind(options).await?;
        let local = listener.local_addr()?;
        let connections = Arc::default();
        let mut tasks =
            vec![tokio::spawn(accept(listener, dispatcher.clone(), options, Arc::clone(&connections)))];
        if let Some(socket) = datagrams {
            tasks.push(tokio::spawn(udp::serve(socket, dispatcher, options.limits.calls_in_flight)));
        }
        Ok(Server { local, tasks, connections })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

async fn bind(options: ServerOptions) -> io::Result<(TcpListener, Option<UdpSocket>)> {
    // A free TCP port need not be free for UDP: with port 0, try a few.
    let mut attempts = if options.listen.port() == 0 { 16 } else { 1 };
    loop {
        let listener = TcpListener::bind(options.listen).await?;
        if !options.udp {
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

async fn accept(
    listener: TcpListener,
    dispatcher: Arc<Dispatcher>,
    options: ServerOptions,
    connections: Arc<parking_lot::Mutex<Vec<std::sync::Weak<Connection>>>>,
) {
    let places = Arc::new(Semaphore::new(options.connections_max));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: let some close before the next try.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            tracing::warn!(limit = options.connections_max, "too many connections: closing a new one");
            continue;
        };
        match Connection::start(stream, Arc::<Pending>::default(), Some(dispatcher.clone()), options.limits) {
            Ok(connection) => {
                let mut all = connections.lock();
                all.retain(|connection| connection.strong_count() > 0);
                all.push(Arc::downgrade(&connection));
                tokio::spawn(async move {
                    connection.closed().await;
                    drop(place);
                });
            }
            Err(error) => tracing::debug!(%error, "a connection that ended as it began"),
        }
    }
}

/// A service behind its reply cache.
pub(crate) struct Dispatcher {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) replies: Arc<ReplyCache>,
}

impl Dispatcher {
    /// Answers a call, or gives the answer that was given before.
    /// `admitted` is what [`Service::admits`] says of the peer.
    pub(crate) fn answer(self: &Arc<Dispatcher>, call: Call, admitted: bool) -> Answering {
        if !admitted {
            return Box::pin(std::future::ready(self.service.turn_away(&call)));
        }
        match self.service.remember(&call) {
            Remember::No => self.service.clone().call(call),
            Remember::Reply => Box::pin(self.clone().answer_once(call, Lasting::Kept)),
            Remember::UntilHeard => Box::pin(self.clone().answer_once(call, Lasting::UntilHeard)),
        }
    }

    async fn answer_once(self: Arc<Dispatcher>, mut call: Call, lasting: Lasting) -> Outcome {
        let connection = call.connection.as_ref().map(|connection| connection.number_of_one_that_remembers());
        let sender = Sender { address: call.peer, connection };
        let arguments = call.arguments.rest();
        let (slot, resent) = match self.replies.admit(sender, &call.header, &arguments, lasting) {
            Admission::Execute { slot, resent } => {
                call.resent = resent;
                (slot, resent)
            }
            Admission::Answered(message) => return Outcome::Reply(message),
            Admission::Running(mut done) => {
                return match done.wait_for(Option::is_some).await {
                    Ok(message) => message.clone().map_or(Outcome::Drop, Outcome::Reply),
                    // Given up by the task that ran it: the client asks again, and then it runs anew.
                    Err(_) => Outcome::Drop,
                };
            }
        };
        let outcome = self.service.clone().call(call).await;
        match &outcome {
            Outcome::Reply(message) => slot.complete(message),
            // What an earlier life may have carried out is still that when it comes again.
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
