//! Operations on names: find, make, remove, rename and link. Checks come before changes, so a failed
//! operation changes nothing.

use bytes::Bytes;
use vfs::{CreateHow, Device, FileType, Name, Renamed, SetAttributes, Status, Wcc};

use crate::shape::{NAME_BYTES, ROOT};
use crate::tree::{Changed, Content, Id, Names, Tree, check_values, set_times};

/// Limit of the names of a file.
pub(crate) const LINKS_MAX: u32 = 32_000;
/// Limit of the target of a symbolic link, in bytes.
const TARGET_BYTES_MAX: usize = 4096;

/// An object to make.
pub(crate) struct New {
    pub(crate) file_type: FileType,
    pub(crate) content: Content,
    pub(crate) device: Device,
}

impl New {
    pub(crate) fn of(file_type: FileType, content: Content) -> New {
        New { file_type, content, device: Device::default() }
    }

    pub(crate) fn regular(verifier: Option<vfs::Verifier>) -> New {
        New::of(FileType::Regular, Content::Data { bytes: Some(Vec::new()), verifier })
    }

    /// # Errors
    /// `Inval`, `NameTooLong`
    pub(crate) fn symlink(target: &[u8]) -> Result<New, Status> {
        if target.is_empty() || target.contains(&0) {
            return Err(Status::Inval);
        }
        if target.len() > TARGET_BYTES_MAX {
            return Err(Status::NameTooLong);
        }
        Ok(New::of(FileType::Symlink, Content::Target(Bytes::copy_from_slice(target))))
    }

    /// # Errors
    /// `BadType` for types with an operation of their own.
    pub(crate) fn special(file_type: FileType, device: Device) -> Result<New, Status> {
        match file_type {
            FileType::Block | FileType::Character => {
                Ok(New { device, ..New::of(file_type, Content::Nothing) })
            }
            FileType::Socket | FileType::Fifo => Ok(New::of(file_type, Content::Nothing)),
            FileType::Regular | FileType::Directory | FileType::Symlink => Err(Status::BadType),
        }
    }
}

/// What a name leads to.
#[derive(Clone, Copy)]
struct Found {
    id: Id,
    /// The index of a computed name; `None` for an added one.
    index: Option<u64>,
}

impl Found {
    /// The records of names that the removal of this name takes.
    fn removal(self) -> i64 {
        if self.index.is_some() { 1 } else { -1 }
    }
}

impl Tree {
    /// How the names of a directory have changed; `None` if they have not.
    ///
    /// # Errors
    /// `NotDir`, `Stale`
    pub(crate) fn names(&self, id: Id) -> Result<Option<&Names>, Status> {
        if !self.attributes(id)?.is_dir() {
            return Err(Status::NotDir);
        }
        match self.changed.get(&id).map(|changed| &changed.content) {
            Some(Content::Names(names)) => Ok(Some(names)),
            _ => Ok(None),
        }
    }

    fn names_mut(&mut self, id: Id) -> Result<&mut Names, Status> {
        match &mut self.changed_mut(id)?.content {
            Content::Names(names) => Ok(names),
            _ => Err(Status::NotDir),
        }
    }

    /// The directory of a directory.
    pub(crate) fn parent(&self, id: Id) -> Result<Id, Status> {
        Ok(self.names(id)?.map_or(ROOT, |names| names.parent))
    }

    fn look(&self, directory: Id, name: &Name) -> Result<Option<Found>, Status> {
        let names = self.names(directory)?;
        if let Some((_, id)) = names.and_then(|names| names.by_name.get(name)) {
            return Ok(Some(Found { id: *id, index: None }));
        }
        let index = self.shape.index_of(directory, name);
        let index = index.filter(|index| names.is_none_or(|names| !names.removed.contains(index)));
        Ok(index.map(|index| Found { id: self.shape.child(directory, index), index: Some(index) }))
    }

    /// The object of a name, if there is one.
    pub(crate) fn find(&self, directory: Id, name: &Name) -> Result<Option<Id>, Status> {
        Ok(self.look(directory, name)?.map(|found| found.id))
    }

