//! The files with state, by handle. Each handle is stored once, and shared by all entries about its file.

use std::collections::HashMap;

use vfs::{Handle, SharedHandle as Key};

use super::file::File;

/// The table of files. See the module.
#[derive(Debug, Default)]
pub(super) struct Files(HashMap<Key, File>);

impl Files {
    pub(super) fn get(&self, handle: &Handle) -> Option<&File> {
        self.0.get(handle.as_bytes())
    }

    pub(super) fn get_mut(&mut self, handle: &Handle) -> Option<&mut File> {
        self.0.get_mut(handle.as_bytes())
    }

    /// The state of the file, created if necessary.
    pub(super) fn entry(&mut self, handle: &Handle) -> &mut File {
        if !self.0.contains_key(handle.as_bytes()) {
            self.0.insert(Key::new(handle), File::default());
        }
        self.get_mut(handle).unwrap_or_else(|| unreachable!("it is there"))
    }

    /// The stored handle of a file: shared with its state, if there is any.
    pub(super) fn key(&self, handle: &Handle) -> Key {
        let known = self.0.get_key_value(handle.as_bytes());
        known.map_or_else(|| Key::new(handle), |(key, _)| key.clone())
    }

    pub(super) fn remove(&mut self, handle: &Handle) {
        self.0.remove(handle.as_bytes());
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_kept_once() {
        let (handle, other) = (Handle::new(b"file").unwrap(), Handle::new(b"other").unwrap());
        let mut files = Files::default();
        files.entry(&handle).claims = 1;
        files.entry(&handle).claims += 1;
        let (key, again) = (files.key(&handle), files.key(&handle));
        assert!(key.is_shared_with(&again) && key.handle() == handle);
        assert_eq!(files.get(&handle).map(|file| file.claims), Some(2));
        assert!(files.get(&other).is_none() && files.key(&other).handle() == other);
        files.remove(&handle);
        assert!(files.is_empty());
    }
}
