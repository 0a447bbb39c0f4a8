//! A reader that waits while its peer takes nothing.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;
use crate::auth::Credential;
use crate::replay::ReplyCache;
use crate::service::{Answering, Call, Remember, Service};

const REPLY_BYTES: usize = 16 << 10;

/// Answers at once, with a large reply.
struct Talkative;

impl Service for Talkative {
    fn call(self: Arc<Self>, call: Call) -> Answering {
        let mut reply = call.reply();
        reply.raw(&[0; REPLY_BYTES]);
        Box::pin(std::future::ready(Outcome::Reply(reply.finish())))
    }

    fn remember(&self, _: &Call) -> Remember {
        Remember::No
    }
}

async fn ask(connection: Arc<Connection>) -> usize {
    let header = CallHeader {
        xid: connection.xid(),
        program: 1,
        version: 1,
        procedure: 1,
        credential: Credential::None,
    };
    connection.call(header, Encoder::new().finish()).await.unwrap().unwrap().remaining()
}

#[tokio::test]
async fn the_reader_goes_on_when_another_task_has_sent_what_it_waits_for() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let dispatcher = Arc::new(Dispatcher {
        service: Arc::new(Talkative),
        replies: ReplyCache::volatile(),
        tls: None,
        gss: None,
    });
    let limits = Limits { outbox_bytes: REPLY_BYTES / 2, ..Limits::default() };
    let server =
        Connection::start(Wire::new(far.unwrap().0, None), Arc::default(), Some(dispatcher), limits, None)
            .unwrap();
    let client =
        Connection::start(Wire::new(near.unwrap(), None), Arc::default(), None, Limits::default(), None)
            .unwrap();

    let sending = server.outbox.as_if_sending();
    let first = tokio::spawn(ask(client.clone()));
    // The test has one thread, so by now the reader has found another sender and waits.
    while server.outbox.queued_bytes() <= limits.outbox_bytes {
        tokio::task::yield_now().await;
    }
    drop(sending);
    server.send_alone(message::refuse(0, Refusal::ProgramUnavailable));
    assert_eq!(first.await.unwrap(), REPLY_BYTES);
    let second = timeout(Duration::from_secs(10), ask(client)).await;
    assert_eq!(second, Ok(REPLY_BYTES), "the reader hangs");
}

#[tokio::test]
async fn an_idle_connection_is_small() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let client =
        Connection::start(Wire::new(near, None), Arc::default(), None, Limits::default(), None).unwrap();
    let tasks = size_of_val(&client.clone().read_all(None)) + size_of_val(&client.clone().write_all());
    assert!(tasks + size_of::<Connection>() < 3 << 10, "{tasks} and {} bytes", size_of::<Connection>());
}

#[tokio::test]
async fn a_connection_that_rests_has_no_buffer_and_still_hears() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let service = Arc::new(Talkative);
    let dispatcher = Arc::new(Dispatcher { service, replies: ReplyCache::volatile(), tls: None, gss: None });
    let start = |stream, dispatcher| {
        Connection::start(Wire::new(stream, None), Arc::default(), dispatcher, Limits::default(), None)
    };
    let server = start(far.unwrap().0, Some(dispatcher)).unwrap();
    let client = start(near.unwrap(), None).unwrap();
    for _ in 0..3 {
        assert_eq!(ask(client.clone()).await, REPLY_BYTES);
        // The reader has left its buffer there when it waits.
        while server.rest() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(server.spare.lock().capacity(), 0);
    }
}
