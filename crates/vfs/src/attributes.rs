//! Attributes of a file, as the widest protocol we speak has them, and what a client may set.

use crate::time::Timestamp;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A block special file.
    Block,
    /// A character special file.
    Character,
    /// A symbolic link.
    Symlink,
    /// A socket.
    Socket,
    /// A named pipe.
    Fifo,
}

/// Major and minor number of a special file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// `specdata1`.
    pub major: u32,
    /// `specdata2`.
    pub minor: u32,
}

/// Which file system of the server a file is on (two words in v4, the first alone in v3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fsid {
    /// All of it in v3.
    pub major: u64,
    /// Zero in v3.
    pub minor: u64,
}

/// All attributes of a file at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its type, which never changes for a handle.
    pub file_type: FileType,
    /// Permission bits, with set-id and sticky: the low twelve bits of `st_mode`.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of disk in use.
    pub used: u64,
    /// Device numbers, of special files.
    pub rdev: Device,
    /// File system.
    pub fsid: Fsid,
    /// Inode number within the file system.
    pub fileid: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
    /// RFC 8881's change attribute. For a v2 or v3 origin it is ctime in nanoseconds.
    pub change: u64,
}

impl Attributes {
    /// The attributes that weak cache consistency compares.
    pub fn wcc(&self) -> WccAttributes {
        WccAttributes { size: self.size, mtime: self.mtime, ctime: self.ctime, change: self.change }
    }

    /// Whether the object is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }
}

/// `wcc_attr` of RFC 1813, section 2.6: the attributes that distinguish two states of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WccAttributes {
    /// Size in bytes.
    pub size: u64,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of data or attributes.
    pub ctime: Timestamp,
    /// As [`Attributes::change`].
    pub change: u64,
}

/// An atomic `change_info4` (RFC 8881, section 3.3.8): the change attribute before and after one change. No
/// other change lies between the two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChangeInfo {
    /// Just before.
    pub before: u64,
    /// Just after.
    pub after: u64,
}

/// Weak cache consistency data: the state just before and just after an operation.
///
/// `before` is present only if no other change can have come between it and the operation. A cache may
/// conclude that a change was its own only from `before` or from `change`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wcc {
    /// State just before.
    pub before: Option<WccAttributes>,
    /// Attributes after the operation. They are those just after it if `before` is present, or if `change`
    /// ends at their change attribute. Otherwise other changes may have come between.
    pub after: Option<Attributes>,
    /// The change attribute around this change alone, whatever `after` shows. Version 4 reports it even if
    /// several changes overlap.
    pub change: Option<ChangeInfo>,
}

impl Wcc {
    /// Attributes from some time after the operation, without proof that only the operation changed them.
    pub fn seen(after: Option<Attributes>) -> Wcc {
        Wcc { before: None, after, change: None }
    }

    /// The states just before and just after the operation.
    pub fn around(before: WccAttributes, after: Option<Attributes>) -> Wcc {
        Wcc { before: Some(before), after, change: None }
    }

    /// The change attribute around the operation alone, if `change` or the two states show it.
    pub fn change_info(&self) -> Option<ChangeInfo> {
        let states = || Some(ChangeInfo { before: self.before?.change, after: self.after?.change });
        self.change.or_else(states)
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's own time, now.
    Server,
    /// This time.
    Client(Timestamp),
}

/// `sattr3` of RFC 1813: what is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits: the low twelve bits of `st_mode`.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: truncates or extends with zeros.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the data.
    pub mtime: Option<SetTime>,
}
