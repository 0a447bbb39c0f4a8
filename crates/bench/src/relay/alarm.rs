//! Waiting until an instant, exact to 0.1 ms. Tokio's own timers round up to whole milliseconds, and a round
//! trip waits twice.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A kernel timer.
#[derive(Debug)]
pub(super) struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    pub(super) fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Alarm(crate::sys::async_read_fd(timer)?))
    }

    /// Waits until `due`; returns at once if that is past.
    pub(super) async fn until(&mut self, due: Instant) -> io::Result<()> {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let once = Itimerspec { it_interval: zero, it_value: value };
        // Setting the timer discards an earlier expiration that was not read.
        rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        let mut expirations = [0; 8];
        let read = |timer: &OwnedFd| Ok(rustix::io::read(timer, &mut expirations)?);
        self.0.async_io(Interest::READABLE, read).await.map(drop)
    }
}
