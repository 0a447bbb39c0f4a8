//! The client's cache, and how long it trusts each entry.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use vfs::{Attributes, Caller, FileSystem, Handle, LeaseId, LeaseKind, Name, OpenId, Owner, Share, Wcc};

use super::pages::{Dirty, Pages};
use super::{Habits, Listed};

/// A client of a file system.
pub(super) struct Client {
    pub(super) fs: Arc<dyn FileSystem>,
    pub(super) caller: Caller,
    pub(super) habits: Habits,
    pub(super) memory: Mutex<Memory>,
    /// OPENs in flight: the reply of each may grant a lease that the server has already recalled.
    pub(super) opening: AtomicU64,
    owners: AtomicU64,
    listener: Mutex<Option<JoinHandle<()>>>,
}

impl Client {
    /// Gets the root, and starts to listen for callbacks.
    pub(super) async fn start(
        fs: Arc<dyn FileSystem>,
        caller: Caller,
        habits: Habits,
    ) -> io::Result<Arc<Client>> {
        let root = fs.root(&caller).await.map_err(super::error)?;
        let client = Arc::new(Client {
            caller,
            habits,
            memory: Mutex::new(Memory::new(root.handle, habits)),
            opening: AtomicU64::new(0),
            owners: AtomicU64::new(0),
            listener: Mutex::new(None),
            fs,
        });
        if let Some(attributes) = root.attributes {
            client.memory.lock().learn(&root.handle, attributes);
        }
        if habits.opens
            && habits.delegations
            && let Some(callbacks) = client.fs.callbacks()
        {
            let listening = super::leases::listen(Arc::downgrade(&client), callbacks);
            *client.listener.lock() = Some(tokio::spawn(listening));
        }
        Ok(client)
    }

    /// Makes a directory the root for all later paths.
    pub(super) async fn change_root(&self, base: &str) -> vfs::Result<()> {
        let mut at = self.memory.lock().root;
        for part in base.split('/').filter(|part| !part.is_empty()) {
            at = self.find(&at, &Name::new(part.as_bytes())?).await?.handle;
        }
        self.memory.lock().root = at;
        Ok(())
    }

    /// Ends the background task.
    pub(super) fn stop(&self) {
        if let Some(listener) = self.listener.lock().take() {
            listener.abort();
        }
    }

    /// A lock and open owner that no other open has.
    pub(super) fn owner(&self) -> Owner {
        let number = self.owners.fetch_add(1, Ordering::Relaxed);
        Owner(number.to_be_bytes().to_vec().into())
    }
}

/// All cached state.
pub(super) struct Memory {
    pub(super) root: Handle,
    habits: Habits,
    nodes: HashMap<Handle, Node>,
    /// Names by directory; `None` is a negative entry.
    names: HashMap<Handle, HashMap<Name, Option<Handle>>>,
    /// Complete directory listings, each with the change attribute at which it was read.
    listings: HashMap<Handle, (u64, Vec<Listed>)>,
    pub(super) pages: Pages,
    pub(super) dirty: HashMap<Handle, Dirty>,
    pub(super) opens: HashMap<OpenId, OpenState>,
}

/// A file or directory.
struct Node {
    attributes: Attributes,
    asked: Instant,
    believed: Duration,
    /// The server has granted access at the cached ctime.
    allowed: bool,
    held: Option<Held>,
}

/// What a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leads {
    /// This object.
    To(Handle),
    /// Nothing: a negative entry.
    Nowhere,
}

impl Leads {
    pub(super) fn handle(self) -> Option<Handle> {
        match self {
            Leads::To(handle) => Some(handle),
            Leads::Nowhere => None,
        }
    }
}

/// A delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) lease: LeaseId,
    pub(super) kind: LeaseKind,
    /// The open that the delegation came with. Local opens under the delegation use it.
    pub(super) open: OpenId,
    pub(super) access: Share,
}

/// An open at the server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenState {
    /// Number of open files that use it.
    pub(super) users: u32,
    /// True if a delegation keeps it even without users.
    pub(super) kept: bool,
}

impl Memory {
    fn new(root: Handle, habits: Habits) -> Memory {
        Memory {
            root,
            habits,
            nodes: HashMap::new(),
            names: HashMap::new(),
            listings: HashMap::new(),
            pages: Pages::new(habits.memory_bytes),
            dirty: HashMap::new(),
            opens: HashMap::new(),
        }
    }

