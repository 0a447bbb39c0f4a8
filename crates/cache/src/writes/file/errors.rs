//! Errors of delayed writes, until a caller has received them.

use vfs::Status;

use super::Writes;

impl Writes {
    /// The origin refused bytes, and they are lost.
    pub(super) fn fail(&mut self, status: Status) {
        if self.gone {
            return;
        }
        self.version.step();
        self.losses += 1;
        self.error.get_or_insert(status);
        if let Some(restored) = &mut self.restored {
            restored.refused.get_or_insert(status);
        }
        self.lost |= self.kept.is_some();
        self.strict = true;
    }

    /// How many times bytes of the file were lost.
    pub fn losses(&self) -> u32 {
        self.losses
    }

    /// Takes the error that no caller has received yet.
    pub fn take_error(&mut self) -> Option<Status> {
        self.lost = false;
        self.error.take()
    }

    /// Is delaying suspended? An error suspends it until the origin takes something again.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The origin has taken something: delaying may start again.
    pub fn relent(&mut self) {
        self.strict = false;
    }
}
