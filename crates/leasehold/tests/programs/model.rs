//! What each call may come to: a file system in which changes are made one after the other, and what docs/semantics.md lets
//! a client believe of it.
//!
//! - An open of a name leads where the name leads, and shows what the last writer closed, or later.
//! - An absence is believed for a second at most, and no longer than until a call of this client that succeeded in the
//!   directory after the change: an open, a creation, a lock, a rename, a link. A listing is one as well.
//! - lstat(2), and the directories of a path, may show what was there within the attribute timeout, and no longer than until a
//!   call of this client that changed a name in the directory: a creation, a link, a rename, a removal.
//! - `O_EXCL`, link and mkdir succeed where the name is absent, and nowhere else.
//! - Under a lock, what the last holder wrote is read. A client sees its own changes at once.
//! - There is no error that these rules do not name. A version 3 file that another client has removed is stale.
//!
//! A model is one way in which it may have been: where a call may have done one thing or the other, there are two models
//! after it, until a later call tells them apart.

mod apply;
mod content;
mod names;

use std::collections::BTreeMap;
use std::time::Duration;

pub use names::Lifetimes;

use crate::program::{Dir, How, Name, Op, Place, Step, TOPS};
use content::{Content, Floors};
use names::{Confirmed, History};

/// What a client is promised.
#[derive(Debug, Clone, Copy, Hash)]
pub struct Client {
    pub lifetimes: Lifetimes,
    /// What it has succeeded in confirms that names of the directory are absent. Kernels ask for their own reasons.
    pub confirms: bool,
    /// Its locks reach the others.
    pub has_locks: bool,
    /// What another client has removed is stale, also for those that have it open.
    pub goes_stale: bool,
    /// What it has written through a map and not synced shows in its own O_DIRECT reads. Linux's client does not see to that.
    pub maps_show: bool,
}

/// A file or a directory.
#[derive(Debug, Clone, Hash)]
struct Object {
    /// None of a directory.
    content: Option<Content>,
    /// None before anybody has told it.
    ino: Option<u64>,
    links: usize,
    /// The client that removed its last name.
    removed_by: Option<usize>,
}

/// A file that a seat keeps open.
#[derive(Debug, Clone, Hash)]
struct Open {
    object: usize,
    client: usize,
    write: bool,
    place: Place,
    /// The directory that it was opened in.
    directory: usize,
    floors: Floors,
}

/// A name that a client has given to a file that it has removed and has open. No listing shows it, and the directory is not
/// empty.
#[derive(Debug, Clone, Hash)]
struct Hidden {
    directory: usize,
    object: usize,
    client: usize,
}

/// One way in which it may have been.
#[derive(Debug, Clone, Hash)]
pub struct Model {
    clients: Vec<Client>,
    objects: Vec<Object>,
    names: BTreeMap<(usize, Name), History>,
    /// By seat and slot.
    open: BTreeMap<(usize, usize), Open>,
    hidden: Vec<Hidden>,
    /// When the last call of a client began that confirms the negative entries of a directory.
    coherent: BTreeMap<(usize, usize), Duration>,
    /// The same of its last call that changed names there, which confirms all names: whoever makes a lock file sees what was
    /// replaced or removed before.
    changed: BTreeMap<(usize, usize), Duration>,
}

impl Model {
    /// With the directories that are there before a program begins.
    pub fn new(clients: &[Client]) -> Model {
        let top = || Object { content: None, ino: None, links: 1, removed_by: None };
        Model {
            clients: clients.to_vec(),
            objects: (0..TOPS).map(|_| top()).collect(),
            names: BTreeMap::new(),
            open: BTreeMap::new(),
            hidden: Vec::new(),
            coherent: BTreeMap::new(),
            changed: BTreeMap::new(),
        }
    }

