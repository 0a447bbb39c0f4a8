//! Ranges of a file that are on their way to a client, and whoever is about to cut the file shorter.
//!
//! A large READ is answered with a range that is sent later, straight from the file. If the file were cut in between,
//! the reply could not be completed and its connection would have to be dropped. So a cut waits a moment for the ranges
//! that are out, and reads that come meanwhile get bytes. A client that takes its reply too slowly loses its
//! connection after all; and processes of this machine do not wait.
//!
//! The wait takes no thread: the worker that finds ranges out gives the job back ([`Out`]), and whoever asked for the
//! cut waits ([`Out::clear`]) before the job is done again. Clients that do not read their replies hold up nobody else.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Longest wait for ranges that are out.
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
    /// So many cuts have waited long enough.
    overdue: usize,
}

/// A range that is out.
pub(crate) struct Pin(Arc<Ranges>);

/// A cut that is being done.
#[derive(Debug)]
pub(crate) struct Cut(Arc<Ranges>);

/// Ranges are out that a cut has to wait for.
#[derive(Debug)]
pub(crate) struct Out(Arc<Ranges>);

/// A cut that has waited, until it is done. No range is taken out meanwhile.
#[derive(Debug)]
pub(crate) struct Cleared(Arc<Ranges>, bool);

impl Ranges {
    /// Takes out a range, unless the file is being cut.
    pub(crate) fn pin(self: &Arc<Ranges>) -> Option<Pin> {
        let mut state = self.state.lock();
        if state.cutting > 0 {
            return None;
        }
        state.out += 1;
        Some(Pin(self.clone()))
    }

    /// Keeps ranges from being taken out. Those that are out have to be waited for first, but not for ever.
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
    /// Waits until they are back, or for as long as a cut does.
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
