//! What v4 has and v3 has not: access control lists, extended attributes, extents and copies. They go to the origin;
//! what they change of a file is treated as any change of ours, and the bytes they touch are no longer known. What is delayed of
//! the files is sent first, and made durable where its bytes are replaced: it must not come again after that.

use bytes::Bytes;
use vfs::{
    Acl, Caller, Copied, Extent, Handle, ListedXattrs, Place, Result, Share, Sought, Stability, Status, Wcc,
    XattrHow, XattrName,
};

use super::modify::Change;
use crate::core::Core;
use crate::filler::OwnWrite;
use crate::writes::Level;

impl Core {
    /// The access control list.
    pub async fn acl(&self, caller: &Caller, handle: &Handle) -> Result<Acl> {
        self.counters.extended.bump();
        self.below.acl(caller, handle).await
    }

    /// Sets the access control list.
    pub async fn set_acl(&self, caller: &Caller, handle: &Handle, acl: &Acl) -> Result<Wcc> {
        let object = self.object(handle);
        // A mode that waits must not come after the list: it would change it.
        self.flush_writes(&object, Level::Stable).await;
        self.with(&object, |state| state.touch_rights(&self.policy));
        let change = Change::begin(self, &object);
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
        self.below.seek(caller, handle, Core::ground(usage.as_ref()), offset, what).await
    }

    /// ALLOCATE.
    pub async fn allocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        let object = self.object(&at.handle);
        self.flush_writes(&object, Level::Stable).await;
        let usage = self.use_open(&object, Share::WRITE);
        let _own = OwnWrite::begin(self, &object, at.offset..at.offset.saturating_add(length))?;
        let change = Change::begin(self, &object);
        self.counters.extended.bump();
        let at = Place { by: Core::ground(usage.as_ref()), ..at };
        let result = self.below.allocate(caller, at, length).await;
        change.ended(result.as_ref());
        result
    }

    /// DEALLOCATE.
    pub async fn deallocate(&self, caller: &Caller, at: Place, length: u64) -> Result<Wcc> {
        let object = self.object(&at.handle);
        self.flush_writes(&object, Level::Stable).await;
        let usage = self.use_open(&object, Share::WRITE);
        let _own = OwnWrite::begin(self, &object, at.offset..at.offset.saturating_add(length))?;
        let change = Change::begin(self, &object);
        self.counters.extended.bump();
        let at = Place { by: Core::ground(usage.as_ref()), ..at };
        let result = self.below.deallocate(caller, at, length).await;
        change.ended(result.as_ref());
        result
    }

    /// COPY.
    pub async fn copy(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Copied> {
        let object = self.object(&to.handle);
        let source = self.object(&from.handle);
        self.flush_writes(&source, Level::Sent).await;
        self.flush_writes(&object, Level::Stable).await;
        let reading = self.use_open(&source, Share::READ);
        let writing = self.use_open(&object, Share::WRITE);
        let _own = OwnWrite::begin(self, &object, to.offset..end(to.offset, count))?;
        let change = Change::begin(self, &object);
        self.counters.extended.bump();
        let from = Place { by: Core::ground(reading.as_ref()), ..from };
        let to = Place { by: Core::ground(writing.as_ref()), ..to };
        let result = self.below.copy(caller, from, to, count).await;
        change.ended(result.as_ref().map(|copied| &copied.wcc));
        match result {
            // Whoever delays writes has one verifier for all: what the origin may still lose must not go by it.
            Ok(copied) if self.delayed.is_some() && copied.stability == Stability::Unstable => {
                let commit = self.commit_below(caller, &object).await?;
                if commit.verifier != copied.verifier {
                    return Err(Status::Io.into());
                }
                Ok(Copied { stability: Stability::FileSync, ..copied })
            }
            result => result,
        }
    }

    /// CLONE.
    pub async fn clone_range(&self, caller: &Caller, from: Place, to: Place, count: u64) -> Result<Wcc> {
        let object = self.object(&to.handle);
        let source = self.object(&from.handle);
        self.flush_writes(&source, Level::Sent).await;
        self.flush_writes(&object, Level::Stable).await;
        let reading = self.use_open(&source, Share::READ);
        let writing = self.use_open(&object, Share::WRITE);
        let _own = OwnWrite::begin(self, &object, to.offset..end(to.offset, count))?;
        let change = Change::begin(self, &object);
        self.counters.extended.bump();
        let from = Place { by: Core::ground(reading.as_ref()), ..from };
        let to = Place { by: Core::ground(writing.as_ref()), ..to };
        let result = self.below.clone_range(caller, from, to, count).await;
        change.ended(result.as_ref());
        result
    }
}

/// Where a range ends; a count of zero is to the end of the file, wherever that is.
fn end(offset: u64, count: u64) -> u64 {
    if count == 0 { u64::MAX } else { offset.saturating_add(count) }
}
