//! Opens, locks and leases of the origin. The cache is one of its clients. The tests act as the others, and
//! wait for leases to be returned.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use vfs::{
    AccessMask, Adopted, AdoptedLease, AdoptedOpen, Callback, Callbacks, Caller, CreateHow, FileType, Handle,
    Lease, LeaseId, LeaseKind, Lock, Locked, OpenId, OpenRequest, Opened, Owner, Principal, Recall, Result,
    Share, Shares, StateidBasis, Status, Want, Wcc,
};

use super::tree::{Tree, handle, name};
use super::{Bench, Origin, until};

/// The leases that the origin grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Never,
    Always(LeaseKind),
    /// The origin's clock decides.
    Random,
}

pub struct Open {
    pub id: OpenId,
    pub handle: Handle,
    pub access: Share,
    pub deny: Share,
    had: Vec<(Share, Share)>,
}

#[derive(Clone, Copy)]
pub struct Granted {
    pub id: LeaseId,
    pub handle: Handle,
    pub kind: LeaseKind,
    recalled: bool,
}

#[derive(Default)]
pub struct State {
    /// None: the origin has no state.
    pub policy: Option<Policy>,
    pub opens: Vec<Open>,
    pub leases: Vec<Granted>,
    pub locks: Vec<(Handle, Lock)>,
    /// The time until a recalled lease is revoked.
    pub patience: Option<Duration>,
    /// The origin grants leases on directories.
    pub directories: bool,
    /// The next process of the cache keeps everything that this one holds.
    pub resumes: bool,
    /// The origin promises space up to this file size, in bytes.
    pub promises: Option<u64>,
    next: u64,
    listener: Option<mpsc::Sender<Callback>>,
}

impl State {
    pub fn listen(&mut self) -> Option<Callbacks> {
        self.policy?;
        let (sender, receiver) = mpsc::channel(1000);
        self.listener = Some(sender);
        Some(receiver)
    }

