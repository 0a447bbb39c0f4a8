//! Operations on names: find, make, remove, rename, link and list. Checks come before changes, so a failed
//! operation changes nothing. The order of the checks is that of Linux.

use std::ops::Bound;

use bytes::Bytes;
use vfs::{
    Attributes, CreateHow, Device, Entry, FileType, Listing, Name, ReadDir, Renamed, SetAttributes, Share,
    Status,
};

use crate::rights::{EXECUTE, READ, User, WRITE, check_values};
use crate::tree::{Content, Id, Inode, Names, Tree, set_times};

/// Limit of names of a file, and of directories in a directory.
pub(crate) const LINKS_MAX: u32 = 32_000;
/// Limit of the target of a symbolic link, in bytes.
const TARGET_BYTES_MAX: usize = 4096;
/// Bytes that a name takes of the bounds besides its own.
const NAME_BYTES: u64 = 32;
/// Approximate size of an encoded entry without its name, in READDIR and READDIRPLUS.
const ENTRY_BYTES: u32 = 24;
const ENTRY_PLUS_BYTES: u32 = 200;
/// Limit of the entries of one reply, in bytes.
const LISTING_BYTES_MAX: u32 = 1 << 20;

/// A file to make.
pub(crate) struct New {
    pub(crate) file_type: FileType,
    pub(crate) content: Content,
    pub(crate) device: Device,
}

