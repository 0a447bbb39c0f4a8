//! READDIR and READDIRPLUS.

use std::sync::Arc;

use tokio::time::timeout;
use vfs::{AccessMask, BringsDirectoryLease, Caller, Entry, Handle, Listing, Node, ReadDir, Result};

use crate::core::Core;
use crate::listing::{
    CompleteListing, ENTRY_BYTES, Gathering, KnownListing, LISTING_BYTES_MAX, Listed, Packed,
};
use crate::names::{directory_prefix, put_name};
use crate::object::{Before, ObjectState, Opening, Seen};
use crate::prefetch::LISTING_PATIENCE;
use crate::store::codec::{Reader, Writer};
use crate::store::{Batch, Table};
use crate::table::{Found, Object};
use crate::trust::Sent;
use crate::walk::Action;

const VERSION: u8 = 2;
/// READDIRs for the attributes of all files of a directory.
const SIBLINGS_PARTS_MAX: usize = 16;
/// Entries in one value of the index.
const PIECE_ENTRIES: usize = 256;

/// Why a READDIR is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A reader has asked, or will be answered from the reply.
    Reader,
    /// A reader will probably ask. See [`crate::guesses`].
    Guess,
}

impl Core {
    /// READDIR: from the complete listing if there is one, it is believed, and the caller may read it;
    /// otherwise one READDIR.
    pub async fn readdir(&self, caller: &Caller, directory: &Handle, part: ReadDir) -> Result<Listing> {
        let arrived = self.policy.event();
        let object = self.object(directory);
        let caller = &self.demanding(caller, &object);
        if let Some(listing) = self.remembered_part(caller, &object, &part, arrived).await? {
            self.counters.listings.hit();
            self.use_guess(caller, &object, || Action::Listed);
            return Ok(listing);
        }
        if part.cookie == 0 {
            self.step(caller, &object, || Action::Listed);
            if self.wait_for_listing(&object.handle).await
                && let Some(listing) = self.remembered_part(caller, &object, &part, arrived).await?
            {
                self.counters.listings.miss();
                self.use_guess(caller, &object, || Action::Listed);
                return Ok(listing);
            }
        }
        self.counters.listings.miss();
        self.ask_readdir(caller, &object, part).await
    }

    async fn remembered_part(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        part: &ReadDir,
        arrived: u64,
    ) -> Result<Option<Listing>> {
        let open = self.policy.is_open(caller) && part.cookie == 0;
        if self.known_part(caller, object, part, open).is_none() {
            return Ok(None);
        }
        let (leased, current) =
            self.with(object, |state| (state.leased().copied(), state.current().is_some()));
        let attributes = match leased {
            None if open || !current => Some(self.revalidate(caller, object, arrived).await?),
            leased => leased,
        };
        let Some((complete, entries, eof)) = self.known_part(caller, object, part, open) else {
            return Ok(None);
        };
        let bare = part.plus && mostly_bare(&entries);
        self.with(object, |state| {
            state.pass_listing(self.policy.event());
            state.listed_bare |= bare;
        });
        if bare {
            self.note_bare(caller, object);
        }
        Ok(Some(Listing {
            entries,
            verifier: complete.verifier,
            eof,
            directory: attributes,
            directory_lease: None,
        }))
    }

    /// This part of the complete listing and whether it is the last one, if it is what the caller needs. The
    /// directory itself may have changed.
    pub(super) fn known_part(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        part: &ReadDir,
        open: bool,
    ) -> Option<(Arc<CompleteListing>, Vec<Entry>, bool)> {
        let complete = self.usable_listing(caller, object, part, open)?;
        let (entries, eof) = complete.part(part.cookie, part.bytes, part.plus)?;
        let entries: Vec<Entry> = entries.map(|listed| self.entry(listed, part.plus)).collect();
        self.suffices(part, &complete, &entries).then_some((complete, entries, eof))
    }

    /// The complete listing, if the caller may have this part of it.
    fn usable_listing(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        part: &ReadDir,
        open: bool,
    ) -> Option<Arc<CompleteListing>> {
        let listing = self.with(object, |state| {
            let may = self.may(state, &caller.principal, AccessMask::READ) == Some(true);
            let usable = |listing: &&KnownListing| {
                // A change of ours in flight may have taken effect already.
                let as_read = listing.edits.is_empty() && !state.is_busy();
                may && !state.is_suspect() && !(open && listing.racy) && as_read
            };
            state.names.listing.as_ref().filter(usable).cloned()
        })?;
        let complete = match listing.complete {
            Some(complete) => complete,
            None => self.load_listing(object, listing.id)?,
        };
        let fits = (part.cookie == 0 || part.verifier == complete.verifier) && (complete.plus || !part.plus);
        fits.then_some(complete)
    }

