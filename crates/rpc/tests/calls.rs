//! Calls between a real server and real links, on loopback.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rpc::message::{CallHeader, Refusal};
use rpc::service::{Answering, Outcome, Remember};
use rpc::{Answer, Call, CallError, Credential, Link, LinkOptions, Outgoing, Patience, ReplyCache, Server};
use rpc::{ServerOptions, Service, Transport};
use tokio::sync::Semaphore;
use xdr::{Bulk, Decode, Encode, Encoder, FileRange};

const PROGRAM: u32 = 400_001;
const ECHO: u32 = 1;
const COUNT: u32 = 2;
const WAIT: u32 = 3;
const FILE: u32 = 4;
const CALL_BACK: u32 = 5;
const DROP_ONCE: u32 = 6;
const COUNT_UNTIL_HEARD: u32 = 7;
const SPIN: u32 = 8;

struct Echo {
    counted: AtomicU32,
    gate: Semaphore,
    file: Arc<std::fs::File>,
}

impl Echo {
    fn new() -> Arc<Echo> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&(0..1_000_000u32).flat_map(u32::to_be_bytes).collect::<Vec<_>>()).unwrap();
        Arc::new(Echo { counted: AtomicU32::new(0), gate: Semaphore::new(0), file: Arc::new(file) })
    }
}

impl Service for Echo {
    fn call(self: Arc<Self>, mut call: Call) -> Answering {
        Box::pin(async move {
            let mut reply = call.reply();
            match call.header.procedure {
                ECHO => reply.raw(&call.arguments.rest()),
                COUNT_UNTIL_HEARD => {
                    reply.u32(0);
                    reply.u32(self.counted.fetch_add(1, Ordering::SeqCst) << 1 | u32::from(call.resent));
                }
                SPIN => {
                    let until = std::time::Instant::now() + Duration::from_micros(300);
                    while std::time::Instant::now() < until {}
                    self.counted.fetch_add(1, Ordering::SeqCst);
                }
                COUNT => reply.u32(self.counted.fetch_add(1, Ordering::SeqCst)),
                WAIT => self.gate.acquire().await.unwrap().forget(),
                FILE => {
                    let Ok(length) = call.arguments.u32() else { return Refusal::GarbageArguments.into() };
                    let range = FileRange { file: self.file.clone(), offset: 4, length, pin: None };
                    reply.u32(7);
                    Bulk::File(range).encode(&mut reply);
                    reply.u32(9);
                }
                DROP_ONCE if self.counted.fetch_add(1, Ordering::SeqCst) == 0 => return Outcome::Drop,
                DROP_ONCE => reply.u32(u32::from(call.resent)),
                CALL_BACK => {
                    let connection = call.connection.clone().unwrap();
                    let header =
                        CallHeader { xid: connection.xid(), procedure: COUNT, ..call.header.clone() };
                    let mut results =
                        connection.call(header, Encoder::new().finish()).await.unwrap().unwrap();
                    reply.u32(results.u32().unwrap());
                }
                _ => return Outcome::Refuse(Refusal::ProcedureUnavailable),
            }
            Outcome::Reply(reply.finish())
        })
    }

    fn remember(&self, call: &Call) -> Remember {
        match call.header.procedure {
            COUNT | DROP_ONCE => Remember::Reply,
            COUNT_UNTIL_HEARD => Remember::UntilHeard { sessionless: None },
            _ => Remember::No,
        }
    }
}

async fn server(service: Arc<Echo>) -> Server {
    let options = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    Server::start(options, service, ReplyCache::volatile()).await.unwrap()
}

fn outgoing(procedure: u32, arguments: &[u8]) -> Outgoing {
    let mut encoder = Encoder::new();
    encoder.raw(arguments);
    Outgoing {
        program: PROGRAM,
        version: 1,
        procedure,
        credential: Credential::None,
        arguments: encoder.finish(),
    }
}

async fn call(link: &Link, procedure: u32, arguments: &[u8]) -> Result<Answer, CallError> {
    tokio::time::timeout(Duration::from_secs(30), link.call(outgoing(procedure, arguments), Patience::Hard))
        .await
        .expect("an answer within 30 s")
}

fn link(server: &Server, transport: Transport) -> Link {
    Link::new(LinkOptions {
        transport,
        timeo: Duration::from_millis(700),
        ..LinkOptions::new(server.local_addr())
    })
}

