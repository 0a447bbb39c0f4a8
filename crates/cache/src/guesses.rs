//! Guesses: reports the steps of readers to their walks, and makes the calls that they will probably need.
//! [`crate::walk`] decides which.
//!
//! A guess is a call that a reader would have needed, made earlier: under the reader's credential, by the
//! same functions, and believed no longer. It delays no reader:
//! - Guesses have half of the session's slots at most.
//! - A reader that needs a listing in flight waits for its reply, as if it had asked by itself.
//! - No guess is made while the origin does not answer, or when the process is about to end.
//!
//! A step is reported only when a call was needed or a guess was used. Other hits cost nothing.

mod companions;

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout};
use vfs::{
    AccessMask, Attributes, Caller, FileType, Freshness, Handle, Listing, Name, OpenRequest, Owner, ReadDir,
    Result, Share, Verifier,
};

use crate::core::Core;
use crate::data::BLOCK_BYTES;
use crate::filesystem::directory::Purpose;
use crate::listing::{CompleteListing, ENTRY_BYTES, KnownListing, LISTING_BYTES_MAX};
use crate::object::ObjectState;
use crate::prefetch::LISTING_PATIENCE;
use crate::singleflight::Asking;
use crate::store::Place;
use crate::table::{Found, Object};
use crate::upstream::piggyback::Brought;
use crate::walk::roster::{Entry, Kind, Roster};
use crate::walk::{Action, FILE_READ_MAX_BYTES, Guess, OLD_MIN, Outcome, Step, Target};

/// The bytes that a guessed READDIR asks for. The reader asks for the rest of a larger directory.
const LISTING_BYTES_MIN: u32 = 32 << 10;
/// The bytes of an entry in a directory of the origin, if its name is short (ext4). A READDIR that asks for
/// too few bytes brings a part of the names, which does not tell those that are absent.
const STORED_ENTRY_BYTES: u64 = 12;
/// Entries whose attributes tell whether those of a listing are still believed.
const SAMPLE: usize = 16;
/// The bytes that a call other than a READ brings, approximately.
const CALL_BYTES: u64 = 256;

/// What an open of a file for reading would ask the origin for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// An OPEN, or the data.
    Open,
    /// Whether the reader may.
    Rights,
}

/// A file that was opened before its reader came.
pub struct OpenedAhead {
    /// The file that the name leads to now.
    pub object: Arc<Object>,
    /// Bytes that came with the OPEN.
    pub bytes: u64,
    /// The OPEN brought a lease.
    pub leased: bool,
}

impl Core {
    /// A reader takes a step in a directory, which needs a call.
    pub fn step(&self, caller: &Caller, directory: &Arc<Object>, action: impl FnOnce() -> Action) {
        let Some(prefetch) = &self.prefetch else { return };
        let action = action();
        let (place, bytes) = self.with(directory, |state| {
            // A guess of its listing may still save the call for the next name.
            state.guessed &= !action.lists();
            (state.place.clone(), state.attributes().map_or(0, |known| known.size))
        });
        let step = Step {
            directory: directory.handle,
            at: place.map(|Place { directory, name }| (directory, name)),
            directory_bytes: bytes,
            action,
        };
        prefetch.walks().step(caller, &step, Instant::now());
        self.make_guesses();
    }

    /// The same, for the name under which an object was last seen.
    pub fn step_at(&self, caller: &Caller, object: &Arc<Object>, opened: bool) {
        if self.prefetch.is_none() {
            return;
        }
        let Some(Place { directory, name }) = self.with(object, |state| state.place.clone()) else { return };
        if opened {
            self.expect_companions(caller, &directory, &name);
        }
        let action = || if opened { Action::Opened(name, object.handle) } else { Action::Looked(name) };
        self.step(caller, &self.glance(&directory), action);
    }

    /// A file is about to be opened at the origin.
    pub fn step_open(&self, caller: &Caller, request: &OpenRequest) {
        if self.prefetch.is_none() || request.access != Share::READ || request.create.is_some() {
            return;
        }
        let Some(name) = &request.name else {
            return self.step_at(caller, &self.glance(&request.handle), true);
        };
        self.expect_companions(caller, &request.handle, name);
        let file = match self.name_entry(&request.handle, name).map(|entry| entry.leads) {
            Some(crate::names::Leads::To(file)) => file,
            _ => request.handle,
        };
        self.step(caller, &self.glance(&request.handle), || Action::Opened(name.clone(), file));
    }

