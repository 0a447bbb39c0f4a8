//! What is said of an object of the wrong type. Back ends say `IsDir`, `NotDir` or `Inval`; v4 has more words, and each
//! minor version its own (RFC 7530, section 13.1.7; RFC 8881, section 15.1.2).

use protocol::nfs4::Status;
use vfs::FileType;

use super::convert;
use crate::front::Object;

/// READLINK of what is no symbolic link.
pub(super) fn not_a_link(minor: u32) -> Status {
    if minor == 0 { Status::Inval } else { Status::WrongType }
}

/// What is wrong with this type where a regular file is wanted.
pub(super) fn not_a_file(file_type: FileType, minor: u32) -> Option<Status> {
    match file_type {
        FileType::Regular => None,
        FileType::Directory => Some(Status::IsDir),
        FileType::Symlink if minor > 0 => Some(Status::Symlink),
        _ if minor == 0 => Some(Status::Inval),
        _ => Some(Status::WrongType),
    }
}

/// What is wrong with this type where a directory is wanted.
pub(super) fn not_a_directory(file_type: FileType, symlink: Status) -> Option<Status> {
    match file_type {
        FileType::Directory => None,
        FileType::Symlink => Some(symlink),
        _ => Some(Status::NotDir),
    }
}

/// Why I/O failed, when it may be that the object is no regular file.
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

/// Why an operation in a directory failed, when it may be that the object is none; `symlink` is said of a symbolic link.
pub(super) async fn directory_error(object: &Object, error: vfs::Error, symlink: Status) -> Status {
    if matches!(error.status, vfs::Status::NotDir | vfs::Status::Inval | vfs::Status::Access)
        && let Some(file_type) = file_type(object, &error).await
        && let Some(status) = not_a_directory(file_type, symlink)
    {
        return status;
    }
    convert::error(error)
}

/// Is the object a directory? If it cannot be known, yes: the error that raised the question stands.
pub(super) async fn is_directory(object: &Object) -> bool {
    let attributes = object.export.fs.getattr(&object.caller, &object.handle).await;
    attributes.map_or(true, |attributes| attributes.is_dir())
}

async fn file_type(object: &Object, error: &vfs::Error) -> Option<FileType> {
    if let Some(attributes) = &error.attributes {
        return Some(attributes.file_type);
    }
    let attributes = object.export.fs.getattr(&object.caller, &object.handle).await.ok()?;
    Some(attributes.file_type)
}
