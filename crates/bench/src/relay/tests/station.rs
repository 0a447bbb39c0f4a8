//! Tests of a station behind relays, over sockets. A busy machine may delay replies, but none may be early.

use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::nfs3;
use rpc::Credential;
use rpc::message::CallHeader;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::timeout;
use xdr::{Encode, Encoder};

use super::{PATIENCE, connect, echo, echo_datagrams};
use crate::relay::{Options, Relay, Station};

const SERVICE: Duration = Duration::from_millis(20);

fn call(xid: u32) -> Vec<u8> {
    let (program, version) = (nfs3::PROGRAM, nfs3::VERSION);
    let mut encoder = Encoder::new();
    CallHeader { xid, program, version, procedure: 1, credential: Credential::None }.encode(&mut encoder);
    encoder.finish().to_bytes().unwrap().to_vec()
}

fn record(message: &[u8]) -> Vec<u8> {
    [&rpc::record::mark(message.len())[..], message].concat()
}

fn relays(target: std::net::SocketAddr) -> (Arc<Station>, [Relay; 2]) {
    let station = Arc::new(Station::new(SERVICE));
    let relay = || {
        let options = Options::rtt(Duration::from_millis(2));
        Relay::start_before(Some(station.clone()), target, options).unwrap()
    };
    let both = [relay(), relay()];
    (station, both)
}

#[tokio::test]
async fn calls_of_all_relays_are_served_one_after_the_other() {
    let (station, [one, two]) = relays(echo().await);
    let (mut many, mut single) = (connect(&one).await, connect(&two).await);
    let started = Instant::now();
    let sent: Vec<u8> = (0..5).flat_map(|xid| record(&call(xid))).collect();
    many.write_all(&sent).await.unwrap();
    // The sixth call arrives while the five wait.
    while station.served().calls < 5 {
        tokio::task::yield_now().await;
    }
    single.write_all(&record(&call(5))).await.unwrap();
    let mut received = vec![0; sent.len()];
    for (number, answer) in received.chunks_mut(sent.len() / 5).enumerate() {
        timeout(PATIENCE, many.read_exact(answer)).await.unwrap().unwrap();
        assert!(started.elapsed() >= SERVICE * (number as u32 + 1), "{number}: {:?}", started.elapsed());
    }
    assert!(received == sent);
    let mut answer = vec![0; sent.len() / 5];
    timeout(PATIENCE, single.read_exact(&mut answer)).await.unwrap().unwrap();
    assert!(started.elapsed() >= SERVICE * 6 && answer == record(&call(5)));
    assert_eq!((station.served().calls, one.calls().of("GETATTR"), two.calls().of("GETATTR")), (6, 5, 1));
    assert!(station.served().waiting >= SERVICE * (1 + 2 + 3 + 4));
}

#[tokio::test]
async fn datagrams_are_served_like_calls_of_a_stream() {
    let (station, relays) = relays(echo_datagrams().await);
    let mut clients = Vec::new();
    let started = Instant::now();
    for relay in &relays {
        let client = UdpSocket::bind(super::LOOPBACK).await.unwrap();
        client.connect(relay.local_addr()).await.unwrap();
        for xid in 0..3 {
            client.send(&call(xid)).await.unwrap();
        }
        clients.push(client);
    }
    let mut buffer = [0; 2000];
    for client in &clients {
        for xid in 0..3 {
            let count = timeout(PATIENCE, client.recv(&mut buffer)).await.unwrap().unwrap();
            assert!(buffer[..count] == call(xid));
        }
    }
    assert!(started.elapsed() >= SERVICE * 6);
    assert_eq!(station.served().calls, 6);
}

#[tokio::test]
async fn a_message_in_fragments_is_one_call_and_answers_to_callbacks_cost_nothing() {
    let (station, [relay, _]) = relays(echo().await);
    let mut stream = connect(&relay).await;
    let message = call(1);
    let (first, last) = message.split_at(10);
    let answer = [&7u32.to_be_bytes()[..], &1u32.to_be_bytes(), &[0; 16]].concat();
    let mark = (first.len() as u32).to_be_bytes();
    let parts = [&mark[..], first, &record(last), &record(&answer)].concat();
    for part in parts.chunks(1) {
        stream.write_all(part).await.unwrap();
    }
    let expected = [record(&message), record(&answer)].concat();
    let mut received = vec![0; expected.len()];
    timeout(PATIENCE, stream.read_exact(&mut received)).await.unwrap().unwrap();
    assert!(received == expected);
    assert_eq!(station.served().calls, 1);
}

#[tokio::test]
async fn large_calls_find_room_and_what_is_no_rpc_is_ended() {
    let station = Arc::new(Station::new(Duration::ZERO));
    let options = Options { buffer_bytes: 0, ..Options::default() };
    let relay = Relay::start_before(Some(station.clone()), echo().await, options).unwrap();
    let (mut from, mut to) = connect(&relay).await.into_split();
    let mut large = call(1);
    large.resize(3 << 20, 7);
    let sent: Vec<u8> = (0..4).flat_map(|_| record(&large)).collect();
    let mut received = vec![0; sent.len()];
    let exchanged = async { tokio::join!(to.write_all(&sent), from.read_exact(&mut received)) };
    let (writing, reading) = timeout(PATIENCE, exchanged).await.unwrap();
    writing.and(reading.map(drop)).unwrap();
    assert!(received == sent && station.served().calls == 4);

    let mut stream = connect(&relay).await;
    stream.write_all(b"\xff\xff\xff\xffGET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(timeout(PATIENCE, stream.read(&mut [0; 1])).await.unwrap().is_err());
}
