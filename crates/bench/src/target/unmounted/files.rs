//! Opening, reading, locking and closing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use vfs::{
    AccessMask, CreateHow, Handle, LeaseKind, Lock, LockKind, LockRequest, Locked, Name, OpenId, OpenRequest,
    Owner, Result, SetAttributes, Share, StateidBasis, Status, Want,
};

use super::How;
use super::memory::{Client, Held, Leads};
use super::names::learn_node;
use super::pages::PAGE_BYTES;

/// Initial read-ahead for a reader that has just become sequential. It doubles with each further read.
const READ_AHEAD_BYTES: u64 = 128 << 10;
/// Pause between two attempts to get a lock that another owner holds.
const LOCK_AGAIN: Duration = Duration::from_millis(20);

/// An open file.
pub(super) struct Open {
    pub(super) handle: Handle,
    /// The open at the server; `None` in version 3.
    id: Option<OpenId>,
    owner: Owner,
    /// End of the last read, and the current read-ahead in bytes.
    read_end: u64,
    ahead: u64,
}

impl Open {
    pub(super) fn by(&self) -> StateidBasis {
        self.id.map_or(StateidBasis::Anonymous, StateidBasis::Open)
    }
}

fn mode_and_size(how: How) -> SetAttributes {
    let size = (how == How::Create).then_some(0);
    SetAttributes { mode: Some(0o644), size, ..SetAttributes::default() }
}

impl Client {
    pub(super) async fn open(&self, path: &str, how: How) -> Result<Open> {
        let (directory, name) = self.walk_to_name(path).await?;
        let owner = self.owner();
        let (handle, id) = if self.habits.opens {
            let (handle, id) = self.open_at_server(&directory, &name, how, &owner).await?;
            (handle, Some(id))
        } else {
            (self.open_untold(&directory, &name, how).await?, None)
        };
        Ok(Open { handle, id, owner, read_end: 0, ahead: 0 })
    }

    /// Opens in version 3: fetches the attributes unless the lookup has just returned them, and the access
    /// rights once per file.
    async fn open_untold(&self, directory: &Handle, name: &Name, how: How) -> Result<Handle> {
        let handle = match self.find(directory, name).await {
            Err(absent) if Client::is_absent(&absent) && how.makes() => {
                return self.create(directory, name, how).await;
            }
            found => {
                let found = found?;
                if !found.fresh {
                    self.getattr(&found.handle).await?;
                }
                found.handle
            }
        };
        if !self.memory.lock().is_allowed(&handle) {
            let all = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::EXECUTE;
            let granted = self.fs.access(&self.caller, &handle, all).await?.granted;
            if !granted.contains(if how.writes() { AccessMask::MODIFY } else { AccessMask::READ }) {
                return Err(Status::Access.into());
            }
            self.memory.lock().allow(&handle);
        }
        self.empty(&handle, how).await?;
        Ok(handle)
    }

    async fn create(&self, directory: &Handle, name: &Name, how: How) -> Result<Handle> {
        let set = mode_and_size(how);
        let created = self.fs.create(&self.caller, directory, name, CreateHow::Unchecked, &set).await?;
        let mut memory = self.memory.lock();
        memory.learn_own(directory, &created.directory);
        learn_node(&mut memory, &created.node);
        memory.allow(&created.node.handle);
        memory.set_name(directory, name, Some(created.node.handle));
        Ok(created.node.handle)
    }

    /// Truncates an existing file that is not empty (`O_TRUNC`).
    async fn empty(&self, handle: &Handle, how: How) -> Result<()> {
        let is_empty = self.memory.lock().last(handle).is_some_and(|it| it.size == 0);
        if how != How::Create || is_empty {
            return Ok(());
        }
        let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
        let wcc = self.fs.setattr(&self.caller, handle, &set, None).await?;
        let mut memory = self.memory.lock();
        memory.pages.drop_file(handle);
        memory.dirty.remove(handle);
        memory.learn_own(handle, &wcc);
        Ok(())
    }

    /// Opens in version 4: an OPEN by name, or no call under a delegation.
    async fn open_at_server(
        &self,
        directory: &Handle,
        name: &Name,
        how: How,
        owner: &Owner,
    ) -> Result<(Handle, OpenId)> {
        self.believe(directory).await?;
        if let Some((handle, id)) = self.open_under_lease(directory, name, how) {
            self.empty(&handle, how).await?;
            return Ok((handle, id));
        }
        if !how.makes() && self.memory.lock().name(directory, name) == Some(Leads::Nowhere) {
            return Err(Status::NoEnt.into());
        }
        let access = if how.writes() { Share::READ | Share::WRITE } else { Share::READ };
        let request = OpenRequest {
            create: how.makes().then(|| (CreateHow::Unchecked, mode_and_size(how))),
            want: if self.habits.delegations { Want::Any } else { Want::None },
            ..OpenRequest::new(*directory, Some(name.clone()), owner.clone(), access)
        };
        self.opening.fetch_add(1, Ordering::SeqCst);
        let opened = self.fs.open(&self.caller, &request).await;
        let entered = opened.map(|opened| {
            let mut memory = self.memory.lock();
            if opened.created {
                memory.learn_own(directory, &opened.directory);
            }
            memory.learn(&opened.handle, opened.attributes);
            memory.set_name(directory, name, Some(opened.handle));
            memory.opens.entry(opened.id).or_default().users += 1;
            if let Some(lease) = opened.lease.filter(|lease| lease.kind != LeaseKind::Timeout)
                && memory.held(&opened.handle).is_none()
            {
                let held = Held { lease: lease.id, kind: lease.kind, open: opened.id, access };
                memory.hold(&opened.handle, held);
            }
            if how == How::Create {
                memory.pages.drop_file(&opened.handle);
                memory.dirty.remove(&opened.handle);
            }
            (opened.handle, opened.id)
        });
        self.opening.fetch_sub(1, Ordering::SeqCst);
        if entered.as_ref().is_err_and(Client::is_absent) {
            self.memory.lock().set_name(directory, name, None);
        }
        entered
    }

