//! Pauses of threads at random points, for tests.
//!
//! A fault between two critical sections shows only if another thread runs between them. On an idle machine
//! that is rare, and in a simulation with one thread it never happens. A test that asks for pauses makes it
//! frequent. In release builds there are none.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The longest pause.
const PAUSE_MAX_MICROS: u64 = 800;

/// One of so many points pauses; zero if none does.
static ONE_IN: AtomicU32 = AtomicU32::new(0);

/// From now on, one of `one_in` points in this process pauses its thread; zero stops that.
pub fn pause(one_in: u32) {
    ONE_IN.store(one_in, Ordering::Relaxed);
}

/// A point where another thread may come between.
#[inline]
pub(crate) fn point() {
    if cfg!(debug_assertions) {
        let one_in = ONE_IN.load(Ordering::Relaxed);
        if one_in > 0 {
            maybe_pause(u64::from(one_in));
        }
    }
}

fn maybe_pause(one_in: u64) {
    thread_local!(static SEED: Cell<u64> = const { Cell::new(0) });
    let number = SEED.with(|seed| {
        // The address differs from thread to thread.
        let start = std::ptr::from_ref(seed) as u64 ^ 0x9E37_79B9_7F4A_7C15;
        let mut number = if seed.get() == 0 { start } else { seed.get() };
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        seed.set(number);
        number
    });
    if number.is_multiple_of(one_in) {
        std::thread::sleep(Duration::from_micros(number / one_in % PAUSE_MAX_MICROS));
    }
}
