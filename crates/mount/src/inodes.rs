//! What the kernel calls a file, and what we do: node numbers, handles, and how often the kernel was told.
//!
//! A node number is given out once and never again, so that a number means one file for as long as the mount lasts.
//! (What programs see as the inode number is the origin's `fileid`, in the attributes.) The kernel counts each time
//! that it is told of a node, and gives the count back with FORGET; at zero the node is gone.
//!
//! Where a file was found is remembered too: an open goes by name, so that it finds what is there now, and a file that is
//! removed or renamed while it is open is known by it. It may have been found under several names: those of its links, or
//! one that somebody else has given it meanwhile. The kernel may believe each of them, and does not say which one an open
//! came by.
//!
//! A number that the kernel has given back is remembered for some time with its file: programs that have a file handle
//! (open_by_handle_at(2)) come back with it, and so does whoever finds the file again.
//!
//! A node may be **retired**: its file gets a new node at the next lookup, while those who have the old one open keep
//! it. That is how a file leaves passthrough, which the kernel cannot undo for an open that has it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::{Attributes, Caller, Handle, Lease, Name, OpenId, Owner, Wcc, WccAttributes};

use crate::inodes::forgotten::Forgotten;
use crate::ops::doubt::Doubt;
use crate::pages::Pages;
use crate::passthrough::Passed;
use crate::wire::abi::ROOT;

mod forgotten;

/// Names of a file that are remembered. Of one with more links the kernel may remember none.
pub const NAMES_MAX: usize = 8;

/// A file that the kernel knows.
#[derive(Debug)]
pub struct Inode {
    /// Its node number.
    pub number: u64,
    /// What the layer below calls it.
    pub handle: Handle,
    /// What changes. May be locked while the table is, and not the other way round.
    pub state: Mutex<NodeState>,
    /// Woken when a lock on it may be free.
    pub unlocked: Notify,
    /// Woken when the kernel has given up names in it that were doubted.
    pub settled: Notify,
    /// Held by who appends while the kernel may be wrong about the end: its direct writes may come several at a time.
    pub appending: tokio::sync::Mutex<()>,
}

/// What changes about a file.
#[derive(Debug, Default)]
pub struct NodeState {
    /// Where it was found and may be still, the last place last: the directory's node, and the name there.
    pub names: Vec<(u64, Name)>,
    /// Opens of it.
    pub opens: u32,
    /// Opens under way, which may fail yet.
    pub opening: u32,
    /// Those of them that may write.
    pub writers: u32,
    /// Those of them that go through the page cache, or through us.
    pub ordinary: u32,
    /// What the others read from. The kernel wants the same for all of them.
    pub backing: Option<Arc<Passed>>,
    /// What the layer below has promised.
    pub lease: Option<Lease>,
    /// What the kernel has of its data.
    pub pages: Pages,
    /// The attributes that the kernel was last told.
    pub told: Option<WccAttributes>,
    /// The size that it was last told.
    pub told_size: u64,
    /// Opens and locks, any of which may have shown another size than the kernel believes in.
    pub looks: u64,
    /// After how many of them the kernel has appended where the end was.
    pub ends_known: u64,
    /// Which processes got locks on it, by their owners, and by which open last, until they give up all of them or that
    /// is released: the kernel says nothing of an owner that is an open file itself (`F_OFD_SETLK`).
    pub lockers: HashMap<Owner, Locker>,
    /// Opens with locks of which a descriptor was closed, and when: their RELEASE may be on its way.
    pub leaving: HashMap<OpenId, Instant>,
    /// Removed while it was open: the name that it has until the last close.
    pub silly: Option<Silly>,
    /// It has lost that name too: where it was before. If it has another link, it is found by that.
    pub gone: Option<(u64, Name)>,
    /// Of a directory: as it was last seen.
    pub seen: Option<Box<Attributes>>,
    /// Of a directory that was removed through this mount: what those see who have it open.
    pub removed: Option<Box<Attributes>>,
    /// When it was locked last; of a directory, when a file in it was.
    pub locked: Option<Instant>,
    /// What the kernel has read of a directory, if it was all.
    pub listed: Option<Listed>,
    /// The open by which the kernel is reading that now.
    pub lister: Option<u64>,
    /// Of a directory: what the kernel believes of names in it.
    pub doubt: Doubt,
}