    /// A file of an origin without opens was opened.
    pub fn step_opened(&self, caller: &Caller, request: &OpenRequest, file: &Handle) {
        if self.prefetch.is_none() || request.access != Share::READ || request.create.is_some() {
            return;
        }
        let file = self.glance(file);
        match self.with(&file, |state| (std::mem::take(&mut state.guessed), state.is_complete())) {
            (true, _) => self.used_file(caller, &file),
            (false, false) => self.step_at(caller, &file, true),
            (false, true) => {}
        }
    }

    /// A reader was served from this directory. If its listing was a guess, the guess was right.
    pub fn use_guess(&self, caller: &Caller, directory: &Arc<Object>, action: impl FnOnce() -> Action) {
        if self.prefetch.is_some() && self.with(directory, |state| std::mem::take(&mut state.guessed)) {
            self.counters.guesses_used.bump();
            self.step(caller, directory, action);
        }
    }

    /// A reader was served from this file. If the file was a guess, the guess was right.
    pub fn use_guessed_file(&self, caller: &Caller, file: &Arc<Object>) {
        if self.prefetch.is_some() && self.with(file, |state| std::mem::take(&mut state.guessed)) {
            self.used_file(caller, file);
        }
    }

    /// A reader was served from a file that was a guess.
    pub fn used_file(&self, caller: &Caller, file: &Arc<Object>) {
        self.counters.guesses_used.bump();
        self.step_at(caller, file, true);
    }

    /// A reader is given names of a directory without attributes. Its walk needs no call to know them.
    pub fn note_bare(&self, caller: &Caller, directory: &Arc<Object>) {
        let Some(prefetch) = &self.prefetch else { return };
        if prefetch.walks().lacks_roster(&directory.handle) {
            self.remember_roster(caller, directory);
            self.make_guesses();
        }
    }

    /// Tells walks which entries a directory had when it was listed last, unless it is large.
    fn remember_roster(&self, caller: &Caller, directory: &Arc<Object>) {
        let Some(prefetch) = &self.prefetch else { return };
        let is_small = |known: &Attributes| known.size <= LISTING_BYTES_MAX.into();
        if !self.with(directory, |state| state.attributes().is_some_and(is_small)) {
            return;
        }
        let fits =
            |complete: &CompleteListing| complete.len() as u64 * ENTRY_BYTES <= LISTING_BYTES_MAX.into();
        if let Some(complete) = self.complete_listing(caller, directory).filter(|complete| fits(complete)) {
            let roster = Arc::new(self.roster_of(&complete));
            prefetch.walks().remembered(&directory.handle, &roster, Instant::now());
        }
    }

    /// If the listing of this directory is guessed now, waits for the reply, as a reader that needs the
    /// listing itself. False if it is not.
    pub async fn wait_for_listing(&self, directory: &Handle) -> bool {
        match &self.prefetch {
            Some(prefetch) => prefetch.listings().wait(directory).await,
            None => false,
        }
    }

    /// The same for a reader that can do without it: not for long. False if it did not come.
    pub async fn wait_for_guess(&self, directory: &Handle) -> bool {
        timeout(LISTING_PATIENCE, self.wait_for_listing(directory)).await.unwrap_or(false)
    }

    /// The same for the listing of the directory that an object is in.
    pub async fn wait_for_siblings(&self, object: &Arc<Object>) -> bool {
        match self.with(object, |state| state.place.as_ref().map(|place| place.directory)) {
            Some(directory) => self.wait_for_guess(&directory).await,
            None => false,
        }
    }

    /// A READDIR has brought entries of a directory.
    pub fn note_roster(&self, directory: &Arc<Object>, part: &ReadDir, listing: &Listing) {
        let Some(prefetch) = &self.prefetch else { return };
        if !prefetch.walks().has(&directory.handle) {
            return;
        }
        if !part.plus {
            prefetch.walks().want(&directory.handle);
        } else if listing.eof
            && let Some(complete) =
                self.with(directory, |state| state.names.listing.as_ref()?.complete.clone())
        {
            let roster = self.roster_of(&complete);
            prefetch.walks().listed(&directory.handle, &Arc::new(roster), Instant::now());
        } else if part.cookie == 0 {
            let entry = |entry: &vfs::Entry| {
                let handle = entry.node?.handle;
                Some(Entry { name: entry.name.clone(), handle, kind: self.kind_of(&handle)? })
            };
            let roster = Roster::new(listing.entries.iter().filter_map(entry).collect(), listing.eof);
            prefetch.walks().listed(&directory.handle, &Arc::new(roster), Instant::now());
        }
        self.make_guesses();
    }

