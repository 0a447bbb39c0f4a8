//! Steps from a directory to its children and its parent, across exports and the directories above them
//! (RFC 8881, sections 7.3 and 18.13).

use std::sync::Arc;

use protocol::nfs4::Status;
use vfs::{Freshness, Handle, Name};

use super::compound::{Compound, File};
use super::{convert, kind};
use crate::exports::Export;
use crate::exports::pseudo::{Node, NodeIndex, Pseudo};
use crate::shared::Object;

/// The target of a name in the current directory.
pub(super) async fn down(compound: &mut Compound<'_>, name: &[u8]) -> Result<File, Status> {
    let file = compound.file()?.clone();
    let name = convert::name(name)?;
    let node = match &file {
        File::Pseudo(node) => Some(*node),
        File::Object(export, handle) => node_of(compound, export, handle).await?,
        File::Absent(_) => return Err(Status::Moved),
    };
    if let Some(child) = node.and_then(|node| visible_child(compound, node, &name)) {
        return compound.enter(child).await;
    }
    if let File::Pseudo(_) = file {
        return Err(Status::NoEnt);
    }
    let mut object = compound.object_of(file)?;
    if compound.is_confirming() {
        object.caller.freshness = Freshness::Open;
    }
    let Object { export, handle, caller } = &object;
    match export.fs().lookup(caller, handle, &name, vfs::Want::None).await {
        Ok(looked) => Ok(File::Object(object.export, looked.node.handle)),
        Err(error) => Err(kind::directory_error(&object, error, Status::Symlink).await),
    }
}

/// The parent of the current directory.
pub(super) async fn up(compound: &mut Compound<'_>) -> Result<File, Status> {
    let (export, handle) = match compound.file()?.clone() {
        File::Pseudo(Pseudo::ROOT) => return Err(Status::NoEnt),
        File::Pseudo(node) => {
            let parent = compound.front.pseudo().parent(node);
            return compound.enter(parent).await;
        }
        File::Object(export, handle) => (export, handle),
        File::Absent(_) => return Err(Status::Moved),
    };
    let caller = compound.caller(&export)?;
    let root = export.known(&caller).await.map_err(convert::error)?.root;
    if handle == root {
        let tree = compound.front.pseudo();
        return match tree.of_export(&export) {
            None | Some(Pseudo::ROOT) => Err(Status::NoEnt),
            Some(node) => compound.enter(tree.parent(node)).await,
        };
    }
    let object = Object { export, handle, caller };
    let Object { export, handle, caller } = &object;
    match export.fs().parent(caller, handle).await {
        Ok(looked) => Ok(File::Object(object.export, looked.node.handle)),
        Err(error) => {
            let symlink = if compound.minor == 0 { Status::NotDir } else { Status::Symlink };
            Err(kind::directory_error(&object, error, symlink).await)
        }
    }
}

/// An export whose file system is there.
///
/// # Errors
/// `Delay` while it is awaited: the client comes back later.
pub(in crate::nfs4) fn there(export: Arc<Export>) -> Result<Arc<Export>, Status> {
    if export.is_awaited() { Err(Status::Delay) } else { Ok(export) }
}

impl Compound<'_> {
    /// The object that a client sees at a node: the export at or above the node, else the node itself.
    pub(super) async fn enter(&mut self, index: NodeIndex) -> Result<File, Status> {
        let tree = self.front.pseudo();
        let mut names = Vec::new();
        let mut at = index;
        loop {
            let node = tree.node(at);
            if let Some(export) = node.export.clone().filter(|export| self.sees(export)) {
                let caller = match self.caller(&export) {
                    // The node has the flavors of the export.
                    Err(Status::WrongSec) if self.precedes_secinfo() => return Ok(File::Pseudo(index)),
                    caller => caller?,
                };
                if export.is_absent() {
                    return if names.is_empty() { Ok(File::Absent(export)) } else { Err(Status::Moved) };
                }
                let export = there(export)?;
                let mut handle = export.known(&caller).await.map_err(convert::error)?.root;
                for name in names.iter().rev() {
                    handle = export
                        .fs()
                        .lookup(&caller, &handle, name, vfs::Want::None)
                        .await
                        .map_err(convert::error)?
                        .node
                        .handle;
                }
                return Ok(File::Object(export, handle));
            }
            if at == Pseudo::ROOT {
                return Ok(File::Pseudo(index));
            }
            names.push(Name::new(&node.name).map_err(convert::error)?);
            at = node.parent;
        }
    }
}

/// Can the client see an export at this node or below it?
pub(super) fn is_visible(compound: &Compound<'_>, node: &Node) -> bool {
    node.export.iter().chain(&node.below).any(|export| compound.sees(export))
}

/// The node that a name at a node leads to: an export, or a directory on the way to one.
pub(super) fn visible_child(compound: &Compound<'_>, node: NodeIndex, name: &Name) -> Option<NodeIndex> {
    let tree = compound.front.pseudo();
    let child = *tree.node(node).children.get(name.as_bytes())?;
    let node = tree.node(child);
    // On the way from an export to an export below it, the client sees the upper export's directories, if
    // it has them.
    let is_on_the_way = node.export.as_ref().is_none_or(|export| !compound.sees(export));
    (is_visible(compound, node) && !(is_on_the_way && is_covered(compound, child))).then_some(child)
}

/// Is the node below an export?
fn is_covered(compound: &Compound<'_>, mut index: NodeIndex) -> bool {
    let tree = compound.front.pseudo();
    while index != Pseudo::ROOT {
        index = tree.parent(index);
        if tree.node(index).export.as_ref().is_some_and(|export| compound.sees(export)) {
            return true;
        }
    }
    false
}

/// The node of an export's object, if there are exports below the node.
pub(super) async fn node_of(
    compound: &mut Compound<'_>,
    export: &Export,
    handle: &Handle,
) -> Result<Option<NodeIndex>, Status> {
    let tree = compound.front.pseudo();
    let Some(at) = tree.of_export(export) else { return Ok(None) };
    for node in tree.on_the_way(at) {
        match compound.enter(node).await {
            Ok(File::Object(of, there)) if of.id == export.id && there == *handle => return Ok(Some(node)),
            // The export may have this directory, and the client must not see what is below it instead.
            Err(Status::Delay) => return Err(Status::Delay),
            // If it does not have the directory, nothing can be mounted there.
            _ => {}
        }
    }
    Ok(None)
}
