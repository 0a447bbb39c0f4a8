//! Views of the writes that are not at the origin yet, for people and tools: list, send, export, discard.
//!
//! A running cache has them in memory. If the cache is [offline](Cache::open_offline), the process that
//! delayed them is gone, and they are in its journal. A view does not change the journal; only
//! [`Cache::discard_delayed`] and [`Cache::discard_all_delayed`] do.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vfs::{Handle, Name};

use crate::Cache;
use crate::core::Core;
use crate::journal::{self, Begin, Journal, Kept, Restored};
use crate::options::WriteBehind;
use crate::trust::since;
use crate::writes::{Unsettled, Writes, forget_verifier, journal_of};

/// A file with delayed writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedFile {
    /// The file.
    pub handle: Handle,
    /// The components of the path where it was last seen, from the root.
    pub path: Option<Vec<Name>>,
    /// The name that it had last, which may be known without the path.
    pub name: Option<Name>,
    /// Bytes that are not durable at the origin, as far as is known.
    pub bytes: u64,
    /// The time since the earliest of these writes.
    pub age: Option<Duration>,
}

/// A copy that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exported {
    /// A copy of delayed writes.
    Delayed(DelayedFile, PathBuf),
    /// A copy of a kept conflict.
    Conflict(Kept, PathBuf),
}

/// Why delayed writes cannot be exported: one line that names the thing, the cause and the way out.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The journal cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Unsettled),
    /// The conflicts cannot be listed.
    #[error("cannot read {path}: {cause}; check the disk")]
    Conflicts {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
    /// A copy cannot be made.
    #[error("cannot copy {what} to {to}: {cause}; name an empty directory on a disk with space")]
    NotCopied {
        /// The file.
        what: String,
        /// The directory.
        to: PathBuf,
        /// The error of the system.
        cause: io::Error,
    },
}

impl Cache {
    /// The files with delayed writes, oldest first. True if the journal also has writes of before the machine
    /// started, which are never sent. May block.
    ///
    /// # Errors
    /// The journal of an offline cache cannot be read, or is damaged.
    pub fn delayed_writes(&self) -> Result<(Vec<DelayedFile>, bool), Unsettled> {
        let (mut files, outdated): (Vec<_>, _) = if self.is_offline() {
            let (left, outdated) = self.left()?;
            (left.iter().map(|restored| self.core.left_file(restored)).collect(), outdated)
        } else {
            let delayed = self.core.delayed_files();
            (delayed.iter().filter_map(|(handle, _)| self.core.waiting_file(handle)).collect(), false)
        };
        files.sort_by_key(|file| std::cmp::Reverse(file.age));
        Ok((files, outdated))
    }

    /// Begins to send all that is delayed, and does not wait.
    pub fn push_delayed(&self) {
        for (_, object) in self.core.delayed_files() {
            self.core.press(&object);
        }
    }

    /// Delayed writes that could not be sent, oldest first. May block.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn conflicts(&self) -> Result<Vec<Kept>, ExportError> {
        let path = self.core.disk.directory().conflicts();
        journal::list_kept(&path).map_err(|cause| ExportError::Conflicts { path, cause })
    }

    /// Copies the delayed writes of a process that is gone, and kept conflicts, into a directory. `show`
    /// writes the path of a file on one line. `made` is called after each copy. May block.
    ///
    /// # Errors
    /// The journal cannot be read, or a copy cannot be made. Earlier copies stay.
    pub fn export_delayed(
        &self,
        to: &Path,
        show: impl Fn(&DelayedFile) -> String,
        mut made: impl FnMut(Exported),
    ) -> Result<(), ExportError> {
        let failed = |what: String| move |cause| ExportError::NotCopied { what, to: to.to_owned(), cause };
        let seconds = self.core.policy.wall().seconds.max(0) as u64;
        for Restored { journaled, entries, .. } in &self.left()?.0 {
            let file = self.core.file_of(journaled.begin(), entries);
            let shown = show(&file);
            let copied = journal::export(to, journaled.begin(), &shown, entries, seconds);
            let path = copied.map_err(failed(shown))?;
            made(Exported::Delayed(file, path));
        }
        for kept in self.conflicts()? {
            let copied = journal::copy_kept(&kept.path, to);
            let path = copied.map_err(failed(kept.path.display().to_string()))?;
            made(Exported::Conflict(kept, path));
        }
        Ok(())
    }

    /// Discards the delayed writes of these files, which a process that is gone has left. May block.
    ///
    /// # Errors
    /// The journal cannot be read or changed.
    pub fn discard_delayed(&self, handles: &HashSet<Handle>) -> Result<(), Unsettled> {
        forget_verifier(self.core.disk.directory());
        self.with_left(|journal| journal.forget(handles))
    }

    /// Discards the complete journal that a process that is gone has left. May block.
    ///
    /// # Errors
    /// The journal cannot be removed.
    pub fn discard_all_delayed(&self) -> Result<(), Unsettled> {
        forget_verifier(self.core.disk.directory());
        self.with_left(Journal::forget_all)
    }

    /// The files in the journal of the process that is gone. True if it also has writes of before the machine
    /// started.
    fn left(&self) -> Result<(Vec<Restored>, bool), Unsettled> {
        self.with_left(Journal::look)
    }

    fn with_left<T>(&self, work: impl FnOnce(&Journal) -> io::Result<T>) -> Result<T, Unsettled> {
        debug_assert!(self.is_offline(), "the process that uses the journal is not gone");
        let directory = self.core.disk.directory();
        work(&journal_of(directory, &WriteBehind::default()))
            .map_err(|cause| Unsettled::Unreadable { path: directory.writeback(), cause })
    }
}

impl Core {
    /// A file whose writes wait in memory. None if all are at the origin by now.
    fn waiting_file(&self, handle: &Handle) -> Option<DelayedFile> {
        let of = |writes: &mut Writes| (!writes.is_clean()).then(|| (writes.bytes(), writes.oldest()));
        let object = self.glance(handle);
        let (bytes, oldest) = self.writes(&object, of).flatten()?;
        let name = self.with(&object, |state| state.place.clone()).map(|place| place.name);
        let age = oldest.map(|since| since.elapsed());
        Some(DelayedFile { handle: *handle, path: self.path_of(handle), name, bytes, age })
    }

    fn left_file(&self, restored: &Restored) -> DelayedFile {
        self.file_of(restored.journaled.begin(), &restored.entries)
    }

    /// A file of the journal.
    fn file_of(&self, begin: &Begin, entries: &[journal::Entry]) -> DelayedFile {
        let of_place = || {
            let place = begin.place.as_ref()?;
            let mut path = self.path_of(&place.directory)?;
            path.push(place.name.clone());
            Some(path)
        };
        let bytes = journal::ranges(entries).iter().map(|range| range.end - range.start).sum();
        let age = journal::oldest(entries).map(|oldest| since(oldest, self.policy.wall()));
        DelayedFile {
            handle: begin.handle,
            // The index may be older than the journal.
            path: of_place().or_else(|| self.path_of(&begin.handle)),
            name: begin.place.as_ref().map(|place| place.name.clone()),
            bytes,
            age,
        }
    }
}
