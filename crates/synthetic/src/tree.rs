//! The tree as it is now: the computed one, and over it the objects that clients have changed, made or
//! removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};

use bytes::Bytes;
use vfs::{
    Attributes, Device, Entry, FileType, Fsid, Handle, HolderId, Name, Node, OpenId, Owner, SetAttributes,
    SetTime, Status, Timestamp, Verifier, Wcc,
};

use crate::Options;
use crate::opens::Open;
pub(crate) use crate::shape::Id;
use crate::shape::{ROOT, Shape};

/// What an object of the overlay has besides its attributes.
pub(crate) enum Content {
    /// A regular file. Without bytes of its own, it has the computed ones. The verifier is that of the
    /// exclusive create that made it, until its data or times are set.
    Data { bytes: Option<Vec<u8>>, verifier: Option<Verifier> },
    /// A directory.
    Names(Names),
    /// A symbolic link.
    Target(Bytes),
    /// A device, socket or named pipe.
    Nothing,
    /// A computed object without a name and an open: its handle is stale.
    Removed,
}

/// How the names of a directory differ from the computed ones. The cookie of an added name is a number that
/// no other name gets, so a listing goes on behind it even if the name is gone.
pub(crate) struct Names {
    pub(crate) parent: Id,
    /// Indices of computed names.
    pub(crate) removed: BTreeSet<u64>,
    pub(crate) by_name: BTreeMap<Name, (u64, Id)>,
    pub(crate) by_cookie: BTreeMap<u64, Name>,
}

impl Names {
    pub(crate) fn below(parent: Id) -> Names {
        let (removed, by_name, by_cookie) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Names { parent, removed, by_name, by_cookie }
    }
}

/// An object of the overlay.
pub(crate) struct Changed {
    pub(crate) attributes: Attributes,
    pub(crate) content: Content,
}

/// Everything behind the lock.
pub(crate) struct Tree {
    pub(crate) shape: Shape,
    pub(crate) options: Options,
    /// Tells objects that clients made from those of earlier processes; the write verifier too.
    incarnation: u64,
    pub(crate) changed: HashMap<Id, Changed>,
    /// Added and removed names of all directories.
    pub(crate) names_count: u64,
    /// Bytes that the overlay holds.
    pub(crate) used_bytes: u64,
    pub(crate) opens: HashMap<OpenId, Open>,
    pub(crate) open_of: BTreeMap<(Id, Option<HolderId>, Owner), OpenId>,
    last_number: u64,
    last_nanos: i128,
}

impl Tree {
    pub(crate) fn new(shape: Shape, options: Options) -> Tree {
        Tree {
            shape,
            options,
            incarnation: RandomState::new().hash_one(()),
            changed: HashMap::new(),
            names_count: 0,
            used_bytes: 0,
            opens: HashMap::new(),
            open_of: BTreeMap::new(),
            last_number: shape.end() + Entry::FIRST_COOKIE,
            last_nanos: 0,
        }
    }

    /// A number that is given once: for an object, cookie, open or lease. No computed object or name has it.
    pub(crate) fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The time of a change: later than that of each change before.
    pub(crate) fn now(&mut self) -> Timestamp {
        self.last_nanos = self.options.clock.wall().as_nanos().max(self.last_nanos + 1);
        Timestamp::from_nanos(self.last_nanos)
    }

