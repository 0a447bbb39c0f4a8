//! Profiles: which part of a tree a program uses, recorded once and brought ahead of the next run.
//!
//! [`Cache::record`] begins a [recording](crate::recording), and [`Cache::recorded`] ends it and gives each
//! use its path. `Cache::bring_…` brings what one entry of a profile names. The calls are those that a
//! reader would have made, under the credential of the caller:
//! - a listing, with attributes, the lease on the directory and the caller's right;
//! - a name, if its directory is not worth a listing;
//! - the lease of a file, and the bytes that were read.
//!
//! Nothing brought is believed longer than the answer to a question (the promise about guesses). A call is
//! not made if the answer is here already. All calls together have half of the session's slots at most,
//! which they share with guesses. They report no steps to walks: a profile tells what follows.

use std::ops::Range;
use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use vfs::{AccessMask, Caller, Freshness, Handle, Listing, Name, Pass, ReadDir, Result, Status};

use crate::Cache;
use crate::completer::Completed;
use crate::core::Core;
use crate::filesystem::directory::Purpose;
use crate::names::Leads;
use crate::object::ObjectState;
use crate::recording::{Subject, Use, Uses};
use crate::table::Object;
use crate::walk::{FILE_READ_MAX_BYTES, names_worth_a_listing};

/// READDIRs for one directory. Names that they do not bring are looked up one by one.
const PARTS_MAX: usize = 16;
/// Calls of a listing at a time: READDIR and ACCESS.
const LISTING_CALLS: u32 = 2;
/// READs of one file at a time.
const READS_MAX: u64 = 8;

/// A recording that is running. It ends when this value is dropped.
pub struct Recording {
    core: Arc<Core>,
    id: u64,
}

impl Recording {
    /// Its number, for [`Cache::recorded`].
    pub fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.core.recorder.end(self.id);
    }
}

/// One object that was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedPath {
    /// Where it was last seen, from the root of the export.
    pub path: Vec<Name>,
    /// How it was used.
    pub used: Use,
}

/// The result of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The uses, in the order of first use.
    pub uses: Vec<UsedPath>,
    /// Objects that the recording did not hold, because it was full.
    pub surplus: u64,
    /// Objects whose path is not known.
    pub unnamed: u64,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub directory: Handle,
    /// The name.
    pub name: Name,
    /// The object that the name led to when it was found.
    pub handle: Handle,
}

/// Names of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BroughtListing {
    /// The names, with what they lead to.
    pub places: Vec<Place>,
    /// Names of which the origin has not told the object, or not its attributes. A LOOKUP tells.
    pub untold: Vec<Name>,
    /// These are all names of the directory.
    pub is_complete: bool,
    /// It was here already.
    pub was_here: bool,
}

impl BroughtListing {
    fn add(&mut self, directory: &Handle, name: &Name, handle: Option<Handle>) {
        match handle {
            Some(handle) => self.places.push(Place { directory: *directory, name: name.clone(), handle }),
            None => self.untold.push(name.clone()),
        }
    }
}

impl Cache {
    /// Begins to record what readers use. `None` if a recording is running.
    pub fn record(&self) -> Option<Recording> {
        let id = self.core.recorder.begin()?;
        Some(Recording { core: self.core.clone(), id })
    }

    /// Ends this recording and returns it. `None` if it is not running any more. It may take long, because it
    /// looks a path up for each use.
    pub fn recorded(&self, id: u64) -> Option<Recorded> {
        let Uses { list, surplus } = self.core.recorder.end(id)?;
        let mut recorded = Recorded { surplus, ..Recorded::default() };
        for (subject, used) in list {
            let path = match subject {
                Subject::Object(handle) => self.core.path_of(&handle),
                Subject::Absent(directory, name) => self.core.path_of(&directory).map(|mut path| {
                    path.push(name);
                    path
                }),
            };
            match path {
                Some(path) => recorded.uses.push(UsedPath { path, used }),
                None => recorded.unnamed += 1,
            }
        }
        Some(recorded)
    }