    /// Makes an object, which belongs to `owner` unless `set` says otherwise.
    pub(crate) fn make(
        &mut self,
        owner: (u32, u32),
        directory: Id,
        name: &Name,
        new: New,
        set: &SetAttributes,
    ) -> Result<Id, Status> {
        self.check_absent(directory, name)?;
        check_values(set)?;
        self.reserve(&[directory], 2)?; // the object and its name
        let New { file_type, mut content, device } = new;
        let (mode, size) = match &mut content {
            Content::Data { .. } => (0o600, set.size.unwrap_or(0)),
            Content::Target(target) => (0o777, target.len() as u64),
            Content::Names(_) => (0o700, 0),
            _ => (0o600, 0),
        };
        if size > i64::MAX as u64 {
            return Err(Status::FBig);
        }
        self.take_bytes(0, size)?;
        if let Content::Data { bytes: Some(bytes), .. } = &mut content {
            bytes.resize(size as usize, 0);
        }
        let set_mode = set.mode.filter(|_| file_type != FileType::Symlink);
        let mut attributes = self.new_attributes(file_type, set_mode.unwrap_or(mode) & 0o7777);
        (attributes.size, attributes.used, attributes.rdev) = (size, size, device);
        (attributes.uid, attributes.gid) = (set.uid.unwrap_or(owner.0), set.gid.unwrap_or(owner.1));
        set_times(&mut attributes, set);
        let id = attributes.fileid;
        self.changed.insert(id, Changed { attributes, content });
        self.enter(directory, name, id)?;
        Ok(id)
    }

    /// Makes a regular file, or accepts an existing one. True if it is new.
    pub(crate) fn create(
        &mut self,
        owner: (u32, u32),
        directory: Id,
        name: &Name,
        (how, set): (CreateHow, &SetAttributes),
    ) -> Result<(Id, bool), Status> {
        let Some(id) = self.find(directory, name)? else {
            let (verifier, set) = match how {
                CreateHow::Exclusive(verifier) => (Some(verifier), SetAttributes { size: None, ..*set }),
                CreateHow::Unchecked | CreateHow::Guarded => (None, *set),
            };
            return Ok((self.make(owner, directory, name, New::regular(verifier), &set)?, true));
        };
        if self.attributes(id)?.file_type != FileType::Regular {
            return Err(Status::Exist);
        }
        let verifier = match self.changed.get(&id).map(|changed| &changed.content) {
            Some(Content::Data { verifier, .. }) => *verifier,
            _ => None,
        };
        match (how, set.size) {
            // The reply to an earlier transmission was lost.
            (CreateHow::Exclusive(sent), _) if verifier == Some(sent) => Ok((id, true)),
            (CreateHow::Exclusive(_) | CreateHow::Guarded, _) => Err(Status::Exist),
            (CreateHow::Unchecked, None) => Ok((id, false)),
            (CreateHow::Unchecked, Some(size)) => {
                self.store(id, size, (0, &[]))?;
                Ok((id, false))
            }
        }
    }

    /// Makes another name for a file.
    pub(crate) fn link(&mut self, file: Id, directory: Id, name: &Name) -> Result<(), Status> {
        self.names(directory)?;
        if self.attributes(file)?.is_dir() {
            return Err(Status::IsDir);
        }
        self.check_absent(directory, name)?;
        match self.attributes(file)?.nlink {
            0 => return Err(Status::NoEnt), // only opens keep it
            LINKS_MAX.. => return Err(Status::Mlink),
            _ => {}
        }
        self.reserve(&[file, directory], 1)?;
        self.changed_mut(file)?.attributes.nlink += 1;
        self.touch(file, false)?;
        self.enter(directory, name, file)
    }

    /// Removes a name: of a directory, or of any other object.
    pub(crate) fn remove(&mut self, directory: Id, name: &Name, as_directory: bool) -> Result<(), Status> {
        let found = self.look(directory, name)?.ok_or(Status::NoEnt)?;
        self.may_replace(found.id, as_directory)?;
        self.reserve(&[directory, found.id], found.removal())?;
        self.leave(directory, name, found)?;
        self.unlink(found.id)
    }

