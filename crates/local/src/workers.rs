//! Threads for operations that may wait for a disk: changes, listings, uncached reads.
//!
//! The crate has its own threads instead of the runtime's pool, because they change identity. Only
//! operations of this crate run on them. So a thread may keep the identity of its last caller, and has a
//! file-creation mask of zero (clients apply theirs). It has no `CAP_SYS_RESOURCE`, which would let callers
//! exceed quotas and use space reserved for root. One pool serves all exports of the process.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use parking_lot::{Condvar, Mutex};
use rustix::fs::Mode;
use rustix::thread::CapabilitySet;
use tokio::sync::{Semaphore, oneshot};
use vfs::{Principal, Status};

use crate::{identity, sys};

/// Limit of operations that run or are queued; further ones wait before they are queued.
const JOBS_MAX: usize = 4096;

type Job = Box<dyn FnOnce() + Send>;

struct Pool {
    queue: Mutex<VecDeque<Job>>,
    arrived: Condvar,
    capacity: Semaphore,
}

static POOL: Pool = Pool {
    queue: Mutex::new(VecDeque::new()),
    arrived: Condvar::new(),
    capacity: Semaphore::const_new(JOBS_MAX),
};

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
    let _capacity = POOL.capacity.acquire().await.map_err(|_| Status::ServerFault)?;
    let (answer, answered) = oneshot::channel();
    let job: Job = Box::new(move || {
        let outcome = identity::wear(&principal).map_err(E::from).and_then(|_worn| job());
        let _ = answer.send(outcome); // the requester may have gone away; the job has run to completion
    });
    POOL.queue.lock().push_back(job);
    POOL.arrived.notify_one();
    answered.await.unwrap_or(Err(Status::ServerFault.into()))
}

fn work() {
    identity::keep_on_this_thread();
    prepare_thread();
    loop {
        let mut queue = POOL.queue.lock();
        let job = loop {
            match queue.pop_front() {
                Some(job) => break job,
                None => POOL.arrived.wait(&mut queue),
            }
        };
        drop(queue);
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
}