#[tokio::test]
async fn a_server_that_takes_connections_and_closes_them_is_not_asked_more_and_more_often() {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let link = Link::new(LinkOptions::new(listener.local_addr().unwrap()));
    let taken = Arc::new(AtomicU32::new(0));
    let counted = taken.clone();
    let taking = tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let call = Outgoing {
        program: PROGRAM,
        version: 1,
        procedure: ECHO,
        credential: Credential::None,
        arguments: Encoder::new().finish(),
    };
    let until = tokio::time::Instant::now() + Duration::from_secs(2);
    assert!(link.call(call, Patience::Until(until)).await.is_err());
    taking.abort();
    // Attempts come after 50, 100, 200, 400 and 800 ms.
    assert!((1..=8).contains(&taken.load(Ordering::SeqCst)), "{} times", taken.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_thousand_clients_that_come_at_once_all_get_a_connection() {
    let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let clients = allowed.trim().parse::<usize>().unwrap().min(1_000);
    let server = server(Echo::new()).await;
    // The server runs on this thread, so it accepts none of them before all have come.
    let connect =
        |_| std::net::TcpStream::connect_timeout(&server.local_addr(), Duration::from_millis(900)).unwrap();
    let connections: Vec<_> = (0..clients).map(connect).collect();
    assert_eq!(connections.len(), clients);
}

#[tokio::test]
async fn others_do_not_wait_for_all_calls_that_one_read_has_brought() {
    use tokio::io::AsyncWriteExt;
    const CALLS: u32 = 300;
    let service = Echo::new();
    let server = server(service.clone()).await;
    let mut busy = tokio::net::TcpStream::connect(server.local_addr()).await.unwrap();
    let mut calls = Vec::new();
    for xid in 0..CALLS {
        let credential = Credential::None;
        let header = CallHeader { xid, program: PROGRAM, version: 1, procedure: SPIN, credential };
        let call = xdr::to_bytes(&header).unwrap();
        calls.extend_from_slice(&(call.len() as u32 | 1 << 31).to_be_bytes());
        calls.extend_from_slice(&call);
    }
    busy.write_all(&calls).await.unwrap();
    call(&link(&server, Transport::Tcp), ECHO, b"").await.unwrap();
    let done = service.counted.load(Ordering::SeqCst);
    assert!(done < CALLS, "all of {done} calls were answered first");
}

#[tokio::test]
async fn a_call_that_was_dropped_is_a_new_one_when_it_comes_again() {
    let service = Echo::new();
    let server = server(service.clone()).await;
    let link = link(&server, Transport::Udp);
    let resent = call(&link, DROP_ONCE, b"").await.unwrap().results.u32();
    assert_eq!((resent, service.counted.load(Ordering::SeqCst)), (Ok(0), 2));
}

/// Makes one call on a stream, as a client that chooses its own xids, and returns the last word of the reply.
async fn count_by(stream: &mut tokio::net::TcpStream, xid: u32) -> u32 {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let header = CallHeader {
        xid,
        program: PROGRAM,
        version: 1,
        procedure: COUNT_UNTIL_HEARD,
        credential: Credential::None,
    };
    let call = xdr::to_bytes(&header).unwrap();
    stream.write_u32(call.len() as u32 | 1 << 31).await.unwrap();
    stream.write_all(&call).await.unwrap();
    let mut reply = vec![0; (stream.read_u32().await.unwrap() & 0x7fff_ffff) as usize];
    stream.read_exact(&mut reply).await.unwrap();
    u32::from_be_bytes(*reply.last_chunk().unwrap())
}

// Promise: calls-that-take-effect-once
#[tokio::test]
async fn a_client_whose_xids_start_over_is_not_told_of_before_and_one_whose_connection_broke_is() {
    let server = server(Echo::new()).await;
    let connect = async || tokio::net::TcpStream::connect(server.local_addr()).await.unwrap();
    let mut broken = connect().await;
    assert_eq!(count_by(&mut broken, 1).await, 0);
    // The client aborts the connection, so the server cannot know which replies it has read.
    socket2::SockRef::from(&broken).set_linger(Some(Duration::ZERO)).unwrap();
    drop(broken);
    let mut stream = connect().await;
    assert_eq!(count_by(&mut stream, 1).await, 0, "answered from the cache");
    assert_eq!(count_by(&mut stream, 2).await, 2, "the second call that runs");
    drop(stream);
    // The client closes in order after reading. Once the server has seen that, the same bytes are a new call.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        match count_by(&mut connect().await, 2).await {
            2 if tokio::time::Instant::now() < deadline => {}
            counted => break assert_eq!(counted, 2 << 1 | 1, "run again, and marked as resent"),
        }
    }
}

