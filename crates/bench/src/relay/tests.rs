//! Tests of the relay on loopback with an echo server.

mod station;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::{Cut, Options, Outages, Preset, Relay, SourcePort, Traffic};

const LOOPBACK: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);
const PATIENCE: Duration = Duration::from_secs(10);

async fn echo() -> SocketAddr {
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    address
}

async fn connect(relay: &Relay) -> TcpStream {
    let stream = TcpStream::connect(relay.local_addr()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

async fn ask(stream: &mut TcpStream, word: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(word).await?;
    let mut answer = vec![0; word.len()];
    timeout(PATIENCE, stream.read_exact(&mut answer)).await??;
    Ok(answer)
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[tokio::test]
async fn a_round_trip_takes_what_was_set() {
    let round_trip = Duration::from_millis(20);
    let relay = Relay::start(echo().await, Options::rtt(round_trip)).unwrap();
    let mut stream = connect(&relay).await;
    let mut measured = Vec::new();
    for _ in 0..20 {
        let started = Instant::now();
        assert_eq!(ask(&mut stream, b"ping").await.unwrap(), b"ping");
        measured.push(started.elapsed());
    }
    // A busy machine delays some replies, but none may be early.
    let best = measured.iter().min().unwrap();
    assert!((round_trip..round_trip + Duration::from_millis(1)).contains(best), "{measured:?}");
    assert_eq!(relay.bytes(), Traffic { up: 80, down: 80 });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_come_through_whole_on_many_connections() {
    let mut options = Options::rtt(Duration::from_millis(4));
    options.buffer_bytes = 256 << 10; // far less than is sent
    let relay = Relay::start(echo().await, options).unwrap();
    let sent = std::sync::Arc::new(pattern(3 << 20));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (mut stream, sent) = (connect(&relay).await, sent.clone());
        clients.spawn(async move {
            let mut received = Vec::new();
            let (mut from, mut to) = stream.split();
            let sending = async {
                to.write_all(&sent).await?;
                to.shutdown().await
            };
            let (sending, receiving) = tokio::join!(sending, from.read_to_end(&mut received));
            sending.and(receiving.map(drop)).unwrap();
            assert!(received == *sent);
        });
    }
    timeout(PATIENCE, clients.join_all()).await.unwrap();
    let all = 8 * sent.len() as u64;
    assert_eq!((relay.bytes(), relay.connections()), (Traffic { up: all, down: all }, 8));
}

#[tokio::test]
async fn bandwidth_is_shared_and_kept() {
    let options = Options { bytes_per_second: NonZeroU64::new(10_000_000), ..Options::default() };
    let relay = Relay::start(echo().await, options).unwrap();
    let (mut one, mut two) = (connect(&relay).await, connect(&relay).await);
    let bytes = pattern(1_000_000);
    let started = Instant::now();
    let exchange = |stream: TcpStream| {
        let bytes = bytes.clone();
        tokio::spawn(async move {
            let (mut from, mut to) = stream.into_split();
            let mut received = vec![0; bytes.len()];
            let (sent, got) = tokio::join!(to.write_all(&bytes), from.read_exact(&mut received));
            sent.and(got.map(drop)).unwrap();
            assert!(received == bytes);
        })
    };
    ask(&mut one, b"x").await.unwrap();
    ask(&mut two, b"x").await.unwrap();
    let (one, two) = (exchange(one), exchange(two));
    one.await.and(two.await).unwrap();
    // 2 MB at 10 MB/s; the two directions transfer at the same time.
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test]
async fn a_black_hole_swallows_and_gives_back() {
    let relay = Relay::start(echo().await, Options::default()).unwrap();
    let mut stream = connect(&relay).await;
    ask(&mut stream, b"up").await.unwrap();
    relay.cut(Cut::BlackHole);
    stream.write_all(b"lost?").await.unwrap();
    let mut answer = [0; 5];
    let silence = timeout(Duration::from_millis(100), stream.read_exact(&mut answer)).await;
    assert!(silence.is_err(), "{silence:?}");
    relay.restore();
    timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"lost?");
}

#[tokio::test]
async fn a_reset_ends_connections_until_restored() {
    let relay = Relay::start(echo().await, Options::default()).unwrap();
    let mut stream = connect(&relay).await;
    ask(&mut stream, b"up").await.unwrap();
    relay.cut(Cut::Reset);
    let lost = timeout(PATIENCE, stream.read(&mut [0; 1])).await.unwrap().unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::ConnectionReset);
    let mut refused = connect(&relay).await;
    let lost = timeout(PATIENCE, refused.read(&mut [0; 1])).await.unwrap().unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::ConnectionReset);
    relay.restore();
    assert_eq!(ask(&mut connect(&relay).await, b"again").await.unwrap(), b"again");
}

#[tokio::test]
async fn a_target_that_wants_reserved_ports_is_called_from_one() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let listener = TcpListener::bind(LOOPBACK).await.unwrap();
    let options = Options { source: SourcePort::Reserved, ..Options::default() };
    let relay = Relay::start(listener.local_addr().unwrap(), options).unwrap();
    let _client = connect(&relay).await;
    let (_, from) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    assert!(from.port() < 1024, "{from}");
}

