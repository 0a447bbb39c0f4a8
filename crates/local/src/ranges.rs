//! Ranges of a file that replies still have to send, and truncations that must wait for them.
//!
//! A large READ is answered with a range that is sent later, straight from the file. If the file were
//! truncated in between, the reply could not be completed, and its connection would have to be closed. So a
//! truncation waits a moment for the pinned ranges; reads that arrive meanwhile get bytes instead of a
//! range. A client that reads its reply too slowly loses its connection nevertheless. Truncations by
//! processes of this machine do not wait.
//!
//! The wait occupies no thread. The worker that finds pinned ranges returns the job ([`Out`]); the
//! requester of the truncation waits ([`Out::clear`]) and then runs the job again. So clients that do not
//! read their replies block no others.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Limit of the wait for pinned ranges.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// The ranges of one file.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    state: Mutex<State>,
    returned: Notify,
}

#[derive(Debug, Default)]
struct State {
    out: usize,
    cutting: usize,
    /// Number of truncations that have waited for the limit.
    overdue: usize,
}

/// A pinned range.
pub(crate) struct Pin(Arc<Ranges>);

/// A truncation in progress.
#[derive(Debug)]
pub(crate) struct Cut(Arc<Ranges>);

/// A truncation must wait for pinned ranges.
#[derive(Debug)]
pub(crate) struct Out(Arc<Ranges>);

/// A truncation that has waited, until it is done. Meanwhile no range is pinned.
#[derive(Debug)]
pub(crate) struct Cleared(Arc<Ranges>, bool);

impl Ranges {
    /// Pins a range, unless the file is being truncated.
    pub(crate) fn pin(self: &Arc<Ranges>) -> Option<Pin> {
        let mut state = self.state.lock();
        if state.cutting > 0 {
            return None;
        }
        state.out += 1;
        Some(Pin(self.clone()))
    }

    /// Prevents new pins. Fails if ranges are pinned; the caller must wait for them first, for a limited
    /// time.
    pub(crate) fn cut(self: &Arc<Ranges>) -> Result<Cut, Out> {
        let mut state = self.state.lock();
        if state.out > 0 && state.overdue == 0 {
            return Err(Out(self.clone()));
        }
        state.cutting += 1;
        Ok(Cut(self.clone()))
    }
}

impl Out {
    /// Waits until no range is pinned, or for `WAIT_MAX`.
    pub(crate) async fn clear(self) -> Cleared {
        let mut cleared = Cleared(self.0, false);
        let ranges = cleared.0.clone();
        ranges.state.lock().cutting += 1;
        let back = async {
            loop {
                let mut told = std::pin::pin!(ranges.returned.notified());
                told.as_mut().enable();
                if ranges.state.lock().out == 0 {
                    return;
                }
                told.await;
            }
        };
        if tokio::time::timeout(WAIT_MAX, back).await.is_err() {
            ranges.state.lock().overdue += 1;
            cleared.1 = true;
        }
        cleared
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.out -= 1;
        if state.out == 0 && state.cutting > 0 {
            drop(state);
            self.0.returned.notify_waiters();
        }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.state.lock().cutting -= 1;
    }
}

impl Drop for Cleared {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.cutting -= 1;
        state.overdue -= usize::from(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cut_waits_for_ranges_and_holds_new_ones_off() {
        let ranges = Arc::new(Ranges::default());
        let (first, second) = (ranges.pin().unwrap(), ranges.pin().unwrap());
        let waiting = tokio::spawn(ranges.cut().unwrap_err().clear());
        while ranges.state.lock().cutting == 0 {
            tokio::task::yield_now().await;
        }
        assert!(ranges.pin().is_none());
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        let cleared = waiting.await.unwrap();
        assert!(ranges.pin().is_none(), "it has not been done yet");
        let cut = ranges.cut().unwrap();
        drop(cleared);
        assert!(ranges.pin().is_none());
        drop(cut);
        assert!(ranges.pin().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_does_not_wait_for_ever_and_one_that_is_given_up_holds_nobody_off() {
        let ranges = Arc::new(Ranges::default());
        let pin = ranges.pin().unwrap();
        let given_up = tokio::time::timeout(WAIT_MAX / 2, ranges.cut().unwrap_err().clear());
        given_up.await.unwrap_err();
        drop(ranges.pin().unwrap());
        let cleared = ranges.cut().unwrap_err().clear().await;
        drop(ranges.cut().unwrap());
        drop(cleared);
        assert!(ranges.cut().is_err(), "the next one waits for itself");
        drop(pin);
        drop(ranges.cut().unwrap());
    }
}