#[tokio::test]
async fn many_calls_on_one_connection_come_back_in_any_order() {
    let service = Echo::new();
    let server = server(service.clone()).await;
    let link = Arc::new(link(&server, Transport::Tcp));
    let waiting = tokio::spawn({
        let link = link.clone();
        async move { call(&link, WAIT, b"").await.is_ok() }
    });
    let echoes = (0..500u32).map(|number| {
        let link = link.clone();
        tokio::spawn(async move { call(&link, ECHO, &number.to_be_bytes()).await.unwrap().results.u32() })
    });
    for (number, echo) in echoes.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(echo.await.unwrap(), Ok(number as u32));
    }
    assert!(!waiting.is_finished());
    service.gate.add_permits(1);
    assert!(waiting.await.unwrap());
}

#[tokio::test]
async fn file_ranges_arrive_whole_between_what_surrounds_them() {
    let server = server(Echo::new()).await;
    let link = link(&server, Transport::Tcp);
    for length in [0u32, 3, 65_536, 1_048_577] {
        let mut results = call(&link, FILE, &length.to_be_bytes()).await.unwrap().results;
        assert_eq!(results.u32(), Ok(7));
        let Ok(Bulk::Bytes(data)) = Bulk::decode(&mut results) else { panic!("bytes") };
        let expected = (1..).flat_map(u32::to_be_bytes).take(length as usize).collect::<Vec<_>>();
        assert!(data == expected, "{length} bytes");
        assert_eq!(results.u32(), Ok(9));
        assert_eq!(results.finish(), Ok(()));
    }
}

#[tokio::test]
async fn a_file_that_shrank_ends_the_connection_and_the_call_is_sent_again() {
    let service = Echo::new();
    let server = server(service.clone()).await;
    let link = link(&server, Transport::Tcp);
    service.file.set_len(1000).unwrap();
    let broken =
        tokio::spawn(async move { call(&link, FILE, &4000u32.to_be_bytes()).await.map(|a| a.retransmitted) });
    while !broken.is_finished() {
        service.file.set_len(5000).unwrap();
        tokio::task::yield_now().await;
    }
    assert!(broken.await.unwrap().is_ok());
}

#[tokio::test]
async fn the_server_calls_back_on_the_clients_connection() {
    let (front, back) = (Echo::new(), Echo::new());
    back.counted.store(40, Ordering::SeqCst);
    let server = server(front).await;
    let link =
        Link::with_service(LinkOptions::new(server.local_addr()), back.clone(), ReplyCache::volatile());
    assert_eq!(call(&link, CALL_BACK, b"").await.unwrap().results.u32(), Ok(40));
    assert_eq!(back.counted.load(Ordering::SeqCst), 41);
}

#[tokio::test]
async fn datagrams_are_sent_again_with_the_same_xid_and_counted_once() {
    // A relay that loses the first two datagrams of every call.
    let service = Echo::new();
    let server = server(service.clone()).await;
    let lossy = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = lossy.local_addr().unwrap();
    let target = server.local_addr();
    tokio::spawn(async move {
        let onward = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (mut buffer, mut seen) = (vec![0; 65_536], std::collections::HashMap::new());
        loop {
            let (length, from) = lossy.recv_from(&mut buffer).await.unwrap();
            let count = seen.entry(buffer[..4].to_vec()).and_modify(|count| *count += 1).or_insert(1);
            // The third datagram gets through but its reply is lost. The reply cache answers the fourth.
            if *count >= 3 {
                onward.send_to(&buffer[..length], target).await.unwrap();
                let (length, _) = onward.recv_from(&mut buffer).await.unwrap();
                if *count >= 4 {
                    lossy.send_to(&buffer[..length], from).await.unwrap();
                }
            }
        }
    });
    let options = LinkOptions {
        transport: Transport::Udp,
        timeo: Duration::from_millis(50),
        ..LinkOptions::new(address)
    };
    let link = Link::new(options);
    let answer = call(&link, COUNT, b"").await.unwrap();
    assert!(answer.retransmitted);
    assert_eq!(service.counted.load(Ordering::SeqCst), 1);
    assert!(matches!(
        link.call(outgoing(ECHO, &vec![0; 70_000]), Patience::Hard).await,
        Err(CallError::TooLarge(_))
    ));
}

