//! Views of the cached data for people and tools: find by path, describe, pin, drop, verify.
//!
//! A path leads from the export's root through names that are remembered, believed or not. A view makes no
//! call to the origin and counts as no use, so it changes neither the known state nor the order of eviction.
//! Only [`Cache::find`] asks the origin, for a name that is not remembered. A cache that is
//! [offline](crate::Cache::open_offline) is viewed in the same way, without the process that fills it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vfs::{Attributes, Caller, FileType, Fsid, Handle, Name, Status, Timestamp};

use crate::Cache;
use crate::core::Core;
use crate::names::{Leads, NameEntry, directory_prefix};
use crate::object::ObjectState;
use crate::store::objects::blocking;
use crate::store::{Pinned, Table, UseNote};
use crate::table::Object;
use crate::trust::since;
use crate::upkeep;
use crate::writes::{Losses, Lost};

/// Index entries that are read at a time.
const PAGE: usize = 256;
/// How long to wait for the origin if a path is not known here.
const LOOKUP_WAIT: Duration = Duration::from_secs(10);

/// How much of a file is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completeness {
    /// Nothing, or the object is not a regular file.
    Nothing,
    /// A part.
    Part,
    /// All of it: reads need no call to the origin.
    Complete,
}

/// How far the known state is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// The origin has promised to announce changes.
    Leased,
    /// Within the attribute timeouts. The next open still asks the origin, except with `nocto`.
    Current,
    /// The next use asks the origin whether it has changed.
    Unconfirmed,
    /// Nothing is known.
    Unknown,
}

/// The pin that keeps an object from the cleaner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// Its own pin.
    Itself,
    /// The pin of this directory above the object.
    Above(Handle),
}

/// A description of one object.
#[derive(Clone, Debug)]
pub struct Info {
    /// The object.
    pub handle: Handle,
    /// Its attributes as last seen.
    pub attributes: Option<Attributes>,
    /// Bytes of it that are cached.
    pub cached_bytes: u64,
    /// Bytes of disk that they use.
    pub disk_bytes: u64,
    /// How much of it is cached.
    pub completeness: Completeness,
    /// How far the known state is believed.
    pub validity: Validity,
    /// When the origin was last asked, by this machine's clock.
    pub confirmed: Option<Timestamp>,
    /// The time since then.
    pub age: Option<Duration>,
    /// The pin that keeps it.
    pub pinned: Option<Keeper>,
    /// When it was last used, in seconds by this machine's clock.
    pub used_at: Option<i64>,
}

/// Why a path was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// A component is not a valid name.
    #[error("it is no path: components must not be `.` or `..`, and have at most 255 bytes")]
    NoPath,
    /// Not even the root is known.
    #[error("nothing is known of the export yet; it is learnt when a client first uses it")]
    Empty,
    /// This component is not known here, and there is no origin to ask.
    #[error(
        "nothing is known of `{0}`; name a path below the export's root that was used, or ask while the proxy or mount runs"
    )]
    NotKnown(String),
    /// The origin answered with this status.
    #[error("`{0}`: {1}")]
    Origin(String, Status),
}

/// Sums over all objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Objects in the index.
    pub objects: u64,
    /// Files with data.
    pub files: u64,
    /// Files that are complete.
    pub complete: u64,
    /// Bytes of disk in use.
    pub disk_bytes: u64,
    /// The hard limit.
    pub max_bytes: u64,
    /// The soft limit.
    pub soft_bytes: u64,
    /// Bytes of disk in use by data of each file system of the origin.
    pub file_systems: Vec<(Fsid, u64)>,
    /// The hard limit of each file system.
    pub export_max_bytes: Option<u64>,
}

impl Cache {
    /// The origin of the cached files.
    pub fn origin(&self) -> &str {
        &self.core.options.origin
    }

    /// Is there no origin to ask? Then this is a view of the data that another process has left.
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// The object that a path below the export's root leads to. If a name is not remembered and the cache is
    /// not offline, looks the name up at the origin.
    ///
    /// # Errors
    /// Names the component that is not known.
    pub async fn find(&self, path: &[u8]) -> Result<Handle, FindError> {
        let mut at = self.find_root().await?;
        for component in path.split(|byte| *byte == b'/').filter(|component| !component.is_empty()) {
            let name = Name::new(component).map_err(|_| FindError::NoPath)?;
            at = self.find_name(&at, &name).await?;
        }
        Ok(at)
    }

    async fn find_root(&self) -> Result<Handle, FindError> {
        if let Some(root) = self.core.known_root() {
            return Ok(root);
        }
        if self.offline {
            return Err(FindError::Empty);
        }
        let caller = patient(&Caller::machine());
        vfs::FileSystem::root(self, &caller)
            .await
            .map(|node| node.handle)
            .map_err(|error| FindError::Origin("/".into(), error.status))
    }