    /// Whether it is told what comes of it. If not, a seat does not call.
    pub fn is_defined(&self, seats: &[usize], step: &Step) -> bool {
        match step {
            Step::Alone(seat, op) => self.is_op_defined(*seat, seats[*seat], op),
            Step::Together(parts) => parts.iter().all(|(seat, ops)| {
                // What a seat opens itself is judged afterwards.
                let opens = |op: &&Op| matches!(op, Op::Open { .. });
                ops.iter().filter(opens).all(|op| self.is_op_defined(*seat, seats[*seat], op))
            }),
        }
    }

    fn is_op_defined(&self, seat: usize, client: usize, op: &Op) -> bool {
        let slot = match op {
            Op::Open { place, access, .. } => {
                let file = self.directory(place.dir).and_then(|dir| self.leads_to(dir, place.name));
                let Some(file) = file else { return true };
                let locked = place.name.kind == 'l';
                return !(access.truncate && locked)
                    && (locked || !access.write && !access.create || self.is_free(file, client));
            }
            Op::Read { slot, .. }
            | Op::Write { slot, .. }
            | Op::Cut { slot, .. }
            | Op::Sync { slot }
            | Op::Close { slot }
            | Op::Lock { slot, .. }
            | Op::Unlock { slot } => *slot,
            _ => return true,
        };
        let holder = (seat, slot);
        let Some(open) = self.open.get(&holder) else { return false };
        let Some(content) = &self.objects[open.object].content else { return false };
        let locked = open.place.name.kind == 'l';
        match op {
            Op::Read { cells, map: true, .. } => content.may_map(cells),
            Op::Write { cells, how, .. } => {
                let shows = *how != How::Map || self.clients[client].maps_show;
                let mapped = *how == How::Call || shows && content.may_map(cells);
                open.write && mapped && (!locked || content.holds(holder, cells))
            }
            Op::Cut { .. } => open.write && !locked,
            Op::Lock { .. } => {
                locked && open.write && self.clients[client].has_locks && !content.has_lock(holder)
            }
            Op::Unlock { .. } => content.has_lock(holder),
            _ => true,
        }
    }

    /// Whether no other client writes a file.
    fn is_free(&self, file: usize, client: usize) -> bool {
        let writes = |open: &Open| open.object == file && open.write && open.client != client;
        let content = self.objects[file].content.as_ref();
        content.is_some_and(|content| content.is_free_for(client)) && !self.open.values().any(writes)
    }

    /// The directory that a path truly leads to.
    fn directory(&self, dir: Dir) -> Option<usize> {
        match dir {
            Dir::Top(top) => Some(top),
            Dir::Sub(top, sub) => self.leads_to(top, Name { kind: 's', number: sub }),
        }
    }

    /// The directories that a client may find by a path that it walks from `began` on, the true one first.
    fn directories(&self, client: usize, began: Duration, dir: Dir) -> Vec<Option<usize>> {
        match dir {
            Dir::Top(top) => vec![Some(top)],
            Dir::Sub(top, sub) => self.candidates(client, began, top, Name { kind: 's', number: sub }),
        }
    }

    fn leads_to(&self, directory: usize, name: Name) -> Option<usize> {
        self.names.get(&(directory, name)).and_then(History::now)
    }

    /// What a name may lead to for a client, what is true first.
    fn candidates(&self, client: usize, began: Duration, directory: usize, name: Name) -> Vec<Option<usize>> {
        let Some(history) = self.names.get(&(directory, name)) else { return vec![None] };
        let begun = |calls: &BTreeMap<(usize, usize), Duration>| {
            let begun = calls.get(&(client, directory)).filter(|_| self.clients[client].confirms);
            begun.copied().unwrap_or_default()
        };
        let confirmed = Confirmed { absent: begun(&self.coherent), present: begun(&self.changed) };
        history.candidates(client, began, confirmed, self.clients[client].lifetimes)
    }

    /// Names in a directory that lead somewhere.
    fn names_in(&self, directory: usize) -> impl Iterator<Item = Name> {
        let all = self.names.iter();
        all.filter_map(move |((of, name), history)| {
            (*of == directory && history.now().is_some()).then_some(*name)
        })
    }
}