impl New {
    pub(crate) fn of(file_type: FileType, content: Content) -> New {
        New { file_type, content, device: Device::default() }
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

impl Tree {
    /// # Errors
    /// `NotDir`
    pub(crate) fn names(&self, id: Id) -> Result<&Names, Status> {
        match &self.inode(id)?.content {
            Content::Names(names) => Ok(names),
            _ => Err(Status::NotDir),
        }
    }

    fn names_mut(&mut self, id: Id) -> Result<&mut Names, Status> {
        match &mut self.inode_mut(id)?.content {
            Content::Names(names) => Ok(names),
            _ => Err(Status::NotDir),
        }
    }

    /// The file of a name, if there is one.
    pub(crate) fn find(&self, user: User<'_>, directory: Id, name: &Name) -> Result<Option<Id>, Status> {
        let names = self.names(directory)?;
        user.check(&self.attributes(directory)?, EXECUTE)?;
        Ok(names.by_name.get(name).map(|(_, id)| *id))
    }

    /// Makes a file. Only root makes devices, and only root chooses owner and group; a request of another
    /// user for them is ignored, as in knfsd.
    pub(crate) fn make(
        &mut self,
        user: User<'_>,
        directory: Id,
        name: &Name,
        new: New,
        set: &SetAttributes,
    ) -> Result<Id, Status> {
        self.may_enter(user, directory, name)?;
        if matches!(new.file_type, FileType::Block | FileType::Character) && !user.is_root() {
            return Err(Status::Perm);
        }
        check_values(set)?;
        if self.inodes.len() as u64 >= self.options.files_max {
            return Err(Status::NoSpc);
        }
        let New { file_type, mut content, device } = new;
        let above = self.attributes(directory)?;
        let (mode, size) = match &mut content {
            Content::Data { .. } => (0o600, set.size.unwrap_or(0)),
            Content::Names(names) => {
                names.parent = directory;
                self.may_link(directory)?;
                (0o700, 0)
            }
            Content::Target(target) => (0, target.len() as u64),
            Content::Nothing => (0o600, 0),
        };
        if size > i64::MAX as u64 {
            return Err(Status::FBig);
        }
        self.take_bytes(0, name_bytes(name).checked_add(size).ok_or(Status::NoSpc)?)?;
        if let Content::Data { bytes, .. } = &mut content {
            bytes.resize(size as usize, 0);
        }
        let mut attributes = self.new_attributes(file_type, set.mode.unwrap_or(mode) & 0o7777);
        (attributes.size, attributes.used, attributes.rdev) = (size, size, device);
        belong(&mut attributes, user, &above, set);
        set_times(&mut attributes, set);
        let id = attributes.fileid;
        self.inodes.insert(id, Inode { attributes, content, lease: None });
        self.enter(directory, name, id)?;
        Ok(id)
    }

    /// Makes a regular file, or accepts an existing one, which must permit `access`. True if it is new.
    pub(crate) fn create(
        &mut self,
        user: User<'_>,
        directory: Id,
        name: &Name,
        (how, set): (CreateHow, &SetAttributes),
        access: Share,
    ) -> Result<(Id, bool), Status> {
        let Some(id) = self.find(user, directory, name)? else {
            let (verifier, set) = match how {
                CreateHow::Exclusive(verifier) => (Some(verifier), SetAttributes { size: None, ..*set }),
                CreateHow::Unchecked | CreateHow::Guarded => (None, *set),
            };
            let new = New::of(FileType::Regular, Content::Data { bytes: Vec::new(), verifier });
            return Ok((self.make(user, directory, name, new, &set)?, true));
        };
        let Inode { attributes, content: Content::Data { verifier, .. }, .. } = self.inode(id)? else {
            return Err(Status::Exist);
        };
        match (how, set.size) {
            // The reply to an earlier transmission was lost. A verifier that was overheard opens no file of
            // another user.
            (CreateHow::Exclusive(sent), _) if *verifier == Some(sent) && user.owns(attributes) => {
                Ok((id, true))
            }
            (CreateHow::Exclusive(_) | CreateHow::Guarded, _) => Err(Status::Exist),
            (CreateHow::Unchecked, None) => Ok((id, false)),
            (CreateHow::Unchecked, Some(size)) => {
                user.check_open(attributes, access)?;
                user.check_data(attributes, Share::WRITE)?;
                self.store(user, id, size, (0, &[]))?;
                Ok((id, false))
            }
        }
    }

    /// Makes another name for a file.
    pub(crate) fn link(
        &mut self,
        user: User<'_>,
        file: Id,
        directory: Id,
        name: &Name,
    ) -> Result<(), Status> {
        self.names(directory)?;
        if self.attributes(file)?.is_dir() {
            return Err(Status::IsDir);
        }
        self.may_enter(user, directory, name)?;
        self.may_link(file)?;
        self.take_bytes(0, name_bytes(name))?;
        self.inode_mut(file)?.attributes.nlink += 1;
        self.touch(file, false)?;
        self.enter(directory, name, file)
    }

    /// Removes a name: of a directory, or of any other file.
    pub(crate) fn remove(
        &mut self,
        user: User<'_>,
        directory: Id,
        name: &Name,
        as_directory: bool,
    ) -> Result<(), Status> {
        let id = self.find(user, directory, name)?.ok_or(Status::NoEnt)?;
        user.check_removal(&self.attributes(directory)?, &self.attributes(id)?)?;
        self.may_replace(id, as_directory)?;
        self.leave(directory, name)?;
        self.used_bytes -= name_bytes(name);
        self.unlink(id)
    }

    /// Renames a file, and replaces what the new name leads to.
    pub(crate) fn rename(
        &mut self,
        user: User<'_>,
        from: (Id, &Name),
        to: (Id, &Name),
    ) -> Result<Renamed, Status> {
        let before = (self.attributes(from.0)?.wcc(), self.attributes(to.0)?.wcc());
        self.names(to.0)?;
        let moved = self.find(user, from.0, from.1)?.ok_or(Status::NoEnt)?;
        let victim = self.find(user, to.0, to.1)?;
        // Two names of one file stay as they are.
        if victim != Some(moved) {
            self.may_rename(user, from.0, moved, to.0, victim)?;
            let taken = if victim.is_some() { 0 } else { name_bytes(to.1) };
            self.take_bytes(name_bytes(from.1), taken)?;
            self.leave(from.0, from.1)?;
            if let Some(victim) = victim {
                self.leave(to.0, to.1)?;
                self.unlink(victim)?;
            }
            self.enter(to.0, to.1, moved)?;
            self.touch(moved, false)?;
        }
        let around = |before, id| Ok(vfs::Wcc::around(before, Some(self.attributes(id)?)));
        Ok(Renamed { from: around(before.0, from.0)?, to: around(before.1, to.0)? })
    }

    fn may_rename(
        &self,
        user: User<'_>,
        from: Id,
        moved: Id,
        to: Id,
        victim: Option<Id>,
    ) -> Result<(), Status> {
        let (source, target, file) = (self.attributes(from)?, self.attributes(to)?, self.attributes(moved)?);
        if file.is_dir() && self.is_within(to, moved)? {
            return Err(Status::Inval);
        }
        if let Some(victim) = victim
            && self.is_within(from, victim)?
        {
            return Err(Status::NotEmpty);
        }
        user.check_removal(&source, &file)?;
        match victim {
            Some(victim) => {
                user.check_removal(&target, &self.attributes(victim)?)?;
                self.may_replace(victim, file.is_dir())?;
            }
            None => user.check(&target, WRITE | EXECUTE)?,
        }
        if file.is_dir() && from != to {
            user.check(&file, WRITE)?; // its parent changes
            self.may_link(to)?;
        }
        Ok(())
    }

    /// May the name of a file go, as the name of a directory or of any other file?
    fn may_replace(&self, id: Id, as_directory: bool) -> Result<(), Status> {
        match (&self.inode(id)?.content, as_directory) {
            (Content::Names(_), false) => Err(Status::IsDir),
            (Content::Names(names), true) if !names.by_name.is_empty() => Err(Status::NotEmpty),
            (Content::Names(_), true) | (_, false) => Ok(()),
            (_, true) => Err(Status::NotDir),
        }
    }

    /// May the user make this name?
    fn may_enter(&self, user: User<'_>, directory: Id, name: &Name) -> Result<(), Status> {
        if self.find(user, directory, name)?.is_some() {
            return Err(Status::Exist);
        }
        user.check(&self.attributes(directory)?, WRITE | EXECUTE)
    }

    fn may_link(&self, id: Id) -> Result<(), Status> {
        match self.attributes(id)?.nlink {
            0 => Err(Status::NoEnt), // only opens keep it
            LINKS_MAX.. => Err(Status::Mlink),
            _ => Ok(()),
        }
    }

    /// Is a directory the same as another one, or below it?
    fn is_within(&self, mut directory: Id, above: Id) -> Result<bool, Status> {
        while directory != above {
            if directory == self.root {
                return Ok(false);
            }
            directory = self.names(directory)?.parent;
        }
        Ok(true)
    }

    /// Adds a name. The caller has taken its bytes and counted its link.
    fn enter(&mut self, directory: Id, name: &Name, id: Id) -> Result<(), Status> {
        let cookie = self.number();
        if let Content::Names(names) = &mut self.inode_mut(id)?.content {
            names.parent = directory;
            self.inode_mut(directory)?.attributes.nlink += 1;
        }
        let names = self.names_mut(directory)?;
        names.by_name.insert(name.clone(), (cookie, id));
        names.by_cookie.insert(cookie, name.clone());
        self.inode_mut(directory)?.attributes.size += name_bytes(name);
        self.touch(directory, true)
    }

    /// Takes a name away. The caller frees its bytes and its link.
    fn leave(&mut self, directory: Id, name: &Name) -> Result<(), Status> {
        let names = self.names_mut(directory)?;
        let (cookie, id) = names.by_name.remove(name).ok_or(Status::NoEnt)?;
        names.by_cookie.remove(&cookie);
        if self.attributes(id)?.is_dir() {
            self.inode_mut(directory)?.attributes.nlink -= 1;
        }
        self.inode_mut(directory)?.attributes.size -= name_bytes(name);
        self.touch(directory, true)
    }

    /// A file has lost a name.
    fn unlink(&mut self, id: Id) -> Result<(), Status> {
        self.touch(id, false)?;
        let attributes = &mut self.inode_mut(id)?.attributes;
        attributes.nlink = if attributes.is_dir() { 0 } else { attributes.nlink - 1 };
        self.forget_if_unused(id);
        Ok(())
    }

    /// Part of a directory. A verifier of zeros is that of a version 2 client, which has none.
    pub(crate) fn list(&self, user: User<'_>, directory: Id, part: ReadDir) -> Result<Listing, Status> {
        let (names, attributes) = (self.names(directory)?, self.attributes(directory)?);
        user.check(&attributes, READ)?;
        let known = part.verifier == self.verifier() || part.verifier == [0; 8];
        if part.cookie >= Entry::FIRST_COOKIE && !known {
            return Err(Status::BadCookie);
        }
        let plus = part.plus && user.check(&attributes, EXECUTE).is_ok();
        let each = if part.plus { ENTRY_PLUS_BYTES } else { ENTRY_BYTES };
        let (mut entries, mut bytes, mut eof) = (Vec::new(), 0, true);
        for (cookie, name) in names.by_cookie.range((Bound::Excluded(part.cookie), Bound::Unbounded)) {
            bytes += each + name.as_bytes().len() as u32;
            if bytes > part.bytes.min(LISTING_BYTES_MAX) && !entries.is_empty() {
                eof = false;
                break;
            }
            let Some((_, id)) = names.by_name.get(name) else { continue };
            let node = if plus { Some(self.node(*id)?) } else { None };
            entries.push(Entry { name: name.clone(), fileid: *id, cookie: *cookie, node, file_type: None });
        }
        let directory = Some(attributes);
        Ok(Listing { entries, verifier: self.verifier(), eof, directory, directory_lease: None })
    }
}

/// Decides about owner, group and set-id bits of a new file in the directory `above`.
fn belong(file: &mut Attributes, user: User<'_>, above: &Attributes, set: &SetAttributes) {
    (file.uid, file.gid) = (user.uid(), user.gid());
    match file.file_type {
        FileType::Symlink => file.mode = 0o777,
        FileType::Directory => file.mode &= 0o1777,
        _ => {}
    }
    if above.mode & 0o2000 != 0 {
        file.gid = above.gid;
        if file.is_dir() {
            file.mode |= 0o2000;
        } else if file.mode & 0o010 != 0 && !user.is_in(file.gid) {
            file.mode &= !0o2000;
        }
    }
    if user.is_root() {
        file.uid = set.uid.unwrap_or(file.uid);
        file.gid = set.gid.unwrap_or(file.gid);
    }
}

fn name_bytes(name: &Name) -> u64 {
    NAME_BYTES + name.as_bytes().len() as u64
}