#[tokio::test]
async fn dropping_ends_connections_and_frees_the_port() {
    let relay = Relay::start(echo().await, Options::default()).unwrap();
    let address = relay.local_addr();
    let mut stream = connect(&relay).await;
    ask(&mut stream, b"up").await.unwrap();
    drop(relay);
    let lost = timeout(PATIENCE, stream.read(&mut [0; 1])).await.unwrap().unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::ConnectionReset);
    let refused = timeout(PATIENCE, async {
        loop {
            match TcpStream::connect(address).await {
                Err(error) => break error,
                Ok(_) => tokio::task::yield_now().await,
            }
        }
    });
    assert_eq!(refused.await.unwrap().kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn datagrams_are_delayed_counted_and_lost_in_a_cut() {
    let target = UdpSocket::bind(LOOPBACK).await.unwrap();
    let target_address = target.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 2000];
        while let Ok((count, peer)) = target.recv_from(&mut buffer).await {
            target.send_to(&buffer[..count], peer).await.unwrap();
        }
    });
    let round_trip = Duration::from_millis(10);
    let relay = Relay::start(target_address, Options::rtt(round_trip)).unwrap();
    let client = UdpSocket::bind(LOOPBACK).await.unwrap();
    client.connect(relay.local_addr()).await.unwrap();
    let mut buffer = [0; 2000];

    let started = Instant::now();
    client.send(b"hello").await.unwrap();
    assert_eq!(timeout(PATIENCE, client.recv(&mut buffer)).await.unwrap().unwrap(), 5);
    assert!(started.elapsed() >= round_trip);
    assert_eq!(relay.bytes(), Traffic { up: 5, down: 5 });

    relay.cut(Cut::BlackHole);
    client.send(b"lost").await.unwrap();
    assert!(timeout(5 * round_trip, client.recv(&mut buffer)).await.is_err());
    relay.restore();
    client.send(b"here").await.unwrap();
    assert_eq!(timeout(PATIENCE, client.recv(&mut buffer)).await.unwrap().unwrap(), 4);
    assert_eq!(&buffer[..4], b"here");
}

/// Asks until a reply takes less than a millisecond longer than the preset. A busy machine delays some
/// replies, but none may be early.
async fn precise(what: Preset, mut ask: impl AsyncFnMut()) {
    let within = what.rtt()..what.rtt() + Duration::from_millis(1);
    let mut measured = Vec::new();
    while measured.last().is_none_or(|last| !within.contains(last)) {
        let started = Instant::now();
        ask().await;
        measured.push(started.elapsed());
        assert!(measured.iter().all(|each| *each >= what.rtt()), "{what}: early: {measured:?}");
        assert!(measured.len() < 200, "{what}: never precise: {measured:?}");
    }
}

#[tokio::test]
async fn every_preset_is_precise_to_a_millisecond_over_tcp() {
    for preset in Preset::ALL {
        let relay = Relay::start(echo().await, preset.options()).unwrap();
        let mut stream = connect(&relay).await;
        precise(preset, async || assert_eq!(ask(&mut stream, b"ping").await.unwrap(), b"ping")).await;
    }
}

async fn echo_datagrams() -> SocketAddr {
    let target = UdpSocket::bind(LOOPBACK).await.unwrap();
    let address = target.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 2000];
        while let Ok((count, peer)) = target.recv_from(&mut buffer).await {
            target.send_to(&buffer[..count], peer).await.unwrap();
        }
    });
    address
}

#[tokio::test]
async fn every_preset_is_precise_to_a_millisecond_over_udp() {
    for preset in Preset::ALL {
        let relay = Relay::start(echo_datagrams().await, preset.options()).unwrap();
        let client = UdpSocket::bind(LOOPBACK).await.unwrap();
        client.connect(relay.local_addr()).await.unwrap();
        let exchange = async || {
            client.send(b"ping").await.unwrap();
            let received = timeout(PATIENCE, client.recv(&mut [0; 16])).await;
            assert_eq!(received.unwrap().unwrap(), 4);
        };
        precise(preset, exchange).await;
    }
}

#[tokio::test]
async fn jitter_reorders_nothing() {
    let options = Options { jitter: Duration::from_millis(8), ..Options::rtt(Duration::from_millis(2)) };
    let relay = Relay::start(echo_datagrams().await, options).unwrap();
    let client = UdpSocket::bind(LOOPBACK).await.unwrap();
    client.connect(relay.local_addr()).await.unwrap();
    for number in 0..200u32 {
        client.send(&number.to_be_bytes()).await.unwrap();
    }
    for expected in 0..200u32 {
        let mut buffer = [0; 4];
        timeout(PATIENCE, client.recv(&mut buffer)).await.unwrap().unwrap();
        assert_eq!(u32::from_be_bytes(buffer), expected);
    }
    let relay = Relay::start(echo().await, options).unwrap();
    let (mut stream, sent) = (connect(&relay).await, pattern(1 << 20));
    let (mut from, mut to) = stream.split();
    let mut received = vec![0; sent.len()];
    let (sending, receiving) = tokio::join!(to.write_all(&sent), from.read_exact(&mut received));
    sending.and(receiving.map(drop)).unwrap();
    assert!(received == sent);
}

#[tokio::test]
async fn a_network_is_lost_and_found_again_by_itself() {
    let ms = Duration::from_millis;
    let outages = Some(Outages { every: ms(50), duration: ms(50), cut: Cut::Reset });
    let relay = Relay::start(echo().await, Options { outages, ..Options::default() }).unwrap();
    let (mut losses, mut answers_after_loss) = (0, 0);
    let losing = async {
        while losses < 2 || answers_after_loss == 0 {
            let mut stream = connect(&relay).await;
            // Ask until it fails: a reset loses the data in flight.
            while ask(&mut stream, b"there?").await.is_ok() {
                answers_after_loss += u32::from(losses > 0);
            }
            losses += 1;
        }
    };
    timeout(PATIENCE, losing).await.unwrap();
}
