//! A client that calls a server all the time, on a thread of its own, and notes how long each call takes.

use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::program::Running;
use crate::wire::Wire;

/// Calls in a measurement at least.
const CALLS: usize = 200;

/// The call that the client repeats.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// GETATTR of the root of `/export`.
    Getattr,
    /// NULL, which needs no origin.
    Null,
    /// NULL on a connection of its own.
    Connect,
}

/// Between two connections, so that the ports last.
const PAUSE: Duration = Duration::from_millis(5);

/// The client; dropping the value ends it.
pub struct Watch {
    taken: Receiver<Duration>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts a client.
    pub fn start(server: &Running, what: What) -> Watch {
        let (tell, taken) = channel();
        let address = server.address.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(call(&address, what, &tell));
        });
        Watch { taken, thread: Some(thread) }
    }

    /// The 99th percentile of the calls that have ended and were not looked at before.
    pub fn so_far(&self) -> Duration {
        p99(self.taken.try_iter().collect())
    }

    /// The 99th percentile of the next calls.
    pub fn steady(&self) -> Duration {
        self.taken.try_iter().for_each(drop);
        p99((0..CALLS).map(|_| self.taken.recv().expect("each call succeeds")).collect())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Without a receiver the client ends after its next call.
        let (_, nobody) = channel();
        self.taken = nobody;
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "each call succeeds");
    }
}

async fn call(address: &str, what: What, tell: &Sender<Duration>) {
    let mut client = Wire::connect(Ipv4Addr::LOCALHOST, address).await;
    let root = if what == What::Getattr { client.mount("/export").await } else { Vec::new() };
    loop {
        let started = Instant::now();
        match what {
            What::Getattr => assert_eq!(client.getattr(&root).await, 0),
            What::Null => client.null().await,
            What::Connect => Wire::connect(Ipv4Addr::LOCALHOST, address).await.null().await,
        }
        if tell.send(started.elapsed()).is_err() {
            return;
        }
        if what == What::Connect {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn p99(mut taken: Vec<Duration>) -> Duration {
    taken.sort_unstable();
    taken.get((taken.len() * 99 / 100).min(taken.len().saturating_sub(1))).copied().unwrap_or_default()
}