    /// Stores attributes from the server, whichever client changed the object. Drops everything that no
    /// longer matches them.
    pub(super) fn learn(&mut self, handle: &Handle, attributes: Attributes) {
        let (low, high) = if attributes.is_dir() { self.habits.directories } else { self.habits.files };
        let mut node = Node { attributes, asked: Instant::now(), believed: low, allowed: false, held: None };
        if let Some(before) = self.nodes.get(handle) {
            node.held = before.held;
            node.allowed = before.allowed && before.attributes.ctime == attributes.ctime;
            if before.attributes.change == attributes.change {
                node.believed = (before.believed * 2).clamp(low, high);
            } else {
                self.names.remove(handle);
                self.listings.remove(handle);
            }
        }
        self.pages.seen(handle, attributes.change);
        self.nodes.insert(*handle, node);
    }

    /// Stores the result of this client's own change. If it follows directly on the known state, cached data
    /// and names stay valid.
    pub(super) fn learn_own(&mut self, handle: &Handle, wcc: &Wcc) {
        let known = self.nodes.get(handle).map(|node| node.attributes.change);
        let Some(after) = wcc.after else {
            self.expire(handle);
            return;
        };
        let follows = wcc.change_info().filter(|change| Some(change.before) == known);
        // Linux assumes without proof that a change of a file that it writes is its own.
        let own = if after.is_dir() { follows.map(|change| change.after) } else { Some(after.change) };
        if let Some(own) = own {
            self.pages.adopt(handle, own);
            if let Some(node) = self.nodes.get_mut(handle) {
                node.attributes.change = own;
                node.attributes.ctime = after.ctime;
                self.listings.remove(handle);
            }
        }
        self.learn(handle, after);
    }

    /// Ends the trust in the cached attributes.
    pub(super) fn expire(&mut self, handle: &Handle) {
        if let Some(node) = self.nodes.get_mut(handle) {
            node.believed = Duration::ZERO;
        }
    }

    /// The attributes, if they are still trusted.
    pub(super) fn believed(&self, handle: &Handle) -> Option<Attributes> {
        let node = self.nodes.get(handle)?;
        let believed = node.held.is_some() || node.asked.elapsed() < node.believed;
        believed.then_some(node.attributes)
    }

    /// The last known attributes.
    pub(super) fn last(&self, handle: &Handle) -> Option<Attributes> {
        self.nodes.get(handle).map(|node| node.attributes)
    }

    pub(super) fn is_allowed(&self, handle: &Handle) -> bool {
        self.nodes.get(handle).is_some_and(|node| node.allowed)
    }

    pub(super) fn allow(&mut self, handle: &Handle) {
        if let Some(node) = self.nodes.get_mut(handle) {
            node.allowed = true;
        }
    }

    /// What a name refers to, if that is cached.
    pub(super) fn name(&self, directory: &Handle, name: &Name) -> Option<Leads> {
        Some(self.names.get(directory)?.get(name)?.map_or(Leads::Nowhere, Leads::To))
    }

    pub(super) fn set_name(&mut self, directory: &Handle, name: &Name, leads_to: Option<Handle>) {
        self.names.entry(*directory).or_default().insert(name.clone(), leads_to);
    }

    pub(super) fn listing(&self, directory: &Handle, change: u64) -> Option<Vec<Listed>> {
        self.listings.get(directory).filter(|(at, _)| *at == change).map(|(_, listed)| listed.clone())
    }

    pub(super) fn set_listing(&mut self, directory: &Handle, change: u64, listed: Vec<Listed>) {
        self.listings.insert(*directory, (change, listed));
    }

    /// Forgets a removed object.
    pub(super) fn gone(&mut self, handle: &Handle) {
        self.nodes.remove(handle);
        self.pages.drop_file(handle);
        self.dirty.remove(handle);
    }

    pub(super) fn held(&self, handle: &Handle) -> Option<Held> {
        self.nodes.get(handle)?.held
    }

    pub(super) fn hold(&mut self, handle: &Handle, held: Held) {
        if let Some(node) = self.nodes.get_mut(handle) {
            node.held = Some(held);
            self.opens.entry(held.open).or_default().kept = true;
        }
    }

    /// Removes a delegation, and ends the trust in the attributes that it protected.
    pub(super) fn let_go(&mut self, handle: &Handle, lease: Option<LeaseId>) -> Option<Held> {
        let node = self.nodes.get_mut(handle)?;
        let held = node.held.take_if(|held| lease.is_none_or(|lease| lease == held.lease))?;
        node.believed = Duration::ZERO;
        Some(held)
    }

    /// Handles of all delegated files.
    pub(super) fn all_held(&self) -> Vec<Handle> {
        self.nodes.iter().filter(|(_, node)| node.held.is_some()).map(|(handle, _)| *handle).collect()
    }
}