    /// Is this part of the listing what the caller needs? If it wants attributes and most are not known, it
    /// would ask for those of each entry, one round trip after the other: one READDIR brings them all. A
    /// caller for which names suffice may not want them. If it does, [`Core::ask_siblings`] sends that
    /// READDIR.
    fn suffices(&self, part: &ReadDir, complete: &CompleteListing, entries: &[Entry]) -> bool {
        if !part.plus || !mostly_bare(entries) {
            return true;
        }
        part.names_suffice
            && self.prefetch.is_some()
            && complete.len() as u64 * ENTRY_BYTES <= LISTING_BYTES_MAX.into()
            && entries.iter().all(|entry| entry.file_type.is_some())
    }

    /// An entry of a reply from a listing. It has attributes only if they are recent (`acregmin`) or
    /// leased.
    fn entry(&self, listed: Listed, plus: bool) -> Entry {
        let (recent, _) = self.policy.timeouts(false);
        let mut file_type = None;
        let node = listed.handle.filter(|_| plus).map(|handle| {
            // The type of what a handle leads to never changes.
            let attributes = match self.memory.table().find(&handle, None) {
                Found::Awake(object) => self.with(&object, |state| {
                    file_type = state.attributes().map(|known| known.file_type);
                    state.current_within(Some(recent)).copied()
                }),
                Found::Resting(resting) => {
                    file_type = Some(resting.attributes().file_type);
                    resting.current_within(Some(recent)).copied()
                }
                Found::Nothing => None,
            };
            Node { handle, attributes }
        });
        let Listed { name, fileid, cookie, .. } = listed;
        Entry { name, fileid, cookie, node, file_type }
    }

    /// A reader asks for the attributes of a file. If it was given the names of the file's directory without
    /// attributes, reads the directory for those of all, or waits for that. True if replies came. One READDIR
    /// is enough, unless the origin sends less than was asked for.
    pub async fn ask_siblings(&self, caller: &Caller, file: &Arc<Object>) -> bool {
        let Some(prefetch) = &self.prefetch else { return false };
        let Some(place) = self.with(file, |state| state.place.clone()) else { return false };
        let Some(directory) = self.memory.table().peek(&place.directory) else { return false };
        if !self.with(&directory, |state| state.listed_bare) {
            return false;
        }
        let asking = timeout(LISTING_PATIENCE, prefetch.listings().begin(directory.handle)).await;
        let Ok(Some(asking)) = asking else { return asking.is_ok() };
        if !self.with(&directory, |state| std::mem::take(&mut state.listed_bare)) {
            return true;
        }
        self.step(caller, &directory, || Action::Listed);
        prefetch.walks().asked_siblings(caller, &directory.handle);
        let mut part = self.whole_listing(&directory);
        for _ in 0..SIBLINGS_PARTS_MAX {
            let Ok(listing) = self.run_readdir(caller, &directory, part, Purpose::Reader).await else {
                return false;
            };
            match listing.entries.last() {
                Some(last) if !listing.eof => {
                    part = ReadDir { cookie: last.cookie, verifier: listing.verifier, ..part };
                }
                _ => break,
            }
        }
        drop(asking);
        true
    }

    pub(super) async fn ask_readdir(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        part: ReadDir,
    ) -> Result<Listing> {
        self.know_limits(caller, &object.handle).await;
        if !self.wants_directory_lease(object) {
            let part = ReadDir { want_directory_lease: false, ..part };
            return self.run_readdir(caller, object, part, Purpose::Reader).await;
        }
        let (caller, object) = (caller.clone(), object.clone());
        let part = ReadDir { want_directory_lease: true, ..part };
        let work = move |core: Arc<Core>| async move {
            core.run_readdir(&caller, &object, part, Purpose::Reader).await
        };
        self.with_delegation(work).await
    }

