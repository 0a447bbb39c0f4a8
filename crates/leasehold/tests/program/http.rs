//! The least of an HTTP client: one request to a port of this machine.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long a state may take to be seen.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// Status code, headers and body of an answer.
pub struct Answer {
    pub code: u16,
    pub head: String,
    pub body: String,
}

/// Sends a request, waits until the port listens if necessary, and reads the answer.
pub fn ask(port: &str, request: &str) -> Answer {
    let began = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(format!("127.0.0.1:{port}")) {
            Ok(stream) => break stream,
            Err(error) => assert!(began.elapsed() < PATIENCE, "port {port}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { code, head: head.to_lowercase(), body: body.to_owned() }
}

pub fn get(port: &str, path: &str) -> Answer {
    ask(port, &format!("GET {path}"))
}

/// Asks until an answer has what is wanted.
#[track_caller]
pub fn wait_for(port: &str, path: &str, what: &str, holds: impl Fn(&Answer) -> bool) {
    let began = Instant::now();
    loop {
        let answer = get(port, path);
        if holds(&answer) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: {} {}", answer.code, answer.body);
        std::thread::sleep(Duration::from_millis(50));
    }
}