/// Who has locks.
#[derive(Clone, Copy, Debug)]
pub struct Locker {
    /// The process that asked for the last of them.
    pub pid: u32,
    /// The open that it asked by.
    pub open: OpenId,
}

/// A directory as the kernel has it.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// As it was found by the open that it was read with.
    pub state: WccAttributes,
    /// Until then, what came along about the files in it is believed.
    pub until: Instant,
}

/// A name that a removed file has until it is closed.
#[derive(Clone, Debug)]
pub struct Silly {
    /// In this directory.
    pub directory: Handle,
    /// `.nfs…`
    pub name: Name,
    /// The name that was removed.
    pub of: (u64, Name),
    /// Who removed it.
    pub caller: Caller,
}

/// The nodes.
#[derive(Debug)]
pub struct Inodes {
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    by_number: HashMap<u64, (Arc<Inode>, u64)>,
    by_handle: HashMap<Handle, u64>,
    /// In order, so that those in a directory are beside each other.
    by_name: BTreeMap<(u64, Name), Told>,
    forgotten: Forgotten,
    next: u64,
}

/// A name that the kernel was told.
#[derive(Clone, Copy, Debug)]
struct Told {
    number: u64,
    /// How long it believes that.
    until: Instant,
}

impl Inode {
    fn new(number: u64, handle: Handle) -> Arc<Inode> {
        let (state, unlocked, settled, appending) = <_>::default();
        Arc::new(Inode { number, handle, state, unlocked, settled, appending })
    }

    /// Is a lease held on it?
    pub fn is_leased(&self) -> bool {
        self.state.lock().lease.is_some_and(|lease| is_valid(&lease))
    }
}

impl NodeState {
    /// Is it open, or about to be?
    pub fn is_open(&self) -> bool {
        self.opens > 0 || self.opening > 0
    }

    /// The name that a removed file had for as long as it was open, which is to be removed now.
    pub fn take_silly(&mut self) -> Option<Silly> {
        let silly = if self.is_open() { None } else { self.silly.take() };
        if let Some(silly) = &silly {
            self.gone = Some(silly.of.clone());
        }
        silly
    }

    /// Ends what `Inodes::remember_ordinary` began.
    pub fn leave_ordinary(&mut self) {
        self.ordinary = self.ordinary.saturating_sub(1);
    }

    /// We wrote for the kernel, which knows by itself how large the file is now, and asks for its times when it wants
    /// them: what it was told of the state before is as good as if it had been told of the one after.
    pub fn wrote(&mut self, wcc: &Wcc, leased: bool) {
        if let Some((before, after)) = self.pages.wrote(wcc, leased)
            && self.told == Some(before)
        {
            self.told = Some(after);
        }
    }
}

/// Has the term of a lease not ended?
pub fn is_valid(lease: &Lease) -> bool {
    lease.until.is_none_or(|until| Instant::now() < until)
}

impl Table {
    /// A node for a file that has none, told once: the one that it had last, if that is remembered.
    fn add(&mut self, handle: &Handle) -> Arc<Inode> {
        let number = self.forgotten.take(handle).unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        let inode = Inode::new(number, *handle);
        self.by_number.insert(number, (inode.clone(), 1));
        self.by_handle.insert(*handle, number);
        inode
    }

    fn unname(&mut self, name: &(u64, Name), number: u64) {
        if self.by_name.get(name).is_some_and(|told| told.number == number) {
            self.by_name.remove(name);
        }
    }
}

impl Inodes {
    /// The root alone.
    pub fn new(root: Handle) -> Inodes {
        let by_number = HashMap::from([(ROOT, (Inode::new(ROOT, root), 1))]);
        let by_handle = HashMap::from([(root, ROOT)]);
        let (by_name, forgotten) = (BTreeMap::new(), Forgotten::default());
        Inodes { table: Mutex::new(Table { by_number, by_handle, by_name, forgotten, next: ROOT + 1 }) }
    }

    /// The file of a node.
    pub fn get(&self, number: u64) -> Option<Arc<Inode>> {
        self.table.lock().by_number.get(&number).map(|(inode, _)| inode.clone())
    }

