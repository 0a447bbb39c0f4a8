//! The tree of files: inodes by number, what they take of the bounds, and changes of one inode.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use vfs::{
    Attributes, Device, Entry, FileType, Fsid, Handle, HolderId, LeaseId, Name, OpenId, Owner, SetAttributes,
    SetTime, Status, Timestamp, Verifier, Wcc,
};

use crate::Options;
use crate::opens::Open;
use crate::rights::User;

/// The number of an inode.
pub(crate) type Id = u64;

/// What a file has besides its attributes.
pub(crate) enum Content {
    /// A regular file. The verifier is that of the exclusive create that made it, until its data or
    /// times are set.
    Data { bytes: Vec<u8>, verifier: Option<Verifier> },
    /// A directory.
    Names(Names),
    /// A symbolic link.
    Target(Bytes),
    /// A device, socket or named pipe.
    Nothing,
}

/// The names of a directory. A cookie is a number that no other name gets, so a listing goes on behind it
/// even if the name is gone.
pub(crate) struct Names {
    pub(crate) parent: Id,
    pub(crate) by_name: BTreeMap<Name, (u64, Id)>,
    pub(crate) by_cookie: BTreeMap<u64, Name>,
}

impl Names {
    pub(crate) fn below(parent: Id) -> Names {
        Names { parent, by_name: BTreeMap::new(), by_cookie: BTreeMap::new() }
    }
}

/// A file.
pub(crate) struct Inode {
    pub(crate) attributes: Attributes,
    pub(crate) content: Content,
    pub(crate) lease: Option<LeaseId>,
}

/// Everything behind the lock.
pub(crate) struct Tree {
    pub(crate) options: Options,
    /// Tells this tree from those of earlier processes: in handles, verifiers and the fsid.
    pub(crate) incarnation: u64,
    pub(crate) root: Id,
    pub(crate) inodes: HashMap<Id, Inode>,
    pub(crate) opens: HashMap<OpenId, Open>,
    pub(crate) open_of: BTreeMap<(Id, Option<HolderId>, Owner), OpenId>,
    pub(crate) leases: HashMap<LeaseId, Id>,
    /// The sizes of all inodes.
    pub(crate) used_bytes: u64,
    last_number: u64,
    last_nanos: i128,
}

impl Tree {
    pub(crate) fn new(options: Options) -> Tree {
        let mut tree = Tree {
            options,
            incarnation: RandomState::new().hash_one(()),
            root: 0,
            inodes: HashMap::new(),
            opens: HashMap::new(),
            open_of: BTreeMap::new(),
            leases: HashMap::new(),
            used_bytes: 0,
            last_number: Entry::FIRST_COOKIE,
            last_nanos: 0,
        };
        let attributes = tree.new_attributes(FileType::Directory, 0o755);
        tree.root = attributes.fileid;
        let content = Content::Names(Names::below(tree.root));
        tree.inodes.insert(tree.root, Inode { attributes, content, lease: None });
        tree
    }

    /// A number that is given once: for an inode, cookie, open or lease.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The time of a change: later than that of each change before.
    pub(crate) fn now(&mut self) -> Timestamp {
        self.last_nanos = self.options.clock.wall().as_nanos().max(self.last_nanos + 1);
        Timestamp::from_nanos(self.last_nanos)
    }

    /// Attributes of a new inode without contents, which belongs to root.
    pub(crate) fn new_attributes(&mut self, file_type: FileType, mode: u32) -> Attributes {
        let now = self.now();
        Attributes {
            file_type,
            mode,
            nlink: if file_type == FileType::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            size: 0,
            used: 0,
            rdev: Device::default(),
            fsid: Fsid { major: self.incarnation, minor: 0 },
            fileid: self.number(),
            atime: now,
            mtime: now,
            ctime: now,
            change: now.as_nanos() as u64,
        }
    }

    /// # Errors
    /// `BadHandle`; `Stale` if the file is gone.
    pub(crate) fn id(&self, handle: &Handle) -> Result<Id, Status> {
        let bytes: [u8; 16] = handle.as_bytes().try_into().map_err(|_| Status::BadHandle)?;
        let (incarnation, id) = split(u128::from_be_bytes(bytes));
        if incarnation == self.incarnation && self.inodes.contains_key(&id) {
            Ok(id)
        } else {
            Err(Status::Stale)
        }
    }

    /// The file and its attributes.
    pub(crate) fn node(&self, id: Id) -> Result<vfs::Node, Status> {
        let bytes = (u128::from(self.incarnation) << 64 | u128::from(id)).to_be_bytes();
        let handle = Handle::new(&bytes).ok_or(Status::ServerFault)?;
        Ok(vfs::Node { handle, attributes: Some(self.attributes(id)?) })
    }

    /// The write and cookie verifier.
    pub(crate) fn verifier(&self) -> Verifier {
        self.incarnation.to_be_bytes()
    }

    pub(crate) fn inode(&self, id: Id) -> Result<&Inode, Status> {
        self.inodes.get(&id).ok_or(Status::Stale)
    }

    pub(crate) fn inode_mut(&mut self, id: Id) -> Result<&mut Inode, Status> {
        self.inodes.get_mut(&id).ok_or(Status::Stale)
    }

    pub(crate) fn attributes(&self, id: Id) -> Result<Attributes, Status> {
        Ok(self.inode(id)?.attributes)
    }