    /// Attributes of a new object without contents, which belongs to root.
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
            fsid: Fsid { major: self.shape.key(), minor: 0 },
            fileid: self.number(),
            atime: now,
            mtime: now,
            ctime: now,
            change: now.as_nanos() as u64,
        }
    }

    /// # Errors
    /// `BadHandle`; `Stale` if the object is gone.
    pub(crate) fn id(&self, handle: &Handle) -> Result<Id, Status> {
        let bytes: [u8; 16] = handle.as_bytes().try_into().map_err(|_| Status::BadHandle)?;
        let both = u128::from_be_bytes(bytes);
        let (key, id) = ((both >> 64) as u64, both as u64);
        if key != self.key_of(id) {
            return Err(Status::Stale);
        }
        self.attributes(id).map(|_| id)
    }

    /// The part of a handle that tells its object from those of other trees and processes.
    fn key_of(&self, id: Id) -> u64 {
        if self.shape.file_type(id).is_some() { self.shape.key() } else { self.incarnation }
    }

    /// The object and its attributes.
    pub(crate) fn node(&self, id: Id) -> Result<Node, Status> {
        let bytes = (u128::from(self.key_of(id)) << 64 | u128::from(id)).to_be_bytes();
        let handle = Handle::new(&bytes).ok_or(Status::ServerFault)?;
        Ok(Node { handle, attributes: Some(self.attributes(id)?) })
    }

    /// The write and cookie verifier.
    pub(crate) fn verifier(&self) -> Verifier {
        self.incarnation.to_be_bytes()
    }

    /// The attributes of an object.
    ///
    /// # Errors
    /// `Stale`
    pub(crate) fn attributes(&self, id: Id) -> Result<Attributes, Status> {
        match self.changed.get(&id) {
            Some(Changed { content: Content::Removed, .. }) => Err(Status::Stale),
            Some(changed) => Ok(changed.attributes),
            None => self.shape.attributes(id).ok_or(Status::Stale),
        }
    }

    /// The object in the overlay, which it enters now if nobody has changed it before. The caller has
    /// [reserved](Tree::reserve) the record.
    pub(crate) fn changed_mut(&mut self, id: Id) -> Result<&mut Changed, Status> {
        if !self.changed.contains_key(&id) {
            let attributes = self.attributes(id)?;
            let content = match attributes.file_type {
                FileType::Directory => Content::Names(Names::below(ROOT)),
                _ => Content::Data { bytes: None, verifier: None },
            };
            self.changed.insert(id, Changed { attributes, content });
        }
        self.changed.get_mut(&id).ok_or(Status::Stale)
    }

    /// Can the overlay take these objects, and so many more names? A change that takes no record is always
    /// possible.
    ///
    /// # Errors
    /// `NoSpc`
    pub(crate) fn reserve(&self, objects: &[Id], names: i64) -> Result<(), Status> {
        let new = objects.iter().filter(|id| !self.changed.contains_key(id)).count() as i64;
        let taken = new + names;
        let records = self.records() as i64 + taken;
        if taken > 0 && records > self.options.records_max as i64 { Err(Status::NoSpc) } else { Ok(()) }
    }

    /// The records of the overlay.
    pub(crate) fn records(&self) -> u64 {
        self.changed.len() as u64 + self.names_count
    }

    /// # Errors
    /// `IsDir`; `Inval` for other types than regular files.
    pub(crate) fn check_regular(&self, id: Id) -> Result<(), Status> {
        match self.attributes(id)?.file_type {
            FileType::Regular => Ok(()),
            FileType::Directory => Err(Status::IsDir),
            _ => Err(Status::Inval),
        }
    }

    /// Bytes of a regular file: at most `count` from `offset`.
    pub(crate) fn read(&self, id: Id, offset: u64, count: u64) -> Bytes {
        let Some(Changed { content: Content::Data { bytes: Some(bytes), .. }, .. }) = self.changed.get(&id)
        else {
            return self.shape.read(id, offset, count).into();
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let rest = &bytes[from..];
        Bytes::copy_from_slice(&rest[..rest.len().min(count as usize)])
    }

    /// The states around a change of one object.
    pub(crate) fn around<T>(
        &mut self,
        id: Id,
        change: impl FnOnce(&mut Tree) -> Result<T, Status>,
    ) -> Result<(T, Wcc), Status> {
        let before = self.attributes(id)?.wcc();
        let done = change(self)?;
        Ok((done, Wcc::around(before, self.attributes(id).ok())))
    }

    /// Marks an object as changed now, data included or not.
    pub(crate) fn touch(&mut self, id: Id, data: bool) -> Result<(), Status> {
        let now = self.now();
        let attributes = &mut self.changed_mut(id)?.attributes;
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

    /// Changes the data of a regular file: its size, then the bytes at an offset below that size. The file
    /// has bytes of its own from now on.
    ///
    /// # Errors
    /// `FBig`, `NoSpc`, and those of [`Tree::check_regular`].
    pub(crate) fn store(&mut self, id: Id, size: u64, data: (u64, &[u8])) -> Result<(), Status> {
        self.check_regular(id)?;
        if size > i64::MAX as u64 {
            return Err(Status::FBig);
        }
        self.reserve(&[id], 0)?;
        self.take_bytes(self.held_bytes(id), size)?;
        let computed = self.shape;
        let changed = self.changed_mut(id)?;
        if let Content::Data { bytes, verifier } = &mut changed.content {
            *verifier = None;
            let bytes = bytes.get_or_insert_with(|| computed.read(id, 0, size));
            let old = bytes.len() as u64;
            bytes.resize(size as usize, 0);
            if size < old {
                bytes.shrink_to_fit(); // freed bytes may go to other files
            }
            let to = data.0 as usize;
            bytes[to..to + data.1.len()].copy_from_slice(data.1);
        }
        changed.attributes.size = size;
        self.touch(id, true)
    }

    /// The bytes that the overlay holds of an object.
    pub(crate) fn held_bytes(&self, id: Id) -> u64 {
        match self.changed.get(&id).map(|changed| &changed.content) {
            Some(Content::Data { bytes: Some(bytes), .. }) => bytes.len() as u64,
            Some(Content::Target(target)) => target.len() as u64,
            _ => 0,
        }
    }

    /// Sets attributes; all or none of them.
    pub(crate) fn set(&mut self, id: Id, set: &SetAttributes) -> Result<(), Status> {
        check_values(set)?;
        if let Some(size) = set.size {
            self.store(id, size, (0, &[]))?;
        } else {
            self.reserve(&[id], 0)?;
            self.touch(id, false)?;
        }
        let Changed { attributes, content } = self.changed_mut(id)?;
        if let Content::Data { verifier, .. } = content
            && (set.atime.is_some() || set.mtime.is_some())
        {
            *verifier = None;
        }
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        if attributes.file_type != FileType::Symlink {
            attributes.mode = set.mode.unwrap_or(attributes.mode) & 0o7777;
        }
        set_times(attributes, set);
        Ok(())
    }

    /// Forgets an object that has neither a name nor an open. A computed object stays in the overlay as
    /// removed.
    pub(crate) fn forget_if_unused(&mut self, id: Id) {
        if self.is_open(id) || self.changed.get(&id).is_none_or(|changed| changed.attributes.nlink > 0) {
            return;
        }
        self.used_bytes -= self.held_bytes(id);
        let is_computed = self.shape.file_type(id).is_some();
        let Some(mut changed) = self.changed.remove(&id) else { return };
        if let Content::Names(names) = &changed.content {
            self.names_count -= (names.removed.len() + names.by_name.len()) as u64;
        }
        if is_computed {
            changed.content = Content::Removed;
            self.changed.insert(id, changed);
        }
    }
}

/// # Errors
/// `Inval` for an owner or group that means "leave unchanged" to Linux, and for a time that is none.
pub(crate) fn check_values(set: &SetAttributes) -> Result<(), Status> {
    let is_time = |time: Option<SetTime>| match time {
        Some(SetTime::Client(time)) => time.nanoseconds < 1_000_000_000,
        _ => true,
    };
    let is_id = |id: Option<u32>| id != Some(u32::MAX);
    let valid = is_id(set.uid) && is_id(set.gid) && is_time(set.atime) && is_time(set.mtime);
    if valid { Ok(()) } else { Err(Status::Inval) }
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