    /// Sends a READDIR.
    pub async fn run_readdir(
        &self,
        caller: &Caller,
        object: &Arc<Object>,
        part: ReadDir,
        purpose: Purpose,
    ) -> Result<Listing> {
        let before = self.with(object, |state| Before::of(state));
        let sent = self.policy.sending();
        self.counters.readdir.bump();
        let mut result = self.below.readdir(caller, &object.handle, part).await;
        let lease = Listing::detach(&mut result);
        match &result {
            Ok(listing) => {
                let opening = if part.cookie == 0 { Opening::Yes } else { Opening::No };
                let seen = self.observe(object, listing.directory.as_ref(), &sent, opening);
                self.remember_success(caller, object, AccessMask::READ, &sent, &before);
                self.prime(object, listing, seen, &sent, &before);
                self.gather(object, &part, listing, purpose, (seen, &sent, &before));
                self.note_roster(object, &part, listing);
                if part.cookie == 0 && part.plus {
                    self.with(object, |state| state.listed_bare = false);
                }
            }
            Err(error) => self.note_error(object, error, &sent),
        }
        self.note_delegation(object, lease, &sent);
        result
    }

    /// Records the names and attributes in a listing.
    fn prime(
        &self,
        directory: &Arc<Object>,
        listing: &Listing,
        seen: Option<Seen>,
        sent: &Sent,
        before: &Before,
    ) {
        let within = self.seen_within(directory, seen, sent, before);
        let mut batch = Batch::default();
        let mut seen = Vec::new();
        for entry in &listing.entries {
            let Some(Node { handle, attributes: Some(attributes) }) = &entry.node else { continue };
            let child = self.object(handle);
            let learnt = self.learn_child(&child, Some(attributes), sent, Opening::No);
            let learnt = self.within(&child, learnt, within);
            if learnt.is_some() {
                put_name(&mut batch, &directory.handle, &entry.name, learnt);
                seen.push((child, &entry.name));
            }
        }
        let _names = directory.names.lock();
        if self.with(directory, |state| state.names.generation == before.names_generation) {
            self.disk.index().commit(batch);
            for (child, name) in seen {
                self.with(&child, |state| state.see_at(&directory.handle, name));
            }
        }
    }

    /// Adds a part to what has been gathered of a directory. When all parts are there, keeps the listing.
    fn gather(
        &self,
        object: &Arc<Object>,
        part: &ReadDir,
        listing: &Listing,
        purpose: Purpose,
        (seen, sent, before): (Option<Seen>, &Sent, &Before),
    ) {
        let gathered = self.with(object, |state| {
            if !belongs(state, seen, before) {
                state.names.gathering = None;
                return None;
            }
            let racy = state.is_racy(&self.policy, sent);
            let gathering = match state.names.gathering.take() {
                _ if part.cookie == 0 => Some(Gathering::begin(listing, part.plus, racy)),
                Some(mut gathering) => {
                    gathering.add(part.cookie, listing, part.plus, racy).then_some(gathering)
                }
                None => None,
            };
            let gathering = gathering.filter(|gathering| !gathering.is_too_large())?;
            if !listing.eof {
                state.names.gathering = Some(gathering);
                return None;
            }
            Some((gathering, state.epoch()))
        });
        let Some((gathering, epoch)) = gathered else { return };
        let (id, racy) = (self.policy.epoch(), gathering.racy);
        let guessed = (purpose == Purpose::Guess).then(|| self.policy.event());
        // Without the lock of the object: to sort a large listing takes a while.
        let complete = Arc::new(gathering.complete());
        let kept = self.with(object, |state| {
            let still = state.epoch() == epoch && belongs(state, None, &Before { epoch, ..*before });
            if still {
                let known = KnownListing::new(id, racy, Some(complete.clone()));
                state.names.listing = Some(KnownListing { guessed, ..known });
                state.index.changed = true;
            }
            still
        });
        if kept {
            self.memory.listings().loaded(object, complete.bytes());
            self.disk.index().commit(encode_listing(&object.handle, id, &complete));
        }
    }

    /// Records that a directory is empty, under a lease that is held, if `is_empty` says so.
    pub(super) fn note_empty(&self, object: &Arc<Object>, is_empty: impl FnOnce(&mut ObjectState) -> bool) {
        let (id, complete) =
            (self.policy.epoch(), Arc::new(CompleteListing::new([0; 8], true, Packed::default())));
        let noted = self.with(object, |state| {
            let noted = is_empty(state) && state.names_epoch().is_some() && !state.is_busy();
            if noted {
                state.names.listing = Some(KnownListing::new(id, false, Some(complete.clone())));
                state.index.changed = true;
            }
            noted
        });
        if noted {
            self.memory.listings().loaded(object, complete.bytes());
            self.disk.index().commit(encode_listing(&object.handle, id, &complete));
        }
    }

