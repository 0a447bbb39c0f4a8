//! The locks that we hold at the origin's lock manager: a pure table.
//!
//! To NLM, an owner is a process of a host: a number, the `svid`. Some servers look at nothing else. Other
//! clients of the same server may run on this machine, and servers tell hosts apart by their addresses. So
//! the numbers of one table begin at a random place, above the small numbers of the kernel's client. An owner
//! has one number as long as it holds a lock, and two owners never have the same.
//!
//! The range of a LOCK or UNLOCK is in **doubt** from before it is sent until it is answered.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vfs::locks::{LockRange, LockRanges};
use vfs::{Handle, OpenId, Owner, Principal, Status};

/// The first number of an owner. The kernel's client counts from zero.
const SVID_MIN: u32 = 1 << 30;
/// Numbers of owners: those from `SVID_MIN` that are positive as a process id.
const SVIDS: u32 = 1 << 30;
/// Files with locks at a time.
const FILES_MAX: usize = 65_536;
/// Most ranges of one owner in one file.
pub(super) const RANGES_MAX: usize = 4096;

/// What one owner holds in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// The owner's number.
    pub(super) svid: u32,
    /// The user for whom it locks.
    pub(super) principal: Principal,
    pub(super) ranges: LockRanges,
    /// The range of the LOCK or UNLOCK in flight. It is unknown which of its bytes are locked.
    pub(super) doubt: Option<LockRange>,
}

/// A file that the layer above locks.
#[derive(Debug)]
struct File {
    handle: Handle,
    owners: BTreeMap<Owner, Held>,
    /// Orders the calls about this file.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Table {
    files: BTreeMap<OpenId, File>,
    by_handle: HashMap<Handle, OpenId>,
    /// The numbers in use, and in how many files.
    owners: HashMap<Owner, (u32, usize)>,
    by_svid: HashMap<u32, Owner>,
    last_id: u64,
    last_svid: u32,
    /// The files and owners that were changed since the journal was last written.
    touched: Vec<(Handle, Owner)>,
}

impl Table {
    /// An empty table whose numbers begin at a place that `random` chooses.
    pub(super) fn new(random: u32) -> Table {
        Table {
            files: BTreeMap::new(),
            by_handle: HashMap::new(),
            owners: HashMap::new(),
            by_svid: HashMap::new(),
            last_id: 0,
            last_svid: random % SVIDS,
            touched: Vec::new(),
        }
    }

    /// Registers a file. A file has one registration at a time.
    ///
    /// # Errors
    /// `Resource` if there are too many.
    pub(super) fn open(&mut self, handle: Handle) -> Result<OpenId, Status> {
        if let Some(id) = self.by_handle.get(&handle) {
            return Ok(*id);
        }
        if self.files.len() >= FILES_MAX {
            return Err(Status::Resource);
        }
        self.last_id += 1;
        let id = OpenId(self.last_id);
        self.by_handle.insert(handle, id);
        self.files.insert(id, File { handle, owners: BTreeMap::new(), turn: Arc::default() });
        Ok(id)
    }

    /// Ends the registration of a file. Returns what its owners still hold.
    pub(super) fn close(&mut self, id: OpenId) -> Vec<(Owner, Held)> {
        let Some(File { handle, owners, .. }) = self.files.remove(&id) else { return Vec::new() };
        self.by_handle.remove(&handle);
        for owner in owners.keys() {
            self.touched.push((handle, owner.clone()));
            release_svid(&mut self.owners, &mut self.by_svid, owner);
        }
        owners.into_iter().collect()
    }

    /// Takes over what an owner held before this process.
    pub(super) fn adopt(&mut self, handle: Handle, owner: Owner, held: Held) {
        let Ok(id) = self.open(handle) else { return };
        let uses = self.owners.entry(owner.clone()).or_insert((held.svid, 0));
        // The record of one incarnation has one number for each owner.
        let svid = uses.0;
        uses.1 += 1;
        self.by_svid.insert(svid, owner.clone());
        self.touched.push((handle, owner.clone()));
        if let Some(file) = self.files.get_mut(&id) {
            file.owners.insert(owner, Held { svid, ..held });
        }
    }

    /// The file of a registration, and its turn.
    pub(super) fn file(&self, id: OpenId) -> Option<(Handle, Arc<tokio::sync::Mutex<()>>)> {
        self.files.get(&id).map(|file| (file.handle, file.turn.clone()))
    }