    /// Is it cheaper to list this directory than to look `names` of its names up? That goes by its size.
    pub fn is_worth_listing(&self, directory: &Handle, names: usize) -> bool {
        let size = |state: &mut ObjectState| state.attributes().map_or(0, |known| known.size);
        let size = self.core.with(&self.core.glance(directory), size);
        names as u64 >= names_worth_a_listing(size)
    }

    /// Brings the names of a directory, with their attributes, and the lease on the directory.
    ///
    /// # Errors
    /// Those of READDIR; `Delay` if the process is about to end.
    pub async fn bring_listing(&self, caller: &Caller, directory: &Handle) -> Result<BroughtListing> {
        let caller = &caller.clone().with_freshness(Freshness::Timeout);
        let object = self.core.glance(directory);
        if !self.core.wants_directory(&object)
            && let Some(known) = self.core.listing_here(caller, &object)
        {
            return Ok(known);
        }
        let _permit = self.core.permit(LISTING_CALLS).await?;
        // A reader that needs the listing waits for the reply.
        let asking = match &self.core.prefetch {
            Some(prefetch) => prefetch.listings().begin(*directory).await,
            None => None,
        };
        // If somebody else had asked already, that reply is enough, with a lease or without.
        if asking.is_none()
            && let Some(known) = self.core.listing_here(caller, &object)
        {
            return Ok(known);
        }
        self.core.know_limits(caller, directory).await;
        let rights = async {
            let leases = self.core.may_bring_lease(&object);
            if leases || self.core.look_right(caller, &object).is_none() {
                let _ = self.core.ask_access(caller, &object).await;
            }
        };
        let part = self.core.whole_listing(&object);
        let first = self.core.run_readdir(caller, &object, part, Purpose::Guess);
        let (first, ()) = tokio::join!(first, rights);
        // A large directory takes many replies. Readers must not wait for all of them.
        drop(asking);
        self.core.list_on(caller, &object, part, first?).await
    }

    /// Finds what a name leads to, and brings its attributes.
    ///
    /// # Errors
    /// Those of LOOKUP; `Delay` as above.
    pub async fn bring_name(&self, caller: &Caller, directory: &Handle, name: &Name) -> Result<Handle> {
        let caller = &caller.clone().with_freshness(Freshness::Timeout);
        let object = self.core.object(directory);
        // A remembered name must not tell a caller more than a LOOKUP of the caller would.
        if self.core.look_right(caller, &object) == Some(true)
            && let Some(child) = self.core.current_name(directory, name)
        {
            return Ok(child);
        }
        let _permit = self.core.permit(1).await?;
        let looked = self.core.ask_lookup(caller, &object, name).await?;
        Ok(looked.node.handle)
    }

    /// Brings the target of a symbolic link.
    ///
    /// # Errors
    /// Those of READLINK; `Delay` as above.
    pub async fn bring_link(&self, caller: &Caller, handle: &Handle) -> Result<()> {
        let _permit = self.core.permit(1).await?;
        self.core.readlink(caller, handle).await.map(|_| ())
    }

    /// Brings a file that will be opened for reading: its lease, the caller's right, and these ranges of its
    /// bytes. Without a range, the first 256 KiB.
    ///
    /// # Errors
    /// Those of OPEN and READ; `Delay` as above.
    pub async fn bring_file(
        &self,
        caller: &Caller,
        place: &Place,
        ranges: &[Range<u64>],
    ) -> Result<Completed> {
        let first = 0..FILE_READ_MAX_BYTES;
        let ranges = if ranges.is_empty() { std::slice::from_ref(&first) } else { ranges };
        let length = |range: &Range<u64>| range.end.saturating_sub(range.start);
        let bytes = ranges.iter().map(length).fold(0, u64::saturating_add);
        let reads = bytes.div_ceil(self.core.chunk_bytes()).clamp(1, READS_MAX);
        let _permit = self.core.permit(reads as u32).await?;
        let caller = &caller.clone().with_freshness(Freshness::Timeout);
        let (object, mut fetched) = self.core.open_for(caller, place).await?;
        let mut was = Completed::Was;
        for range in ranges {
            match self.core.complete_range(caller, &object, range.clone(), reads).await? {
                Completed::Was => {}
                Completed::Now(bytes) => fetched += bytes,
                other => was = other,
            }
        }
        Ok(if was == Completed::Was && fetched > 0 { Completed::Now(fetched) } else { was })
    }
}