    /// The file that a node was, also if the kernel has given it back since.
    pub fn file_of(&self, number: u64) -> Option<Handle> {
        let table = self.table.lock();
        let known = table.by_number.get(&number).map(|(inode, _)| inode.handle);
        known.or_else(|| table.forgotten.file_of(number))
    }

    /// The node of a file, if the kernel knows it.
    pub fn find(&self, handle: &Handle) -> Option<Arc<Inode>> {
        let table = self.table.lock();
        let number = table.by_handle.get(handle)?;
        table.by_number.get(number).map(|(inode, _)| inode.clone())
    }

    /// The kernel is about to be told of a file.
    pub fn remember(&self, handle: &Handle) -> Arc<Inode> {
        let mut table = self.table.lock();
        if let Some(number) = table.by_handle.get(handle).copied()
            && let Some((inode, lookups)) = table.by_number.get_mut(&number)
        {
            *lookups += 1;
            return inode.clone();
        }
        table.add(handle)
    }

    /// The same, of a node that takes every open: one that is not in passthrough, and does not enter it before
    /// `NodeState::leave_ordinary`. If the file has a node in passthrough, that one too, which is retired.
    pub fn remember_ordinary(&self, handle: &Handle) -> (Arc<Inode>, Option<Arc<Inode>>) {
        let mut table = self.table.lock();
        let mut retired = None;
        if let Some(number) = table.by_handle.get(handle).copied()
            && let Some((inode, lookups)) = table.by_number.get_mut(&number)
        {
            let mut state = inode.state.lock();
            if state.backing.is_none() {
                state.ordinary += 1;
                *lookups += 1;
                return (inode.clone(), None);
            }
            retired = Some(inode.clone());
        }
        let inode = table.add(handle);
        inode.state.lock().ordinary += 1;
        (inode, retired)
    }

    /// The kernel is about to be told of a node once more. False if it has given that back.
    pub fn tell_again(&self, number: u64) -> bool {
        let mut table = self.table.lock();
        let known = table.by_number.get_mut(&number);
        known.map(|(_, lookups)| *lookups += 1).is_some()
    }

    /// The kernel gives back what it was told so many times. The file, if that was all.
    pub fn forget(&self, number: u64, count: u64) -> Option<Arc<Inode>> {
        if number == ROOT {
            return None;
        }
        let mut table = self.table.lock();
        let (_, lookups) = table.by_number.get_mut(&number)?;
        *lookups = lookups.saturating_sub(count);
        if *lookups > 0 {
            return None;
        }
        let (inode, _) = table.by_number.remove(&number)?;
        if table.by_handle.get(&inode.handle) == Some(&number) {
            table.by_handle.remove(&inode.handle);
            table.forgotten.insert(number, inode.handle);
        }
        for name in std::mem::take(&mut inode.state.lock().names) {
            table.unname(&name, number);
        }
        Some(inode)
    }

    /// A file was found here, and the kernel is told so until then. `alone` is what can have no other name: a directory. The
    /// name that is not remembered any more.
    pub fn name(&self, inode: &Inode, at: (u64, Name), alone: bool, until: Instant) -> Option<(u64, Name)> {
        let mut table = self.table.lock();
        if !table.by_number.contains_key(&inode.number) {
            return None;
        }
        let mut state = inode.state.lock();
        state.names.retain(|name| *name != at);
        let most = if alone { 0 } else { NAMES_MAX - 1 };
        let lost = (state.names.len() > most).then(|| state.names.remove(0));
        if let Some(lost) = &lost {
            table.unname(lost, inode.number);
        }
        state.names.push(at.clone());
        table.by_name.insert(at, Told { number: inode.number, until });
        lost
    }

    /// A file is not there any more.
    pub fn unname(&self, inode: &Inode, at: &(u64, Name)) {
        let mut table = self.table.lock();
        inode.state.lock().names.retain(|name| name != at);
        table.unname(at, inode.number);
    }

    /// What was last found under a name.
    pub fn named(&self, parent: u64, name: &Name) -> Option<Arc<Inode>> {
        let table = self.table.lock();
        let told = table.by_name.get(&(parent, name.clone()))?;
        table.by_number.get(&told.number).map(|(inode, _)| inode.clone())
    }

