//! Reads the kernel's requests, starts them, and sends the replies.
//!
//! One thread reads at a time, and continues while its requests are answered quickly. If all threads read
//! in turn, the kernel would wake a different one for each request, and each would find its CPU caches
//! cold. Before a thread copies much data, it lets another thread read.
//!
//! A request starts on the thread that read it, so a reply that needs no waiting needs no other thread. A
//! request that must wait continues as a task and runs to completion, even if its requester goes away. If
//! the requesting process was killed, reply EINTR at once and undo the operation when it finishes: close
//! the open, forget the nodes. This holds with `hard` too: a mount must never make a process unkillable.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::credentials;
use crate::device::{Device, Reader};
use crate::front::{Front, Interrupt};
use crate::wire::abi::{IN_HEADER_BYTES, Init, MAJOR, MINOR_MIN};
use crate::wire::reply::{Answer, InitOut, Outcome};
use crate::wire::request::{self, Header, Request};

/// When to check whether the requesting process was killed: first after `.0`, if the kernel reports no
/// signal, then every `.1`.
const LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(250));
/// Limit of remembered signals for requests that have not started.
const EARLY_MAX: usize = 1024;
/// Copying more bytes of file data takes longer than waking another thread.
const MUCH_BYTES: usize = 32 << 10;
/// Limit of requests that the kernel itself has in flight (read-ahead, write-back).
const BACKGROUND_MAX: u16 = 64;

type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// The result of INIT.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    /// The flags that both sides support.
    pub flags: Init,
    /// Largest WRITE in bytes.
    pub max_write: u32,
}

/// Why INIT failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The kernel's protocol is too old.
    Version(u32, u32),
    /// The connection broke.
    Broken(Errno),
}

/// Answers INIT, which comes before any other request. `wanted` are the flags that this mount asks for.
pub fn shake_hands(device: &Device, wanted: Init, max_write: u32) -> Result<Agreed, Refused> {
    let mut reader = Reader::new(device.clone(), max_write);
    loop {
        let bytes = reader.next().map_err(Refused::Broken)?.ok_or(Refused::Broken(Errno::NODEV))?;
        let (header, opcode) = request::header(&bytes).ok_or(Refused::Broken(Errno::PROTO))?;
        let Some(Request::Init { major, minor, max_readahead, flags }) = request::parse(opcode, &bytes)
        else {
            let _ = device.reply(header.unique, &Err(Errno::IO));
            continue;
        };
        if major < MAJOR || (major == MAJOR && minor < MINOR_MIN) {
            let _ = device.reply(header.unique, &Err(Errno::PROTO));
            return Err(Refused::Version(major, minor));
        }
        let agreed = Agreed { flags: flags & wanted, max_write };
        let init = InitOut {
            max_readahead,
            flags: agreed.flags,
            max_background: BACKGROUND_MAX,
            max_write,
            time_gran: 1,
        };
        device.reply(header.unique, &Ok(Answer::Init(init))).map_err(Refused::Broken)?;
        // A kernel with a later major version sends INIT again with ours.
        if major == MAJOR {
            return Ok(agreed);
        }
    }
}

/// Requests that wait for the layer below, and signals for requests that have not started.
#[derive(Debug, Default)]
struct Waiting {
    requests: HashMap<u64, Interrupt>,
    early: HashSet<u64>,
}

/// A request that waits for the layer below.
struct WaitingRequest {
    waiting: Arc<Mutex<Waiting>>,
    unique: u64,
}

impl WaitingRequest {
    /// Enters the request. Raises the interrupt if a signal came for it before.
    fn begin(waiting: &Arc<Mutex<Waiting>>, unique: u64, interrupt: &Interrupt) -> WaitingRequest {
        let mut table = waiting.lock();
        if table.early.remove(&unique) {
            interrupt.raise();
        }
        table.requests.insert(unique, interrupt.clone());
        drop(table);
        WaitingRequest { waiting: waiting.clone(), unique }
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.waiting.lock().requests.remove(&self.unique);
    }
}

/// The exchange with the kernel over one connection. Cheap to clone.
#[derive(Clone)]
pub struct Session {
    front: Arc<Front>,
    runtime: Handle,
    waiting: Arc<Mutex<Waiting>>,
    /// Held by the thread that reads.
    turn: Arc<Mutex<()>>,
    ended: watch::Sender<bool>,
}

impl Session {
    /// Starts the readers.
    pub fn start(front: Arc<Front>, agreed: Agreed, threads: usize) -> std::io::Result<Session> {
        let (ended, _) = watch::channel(false);
        let (waiting, turn) = (Arc::default(), Arc::default());
        let session = Session { front, runtime: Handle::current(), waiting, turn, ended };
        for number in 0..threads.max(1) {
            let device =
                if number == 0 { session.front.device.clone() } else { session.front.device.another() };
            let (reader, session) = (Reader::new(device, agreed.max_write), session.clone());
            std::thread::Builder::new().name(format!("fuse-{number}")).spawn(move || session.run(reader))?;
        }
        Ok(session)
    }

