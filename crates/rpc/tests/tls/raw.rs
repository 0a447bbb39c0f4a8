//! Peers that break the rules of the probe, the handshake and the records.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rpc::TransportSecurity;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::pki::Pki;
use crate::setting::*;

/// A call as a record, with a flavor whose body is empty.
fn record(xid: u32, procedure: u32, flavor: u32) -> Vec<u8> {
    let words = [(1 << 31) + 40, xid, 0, 2, PROGRAM, 1, procedure, flavor, 0, 0, 0];
    words.into_iter().flat_map(u32::to_be_bytes).collect()
}

const AUTH_TLS: u32 = 7;

fn connect(server: &rpc::Server) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Asks for TLS, and checks each byte of the answer.
fn probed(server: &rpc::Server) -> TcpStream {
    let mut stream = connect(server);
    stream.write_all(&record(5, NULL, AUTH_TLS)).unwrap();
    let mut answer = [0; 36];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"\x80\0\0\x20\0\0\0\x05\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x08STARTTLS\0\0\0\0");
    stream
}

/// Reads one record's payload.
fn answer(from: &mut impl Read) -> Vec<u8> {
    let mut mark = [0; 4];
    from.read_exact(&mut mark).unwrap();
    let mut bytes = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    from.read_exact(&mut bytes).unwrap();
    bytes
}

/// Nothing more comes from the server but, at most, an alert in plain text.
fn ends(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() <= 64 && rest.first().is_none_or(|kind| *kind == 21 || *kind == 23), "{rest:?}");
}

fn tls(pki: &Pki, alpn: &[&[u8]]) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(pki.ca()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
}

struct Bed {
    pki: Pki,
    program: Arc<Program>,
    server: rpc::Server,
}

impl Bed {
    async fn new() -> Bed {
        let pki = Pki::new();
        let program = Program::admitting(ENCRYPTED);
        let server = serve(&program, Some(acceptor(&pki.issue("server", &["localhost"]), None))).await;
        Bed { pki, program, server }
    }

    /// A connection after its handshake, with the answer to a first call.
    fn secured(&self) -> (ClientConnection, TcpStream) {
        let (mut client, mut stream) = (tls(&self.pki, &[b"sunrpc"]), probed(&self.server));
        let mut both = rustls::Stream::new(&mut client, &mut stream);
        both.write_all(&record(1, SECURITY, 0)).unwrap();
        assert!(answer(&mut both).ends_with(&[0, 0, 0, TransportSecurity::Tls as u8]));
        (client, stream)
    }

    /// Others are served as before.
    async fn serves(&self) {
        let link = link(&self.server, "localhost", trusting(&self.pki, None));
        assert_eq!(word(&link, SECURITY).await, TransportSecurity::Tls as u32);
    }
}

/// Runs a blocking peer beside the server.
async fn beside<T: Send + 'static>(peer: impl FnOnce(Bed) -> T + Send + 'static) -> T {
    let bed = Bed::new().await;
    tokio::task::spawn_blocking(move || peer(bed)).await.unwrap()
}

#[tokio::test]
async fn the_probe_is_the_null_procedure_and_the_first_call() {
    beside(|bed| {
        let mut stream = connect(&bed.server);
        stream.write_all(&record(1, ECHO, AUTH_TLS)).unwrap();
        assert_eq!(
            answer(&mut stream),
            b"\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\0\0\x01",
            "AUTH_BADCRED"
        );
        let mut stream = connect(&bed.server);
        stream.write_all(&record(1, ECHO, 0)).unwrap();
        answer(&mut stream);
        stream.write_all(&record(2, NULL, AUTH_TLS)).unwrap();
        assert!(answer(&mut stream).ends_with(b"\0\0\0\x01\0\0\0\x01\0\0\0\x01"));
        // TLS in TLS.
        let (mut client, mut stream) = bed.secured();
        let mut both = rustls::Stream::new(&mut client, &mut stream);
        both.write_all(&record(3, NULL, AUTH_TLS)).unwrap();
        assert!(answer(&mut both).ends_with(b"\0\0\0\x01\0\0\0\x01\0\0\0\x01"));
    })
    .await;
}