    pub fn load_listing(&self, object: &Arc<Object>, id: u64) -> Option<Arc<CompleteListing>> {
        let pieces = self.disk.index().get(Table::Listings, &piece_key(&object.handle, 0));
        let complete = pieces.and_then(|first| {
            let piece = |number| self.disk.index().get(Table::Listings, &piece_key(&object.handle, number));
            decode_listing(id, &first, piece)
        });
        let complete = complete.map(Arc::new);
        if let Some(complete) = &complete {
            self.memory.listings().loaded(object, complete.bytes());
        }
        self.with(object, |state| {
            let listing = state.names.listing.as_mut().filter(|listing| listing.id == id)?;
            match complete {
                Some(complete) => listing.complete = Some(complete.clone()),
                None => state.names.listing = None,
            }
            state.names.listing.as_ref()?.complete.clone()
        })
    }
}

/// Do most entries lack attributes?
fn mostly_bare(entries: &[Entry]) -> bool {
    let bare = |entry: &&Entry| entry.node.is_none_or(|node| node.attributes.is_none());
    entries.iter().filter(bare).count() * 2 > entries.len()
}

/// Does a reply belong to the directory's known state, without a change of ours in between?
fn belongs(state: &ObjectState, seen: Option<Seen>, before: &Before) -> bool {
    let current = state.is_of(seen, before) && !state.is_suspect();
    current && state.names.generation == before.names_generation
}

fn piece_key(directory: &Handle, number: u32) -> Vec<u8> {
    let mut key = directory_prefix(directory);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// A listing as values of the index. The first has the number of the listing and of its pieces.
fn encode_listing(directory: &Handle, id: u64, complete: &CompleteListing) -> Batch {
    let mut batch = Batch::default();
    let pieces = complete.pieces(PIECE_ENTRIES);
    let mut head = Writer::new(VERSION);
    head.u64(id);
    head.u64(u64::from_be_bytes(complete.verifier));
    head.bool(complete.plus);
    head.u32(pieces.len() as u32);
    batch.put(Table::Listings, piece_key(directory, 0), head.finish());
    for (number, piece) in (1..).zip(pieces) {
        let mut writer = Writer::new(VERSION);
        writer.u64(id);
        writer.bytes(piece);
        batch.put(Table::Listings, piece_key(directory, number), writer.finish());
    }
    batch
}

/// The number of the listing to which a value of the index belongs.
pub fn listing_id(value: &[u8]) -> Option<u64> {
    Reader::new(value, VERSION)?.u64()
}

fn decode_listing(id: u64, head: &[u8], piece: impl Fn(u32) -> Option<Vec<u8>>) -> Option<CompleteListing> {
    let mut reader = Reader::new(head, VERSION)?;
    if reader.u64()? != id {
        return None;
    }
    let (verifier, plus, pieces) = (reader.u64()?.to_be_bytes(), reader.bool()?, reader.u32()?);
    let mut entries = Packed::default();
    for number in 1..=pieces {
        let piece = piece(number)?;
        let mut reader = Reader::new(&piece, VERSION)?;
        if reader.u64()? != id {
            return None;
        }
        entries.add_piece(reader.bytes()?)?;
    }
    Some(CompleteListing::new(verifier, plus, entries))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_come_back_and_only_under_their_number() {
        let directory = Handle::new(b"d").unwrap();
        let mut entries = Packed::default();
        for n in 3..1000_u64 {
            let name = vfs::Name::new(format!("n{n}").as_bytes()).unwrap();
            entries.push(&name, n, n, n.is_multiple_of(2).then_some(&directory));
        }
        let complete = CompleteListing::new([7; 8], true, entries);
        let index = crate::store::Index::open(&tempfile::tempdir().unwrap().path().join("index")).unwrap();
        index.commit(encode_listing(&directory, 5, &complete));
        let head = index.get(Table::Listings, &piece_key(&directory, 0)).unwrap();
        let piece = |number| index.get(Table::Listings, &piece_key(&directory, number));
        let back = decode_listing(5, &head, piece).unwrap();
        assert_eq!(back.entries().collect::<Vec<_>>(), complete.entries().collect::<Vec<_>>());
        assert_eq!((back.verifier, back.plus), (complete.verifier, complete.plus));
        assert!(decode_listing(6, &head, piece).is_none());
        assert!(decode_listing(5, &head, |_| None).is_none());
    }
}
