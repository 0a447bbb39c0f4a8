//! Share reservations (RFC 8881, section 9.7): each open states its access and the access that it denies to
//! others.
//!
//! A pure table. Two opens of one file are compatible if neither has an access that the other denies. A
//! second open by the same holder and owner is not another open: it extends the first (section 9.11).

use std::collections::HashMap;

use vfs::{Combinations, Handle, HolderId, OpenId, Owner, Share, Shares, Status};

/// Limit of opens of one file; a front's own limits are lower.
const OPENS_PER_FILE_MAX: usize = 65_536;

/// An open to be entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The holder, if its protocol has holders.
    pub holder: Option<HolderId>,
    /// The open-owner.
    pub owner: Owner,
    /// The requested access, and the access denied to others.
    pub shares: Shares,
}

/// The opens of a file by other holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// There are any.
    pub open: bool,
    /// There are opens for writing.
    pub write: bool,
}

/// An open.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HeldOpen {
    id: OpenId,
    opening: Opening,
    had: Combinations,
}

impl HeldOpen {
    fn denies_any(&self) -> bool {
        !self.opening.shares.deny.is_empty()
    }

    fn is_of(&self, other: &Opening) -> bool {
        self.opening.holder == other.holder && self.opening.owner == other.owner
    }
}

/// The opens of all files.
#[derive(Debug, Default)]
pub struct ShareTable {
    files: HashMap<Handle, Vec<HeldOpen>>,
    opens: HashMap<OpenId, Handle>,
    denying: usize,
}

impl ShareTable {
    /// Enters an open under `id`, or extends the open of the same holder and owner. Returns the id of the
    /// open.
    ///
    /// # Errors
    /// `ShareDenied` if another open conflicts; `Inval` if the access is empty; `Delay` if there are too
    /// many opens.
    pub fn open(&mut self, handle: &Handle, id: OpenId, opening: Opening) -> Result<OpenId, Status> {
        self.check(handle, &opening)?;
        let held = self.files.entry(*handle).or_default();
        let Some(mine) = held.iter_mut().find(|open| open.is_of(&opening)) else {
            if held.len() >= OPENS_PER_FILE_MAX {
                return Err(Status::Delay);
            }
            let had = [opening.shares].into_iter().collect();
            let open = HeldOpen { id, opening, had };
            self.denying += usize::from(open.denies_any());
            held.push(open);
            self.opens.insert(id, *handle);
            return Ok(id);
        };
        let denied = mine.denies_any();
        mine.had.add(opening.shares);
        mine.opening.shares = mine.opening.shares.union(opening.shares);
        self.denying += usize::from(!denied && mine.denies_any());
        Ok(mine.id)
    }

    /// Could this open be entered now? Denials of the same owner count too (RFC 7530, section 9.9).
    ///
    /// # Errors
    /// As [`ShareTable::open`].
    pub fn check(&self, handle: &Handle, opening: &Opening) -> Result<(), Status> {
        if opening.shares.access.is_empty() {
            return Err(Status::Inval);
        }
        let denied = self.held(handle).iter().any(|held| held.opening.shares.conflicts(opening.shares));
        if denied { Err(Status::ShareDenied) } else { Ok(()) }
    }

    /// Reduces an open to a union of shares that it was made and extended with.
    ///
    /// # Errors
    /// `BadStateId` if there is no such open; `Inval` if it never had that share.
    pub fn downgrade(&mut self, id: OpenId, shares: Shares) -> Result<(), Status> {
        let handle = self.opens.get(&id).ok_or(Status::BadStateId)?;
        let held = self.files.get_mut(handle).ok_or(Status::ServerFault)?;
        let open = held.iter_mut().find(|open| open.id == id).ok_or(Status::ServerFault)?;
        if !open.had.allows(shares) {
            return Err(Status::Inval);
        }
        let denied = open.denies_any();
        open.opening.shares = shares;
        open.had.narrow(shares);
        self.denying -= usize::from(denied && !open.denies_any());
        Ok(())
    }

    /// Ends an open. Returns its file.
    ///
    /// # Errors
    /// `BadStateId` if there is no such open.
    pub fn close(&mut self, id: OpenId) -> Result<Handle, Status> {
        let handle = self.opens.remove(&id).ok_or(Status::BadStateId)?;
        if let Some(held) = self.files.get_mut(&handle) {
            if let Some(at) = held.iter().position(|open| open.id == id) {
                let open = held.swap_remove(at);
                self.denying -= usize::from(open.denies_any());
            }
            if held.is_empty() {
                self.files.remove(&handle);
            }
        }
        Ok(handle)
    }

    /// May a requester without an open use the file like this? Denials of `except` do not count: that
    /// holder has a lease.
    ///
    /// # Errors
    /// `ShareDenied` if an open denies it.
    pub fn admit(&self, handle: &Handle, share: Share, except: Option<HolderId>) -> Result<(), Status> {
        let counts = |open: &&HeldOpen| except.is_none() || open.opening.holder != except;
        let denied =
            self.held(handle).iter().filter(counts).any(|open| open.opening.shares.deny.intersects(share));
        if denied { Err(Status::ShareDenied) } else { Ok(()) }
    }

    /// May this open use this file like this? An open for writing may also read: clients read in order to
    /// complete pages (RFC 8881, section 18.22.4).
    ///
    /// # Errors
    /// `BadStateId` if there is no such open of the file; `OpenMode` if its access does not include this.
    pub fn admit_open(&self, handle: &Handle, id: OpenId, share: Share) -> Result<(), Status> {
        match self.held(handle).iter().find(|open| open.id == id) {
            None => Err(Status::BadStateId),
            Some(open) if share == Share::READ || open.opening.shares.access.contains(share) => Ok(()),
            Some(_) => Err(Status::OpenMode),
        }
    }

    /// The file and the share of an open.
    pub fn of(&self, id: OpenId) -> Option<(&Handle, &Opening)> {
        let handle = self.opens.get(&id)?;
        self.held(handle).iter().find(|open| open.id == id).map(|open| (handle, &open.opening))
    }

    /// The opens of a file by holders other than this one. Without a holder, all opens count.
    pub fn others(&self, handle: &Handle, holder: Option<HolderId>) -> Others {
        let others =
            self.held(handle).iter().filter(|open| holder.is_none() || open.opening.holder != holder);
        others.fold(Others::default(), |all, open| Others {
            open: true,
            write: all.write || open.opening.shares.access.contains(Share::WRITE),
        })
    }

    /// The files that have an open.
    pub fn files(&self) -> impl Iterator<Item = &Handle> {
        self.files.keys()
    }

    /// Does the file have any open?
    pub fn is_open(&self, handle: &Handle) -> bool {
        self.files.contains_key(handle)
    }

    /// Number of opens.
    pub fn len(&self) -> usize {
        self.opens.len()
    }

    /// Are there no opens?
    pub fn is_empty(&self) -> bool {
        self.opens.is_empty()
    }

    /// Number of opens that deny access.
    pub fn denying(&self) -> usize {
        self.denying
    }

    fn held(&self, handle: &Handle) -> &[HeldOpen] {
        self.files.get(handle).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests;