#[tokio::test]
async fn calls_behind_the_probe_in_plain_text_are_not_taken() {
    let (program, bed) = beside(|bed| {
        let mut stream = connect(&bed.server);
        stream.write_all(&[record(5, NULL, AUTH_TLS), record(6, COUNT, 0)].concat()).unwrap();
        ends(&mut stream);
        (bed.program.clone(), bed)
    })
    .await;
    assert_eq!(program.counted(), 0);
    bed.serves().await;
}

#[tokio::test]
async fn garbage_instead_of_a_handshake_ends_the_connection() {
    let bed = beside(|bed| {
        let plain = record(6, COUNT, 0);
        for garbage in [&plain[..], &[0; 2000], b"GET / HTTP/1.1\r\n\r\n", &[22, 3, 1, 0xff, 0xff, 1, 2, 3]] {
            let mut stream = probed(&bed.server);
            stream.write_all(garbage).unwrap();
            // A record may be longer than what came of it: nothing follows.
            stream.shutdown(Shutdown::Write).unwrap();
            ends(&mut stream);
        }
        assert_eq!(bed.program.counted(), 0);
        bed
    })
    .await;
    bed.serves().await;
}

#[tokio::test]
async fn a_client_without_the_name_of_the_protocol_is_refused() {
    beside(|bed| {
        for alpn in [&[][..], &[&b"h2"[..]]] {
            let (mut client, mut stream) = (tls(&bed.pki, alpn), probed(&bed.server));
            let mut both = rustls::Stream::new(&mut client, &mut stream);
            let _ = both.write_all(&record(1, COUNT, 0));
            assert!(!matches!(both.read(&mut [0; 64]), Ok(1..)));
        }
        assert_eq!(bed.program.counted(), 0);
    })
    .await;
}

/// With a clock that jumps to the next timer when nothing else happens.
#[tokio::test(start_paused = true)]
async fn a_handshake_that_stops_is_given_up() {
    let bed = Bed::new().await;
    let mut stream = tokio::net::TcpStream::connect(bed.server.local_addr()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &record(5, NULL, AUTH_TLS)).await.unwrap();
    let mut all = Vec::new();
    let began = tokio::time::Instant::now();
    tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut all).await.unwrap();
    assert_eq!(all.len(), 36, "the answer to the probe, and nothing after it");
    assert!((9..60).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_stream_that_is_cut_within_a_record_has_no_last_call() {
    let bed = beside(|bed| {
        let (mut client, mut stream) = bed.secured();
        let call = record(9, COUNT, 0);
        let mut both = rustls::Stream::new(&mut client, &mut stream);
        both.write_all(&call[..30]).unwrap();
        // No close_notify: the end could be another's.
        stream.shutdown(Shutdown::Write).unwrap();
        ends(&mut stream);
        // A record of TLS that is cut.
        let (mut client, mut stream) = bed.secured();
        client.writer().write_all(&call).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        stream.write_all(&bytes[..bytes.len() - 1]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        ends(&mut stream);
        assert_eq!(bed.program.counted(), 0);
        bed
    })
    .await;
    bed.serves().await;
}

#[tokio::test]
async fn records_that_are_replayed_reordered_or_changed_end_the_connection() {
    let bed = beside(|bed| {
        let encrypted = |client: &mut ClientConnection, xid: u32| {
            client.writer().write_all(&record(xid, COUNT, 0)).unwrap();
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            bytes
        };
        // The same record twice: executed once.
        let (mut client, mut stream) = bed.secured();
        let once = encrypted(&mut client, 2);
        stream.write_all(&once).unwrap();
        answer(&mut rustls::Stream::new(&mut client, &mut stream));
        stream.write_all(&once).unwrap();
        ends(&mut stream);
        assert_eq!(bed.program.counted(), 1);
        // The second before the first.
        let (mut client, mut stream) = bed.secured();
        let (first, second) = (encrypted(&mut client, 3), encrypted(&mut client, 4));
        stream.write_all(&[second, first].concat()).unwrap();
        ends(&mut stream);
        // One bit.
        let (mut client, mut stream) = bed.secured();
        let mut changed = encrypted(&mut client, 5);
        changed[10] ^= 1;
        stream.write_all(&changed).unwrap();
        ends(&mut stream);
        // Plain text after the handshake.
        let (_, mut stream) = bed.secured();
        stream.write_all(&record(6, COUNT, 0)).unwrap();
        ends(&mut stream);
        assert_eq!(bed.program.counted(), 1);
        bed
    })
    .await;
    bed.serves().await;
}
