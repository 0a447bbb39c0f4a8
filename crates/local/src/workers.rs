//! Threads for operations that may wait for a disk: changes, listings, uncached reads.
//!
//! The crate has its own threads instead of the runtime's pool, because they change identity. Only
//! operations of this crate run on them. So a thread may keep the identity of its last caller, and has a
//! file-creation mask of zero (clients apply theirs). It has no `CAP_SYS_RESOURCE`, which would let callers
//! exceed quotas and use space reserved for root. One pool serves all exports of the process.
//!
//! A job may be a future ([`start_task`]). If it waits for a lock that a job holds, the thread that releases
//! the lock runs it next. So changes of one directory follow each other on one thread, without a switch
//! between threads for each.

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::{Condvar, Mutex};
use rustix::fs::Mode;
use rustix::thread::CapabilitySet;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use vfs::{Principal, Status};

use crate::{identity, sys};

/// Limit of operations that run or are queued; further ones wait before they are queued.
const JOBS_MAX: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

/// Limit of changes that run or wait for their locks. They have a limit of their own: those that wait for a
/// file that hangs do not keep other operations from the queue.
const CHANGES_MAX: usize = 4096;

struct Pool {
    queue: Mutex<VecDeque<Job>>,
    arrived: Condvar,
    capacity: Semaphore,
    changes: Semaphore,
}

static POOL: Pool = Pool {
    queue: Mutex::new(VecDeque::new()),
    arrived: Condvar::new(),
    capacity: Semaphore::const_new(JOBS_MAX),
    changes: Semaphore::const_new(CHANGES_MAX),
};

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
    /// Jobs that this worker has queued and woken nobody for.
    static OWED: Cell<usize> = const { Cell::new(0) };
}

/// Starts the threads, once per process.
pub(crate) fn start() -> std::io::Result<()> {
    static STARTED: OnceLock<Result<(), std::io::ErrorKind>> = OnceLock::new();
    let started = STARTED.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for number in 0..(4 * cores).clamp(16, 64) {
            let thread = std::thread::Builder::new().name(format!("local-{number}"));
            thread.spawn(work).map_err(|error| error.kind())?;
        }
        Ok(())
    });
    (*started).map_err(std::io::Error::from)
}

/// Runs `job` on a thread of the pool with the identity of `principal`.
///
/// # Errors
/// Those of the job; `Access` if the thread cannot take the identity; `ServerFault` if the job panicked.
pub(crate) async fn run<T, E, J>(principal: Principal, job: J) -> Result<T, E>
where
    T: Send + 'static,
    E: From<Status> + Send + 'static,
    J: FnOnce() -> Result<T, E> + Send + 'static,
{
    let _capacity = capacity().await?;
    let (answer, answered) = oneshot::channel();
    let job: Job = Box::new(move || {
        let outcome = identity::wear(&principal).map_err(E::from).and_then(|_worn| job());
        let _ = answer.send(outcome); // the requester may have gone away; the job has run to completion
    });
    push(job);
    answered.await.unwrap_or(Err(Status::ServerFault.into()))
}

/// Waits until one more operation may be queued; it is, until the result is dropped.
async fn capacity() -> Result<SemaphorePermit<'static>, Status> {
    POOL.capacity.acquire().await.map_err(|_| Status::ServerFault)
}

/// Waits until one more change may be made; it counts until the result is dropped.
pub(crate) async fn capacity_to_change() -> Result<SemaphorePermit<'static>, Status> {
    POOL.changes.acquire().await.map_err(|_| Status::ServerFault)
}

/// Starts a job that takes its identity itself. The caller bounds the number of such jobs.
pub(crate) fn start_job(job: impl FnOnce() + Send + 'static) {
    push(Box::new(job));
}

/// Starts a future. It is polled on this thread at first, and then on the threads of the pool. The caller
/// bounds the number of such futures.
pub(crate) fn start_task(future: impl Future<Output = ()> + Send + 'static) {
    Arc::new(Task(Mutex::new(Some(Box::pin(future))))).poll();
}

