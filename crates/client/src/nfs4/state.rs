//! What this client holds at the origin, without I/O: opens, byte-range locks, delegations, under the names that the
//! layer above knows them by.
//!
//! An open is one (file, owner) at the origin. Its name ends when `close` begins: an OPEN of the same owner whose reply
//! comes later is a new open under a new name, whatever the origin makes of it.

pub(crate) mod ranges;

use std::collections::HashMap;
use std::sync::Arc;

use protocol::nfs4::Stateid;
use vfs::{Handle, Lease, LeaseId, LeaseKind, OpenId, Owner, Principal, Share, Wcc};

use ranges::Ranges;

/// An open.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) handle: Handle,
    pub(crate) owner: Owner,
    pub(crate) access: Share,
    pub(crate) deny: Share,
    /// As whom it was made, and is made again.
    pub(crate) principal: Principal,
    /// `None` if the origin has lost it and it could not be got back.
    pub(crate) stateid: Option<Stateid>,
    pub(crate) locks: HashMap<Owner, Locks>,
    /// One LOCK or LOCKU at a time, so that what we believe to hold is what the origin believes.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
}

/// What one lock owner has locked through one open.
#[derive(Clone, Debug)]
pub(crate) struct Locks {
    pub(crate) stateid: Stateid,
    pub(crate) ranges: Ranges,
}

/// A delegation.
#[derive(Clone, Debug)]
pub(crate) struct Delegation {
    pub(crate) handle: Handle,
    pub(crate) kind: LeaseKind,
    pub(crate) stateid: Stateid,
    pub(crate) principal: Principal,
    /// The layer above has been asked for it.
    pub(crate) recalled: bool,
}

/// On what state a request relies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Used {
    /// None of ours.
    Nothing,
    Open(OpenId),
    Lock(OpenId, Owner),
    Lease(LeaseId),
}

/// An OPEN that succeeded.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) handle: Handle,
    pub(crate) owner: Owner,
    pub(crate) access: Share,
    pub(crate) deny: Share,
    pub(crate) principal: Principal,
    pub(crate) stateid: Stateid,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct State {
    opens: HashMap<OpenId, Open>,
    by_owner: HashMap<(Handle, Owner), OpenId>,
    by_file: HashMap<Handle, Vec<OpenId>>,
    leases: HashMap<LeaseId, Delegation>,
    by_handle: HashMap<Handle, LeaseId>,
    last: u64,
}