    /// The kind of an object. An object at rest stays at rest.
    fn kind_of(&self, handle: &Handle) -> Option<Kind> {
        match self.memory.table().find(handle, None) {
            Found::Awake(object) => self.with(&object, kind_of),
            Found::Resting(resting) => Some(kind_from(resting.attributes(), resting.is_complete())),
            Found::Nothing => self.with(&self.glance(handle), kind_of),
        }
    }

    fn roster_of(&self, complete: &CompleteListing) -> Roster {
        let entry = |listed: crate::listing::Listed| {
            let handle = listed.handle?;
            Some(Entry { kind: self.kind_of(&handle)?, name: listed.name, handle })
        };
        Roster::new(complete.entries().filter_map(entry).collect(), true)
    }

    /// Makes as many guesses as there may be now.
    pub fn make_guesses(&self) {
        let Some(prefetch) = &self.prefetch else { return };
        let Some(core) = self.share() else { return };
        let silent = self.link.outage().is_silent() || self.is_away();
        if silent {
            return;
        }
        let demanded = self.demanded_bytes();
        let guesses: Vec<_> = {
            let mut walks = prefetch.walks();
            // A guess that got no permit would be lost: its walk makes it once. Permits that are left return
            // under the lock, so another reader that takes a step finds them.
            let mut permits = prefetch.permits_now();
            let guesses = walks.guesses(demanded, permits.len(), Instant::now());
            guesses.into_iter().zip(permits.drain(..)).collect()
        };
        for (guess, permit) in guesses {
            // A reader that needs this listing waits for the guess from now on.
            let asking = match &guess.target {
                Target::Listing(directory) => prefetch.listings().try_begin(*directory),
                Target::File { .. } => None,
            };
            tokio::spawn(core.clone().make_guess(guess, permit, asking));
        }
    }

    /// Bytes that readers have asked the origin for.
    fn demanded_bytes(&self) -> u64 {
        let guessed = self.counters.guessed_bytes.get();
        let calls = self.counters.snapshot().upstream.total();
        self.counters.fetched_bytes.get().saturating_sub(guessed) + calls * CALL_BYTES
    }

    async fn make_guess(
        self: Arc<Core>,
        guess: Guess,
        permit: OwnedSemaphorePermit,
        asking: Option<Asking<Handle>>,
    ) {
        let caller = guess.caller.clone().with_freshness(Freshness::Timeout);
        let outcome = match &guess.target {
            Target::Listing(directory) => match asking {
                Some(asking) => self.guess_listing(&caller, directory, guess.bytes, asking).await,
                // Somebody asks already.
                None => Outcome::Nothing,
            },
            Target::File { directory, name, handle } => {
                self.guess_file(&caller, directory, name, handle).await
            }
        };
        drop(permit);
        if let Some(prefetch) = &self.prefetch {
            prefetch.walks().done(&guess, outcome, Instant::now());
        }
        self.make_guesses();
    }

    async fn guess_listing(
        &self,
        caller: &Caller,
        directory: &Handle,
        bytes: u64,
        asking: Asking<Handle>,
    ) -> Outcome {
        let Some(prefetch) = &self.prefetch else { return Outcome::Nothing };
        let object = self.glance(directory);
        if let Some(roster) = self.known_roster(caller, &object) {
            prefetch.walks().listed(directory, &Arc::new(roster), Instant::now());
            return Outcome::Nothing;
        }
        self.remember_roster(caller, &object);
        self.make_guesses();
        let part = self.whole_listing(&object);
        let part = ReadDir { bytes: part.bytes.max((bytes as u32).min(LISTING_BYTES_MAX)), ..part };
        self.counters.guesses.bump();
        // The lease comes with ACCESS: with READDIR, the reply would have to fit into a slot's reply cache.
        let rights = async {
            let leases = self.may_bring_lease(&object);
            if leases || self.look_right(caller, &object).is_none() {
                let _ = self.ask_access(caller, &object).await;
            }
        };
        self.know_limits(caller, directory).await;
        let listing = self.run_readdir(caller, &object, part, Purpose::Guess);
        let (listing, ()) = tokio::join!(listing, rights);
        let Ok(listing) = listing else { return Outcome::Nothing };
        self.with(&object, |state| state.guessed = true);
        drop(asking);
        Outcome::Listing { bytes: CALL_BYTES + ENTRY_BYTES * listing.entries.len() as u64 }
    }

