//! Attributes as they are with delayed writes: sizes, times and modes, in whatever reply they come.
//!
//! A WRITE may reach the origin, and leave the memory here, while another call is in flight that the origin
//! answered before. Its reply does not show those bytes. So each reply is judged with the number of an
//! event before the call was sent: `since`.

use vfs::{
    Accessed, Attributes, Caller, Created, FileType, Handle, Listing, Looked, Node, Opened, Result, Wcc,
};

use crate::core::Core;
use crate::object::ObjectState;
use crate::table::Found;
use crate::writes::Delayed;

impl Core {
    /// Is nothing delayed of any file?
    pub fn is_all_clean(&self) -> bool {
        self.delayed.as_ref().is_none_or(Delayed::is_clean)
    }

    /// Overlays the attributes of a file.
    fn written(&self, since: u64, handle: &Handle, attributes: &mut Attributes) {
        if self.delayed.is_none() || attributes.file_type != FileType::Regular {
            return;
        }
        if let Some(object) = self.memory.table().peek(handle) {
            *attributes = self.with(&object, |state| overlay(state, *attributes, since));
        }
    }

    /// The same. If unstable bytes are in doubt, commits them first and asks the origin for the attributes
    /// again.
    async fn told(&self, since: u64, caller: &Caller, handle: &Handle, attributes: &mut Attributes) {
        if self.delayed.is_none() || attributes.file_type != FileType::Regular {
            return;
        }
        // An object at rest has no delayed writes.
        let Found::Awake(object) = self.memory.table().find(handle, None) else { return };
        if self.settle_doubt(&object).await
            && let Ok(known) = self.getattr(caller, handle).await
        {
            *attributes = known;
        }
        *attributes = self.with(&object, |state| overlay(state, *attributes, since));
    }

    /// GETATTR.
    pub async fn getattr_written(&self, caller: &Caller, handle: &Handle) -> Result<Attributes> {
        let since = self.policy.event();
        let mut attributes = self.getattr(caller, handle).await?;
        self.told(since, caller, handle, &mut attributes).await;
        Ok(attributes)
    }

    /// Overlays the attributes in the reply to a LOOKUP.
    pub async fn written_looked(&self, since: u64, caller: &Caller, looked: &mut Looked) {
        if let Some(known) = &mut looked.node.attributes {
            self.told(since, caller, &looked.node.handle, known).await;
        }
    }

    /// Overlays the attributes in the reply to an OPEN.
    pub async fn written_opened(&self, since: u64, caller: &Caller, opened: &mut Opened) {
        self.told(since, caller, &opened.handle, &mut opened.attributes).await;
    }

    /// Overlays the attributes in the reply to an ACCESS.
    pub async fn written_accessed(
        &self,
        since: u64,
        caller: &Caller,
        handle: &Handle,
        accessed: &mut Accessed,
    ) {
        if let Some(known) = &mut accessed.attributes {
            self.told(since, caller, handle, known).await;
        }
    }

    /// Overlays the attributes in the reply to a CREATE or LINK.
    pub fn written_created(&self, since: u64, created: &mut Created) {
        self.written_node(since, &mut created.node);
    }

    /// Overlays the attributes in the reply to a SETATTR.
    pub fn written_after(&self, since: u64, handle: &Handle, wcc: &mut Wcc) {
        if let Some(known) = &mut wcc.after {
            self.written(since, handle, known);
        }
    }

    /// Overlays the attributes in the reply to a READDIR. It does not commit bytes in doubt: they are shown
    /// as they were written.
    pub fn written_listing(&self, since: u64, listing: &mut Listing) {
        if self.delayed.is_some() {
            listing
                .entries
                .iter_mut()
                .filter_map(|entry| entry.node.as_mut())
                .for_each(|node| self.written_node(since, node));
        }
    }

    fn written_node(&self, since: u64, node: &mut Node) {
        if let Some(known) = &mut node.attributes {
            self.written(since, &node.handle, known);
        }
    }
}

/// Overlays attributes that were requested after the event `since` with everything that the origin did not
/// have by then.
pub fn overlay(state: &ObjectState, attributes: Attributes, since: u64) -> Attributes {
    let landed = || state.delayed.landings.iter().filter(|landing| landing.event > since);
    // The change attribute is that of before they landed, and clients have seen later states.
    let salt = landed().next_back().and_then(|landing| landing.salt).unwrap_or(0);
    let attributes = Attributes {
        size: landed().map(|landing| landing.end).fold(attributes.size, u64::max),
        change: attributes.change.wrapping_add(salt),
        ..attributes
    };
    let Some(writes) = state.delayed.writes.as_ref().filter(|writes| !writes.is_clean()) else {
        return attributes;
    };
    let modified = writes.modified().unwrap_or(attributes.mtime);
    let size = attributes.size.max(writes.end().unwrap_or(0));
    // In a file without holes, an overwrite allocates nothing. Blocks allocated behind the end are used
    // first.
    let is_full = attributes.used >= attributes.size;
    let before = if is_full { attributes.size } else { attributes.used };
    let more = before.saturating_add(writes.unsent());
    let mut shown = Attributes {
        size,
        used: if is_full { attributes.used.max(more.min(size)) } else { more },
        mtime: attributes.mtime.max(modified),
        ctime: attributes.ctime.max(modified),
        change: writes.change(attributes.change),
        ..attributes
    };
    writes.pending().into_iter().for_each(|pending| pending.show(&mut shown));
    shown
}
