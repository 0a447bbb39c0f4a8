//! The removal of a name of a file that may be open by its handle.
//!
//! Such an open finds its file as long as the file has a name. So before a name goes, the opens of the file
//! take its node, which keeps the inode; so do opens that are made in the meantime. If the file still has a
//! name afterwards, they give the node back.
//!
//! Removals of one file mostly exclude each other ([`crate::locks`]); the last one decides.

use std::sync::Arc;

use vfs::Status;

use super::{Opens, OpensOfFile};
use crate::descriptors::{Descriptors, Node, Use};

/// A name of this file is being removed, until this is dropped.
pub(crate) struct Removal<'t> {
    opens: &'t Opens,
    descriptors: &'t Descriptors,
    node: Arc<Node>,
}

impl<'t> Removal<'t> {
    /// Begins a removal of a name of this file.
    ///
    /// # Errors
    /// `Delay` if the file is open and there is no capacity for its descriptors. Some opens may keep them in
    /// this case, until the next removal.
    pub(crate) fn begin(
        opens: &'t Opens,
        descriptors: &'t Descriptors,
        node: Arc<Node>,
    ) -> Result<Removal<'t>, Status> {
        let mut table = opens.table.write();
        for open in table.by_file.get(&node.handle).into_iter().flat_map(OpensOfFile::iter) {
            let mut held = open.node.lock();
            if held.is_none() {
                *held = Some(descriptors.pin(&node, Use::Open, None).ok_or(Status::Delay)?);
            }
        }
        *table.leaving.entry(node.handle).or_default() += 1;
        drop(table);
        Ok(Removal { opens, descriptors, node })
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        let mut table = self.opens.table.write();
        let handle = &self.node.handle;
        if let Some(others) = table.leaving.get_mut(handle).filter(|removals| **removals > 1) {
            *others -= 1;
            return;
        }
        table.leaving.remove(handle);
        if !self.node.is_linked() {
            return;
        }
        for open in table.by_file.get(handle).into_iter().flat_map(OpensOfFile::iter) {
            if let Some(node) = open.node.lock().take() {
                self.descriptors.unpin(&node, Use::Open);
            }
        }
    }
}