#[tokio::test]
async fn a_lost_connection_is_made_again_and_the_call_resent() {
    // The first connection reads the call and closes. The second one reaches the server.
    let service = Echo::new();
    let server = server(service.clone()).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let target = server.local_addr();
    let thread = std::thread::spawn(move || {
        let (mut first, _) = listener.accept().unwrap();
        let mut xid_of_first = [0; 8];
        first.read_exact(&mut xid_of_first).unwrap();
        drop(first);
        let (mut second, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        let length = second.read(&mut buffer).unwrap();
        assert_eq!(buffer[4..8], xid_of_first[4..8]);
        let mut onward = std::net::TcpStream::connect(target).unwrap();
        onward.write_all(&buffer[..length]).unwrap();
        let length = onward.read(&mut buffer).unwrap();
        second.write_all(&buffer[..length]).unwrap();
    });
    let link = Link::new(LinkOptions::new(address));
    let answer = call(&link, COUNT, b"").await.unwrap();
    assert!(answer.retransmitted);
    thread.join().unwrap();
}

/// The test blocks the runtime's only thread after the call's first poll, so no task of the connection can
/// have sent the call.
#[tokio::test]
async fn a_call_that_is_alone_is_sent_on_the_spot() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::new(LinkOptions::new(listener.local_addr().unwrap()));
    let (arrived, arrivals) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        for _ in 0..2 {
            let length = peer.read(&mut buffer).unwrap();
            arrived.send(length).unwrap();
            let mut accepted = Encoder::new();
            accepted.raw(&buffer[4..8]);
            [1, 0, 0, 0, 0].into_iter().for_each(|word| accepted.u32(word));
            let accepted = accepted.finish().to_bytes().unwrap();
            peer.write_all(&(1 << 31 | accepted.len() as u32).to_be_bytes()).unwrap();
            peer.write_all(&accepted).unwrap();
        }
    });
    call(&link, ECHO, b"connects").await.unwrap();
    assert!(arrivals.try_recv().unwrap() > 8);

    let mut second = Box::pin(call(&link, ECHO, b"is alone"));
    assert!(
        std::future::poll_fn(|context| std::task::Poll::Ready(second.as_mut().poll(context)))
            .await
            .is_pending()
    );
    assert!(arrivals.recv_timeout(Duration::from_secs(30)).unwrap() > 8);
    second.await.unwrap();
    thread.join().unwrap();
}

/// A link may connect before its first call. Without a server it tries once.
#[tokio::test]
async fn a_link_is_prepared_without_a_call() {
    let server = server(Echo::new()).await;
    let prepared = link(&server, Transport::Tcp);
    assert!(!prepared.connected().up);
    prepared.prepare();
    let connected = prepared.watch().wait_for(|connected| connected.up).await.map(|connected| *connected);
    assert_eq!(connected.unwrap().generation, 1);
    let answer = call(&prepared, ECHO, b"echo").await.unwrap();
    assert_eq!(answer.results.remaining(), 4);
    assert_eq!(prepared.connected().generation, 1, "the call goes over the same connection");
}

#[tokio::test]
async fn a_silent_server_ends_a_soft_callers_patience() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::new(LinkOptions::new(listener.local_addr().unwrap()));
    let patience = Patience::Until(tokio::time::Instant::now() + Duration::from_millis(100));
    assert!(matches!(link.call(outgoing(ECHO, b""), patience).await, Err(CallError::TimedOut)));
}

#[tokio::test]
async fn bad_input_is_refused_or_ends_its_connection_alone() {
    let server = server(Echo::new()).await;
    let good = link(&server, Transport::Tcp);
    assert!(matches!(call(&good, 77, b"").await, Err(CallError::Refused(Refusal::ProcedureUnavailable))));
    assert!(matches!(call(&good, FILE, b"").await, Err(CallError::Refused(Refusal::GarbageArguments))));
    for bad in [&b"\xff\xff\xff\xff"[..], b"\x80\0\0\x04abcd", b"\x80\0\0\x0c\0\0\0\x01\0\0\0\x07\0\0\0\x02"]
    {
        let mut stream = std::net::TcpStream::connect(server.local_addr()).unwrap();
        stream.write_all(bad).unwrap();
        let gone = tokio::task::spawn_blocking(move || stream.read(&mut [0; 16]));
        assert!(matches!(gone.await.unwrap(), Ok(0) | Err(_)));
    }
    let mut stream = std::net::TcpStream::connect(server.local_addr()).unwrap();
    let mismatch = [[0x80, 0, 0, 16], [0, 0, 0, 9], [0; 4], [0, 0, 0, 3], [0; 4]].concat();
    stream.write_all(&mismatch).unwrap();
    let mut reply = [0; 28];
    let reply = tokio::task::spawn_blocking(move || stream.read_exact(&mut reply).map(|()| reply))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        reply[4..],
        [[0, 0, 0, 9], [0, 0, 0, 1], [0, 0, 0, 1], [0; 4], [0, 0, 0, 2], [0, 0, 0, 2]].concat()
    );
    assert_eq!(call(&good, ECHO, b"abcd").await.unwrap().results.rest(), Bytes::from_static(b"abcd"));
}