    /// The data of a regular file.
    ///
    /// # Errors
    /// `IsDir`; `Inval` for other types.
    pub(crate) fn data(&self, id: Id) -> Result<&Vec<u8>, Status> {
        match &self.inode(id)?.content {
            Content::Data { bytes, .. } => Ok(bytes),
            Content::Names(_) => Err(Status::IsDir),
            _ => Err(Status::Inval),
        }
    }

    /// The states around a change of one file.
    pub(crate) fn around<T>(
        &mut self,
        id: Id,
        change: impl FnOnce(&mut Tree) -> Result<T, Status>,
    ) -> Result<(T, Wcc), Status> {
        let before = self.attributes(id)?.wcc();
        let done = change(self)?;
        Ok((done, Wcc::around(before, self.attributes(id).ok())))
    }

    /// Marks a file as changed now, data included or not.
    pub(crate) fn touch(&mut self, id: Id, data: bool) -> Result<(), Status> {
        let now = self.now();
        let attributes = &mut self.inode_mut(id)?.attributes;
        (attributes.ctime, attributes.change) = (now, now.as_nanos() as u64);
        attributes.used = attributes.size;
        if data {
            attributes.mtime = now;
        }
        Ok(())
    }

    /// Takes bytes of the bounds, in exchange for others that are freed.
    ///
    /// # Errors
    /// `NoSpc`
    pub(crate) fn take_bytes(&mut self, freed: u64, taken: u64) -> Result<(), Status> {
        let used = (self.used_bytes - freed).checked_add(taken).ok_or(Status::NoSpc)?;
        if taken > freed && used > self.options.bytes_max {
            return Err(Status::NoSpc);
        }
        self.used_bytes = used;
        Ok(())
    }

    /// Changes the data of a regular file: its size, then the bytes at an offset below that size.
    ///
    /// # Errors
    /// `FBig`, `NoSpc`, and those of [`Tree::data`].
    pub(crate) fn store(
        &mut self,
        user: User<'_>,
        id: Id,
        size: u64,
        data: (u64, &[u8]),
    ) -> Result<(), Status> {
        let old = self.data(id)?.len() as u64;
        if size > i64::MAX as u64 {
            return Err(Status::FBig);
        }
        self.take_bytes(old, size)?;
        let inode = self.inode_mut(id)?;
        if let Content::Data { bytes, verifier } = &mut inode.content {
            *verifier = None;
            bytes.resize(size as usize, 0);
            if size < old {
                bytes.shrink_to_fit(); // freed bytes may go to other files
            }
            let to = data.0 as usize;
            bytes[to..to + data.1.len()].copy_from_slice(data.1);
        }
        inode.attributes.size = size;
        if !user.is_root() {
            drop_set_ids(user, &mut inode.attributes);
        }
        self.touch(id, true)
    }

    /// Sets attributes; all or none of them.
    pub(crate) fn set(&mut self, user: User<'_>, id: Id, set: &SetAttributes) -> Result<(), Status> {
        let symlink = self.attributes(id)?.file_type == FileType::Symlink;
        let set = SetAttributes { mode: set.mode.filter(|_| !symlink), ..*set };
        user.check_set(&self.attributes(id)?, &set)?;
        match set.size {
            Some(size) => self.store(user, id, size, (0, &[]))?,
            None => self.touch(id, false)?,
        }
        let Inode { attributes, content, .. } = self.inode_mut(id)?;
        if let Content::Data { verifier, .. } = content
            && (set.atime.is_some() || set.mtime.is_some())
        {
            *verifier = None;
        }
        if (set.uid.is_some() || set.gid.is_some()) && !attributes.is_dir() {
            drop_set_ids(user, attributes);
        }
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        if let Some(mode) = set.mode {
            let allowed = if user.is_in(attributes.gid) { 0o7777 } else { 0o5777 };
            attributes.mode = mode & allowed;
        }
        set_times(attributes, &set);
        Ok(())
    }

    /// Forgets a file that has neither a name nor an open.
    pub(crate) fn forget_if_unused(&mut self, id: Id) {
        if self.inodes.get(&id).is_some_and(|inode| inode.attributes.nlink == 0)
            && !self.is_open(id)
            && let Some(inode) = self.inodes.remove(&id)
        {
            self.used_bytes -= inode.attributes.size;
            if let Some(lease) = inode.lease {
                self.leases.remove(&lease);
            }
        }
    }
}

fn split(handle: u128) -> (u64, Id) {
    ((handle >> 64) as u64, handle as u64)
}

/// Clears set-user-id and set-group-id of a program, as Linux does when its data or owner changes.
fn drop_set_ids(user: User<'_>, file: &mut Attributes) {
    let group = if file.mode & 0o010 != 0 || !user.is_in(file.gid) { 0o2000 } else { 0 };
    file.mode &= !(0o4000 | group);
}

/// Sets the times that are given; the server's time is that of the change.
pub(crate) fn set_times(file: &mut Attributes, set: &SetAttributes) {
    let now = file.ctime;
    let time = |set: SetTime| match set {
        SetTime::Server => now,
        SetTime::Client(time) => time,
    };
    file.atime = set.atime.map_or(file.atime, time);
    file.mtime = set.mtime.map_or(file.mtime, time);
}
