//! The permitted outcomes of each call. The model is a file system in which changes are made one after the
//! other, together with what docs/semantics.md lets a client trust about it.
//!
//! - An open of a name finds the object that the name leads to. It shows what the last writer closed, or
//!   something later.
//! - A negative entry is trusted for a second at most. It also ends when a later call of this client
//!   succeeds in the directory: an open, a creation, a rename, a link, a listing, or a lock of a file that
//!   another client has open.
//! - lstat(2) and path lookup through directories may show old state within the attribute timeout. That
//!   ends, too, when a later call of this client changes a name in the directory: a creation, a link, a
//!   rename or a removal.
//! - `O_EXCL`, link and mkdir succeed if the name is absent, and only then.
//! - Under a lock, a client reads what the last holder wrote. A client sees its own changes at once.
//! - Every error must follow from these rules. A version 3 file that another client has removed is stale.
//!
//! A model is one possible history. If a call may have had one effect or another, there are two models after
//! it, until a later call distinguishes them.

mod apply;
mod content;
mod names;

use std::collections::BTreeMap;
use std::time::Duration;

pub use names::Lifetimes;

use crate::program::{Dir, How, Name, Op, Place, Step, TOPS};
use content::{Content, Floors};
use names::{Confirmed, History};

/// The promises to a client.
#[derive(Debug, Clone, Copy, Hash)]
pub struct Client {
    pub lifetimes: Lifetimes,
    /// Its successful calls in a directory confirm negative entries there. A kernel looks names up for
    /// reasons of its own.
    pub confirms: bool,
    /// Its locks exclude other clients.
    pub has_locks: bool,
    /// A file that another client has removed is stale, even for seats that have it open.
    pub goes_stale: bool,
    /// Its own O_DIRECT reads show what it has written through a map without a sync. Linux's NFS client does
    /// not ensure that.
    pub maps_show: bool,
}

/// A file or a directory.
#[derive(Debug, Clone, Hash)]
struct Object {
    /// None for a directory.
    content: Option<Content>,
    /// None until a call has returned it.
    ino: Option<u64>,
    links: usize,
    /// The client that removed the last name.
    removed_by: Option<usize>,
}

/// A file that a seat keeps open.
#[derive(Debug, Clone, Hash)]
struct Open {
    object: usize,
    client: usize,
    write: bool,
    place: Place,
    /// The directory in which it was opened.
    directory: usize,
    floors: Floors,
}

/// The hidden name that a client gives a file which it has removed while it has the file open. A listing
/// does not show it, but the directory is not empty.
#[derive(Debug, Clone, Hash)]
struct Hidden {
    directory: usize,
    object: usize,
    client: usize,
}

/// One possible history.
#[derive(Debug, Clone, Hash)]
pub struct Model {
    clients: Vec<Client>,
    objects: Vec<Object>,
    names: BTreeMap<(usize, Name), History>,
    /// By seat and slot.
    open: BTreeMap<(usize, usize), Open>,
    hidden: Vec<Hidden>,
    /// For each client and directory: when the client's last call began that confirms negative entries.
    coherent: BTreeMap<(usize, usize), Duration>,
    /// The same for its last call that changed names there, which confirms all names. So the client that
    /// makes a lock file sees every replacement and removal before it.
    changed: BTreeMap<(usize, usize), Duration>,
}

impl Model {
    /// With the directories that exist before a program begins.
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

    /// Does the model determine the outcome of a step? If not, the seats skip it.
    pub fn is_defined(&self, seats: &[usize], step: &Step) -> bool {
        match step {
            Step::Alone(seat, op) => self.is_op_defined(*seat, seats[*seat], op),
            Step::Together(parts) => parts.iter().all(|(seat, ops)| {
                // Within the step a seat may open files itself; those calls are judged afterwards.
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

    /// Does no other client write the file?
    fn is_free(&self, file: usize, client: usize) -> bool {
        let writes = |open: &Open| open.object == file && open.write && open.client != client;
        let content = self.objects[file].content.as_ref();
        content.is_some_and(|content| content.is_free_for(client)) && !self.open.values().any(writes)
    }

    fn is_open_elsewhere(&self, file: usize, client: usize) -> bool {
        self.open.values().any(|open| open.object == file && open.client != client)
    }

    /// The directory that a path really leads to.
    fn directory(&self, dir: Dir) -> Option<usize> {
        match dir {
            Dir::Top(top) => Some(top),
            Dir::Sub(top, sub) => self.leads_to(top, Name { kind: 's', number: sub }),
        }
    }

    /// The directories that a client may find by a path that it walks from `began` on; the true one comes
    /// first.
    fn directories(&self, client: usize, began: Duration, dir: Dir) -> Vec<Option<usize>> {
        match dir {
            Dir::Top(top) => vec![Some(top)],
            Dir::Sub(top, sub) => self.candidates(client, began, top, Name { kind: 's', number: sub }),
        }
    }

    fn leads_to(&self, directory: usize, name: Name) -> Option<usize> {
        self.names.get(&(directory, name)).and_then(History::now)
    }

    /// The objects that a client may find under a name; the true one comes first.
    fn candidates(&self, client: usize, began: Duration, directory: usize, name: Name) -> Vec<Option<usize>> {
        let Some(history) = self.names.get(&(directory, name)) else { return vec![None] };
        let begun = |calls: &BTreeMap<(usize, usize), Duration>| {
            let begun = calls.get(&(client, directory)).filter(|_| self.clients[client].confirms);
            begun.copied().unwrap_or_default()
        };
        let confirmed = Confirmed { absent: begun(&self.coherent), present: begun(&self.changed) };
        history.candidates(client, began, confirmed, self.clients[client].lifetimes)
    }

    /// The names in a directory that lead to an object.
    fn names_in(&self, directory: usize) -> impl Iterator<Item = Name> {
        let all = self.names.iter();
        all.filter_map(move |((of, name), history)| {
            (*of == directory && history.now().is_some()).then_some(*name)
        })
    }
}