    /// A READDIR for the whole listing of a directory, by the size that the origin tells. A part of a listing
    /// is of little use: it does not tell which names it lacks.
    pub fn whole_listing(&self, directory: &Arc<Object>) -> ReadDir {
        let (size, entries) = self.with(directory, |state| {
            let complete = state.names.listing.as_ref().and_then(|listing| listing.complete.as_ref());
            (state.attributes().map_or(0, |known| known.size), complete.map_or(0, |all| all.len()))
        });
        ReadDir {
            cookie: 0,
            verifier: Verifier::default(),
            bytes: listing_bytes(size, entries as u64),
            plus: true,
            want_directory_lease: false,
            names_suffice: false,
        }
    }

    fn known_roster(&self, caller: &Caller, directory: &Arc<Object>) -> Option<Roster> {
        self.known_listing(caller, directory).map(|complete| self.roster_of(&complete))
    }

    /// The listing of a directory, if a reader would get it, with attributes, without a call.
    pub fn known_listing(&self, caller: &Caller, directory: &Arc<Object>) -> Option<Arc<CompleteListing>> {
        let complete = self.complete_listing(caller, directory)?;
        // Under a lease on the directory the timeouts of its files decide. Without one, a `stat` of a file is
        // answered from the last second alone.
        let age_max = self.with(directory, |state| {
            state.current()?;
            Some(state.leased().is_none().then_some(OLD_MIN))
        })?;
        let current = |handle: Handle| match self.memory.table().find(&handle, None) {
            Found::Awake(object) => self.with(&object, |state| state.current_within(age_max).is_some()),
            Found::Resting(resting) => resting.current_within(age_max).is_some(),
            // The attributes of the index alone are not current.
            Found::Nothing => false,
        };
        let known = complete.handles().take(SAMPLE).all(current);
        known.then_some(complete)
    }

    /// The listing of a directory as it was read last, if the caller may read the directory.
    fn complete_listing(&self, caller: &Caller, directory: &Arc<Object>) -> Option<Arc<CompleteListing>> {
        let unread = |listing: &KnownListing| listing.complete.is_none().then_some(listing.id);
        if let Some(id) = self.with(directory, |state| state.names.listing.as_ref().and_then(unread)) {
            self.load_listing(directory, id);
        }
        self.with(directory, |state| {
            let may = self.may(state, &caller.principal, AccessMask::READ) == Some(true);
            let listing = state.names.listing.as_ref().filter(|listing| listing.edits.is_empty() && may)?;
            listing.complete.clone().filter(|complete| complete.plus)
        })
    }

    async fn guess_file(&self, caller: &Caller, directory: &Handle, name: &Name, file: &Handle) -> Outcome {
        let object = self.glance(file);
        let needs = |state: &mut ObjectState| {
            let quiet =
                state.delayed.writes.is_none() && !state.data.is_being_written() && state.in_flight() == 0;
            if !quiet || !self.takes(state) {
                return Needs::Nothing;
            }
            if state.leased().is_some() && state.is_complete() {
                let may = self.may(state, &caller.principal, AccessMask::READ);
                return if may.is_none() { Needs::Rights } else { Needs::Nothing };
            }
            if state.held.lease.is_none() && state.held.opens.is_empty() {
                Needs::Open
            } else {
                Needs::Nothing
            }
        };
        if !self.may_store() {
            return Outcome::Nothing;
        }
        match (self.with(&object, needs), self.has_state()) {
            (Needs::Open, Some(true)) if !self.leases_alone() => {
                match self.open_ahead(caller, directory, name, &object).await {
                    Ok(Some(OpenedAhead { object, bytes, leased })) => {
                        self.with(&object, |state| state.guessed = leased);
                        Outcome::File { bytes: bytes + CALL_BYTES, leased }
                    }
                    Ok(None) | Err(_) => Outcome::Nothing,
                }
            }
            (Needs::Open, Some(false)) => self.guess_data(caller, &object).await,
            (Needs::Rights, Some(true)) => {
                self.counters.guesses.bump();
                match self.ask_rights(caller, &object).await {
                    Ok(_) => self.with(&object, |state| state.guessed = true),
                    Err(_) => return Outcome::Nothing,
                }
                Outcome::File { bytes: CALL_BYTES, leased: true }
            }
            _ => Outcome::Nothing,
        }
    }