    /// Does the kernel believe that a name leads to a directory? If it looks the name up all the same, it has a reason: it is
    /// about to make something there, or it was told ESTALE.
    pub fn is_believed_directory(&self, parent: u64, name: &Name) -> bool {
        let table = self.table.lock();
        let told = table.by_name.get(&(parent, name.clone())).filter(|told| told.until > Instant::now());
        let found = told.and_then(|told| table.by_number.get(&told.number));
        found.is_some_and(|(inode, _)| inode.state.lock().seen.is_some())
    }

    /// Names in a directory that the kernel believes without a lease on the file. It is about to be told not to.
    pub fn doubt_names(&self, parent: u64) -> Vec<Name> {
        let now = Instant::now();
        let mut table = self.table.lock();
        let Table { by_number, by_name, .. } = &mut *table;
        let Ok(first) = Name::new(&[1]) else { return Vec::new() };
        let children = by_name.range_mut((parent, first)..).take_while(|((of, _), _)| *of == parent);
        let believed = children.filter(|(_, told)| {
            let known = by_number.get(&told.number);
            told.until > now && !known.is_some_and(|(inode, _)| inode.is_leased())
        });
        let doubted = believed.map(|((_, name), told)| {
            told.until = now;
            name.clone()
        });
        doubted.collect()
    }

    /// The next lookup of this file gives it another node.
    pub fn retire(&self, inode: &Inode) {
        let mut table = self.table.lock();
        if table.by_handle.get(&inode.handle) == Some(&inode.number) && inode.number != ROOT {
            table.by_handle.remove(&inode.handle);
        }
    }

    /// Would the next lookup of its file give this node?
    pub fn is_current(&self, inode: &Inode) -> bool {
        self.table.lock().by_handle.get(&inode.handle) == Some(&inode.number)
    }

