//! Whether a non-idempotent call that failed had already taken effect when it was sent before.
//!
//! A call may reach the server twice. A client resends it if its server died between the operation and the
//! reply, or if the connection was lost. A server that remembers the first call answers the resend from its
//! reply cache. A server that has forgotten it reports `Exist` or `NoEnt`, and an application would see a
//! failure that never happened.
//!
//! Each function here takes such an error of a call that was sent before, and looks at the current state. If
//! that state is the result of the call, the function returns success; otherwise it returns the error. It
//! never repeats the operation. A file of another type, a link with another target, or a name that left one
//! directory without reaching the other keeps the error.

use crate::attributes::{Attributes, FileType, SetAttributes, Wcc};
use crate::caller::Caller;
use crate::error::{Error, Result, Status};
use crate::filesystem::FileSystem;
use crate::handle::Handle;
use crate::lease::Want;
use crate::name::Name;
use crate::results::{Created, Renamed};

/// After CREATE (guarded), MKDIR, SYMLINK, MKNOD or LINK: success if the name leads to the object that the
/// call makes.
///
/// Not for an exclusive CREATE. The server recognizes its resend by the verifier, and the requester wants to
/// be the only creator. A lock file of another client is empty and new, too.
pub async fn made(
    fs: &dyn FileSystem,
    caller: &Caller,
    directory: &Handle,
    name: &Name,
    failed: Error,
    what: Made<'_>,
) -> Result<Created> {
    if failed.status != Status::Exist {
        return Err(failed);
    }
    let Ok(found) = fs.lookup(caller, directory, name, Want::None).await else { return Err(failed) };
    let attributes = match found.node.attributes {
        Some(attributes) => attributes,
        None => match fs.getattr(caller, &found.node.handle).await {
            Ok(attributes) => attributes,
            Err(_) => return Err(failed),
        },
    };
    let ours = match what {
        Made::Link { file } => found.node.handle == *file,
        Made::Node { file_type, set } => looks_new(&attributes, file_type, set),
        Made::Symlink { target } => {
            attributes.file_type == FileType::Symlink
                && matches!(fs.readlink(caller, &found.node.handle).await, Ok((there, _)) if there == target)
        }
    };
    if !ours {
        return Err(failed);
    }
    let mut node = found.node;
    node.attributes = Some(attributes);
    Ok(Created { node, directory: Wcc::seen(found.directory), lease: None })
}

/// The object that a call would have made.
#[derive(Clone, Copy, Debug)]
pub enum Made<'a> {
    /// Another name for this file.
    Link {
        /// The file.
        file: &'a Handle,
    },
    /// A symbolic link.
    Symlink {
        /// Its target.
        target: &'a [u8],
    },
    /// Any other object.
    Node {
        /// Its type.
        file_type: FileType,
        /// The attributes of the call.
        set: &'a SetAttributes,
    },
}

/// Whether an object has the type and attributes of the call and is still empty, as if it had just been made.
fn looks_new(attributes: &Attributes, file_type: FileType, set: &SetAttributes) -> bool {
    let untouched = match file_type {
        FileType::Regular => attributes.size == set.size.unwrap_or(0) && attributes.nlink == 1,
        FileType::Directory => attributes.nlink <= 2,
        _ => attributes.nlink == 1,
    };
    attributes.file_type == file_type && untouched && set.uid.is_none_or(|uid| uid == attributes.uid)
}

/// After REMOVE or RMDIR: `NoEnt` is the expected reply if the first call removed the name.
pub async fn removed(fs: &dyn FileSystem, caller: &Caller, directory: &Handle, failed: Error) -> Result<Wcc> {
    if failed.status != Status::NoEnt {
        return Err(failed);
    }
    let after = fs.getattr(caller, directory).await.ok();
    Ok(Wcc::seen(after))
}

/// After RENAME: success if the old name is gone (`NoEnt`) and the new name exists. If the caller knows the
/// object of the old name (`moved`), the new name must lead to that object.
pub async fn renamed(
    fs: &dyn FileSystem,
    caller: &Caller,
    from: &Handle,
    to: (&Handle, &Name),
    moved: Option<Handle>,
    failed: Error,
) -> Result<Renamed> {
    if failed.status != Status::NoEnt {
        return Err(failed);
    }
    let Ok(found) = fs.lookup(caller, to.0, to.1, Want::None).await else { return Err(failed) };
    if moved.is_some_and(|moved| moved != found.node.handle) {
        return Err(failed);
    }
    let from = Wcc::seen(fs.getattr(caller, from).await.ok());
    Ok(Renamed { from, to: Wcc::seen(found.directory) })
}

/// After a guarded SETATTR: `NotSync` may come from the first call, which moved ctime. Success if all
/// attributes are set.
pub async fn attributes_set(
    fs: &dyn FileSystem,
    caller: &Caller,
    handle: &Handle,
    set: &SetAttributes,
    failed: Error,
) -> Result<Wcc> {
    if failed.status != Status::NotSync {
        return Err(failed);
    }
    let Ok(now) = fs.getattr(caller, handle).await else { return Err(failed) };
    let holds = set.mode.is_none_or(|mode| mode == now.mode)
        && set.uid.is_none_or(|uid| uid == now.uid)
        && set.gid.is_none_or(|gid| gid == now.gid)
        && set.size.is_none_or(|size| size == now.size);
    if holds { Ok(Wcc::seen(Some(now))) } else { Err(failed) }
}
