//! Opens: which owner has which file open, with which access.
//!
//! An open keeps the rights that were checked when it was made: later reads and writes are not checked
//! again, even if the mode changes. A file that loses its last name stays until the last close, for all
//! clients that have its handle: the `O_PATH` descriptor of the file's [`Node`] keeps the inode.
//!
//! An open is held in one of two ways ([`Hold`]):
//!
//! - **By descriptors**: it keeps the node in use. It costs no descriptor beyond those of its file, however
//!   many opens the file has. Descriptors for data are opened and closed as for anonymous access. But in a
//!   process that is not root they stay, since the kernel would check the rights again. The descriptor of one
//!   open file is never closed for another open: it alone keeps the data of a file that a process of this
//!   machine removes, and a guard needs a descriptor. If no descriptor is left for one more file, an open
//!   fails with `Resource` before it creates anything. Then the layers above free capacity: they end a
//!   courtesy client, or recall an unused lease.
//! - **By its handle**: it costs no descriptor, and the file is opened again by its handle when it is used.
//!   This is enough where files lose their names through this process alone, that is, in an exclusive
//!   directory. Before a name is removed, the file's opens take descriptors ([`Removal`]).
//!
//! The layer above decides about share reservations and locks among clients; this module only stores the
//! denied access.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use vfs::{Handle, HolderId, OpenId, Owner, Principal, Share, StateidBasis, Status};

use crate::attributes::Stat;
use crate::descriptors::{Capacity, Descriptors, Node, Use};
use crate::identity;

mod removal;

pub(crate) use removal::Removal;

/// Limit of opens of one exported directory, with up to 1 KB each.
const OPENS_MAX: usize = 1 << 20;

/// The last open id. Ids are unique in the process.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// An open.
pub(crate) struct Open {
    pub(crate) id: OpenId,
    pub(crate) handle: Handle,
    /// The node, if the open is held by descriptors.
    node: Mutex<Option<Arc<Node>>>,
    key: Key,
    share: Mutex<Shares>,
    /// The users that opened it, the newest last, with their access: one open-owner may act for many users.
    users: Mutex<Vec<(Principal, Share)>>,
}

/// Limit of users remembered for one open. The oldest is forgotten, and its rights are checked at each
/// access.
const USERS_MAX: usize = 16;

/// The client and the open-owner.
type Key = (Option<HolderId>, Owner);

/// A requester whose rights were checked.
pub(crate) struct Opener<'p> {
    pub(crate) principal: &'p Principal,
    pub(crate) holder: Option<HolderId>,
    pub(crate) owner: Owner,
}

#[derive(Clone, Copy)]
struct Shares {
    access: Share,
    deny: Share,
}

/// How an open keeps its file.
pub(crate) enum Hold<'d> {
    /// By descriptors, for which there is capacity. `None` if the file has them already.
    Descriptors(Option<Capacity<'d>>),
    /// By its handle.
    Handle,
}

/// All opens of one exported directory.
#[derive(Default)]
pub(crate) struct Opens {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<OpenId, Arc<Open>>,
    by_file: HashMap<Handle, OpensOfFile>,
    /// Files of which a name is being removed, with the number of such operations.
    leaving: HashMap<Handle, usize>,
    /// Number of opens of each holder.
    counts: HashMap<HolderId, usize>,
}

/// The right to access data.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DataRight {
    /// Permission is checked at each access. If the protocol does not name an open, the caller's opens as
    /// this holder count too.
    Anonymous(Option<HolderId>),
    /// An open with this access.
    Open(Share),
}

