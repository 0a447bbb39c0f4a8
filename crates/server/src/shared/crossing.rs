//! Steps from a directory of one export to another export below it, in versions 2 and 3 and NQNFS. Their
//! clients know no directories above exports: they see a file system with another `fsid` below a name, as
//! with `crossmnt` of exports(5).

use std::sync::Arc;

use vfs::{Handle, Name, Status, Want};

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
        child(&self.tree, self.node, name)
    }
}

fn child<'t>(tree: &'t Pseudo, node: NodeIndex, name: &[u8]) -> Option<&'t Arc<Export>> {
    let child = *tree.node(node).children.get(name)?;
    tree.node(child).export.as_ref()
}

impl Request<'_> {
    /// The exports right below this directory; none if there are none, as below most.
    pub(crate) async fn below(&self, directory: &Object) -> vfs::Result<Option<Below>> {
        let has_exports = |tree: &Pseudo, node: NodeIndex| {
            tree.node(node).children.values().any(|child| tree.node(*child).export.is_some())
        };
        self.find_below(directory, has_exports).await
    }

    /// The root of the export to which a name in this directory leads; none if it leads to none.
    ///
    /// # Errors
    /// `Access` if the client may not use that export; `Delay` while it is awaited; those of a look at the
    /// directories between the exports.
    pub(crate) async fn crossing(&self, directory: &Object, name: &[u8]) -> vfs::Result<Option<Object>> {
        let has_it = |tree: &Pseudo, node: NodeIndex| child(tree, node, name).is_some();
        let Some(below) = self.find_below(directory, has_it).await? else { return Ok(None) };
        let Some(export) = below.get(name).filter(|export| !export.is_absent_for_older()) else {
            return Ok(None);
        };
        let caller = self.caller(export).map_err(|_| Status::Access)?;
        export.ask();
        let root = export.fs().root(&caller).await?;
        Ok(Some(Object { export: export.clone(), handle: root.handle, caller }))
    }

    /// The node of a directory, if it is one of those that are looked for. For most there is none to look at.
    async fn find_below(
        &self,
        directory: &Object,
        is_it: impl Fn(&Pseudo, NodeIndex) -> bool,
    ) -> vfs::Result<Option<Below>> {
        let tree = self.shared.exports.tree();
        let Some(at) = tree.of_export(&directory.export) else { return Ok(None) };
        if tree.node(at).below.is_empty() {
            return Ok(None);
        }
        for node in tree.on_the_way(at) {
            if is_it(&tree, node)
                && self.leads(directory, &tree.names_between(at, node)).await? == Some(directory.handle)
            {
                return Ok(Some(Below { tree, node }));
            }
        }
        Ok(None)
    }

    /// The object to which these names lead from the root of the directory's export. If the client cannot get
    /// there, it has not come that way.
    async fn leads(&self, directory: &Object, names: &[&[u8]]) -> vfs::Result<Option<Handle>> {
        let Object { export, caller, .. } = directory;
        let mut at = export.known(caller).await?.root;
        for name in names {
            match export.fs().lookup(caller, &at, &Name::new(name)?, Want::None).await {
                Ok(looked) => at = looked.node.handle,
                Err(error) => match error.status {
                    Status::NoEnt | Status::NotDir | Status::Stale | Status::Access | Status::Perm => {
                        return Ok(None);
                    }
                    _ => return Err(error),
                },
            }
        }
        Ok(Some(at))
    }
}
