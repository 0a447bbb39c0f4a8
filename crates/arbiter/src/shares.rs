//! Share reservations (RFC 8881, section 9.7): each open states its access and the access that it denies to
//! others.
//!
//! A pure table. Two opens of one file are compatible if neither has an access that the other denies. A
//! second open by the same holder and owner is not another open: it extends the first (section 9.11).

use std::collections::HashMap;

use vfs::{Handle, HolderId, OpenId, Owner, Share, Status};

/// Limit of opens of one file; a front's own limits are lower.
const OPENS_PER_FILE_MAX: usize = 65_536;

/// An open to be entered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// The holder, if its protocol has holders.
    pub holder: Option<HolderId>,
    /// The open-owner.
    pub owner: Owner,
    /// The requested access.
    pub access: Share,
    /// The access denied to others.
    pub deny: Share,
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
    fn denies(&self, other: &Opening) -> bool {
        self.opening.deny.intersects(other.access) || self.opening.access.intersects(other.deny)
    }

    fn is_of(&self, other: &Opening) -> bool {
        self.opening.holder == other.holder && self.opening.owner == other.owner
    }
}

/// The unions of all subsets of the shares that an open was made and extended with. A downgrade may name
/// any of these (RFC 8881, section 18.18.3). One bit for each of the sixteen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Combinations(u16);

impl Combinations {
    fn index(access: Share, deny: Share) -> u16 {
        u16::from(access.bits() | deny.bits() << 2)
    }

    fn contains(self, access: Share, deny: Share) -> bool {
        self.0 & (1 << Combinations::index(access, deny)) != 0
    }

    fn add(&mut self, access: Share, deny: Share) {
        let new = Combinations::index(access, deny);
        let unions =
            (0..16).filter(|old| self.0 & (1 << old) != 0).fold(1 << new, |all, old| all | 1 << (old | new));
        self.0 |= unions;
    }

    /// Removes the combinations that exceed this share.
    fn narrow(&mut self, access: Share, deny: Share) {
        let complete = Combinations::index(access, deny);
        self.0 &= (0..16).filter(|part| part & !complete == 0).fold(0, |all, part| all | 1 << part);
    }
}

/// The opens of all files.
#[derive(Debug, Default)]
pub struct Shares {
    files: HashMap<Handle, Vec<HeldOpen>>,
    opens: HashMap<OpenId, Handle>,
    denying: usize,
}

impl Shares {
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
            self.denying += usize::from(!opening.deny.is_empty());
            let mut had = Combinations::default();
            had.add(opening.access, opening.deny);
            held.push(HeldOpen { id, opening, had });
            self.opens.insert(id, *handle);
            return Ok(id);
        };
        let denied = !mine.opening.deny.is_empty();
        mine.had.add(opening.access, opening.deny);
        mine.opening.access |= opening.access;
        mine.opening.deny |= opening.deny;
        self.denying += usize::from(!denied && !mine.opening.deny.is_empty());
        Ok(mine.id)
    }

    /// Could this open be entered now? Denials of the same owner count too (RFC 7530, section 9.9).
    ///
    /// # Errors
    /// As [`Shares::open`].
    pub fn check(&self, handle: &Handle, opening: &Opening) -> Result<(), Status> {
        if opening.access.is_empty() {
            return Err(Status::Inval);
        }
        let denied = self.held(handle).iter().any(|held| held.denies(opening));
        if denied { Err(Status::ShareDenied) } else { Ok(()) }
    }

    /// Reduces an open to a union of shares that it was made and extended with.
    ///
    /// # Errors
    /// `BadStateId` if there is no such open; `Inval` if it never had that share.
    pub fn downgrade(&mut self, id: OpenId, access: Share, deny: Share) -> Result<(), Status> {
        let handle = self.opens.get(&id).ok_or(Status::BadStateId)?;
        let held = self.files.get_mut(handle).ok_or(Status::ServerFault)?;
        let open = held.iter_mut().find(|open| open.id == id).ok_or(Status::ServerFault)?;
        let narrower = open.opening.access.contains(access) && open.opening.deny.contains(deny);
        if !narrower || !open.had.contains(access, deny) {
            return Err(Status::Inval);
        }
        self.denying -= usize::from(!open.opening.deny.is_empty() && deny.is_empty());
        (open.opening.access, open.opening.deny) = (access, deny);
        open.had.narrow(access, deny);
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
                self.denying -= usize::from(!open.opening.deny.is_empty());
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
        let denied = self.held(handle).iter().filter(counts).any(|open| open.opening.deny.intersects(share));
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
            Some(open) if share == Share::READ || open.opening.access.contains(share) => Ok(()),
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
            write: all.write || open.opening.access.contains(Share::WRITE),
        })
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