impl Core {
    /// A permit for so many calls ahead of readers.
    async fn permit(&self, count: u32) -> Result<Option<OwnedSemaphorePermit>> {
        match &self.prefetch {
            Some(prefetch) => prefetch.permits(count).await.map(Some).ok_or(Status::Delay.into()),
            None => Ok(self.orders.clone().acquire_many_owned(count).await.ok()),
        }
    }

    /// The listing of a directory, if it is here.
    fn listing_here(&self, caller: &Caller, directory: &Arc<Object>) -> Option<BroughtListing> {
        let complete = self.known_listing(caller, directory)?;
        let mut brought = BroughtListing { is_complete: true, was_here: true, ..BroughtListing::default() };
        for listed in complete.entries() {
            brought.add(&directory.handle, &listed.name, listed.handle);
        }
        Some(brought)
    }

    /// The names of the first part of a listing, and of the parts behind it.
    async fn list_on(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        mut part: ReadDir,
        mut listing: Listing,
    ) -> Result<BroughtListing> {
        let mut brought = BroughtListing::default();
        let mut pass = Pass::default();
        for parts in 1.. {
            for entry in &listing.entries {
                if pass.goes_round(entry.cookie) {
                    return Err(Status::BadCookie.into());
                }
                // The attributes of an entry are optional in a READDIR reply.
                let node = entry.node.filter(|node| node.attributes.is_some());
                brought.add(&directory.handle, &entry.name, node.map(|node| node.handle));
            }
            let Some(last) = listing.entries.last().filter(|_| !listing.eof && parts < PARTS_MAX) else {
                break;
            };
            part = ReadDir { cookie: last.cookie, verifier: listing.verifier, ..part };
            listing = self.run_readdir(caller, directory, part, Purpose::Guess).await?;
        }
        brought.is_complete = listing.eof;
        Ok(brought)
    }

    /// The object that a remembered name leads to, if a `stat` of the name would cost no call.
    fn current_name(&self, directory: &Handle, name: &Name) -> Option<Handle> {
        let entry = self.name_entry(directory, name)?;
        let Leads::To(child) = entry.leads else { return None };
        let holds = |state: &mut ObjectState| {
            state.epoch() == entry.epoch && !state.is_suspect() && state.current().is_some()
        };
        self.with(&self.glance(&child), holds).then_some(child)
    }

    /// Makes an open of this file for reading free of calls, if the origin lets it. Returns the file that the
    /// name leads to now, and the bytes that came.
    async fn open_for(&self, caller: &Caller, place: &Place) -> Result<(Arc<Object>, u64)> {
        self.know_limits(caller, &place.handle).await;
        let object = self.glance(&place.handle);
        let (leased, opened, may) = self.with(&object, |state| {
            let may = self.may(state, &caller.principal, AccessMask::READ);
            (state.leased().is_some(), !state.held.opens.is_empty(), may)
        });
        let look = self.look_right(caller, &self.glance(&place.directory));
        if may == Some(false) || look == Some(false) {
            return Err(Status::Access.into());
        }
        let stateful = self.has_state() == Some(true) && !self.leases_alone();
        if stateful && !leased && !opened && self.may_store() {
            return match self.open_ahead(caller, &place.directory, &place.name, &object).await {
                Ok(Some(ahead)) => Ok((ahead.object, ahead.bytes)),
                Err(error) if matches!(error.status, Status::Access | Status::Perm) => Err(error),
                // The READs find out more.
                Ok(None) | Err(_) => Ok((object, 0)),
            };
        }
        if may.is_none() {
            let accessed = self.ask_rights(caller, &object).await?;
            if !accessed.granted.contains(AccessMask::READ) {
                return Err(Status::Access.into());
            }
        }
        Ok((object, 0))
    }
}
