//! Links that get no TLS: no call of theirs leaves, and the message names the way out.

use std::time::Duration;

use rpc::{Link, LinkOptions, Transport, TransportSecurity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::pki::Pki;
use crate::setting::*;

#[tokio::test]
async fn plain_calls_get_an_error_where_tls_is_required() {
    let pki = Pki::new();
    let program = Program::admitting(ENCRYPTED);
    let server = serve(&program, Some(acceptor(&pki.issue("server", &["localhost"]), None))).await;
    for transport in [Transport::Tcp, Transport::Udp] {
        let timeo = Duration::from_millis(700);
        let link = Link::new(LinkOptions { transport, timeo, ..LinkOptions::new(server.local_addr()) });
        for procedure in [COUNT, ECHO, CALL_BACK] {
            let refused = call(&link, procedure, &[]).await.unwrap_err().to_string();
            assert!(refused.contains("authentication error 5"), "{transport:?} {procedure}: {refused}");
        }
    }
    assert_eq!(program.counted(), 0);
}

#[tokio::test]
async fn a_server_that_cannot_prove_its_name_gets_no_call() {
    let (pki, other) = (Pki::new(), Pki::new());
    let program = Program::admitting(&TransportSecurity::ALL);
    for (issued, host, expected) in [
        (pki.issue("right", &["localhost"]), "other.example.com", "has another name"),
        (pki.issue("right", &["localhost"]), "127.0.0.1", "has another name"),
        (other.issue("other", &["localhost"]), "localhost", "no CA that is trusted here"),
        (pki.issue_until("late", &["localhost"], 2020), "localhost", "has expired"),
    ] {
        let server = serve(&program, Some(acceptor(&issued, None))).await;
        let error = failure(&link(&server, host, trusting(&pki, None)), &program).await;
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_client_that_cannot_prove_its_name_gets_no_answer() {
    let (pki, other) = (Pki::new(), Pki::new());
    let program = Program::admitting(&TransportSecurity::ALL);
    let server = serve(&program, Some(acceptor(&pki.issue("server", &["localhost"]), Some(&pki)))).await;
    for (own, expected) in [
        (other.issue("client", &["client"]), "does not trust the CA"),
        (pki.issue_until("client", &["client"], 2020), "our certificate has expired"),
    ] {
        let error = failure(&link(&server, "localhost", trusting(&pki, Some(&own))), &program).await;
        assert!(error.contains(expected), "{error}");
    }
    // The key of another certificate.
    let mut own = pki.issue("client", &["client"]);
    own.key = pki.issue("second", &["client"]).key;
    let error = failure(&link(&server, "localhost", trusting(&pki, Some(&own))), &program).await;
    assert!(error.contains("does not belong to the key"), "{error}");
}

#[tokio::test]
async fn a_server_without_tls_gets_no_plain_call() {
    let pki = Pki::new();
    let program = Program::admitting(&TransportSecurity::ALL);
    let server = serve(&program, None).await;
    let error = failure(&link(&server, "localhost", trusting(&pki, None)), &program).await;
    assert!(error.contains("offers no TLS") && error.contains("xprtsec=none"), "{error}");
}

/// Something between client and server answers the probe, and collects what the client sends after it.
#[tokio::test]
async fn a_stripped_offer_leads_to_nothing_in_plain_text() {
    let pki = Pki::new();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let options = options(listener.local_addr().unwrap(), "localhost", trusting(&pki, None));
    let link = Link::new(options);
    let calling = call(&link, ECHO, b"secret  ");
    let stripping = async {
        for verifier in
            [&b"\0\0\0\0\0\0\0\0"[..], b"\0\0\0\0\0\0\0\x08STARTTLX", b"\0\0\0\x07\0\0\0\x08STARTTLS"]
        {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut probe = [0; 44];
            stream.read_exact(&mut probe).await.unwrap();
            assert_eq!(&probe[28..36], b"\0\0\0\x07\0\0\0\0", "the flavor AUTH_TLS");
            let mut reply = [&probe[4..8], b"\0\0\0\x01\0\0\0\0", verifier, b"\0\0\0\0"].concat();
            reply.splice(0..0, (reply.len() as u32 | 1 << 31).to_be_bytes());
            stream.write_all(&reply).await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            assert!(rest.is_empty(), "{rest:?}");
        }
    };
    tokio::select! {
        answer = calling => panic!("{answer:?}"),
        done = tokio::time::timeout(Duration::from_secs(20), stripping) => done.unwrap(),
    }
}
