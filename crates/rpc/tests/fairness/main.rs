//! Quiet peers beside a noisy one, by counts of calls: the processors of a test machine may be busy.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod wire;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rpc::fair::{Rates, Sharing};
use rpc::service::{Answering, Asked, Outcome, Remember};
use rpc::{Call, ReplyCache, Server, ServerOptions, Service};
use tokio::sync::oneshot;
use wire::{NOISY, QUIET, Wire};

const NULL: u32 = 0;
/// Waits in the queue of the back end.
const WORK: u32 = 1;
/// Ends all that waits there, as the return of what the others wait for.
const GIVE_BACK: u32 = 2;
/// As `GIVE_BACK`, of which the service does not know that it is urgent.
const END_ALL: u32 = 3;

const WINDOW: usize = 16;
/// Of two peers, each has half of the window.
const PART: usize = WINDOW / 2;
const LONG: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = wire::PATIENCE;

/// A back end with one queue for all peers, of which the test takes the first.
#[derive(Default)]
struct Queue {
    waiting: Mutex<VecDeque<(Ipv4Addr, oneshot::Sender<()>)>>,
    begun: AtomicUsize,
    held_back: AtomicUsize,
}

impl Queue {
    fn end_first(&self) -> Option<Ipv4Addr> {
        let (peer, end) = self.waiting.lock().pop_front()?;
        let _ = end.send(());
        Some(peer)
    }

    /// Waits until as many calls have begun.
    async fn begun(&self, count: usize) {
        let reached = async {
            while self.begun.load(Ordering::SeqCst) < count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("calls that begin");
    }
}

impl Service for Queue {
    fn call(self: Arc<Self>, call: Call) -> Answering {
        Box::pin(async move {
            match call.header.procedure {
                WORK => {
                    let (end, ended) = oneshot::channel();
                    let SocketAddr::V4(peer) = call.peer else { return Outcome::Drop };
                    self.waiting.lock().push_back((*peer.ip(), end));
                    self.begun.fetch_add(1, Ordering::SeqCst);
                    let _ = ended.await;
                }
                GIVE_BACK | END_ALL => while self.end_first().is_some() {},
                _ => {}
            }
            Outcome::Reply(call.reply().finish())
        })
    }

    fn remember(&self, _: &Call) -> Remember {
        Remember::No
    }

    fn is_urgent(&self, asked: &Asked) -> bool {
        matches!(asked.procedure, NULL | GIVE_BACK)
    }

    fn waits(&self, _: SocketAddr) {
        self.held_back.fetch_add(1, Ordering::SeqCst);
    }
}

async fn serve(sharing: Sharing) -> (Arc<Queue>, Server) {
    let queue = Arc::<Queue>::default();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = ServerOptions { sharing, ..ServerOptions::new(any) };
    (queue.clone(), Server::start(options, queue, ReplyCache::volatile()).await.unwrap())
}

/// Takes so many replies.
async fn hear(wire: &mut Wire, count: usize) {
    let mut wire = wire.clone();
    tokio::task::spawn_blocking(move || (0..count).for_each(|_| wire.hear_one())).await.unwrap();
}

/// Both peers are active, and no call in progress is taken for one that waits for something far away.
fn lasting() -> Sharing {
    Sharing { window: WINDOW, hold: LONG, active: LONG, ..Sharing::default() }
}

#[tokio::test]
async fn a_quiet_peers_call_waits_for_no_more_than_the_part_of_the_noisy_one() {
    let (queue, server) = serve(lasting()).await;
    let mut quiet = Wire::connect(QUIET, &server);
    quiet.send(NULL, 1);
    hear(&mut quiet, 1).await;
    let mut noisy: Vec<Wire> = (0..4).map(|_| Wire::connect(NOISY, &server)).collect();
    noisy.iter_mut().for_each(|wire| wire.send(WORK, 64));
    queue.begun(PART).await;
    quiet.send(WORK, 1);
    queue.begun(PART + 1).await;
    assert_eq!(queue.waiting.lock().len(), PART + 1, "more of the noisy peer were let in");
    let mut before = 0;
    while queue.end_first() != Some(QUIET) {
        before += 1;
        queue.begun(PART + 1 + before).await;
    }
    assert_eq!(before, PART);
    hear(&mut quiet, 1).await;
    // All others are answered in the end.
    for wire in &mut noisy {
        let all = async {
            while queue.begun.load(Ordering::SeqCst) < 4 * 64 + 1 || !queue.waiting.lock().is_empty() {
                while queue.end_first().is_some() {}
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, all).await.unwrap();
        hear(wire, 64).await;
    }
    assert!(queue.held_back.load(Ordering::SeqCst) > 0 && server.load().waited() > 0);
}

#[tokio::test]
async fn a_peer_that_is_alone_has_all_its_calls_in_progress() {
    let (queue, server) = serve(lasting()).await;
    let mut noisy = Wire::connect(NOISY, &server);
    noisy.send(WORK, 200);
    queue.begun(200).await;
    assert_eq!(server.load().waited(), 0);
}

#[tokio::test]
async fn what_others_wait_for_overtakes_the_line() {
    let (queue, server) = serve(lasting()).await;
    let mut quiet = Wire::connect(QUIET, &server);
    quiet.send(NULL, 1);
    hear(&mut quiet, 1).await;
    let mut noisy = Wire::connect(NOISY, &server);
    noisy.send(WORK, 100);
    queue.begun(PART).await;
    // All of its calls in progress wait for what comes behind 92 that wait in line.
    noisy.send(GIVE_BACK, 1);
    hear(&mut noisy, PART + 1).await;
    queue.begun(2 * PART).await;
}

#[tokio::test]
async fn calls_that_wait_for_one_in_the_line_do_not_keep_it_there() {
    let sharing = Sharing { hold: Duration::from_millis(2), ..lasting() };
    let (queue, server) = serve(sharing).await;
    let mut quiet = Wire::connect(QUIET, &server);
    quiet.send(NULL, 1);
    hear(&mut quiet, 1).await;
    let mut noisy = Wire::connect(NOISY, &server);
    noisy.send(WORK, 50);
    noisy.send(END_ALL, 1);
    hear(&mut noisy, 51).await;
    assert!(queue.waiting.lock().is_empty());
}

#[tokio::test]
async fn limits_of_rates_are_kept_without_an_error() {
    let rates = Rates { operations: Some(100), bytes: None };
    let (_, server) = serve(Sharing { rates, ..Sharing::default() }).await;
    let began = std::time::Instant::now();
    let mut wires = [Wire::connect(NOISY, &server), Wire::connect(NOISY, &server)];
    wires.iter_mut().for_each(|wire| wire.send(END_ALL, 20));
    for wire in &mut wires {
        hear(wire, 20).await;
    }
    // A bucket holds ten of the forty calls.
    assert!(began.elapsed() > Duration::from_millis(280), "{:?}", began.elapsed());
    assert!(server.load().waited() > 20);
}