    /// How many nodes the kernel knows.
    pub fn len(&self) -> usize {
        self.table.lock().by_number.len()
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Inode>> {
        self.table.lock().by_number.values().map(|(inode, _)| inode.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap as Model;

    fn handle(n: u8) -> Handle {
        Handle::new(&[n]).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + std::time::Duration::from_secs(60)
    }

    #[test]
    fn names_that_are_believed_are_doubted_once() {
        let inodes = Inodes::new(handle(0));
        let (directory, file) = (inodes.remember(&handle(1)), inodes.remember(&handle(2)));
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let at = |parent, text| (parent, name(text));
        inodes.name(&file, at(directory.number, "a"), false, soon());
        inodes.name(&file, at(directory.number, "b"), false, Instant::now());
        inodes.name(&file, at(directory.number + 1, "c"), false, soon());
        inodes.name(&file, at(ROOT, "d"), false, soon());
        assert_eq!(inodes.doubt_names(directory.number), [name("a")]);
        assert!(inodes.doubt_names(directory.number).is_empty());
        inodes.name(&file, at(directory.number, "a"), false, soon());
        assert_eq!(inodes.doubt_names(directory.number), [name("a")], "it was told again");
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let inodes = Inodes::new(handle(0));
        assert!(inodes.forget(ROOT, 1000).is_none() && inodes.get(ROOT).is_some());
        assert_eq!(inodes.remember(&handle(0)).number, ROOT);
    }

    #[test]
    fn a_retired_node_stays_with_those_who_have_it() {
        let inodes = Inodes::new(handle(0));
        let old = inodes.remember(&handle(1));
        inodes.retire(&old);
        let new = inodes.remember(&handle(1));
        assert_ne!(old.number, new.number);
        assert_eq!(inodes.get(old.number).unwrap().handle, handle(1));
        assert!(inodes.forget(old.number, 1).is_some());
        assert_eq!(inodes.find(&handle(1)).unwrap().number, new.number, "forgetting the old leaves the new");
    }

    #[test]
    fn a_node_that_takes_every_open_is_the_one_that_is_there_unless_that_is_in_passthrough() {
        let inodes = Inodes::new(handle(0));
        let there = inodes.remember(&handle(1));
        let (same, retired) = inodes.remember_ordinary(&handle(1));
        assert!(Arc::ptr_eq(&there, &same) && retired.is_none() && same.state.lock().ordinary == 1);
        same.state.lock().leave_ordinary();
        assert_eq!(same.state.lock().ordinary, 0);
        assert!(
            inodes.tell_again(same.number) && inodes.forget(same.number, 2).is_none(),
            "told three times"
        );
        assert!(inodes.forget(same.number, 1).is_some() && !inodes.tell_again(same.number));
        let (new, retired) = inodes.remember_ordinary(&handle(1));
        assert!(!Arc::ptr_eq(&new, &there) && retired.is_none() && new.state.lock().ordinary == 1);
        assert_eq!(new.number, there.number, "it is the same file's");
    }

    #[test]
    fn a_name_leads_to_what_was_last_found_under_it() {
        let inodes = Inodes::new(handle(0));
        let (a, b) = (inodes.remember(&handle(1)), inodes.remember(&handle(2)));
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        let found = |text: &str| inodes.named(ROOT, &name(text)).map(|inode| inode.number);
        inodes.name(&a, (ROOT, name("x")), false, soon());
        inodes.name(&b, (ROOT, name("x")), false, soon());
        assert_eq!(found("x"), Some(b.number));
        inodes.unname(&a, &(ROOT, name("x")));
        assert_eq!(found("x"), Some(b.number), "it is another file's by now");
        inodes.name(&b, (ROOT, name("y")), false, soon());
        assert_eq!((found("x"), found("y")), (Some(b.number), Some(b.number)), "it has two");
        inodes.unname(&b, &(ROOT, name("x")));
        assert_eq!((found("x"), found("y")), (None, Some(b.number)));
        inodes.forget(b.number, 1);
        assert_eq!(found("y"), None);
        inodes.name(&b, (ROOT, name("z")), false, soon());
        assert_eq!(found("z"), None, "the kernel does not know it any more");
    }

    #[test]
    fn no_more_names_are_remembered_than_may_be_and_one_of_a_directory() {
        let inodes = Inodes::new(handle(0));
        let (file, directory) = (inodes.remember(&handle(1)), inodes.remember(&handle(2)));
        let name = |n: usize| (ROOT, Name::new(format!("n{n}").as_bytes()).unwrap());
        for n in 0..NAMES_MAX {
            assert_eq!(inodes.name(&file, name(n), false, soon()), None);
        }
        assert_eq!(inodes.name(&file, name(0), false, soon()), None, "it is the last one now");
        assert_eq!(inodes.name(&file, name(100), false, soon()), Some(name(1)));
        assert!(inodes.named(ROOT, &name(1).1).is_none());
        assert_eq!(file.state.lock().names.len(), NAMES_MAX);
        assert_eq!(inodes.name(&directory, name(200), true, soon()), None);
        assert_eq!(inodes.name(&directory, name(201), true, soon()), Some(name(200)));
    }

    proptest! {
        /// Against a model that counts: a file has its node as long as the kernel has not given back all of it.
        #[test]
        fn counts_are_the_kernels(steps in prop::collection::vec((1..6u8, any::<bool>(), 1..3u64), 1..80)) {
            let inodes = Inodes::new(handle(0));
            let mut model: Model<u8, (u64, u64)> = Model::new();
            let mut used = Model::new();
            for (file, told, count) in steps {
                if told {
                    let number = inodes.remember(&handle(file)).number;
                    let known = model.entry(file).or_insert((number, 0));
                    prop_assert_eq!(known.0, number);
                    prop_assert!(*used.entry(number).or_insert(file) == file, "a number is one file's for ever");
                    known.1 += 1;
                } else if let Some((number, lookups)) = model.get_mut(&file) {
                    let all = count >= *lookups;
                    prop_assert_eq!(inodes.forget(*number, count).is_some(), all);
                    *lookups = lookups.saturating_sub(count);
                    if all {
                        model.remove(&file);
                    }
                }
                prop_assert_eq!(inodes.len(), model.len() + 1);
                for (number, file) in &used {
                    prop_assert_eq!(inodes.file_of(*number), Some(handle(*file)), "nor is it lost");
                }
                for (file, (number, _)) in &model {
                    prop_assert_eq!(inodes.get(*number).unwrap().handle, handle(*file));
                }
            }
        }
    }
}
