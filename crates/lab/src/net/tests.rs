//! Tests of the relay on loopback with an echo server.

use super::{Cut, Relay};
use crate::session::wait_for;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const LOCALHOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn echo() -> SocketAddr {
    let listener = TcpListener::bind((LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    address
}

fn connect(relay: &Relay) -> TcpStream {
    let stream = TcpStream::connect(relay.address()).expect("the relay accepts");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    stream
}

fn ask(stream: &mut TcpStream, word: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(word)?;
    let mut answer = vec![0; word.len()];
    stream.read_exact(&mut answer)?;
    Ok(answer)
}

#[test]
fn bytes_pass_and_are_counted_and_delayed() {
    let relay = Relay::start(LOCALHOST.into(), echo());
    let mut stream = connect(&relay);
    assert_eq!(ask(&mut stream, b"hello").expect("an answer"), b"hello");
    relay.set_delay(Duration::from_millis(30));
    let started = Instant::now();
    assert_eq!(ask(&mut stream, b"again").expect("an answer"), b"again");
    assert!(started.elapsed() >= Duration::from_millis(60), "{:?}", started.elapsed());
    assert_eq!(relay.bytes(), (10, 10));
    assert_eq!(relay.connections(), 1);
}

#[test]
fn a_black_hole_swallows_and_gives_back() {
    let relay = Relay::start(LOCALHOST.into(), echo());
    let mut stream = connect(&relay);
    ask(&mut stream, b"up").expect("an answer");
    relay.cut(Cut::BlackHole);
    stream.write_all(b"lost?").expect("the kernel takes it");
    stream.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let silence = stream.read(&mut [0; 8]).expect_err("silence");
    assert!(matches!(silence.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silence}");
    relay.restore();
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).expect("what was under way");
    assert_eq!(&answer, b"lost?");
}

#[test]
fn a_reset_ends_connections_and_refuses_new_ones_until_restored() {
    let relay = Relay::start(LOCALHOST.into(), echo());
    let mut stream = connect(&relay);
    ask(&mut stream, b"up").expect("an answer");
    relay.cut(Cut::Reset);
    ask(&mut stream, b"down").expect_err("the connection is dead");
    wait_for("refusal", Duration::from_secs(10), || TcpStream::connect(relay.address()).err());
    relay.restore();
    let mut stream =
        wait_for("acceptance", Duration::from_secs(10), || TcpStream::connect(relay.address()).ok());
    assert_eq!(ask(&mut stream, b"up again").expect("an answer"), b"up again");
    relay.reset_connections();
    ask(&mut stream, b"down").expect_err("the connection is dead");
    assert_eq!(ask(&mut connect(&relay), b"up").expect("an answer"), b"up");
}
