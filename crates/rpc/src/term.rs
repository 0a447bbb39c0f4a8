//! The time until which this process may speak.
//!
//! A server of a cluster may answer for as long as no other machine can have taken it over. At the end of
//! that time it is killed. But a process that was stopped for a while (an overloaded machine, SIGSTOP) may go
//! on before anybody kills it. So each message is sent only if the time is not over, by the clock that goes
//! on while the machine sleeps; otherwise the process ends itself. A process without a term pays one load.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use rustix::time::{ClockId, clock_gettime};

/// The end in nanoseconds of `CLOCK_BOOTTIME`; zero if there is none.
static UNTIL: AtomicU64 = AtomicU64::new(0);

/// The time of the clock that terms are measured with.
pub fn clock() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// From now on this process may speak until `until`, by [`clock`].
pub fn set(until: Duration) {
    UNTIL.store(u64::try_from(until.as_nanos()).unwrap_or(u64::MAX).max(1), Ordering::Release);
}

/// The time that is left. `None` if there is no term.
pub fn left() -> Option<Duration> {
    match UNTIL.load(Ordering::Acquire) {
        0 => None,
        until => Some(Duration::from_nanos(until).saturating_sub(clock())),
    }
}

/// Ends the process at once, as SIGKILL does, if its term is over.
pub fn check() {
    if left() == Some(Duration::ZERO) {
        end();
    }
}

/// Ends the process at once. Nothing that is buffered or pending is sent.
pub fn end() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort();
}
