//! Calls in datagrams: one message each, without record marks.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, oneshot};

use xdr::{Decoder, Message};

use crate::account::{Account, Peer, Share};
use crate::connection::{encode_call, reply_message};
use crate::fair::Turn;
use crate::message::{self, CallHeader, Incoming, Refusal};
use crate::server::{Checked, Dispatcher, Unanswered};
use crate::service::{Asked, Call, Outcome};
use crate::tls::TransportSecurity;

/// The largest payload of a UDP datagram.
pub(crate) const DATAGRAM_MAX_BYTES: usize = 65_507;

/// Answers datagrams until the task is aborted. At most `in_flight` calls run at once. Meanwhile, further
/// datagrams wait in the socket's buffer, or are lost if it is full. Datagrams of a peer that holds its share
/// are dropped too.
pub(crate) async fn serve(
    socket: UdpSocket,
    dispatcher: Arc<Dispatcher>,
    in_flight: usize,
    account: Arc<Account>,
) {
    let socket = Arc::new(socket);
    let places = Arc::new(Semaphore::new(in_flight));
    let mut buffer = BytesMut::new();
    loop {
        buffer.resize(DATAGRAM_MAX_BYTES, 0);
        let (length, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // The socket reports ICMP errors of earlier replies here; the socket itself is fine.
                tracing::debug!(%error, "receiving a datagram failed");
                continue;
            }
        };
        let datagram = Bytes::copy_from_slice(&buffer[..length]);
        let mut admitted = dispatcher.service.admits(peer, TransportSecurity::None);
        let reply = match Incoming::parse(datagram) {
            Ok(Incoming::Call(header, arguments)) if !admitted => {
                let (xid, datagrams) = (header.xid, None);
                let call = call(header, arguments, peer, datagrams);
                reply_message(xid, dispatcher.service.turn_away(&call))
            }
            Ok(Incoming::Call(header, arguments)) => {
                // The reply may have the size of the largest datagram.
                let share = account.share(Peer::from(peer.ip()));
                let Some(lease) = share.try_lease(length + DATAGRAM_MAX_BYTES) else { continue };
                let (xid, datagrams) = (header.xid, Some(Datagrams(Arc::downgrade(&socket))));
                match dispatcher.check(call(header, arguments, peer, datagrams), true) {
                    Checked::Answered(outcome) => {
                        admitted = false;
                        reply_message(xid, outcome)
                    }
                    Checked::Call(call) => {
                        let Ok(place) = places.clone().acquire_owned().await else { return };
                        share.turns().note(tokio::time::Instant::now());
                        let asked = Asked::new(&call.call.header, &call.call.arguments);
                        let turn = turn(&dispatcher, &share, peer, &asked);
                        let held = (place, lease);
                        tokio::spawn(answer_in_turn(socket.clone(), dispatcher.clone(), call, turn, held));
                        continue;
                    }
                    Checked::Later(checking) => {
                        let Ok(place) = places.clone().acquire_owned().await else { return };
                        share.turns().note(tokio::time::Instant::now());
                        let (socket, dispatcher) = (socket.clone(), dispatcher.clone());
                        tokio::spawn(async move {
                            let held = (place, lease);
                            match checking.await {
                                Ok(call) => answer(socket, dispatcher, call, held).await,
                                Err(outcome) => reply_to(&socket, peer, xid, outcome).await,
                            }
                        });
                        continue;
                    }
                }
            }
            Ok(Incoming::Mismatch { xid }) => Some(message::refuse(xid, Refusal::RpcMismatch)),
            Ok(Incoming::BadCredential { xid }) => {
                Some(message::refuse(xid, Refusal::Auth(message::AUTH_BADCRED)))
            }
            Ok(Incoming::Reply { .. }) | Err(_) => None,
        };
        let Some(Ok(bytes)) = reply.map(|reply| reply.to_bytes()) else { continue };
        // The source address of a peer that is not admitted may be forged. Such a peer gets no more bytes
        // than came in its name.
        if admitted || bytes.len() <= length {
            crate::term::check();
            let _ = socket.send_to(&bytes, peer).await;
        }
    }
}

/// The socket of a server, for calls to its clients. It does not keep the socket alive.
#[derive(Clone, Debug)]
pub struct Datagrams(pub(crate) Weak<UdpSocket>);

impl Datagrams {
    /// Sends a call once, without waiting for an answer. A caller that needs one must learn of it by other
    /// means, or send the call again. Returns false if the socket is gone or would not take the datagram now.
    pub fn send_call(&self, to: SocketAddr, header: &CallHeader, arguments: Message) -> bool {
        let Some(socket) = self.0.upgrade() else { return false };
        let Ok(bytes) = encode_call(header, arguments).to_bytes() else { return false };
        crate::term::check();
        socket.try_send_to(&bytes, to).is_ok()
    }
}

fn call(header: CallHeader, arguments: Decoder, peer: SocketAddr, datagrams: Option<Datagrams>) -> Call {
    Call { header, arguments, peer, connection: None, datagrams, resent: false, groups: None }
}

/// The turn of a call of an admitted peer, if it must wait for it.
fn turn(
    dispatcher: &Dispatcher,
    share: &Arc<Share>,
    peer: SocketAddr,
    asked: &Asked,
) -> Option<oneshot::Receiver<Turn>> {
    let (turns, bytes) = (share.turns(), asked.arguments.remaining());
    if !turns.must_wait(bytes) {
        return None;
    }
    if dispatcher.service.is_urgent(asked) {
        turns.begin_urgent(bytes);
        return None;
    }
    dispatcher.service.waits(peer);
    Some(turns.enter(bytes + dispatcher.service.reply_bytes(asked)))
}

async fn answer_in_turn(
    socket: Arc<UdpSocket>,
    dispatcher: Arc<Dispatcher>,
    call: Unanswered,
    turn: Option<oneshot::Receiver<Turn>>,
    held: impl Send,
) {
    let turn = match turn {
        Some(turn) => turn.await.ok(),
        None => None,
    };
    answer(socket, dispatcher, call, (turn, held)).await;
}

/// Answers one call of an admitted peer. `held` holds the call's resources until then.
pub(crate) async fn answer(
    socket: Arc<UdpSocket>,
    dispatcher: Arc<Dispatcher>,
    call: Unanswered,
    held: impl Send,
) {
    let (xid, peer) = (call.call.header.xid, call.call.peer);
    let outcome = dispatcher.answer(call, true).await;
    reply_to(&socket, peer, xid, outcome).await;
    drop(held);
}

async fn reply_to(socket: &UdpSocket, peer: SocketAddr, xid: u32, outcome: Outcome) {
    if let Some(Ok(bytes)) = reply_message(xid, outcome).map(|message| message.to_bytes()) {
        crate::term::check();
        if let Err(error) = socket.send_to(&bytes, peer).await {
            tracing::debug!(%peer, %error, "a reply could not be sent");
        }
    }
}
