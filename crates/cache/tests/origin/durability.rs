//! The origin's disk, and the bytes that it loses in a crash; calls that it refuses; the WRITEs that it
//! received.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use parking_lot::Mutex;
use vfs::{Caller, Handle, Principal, Result, Stability, Status, Verifier, Written};

use super::Origin;
use super::tree::{Tree, id};

/// A WRITE that the origin received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    pub uid: u32,
    pub offset: u64,
    pub length: usize,
    pub stability: Stability,
}

#[derive(Default)]
pub struct Durability {
    /// The origin keeps unstable writes in memory. Otherwise every write is durable at once.
    pub volatile: AtomicBool,
    incarnation: AtomicU8,
    /// Contents on disk of files that have bytes only in memory.
    disk: Mutex<BTreeMap<u64, Vec<u8>>>,
    /// Errors for the next WRITEs, COMMITs and SETATTRs.
    pub refuse_writes: Mutex<VecDeque<Status>>,
    pub refuse_commits: Mutex<VecDeque<Status>>,
    pub refuse_setattrs: Mutex<VecDeque<Status>>,
    /// The origin answers WRITEs of these files with DELAY.
    pub puts_off: Mutex<Vec<Handle>>,
    /// Space for data in all files, in bytes. Files take blocks of 4 KiB.
    pub capacity: Mutex<Option<u64>>,
    /// All WRITEs received.
    pub came: Mutex<Vec<Came>>,
}

impl Durability {
    pub fn verifier(&self) -> Verifier {
        [self.incarnation.load(Ordering::SeqCst); 8]
    }

    pub fn write(
        &self,
        tree: &mut Tree,
        caller: &Caller,
        handle: &Handle,
        offset: u64,
        data: &[u8],
        stability: Stability,
    ) -> Result<Written> {
        let uid = match &caller.principal {
            Principal::Unix(credential) => credential.uid,
            Principal::Machine => u32::MAX,
        };
        self.came.lock().push(Came { uid, offset, length: data.len(), stability });
        if self.puts_off.lock().contains(handle) {
            return Err(Status::Delay.into());
        }
        if let Some(status) = self.refuse_writes.lock().pop_front() {
            return Err(status.into());
        }
        let needed =
            blocks(offset + data.len() as u64).saturating_sub(blocks(tree.get(handle)?.data.len() as u64));
        if needed > self.free_bytes(tree) {
            return Err(Status::NoSpc.into());
        }
        let mut disk = self.disk.lock();
        let unstable = self.volatile.load(Ordering::SeqCst) && stability == Stability::Unstable;
        if unstable && !disk.contains_key(&id(handle)) {
            disk.insert(id(handle), tree.get(handle)?.data.clone());
        }
        let wcc = tree.write(handle, offset, data)?;
        let stability = if unstable {
            Stability::Unstable
        } else {
            if let Some(there) = disk.get_mut(&id(handle)) {
                let end = offset as usize + data.len();
                there.resize(there.len().max(end), 0);
                there[offset as usize..end].copy_from_slice(data);
            }
            Stability::FileSync
        };
        Ok(Written { count: data.len() as u32, stability, verifier: self.verifier(), wcc })
    }

    /// The free space, in bytes.
    pub fn free_bytes(&self, tree: &Tree) -> u64 {
        let used: u64 = tree.inodes.values().map(|inode| blocks(inode.data.len() as u64)).sum();
        self.capacity.lock().map_or(1 << 50, |capacity| capacity.saturating_sub(used))
    }

    pub fn commit(&self, handle: &Handle) -> Result<()> {
        if let Some(status) = self.refuse_commits.lock().pop_front() {
            return Err(status.into());
        }
        self.disk.lock().remove(&id(handle));
        Ok(())
    }

    pub fn cut(&self, handle: &Handle, size: Option<u64>) {
        if let (Some(size), Some(there)) = (size, self.disk.lock().get_mut(&id(handle))) {
            there.resize(size as usize, 0);
        }
    }
}

fn blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

impl Origin {
    /// Limits the space for data in all files to so many bytes from now on.
    pub fn hold(&self, capacity: u64) {
        *self.durability.capacity.lock() = Some(capacity);
    }

    /// Keeps unstable writes in memory from now on.
    pub fn be_volatile(&self) {
        self.durability.volatile.store(true, Ordering::SeqCst);
    }

    /// Crashes and comes up again.
    pub fn crash(&self) {
        let mut tree = self.tree();
        self.durability.incarnation.fetch_add(1, Ordering::SeqCst);
        for (file, data) in std::mem::take(&mut *self.durability.disk.lock()) {
            if tree.inodes.contains_key(&file) {
                let set = vfs::SetAttributes { size: Some(data.len() as u64), ..Default::default() };
                tree.setattr(&super::handle(file), &set, None).unwrap();
                tree.inodes.get_mut(&file).unwrap().data = data;
            }
        }
    }

    /// The WRITEs received since the last call of this.
    pub fn came(&self) -> Vec<Came> {
        std::mem::take(&mut *self.durability.came.lock())
    }

    /// The contents of a file.
    pub fn contents(&self, file: &Handle) -> Vec<u8> {
        self.tree().get(file).unwrap().data.clone()
    }
}
