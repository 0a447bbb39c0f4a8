//! Endpoints that are dead, or that are not etcd.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cluster::etcd::{ANSWER_MAX_BYTES, Endpoint, Etcd};
use cluster::store::{Store, StoreError};

use crate::{create, timed};

#[tokio::test]
async fn dead_endpoints_are_unknown_at_once() {
    let listeners = [(); 3].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    let endpoints = listeners.each_ref().map(endpoint);
    drop(listeners);
    let start = Instant::now();
    let error = timed(&Etcd::new(&endpoints), &create("a")).await.unwrap_err();
    println!("{:?}: {error}", start.elapsed());
    assert!(matches!(error, StoreError::Unknown(_)) && start.elapsed() < Duration::from_millis(200));
    assert!(endpoints.iter().all(|endpoint| error.to_string().contains(&endpoint.to_string())));
    assert!(matches!(Etcd::new(&[]).transact(&create("a")).await, Err(StoreError::Refused(_))));
}

fn endpoint(listener: &TcpListener) -> Endpoint {
    format!("http://{}", listener.local_addr().unwrap()).parse().unwrap()
}

/// A server that is not etcd. Each connection gets the answer after its request, then is closed; without an
/// answer it stays open.
fn impostor(answer: Option<Vec<u8>>) -> (Endpoint, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let endpoint = endpoint(&listener);
    let requests = Arc::new(AtomicUsize::new(0));
    let counter = requests.clone();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if stream.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {
                counter.fetch_add(1, Ordering::SeqCst);
            }
            match &answer {
                // The client may close the connection before it has read the answer.
                Some(answer) => drop(stream.write_all(answer)),
                None => open.push(stream),
            }
        }
    });
    (endpoint, requests)
}

#[tokio::test]
async fn a_server_that_is_not_etcd_is_unknown() {
    let http = |head: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n", body.len());
        Some([head.as_bytes(), body].concat())
    };
    let answers = [
        ("garbage", Some(b"\0\xff garbage\r\n\r\n".to_vec())),
        ("closes", Some(Vec::new())),
        ("a greeting", Some(b"220 mail.example ESMTP\r\n".to_vec())),
        ("no answer", None),
        ("half an answer", Some(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{".to_vec())),
        ("another HTTP server", http("404 Not Found", b"<html>\nnot here")),
        ("empty JSON", http("200 OK", b"{}")),
        ("a redirection", http("302 Found\r\nLocation: http://127.0.0.1/", b"")),
        ("a long answer", http("200 OK", &vec![b' '; ANSWER_MAX_BYTES + 1])),
        ("no leader", http("503 Down", br#"{"message":"etcdserver: leader changed","code":14}"#)),
    ];
    for (name, answer) in answers {
        let (first, asked) = impostor(answer);
        let (second, asked_second) = impostor(http("200 OK", b"{}"));
        let store = Etcd::new(&[first.clone(), second.clone()]);
        let error = timed(&store, &create("a")).await.unwrap_err();
        println!("{name}: {error}");
        assert!(matches!(&error, StoreError::Unknown(m) if m.contains(&first.to_string())), "{error}");
        let counts = || (asked.load(Ordering::SeqCst), asked_second.load(Ordering::SeqCst));
        assert_eq!(counts(), (1, 0), "sent once");
        // The next call begins with the other endpoint.
        let error = timed(&store, &create("a")).await.unwrap_err();
        assert!(error.to_string().contains(&second.to_string()), "{error}");
        assert_eq!(counts(), (1, 1), "sent once");
    }
}
