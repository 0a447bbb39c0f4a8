//! What the client knows, and how long it believes it.

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
    /// OPENs that have been sent and not answered: each may bring a lease that is recalled already.
    pub(super) opening: AtomicU64,
    owners: AtomicU64,
    listener: Mutex<Option<JoinHandle<()>>>,
}

impl Client {
    /// Finds the root, and begins to listen to what the server wants back.
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

    /// Works below this directory from now on.
    pub(super) async fn change_root(&self, base: &str) -> vfs::Result<()> {
        let mut at = self.memory.lock().root;
        for part in base.split('/').filter(|part| !part.is_empty()) {
            at = self.find(&at, &Name::new(part.as_bytes())?).await?.handle;
        }
        self.memory.lock().root = at;
        Ok(())
    }

    /// Ends what runs in the background.
    pub(super) fn stop(&self) {
        if let Some(listener) = self.listener.lock().take() {
            listener.abort();
        }
    }

    /// An owner that no other open has.
    pub(super) fn owner(&self) -> Owner {
        let number = self.owners.fetch_add(1, Ordering::Relaxed);
        Owner(number.to_be_bytes().to_vec().into())
    }
}

/// Everything that is remembered.
pub(super) struct Memory {
    pub(super) root: Handle,
    habits: Habits,
    nodes: HashMap<Handle, Node>,
    /// Of each directory; `None` is a name that is not there.
    names: HashMap<Handle, HashMap<Name, Option<Handle>>>,
    /// Whole directories, at the change that they were read at.
    listings: HashMap<Handle, (u64, Vec<Listed>)>,
    pub(super) pages: Pages,
    pub(super) dirty: HashMap<Handle, Dirty>,
    pub(super) opens: HashMap<OpenId, OpenState>,
}

/// One object.
struct Node {
    attributes: Attributes,
    asked: Instant,
    believed: Duration,
    /// The server said that we may use it, at this ctime.
    allowed: bool,
    held: Option<Held>,
}

/// Where a name leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leads {
    /// To this object.
    To(Handle),
    /// It is known not to be there.
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
    /// The open that it came with, kept for those that need none of their own.
    pub(super) open: OpenId,
    pub(super) access: Share,
}

/// An open at the server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenState {
    /// Open files that use it.
    pub(super) users: u32,
    /// A delegation keeps it when nobody uses it.
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

    /// The server's answer, whoever has changed the object: what does not fit it any more is forgotten.
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

    /// The server's answer to a change of ours: where it follows on what was known, what is remembered stays.
    pub(super) fn learn_own(&mut self, handle: &Handle, wcc: &Wcc) {
        let known = self.nodes.get(handle).map(|node| node.attributes.change);
        let Some(after) = wcc.after else {
            self.expire(handle);
            return;
        };
        let follows = wcc.change_info().filter(|change| Some(change.before) == known);
        // Linux takes a file that it writes for its own without proof.
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

    /// The attributes are not to be believed any longer.
    pub(super) fn expire(&mut self, handle: &Handle) {
        if let Some(node) = self.nodes.get_mut(handle) {
            node.believed = Duration::ZERO;
        }
    }

    /// Attributes that can still be believed.
    pub(super) fn believed(&self, handle: &Handle) -> Option<Attributes> {
        let node = self.nodes.get(handle)?;
        let believed = node.held.is_some() || node.asked.elapsed() < node.believed;
        believed.then_some(node.attributes)
    }

    /// The last attributes that there were.
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

    /// What a name leads to, if that is known.
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

    /// An object is gone.
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

    /// Takes a delegation out, and ends the belief in what it vouched for.
    pub(super) fn let_go(&mut self, handle: &Handle, lease: Option<LeaseId>) -> Option<Held> {
        let node = self.nodes.get_mut(handle)?;
        let held = node.held.take_if(|held| lease.is_none_or(|lease| lease == held.lease))?;
        node.believed = Duration::ZERO;
        Some(held)
    }

    /// Everything that is delegated.
    pub(super) fn all_held(&self) -> Vec<Handle> {
        self.nodes.iter().filter(|(_, node)| node.held.is_some()).map(|(handle, _)| *handle).collect()
    }
}
