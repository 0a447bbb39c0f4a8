//! Waiting until an instant, to the tenth of a millisecond: tokio's own timers go by whole milliseconds, rounded up, and
//! a round trip waits twice.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A timer of the kernel.
#[derive(Debug)]
pub(super) struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    pub(super) fn new() -> io::Result<Alarm> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        Ok(Alarm(crate::sys::async_read_fd(timer)?))
    }

    /// Returns at `due`, at once if that is past.
    pub(super) async fn until(&mut self, due: Instant) -> io::Result<()> {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let once = Itimerspec { it_interval: zero, it_value: value };
        // Setting it forgets an expiration that nobody has read.
        rustix::time::timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        let mut expirations = [0; 8];
        let read = |timer: &OwnedFd| Ok(rustix::io::read(timer, &mut expirations)?);
        self.0.async_io(Interest::READABLE, read).await.map(drop)
    }
}
