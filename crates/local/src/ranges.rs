//! Ranges of a file that are on their way to a client, and whoever is about to cut the file shorter.
//!
//! A large READ is answered with a range that is sent later, straight from the file. If the file were cut in between,
//! the reply could not be completed and its connection would have to be dropped. So a cut waits a moment for the ranges
//! that are out, and reads that come meanwhile get bytes. A client that takes its reply too slowly loses its
//! connection after all; and processes of this machine do not wait.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Longest wait for ranges that are out.
const WAIT_MAX: Duration = Duration::from_secs(3);

/// The ranges of one file.
#[derive(Default)]
pub(crate) struct Ranges {
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    out: usize,
    cutting: usize,
}

/// A range that is out.
pub(crate) struct Pin(Arc<Ranges>);

/// A cut, from before it waits to after it is done.
pub(crate) struct Cut<'a>(&'a Ranges);

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

    /// Keeps ranges from being taken out, and waits for those that are.
    pub(crate) fn cut(&self) -> Cut<'_> {
        let mut state = self.state.lock();
        state.cutting += 1;
        self.returned.wait_while_for(&mut state, |state| state.out > 0, WAIT_MAX);
        Cut(self)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.state.lock().out -= 1;
        self.0.returned.notify_all();
    }
}

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        self.0.state.lock().cutting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_waits_for_ranges_and_holds_new_ones_off() {
        let ranges = Arc::new(Ranges::default());
        let pin = ranges.pin().unwrap();
        std::thread::scope(|scope| {
            let cutter = scope.spawn(|| {
                let cut = ranges.cut();
                assert_eq!(ranges.state.lock().out, 0);
                assert!(ranges.pin().is_none());
                drop(cut);
            });
            while ranges.state.lock().cutting == 0 {
                std::thread::yield_now();
            }
            assert!(ranges.pin().is_none());
            drop(pin);
            cutter.join().unwrap();
        });
        assert!(ranges.pin().is_some());
    }
}
