//! Whether the server answers, as seen by waiting calls: [`vfs::FileSystem::unanswered_since`].
//!
//! A server is silent from the moment at which a call is waiting and nothing more comes from it, to this call
//! or any other. One slow call is no silence as long as others are answered. The reaction of a mount (`hard`,
//! `soft`) is not decided here.
//!
//! Promise: reads-without-the-origin

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use parking_lot::Mutex;
use rpc::CallError;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use vfs::UnansweredSince;

/// Shorter silences are not reported.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// Whether one server answers, over all links to it.
#[derive(Debug)]
pub(crate) struct Pulse {
    heard: Mutex<Instant>,
    silence: watch::Sender<UnansweredSince>,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse { heard: Mutex::new(Instant::now()), silence: watch::Sender::default() }
    }
}

impl Pulse {
    /// Watches since when the server is silent, as silences begin and end.
    pub(crate) fn watch(&self) -> watch::Receiver<UnansweredSince> {
        self.silence.subscribe()
    }

    /// Waits for a call, and notes whether anything comes.
    pub(crate) async fn follow<T>(
        &self,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let started = Instant::now();
        let mut call = pin!(call);
        let mut look = started + NOTICE_AFTER;
        let result = loop {
            if let Ok(result) = timeout_at(look, &mut call).await {
                break result;
            }
            let since = started.max(*self.heard.lock());
            if since.elapsed() >= NOTICE_AFTER {
                self.silence.send_if_modified(|silence| {
                    let news = silence.is_none();
                    silence.get_or_insert(since);
                    news
                });
            }
            look = Instant::now() + NOTICE_AFTER;
        };
        if !result.as_ref().is_err_and(CallError::is_silence) {
            *self.heard.lock() = Instant::now();
            self.silence.send_if_modified(|silence| silence.take().is_some());
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn answer_after(pulse: &Pulse, seconds: u64) {
        let call = async {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok(())
        };
        pulse.follow(call).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_calls_that_wait_and_nothing_that_comes() {
        let pulse = Pulse::default();
        let told = pulse.watch();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(*told.borrow(), None, "nobody has asked");
        let asked = Instant::now();
        tokio::join!(answer_after(&pulse, 5), async {
            tokio::time::sleep(Duration::from_millis(900)).await;
            assert_eq!(*told.borrow(), None);
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert_eq!(*told.borrow(), Some(asked));
        });
        assert_eq!(*told.borrow(), None, "answered");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_call_among_others_is_no_silence() {
        let pulse = Pulse::default();
        let told = pulse.watch();
        tokio::join!(answer_after(&pulse, 20), async {
            for _ in 0..30 {
                tokio::time::sleep(Duration::from_millis(100)).await;
                pulse.follow(async { Ok(()) }).await.unwrap();
                assert_eq!(*told.borrow(), None);
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_gave_up_has_heard_nothing() {
        let pulse = Pulse::default();
        let call = async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            Err::<(), _>(CallError::TimedOut)
        };
        pulse.follow(call).await.unwrap_err();
        assert!(pulse.watch().borrow().is_some());
        pulse.follow(async { Ok(()) }).await.unwrap();
        assert!(pulse.watch().borrow().is_none());
    }
}
