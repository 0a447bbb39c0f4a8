//! Replies while the origin does not answer: the last known state, if `offline=read` allows that. With
//! [`Options::puts_off`](crate::Options::puts_off), `Delay` in place of a wait.
//!
//! These requests are answered: attributes, names, complete directory listings, link targets, and data of
//! **complete** files. The caller must have had the right when the origin was last asked. Nothing is made
//! up. If something is not known, the request waits as without the option, and so does every request that
//! would change something. These replies leave the cache's state as it is. The first call after the outage
//! is judged as if there had been none.
//!
//! Data from an earlier process is compared with its checksums before its first use, unless the origin has
//! confirmed the file since. A write of ours reaches this disk before the index, and the process may have
//! been killed in between.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use vfs::{
    AccessMask, Accessed, Attributes, Caller, Entry, Error, FsStat, Handle, Listing, Looked, Name, Node,
    OpenRequest, Opened, Read, ReadDir, Result, Share, StateidBasis, Status,
};

use crate::core::Core;
use crate::names::Leads;
use crate::object::ObjectState;
use crate::options::Offline;
use crate::store::Pin;
use crate::table::Object;
use crate::upstream::needed;

impl Core {
    /// Runs an operation that may need the origin. If an outage is on, or begins meanwhile, answers from
    /// what is known. If nothing is known, goes on waiting, or puts the request off.
    pub async fn or_offline<T>(
        &self,
        online: impl Future<Output = Result<T>>,
        offline: impl Fn() -> Option<Result<T>>,
    ) -> Result<T> {
        self.or_offline_after(online, std::future::ready(()), offline).await
    }

    /// The same. `before` runs first when the answer comes from what is known.
    pub async fn or_offline_after<T>(
        &self,
        online: impl Future<Output = Result<T>>,
        before: impl Future<Output = ()>,
        offline: impl Fn() -> Option<Result<T>>,
    ) -> Result<T> {
        if !self.link.outage().is_possible() {
            return online.await;
        }
        let mut online = pin!(online);
        let begun = !self.link.outage().is_on();
        if begun {
            tokio::select! {
                biased;
                result = &mut online => return result,
                () = self.link.outage().begins() => {}
            }
        }
        if self.options.offline == Offline::Read {
            let mut before = pin!(before);
            tokio::select! {
                biased;
                () = &mut before => {}
                result = &mut online, if begun => return result,
            }
            if let Some(answer) = offline() {
                self.counters.offline.bump();
                return answer;
            }
        }
        if !self.options.puts_off {
            return online.await;
        }
        // What needs no call is answered all the same.
        tokio::select! {
            biased;
            result = &mut online => result,
            () = std::future::ready(()) => Err(Status::Delay.into()),
        }
    }

    /// Runs an operation that may need the origin, and of which nothing is known without it.
    pub async fn or_put_off<T>(&self, online: impl Future<Output = Result<T>>) -> Result<T> {
        self.or_offline(online, || None).await
    }

    /// May an open be sent in an outage? An OPEN is not given up once it was sent, so few are: of files that
    /// are known, one at a time.
    pub fn may_open(&self, request: &OpenRequest) -> Result<()> {
        if !self.puts_off() {
            return Ok(());
        }
        let is_known = match &request.name {
            None => true,
            Some(name) => self.leads_to(&self.object(&request.handle), name),
        };
        if request.create.is_none() && is_known { Ok(()) } else { Err(Status::Delay.into()) }
    }

    /// GETATTR.
    pub fn offline_attributes(&self, handle: &Handle) -> Option<Attributes> {
        let object = self.object(handle);
        self.with(&object, |state| known(state).copied())
    }

    /// ACCESS.
    pub fn offline_access(&self, caller: &Caller, handle: &Handle, asked: AccessMask) -> Option<Accessed> {
        let object = self.object(handle);
        self.with(&object, |state| {
            let attributes = *known(state)?;
            let granted = state.rights.last(&caller.principal)?;
            Some(Accessed { granted: granted & asked, attributes: Some(attributes) })
        })
    }

    /// LOOKUP.
    pub fn offline_lookup(&self, caller: &Caller, directory: &Handle, name: &Name) -> Option<Result<Looked>> {
        let object = self.object(directory);
        if !self.might(caller, &object, AccessMask::LOOKUP) {
            return None;
        }
        let found = |child: &Handle| {
            let node = Node { handle: *child, attributes: Some(self.offline_attributes(child)?) };
            Some(Ok(Looked { node, directory: None, directory_lease: None }))
        };
        let Some(entry) = self.steady_entry(&object, name) else {
            let complete = self.offline_listing(&object)?;
            return match complete.find(name) {
                Some(listed) => found(listed.handle.as_ref()?),
                None => Some(Err(self.absent(&object))),
            };
        };
        match entry.leads {
            Leads::Nowhere => {
                let holds = self.with(&object, |state| state.epoch() == entry.epoch);
                holds.then(|| Err(self.absent(&object)))
            }
            Leads::To(child) => {
                let object = self.object(&child);
                let holds = self.with(&object, |state| state.epoch() == entry.epoch && !state.is_suspect());
                if holds { found(&child) } else { None }
            }
        }
    }

    fn absent(&self, directory: &Arc<Object>) -> Error {
        let attributes = self.with(directory, |state| known(state).copied());
        Error::from(Status::NoEnt).with(attributes)
    }

    /// READLINK.
    pub fn offline_link(&self, caller: &Caller, handle: &Handle) -> Option<(Bytes, Option<Attributes>)> {
        let object = self.object(handle);
        if !self.might(caller, &object, AccessMask::READ) {
            return None;
        }
        self.with(&object, |state| Some((state.link.clone()?, known(state).copied())))
    }