    async fn find_name(&self, directory: &Handle, name: &Name) -> Result<Handle, FindError> {
        let shown = || String::from_utf8_lossy(name.as_bytes()).into_owned();
        if let Some(child) =
            self.core.name_entry(directory, name).and_then(|entry| self.core.led(directory, name, &entry))
        {
            return Ok(child);
        }
        if self.offline {
            return Err(FindError::NotKnown(shown()));
        }
        let found = self.core.lookup(&patient(&Caller::machine()), directory, name).await;
        found.map(|looked| looked.node.handle).map_err(|error| FindError::Origin(shown(), error.status))
    }

    /// Describes an object.
    pub fn info(&self, handle: &Handle) -> Info {
        let object = self.core.glance(handle);
        let pinned = self
            .core
            .pinned_by(&object)
            .map(|by| if by == *handle { Keeper::Itself } else { Keeper::Above(by) });
        let used_at = Some(object.used_at.load(Ordering::Relaxed)).filter(|at| *at != 0);
        let now = self.core.policy.wall();
        self.core.with(&object, |state| {
            // Records of an earlier version lack this time.
            let confirmed = state.confirmed().filter(|at| *at != Timestamp::default());
            Info {
                handle: *handle,
                attributes: state.attributes().copied(),
                cached_bytes: state.data.valid().bytes(),
                disk_bytes: state.data.file().map_or(0, |file| file.allocated_bytes()),
                completeness: completeness(state),
                validity: validity(state),
                confirmed,
                age: confirmed.map(|at| since(at, now)),
                pinned,
                used_at,
            }
        })
    }

    /// Known names in a directory and their objects, in the order of their bytes: the first ones behind
    /// `after`, at most `max`.
    pub fn children(&self, directory: &Handle, after: Option<&Name>, max: usize) -> Vec<(Name, Handle)> {
        let prefix = directory_prefix(directory);
        let mut from = prefix.clone();
        if let Some(name) = after {
            from.extend_from_slice(name.as_bytes());
            from.push(0);
        }
        let mut children = Vec::new();
        while children.len() < max {
            let page = self.core.disk.index().scan(Table::Names, &prefix, &from, PAGE);
            let Some((last, _)) = page.last() else { break };
            from.clone_from(last);
            from.push(0);
            for (key, value) in &page {
                let child = || {
                    let name = Name::new(key.get(prefix.len()..)?).ok()?;
                    let child = self.core.led(directory, &name, &NameEntry::decode(value)?)?;
                    Some((name, child))
                };
                children.extend(child());
            }
        }
        children.truncate(max);
        children
    }

    /// The components of the path where an object was last seen, from the root. `None` if it is not known.
    pub fn path_of(&self, handle: &Handle) -> Option<Vec<Name>> {
        self.core.path_of(handle)
    }

    /// Files that lost data after a successful close, oldest first, and the number of such losses. If there
    /// are very many, only the last ones are listed.
    pub fn lost(&self) -> (Vec<Lost>, u64) {
        let of = |losses: &Losses| (losses.list(), losses.files());
        self.core.delayed.as_ref().map(|delayed| of(&delayed.losses)).unwrap_or_default()
    }

    /// Those of them that no client has been told of: no operation on the file has failed since.
    pub fn lost_untold(&self) -> Vec<Lost> {
        let is_untold = |lost: &Lost| {
            let writes = |state: &mut ObjectState| {
                state.delayed.writes.as_ref().is_some_and(|writes| writes.is_lost())
            };
            self.core.with(&self.core.glance(&lost.handle), writes)
        };
        self.lost().0.into_iter().filter(is_untold).collect()
    }

    /// A page of the objects with data, least recently used first, and the key where the next page begins.
    pub fn with_data(&self, from: &[u8]) -> (Vec<Handle>, Option<Vec<u8>>) {
        let page = self.core.disk.index().scan(Table::Uses, &[], from, PAGE);
        let next = page.last().map(|(key, _)| [key, &[0][..]].concat());
        let handle = |key: &[u8]| Handle::new(key.get(8..)?);
        let has_data = |(_, note): &&(Vec<u8>, Vec<u8>)| UseNote::decode(note).has_data;
        (page.iter().filter(has_data).filter_map(|(key, _)| handle(key)).collect(), next)
    }