impl State {
    fn name(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Enters an OPEN's result: a new open, or more of one that there is.
    pub(crate) fn opened(&mut self, granted: Granted) -> OpenId {
        let key = (granted.handle, granted.owner.clone());
        if let Some(id) = self.by_owner.get(&key)
            && let Some(open) = self.opens.get_mut(id)
        {
            open.access |= granted.access;
            open.deny |= granted.deny;
            open.principal = granted.principal;
            let newer = |old: &Stateid| {
                old.other != granted.stateid.other
                    || granted.stateid.seqid.wrapping_sub(old.seqid) < u32::MAX / 2
            };
            if open.stateid.as_ref().is_none_or(newer) {
                open.stateid = Some(granted.stateid);
            }
            return *id;
        }
        let id = OpenId(self.name());
        self.by_file.entry(granted.handle).or_default().push(id);
        self.by_owner.insert(key, id);
        let open = Open {
            handle: granted.handle,
            owner: granted.owner,
            access: granted.access,
            deny: granted.deny,
            principal: granted.principal,
            stateid: Some(granted.stateid),
            locks: HashMap::new(),
            turn: Arc::default(),
        };
        self.opens.insert(id, open);
        id
    }

    pub(crate) fn open(&self, id: OpenId) -> Option<&Open> {
        self.opens.get(&id)
    }

    pub(crate) fn open_mut(&mut self, id: OpenId) -> Option<&mut Open> {
        self.opens.get_mut(&id)
    }

    /// All opens.
    pub(crate) fn opens(&self) -> impl Iterator<Item = (OpenId, &Open)> {
        self.opens.iter().map(|(id, open)| (*id, open))
    }

    /// The open of this file by this owner.
    pub(crate) fn open_of(&self, handle: &Handle, owner: &Owner) -> Option<OpenId> {
        self.by_owner.get(&(*handle, owner.clone())).copied()
    }

    /// An open of this file that has at least this access.
    pub(crate) fn open_for(&self, handle: &Handle, access: Share) -> Option<OpenId> {
        let ids = self.by_file.get(handle)?.iter().copied();
        ids.into_iter().find(|id| {
            self.opens.get(id).is_some_and(|open| open.access.contains(access) && open.stateid.is_some())
        })
    }

    /// Takes an open out: its name means nothing any more.
    pub(crate) fn close(&mut self, id: OpenId) -> Option<Open> {
        let open = self.opens.remove(&id)?;
        self.by_owner.remove(&(open.handle, open.owner.clone()));
        if let Some(ids) = self.by_file.get_mut(&open.handle) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_file.remove(&open.handle);
            }
        }
        Some(open)
    }

    /// The origin has this open no more, nor its locks.
    pub(crate) fn lose(&mut self, id: OpenId) {
        if let Some(open) = self.opens.get_mut(&id) {
            open.stateid = None;
            open.locks.clear();
        }
    }

    /// Enters a delegation: a new one, or what is new about the one of that file. True if it is new or stronger.
    pub(crate) fn delegated(&mut self, delegation: Delegation) -> (LeaseId, bool) {
        if let Some(id) = self.by_handle.get(&delegation.handle).copied()
            && let Some(held) = self.leases.get_mut(&id)
            && held.stateid.other == delegation.stateid.other
        {
            let stronger = delegation.kind > held.kind;
            held.kind = held.kind.max(delegation.kind);
            held.stateid = delegation.stateid;
            return (id, stronger);
        }
        if let Some(old) = self.by_handle.get(&delegation.handle).copied() {
            self.leases.remove(&old);
        }
        let id = LeaseId(self.name());
        self.by_handle.insert(delegation.handle, id);
        self.leases.insert(id, delegation);
        (id, true)
    }

    pub(crate) fn lease(&self, id: LeaseId) -> Option<&Delegation> {
        self.leases.get(&id)
    }

    pub(crate) fn lease_mut(&mut self, id: LeaseId) -> Option<&mut Delegation> {
        self.leases.get_mut(&id)
    }

    /// All delegations.
    pub(crate) fn leases(&self) -> impl Iterator<Item = (LeaseId, &Delegation)> {
        self.leases.iter().map(|(id, delegation)| (*id, delegation))
    }

    /// The delegation of a file.
    pub(crate) fn lease_of(&self, handle: &Handle) -> Option<(LeaseId, &Delegation)> {
        let id = *self.by_handle.get(handle)?;
        Some((id, self.leases.get(&id)?))
    }

    /// The delegation with this state id, whatever its seqid.
    pub(crate) fn lease_named(&self, stateid: &Stateid, handle: &Handle) -> Option<LeaseId> {
        self.lease_of(handle).filter(|(_, held)| held.stateid.other == stateid.other).map(|(id, _)| id)
    }

    /// Takes a delegation out.
    pub(crate) fn give_up(&mut self, id: LeaseId) -> Option<Delegation> {
        let delegation = self.leases.remove(&id)?;
        if self.by_handle.get(&delegation.handle) == Some(&id) {
            self.by_handle.remove(&delegation.handle);
        }
        Some(delegation)
    }

    /// On what state I/O of a file is done: that of the open; without one, of a delegation that covers it; without
    /// either, none. For `own` I/O of ours that has no open (a SETATTR of the size) any open will do.
    pub(crate) fn for_io(
        &self,
        handle: &Handle,
        open: Option<OpenId>,
        access: Share,
    ) -> Option<(Stateid, Used)> {
        if let Some(id) = open {
            let open = self.opens.get(&id).filter(|open| open.handle == *handle)?;
            return open.stateid.map(|stateid| (latest(stateid), Used::Open(id)));
        }
        if let Some((id, held)) = self.lease_of(handle)
            && (held.kind == LeaseKind::Write || access == Share::READ)
        {
            return Some((latest(held.stateid), Used::Lease(id)));
        }
        Some((Stateid::ANONYMOUS, Used::Nothing))
    }
}

/// The state id in its latest version: a seqid of zero (RFC 8881, section 8.2.2).
pub(crate) fn latest(stateid: Stateid) -> Stateid {
    Stateid { seqid: 0, ..stateid }
}

/// A lease as the layer above sees it.
pub(crate) fn lease(id: LeaseId, kind: LeaseKind, change: u64) -> Lease {
    Lease { id, kind, until: None, change }
}

/// A directory before and after a change, if nothing else changed it in between.
pub(crate) fn unchanged(before: u64, after: Option<u64>, cinfo: protocol::nfs4::ChangeInfo) -> bool {
    cinfo.atomic && cinfo.before == before && after == Some(cinfo.after)
}

/// Nothing known.
pub(crate) const NO_WCC: Wcc = Wcc { before: None, after: None };

#[cfg(test)]
mod tests;