    /// READDIR.
    pub fn offline_readdir(&self, caller: &Caller, directory: &Handle, part: &ReadDir) -> Option<Listing> {
        let object = self.object(directory);
        if !self.might(caller, &object, AccessMask::READ) {
            return None;
        }
        let complete = self.offline_listing(&object)?;
        if part.cookie != 0 && part.verifier != complete.verifier {
            return None;
        }
        let (entries, eof) = complete.part(part.cookie, part.bytes, part.plus)?;
        let node = |handle: Handle| Node { handle, attributes: self.offline_attributes(&handle) };
        let entry = |listed: crate::listing::Listed| Entry {
            name: listed.name,
            fileid: listed.fileid,
            cookie: listed.cookie,
            node: listed.handle.filter(|_| part.plus).map(node),
            file_type: None,
        };
        let entries = entries.map(entry).collect();
        let directory = self.with(&object, |state| known(state).copied());
        Some(Listing { entries, verifier: complete.verifier, eof, directory, directory_lease: None })
    }

    fn offline_listing(&self, directory: &Arc<Object>) -> Option<Arc<crate::listing::CompleteListing>> {
        let listing = self.with(directory, |state| {
            state.names.listing.clone().filter(|listing| !state.is_suspect() && listing.edits.is_empty())
        })?;
        listing.complete.or_else(|| self.load_listing(directory, listing.id))
    }

    /// READ of a complete file: the range of the file on this disk, and whether it reaches the end.
    pub fn offline_read(
        &self,
        caller: &Caller,
        handle: &Handle,
        offset: u64,
        count: u32,
    ) -> Option<OfflineRead> {
        let object = self.object(handle);
        if !self.might(caller, &object, AccessMask::READ) {
            return None;
        }
        let read = self.with(&object, |state| {
            let size = known(state)?.size;
            if !state.is_complete() || !state.is_proven() {
                return None;
            }
            let end = offset.saturating_add(u64::from(count)).min(size);
            let range = offset.min(size)..end;
            let pin = state.data.file().filter(|_| !range.is_empty()).map(|file| file.pin(range.clone()));
            (range.is_empty() || pin.is_some()).then_some(OfflineRead { pin, eof: end == size })
        })?;
        self.tell_age(handle);
        Some(read)
    }

    /// OPEN for reading of what exists. A file must be complete.
    pub fn offline_open(&self, caller: &Caller, request: &OpenRequest) -> Option<Result<Opened>> {
        if request.create.is_some()
            || request.access != Share::READ
            || !request.deny.is_empty()
            || request.reclaim
        {
            return None;
        }
        let handle = match &request.name {
            None => request.handle,
            Some(name) => match self.offline_lookup(caller, &request.handle, name)? {
                Ok(looked) => looked.node.handle,
                Err(error) => return Some(Err(error)),
            },
        };
        let object = self.object(&handle);
        if !self.might(caller, &object, needed(request.access)) {
            return None;
        }
        let opened = self.with(&object, |state| {
            let attributes = *known(state).filter(|_| state.is_complete() && state.is_proven())?;
            Some(self.opened_here(caller, request, &object, state, attributes))
        })?;
        self.tell_age(&handle);
        Some(Ok(opened))
    }

    /// Compares the data of the file that an OPEN would return with its checksums, if that is still to be
    /// done.
    pub async fn prove_named(&self, caller: &Caller, request: &OpenRequest) {
        if request.create.is_some() || request.access != Share::READ {
            return;
        }
        let handle = match &request.name {
            None => Some(request.handle),
            Some(name) => {
                let found = self.offline_lookup(caller, &request.handle, name);
                found.and_then(|looked| Some(looked.ok()?.node.handle))
            }
        };
        if let Some(handle) = handle {
            self.prove(&handle).await;
        }
    }

    /// FSSTAT: the last known answer.
    pub fn offline_fsstat(&self) -> Option<FsStat> {
        self.link.fsstat()
    }

    /// Did the caller have this right when the origin was last asked?
    fn might(&self, caller: &Caller, object: &Arc<Object>, bits: AccessMask) -> bool {
        self.with(object, |state| {
            state.rights.last(&caller.principal).is_some_and(|granted| granted.contains(bits))
        })
    }
}

/// The answer to a READ without the origin.
pub struct OfflineRead {
    /// The bytes, if there are any.
    pub pin: Option<Pin>,
    /// The bytes reach the end of the file.
    pub eof: bool,
}

impl Core {
    /// READ, from what is known if the origin does not answer.
    pub async fn read_or_offline(
        &self,
        (caller, by): (&Caller, StateidBasis),
        handle: &Handle,
        offset: u64,
        count: u32,
    ) -> Result<Read> {
        if !self.link.outage().is_possible() {
            return self.read((caller, by), handle, offset, count).await;
        }
        let online = Box::pin(async { self.read((caller, by), handle, offset, count).await.map(Ok) });
        let offline = || self.offline_read(caller, handle, offset, count).map(|read| Ok(Err(read)));
        match self.or_offline_after(online, Box::pin(self.prove(handle)), offline).await? {
            Ok(read) => Ok(read),
            Err(OfflineRead { pin: None, eof }) => {
                Ok(Read { data: vfs::Data::default(), eof, attributes: None })
            }
            Err(OfflineRead { pin: Some(pin), eof }) => {
                self.hit_offline(&self.object(handle), pin, eof).await
            }
        }
    }
}

/// The last known attributes of an object, believed or not. None while writes of the file are delayed: then
/// the request waits.
fn known(state: &ObjectState) -> Option<&Attributes> {
    state.attributes().filter(|_| !state.is_suspect() && state.delayed.writes.is_none())
}