    /// Sums over all objects.
    pub async fn totals(&self) -> Totals {
        self.core.flush().await;
        let limits = self.core.limits();
        let mut totals = Totals {
            disk_bytes: self.core.disk.objects().used_bytes(),
            max_bytes: limits.size_max_bytes,
            soft_bytes: limits.soft_max_bytes(),
            file_systems: self.core.disk.objects().shares(),
            export_max_bytes: limits.export_max_bytes,
            ..Totals::default()
        };
        let mut from = Vec::new();
        loop {
            let page = self.core.disk.index().scan(Table::Uses, &[], &from, PAGE);
            let Some((last, _)) = page.last() else { return totals };
            from = [last, &[0][..]].concat();
            for note in page.iter().map(|(_, note)| UseNote::decode(note)) {
                totals.objects += 1;
                totals.files += u64::from(note.has_data);
                totals.complete += u64::from(note.is_complete);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Pins an object. If it is a directory, everything below it is pinned too, now and later. The cleaner
    /// never evicts pinned data. The pin is durable when this returns.
    ///
    /// # Errors
    /// If the pin cannot be written; then nothing is pinned.
    pub async fn pin(&self, handle: &Handle, path: String) -> std::io::Result<()> {
        let pinned = Pinned { handle: *handle, since: self.core.policy.wall().seconds, path };
        let core = self.core.clone();
        blocking(move || core.disk.pins().pin(pinned)).await
    }

    /// Removes the pin of an object. Pins above and below it stay. False if it had none.
    ///
    /// # Errors
    /// If the change cannot be written; then the object is still pinned.
    pub async fn unpin(&self, handle: &Handle) -> std::io::Result<bool> {
        let (core, handle) = (self.core.clone(), *handle);
        let gone = blocking(move || core.disk.pins().unpin(&handle)).await?;
        self.core.ease();
        Ok(gone)
    }

    /// All pins.
    pub fn pins(&self) -> Vec<Pinned> {
        self.core.disk.pins().all()
    }

    /// Removes an object's data from the disk, pinned or not. A reader that is using it continues. Returns
    /// the bytes of disk that it used.
    pub async fn drop_data(&self, handle: &Handle) -> u64 {
        let object = self.core.glance(handle);
        let freed = self.core.with(&object, |state| {
            let freed = state.data.file().map_or(0, |file| file.allocated_bytes());
            state.drop_data();
            freed
        });
        self.core.empty_trash().await;
        self.core.ease();
        freed
    }
}

impl Core {
    /// The handle of the origin's root, if this cache has ever learnt it.
    pub fn known_root(&self) -> Option<Handle> {
        if self.link.root().is_none() {
            let recorded = self.disk.index().get(Table::Meta, upkeep::ROOT)?;
            self.link.set_root(Handle::new(&recorded));
        }
        self.link.root()
    }

    /// Records the handle of the origin's root.
    pub fn learn_root(&self, root: Handle) {
        if self.known_root() != Some(root) {
            let mut batch = crate::store::Batch::default();
            batch.put(Table::Meta, upkeep::ROOT.to_vec(), root.as_bytes().to_vec());
            self.disk.index().commit(batch);
            self.link.set_root(Some(root));
        }
    }

    /// The child that a remembered name leads to, if nothing contradicts it. The child must be in the state
    /// in which the name was seen, or must have been seen here last.
    fn led(&self, directory: &Handle, name: &Name, entry: &NameEntry) -> Option<Handle> {
        let Leads::To(child) = entry.leads else { return None };
        let object = self.glance(&child);
        let here = self.with(&object, |state| {
            let seen = state
                .place
                .as_ref()
                .is_some_and(|place| place.directory == *directory && place.name == *name);
            state.attributes().is_some() && (state.epoch() == entry.epoch || seen)
        });
        here.then_some(child)
    }

    /// Records where a child was seen.
    pub fn see_child(&self, directory: &Handle, name: &Name, entry: Option<&NameEntry>) {
        let Some(NameEntry { leads: Leads::To(child), .. }) = entry else { return };
        if let Some(child) = self.memory.table().peek(child) {
            self.with(&child, |state| state.see_at(directory, name));
        }
    }

    /// A caller that may read the object, as far as the origin ever said: for READs on behalf of no client in
    /// particular.
    pub fn reader_of(&self, object: &Arc<Object>) -> Caller {
        let principal = self.with(object, |state| {
            let reads = |right: &&crate::rights::Right| right.may_ever(vfs::AccessMask::READ);
            state.rights.iter().filter(reads).last().map(|right| right.principal.clone())
        });
        Caller { principal: principal.unwrap_or(vfs::Principal::Machine), ..Caller::machine() }
    }
}

/// The same caller, with a deadline.
pub fn patient(caller: &Caller) -> Caller {
    Caller { deadline: Some(tokio::time::Instant::now() + LOOKUP_WAIT), ..caller.clone() }
}

fn completeness(state: &ObjectState) -> Completeness {
    let regular = state.attributes().is_some_and(|known| known.file_type == FileType::Regular);
    if regular && state.is_complete() {
        Completeness::Complete
    } else if state.data.valid().is_empty() {
        Completeness::Nothing
    } else {
        Completeness::Part
    }
}

fn validity(state: &ObjectState) -> Validity {
    if state.leased().is_some() {
        Validity::Leased
    } else if state.current().is_some() {
        Validity::Current
    } else if state.attributes().is_some() {
        Validity::Unconfirmed
    } else {
        Validity::Unknown
    }
}