impl Opens {
    /// Capacity for an open of one more file, or of `node`, which other clients may have open already.
    /// `by_handle` if the open may be held by its handle.
    ///
    /// # Errors
    /// `Resource` if too many files are open.
    pub(crate) fn capacity<'d>(
        &self,
        descriptors: &'d Descriptors,
        holder: Option<HolderId>,
        (node, by_handle): (Option<&Node>, bool),
    ) -> Result<Hold<'d>, Status> {
        let leaves_some = {
            let table = self.table.read();
            let all = table.by_id.len();
            // One client alone must not take the capacity that the others need to make progress.
            let his = holder.and_then(|holder| table.counts.get(&holder));
            let leaves_some = his.is_some_and(|his| his * 2 > all);
            if all >= OPENS_MAX - if leaves_some { OPENS_MAX / 16 } else { 0 } {
                return Err(Status::Resource);
            }
            leaves_some
        };
        match node {
            _ if by_handle => Ok(Hold::Handle),
            Some(node) if node.is_kept() => Ok(Hold::Descriptors(None)),
            _ if leaves_some && descriptors.is_nearly_full() => Err(Status::Resource),
            _ => descriptors.capacity().map(|it| Hold::Descriptors(Some(it))).ok_or(Status::Resource),
        }
    }

    /// Opens a file, or extends the open that this owner has of it. The caller has checked permission.
    ///
    /// # Errors
    /// `Resource` if too many files are open.
    pub(crate) fn open(
        &self,
        (descriptors, hold): (&Descriptors, Hold<'_>),
        node: &Arc<Node>,
        opener: Opener<'_>,
        access: Share,
        deny: Share,
    ) -> Result<OpenId, Status> {
        let key = (opener.holder, opener.owner);
        let mut table = self.table.write();
        if let Some(open) = table.by_file.get(&node.handle).and_then(|opens| opens.get(&key)) {
            // It is held as it was.
            let mut share = open.share.lock();
            *share = Shares { access: share.access | access, deny: share.deny | deny };
            open.add_user(opener.principal, access);
            return Ok(open.id);
        }
        if table.by_id.len() >= OPENS_MAX {
            return Err(Status::Resource);
        }
        let capacity = match hold {
            // Its name is being removed, or is gone and other opens keep the file.
            Hold::Handle if table.leaving.contains_key(&node.handle) => Some(None),
            Hold::Handle if descriptors.get(&node.handle).is_some_and(|node| node.is_open()) => Some(None),
            Hold::Handle => None,
            Hold::Descriptors(capacity) => Some(capacity),
        };
        let handle = node.handle;
        let node = match capacity {
            Some(capacity) => Some(descriptors.pin(node, Use::Open, capacity).ok_or(Status::Resource)?),
            None => None,
        };
        let id = OpenId(LAST_ID.fetch_add(1, Ordering::Relaxed) + 1);
        let share = Mutex::new(Shares { access, deny });
        let (node, users) = (Mutex::new(node), Mutex::new(vec![(opener.principal.clone(), access)]));
        let open = Arc::new(Open { id, handle, node, key, share, users });
        if let Some(holder) = open.key.0 {
            *table.counts.entry(holder).or_default() += 1;
        }
        table.by_file.entry(handle).or_default().insert(open.clone());
        table.by_id.insert(id, open);
        Ok(id)
    }

    /// Reduces the share of an open.
    ///
    /// # Errors
    /// `BadStateId`; `Inval` if the new share is not a subset, or has no access.
    pub(crate) fn downgrade(&self, id: OpenId, access: Share, deny: Share) -> Result<(), Status> {
        let open = self.get(id)?;
        let mut share = open.share.lock();
        if access.is_empty() || !share.access.contains(access) || !share.deny.contains(deny) {
            return Err(Status::Inval);
        }
        *share = Shares { access, deny };
        Ok(())
    }

    /// Ends an open. Returns its node, which the caller unpins, if it was held by descriptors.
    ///
    /// # Errors
    /// `BadStateId`
    pub(crate) fn close(&self, id: OpenId) -> Result<Option<Arc<Node>>, Status> {
        let mut table = self.table.write();
        let open = table.by_id.remove(&id).ok_or(Status::BadStateId)?;
        if let Some(holder) = open.key.0
            && let Some(his) = table.counts.get_mut(&holder)
        {
            *his -= 1;
            if *his == 0 {
                table.counts.remove(&holder);
            }
        }
        if let Some(opens) = table.by_file.get_mut(&open.handle) {
            opens.remove(&open.key);
            if opens.is_empty() {
                table.by_file.remove(&open.handle);
            }
        }
        let node = open.node.lock().take();
        Ok(node)
    }

    /// # Errors
    /// `BadStateId`
    pub(crate) fn get(&self, id: OpenId) -> Result<Arc<Open>, Status> {
        self.table.read().by_id.get(&id).cloned().ok_or(Status::BadStateId)
    }

    /// The right that `by` gives to access a file.
    ///
    /// # Errors
    /// `BadStateId` if it names no open of this file.
    pub(crate) fn right(
        &self,
        by: StateidBasis,
        handle: &Handle,
        holder: Option<HolderId>,
    ) -> Result<DataRight, Status> {
        match by {
            StateidBasis::Anonymous => Ok(DataRight::Anonymous(holder)),
            StateidBasis::Open(id) => match self.table.read().by_id.get(&id) {
                Some(open) if open.handle == *handle => Ok(DataRight::Open(open.share.lock().access)),
                _ => Err(Status::BadStateId),
            },
        }
    }

    /// Does any client have this file open for writing?
    pub(crate) fn is_open_for_writing(&self, handle: &Handle) -> bool {
        let table = self.table.read();
        table.by_file.get(handle).is_some_and(|opens| opens.iter().any(|open| open.has(Share::WRITE)))
    }

    /// Does the user, as this holder, have an open of this file with this access?
    fn holds(&self, holder: HolderId, principal: &Principal, handle: &Handle, access: Share) -> bool {
        let table = self.table.read();
        let Some(opens) = table.by_file.get(handle) else { return false };
        opens.of(holder).any(|open| open.has(access) && open.is_by(principal, access))
    }
}