/// Lets a future go on on a thread of the pool, if it is not on one.
pub(crate) async fn on_worker() {
    poll_fn(|context| {
        if IS_WORKER.get() {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The job of this thread is about to wait for the disk: lets other threads run the jobs that it has woken.
pub(crate) fn about_to_wait() {
    for _ in 0..OWED.take() {
        POOL.arrived.notify_one();
    }
}

/// A future of [`start_task`]; `None` when it has ended.
struct Task(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Task {
    fn poll(self: Arc<Task>) {
        let waker = Waker::from(self.clone());
        let mut place = self.0.lock();
        // Taken, so that a future that panics is dropped.
        let Some(mut future) = place.take() else { return };
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            *place = Some(future);
        }
    }
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        push(Box::new(move || self.poll()));
    }
}

fn push(job: Job) {
    POOL.queue.lock().push_back(job);
    if IS_WORKER.get() {
        OWED.set(OWED.get() + 1);
    } else {
        POOL.arrived.notify_one();
    }
}

fn work() {
    identity::keep_on_this_thread();
    prepare_thread();
    IS_WORKER.set(true);
    loop {
        let mut was_woken = false;
        let mut queue = POOL.queue.lock();
        let job = loop {
            if let Some(job) = queue.pop_front() {
                break job;
            }
            OWED.set(0);
            POOL.arrived.wait(&mut queue);
            was_woken = true;
        };
        if was_woken && !queue.is_empty() {
            // This may be the job of a thread that has woken nobody, before the one that we were woken for.
            POOL.arrived.notify_one();
        }
        OWED.set(OWED.get().min(queue.len()));
        drop(queue);
        about_to_wait();
        if catch_unwind(AssertUnwindSafe(job)).is_err() {
            tracing::error!("an operation on a local directory panicked; this is a defect");
        }
    }
}

fn prepare_thread() {
    if sys::unshare_umask().is_ok() {
        rustix::process::umask(Mode::empty());
    } else {
        tracing::warn!("the process's umask applies to files made by clients: unshare(CLONE_FS) was refused");
    }
    if let Ok(mut sets) = rustix::thread::capabilities(None)
        && sets.effective.contains(CapabilitySet::SYS_RESOURCE)
    {
        sets.effective.remove(CapabilitySet::SYS_RESOURCE);
        let _ = rustix::thread::set_capabilities(None, sets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_costs_one_operation() {
        start().unwrap();
        let panicked = run::<(), Status, _>(Principal::Machine, || panic!("on purpose")).await;
        assert_eq!(panicked, Err(Status::ServerFault));
        for number in 0..100 {
            assert_eq!(run(Principal::Machine, move || Ok::<_, Status>(number)).await, Ok(number));
        }
    }

    #[tokio::test]
    async fn tasks_that_wait_for_each_other_all_end() {
        start().unwrap();
        let lock = Arc::new(tokio::sync::Mutex::new(0_u32));
        let mut answers = Vec::new();
        for number in 0..200 {
            let (answer, answered) = oneshot::channel();
            let lock = lock.clone();
            start_task(async move {
                let mut count = lock.lock_owned().await;
                on_worker().await;
                assert!(IS_WORKER.get() && number % 10 != 7, "on purpose");
                *count += 1;
                let _ = answer.send(());
            });
            answers.push((number, answered));
        }
        for (number, answered) in answers {
            assert_eq!(answered.await.is_ok(), number % 10 != 7, "{number}");
        }
        assert_eq!(*lock.lock().await, 180);
    }

    #[tokio::test]
    async fn a_job_that_waits_lets_others_run_what_it_has_woken() {
        start().unwrap();
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        let held = lock.clone().lock_owned().await;
        let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
        let (answer, answered) = oneshot::channel();
        start_task(async move {
            let _held = lock.lock_owned().await;
            on_worker().await;
            let _ = answer.send(());
        });
        start_job(move || {
            drop(held);
            about_to_wait();
            let _ = goes_on.recv();
        });
        let patience = std::time::Duration::from_secs(60);
        assert!(tokio::time::timeout(patience, answered).await.is_ok_and(|answered| answered.is_ok()));
        drop(go_on);
    }
}
