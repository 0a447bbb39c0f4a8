//! Steps from a directory of one export to another export below it, in versions 2 and 3 and NQNFS. Their
//! clients know no directories above exports: they see a file system with another `fsid` below a name, as
//! with `crossmnt` of exports(5).

use std::sync::Arc;

use vfs::{Handle, Name, Want};

use super::{Object, Request};
use crate::exports::Export;
use crate::exports::pseudo::{NodeIndex, Pseudo};

/// The exports right below a directory.
pub(crate) struct Below {
    tree: Arc<Pseudo>,
    node: NodeIndex,
}

impl Below {
    /// The export with this name there.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&Arc<Export>> {
        let child = *self.tree.node(self.node).children.get(name)?;
        self.tree.node(child).export.as_ref()
    }
}

impl Request<'_> {
    /// The exports right below this directory; none if there are none, as below most.
    pub(crate) async fn below(&self, directory: &Object) -> Option<Below> {
        let tree = self.shared.exports.tree();
        let at = tree.of_export(&directory.export)?;
        if tree.node(at).below.is_empty() {
            return None;
        }
        for node in tree.on_the_way(at) {
            if self.leads(directory, &tree.names_between(at, node)).await == Some(directory.handle) {
                return Some(Below { tree, node });
            }
        }
        None
    }

    /// The object to which these names lead from the root of the directory's export.
    async fn leads(&self, directory: &Object, names: &[&[u8]]) -> Option<Handle> {
        let Object { export, caller, .. } = directory;
        let mut at = export.fs().root(caller).await.ok()?.handle;
        for name in names {
            at = export.fs().lookup(caller, &at, &Name::new(name).ok()?, Want::None).await.ok()?.node.handle;
        }
        Some(at)
    }

    /// The root of the export to which a name in this directory leads; none if it leads to none.
    ///
    /// # Errors
    /// `Access` if the client may not use that export; `Delay` while it is awaited.
    pub(crate) async fn crossing(&self, directory: &Object, name: &[u8]) -> vfs::Result<Option<Object>> {
        let Some(below) = self.below(directory).await else { return Ok(None) };
        let Some(export) = below.get(name).filter(|export| !export.is_absent()) else { return Ok(None) };
        let caller = self.caller(export).map_err(|_| vfs::Status::Access)?;
        let root = export.fs().root(&caller).await?;
        Ok(Some(Object { export: export.clone(), handle: root.handle, caller }))
    }
}