    /// Renames an object, and replaces what the new name leads to.
    pub(crate) fn rename(&mut self, from: (Id, &Name), to: (Id, &Name)) -> Result<Renamed, Status> {
        let before = (self.attributes(from.0)?.wcc(), self.attributes(to.0)?.wcc());
        self.names(to.0)?;
        let moved = self.look(from.0, from.1)?.ok_or(Status::NoEnt)?;
        let victim = self.look(to.0, to.1)?;
        // Two names of one file stay as they are.
        if victim.map(|victim| victim.id) != Some(moved.id) {
            self.may_rename(from.0, moved.id, to.0, victim.map(|victim| victim.id))?;
            let mut objects = vec![from.0, moved.id];
            objects.extend((to.0 != from.0).then_some(to.0));
            objects.extend(victim.map(|victim| victim.id));
            self.reserve(&objects, 1 + moved.removal() + victim.map_or(0, Found::removal))?;
            self.leave(from.0, from.1, moved)?;
            if let Some(victim) = victim {
                self.leave(to.0, to.1, victim)?;
                self.unlink(victim.id)?;
            }
            self.enter(to.0, to.1, moved.id)?;
            self.touch(moved.id, false)?;
        }
        let around = |before, id| Ok(Wcc::around(before, Some(self.attributes(id)?)));
        Ok(Renamed { from: around(before.0, from.0)?, to: around(before.1, to.0)? })
    }

    fn may_rename(&self, from: Id, moved: Id, to: Id, victim: Option<Id>) -> Result<(), Status> {
        let is_dir = self.attributes(moved)?.is_dir();
        if is_dir && self.is_within(to, moved)? {
            return Err(Status::Inval);
        }
        let Some(victim) = victim else { return Ok(()) };
        if self.is_within(from, victim)? {
            return Err(Status::NotEmpty);
        }
        self.may_replace(victim, is_dir)
    }

    /// May the name of an object go, as the name of a directory or of any other object?
    fn may_replace(&self, id: Id, as_directory: bool) -> Result<(), Status> {
        let is_dir = self.attributes(id)?.is_dir();
        match (is_dir, as_directory) {
            (true, false) => Err(Status::IsDir),
            (false, true) => Err(Status::NotDir),
            (true, true) if self.count(id)? > 0 => Err(Status::NotEmpty),
            _ => Ok(()),
        }
    }

    /// The names in a directory.
    fn count(&self, directory: Id) -> Result<u64, Status> {
        let computed = self.shape.names_in(directory);
        let changed = |names: &Names| computed - names.removed.len() as u64 + names.by_name.len() as u64;
        Ok(self.names(directory)?.map_or(computed, changed))
    }

    /// # Errors
    /// `Exist`
    fn check_absent(&self, directory: Id, name: &Name) -> Result<(), Status> {
        if self.look(directory, name)?.is_some() { Err(Status::Exist) } else { Ok(()) }
    }

    /// Is a directory the same as another one, or below it?
    fn is_within(&self, mut directory: Id, above: Id) -> Result<bool, Status> {
        while directory != above {
            if directory == ROOT {
                return Ok(false);
            }
            directory = self.parent(directory)?;
        }
        Ok(true)
    }

    /// Adds a name. The caller has reserved the records and counted the link.
    fn enter(&mut self, directory: Id, name: &Name, id: Id) -> Result<(), Status> {
        let cookie = self.number();
        if self.attributes(id)?.is_dir() {
            self.names_mut(id)?.parent = directory;
            self.changed_mut(directory)?.attributes.nlink += 1;
        }
        let names = self.names_mut(directory)?;
        names.by_name.insert(name.clone(), (cookie, id));
        names.by_cookie.insert(cookie, name.clone());
        self.names_count += 1;
        self.changed_mut(directory)?.attributes.size += NAME_BYTES;
        self.touch(directory, true)
    }

    /// Takes a name away. The caller has reserved the records and frees the link.
    fn leave(&mut self, directory: Id, name: &Name, found: Found) -> Result<(), Status> {
        let is_dir = self.attributes(found.id)?.is_dir();
        let names = self.names_mut(directory)?;
        if let Some(index) = found.index {
            names.removed.insert(index);
        } else if let Some((cookie, _)) = names.by_name.remove(name) {
            names.by_cookie.remove(&cookie);
        }
        self.names_count = self.names_count.saturating_add_signed(found.removal());
        let attributes = &mut self.changed_mut(directory)?.attributes;
        attributes.size -= NAME_BYTES;
        attributes.nlink -= u32::from(is_dir);
        self.touch(directory, true)
    }

    /// An object has lost a name.
    fn unlink(&mut self, id: Id) -> Result<(), Status> {
        self.touch(id, false)?;
        let attributes = &mut self.changed_mut(id)?.attributes;
        attributes.nlink = if attributes.is_dir() { 0 } else { attributes.nlink - 1 };
        self.forget_if_unused(id);
        Ok(())
    }
}
