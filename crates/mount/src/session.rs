//! The conversation with the kernel: who reads requests, who answers them, and who stops waiting.
//!
//! One thread reads at a time, and goes on reading as long as what it reads is soon answered: the kernel would wake the
//! others in turn, for a request each, and each would find its caches cold. Before it copies much it lets another one
//! read.
//!
//! A request is begun on the thread that read it: an answer that needs no waiting needs no other thread. What has to
//! wait goes on as a task, to its end, whoever waits for it. A process that has been killed gets its answer before that
//! (`hard` or not, a mount must not keep anybody from being killed), and what it would have got is taken back: an open
//! is closed, nodes are forgotten.

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

/// After how long it is looked whether who waits has been killed, if no signal is told; and how often from then on.
const LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_millis(250));
/// Signals for requests that have not begun, at most.
const EARLY_MAX: usize = 1024;
/// Bytes of file data that take longer to copy than it takes to wake up another thread.
const MUCH_BYTES: usize = 32 << 10;
/// Requests of the kernel itself (read-ahead, write-back) at a time.
const BACKGROUND_MAX: u16 = 64;

type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// What the two sides have agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Agreed {
    /// What both can.
    pub flags: Init,
    /// Largest WRITE in bytes.
    pub max_write: u32,
}

/// Why there is no conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The kernel's protocol is too old.
    Version(u32, u32),
    /// The connection broke.
    Broken(Errno),
}

/// Answers INIT: the first request, before any other. `wanted` are our wishes.
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
        // One that speaks a later major version asks again with ours.
        if major == MAJOR {
            return Ok(agreed);
        }
    }
}

/// Requests that wait, and signals for some that have not begun to.
#[derive(Debug, Default)]
struct Waiting {
    requests: HashMap<u64, Interrupt>,
    early: HashSet<u64>,
}

/// A conversation. Cheap to clone.
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

    /// Has that happened?
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

    /// Begins a request, and answers it if it need not wait.
    fn begin(&self, device: &Device, header: Header, request: Request) {
        let _runtime = self.runtime.enter();
        let interrupt = Interrupt::default();
        let mut work: Work = Box::pin(self.front.clone().answer(header, request, interrupt.clone()));
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => self.reply(device, header.unique, outcome),
            Poll::Pending => {
                {
                    let mut waiting = self.waiting.lock();
                    if waiting.early.remove(&header.unique) {
                        interrupt.raise();
                    }
                    waiting.requests.insert(header.unique, interrupt.clone());
                }
                self.runtime.spawn(self.clone().go_on(device.clone(), header, work, interrupt));
            }
        }
    }

    /// Waits for an answer for as long as the asker does.
    async fn go_on(self, device: Device, header: Header, mut work: Work, interrupt: Interrupt) {
        let mut look = LOOK.0;
        let mut told = false;
        loop {
            tokio::select! {
                outcome = &mut work => {
                    self.waiting.lock().requests.remove(&header.unique);
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
        self.waiting.lock().requests.remove(&header.unique);
        self.front.counters.abandoned.fetch_add(1, Ordering::Relaxed);
        interrupt.raise();
        let _ = device.reply(header.unique, &Err(Errno::INTR));
        if let Ok(answer) = work.await {
            self.front.abandon(answer).await;
        }
    }

    /// A signal came for who waits for this request. It may have been read by another thread, which has not begun it.
    fn interrupt(&self, unique: u64) {
        let mut waiting = self.waiting.lock();
        if let Some(interrupt) = waiting.requests.get(&unique) {
            interrupt.raise();
            return;
        }
        // Of those that have just been answered nothing comes any more.
        if waiting.early.len() >= EARLY_MAX {
            waiting.early.clear();
        }
        waiting.early.insert(unique);
    }

    /// Replies the way that the request came: the kernel keeps a list of its own for each descriptor.
    fn reply(&self, device: &Device, unique: u64, outcome: Outcome) {
        if matches!(outcome, Ok(Answer::UnansweredSince)) {
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

/// Does a request take long without waiting for anything?
fn is_much(request: &Request) -> bool {
    match request {
        Request::Read { size, .. } => *size as usize > MUCH_BYTES,
        Request::Write { data, .. } => data.len() > MUCH_BYTES,
        Request::Readdir { .. } => true,
        _ => false,
    }
}
