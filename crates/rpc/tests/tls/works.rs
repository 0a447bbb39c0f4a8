//! What works: data, callbacks, reconnects, and new certificates.

use std::time::Duration;

use bytes::Buf;
use rpc::{Link, LinkOptions, ReplyCache, TransportSecurity};

use crate::pki::Pki;
use crate::setting::*;

#[tokio::test]
async fn megabytes_go_both_ways_as_they_were_sent() {
    let pki = Pki::new();
    let program = Program::admitting(ENCRYPTED);
    let server = serve(&program, Some(acceptor(&pki.issue("server", &["localhost"]), None))).await;
    let link = link(&server, "localhost", trusting(&pki, None));
    assert_eq!(word(&link, SECURITY).await, TransportSecurity::Tls as u32);
    let large: Vec<u8> = (0..2_000_000u32).map(|at| (at % 251) as u8).collect();
    let echoed = call(&link, ECHO, &large).await.unwrap().results.rest();
    assert!(echoed[..] == large[..], "{} bytes", echoed.len());
    let length = 2_000_000u32;
    let arguments = length.to_be_bytes();
    let reads = (0..8).map(|_| call(&link, FILE, &arguments));
    let answers = reads.collect::<futures_util::stream::FuturesOrdered<_>>();
    let answers: Vec<_> = futures_util::StreamExt::collect(answers).await;
    for answer in answers {
        let mut results = answer.unwrap().results.rest();
        assert_eq!((results.get_u32(), results.get_u32()), (7, length));
        assert!((0..length / 4).all(|at| results.get_u32() == at));
        assert_eq!((results.get_u32(), results.remaining()), (9, 0));
    }
}

#[tokio::test]
async fn a_certificate_of_the_client_is_seen_and_an_address_can_be_the_name() {
    let pki = Pki::new();
    let program = Program::admitting(&[TransportSecurity::Mtls]);
    let server = serve(&program, Some(acceptor(&pki.issue("server", &["127.0.0.1"]), Some(&pki)))).await;
    let own = pki.issue("client", &["client.example.com"]);
    let known = link(&server, "127.0.0.1", trusting(&pki, Some(&own)));
    assert_eq!(word(&known, SECURITY).await, TransportSecurity::Mtls as u32);
    // Without one, the connection stands, and its calls are turned away.
    let unknown = link(&server, "127.0.0.1", trusting(&pki, None));
    let refused = call(&unknown, COUNT, &[]).await.unwrap_err();
    assert!(refused.to_string().contains("authentication error 5"), "{refused}");
    assert_eq!(program.counted(), 0);
}

#[tokio::test]
async fn the_server_calls_back_on_the_same_connection() {
    let pki = Pki::new();
    let (program, client) = (Program::admitting(ENCRYPTED), Program::admitting(ENCRYPTED));
    let server = serve(&program, Some(acceptor(&pki.issue("server", &["localhost"]), None))).await;
    let options = options(server.local_addr(), "localhost", trusting(&pki, None));
    let admitting_all = Program::admitting(&TransportSecurity::ALL);
    let link = Link::with_service(options, admitting_all.clone(), ReplyCache::volatile());
    assert_eq!((word(&link, CALL_BACK).await, word(&link, CALL_BACK).await), (0, 1));
    assert_eq!((admitting_all.counted(), program.counted(), client.counted()), (2, 0, 0));
}

#[tokio::test]
async fn plain_text_and_tls_go_together_where_both_are_admitted() {
    let pki = Pki::new();
    let program = Program::admitting(&TransportSecurity::ALL);
    let server = serve(&program, Some(acceptor(&pki.issue("server", &["localhost"]), None))).await;
    let plain = Link::new(LinkOptions::new(server.local_addr()));
    assert_eq!(word(&plain, SECURITY).await, TransportSecurity::None as u32);
    let secured = link(&server, "localhost", trusting(&pki, None));
    assert_eq!(word(&secured, SECURITY).await, TransportSecurity::Tls as u32);
}

#[tokio::test]
async fn a_link_makes_tls_again_after_the_loss_of_its_connection() {
    let pki = Pki::new();
    let program = Program::admitting(ENCRYPTED);
    let tls = acceptor(&pki.issue("server", &["localhost"]), None);
    let server = serve(&program, Some(tls.clone())).await;
    let link = link(&server, "localhost", trusting(&pki, None));
    assert_eq!(word(&link, COUNT).await, 0);
    // The kind of connection that is admitted is another one for a moment.
    server.judge_again(&*Program::admitting(&[TransportSecurity::None]));
    assert_eq!(word(&link, COUNT).await, 1);
    assert!(link.connected().generation >= 2);
    assert_eq!(word(&link, SECURITY).await, TransportSecurity::Tls as u32);
}

#[tokio::test]
async fn new_certificates_are_taken_without_a_restart() {
    let (old, new) = (Pki::new(), Pki::new());
    let program = Program::admitting(ENCRYPTED);
    let issued = old.issue("server", &["localhost"]);
    let tls = acceptor(&issued, None);
    let server = serve(&program, Some(tls.clone())).await;
    let before = link(&server, "localhost", trusting(&old, None));
    assert_eq!(word(&before, COUNT).await, 0);

    let replacement = new.issue("server", &["localhost"]);
    std::fs::copy(replacement.certificate, &issued.certificate).unwrap();
    let error = tls.reload().unwrap_err().to_string();
    assert!(error.contains("does not belong to the key"), "{error}");
    std::fs::copy(replacement.key, &issued.key).unwrap();
    tls.reload().unwrap();
    assert_eq!(word(&before, COUNT).await, 1, "a connection that stands is not disturbed");
    let after = link(&server, "localhost", trusting(&new, None));
    assert_eq!(word(&after, COUNT).await, 2);

    // The client that trusted the old CA learns of the new one, too.
    std::fs::copy(new.ca(), old.ca()).unwrap();
    server.judge_again(&*Program::admitting(&[TransportSecurity::None]));
    assert_eq!(tokio::time::timeout(Duration::from_secs(20), word(&before, COUNT)).await, Ok(3));
}
