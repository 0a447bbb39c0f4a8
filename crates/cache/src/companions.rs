//! Files of a directory that readers open together: the cache's own memory for the next time.
//!
//! A **session** notes the names in one directory that are opened for reading, until nobody has opened one
//! for [`SESSION_IDLE`]. What it has noted is the directory's **group**, a row of the index. When a later
//! session opens two files of the group one after the other, and the second one needs a call, the cache
//! expects the others, in the order in which they were first opened. It does so once in a session.
//!
//! A group holds names of several programs if they use the same directory. A name that was expected twice in
//! vain is dropped. A reader that opens another file in between is at random, and expects nothing.
//!
//! This module is pure. [`crate::guesses`] makes the calls.

mod group;

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use vfs::{Handle, Name};

pub use group::Group;
use group::{Companion, NAMES_MAX};

/// A session ends if no file was opened for so long.
const SESSION_IDLE: Duration = Duration::from_secs(60);
/// The group of a session is written to the index after such a pause.
const SAVE_AFTER: Duration = Duration::from_secs(5);
/// Directories with a session.
const SESSIONS_MAX: usize = 512;

/// The opens in one directory.
#[derive(Debug)]
struct Session {
    /// The group of earlier sessions: the rank of each name, and how often it was expected in vain.
    before: HashMap<Name, (u32, u8)>,
    /// The names that were opened, with their number.
    opened: HashMap<Name, u32>,
    /// Names of the group that were opened one after the other.
    run: u32,
    /// The group was expected.
    expected: bool,
    unsaved: bool,
    last: Instant,
}

impl Session {
    fn begin(group: Group, now: Instant) -> Session {
        let ranked = (0..).zip(group.list).map(|(rank, it)| (it.name, (rank, it.vain)));
        Session {
            before: ranked.collect(),
            opened: HashMap::new(),
            run: 0,
            expected: false,
            unsaved: false,
            last: now,
        }
    }

    fn is_idle(&self, now: Instant, max: Duration) -> bool {
        now.saturating_duration_since(self.last) >= max
    }

    fn open(&mut self, name: &Name, now: Instant) {
        self.last = now;
        if self.opened.contains_key(name) {
            return;
        }
        self.run = if self.before.contains_key(name) { self.run + 1 } else { 0 };
        if self.opened.len() < NAMES_MAX {
            self.opened.insert(name.clone(), self.opened.len() as u32);
            self.unsaved = true;
        }
    }

    /// The group is expected if the file that is about to be opened is the second one of it in a row.
    fn expect(&mut self, name: &Name) -> Vec<Name> {
        let fits = self.run >= 1 && self.before.contains_key(name) && !self.opened.contains_key(name);
        if !fits || std::mem::replace(&mut self.expected, true) {
            return Vec::new();
        }
        let others = self.before.keys().filter(|other| *other != name && !self.opened.contains_key(*other));
        let mut others: Vec<Name> = others.cloned().collect();
        others.sort_by_key(|other| self.before[other].0);
        others
    }

    /// The group as it is now: first the names of this session, then the others. If the session is `over`,
    /// names that were expected and not opened were expected in vain.
    fn group(&self, over: bool) -> Group {
        let mut opened: Vec<_> = self.opened.iter().collect();
        opened.sort_by_key(|(_, number)| **number);
        let mut others: Vec<_> =
            self.before.iter().filter(|(name, _)| !self.opened.contains_key(*name)).collect();
        others.sort_by_key(|(_, (rank, _))| *rank);
        let vain = u8::from(over && self.expected);
        let opened = opened.into_iter().map(|(name, _)| Companion { name: name.clone(), vain: 0 });
        let others = others
            .into_iter()
            .map(|(name, (_, before))| Companion { name: name.clone(), vain: before.saturating_add(vain) });
        Group::new(opened.chain(others))
    }
}

/// A directory, and its group for the index.
pub type Row = (Handle, Group);

/// The sessions of all directories.
#[derive(Debug, Default)]
pub struct Companions(Mutex<HashMap<Handle, Session>>);

impl Companions {
    /// A file was opened for reading. `load` returns the group of the directory. Returns a row to be written
    /// if another session has given way.
    pub fn note(
        &self,
        directory: &Handle,
        name: &Name,
        now: Instant,
        load: impl FnOnce() -> Group,
    ) -> Option<Row> {
        let mut sessions = self.0.lock();
        let mut row = None;
        match sessions.get_mut(directory) {
            Some(session) if session.is_idle(now, SESSION_IDLE) => {
                *session = Session { unsaved: true, ..Session::begin(session.group(true), now) };
            }
            Some(_) => {}
            None => {
                if sessions.len() >= SESSIONS_MAX
                    && let Some(oldest) = sessions.iter().min_by_key(|(_, it)| it.last).map(|(of, _)| *of)
                {
                    let left = sessions.remove(&oldest).filter(|session| session.unsaved);
                    row = left.map(|session| (oldest, session.group(true)));
                }
                sessions.insert(*directory, Session::begin(load(), now));
            }
        }
        if let Some(session) = sessions.get_mut(directory) {
            session.open(name, now);
        }
        row.filter(|(_, group)| group.is_of_use())
    }

    /// A file is about to be opened with a call. Returns the names that are expected behind it.
    pub fn expect(&self, directory: &Handle, name: &Name, now: Instant) -> Vec<Name> {
        let mut sessions = self.0.lock();
        let session = sessions.get_mut(directory).filter(|session| !session.is_idle(now, SESSION_IDLE));
        session.map(|session| session.expect(name)).unwrap_or_default()
    }

    /// The rows to be written to the index: those of sessions that pause, or of all of them at the `end`.
    pub fn take_rows(&self, now: Instant, end: bool) -> Vec<Row> {
        let mut sessions = self.0.lock();
        let mut rows = Vec::new();
        sessions.retain(|directory, session| {
            let over = end || session.is_idle(now, SESSION_IDLE);
            let due = session.unsaved && (over || session.is_idle(now, SAVE_AFTER));
            if due || (over && session.expected) {
                session.unsaved = false;
                rows.push((*directory, session.group(over)));
            }
            !over
        });
        rows.retain(|(_, group)| group.is_of_use());
        rows
    }
}

#[cfg(test)]
mod tests;
