//! Was it us? Whether a non-idempotent call that failed had already taken effect when it was sent before.
//!
//! A call may reach the authority twice: a client resends it after its server died between doing it and answering, or
//! our own client resends it after a connection was lost. The reply cache of a server that remembers answers such a
//! resend; one that has forgotten says `Exist` or `NoEnt`, and an application sees a failure that never was. Each
//! function here takes such an error of a call that is known to have been sent before, looks at what is there now, and
//! turns it into the success it was, or leaves it. It never repeats the operation.
//!
//! What is there now decides, because nothing else can be known: a file of another type, a link with another target, a
//! name that is gone from one place and has not come to the other keep their error.

use crate::attributes::{Attributes, FileType, SetAttributes, Wcc};
use crate::caller::Caller;
use crate::error::{Error, Result, Status};
use crate::filesystem::FileSystem;
use crate::handle::Handle;
use crate::lease::Want;
use crate::name::Name;
use crate::results::{Created, Renamed};

/// After CREATE (guarded), MKDIR, SYMLINK, MKNOD or LINK: is what the name leads to what the call would have made?
///
/// Not after an exclusive CREATE: whoever carries it out tells it by its verifier, and who asks so wants to be the only
/// one. Another's lock file is empty and new, too.
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

/// What a call that makes a name would have made.
#[derive(Clone, Copy, Debug)]
pub enum Made<'a> {
    /// Another name for this file.
    Link {
        /// The file.
        file: &'a Handle,
    },
    /// A symbolic link.
    Symlink {
        /// Where to.
        target: &'a [u8],
    },
    /// Anything else.
    Node {
        /// Its type.
        file_type: FileType,
        /// The attributes it was to have.
        set: &'a SetAttributes,
    },
}

/// Could this be the object as it was just made: of that type, with the attributes asked for, and still empty?
fn looks_new(attributes: &Attributes, file_type: FileType, set: &SetAttributes) -> bool {
    let untouched = match file_type {
        FileType::Regular => attributes.size == set.size.unwrap_or(0) && attributes.nlink == 1,
        FileType::Directory => attributes.nlink <= 2,
        _ => attributes.nlink == 1,
    };
    attributes.file_type == file_type && untouched && set.uid.is_none_or(|uid| uid == attributes.uid)
}

/// After REMOVE or RMDIR: `NoEnt` is what a name that we removed gives.
pub async fn removed(fs: &dyn FileSystem, caller: &Caller, directory: &Handle, failed: Error) -> Result<Wcc> {
    if failed.status != Status::NoEnt {
        return Err(failed);
    }
    let after = fs.getattr(caller, directory).await.ok();
    Ok(Wcc::seen(after))
}

/// After RENAME: the old name gives `NoEnt`; if the new one leads somewhere, it was renamed. `moved` is what the old
/// name led to, where that is known, and then the new name must lead to it.
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

/// After a guarded SETATTR: `NotSync` because our own change moved ctime? If all that was to be set is set, yes.
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