    /// Everything that the next process keeps.
    pub fn adopted(&self) -> Adopted {
        if !self.resumes {
            return Adopted::default();
        }
        let ours = |(_, lock): &&(Handle, Lock)| !lock.owner.0.starts_with(b"other");
        let opens = self.opens.iter().map(|open| AdoptedOpen {
            id: open.id,
            handle: open.handle,
            shares: Shares { access: open.access, deny: open.deny },
            had: open.had.iter().map(|(access, deny)| Shares { access: *access, deny: *deny }).collect(),
            principal: Principal::Machine,
            locks: self
                .locks
                .iter()
                .filter(ours)
                .filter(|(handle, _)| *handle == open.handle)
                .map(|(_, lock)| lock.clone())
                .collect(),
        });
        let leases = self.leases.iter().map(|lease| AdoptedLease {
            id: lease.id,
            handle: lease.handle,
            kind: lease.kind,
        });
        Adopted { opens: opens.collect(), leases: leases.collect() }
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Checks that the open of a READ or WRITE exists and has the share.
    pub fn check(&self, by: StateidBasis, handle: &Handle, share: Share) -> Result<()> {
        let StateidBasis::Open(id) = by else { return Ok(()) };
        let open = self.opens.iter().find(|open| open.id == id).ok_or(Status::BadStateId)?;
        assert_eq!(open.handle, *handle, "an open of another file");
        if open.access.contains(share) { Ok(()) } else { Err(Status::OpenMode.into()) }
    }

    pub fn open(&mut self, tree: &mut Tree, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let policy = self.policy.ok_or(Status::NotSupp)?;
        let (handle, created, directory) = find(tree, caller, request)?;
        let attributes = tree.get(&handle)?.attributes;
        let granted = tree.allowed(&caller.principal, &handle)?;
        let mut needed = AccessMask::empty();
        if request.access.contains(Share::READ) {
            needed |= AccessMask::READ;
        }
        if request.access.contains(Share::WRITE) {
            needed |= AccessMask::MODIFY;
        }
        if !created && !granted.contains(needed) {
            return Err(Status::Access.into());
        }
        let (access, deny) = (request.access, request.deny);
        let at = self.opens.iter().position(|open| open.handle == handle);
        // The shares that an owner has also count against its own next OPEN.
        let in_the_way = |open: &Open| open.access.intersects(deny) || open.deny.intersects(access);
        if at.is_some_and(|at| in_the_way(&self.opens[at])) {
            return Err(Status::ShareDenied.into());
        }
        let at = at.unwrap_or_else(|| {
            let id = OpenId(self.next());
            self.opens.push(Open { id, handle, access, deny, had: vec![] });
            self.opens.len() - 1
        });
        let open = &mut self.opens[at];
        open.access |= access;
        open.deny |= deny;
        open.had.push((access, deny));
        let id = open.id;
        let lease = self.grant(tree, policy, request.want, &handle, attributes.change);
        Ok(Opened {
            id,
            handle,
            attributes,
            lease,
            directory,
            created,
            granted: Some(granted),
            directory_lease: None,
            read: None,
        })
    }

    fn grant(
        &mut self,
        tree: &Tree,
        policy: Policy,
        want: Want,
        handle: &Handle,
        change: u64,
    ) -> Option<Lease> {
        let kind = match policy {
            Policy::Always(kind) => kind,
            Policy::Random if tree.now_nanos / 1000 % 3 == 0 => LeaseKind::Write,
            Policy::Random if tree.now_nanos / 1000 % 3 == 1 => LeaseKind::Read,
            _ => return None,
        };
        // A client must not keep locks alone while other clients hold some.
        let foreign = |(file, lock): &(Handle, Lock)| file == handle && lock.owner.0.starts_with(b"other");
        if want == Want::None || (kind == LeaseKind::Write && self.locks.iter().any(foreign)) {
            return None;
        }
        if let Some(lease) = self.leases.iter().find(|lease| lease.handle == *handle) {
            // The reply may name a lease again that the client has.
            let told =
                Lease { id: lease.id, kind: lease.kind, until: None, change, space_limit: self.promised() };
            return (!lease.recalled).then_some(told);
        }
        let id = LeaseId(self.next());
        self.leases.push(Granted { id, handle: *handle, kind, recalled: false });
        Some(Lease { id, kind, until: None, change, space_limit: self.promised() })
    }

    fn promised(&self) -> u64 {
        self.promises.unwrap_or(Lease::NO_SPACE_LIMIT)
    }

    /// A read lease on a directory.
    pub fn delegate(&mut self, directory: &Handle, change: u64) -> Option<Lease> {
        if !self.directories || self.leases.iter().any(|lease| lease.handle == *directory) {
            return None;
        }
        let (id, kind) = (LeaseId(self.next()), LeaseKind::Read);
        self.leases.push(Granted { id, handle: *directory, kind, recalled: false });
        Some(Lease { id, kind, until: None, change, space_limit: Lease::NO_SPACE_LIMIT })
    }

    pub fn downgrade(&mut self, id: OpenId, access: Share, deny: Share) -> Result<()> {
        let open = self.opens.iter_mut().find(|open| open.id == id).ok_or(Status::BadStateId)?;
        let parts = open.had.iter().filter(|(a, d)| access.contains(*a) && deny.contains(*d));
        let union =
            parts.fold((Share::empty(), Share::empty()), |sum, part| (sum.0 | part.0, sum.1 | part.1));
        assert_eq!(union, (access, deny), "a combination that was never opened");
        (open.access, open.deny) = (access, deny);
        open.had.retain(|(a, d)| access.contains(*a) && deny.contains(*d));
        Ok(())
    }

    pub fn close(&mut self, id: OpenId) -> Result<()> {
        let at = self.opens.iter().position(|open| open.id == id).ok_or(Status::BadStateId)?;
        let open = self.opens.remove(at);
        // Locks of other clients stay.
        self.locks.retain(|(handle, lock)| *handle != open.handle || lock.owner.0.starts_with(b"other"));
        Ok(())
    }

    pub fn conflict(&self, handle: &Handle, lock: &Lock) -> Option<Lock> {
        let there = self.locks.iter().filter(|(other, _)| other == handle);
        there.map(|(_, held)| held).find(|held| held.conflicts(lock)).cloned()
    }

    pub fn lock(&mut self, id: OpenId, lock: &Lock) -> Result<Locked> {
        let handle = self.opens.iter().find(|open| open.id == id).ok_or(Status::BadStateId)?.handle;
        if let Some(conflict) = self.conflict(&handle, lock) {
            return Ok(Locked::Denied(conflict));
        }
        self.unlock(id, &lock.owner, (lock.offset, lock.length))?;
        self.locks.push((handle, lock.clone()));
        Ok(Locked::Granted)
    }

    /// Releases entire locks only. The tests need no more.
    pub fn unlock(&mut self, id: OpenId, owner: &Owner, (offset, length): (u64, u64)) -> Result<()> {
        let handle = self.opens.iter().find(|open| open.id == id).ok_or(Status::BadStateId)?.handle;
        let end = offset.saturating_add(length);
        let gone = |lock: &Lock| lock.owner == *owner && offset <= lock.offset && lock.end() <= end;
        self.locks.retain(|(other, lock)| *other != handle || !gone(lock));
        Ok(())
    }

    /// Recalls the lease on a file, unless that has been done.
    fn recall(&mut self, handle: &Handle) {
        let patience = self.patience.unwrap_or(Duration::from_secs(30));
        let Some(lease) = self.leases.iter_mut().find(|lease| lease.handle == *handle) else { return };
        if std::mem::replace(&mut lease.recalled, true) {
            return;
        }
        let (id, deadline) = (lease.id, Instant::now() + patience);
        self.say(Callback::Recall(Recall { id, handle: *handle, keep: None, deadline }));
    }

    pub fn say(&self, callback: Callback) {
        self.listener.as_ref().unwrap().try_send(callback).unwrap();
    }
}

fn find(tree: &mut Tree, caller: &Caller, request: &OpenRequest) -> Result<(Handle, bool, Wcc)> {
    let Some(name) = &request.name else { return Ok((request.handle, false, Wcc::default())) };
    let there = tree.lookup(&caller.principal, &request.handle, name);
    match (&request.create, there) {
        (None, there) => {
            let there = there?;
            Ok((there.node.handle, false, Wcc::seen(there.directory)))
        }
        (Some((how, set)), there) => {
            let created = there.is_err();
            let made = tree.make(&request.handle, name, FileType::Regular, *how, set, b"")?;
            Ok((made.node.handle, created, made.directory))
        }
    }
}

impl Origin {
    pub fn with_state(policy: Policy) -> Arc<Origin> {
        let origin = Origin::new();
        origin.state.lock().policy = Some(policy);
        origin
    }

