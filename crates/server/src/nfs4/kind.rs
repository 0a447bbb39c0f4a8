//! Error codes for an object of the wrong type. Back ends return `IsDir`, `NotDir` or `Inval`. v4 has more
//! codes, which differ between minor versions (RFC 7530, section 13.1.7; RFC 8881, section 15.1.2).

use protocol::nfs4::Status;
use vfs::FileType;

use super::convert;
use crate::shared::Object;

/// READLINK of an object that is not a symbolic link.
pub(super) fn not_a_link(minor: u32) -> Status {
    if minor == 0 { Status::Inval } else { Status::WrongType }
}

/// The error for this type if a regular file is required.
pub(super) fn not_a_file(file_type: FileType, minor: u32) -> Option<Status> {
    match file_type {
        FileType::Regular => None,
        FileType::Directory => Some(Status::IsDir),
        FileType::Symlink if minor > 0 => Some(Status::Symlink),
        _ if minor == 0 => Some(Status::Inval),
        _ => Some(Status::WrongType),
    }
}

/// The error for this type if a directory is required.
pub(super) fn not_a_directory(file_type: FileType, symlink: Status) -> Option<Status> {
    match file_type {
        FileType::Directory => None,
        FileType::Symlink => Some(symlink),
        _ => Some(Status::NotDir),
    }
}

/// The status of failed I/O. The reason may be that the object is not a regular file.
pub(super) async fn io_error(object: &Object, error: vfs::Error, minor: u32) -> Status {
    if matches!(
        error.status,
        vfs::Status::Inval | vfs::Status::IsDir | vfs::Status::BadType | vfs::Status::Access
    ) && let Some(file_type) = file_type(object, &error).await
        && let Some(status) = not_a_file(file_type, minor)
    {
        return status;
    }
    convert::io_error(error)
}

/// The status of a failed operation in a directory. The reason may be that the object is not a directory;
/// `symlink` is the status for a symbolic link.
pub(super) async fn directory_error(object: &Object, error: vfs::Error, symlink: Status) -> Status {
    if matches!(error.status, vfs::Status::NotDir | vfs::Status::Inval | vfs::Status::Access)
        && let Some(file_type) = file_type(object, &error).await
        && let Some(status) = not_a_directory(file_type, symlink)
    {
        return status;
    }
    convert::error(error)
}

/// Is the object a directory? If its type cannot be read: yes, so that the original error stands.
pub(super) async fn is_directory(object: &Object) -> bool {
    let attributes = object.export.fs().getattr(&object.caller, &object.handle).await;
    attributes.map_or(true, |attributes| attributes.is_dir())
}

async fn file_type(object: &Object, error: &vfs::Error) -> Option<FileType> {
    if let Some(attributes) = &error.attributes {
        return Some(attributes.file_type);
    }
    let attributes = object.export.fs().getattr(&object.caller, &object.handle).await.ok()?;
    Some(attributes.file_type)
}