    /// Opens a file that is about to be read: brings its lease and its first bytes in one round trip. `None`
    /// if the file is being opened already.
    ///
    /// # Errors
    /// Those of OPEN.
    pub async fn open_ahead(
        &self,
        caller: &Caller,
        directory: &Handle,
        name: &Name,
        object: &Arc<Object>,
    ) -> Result<Option<OpenedAhead>> {
        let Ok(turn) = object.turn.clone().try_lock_owned() else { return Ok(None) };
        let owner = Owner(bytes::Bytes::new());
        let request = OpenRequest::new(*directory, Some(name.clone()), owner, Share::READ);
        let request = Core::open_below(&request);
        let range = self.with(object, |state| {
            let size = state.attributes().map_or(0, |known| known.size);
            let end = size.checked_next_multiple_of(BLOCK_BYTES)?.min(FILE_READ_MAX_BYTES);
            (end > 0 && state.data.valid() == state.data.racy()).then_some(0..end)
        });
        self.counters.guesses.bump();
        let mut granted = self.open_with_piggyback(caller, request, Some(turn), range).await?;
        let brought = granted.brought.take();
        let bytes = brought.as_ref().map_or(0, Brought::len);
        self.counters.guessed_bytes.add(bytes);
        if let Some(brought) = brought {
            brought.store_unasked().await;
        }
        let leased = self.with(&granted.object, |state| state.held.lease.is_some());
        Ok(Some(OpenedAhead { object: granted.object, bytes, leased }))
    }

    /// Reads a small file from an origin without opens.
    async fn guess_data(&self, caller: &Caller, object: &Arc<Object>) -> Outcome {
        let chunk = self.chunk_bytes();
        let planned = self.with(object, |state| {
            let known = *state.current()?;
            let small = (1..=FILE_READ_MAX_BYTES).contains(&known.size);
            if known.file_type != FileType::Regular || !small || !state.data.valid().is_empty() {
                return None;
            }
            let sent = self.policy.sending();
            let racy = state.is_racy(&self.policy, &sent);
            Some((
                state.data.plan_ahead(&(0..known.size), known.size, chunk, racy, sent.sequence),
                known.size,
            ))
        });
        let Some((fetches, bytes)) = planned else { return Outcome::Nothing };
        for fetch in fetches {
            self.counters.guesses.bump();
            if let Some(task) = self.send(caller, object, fetch, None, false) {
                let _ = task.await;
            }
        }
        self.counters.guessed_bytes.add(bytes);
        self.with(object, |state| state.guessed = true);
        Outcome::File { bytes: bytes + CALL_BYTES, leased: true }
    }
}

/// The bytes to ask for, so that the listing of a directory fits into one reply: by its size at the origin,
/// and by the entries that it had.
fn listing_bytes(directory_bytes: u64, entries: u64) -> u32 {
    let entries = (directory_bytes / STORED_ENTRY_BYTES).max(entries);
    let bytes = u32::try_from(entries.saturating_mul(ENTRY_BYTES)).unwrap_or(u32::MAX);
    bytes.clamp(LISTING_BYTES_MIN, LISTING_BYTES_MAX)
}

/// The kind of an object, if it is known. A file has as many bytes as a guess of it would bring.
fn kind_of(state: &mut ObjectState) -> Option<Kind> {
    let known = state.attributes()?;
    Some(kind_from(known, state.is_complete()))
}

fn kind_from(known: &Attributes, is_complete: bool) -> Kind {
    match known.file_type {
        FileType::Directory => Kind::Directory,
        FileType::Regular if is_complete => Kind::File { bytes: 0 },
        FileType::Regular => Kind::File { bytes: known.size },
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On ext4 an entry takes 8 bytes and its name, in steps of four. In a reply of version 4, an entry with
    /// attributes takes 200 to 240 bytes and its name.
    #[test]
    fn a_full_block_of_a_directory_fits_into_one_reply() {
        for name in 6..=255_u64 {
            let entries = 4096 / (8 + name).next_multiple_of(4);
            assert!(entries * (240 + name) <= listing_bytes(4096, 0).into(), "names of {name} bytes");
        }
        assert_eq!(listing_bytes(0, 0), LISTING_BYTES_MIN);
        assert_eq!(listing_bytes(u64::MAX, u64::MAX), LISTING_BYTES_MAX);
    }
}
