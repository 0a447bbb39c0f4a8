//! Files that a reader will probably open because they were opened together before. See
//! [`crate::companions`].
//!
//! They share the budget of all guesses. Each reader has a window of its own, as a walk has.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use vfs::{Caller, Handle, Name};

use super::frontier::CALL_BYTES;
use super::window::{Position, SIZE_MIN, Window};
use super::{FILE_MAX_BYTES, FILE_READ_MAX_BYTES, Guess, Target};

/// Expectations end if no file of them was used for so long.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A file that is expected.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Its directory.
    pub directory: Handle,
    /// Its name there.
    pub name: Name,
    /// The file.
    pub handle: Handle,
    /// The bytes that a guess of it would bring.
    pub bytes: u64,
}

/// The files that one reader is expected to open.
#[derive(Debug)]
pub(super) struct Expectation {
    pub(super) id: u64,
    pub(super) caller: Caller,
    pub(super) window: Window,
    files: VecDeque<Expected>,
    stepped: Instant,
}

impl Expectation {
    pub(super) fn new(id: u64, caller: Caller, files: Vec<Expected>, now: Instant) -> Expectation {
        Expectation { id, caller, window: Window::new(SIZE_MIN, now), files: files.into(), stepped: now }
    }

    pub(super) fn is_idle(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.stepped) >= IDLE_MAX
    }

    /// The reader opens a file. Returns the bytes of the guess that it has used.
    pub(super) fn used(&mut self, file: &Handle, now: Instant) -> Option<u64> {
        let used = self.window.used(file, now);
        if used.is_some() {
            self.stepped = now;
        } else {
            // It was faster than the guess.
            self.files.retain(|expected| expected.handle != *file);
        }
        used
    }

    /// The next guess, and its bytes, if it fits into `bytes`.
    pub(super) fn guess(&mut self, bytes: u64, now: Instant) -> Option<(Guess, u64)> {
        self.window.expire(now);
        if !self.window.is_open() || bytes < CALL_BYTES {
            return None;
        }
        let size_max = FILE_MAX_BYTES.min(bytes / 4);
        let fits = self.files.iter().position(|file| file.bytes <= size_max)?;
        let Expected { directory, name, handle, bytes } = self.files.remove(fits)?;
        let read = bytes.min(FILE_READ_MAX_BYTES);
        self.window.guess(handle, Position::new(), read + CALL_BYTES, now);
        let target = Target::File { directory, name, handle };
        Some((Guess { walk: self.id, caller: self.caller.clone(), bytes: read, target }, read + CALL_BYTES))
    }
}
