//! Complete files, for a layer above that lets the kernel read them.

use std::sync::Arc;

use tokio::time::Instant;
use vfs::{AccessMask, Caller, CompleteFile, FileType, Handle, OpenId, Pinned};

use crate::core::Core;
use crate::store::Pin;
use crate::table::{Found, Object};

/// Keeps the bytes of a complete file unchanged, until the layer above takes the file over.
struct CompletePin {
    core: Arc<Core>,
    object: Arc<Object>,
    pin: Pin,
}

impl Pinned for CompletePin {
    fn part(&self) {
        let file = self.pin.file();
        self.core.with(&self.object, |state| {
            if state.data.file().is_some_and(|kept| Arc::ptr_eq(kept, file)) {
                state.drop_data();
            }
        });
        // A reader with an older pin now reads what the holder writes. That is right: the holder takes the
        // file over only when its bytes are newer.
        file.remove();
    }
}

impl Core {
    /// Until when the known attributes of a file may be believed without asking.
    pub fn believed_until(&self, handle: &Handle) -> Option<Instant> {
        match self.memory.table().find(handle, None) {
            Found::Awake(object) => self.with(&object, |state| state.current_until()),
            Found::Resting(resting) => Some(resting.current_until()),
            Found::Nothing => None,
        }
    }

    /// The last event that showed a change of a directory by another client, or 0.
    pub fn names_doubted(&self, directory: &Handle) -> u64 {
        match self.memory.table().find(directory, None) {
            Found::Awake(object) => self.with(&object, |state| state.names_doubted()),
            Found::Resting(resting) => resting.names_doubted(),
            Found::Nothing => 0,
        }
    }

    /// The file of an open, if all of its bytes are here and belong to the known state. None if some bytes
    /// were fetched while the state was racy. Those are good only until the next open, and the layer above
    /// would keep them for longer.
    pub fn complete_file(self: &Arc<Core>, caller: &Caller, open: OpenId) -> Option<CompleteFile> {
        let object = self.opened_object(open).ok()?;
        let (pin, attributes) = self.with(&object, |state| {
            let attributes = *state.attributes()?;
            let all = 0..attributes.size;
            let here = attributes.file_type == FileType::Regular
                && !all.is_empty()
                && !state.is_suspect()
                && state.delayed.writes.as_ref().is_none_or(|writes| writes.is_clean())
                && state.data.valid().contains(&all)
                && state.data.racy().is_empty();
            let may = self.may(state, &caller.principal, AccessMask::READ) == Some(true);
            let file = state.data.file().filter(|_| here && may)?;
            Some((file.pin(all), attributes))
        })?;
        let file = pin.open().ok()?;
        // Blocks that were fetched before a truncation may lie behind the end, and would be read as part of
        // the file.
        (file.metadata().ok()?.len() == attributes.size).then(|| CompleteFile {
            file,
            attributes,
            pin: Arc::new(CompletePin { core: self.clone(), object: object.clone(), pin }),
        })
    }
}