    /// A LOCK is about to be sent. Returns the number of its owner.
    ///
    /// # Errors
    /// `BadStateId` if the file is not registered, `Resource` if the owner has too many ranges.
    pub(super) fn begin_lock(
        &mut self,
        id: OpenId,
        owner: &Owner,
        principal: &Principal,
        range: LockRange,
    ) -> Result<u32, Status> {
        let file = self.files.get_mut(&id).ok_or(Status::BadStateId)?;
        if let Some(held) = file.owners.get_mut(owner) {
            if held.ranges.iter().nth(RANGES_MAX - 2).is_some() {
                return Err(Status::Resource);
            }
            held.doubt = Some(range);
            self.touched.push((file.handle, owner.clone()));
            return Ok(held.svid);
        }
        let svid = if let Some((svid, uses)) = self.owners.get_mut(owner) {
            *uses += 1;
            *svid
        } else {
            let svid = free_svid(&mut self.last_svid, &self.by_svid);
            self.owners.insert(owner.clone(), (svid, 1));
            self.by_svid.insert(svid, owner.clone());
            svid
        };
        let held =
            Held { svid, principal: principal.clone(), ranges: LockRanges::default(), doubt: Some(range) };
        file.owners.insert(owner.clone(), held);
        self.touched.push((file.handle, owner.clone()));
        Ok(svid)
    }

    /// The LOCK was answered. Returns false if the file is no longer registered.
    pub(super) fn locked(&mut self, id: OpenId, owner: &Owner, granted: Option<LockRange>) -> bool {
        self.settle(id, owner, |held| granted.into_iter().for_each(|range| held.ranges.lock(range)))
    }

    /// An UNLOCK is about to be sent. `None` if the owner holds nothing in this file.
    pub(super) fn begin_unlock(&mut self, id: OpenId, owner: &Owner, range: LockRange) -> Option<Held> {
        let file = self.files.get_mut(&id)?;
        let held = file.owners.get_mut(owner)?;
        held.doubt = Some(range);
        self.touched.push((file.handle, owner.clone()));
        Some(held.clone())
    }

    /// The UNLOCK was done.
    pub(super) fn unlocked(&mut self, id: OpenId, owner: &Owner, range: LockRange) {
        self.settle(id, owner, |held| held.ranges.unlock(range.start, range.end));
    }

    fn settle(&mut self, id: OpenId, owner: &Owner, change: impl FnOnce(&mut Held)) -> bool {
        let Some(file) = self.files.get_mut(&id) else { return false };
        let Some(held) = file.owners.get_mut(owner) else { return false };
        change(held);
        held.doubt = None;
        if held.ranges.is_empty() {
            file.owners.remove(owner);
            release_svid(&mut self.owners, &mut self.by_svid, owner);
        }
        self.touched.push((file.handle, owner.clone()));
        true
    }

    /// The number for a question about an owner that need not hold a lock.
    pub(super) fn svid_for_test(&mut self, owner: &Owner) -> u32 {
        match self.owners.get(owner) {
            Some((svid, _)) => *svid,
            None => free_svid(&mut self.last_svid, &self.by_svid),
        }
    }

    /// The owner with this number.
    pub(super) fn owner_of(&self, svid: u32) -> Option<&Owner> {
        self.by_svid.get(&svid)
    }

    /// What an owner holds in a file.
    pub(super) fn held(&self, id: OpenId, owner: &Owner) -> Option<&Held> {
        self.files.get(&id)?.owners.get(owner)
    }

    /// Does the owner hold a lock in the file?
    pub(super) fn holds(&self, id: OpenId, owner: &Owner) -> bool {
        self.held(id, owner).is_some_and(|held| !held.ranges.is_empty())
    }

    /// The files in which a lock is held or in doubt.
    pub(super) fn locked_files(&self) -> Vec<OpenId> {
        let locked = self.files.iter().filter(|(_, file)| !file.owners.is_empty());
        locked.map(|(id, _)| *id).collect()
    }

    /// The owners of a file and what they hold.
    pub(super) fn owners(&self, id: OpenId) -> Vec<(Owner, Held)> {
        let owners = self.files.get(&id).map(|file| &file.owners).into_iter().flatten();
        owners.map(|(owner, held)| (owner.clone(), held.clone())).collect()
    }

    /// All registered files.
    pub(super) fn all_files(&self) -> Vec<OpenId> {
        self.files.keys().copied().collect()
    }

    /// The number of registered files.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// What changed since the last call: a file, an owner, and what the owner holds there now.
    pub(super) fn take_touched(&mut self) -> Vec<(Handle, Owner, Option<Held>)> {
        let touched = std::mem::take(&mut self.touched);
        let now = |(handle, owner): (Handle, Owner)| {
            let held = self.by_handle.get(&handle).and_then(|id| self.held(*id, &owner)).cloned();
            (handle, owner, held)
        };
        touched.into_iter().map(now).collect()
    }
}

fn free_svid(last: &mut u32, taken: &HashMap<u32, Owner>) -> u32 {
    loop {
        *last = (*last + 1) % SVIDS;
        let svid = SVID_MIN + *last;
        if !taken.contains_key(&svid) {
            return svid;
        }
    }
}

/// The owner holds nothing any more in one of its files.
fn release_svid(owners: &mut HashMap<Owner, (u32, usize)>, by_svid: &mut HashMap<u32, Owner>, owner: &Owner) {
    let Some((svid, uses)) = owners.get_mut(owner) else { return };
    *uses -= 1;
    if *uses == 0 {
        by_svid.remove(svid);
        owners.remove(owner);
    }
}

#[cfg(test)]
mod tests;