/// The opens of one file, by key: mostly one.
#[derive(Default)]
struct OpensOfFile(SmallVec<[Arc<Open>; 1]>);

impl OpensOfFile {
    fn place(&self, key: &Key) -> Result<usize, usize> {
        self.0.binary_search_by(|open| open.key.cmp(key))
    }

    fn get(&self, key: &Key) -> Option<&Arc<Open>> {
        self.0.get(self.place(key).ok()?)
    }

    fn insert(&mut self, open: Arc<Open>) {
        let (Ok(at) | Err(at)) = self.place(&open.key);
        self.0.insert(at, open);
    }

    fn remove(&mut self, key: &Key) {
        if let Ok(at) = self.place(key) {
            self.0.remove(at);
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Open>> {
        self.0.iter()
    }

    /// The opens of one holder.
    fn of(&self, holder: HolderId) -> impl Iterator<Item = &Arc<Open>> {
        let (Ok(first) | Err(first)) = self.place(&(Some(holder), Owner(Bytes::new())));
        self.0.iter().skip(first).take_while(move |open| open.key.0 == Some(holder))
    }
}

impl Open {
    fn has(&self, access: Share) -> bool {
        self.share.lock().access.contains(access)
    }

    fn is_by(&self, principal: &Principal, access: Share) -> bool {
        self.users.lock().iter().any(|(user, for_what)| user == principal && for_what.contains(access))
    }

    fn add_user(&self, principal: &Principal, access: Share) {
        let mut users = self.users.lock();
        if let Some((_, for_what)) = users.iter_mut().find(|(user, _)| user == principal) {
            *for_what |= access;
            return;
        }
        if users.len() >= USERS_MAX {
            users.remove(0);
        }
        users.push((principal.clone(), access));
    }
}

impl DataRight {
    /// May the caller read the data of this regular file?
    ///
    /// # Errors
    /// `OpenMode` if the open is not for reading, `Access`.
    pub(crate) fn check_read(
        self,
        opens: &Opens,
        node: &Node,
        principal: &Principal,
        stat: &Stat,
    ) -> Result<(), Status> {
        self.check(opens, node, principal, Share::READ, || node.check_read(principal, stat))
    }

    /// May the caller write the data of this regular file?
    ///
    /// # Errors
    /// `OpenMode` if the open is not for writing, `Access`.
    pub(crate) fn check_write(
        self,
        opens: &Opens,
        node: &Node,
        principal: &Principal,
        stat: &Stat,
    ) -> Result<(), Status> {
        self.check(opens, node, principal, Share::WRITE, || node.check_write(principal, stat))
    }

    fn check(
        self,
        opens: &Opens,
        node: &Node,
        principal: &Principal,
        access: Share,
        ask: impl FnOnce() -> Result<(), Status>,
    ) -> Result<(), Status> {
        match self {
            DataRight::Open(share) if share.contains(access) => identity::may_wear(principal),
            DataRight::Open(_) => Err(Status::OpenMode),
            DataRight::Anonymous(holder) => match (ask(), holder) {
                (Err(Status::Access), Some(holder))
                    if opens.holds(holder, principal, &node.handle, access) =>
                {
                    identity::may_wear(principal)
                }
                (answer, _) => answer,
            },
        }
    }
}
