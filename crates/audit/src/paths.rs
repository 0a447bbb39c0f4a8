//! The paths of files, as text for a line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashMapExt};
use vfs::Handle;

use super::{Export, Exported, line};

/// How long a path that was found is believed.
const PATHS_FOR: Duration = Duration::from_secs(1);
/// Paths that are remembered for that time, and paths of files that may be gone.
const PATHS_MAX: usize = 1 << 14;

/// The number of an export, and a file of it.
type Key = (u64, Handle);

pub(super) struct Paths {
    /// Where the paths of files are in `texts`.
    believed: HashMap<Key, usize>,
    /// Paths in JSON, without the quotes; `None` if there is none.
    texts: Vec<Option<Arc<str>>>,
    since: Instant,
    /// The paths that were found last, for files that are gone when the line about them is written.
    last: HashMap<Key, Arc<str>>,
}

impl Paths {
    pub(super) fn new() -> Paths {
        Paths { believed: HashMap::new(), texts: Vec::new(), since: Instant::now(), last: HashMap::new() }
    }

    /// The time is now this.
    pub(super) fn expire(&mut self, now: Instant) {
        if now.duration_since(self.since) > PATHS_FOR {
            self.forget(now);
        }
    }

    /// A name has moved, so the paths below it have changed.
    pub(super) fn forget(&mut self, now: Instant) {
        self.believed.clear();
        self.texts.clear();
        self.since = now;
    }

    /// The path of a file in JSON, without the quotes; `None` if it is not known.
    pub(super) fn of(&mut self, export: &Exported, handle: &Handle) -> Option<&str> {
        let key = (export.number, *handle);
        let at = match self.believed.get(&key) {
            Some(at) => *at,
            None => self.find(key, &export.of),
        };
        self.texts.get(at)?.as_deref()
    }

    fn find(&mut self, key: Key, export: &Export) -> usize {
        if self.texts.len() >= PATHS_MAX {
            self.believed.clear();
            self.texts.clear();
        }
        self.texts.push(find(&mut self.last, export, key));
        self.believed.insert(key, self.texts.len() - 1);
        self.texts.len() - 1
    }
}

fn find(last: &mut HashMap<Key, Arc<str>>, export: &Export, key: Key) -> Option<Arc<str>> {
    let Some(path) = (export.find)(&key.1) else { return last.get(&key).cloned() };
    let mut text = String::new();
    line::push_path(&mut text, &path);
    if last.len() >= PATHS_MAX {
        last.clear();
    }
    let text: Arc<str> = text.into();
    last.insert(key, text.clone());
    Some(text)
}
