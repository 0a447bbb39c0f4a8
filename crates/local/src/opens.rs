//! Opens: who has which file open, and what for.
//!
//! An open remembers what its opener was allowed when it opened: afterwards its reads and writes are not asked about
//! again, whatever becomes of the mode. It keeps the file's [`Node`] in use, whose `O_PATH` descriptor keeps the inode:
//! a file that loses its last name meanwhile lives on, for everybody who has its handle, until the last close.
//!
//! So an open costs no descriptor but the one per file, however many opens there are of it. Those for data come and go
//! as for anonymous use, but in a process that is not root: there the kernel would ask again, and they stay.
//!
//! That one descriptor is not given up for another open, although the file could be opened again by its handle: it alone
//! keeps the data of a file that a process of this machine removes meanwhile, and a guard has to be on some descriptor.
//! Where there is none for one more file, an open fails with `Resource`, before anything is made, and the layers above
//! find out who can go without: a client that has been silent, or a lease that nobody uses.
//!
//! Share reservations and locks among clients are settled above; what is denied is only kept here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use vfs::{Handle, HolderId, OpenId, Owner, Principal, Share, StateidBasis, Status};

use crate::attributes::Stat;
use crate::descriptors::{Capacity, Descriptors, Node, Use};
use crate::identity;

/// Most opens of one exported directory.
const OPENS_MAX: usize = 1 << 18;

/// Ids are unique in the process.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// An open.
pub(crate) struct Open {
    pub(crate) id: OpenId,
    pub(crate) node: Arc<Node>,
    key: Key,
    share: Mutex<Shares>,
    /// The users that opened it, the newest last, and for what: one owner may stand for many of them.
    users: Mutex<Vec<(Principal, Share)>>,
}

/// Users of one open that are known at most; the oldest is forgotten, and asked for its rights each time.
const USERS_MAX: usize = 16;

/// Whose an open is.
type Key = (Option<HolderId>, Owner);

/// Who opens, and was found to have the rights.
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

/// All opens of one exported directory.
#[derive(Default)]
pub(crate) struct Opens {
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    by_id: HashMap<OpenId, Arc<Open>>,
    by_file: HashMap<Handle, BTreeMap<Key, Arc<Open>>>,
    /// How many opens each holder has.
    counts: HashMap<HolderId, usize>,
}

/// On what ground data is used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DataRight {
    /// Permission is asked for each time. What the caller has open as this holder counts, where the protocol does not say
    /// which open is meant.
    Anonymous(Option<HolderId>),
    /// An open of this access.
    Open(Share),
}

impl Opens {
    /// Room for an open of one more file, or of this one, which may be there for others.
    ///
    /// # Errors
    /// `Resource` if too much is open.
    pub(crate) fn capacity<'d>(
        &self,
        descriptors: &'d Descriptors,
        holder: Option<HolderId>,
        node: Option<&Node>,
    ) -> Result<Option<Capacity<'d>>, Status> {
        let leaves_some = {
            let table = self.table.read();
            if table.by_id.len() >= OPENS_MAX {
                return Err(Status::Resource);
            }
            // One client alone does not take what the others need to go on.
            holder.and_then(|holder| table.counts.get(&holder)).is_some_and(|his| his * 2 > table.by_id.len())
        };
        match node {
            Some(node) if node.is_kept() => Ok(None),
            _ if leaves_some && descriptors.is_nearly_full() => Err(Status::Resource),
            _ => descriptors.capacity().map(Some).ok_or(Status::Resource),
        }
    }

    /// Opens a file, or widens the open that this owner has of it. Permission was checked.
    ///
    /// # Errors
    /// `Resource` if too much is open.
    pub(crate) fn open(
        &self,
        (descriptors, capacity): (&Descriptors, Option<Capacity<'_>>),
        node: &Arc<Node>,
        opener: Opener<'_>,
        access: Share,
        deny: Share,
    ) -> Result<OpenId, Status> {
        let key = (opener.holder, opener.owner);
        let mut table = self.table.write();
        if let Some(open) = table.by_file.get(&node.handle).and_then(|opens| opens.get(&key)) {
            let mut share = open.share.lock();
            *share = Shares { access: share.access | access, deny: share.deny | deny };
            open.add_user(opener.principal, access);
            return Ok(open.id);
        }
        if table.by_id.len() >= OPENS_MAX {
            return Err(Status::Resource);
        }
        let node = descriptors.pin(node, Use::Open, capacity).ok_or(Status::Resource)?;
        let id = OpenId(LAST_ID.fetch_add(1, Ordering::Relaxed) + 1);
        let share = Mutex::new(Shares { access, deny });
        let users = Mutex::new(vec![(opener.principal.clone(), access)]);
        let open = Arc::new(Open { id, node, key: key.clone(), share, users });
        if let Some(holder) = key.0 {
            *table.counts.entry(holder).or_default() += 1;
        }
        table.by_file.entry(open.node.handle).or_default().insert(key, open.clone());
        table.by_id.insert(id, open);
        Ok(id)
    }

    /// Gives up part of a share.
    ///
    /// # Errors
    /// `BadStateId`; `Inval` if that is not a part of it, or nothing would be left.
    pub(crate) fn downgrade(&self, id: OpenId, access: Share, deny: Share) -> Result<(), Status> {
        let open = self.get(id)?;
        let mut share = open.share.lock();
        if access.is_empty() || !share.access.contains(access) || !share.deny.contains(deny) {
            return Err(Status::Inval);
        }
        *share = Shares { access, deny };
        Ok(())
    }

    /// Ends an open, and gives it for its node to be let go.
    ///
    /// # Errors
    /// `BadStateId`
    pub(crate) fn close(&self, id: OpenId) -> Result<Arc<Open>, Status> {
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
        if let Some(opens) = table.by_file.get_mut(&open.node.handle) {
            opens.remove(&open.key);
            if opens.is_empty() {
                table.by_file.remove(&open.node.handle);
            }
        }
        Ok(open)
    }

    /// # Errors
    /// `BadStateId`
    pub(crate) fn get(&self, id: OpenId) -> Result<Arc<Open>, Status> {
        self.table.read().by_id.get(&id).cloned().ok_or(Status::BadStateId)
    }

    /// On what ground `by` uses a file.
    ///
    /// # Errors
    /// `BadStateId` if there is no such open of this file.
    pub(crate) fn right(
        &self,
        by: StateidBasis,
        handle: &Handle,
        holder: Option<HolderId>,
    ) -> Result<DataRight, Status> {
        match by {
            StateidBasis::Anonymous => Ok(DataRight::Anonymous(holder)),
            StateidBasis::Open(id) => match self.table.read().by_id.get(&id) {
                Some(open) if open.node.handle == *handle => Ok(DataRight::Open(open.share.lock().access)),
                _ => Err(Status::BadStateId),
            },
        }
    }

    /// Has anybody this file open for writing?
    pub(crate) fn is_open_for_writing(&self, handle: &Handle) -> bool {
        let table = self.table.read();
        table.by_file.get(handle).is_some_and(|opens| opens.values().any(|open| open.has(Share::WRITE)))
    }

    /// Has the user an open of this file with that access, as this holder?
    fn holds(&self, holder: HolderId, principal: &Principal, handle: &Handle, access: Share) -> bool {
        let table = self.table.read();
        let Some(opens) = table.by_file.get(handle) else { return false };
        let first = (Some(holder), Owner(Bytes::new()));
        opens
            .range(first..)
            .take_while(|((of, _), _)| *of == Some(holder))
            .any(|(_, open)| open.has(access) && open.is_by(principal, access))
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
