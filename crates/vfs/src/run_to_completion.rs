//! Work that runs to completion although its requester goes away.
//!
//! A layer that records the state of a server must learn the outcome of each of its changes. If it missed a
//! reply, it would never return a lease or free a lock that the reply granted, and would not see what the
//! call changed. But a requester may go away: a client's connection ends, a deadline passes, a program is
//! interrupted.
//!
//! The work could be a task of its own from the start. Then the runtime would wake another processor for it,
//! and the requester at its end, which takes longer than many of the operations. So the work runs in the
//! requester's task, and becomes a task of its own only when the requester drops it half done.
//!
//! Assumes that a task that has begun to poll the work continues to poll it or drops it. The work holds its
//! resources until then.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Work that continues after its requester drops it half done. If it has not begun, it is dropped too. It
/// must not be polled after its end.
#[must_use = "work begins when it is awaited"]
pub struct RunToCompletion<T: Send + 'static, U: FnOnce(T) + Send + 'static> {
    rest: Option<Rest<T, U>>,
    begun: bool,
}

struct Rest<T, U> {
    work: Pin<Box<dyn Future<Output = T> + Send>>,
    unheard: U,
}

/// Runs `work` to completion.
pub fn run_to_completion<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> RunToCompletion<T, impl FnOnce(T) + Send + 'static> {
    run_to_completion_or(work, drop)
}

/// Runs `work` to completion. If the requester has gone, the result goes to `unheard`, which may undo it.
pub fn run_to_completion_or<T: Send + 'static, U: FnOnce(T) + Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
    unheard: U,
) -> RunToCompletion<T, U> {
    RunToCompletion { rest: Some(Rest { work: Box::pin(work), unheard }), begun: false }
}

// The work is pinned in its box, and no other field needs pinning.
impl<T: Send + 'static, U: FnOnce(T) + Send + 'static> Unpin for RunToCompletion<T, U> {}

impl<T: Send + 'static, U: FnOnce(T) + Send + 'static> Future for RunToCompletion<T, U> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // The work is taken out while it runs, so that work that panics is not polled again.
        let Some(mut rest) = self.rest.take() else { return Poll::Pending };
        self.begun = true;
        let polled = rest.work.as_mut().poll(context);
        if polled.is_pending() {
            self.rest = Some(rest);
        }
        polled
    }
}

impl<T: Send + 'static, U: FnOnce(T) + Send + 'static> Drop for RunToCompletion<T, U> {
    fn drop(&mut self) {
        let Some(Rest { work, unheard }) = self.rest.take().filter(|_| self.begun) else { return };
        // Without a runtime, the process is ending.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { unheard(work.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn who_waits_has_it_done_in_his_own_task() {
        let asker = tokio::spawn(async {
            let task = || tokio::task::id();
            let work = run_to_completion(async move {
                tokio::task::yield_now().await;
                task()
            });
            (task(), work.await)
        });
        let (asker, worker) = asker.await.unwrap();
        assert_eq!(asker, worker);
    }

    #[tokio::test]
    async fn what_is_dropped_half_done_is_done_and_what_comes_of_it_is_taken_back() {
        let (go_on, told) = oneshot::channel::<u32>();
        let (done, heard) = oneshot::channel();
        let work =
            run_to_completion_or(async move { told.await.unwrap() + 1 }, |result| done.send(result).unwrap());
        let gave_up = tokio::time::timeout(Duration::ZERO, work).await;
        assert!(gave_up.is_err());
        go_on.send(41).unwrap();
        assert_eq!(heard.await, Ok(42));
    }

    #[tokio::test]
    async fn one_within_another_goes_on_with_it() {
        let (go_on, told) = oneshot::channel::<u32>();
        let (done, heard) = oneshot::channel();
        let inner = run_to_completion_or(async move { told.await.unwrap() }, |_| {
            panic!("it is heard by the outer one")
        });
        let mut outer = run_to_completion_or(inner, |result| done.send(result).unwrap());
        assert_eq!((&mut outer).now_or_never(), None);
        drop(outer);
        go_on.send(7).unwrap();
        assert_eq!(heard.await, Ok(7));
    }

    #[tokio::test]
    async fn what_has_not_begun_is_not_begun() {
        let begun = Arc::new(AtomicU32::new(0));
        let counted = begun.clone();
        drop(run_to_completion(async move { counted.fetch_add(1, Ordering::Relaxed) }));
        tokio::task::yield_now().await;
        assert_eq!((begun.load(Ordering::Relaxed), Arc::strong_count(&begun)), (0, 1));
    }

    #[test]
    fn without_a_runtime_it_ends() {
        let held = Arc::new(());
        let also = held.clone();
        let mut work = run_to_completion(async move {
            std::future::pending::<()>().await;
            drop(also);
        });
        assert_eq!((&mut work).now_or_never(), None);
        drop(work);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
