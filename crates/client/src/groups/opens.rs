//! The files of opens, for operations that name the open alone.

use std::collections::HashMap;

use vfs::{Handle, OpenId};

/// The most opens that are remembered.
const OPENS_MAX: usize = 65_536;

/// See the module. Two generations, as for the groups of objects. Until half of the space is used, no open is
/// forgotten before it is closed.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    young: HashMap<OpenId, Handle>,
    old: HashMap<OpenId, Handle>,
}

impl OpenFiles {
    pub(super) fn file(&self, open: OpenId) -> Option<Handle> {
        self.young.get(&open).or_else(|| self.old.get(&open)).copied()
    }

    pub(super) fn opened(&mut self, open: OpenId, file: Handle) {
        if self.young.len() >= OPENS_MAX / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(open, file);
    }

    pub(super) fn closed(&mut self, open: OpenId) {
        self.young.remove(&open);
        self.old.remove(&open);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_opens_is_bounded() {
        let (mut opens, file) = (OpenFiles::default(), Handle::new(b"f").unwrap());
        for open in 0..3 * OPENS_MAX as u64 {
            opens.opened(OpenId(open), file);
        }
        let last = OpenId(3 * OPENS_MAX as u64 - 1);
        assert!(opens.young.len() + opens.old.len() <= OPENS_MAX);
        assert_eq!((opens.file(OpenId(0)), opens.file(last)), (None, Some(file)));
        opens.closed(last);
        assert_eq!(opens.file(last), None);
    }
}