    /// Another client changes a file. Its leases are recalled first.
    pub async fn others(&self, file: &Handle, change: impl FnOnce(&mut Tree)) {
        self.others_all(|_| vec![*file], change).await;
    }

    /// The same for a change that concerns several files.
    pub async fn others_all(&self, files: impl Fn(&Tree) -> Vec<Handle>, change: impl FnOnce(&mut Tree)) {
        loop {
            {
                let mut tree = self.tree();
                let mut state = self.state.lock();
                let files = files(&tree);
                if !state.leases.iter().any(|lease| files.contains(&lease.handle)) {
                    return change(&mut tree);
                }
                files.iter().for_each(|file| state.recall(file));
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }

    /// The same for a change of a name, which concerns the directory and the file.
    pub async fn others_name(&self, directory: &Handle, text: &str, change: impl FnOnce(&mut Tree)) {
        let concerned = |tree: &Tree| {
            let leads = tree.get(directory).ok().and_then(|inode| inode.names.get(&name(text)).copied());
            leads.map(|(id, _)| handle(id)).into_iter().chain([*directory]).collect()
        };
        self.others_all(concerned, change).await;
    }

    /// The same for a WRITE.
    pub async fn others_write(&self, file: &Handle, offset: u64, data: &[u8]) {
        self.others(file, |tree| assert!(tree.write(file, offset, data).is_ok())).await;
    }

    /// Another client takes a lock, unless there is a conflicting one.
    pub async fn others_lock(&self, file: &Handle, lock: &Lock) -> bool {
        loop {
            {
                let mut state = self.state.lock();
                if !state.leases.iter().any(|lease| lease.handle == *file && lease.kind == LeaseKind::Write) {
                    let free = state.conflict(file, lock).is_none();
                    if free {
                        state.locks.push((*file, lock.clone()));
                    }
                    return free;
                }
                state.recall(file);
            }
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
    }

    /// The other client releases the lock.
    pub fn others_unlock(&self, file: &Handle, lock: &Lock) {
        self.state.lock().locks.retain(|(other, held)| other != file || held != lock);
    }

    /// The cache's process has ended, and another client wants a file on which it had a lease.
    pub fn revoke_unheard(&self, file: &Handle) {
        self.state.lock().leases.retain(|lease| lease.handle != *file);
    }

    /// Recalls a lease, although no client wants the file.
    pub fn recall(&self, file: &Handle) {
        self.state.lock().recall(file);
    }

    /// Revokes a lease.
    pub fn revoke(&self, file: &Handle) {
        let mut state = self.state.lock();
        let at = state.leases.iter().position(|lease| lease.handle == *file).unwrap();
        let lease = state.leases.remove(at);
        state.say(Callback::Revoked { id: lease.id, handle: *file });
    }

    pub fn lease(&self, file: &Handle) -> Option<LeaseKind> {
        self.state.lock().leases.iter().find(|lease| lease.handle == *file).map(|lease| lease.kind)
    }

    pub fn open_count(&self) -> usize {
        self.state.lock().opens.len()
    }
}

impl Bench {
    /// A bench over an origin with state.
    pub fn with_state(policy: Policy) -> Bench {
        Bench::over(Origin::with_state(policy))
    }

    /// Waits until the origin has so many opens.
    pub async fn opens_are(&self, count: usize) {
        until(|| self.origin.open_count() == count).await;
    }
}

/// The arguments for an OPEN that creates the file unless it exists.
pub fn unchecked(size: Option<u64>) -> (CreateHow, vfs::SetAttributes) {
    (CreateHow::Unchecked, vfs::SetAttributes { size, ..vfs::SetAttributes::default() })
}
