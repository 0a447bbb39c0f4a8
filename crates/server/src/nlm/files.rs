//! The files that hosts have locked. NLM has no opens, but locks are taken through one: so the server opens a
//! file for each user of a host that locks it, with that user's rights, and closes it after the last lock.
//!
//! One task at a time works on a file of a host: a lock, its cancel and its grant do not cross.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use vfs::locks::{LockRange, LockRanges};
use vfs::{HolderId, Lock, OpenId, Owner, Share};

use crate::exports::{Export, ExportId};
use crate::state::stateids::FileKey;

/// Limit of locked files of all hosts.
const FILES_MAX: usize = 1 << 18;
/// Limit of locked files of one host.
const FILES_PER_HOST_MAX: usize = 1 << 14;
/// Limit of owners and shares of one host on one file.
const OWNERS_PER_FILE_MAX: usize = 4096;

/// The open of a user of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserOpen {
    pub(super) id: OpenId,
    pub(super) access: Share,
}

/// A DOS share, and the open that it is for the file system.
#[derive(Clone, Copy, Debug)]
pub(super) struct DosShare {
    pub(super) id: OpenId,
    pub(super) access: Share,
    pub(super) deny: Share,
}

/// What an owner holds on a file.
#[derive(Debug, Default)]
pub(super) struct OwnerLocks {
    /// The users through whose opens it may hold locks.
    pub(super) users: BTreeSet<u32>,
    /// The locks that the client knows of. One that was granted and not acknowledged is not among them: if
    /// the client does not take it, these are what the owner holds.
    pub(super) known: LockRanges,
}

/// What a host holds on a file.
#[derive(Debug, Default)]
pub(super) struct HostFile {
    /// By user id.
    pub(super) opens: BTreeMap<u32, UserOpen>,
    pub(super) owners: HashMap<Owner, OwnerLocks>,
    /// DOS shares, by owner.
    pub(super) shares: HashMap<Bytes, DosShare>,
}

impl HostFile {
    /// Is there capacity for one more owner?
    pub(super) fn has_capacity(&self) -> bool {
        self.owners.len() + self.shares.len() < OWNERS_PER_FILE_MAX
    }

    /// The opens through which an owner may hold locks.
    pub(super) fn opens_of(&self, owner: &Owner) -> Vec<OpenId> {
        let users = self.owners.get(owner).into_iter().flat_map(|locks| &locks.users);
        users.filter_map(|uid| self.opens.get(uid)).map(|open| open.id).collect()
    }

    /// The client knows of this lock.
    pub(super) fn learn(&mut self, lock: &Lock) {
        if let Some(locks) = self.owners.get_mut(&lock.owner) {
            locks.known.lock(LockRange::of(lock));
        }
    }

    /// Forgets owners that hold no lock (any more).
    pub(super) fn prune(&mut self, export: &Export) {
        match self.opens.values().next().map(|open| open.id) {
            Some(any) => self.owners.retain(|owner, _| export.fs().holds_locks(any, owner)),
            None => self.owners.clear(),
        }
    }

    /// Takes the opens that no owner needs.
    pub(super) fn take_unused(&mut self) -> Vec<OpenId> {
        let used: BTreeSet<u32> = self.owners.values().flat_map(|locks| &locks.users).copied().collect();
        let unused = self.opens.iter().filter(|(uid, _)| !used.contains(uid));
        let unused = unused.map(|(_, open)| open.id).collect();
        self.opens.retain(|uid, _| used.contains(uid));
        unused
    }

    /// Takes all opens.
    pub(super) fn take_all(&mut self) -> Vec<OpenId> {
        self.owners.clear();
        let opens = std::mem::take(&mut self.opens).into_values().map(|open| open.id);
        opens.chain(std::mem::take(&mut self.shares).into_values().map(|share| share.id)).collect()
    }

    fn is_empty(&self) -> bool {
        self.opens.is_empty() && self.shares.is_empty()
    }
}

/// The locked files of all hosts.
#[derive(Debug, Default)]
pub(super) struct Files(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    files: HashMap<(HolderId, FileKey), Arc<AsyncMutex<HostFile>>>,
    per_host: HashMap<HolderId, usize>,
}

/// There are too many locked files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

