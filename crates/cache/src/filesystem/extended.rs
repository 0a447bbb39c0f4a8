//! Features of v4 that v3 lacks: access control lists, extended attributes, extents and copies.
//!
//! The requests go to the origin. A change counts like any other change of ours, and the bytes that it
//! touches are no longer known here. Delayed writes of the files are sent first. Where a request replaces
//! bytes, they are also made durable first, so that they are never sent again after it.
//!
//! A small copy of bytes that are here is an exception: it is a delayed write like any other.

use std::sync::Arc;

use bytes::Bytes;
use vfs::{
    Acl, Caller, Copied, Extent, Handle, ListedXattrs, Place, Result, Share, Sought, Stability, Status, Wcc,
    Written, XattrHow, XattrName,
};

use crate::changes::{Change, OwnWrite};
use crate::core::Core;
use crate::filler::to_bytes;
use crate::table::Object;
use crate::upstream::Use;
use crate::writes::{Delayed, Level};

/// The change to the space of a range.
enum Space {
    Allocate,
    Deallocate,
}

impl Core {
    /// The access control list.
    pub async fn acl(&self, caller: &Caller, handle: &Handle) -> Result<Acl> {
        self.counters.extended.bump();
        self.below.acl(caller, handle).await
    }

    /// Sets the access control list.
    pub async fn set_acl(&self, caller: &Caller, handle: &Handle, acl: &Acl) -> Result<Wcc> {
        let object = self.object(handle);
        // A pending mode must not follow the list: it would change it.
        self.flush_writes(&object, Level::Stable).await;
        let _telling = self.tell_opens_of(Some(&object)).await;
        self.with(&object, |state| state.touch_rights(&self.policy));
        let change = Change::begin_synced(self, &object).await;
        self.counters.extended.bump();
        let result = self.below.set_acl(caller, handle, acl).await;
        change.ended(result.as_ref());
        self.with(&object, |state| state.touch_rights(&self.policy));
        result
    }

    /// The value of an extended attribute.
    pub async fn getxattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Bytes> {
        self.counters.extended.bump();
        self.below.getxattr(caller, handle, name).await
    }

    /// Sets an extended attribute.
    pub async fn setxattr(
        &self,
        caller: &Caller,
        handle: &Handle,
        name: &XattrName,
        value: Bytes,
        how: XattrHow,
    ) -> Result<Wcc> {
        let change = Change::begin(self, &self.object(handle));
        self.counters.extended.bump();
        let result = self.below.setxattr(caller, handle, name, value, how).await;
        change.ended(result.as_ref());
        result
    }

    /// Names of extended attributes.
    pub async fn listxattrs(
        &self,
        caller: &Caller,
        handle: &Handle,
        cookie: u64,
        bytes: u32,
    ) -> Result<ListedXattrs> {
        self.counters.extended.bump();
        self.below.listxattrs(caller, handle, cookie, bytes).await
    }

    /// Removes an extended attribute.
    pub async fn removexattr(&self, caller: &Caller, handle: &Handle, name: &XattrName) -> Result<Wcc> {
        let change = Change::begin(self, &self.object(handle));
        self.counters.extended.bump();
        let result = self.below.removexattr(caller, handle, name).await;
        change.ended(result.as_ref());
        result
    }

    /// SEEK.
    pub async fn seek(&self, caller: &Caller, handle: &Handle, offset: u64, what: Extent) -> Result<Sought> {
        let object = self.object(handle);
        self.flush_writes(&object, Level::Sent).await;
        let usage = self.use_open(&object, Share::READ);
        self.counters.extended.bump();
        self.below.seek(caller, handle, Core::stateid_basis(usage.as_ref()), offset, what).await
    }

