//! The flavors of authentication of an object (RFC 8881, section 2.6.3): those of its export. A directory
//! above exports has those of the exports below it.

use protocol::nfs4::{Secinfo, SecinfoOk, Status};

use super::compound::{Compound, File};
use super::{convert, walk};
use crate::exports::pseudo::NodeIndex;
use crate::exports::{Export, Flavor, Sec};

/// The flavors of an object, the most preferred first.
pub(super) fn of_file(compound: &Compound<'_>, file: &File) -> SecinfoOk {
    match file {
        File::Pseudo(node) => of_node(compound, *node),
        File::Object(export, _) | File::Absent(export) => of_export(export),
    }
}

fn of_export(export: &Export) -> SecinfoOk {
    listed(export.options().sec.iter())
}

fn is_export(compound: &Compound<'_>, node: NodeIndex) -> bool {
    compound.front.pseudo().node(node).export.as_ref().is_some_and(|export| compound.sees(export))
}

/// The flavors of the export at a node, or else of those below it.
fn of_node(compound: &Compound<'_>, node: NodeIndex) -> SecinfoOk {
    let tree = compound.front.pseudo();
    let node = tree.node(node);
    if let Some(export) = node.export.as_ref().filter(|export| compound.sees(export)) {
        return of_export(export);
    }
    let mut flavors: Vec<Flavor> = Vec::new();
    for export in node.below.iter().filter(|export| compound.sees(export)) {
        for flavor in export.options().sec.iter() {
            if !flavors.contains(&flavor) {
                flavors.push(flavor);
            }
        }
    }
    if flavors.is_empty() {
        flavors.extend(Sec::default().iter());
    }
    listed(flavors.into_iter())
}

fn listed(flavors: impl Iterator<Item = Flavor>) -> SecinfoOk {
    let flavors: Vec<Secinfo> = flavors.map(Flavor::secinfo).collect();
    SecinfoOk::new(flavors).unwrap_or_default()
}

/// The flavors of a name in the current directory. A client that may not look the name up for its flavor
/// learns those of the directory's export, whether there is such a name or not.
pub(super) async fn of_name(compound: &mut Compound<'_>, name: &[u8]) -> Result<SecinfoOk, Status> {
    let file = compound.file()?.clone();
    let node = match &file {
        File::Pseudo(node) => Some(*node),
        File::Object(export, handle) => walk::node_of(compound, export, handle).await?,
        File::Absent(_) => None,
    };
    let name_of = convert::name(name)?;
    if let Some(child) = node.and_then(|node| walk::visible_child(compound, node, &name_of)) {
        return Ok(of_node(compound, child));
    }
    // A node stands for its export if the client could not enter that for its flavor.
    if let Some(node) = node.filter(|node| matches!(file, File::Pseudo(_)) && is_export(compound, *node)) {
        return Ok(of_node(compound, node));
    }
    match walk::down(compound, name).await {
        Ok(file) => Ok(of_file(compound, &file)),
        Err(Status::WrongSec) => Ok(of_file(compound, &file)),
        Err(status) => Err(status),
    }
}

/// The flavors of the parent of the current directory.
pub(super) async fn of_parent(compound: &mut Compound<'_>) -> Result<SecinfoOk, Status> {
    let file = compound.file()?.clone();
    match walk::up(compound).await {
        Ok(parent) => Ok(of_file(compound, &parent)),
        Err(Status::WrongSec) => {
            // Either the export of the directory does not take the client, or the directory is its root, and
            // the export above does not.
            let above = match &file {
                File::Object(export, _) if compound.caller(export).is_ok() => {
                    compound.front.pseudo().of_export(export)
                }
                _ => None,
            };
            Ok(match above {
                Some(node) => of_node(compound, compound.front.pseudo().parent(node)),
                None => of_file(compound, &file),
            })
        }
        Err(status) => Err(status),
    }
}

/// In minor version 1 and up, SECINFO consumes the current filehandle (RFC 8881, section 2.6.3.1.1.8).
pub(super) fn consume_handle(compound: &mut Compound<'_>) {
    if compound.minor > 0 {
        compound.current = None;
    }
}