impl Files {
    /// What a host holds on a file. The caller must call [`Files::settle`] afterwards.
    ///
    /// # Errors
    /// If the host has none on the file yet, and there are too many.
    pub(super) fn enter(&self, holder: HolderId, file: FileKey) -> Result<Arc<AsyncMutex<HostFile>>, Full> {
        let mut table = self.0.lock();
        if let Some(found) = table.files.get(&(holder, file)) {
            return Ok(found.clone());
        }
        let of_host = table.per_host.get(&holder).copied().unwrap_or(0);
        if of_host >= FILES_PER_HOST_MAX || table.files.len() >= FILES_MAX {
            return Err(Full);
        }
        table.per_host.insert(holder, of_host + 1);
        let entered = Arc::<AsyncMutex<HostFile>>::default();
        table.files.insert((holder, file), entered.clone());
        Ok(entered)
    }

    /// What a host holds on a file, if it holds anything.
    pub(super) fn get(&self, holder: HolderId, file: FileKey) -> Option<Arc<AsyncMutex<HostFile>>> {
        self.0.lock().files.get(&(holder, file)).cloned()
    }

    /// Forgets a file on which the host holds nothing, unless another task works on it.
    pub(super) fn settle(&self, holder: HolderId, file: FileKey, held: Arc<AsyncMutex<HostFile>>) {
        let mut table = self.0.lock();
        // If the table and `held` alone have the file, no task can get it meanwhile. Each task lets go of the
        // file before the next one counts.
        let is_unused = Arc::strong_count(&held) <= 2 && held.try_lock().is_ok_and(|held| held.is_empty());
        drop(held);
        if is_unused && table.files.remove(&(holder, file)).is_some() {
            let of_host = table.per_host.get(&holder).copied().unwrap_or(0);
            if of_host > 1 {
                table.per_host.insert(holder, of_host - 1);
            } else {
                table.per_host.remove(&holder);
            }
        }
    }

    /// The files of a host.
    pub(super) fn of(&self, holder: HolderId) -> Vec<(FileKey, Arc<AsyncMutex<HostFile>>)> {
        let table = self.0.lock();
        let of_host = table.files.iter().filter(|((of, _), _)| *of == holder);
        of_host.map(|((_, file), held)| (*file, held.clone())).collect()
    }

    /// The files of an export.
    pub(super) fn of_export(&self, export: ExportId) -> Vec<(HolderId, FileKey, Arc<AsyncMutex<HostFile>>)> {
        let table = self.0.lock();
        let of_export = table.files.iter().filter(|((_, file), _)| file.export == export);
        of_export.map(|((holder, file), held)| (*holder, *file, held.clone())).collect()
    }

    /// The number of files of a host.
    pub(super) fn count(&self, holder: HolderId) -> usize {
        self.0.lock().per_host.get(&holder).copied().unwrap_or(0)
    }

    /// Does the host hold anything?
    pub(super) fn any_of(&self, holder: HolderId) -> bool {
        self.0.lock().per_host.contains_key(&holder)
    }

    /// Number of locked files.
    pub(super) fn len(&self) -> usize {
        self.0.lock().files.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::ExportId;
    use vfs::Handle;

    fn file(number: u32) -> FileKey {
        FileKey { export: ExportId(1), handle: Handle::new(&number.to_be_bytes()).unwrap() }
    }

    #[test]
    fn a_file_is_forgotten_when_nothing_is_held_and_no_task_works_on_it() {
        let (files, host) = (Files::default(), HolderId(1));
        let (one, other) = (files.enter(host, file(1)).unwrap(), files.enter(host, file(1)).unwrap());
        files.settle(host, file(1), one);
        assert!(files.any_of(host), "another task works on it");
        let open = UserOpen { id: OpenId(7), access: Share::READ };
        other.try_lock().unwrap().opens.insert(0, open);
        files.settle(host, file(1), other);
        let held = files.get(host, file(1)).unwrap();
        assert_eq!(held.try_lock().unwrap().take_all(), [OpenId(7)]);
        files.settle(host, file(1), held);
        assert!(!files.any_of(host) && files.len() == 0);
    }

    #[test]
    fn one_host_does_not_fill_the_table() {
        let files = Files::default();
        for number in 0..=FILES_PER_HOST_MAX as u32 {
            assert_eq!(files.enter(HolderId(1), file(number)).is_ok(), number < FILES_PER_HOST_MAX as u32);
        }
        assert!(files.enter(HolderId(2), file(0)).is_ok());
    }
}