    /// Waits until the file system is unmounted, or the connection is aborted.
    pub async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Is the file system unmounted, or the connection aborted?
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Requests that wait for the layer below.
    pub fn waiting(&self) -> usize {
        self.waiting.lock().requests.len()
    }

    fn run(self, mut reader: Reader) {
        let mut turn = self.turn.lock();
        loop {
            match reader.next() {
                Ok(Some(bytes)) => {
                    let Some((header, opcode)) = request::header(&bytes) else {
                        tracing::error!("the kernel sent {} bytes that are no request", bytes.len());
                        continue;
                    };
                    let parsed = bytes.get(IN_HEADER_BYTES..).and_then(|_| request::parse(opcode, &bytes));
                    if parsed.as_ref().is_some_and(is_much) {
                        drop(turn);
                        self.take(reader.device(), header, parsed);
                        turn = self.turn.lock();
                    } else {
                        self.take(reader.device(), header, parsed);
                    }
                }
                Ok(None) => break,
                Err(errno) => {
                    tracing::error!("cannot read requests of the kernel: {errno}");
                    break;
                }
            }
        }
        self.ended.send_replace(true);
    }

    fn take(&self, device: &Device, header: Header, parsed: Option<Request>) {
        self.front.counters.requests.fetch_add(1, Ordering::Relaxed);
        match parsed {
            None => drop(device.reply(header.unique, &Err(Errno::INVAL))),
            Some(Request::Forget(nodes)) => {
                nodes.into_iter().for_each(|(node, count)| self.front.forget(node, count));
            }
            Some(Request::Interrupt { unique }) => self.interrupt(unique),
            Some(Request::Destroy) => drop(device.reply(header.unique, &Ok(Answer::Done))),
            Some(request) => self.begin(device, header, request),
        }
    }

    /// Starts a request. If it finishes without waiting, replies at once.
    fn begin(&self, device: &Device, header: Header, request: Request) {
        let _runtime = self.runtime.enter();
        let interrupt = Interrupt::default();
        let mut work: Work = Box::pin(self.front.clone().answer(header, request, interrupt.clone()));
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => self.reply(device, header.unique, outcome),
            Poll::Pending => {
                let waiting = WaitingRequest::begin(&self.waiting, header.unique, &interrupt);
                let device = device.clone();
                self.runtime.spawn(self.clone().go_on(device, header, work, interrupt, waiting));
            }
        }
    }

    /// Waits for the answer, until the requesting process is killed.
    async fn go_on(
        self,
        device: Device,
        header: Header,
        mut work: Work,
        interrupt: Interrupt,
        waiting: WaitingRequest,
    ) {
        let mut look = LOOK.0;
        let mut told = false;
        loop {
            tokio::select! {
                outcome = &mut work => {
                    drop(waiting);
                    return self.reply(&device, header.unique, outcome);
                }
                () = interrupt.raised(), if !told => told = true,
                () = tokio::time::sleep(look) => look = LOOK.1,
            }
            if credentials::is_killed(header.pid) {
                break;
            }
            look = if told { LOOK.1 } else { look };
        }
        drop(waiting);
        self.front.counters.abandoned.fetch_add(1, Ordering::Relaxed);
        interrupt.raise();
        let _ = device.reply(header.unique, &Err(Errno::INTR));
        if let Ok(answer) = work.await {
            self.front.abandon(answer).await;
        }
    }

    /// INTERRUPT: the requester of `unique` got a signal. If another thread has read that request but not
    /// started it, the signal is kept for it.
    fn interrupt(&self, unique: u64) {
        let mut waiting = self.waiting.lock();
        if let Some(interrupt) = waiting.requests.get(&unique) {
            interrupt.raise();
            return;
        }
        // A signal for a request that was just answered is never consumed. Drop all of them when the set is
        // full.
        if waiting.early.len() >= EARLY_MAX {
            waiting.early.clear();
        }
        waiting.early.insert(unique);
    }

    /// Replies over the descriptor that delivered the request: the kernel keeps a list of requests for each
    /// descriptor.
    fn reply(&self, device: &Device, unique: u64, outcome: Outcome) {
        if matches!(outcome, Ok(Answer::NoReply)) {
            return;
        }
        let sent = device.reply(unique, &outcome);
        if let (Err(_), Ok(answer)) = (sent, outcome)
            && matches!(answer, Answer::Entry(_) | Answer::Open(_) | Answer::Create(..) | Answer::Listing(..))
        {
            let front = self.front.clone();
            self.runtime.spawn(async move { front.abandon(answer).await });
        }
    }
}

/// Does a request take long although it waits for nothing?
fn is_much(request: &Request) -> bool {
    match request {
        Request::Read { size, .. } => *size as usize > MUCH_BYTES,
        Request::Write { data, .. } => data.len() > MUCH_BYTES,
        Request::Readdir { .. } => true,
        _ => false,
    }
}