    fn open_under_lease(&self, directory: &Handle, name: &Name, how: How) -> Option<(Handle, OpenId)> {
        let mut memory = self.memory.lock();
        let handle = memory.name(directory, name)?.handle()?;
        let held = memory.held(&handle)?;
        let wanted =
            if how.writes() { (LeaseKind::Write, Share::WRITE) } else { (LeaseKind::Read, Share::READ) };
        if held.kind < wanted.0 || !held.access.contains(wanted.1) {
            return None;
        }
        memory.opens.entry(held.open).or_default().users += 1;
        Some((handle, held.open))
    }

    /// Sends dirty data. Closes the open at the server, unless another user or a delegation keeps it.
    pub(super) async fn close(&self, open: Open) -> Result<()> {
        let flushed = self.flush(&open).await;
        if let Some(id) = open.id {
            let unused = {
                let mut memory = self.memory.lock();
                let state = memory.opens.entry(id).or_default();
                debug_assert!(state.users > 0, "an open is closed that has no user");
                state.users = state.users.saturating_sub(1);
                state.users == 0 && !state.kept
            };
            if unused {
                self.end_open(id).await;
            }
        }
        flushed
    }

    pub(super) fn size(&self, open: &Open) -> u64 {
        let memory = self.memory.lock();
        let dirty = memory.dirty.get(&open.handle).map_or(0, super::pages::Dirty::end);
        memory.last(&open.handle).map_or(0, |attributes| attributes.size).max(dirty)
    }

    /// Reads from the cache, and fetches the missing parts.
    pub(super) async fn read(&self, open: &mut Open, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let length = (self.size(open).saturating_sub(offset) as usize).min(buffer.len());
        let buffer = &mut buffer[..length];
        let covered = {
            let memory = self.memory.lock();
            memory.dirty.get(&open.handle).is_some_and(|dirty| dirty.covers(offset, length as u64))
        };
        if !covered {
            buffer.fill(0);
            self.fill(open, buffer, offset).await?;
        }
        if let Some(dirty) = self.memory.lock().dirty.get(&open.handle) {
            dirty.lay_over(offset, buffer);
        }
        Ok(length)
    }

    /// Fills a buffer with the server's data, from the cache or by READ.
    async fn fill(&self, open: &mut Open, buffer: &mut [u8], offset: u64) -> Result<()> {
        let (size, change) = {
            let last = self.memory.lock().last(&open.handle);
            last.map_or((0, 0), |attributes| (attributes.size, attributes.change))
        };
        let wanted = (size.saturating_sub(offset) as usize).min(buffer.len());
        open.ahead = match (offset == open.read_end, open.ahead) {
            (false, _) => 0,
            (true, 0) => READ_AHEAD_BYTES,
            (true, ahead) => (2 * ahead).min(u64::from(self.habits.transfer_bytes)),
        };
        open.read_end = offset + wanted as u64;
        let mut done = 0;
        while done < wanted {
            done +=
                self.memory.lock().pages.copy(&open.handle, offset + done as u64, &mut buffer[done..wanted]);
            if done == wanted {
                break;
            }
            let at = offset + done as u64;
            let start = at / PAGE_BYTES * PAGE_BYTES;
            let end = (offset + wanted as u64).next_multiple_of(PAGE_BYTES).max(at + open.ahead).min(size);
            let count = (end - start).min(u64::from(self.habits.transfer_bytes)) as u32;
            let read = self.fs.read(&self.caller, &open.handle, open.by(), start, count).await?;
            let data = read.data.to_bytes().map_err(|_| Status::Io)?;
            let Some(fresh) = data.get((at - start) as usize..).filter(|fresh| !fresh.is_empty()) else {
                break; // the file has become shorter
            };
            let part = fresh.len().min(wanted - done);
            buffer[done..done + part].copy_from_slice(&fresh[..part]);
            done += part;
            self.memory.lock().pages.keep(&open.handle, change, start, &data, read.eof);
        }
        Ok(())
    }

    /// Locks the entire file. Under a write delegation, and in version 3 (`nolock`), the lock is local to
    /// this client.
    pub(super) async fn lock(&self, open: &Open, exclusive: bool) -> Result<()> {
        self.flush(open).await?;
        let held = self.memory.lock().held(&open.handle);
        let Some(id) = open.id.filter(|_| held.is_none_or(|held| held.kind != LeaseKind::Write)) else {
            return Ok(());
        };
        let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
        let lock = Lock { owner: open.owner.clone(), kind, offset: 0, length: u64::MAX };
        let request = LockRequest { lock, wait: false, reclaim: false };
        while self.fs.lock(&self.caller, id, &request).await? != Locked::Granted {
            tokio::time::sleep(LOCK_AGAIN).await;
        }
        // After locking, this client must see what the previous holder of the lock wrote.
        if held.is_none() {
            self.getattr(&open.handle).await?;
        }
        Ok(())
    }

    pub(super) async fn unlock(&self, open: &Open) -> Result<()> {
        self.flush(open).await?;
        let held = self.memory.lock().held(&open.handle);
        match open.id.filter(|_| held.is_none_or(|held| held.kind != LeaseKind::Write)) {
            Some(id) => self.fs.unlock(&self.caller, id, &open.owner, (0, u64::MAX)).await,
            None => Ok(()),
        }
    }
}