    /// ALLOCATE.
    pub async fn allocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        self.change_space(caller, at, length, Space::Allocate).await
    }

    /// DEALLOCATE.
    pub async fn deallocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        self.change_space(caller, at, length, Space::Deallocate).await
    }

    async fn change_space(&self, caller: &Caller, at: Place, length: u64, space: Space) -> Result<Wcc> {
        let object = self.object(&at.handle);
        self.flush_writes(&object, Level::Stable).await;
        let usage = self.use_open(&object, Share::WRITE);
        let _own = OwnWrite::begin(self, &object, at.offset..at.offset.saturating_add(length))?;
        let change = Change::begin_synced(self, &object).await;
        self.counters.extended.bump();
        let at = Place { by: Core::stateid_basis(usage.as_ref()), ..at };
        let result = match space {
            Space::Allocate => self.below.allocate(caller, at, length).await,
            Space::Deallocate => self.below.deallocate(caller, at, length).await,
        };
        change.ended(result.as_ref());
        result
    }

    /// COPY.
    pub async fn copy(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Copied> {
        if let Some(delayed) = &self.delayed
            && self.copies_here(&from, count)
        {
            return self.copy_here(delayed, caller, from, to, count).await;
        }
        let between = self.begin_between(caller, from, to, count).await?;
        let change = Change::begin_synced(self, &between.object).await;
        let [from, to] = between.places(from, to);
        let result = self.below.copy(caller, from, to, count).await;
        change.ended(result.as_ref().map(|copied| &copied.wcc));
        match result {
            // With delayed writes, all replies carry one verifier of ours, so it cannot cover bytes that
            // the origin may still lose. Commit them now.
            Ok(copied) if self.delayed.is_some() && copied.stability == Stability::Unstable => {
                let commit = self.commit_below(caller, &between.object).await?;
                if commit.verifier != copied.verifier {
                    return Err(Status::Io.into());
                }
                Ok(Copied { stability: Stability::FileSync, ..copied })
            }
            result => result,
        }
    }

    /// Is a copy by a READ and a delayed WRITE cheaper than one at the origin? A WRITE that nobody waits for
    /// takes the place of COPY and COMMIT, if the bytes are here and fit into it.
    fn copies_here(&self, from: &Place, count: u64) -> bool {
        let range = from.offset..end(from.offset, count);
        (1..=self.write_chunk_bytes()).contains(&count)
            && self.with(&self.object(&from.handle), |state| {
                state.data.valid().contains(&range) || state.delayed.writes.is_some()
            })
    }

    async fn copy_here(
        &self,
        delayed: &Delayed,
        caller: &Caller,
        from: Place,
        to: Place,
        count: u64,
    ) -> Result<Copied> {
        let read = self.read_over((caller, from.by), &from.handle, from.offset, count as u32).await?;
        let bytes = to_bytes(&read.data).await?;
        let (by, stability) = ((caller, to.by), Stability::Unstable);
        let written = self.write_delayed(delayed, by, &to.handle, to.offset, bytes, stability).await?;
        let Written { count, stability, verifier, wcc } = written;
        Ok(Copied { count: count.into(), stability, verifier, wcc })
    }

    /// CLONE.
    pub async fn clone_range(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Wcc> {
        let between = self.begin_between(caller, from, to, count).await?;
        let change = Change::begin_synced(self, &between.object).await;
        let [from, to] = between.places(from, to);
        let result = self.below.clone_range(caller, from, to, count).await;
        change.ended(result.as_ref());
        result
    }

    /// Prepares a COPY or CLONE from one file to another.
    async fn begin_between(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Between> {
        let (source, object) = (self.object(&from.handle), self.object(&to.handle));
        self.flush_writes(&source, Level::Sent).await;
        self.flush_writes(&object, Level::Stable).await;
        self.may_use_data(caller, from.by, &source).await?;
        let reading = self.use_open(&source, Share::READ);
        let writing = self.use_open(&object, Share::WRITE);
        let own = OwnWrite::begin(self, &object, to.offset..end(to.offset, count))?;
        self.counters.extended.bump();
        Ok(Between { object, reading, writing, _own: own })
    }
}

/// A COPY or CLONE in flight, and the file that it changes.
struct Between {
    object: Arc<Object>,
    reading: Option<Use>,
    writing: Option<Use>,
    _own: OwnWrite,
}

impl Between {
    /// The same places, with the stateids of the origin's opens.
    fn places(&self, from: Place, to: Place) -> [Place; 2] {
        let by = Core::stateid_basis;
        [Place { by: by(self.reading.as_ref()), ..from }, Place { by: by(self.writing.as_ref()), ..to }]
    }
}

/// The end of a range. A count of zero means up to the end of the file.
fn end(offset: u64, count: u64) -> u64 {
    if count == 0 { u64::MAX } else { offset.saturating_add(count) }
}
