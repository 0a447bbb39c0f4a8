//! A file system in memory, with timestamps of any granularity.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;

use bytes::Bytes;
use vfs::{
    AccessMask, Attributes, CreateHow, Created, Device, Entry, Error, FileType, Fsid, Handle, Listing,
    Looked, Name, Node, Principal, Read, ReadDir, Renamed, Result, SetAttributes, SetTime, Status, Timestamp,
    Wcc,
};

pub const ROOT: u64 = 1;

#[derive(Clone, Debug)]
pub struct Inode {
    pub attributes: Attributes,
    pub data: Vec<u8>,
    pub names: BTreeMap<Name, (u64, u64)>,
    pub target: Vec<u8>,
    parent: u64,
    next_cookie: u64,
}

pub struct Tree {
    pub inodes: BTreeMap<u64, Inode>,
    next: u64,
    pub now_nanos: i128,
    pub granularity_nanos: i128,
    /// Every change moves the clock by the granularity, so that no two changes have the same timestamp.
    pub ticks: bool,
    /// Keeps no history of contents, because there would be too much of it.
    pub forgetful: bool,
    /// The successive versions of each file.
    pub history: BTreeMap<u64, Vec<Version>>,
    /// The successive states of the names in the root.
    pub names_history: Vec<BTreeMap<Name, u64>>,
}

/// The contents of a file at one time.
#[derive(Clone, Debug)]
pub struct Version {
    pub data: Vec<u8>,
    pub attributes: Attributes,
}

pub fn handle(id: u64) -> Handle {
    Handle::new(&id.to_be_bytes()).unwrap()
}

pub fn id(handle: &Handle) -> u64 {
    u64::from_be_bytes(handle.as_bytes().try_into().unwrap())
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

impl Tree {
    pub fn new(now_nanos: i128, granularity_nanos: i128) -> Tree {
        let mut tree = Tree {
            inodes: BTreeMap::new(),
            next: ROOT,
            now_nanos,
            granularity_nanos,
            ticks: false,
            forgetful: false,
            history: BTreeMap::new(),
            names_history: vec![BTreeMap::new()],
        };
        let root = tree.inode(FileType::Directory, 0o755, 0, 0);
        tree.inodes.get_mut(&root).unwrap().parent = root;
        tree
    }

    fn stamp(&self) -> Timestamp {
        Timestamp::from_nanos(self.now_nanos.div_euclid(self.granularity_nanos) * self.granularity_nanos)
    }

    fn inode(&mut self, file_type: FileType, mode: u32, uid: u32, gid: u32) -> u64 {
        let id = self.next;
        self.next += 1;
        let time = self.stamp();
        let nlink = if file_type == FileType::Directory { 2 } else { 1 };
        let attributes = Attributes {
            file_type,
            mode,
            nlink,
            uid,
            gid,
            size: 0,
            used: 0,
            rdev: Device::default(),
            fsid: Fsid { major: 1, minor: 0 },
            fileid: id,
            atime: time,
            mtime: time,
            ctime: time,
            change: 0,
        };
        let inode = Inode {
            attributes,
            data: vec![],
            names: BTreeMap::new(),
            target: vec![],
            parent: 0,
            next_cookie: 3,
        };
        self.inodes.insert(id, inode);
        self.history.insert(id, vec![Version { data: vec![], attributes }]);
        id
    }

    pub fn id(&self, handle: &Handle) -> Result<u64> {
        let id =
            u64::from_be_bytes(handle.as_bytes().try_into().map_err(|_| Error::from(Status::BadHandle))?);
        if self.inodes.contains_key(&id) { Ok(id) } else { Err(Status::Stale.into()) }
    }

    pub fn get(&self, handle: &Handle) -> Result<&Inode> {
        Ok(&self.inodes[&self.id(handle)?])
    }

    fn at(&mut self, id: u64) -> &mut Inode {
        self.inodes.get_mut(&id).unwrap()
    }

    fn touch(&mut self, id: u64, data: bool) {
        if self.ticks {
            self.now_nanos += self.granularity_nanos;
        }
        let time = self.stamp();
        let inode = self.at(id);
        inode.attributes.ctime = time;
        if data {
            inode.attributes.mtime = time;
        }
        if inode.attributes.file_type == FileType::Regular {
            inode.attributes.size = inode.data.len() as u64;
        }
        inode.attributes.change = time.as_nanos() as u64;
        if self.forgetful {
            return;
        }
        let inode = &self.inodes[&id];
        let version = Version { data: inode.data.clone(), attributes: inode.attributes };
        if id == ROOT {
            let names = inode.names.iter().map(|(name, (id, _))| (name.clone(), *id)).collect();
            self.names_history.push(names);
        }
        self.history.entry(id).or_default().push(version);
    }

    fn wcc<T>(&mut self, id: u64, work: impl FnOnce(&mut Tree) -> Result<T>) -> Result<(T, Wcc)> {
        let before = self.inodes[&id].attributes;
        match work(self) {
            Ok(value) => {
                let after = self.inodes.get(&id).map(|inode| inode.attributes);
                Ok((value, Wcc::around(before.wcc(), after)))
            }
            Err(error) => Err(error.with(self.inodes.get(&id).map(|inode| inode.attributes))),
        }
    }

    fn directory(&self, handle: &Handle) -> Result<u64> {
        let id = self.id(handle)?;
        if self.inodes[&id].attributes.is_dir() { Ok(id) } else { Err(Status::NotDir.into()) }
    }

    pub fn allowed(&self, principal: &Principal, handle: &Handle) -> Result<AccessMask> {
        let attributes = self.get(handle)?.attributes;
        let (uid, gid) = match principal {
            Principal::Machine => return Ok(AccessMask::all()),
            Principal::Unix(credential) => (credential.uid, credential.gid),
        };
        if uid == 0 {
            return Ok(AccessMask::all());
        }
        let bits = match () {
            () if uid == attributes.uid => attributes.mode >> 6,
            () if gid == attributes.gid => attributes.mode >> 3,
            () => attributes.mode,
        };
        let mut mask = AccessMask::empty();
        if bits & 4 != 0 {
            mask |= AccessMask::READ;
        }
        if bits & 2 != 0 {
            mask |= AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::DELETE;
        }
        if bits & 1 != 0 {
            mask |= if attributes.is_dir() { AccessMask::LOOKUP } else { AccessMask::EXECUTE };
        }
        Ok(mask)
    }

    fn need(&self, principal: &Principal, handle: &Handle, bit: AccessMask) -> Result<()> {
        let attributes = self.get(handle)?.attributes;
        let owner =
            matches!(principal, Principal::Unix(c) if c.uid == attributes.uid) && !attributes.is_dir();
        if owner || self.allowed(principal, handle)?.contains(bit) {
            Ok(())
        } else {
            Err(Error::from(Status::Access).with(Some(attributes)))
        }
    }

    pub fn lookup(&self, principal: &Principal, directory: &Handle, name: &Name) -> Result<Looked> {
        let id = self.directory(directory)?;
        self.need(principal, directory, AccessMask::LOOKUP)?;
        let inode = &self.inodes[&id];
        let there = Some(inode.attributes);
        let Some((child, _)) = inode.names.get(name) else {
            return Err(Error::from(Status::NoEnt).with(there));
        };
        Ok(Looked { node: self.node(*child), directory: there, directory_lease: None })
    }

    pub fn parent(&self, directory: &Handle) -> Result<Looked> {
        let inode = self.get(directory)?;
        Ok(Looked { node: self.node(inode.parent), directory: Some(inode.attributes), directory_lease: None })
    }

    pub fn node(&self, id: u64) -> Node {
        Node { handle: handle(id), attributes: Some(self.inodes[&id].attributes) }
    }

    pub fn read(&self, principal: &Principal, handle: &Handle, offset: u64, count: u32) -> Result<Read> {
        self.need(principal, handle, AccessMask::READ)?;
        let inode = self.get(handle)?;
        if inode.attributes.is_dir() {
            return Err(Status::IsDir.into());
        }
        let size = inode.data.len() as u64;
        let (start, end) = (offset.min(size), offset.saturating_add(u64::from(count)).min(size));
        let data = Bytes::copy_from_slice(&inode.data[start as usize..end as usize]);
        Ok(Read { data: vfs::Data::Bytes(data), eof: end == size, attributes: Some(inode.attributes) })
    }

    pub fn write(&mut self, handle: &Handle, offset: u64, data: &[u8]) -> Result<Wcc> {
        let id = self.id(handle)?;
        let write = |tree: &mut Tree| {
            let end = offset as usize + data.len();
            let inode = tree.at(id);
            if inode.data.len() < end {
                inode.data.resize(end, 0);
            }
            inode.data[offset as usize..end].copy_from_slice(data);
            tree.touch(id, true);
            Ok(())
        };
        self.wcc(id, write).map(|((), wcc)| wcc)
    }

    pub fn setattr(&mut self, handle: &Handle, set: &SetAttributes, guard: Option<Timestamp>) -> Result<Wcc> {
        let id = self.id(handle)?;
        let work = |tree: &mut Tree| {
            if guard.is_some_and(|guard| guard != tree.inodes[&id].attributes.ctime) {
                return Err(Status::NotSync.into());
            }
            if tree.ticks {
                tree.now_nanos += tree.granularity_nanos;
            }
            let now = tree.stamp();
            let inode = tree.at(id);
            if let Some(size) = set.size {
                inode.data.resize(size as usize, 0);
                inode.attributes.mtime = now;
            }
            let attributes = &mut inode.attributes;
            attributes.mode = set.mode.unwrap_or(attributes.mode);
            attributes.uid = set.uid.unwrap_or(attributes.uid);
            attributes.gid = set.gid.unwrap_or(attributes.gid);
            match set.mtime {
                Some(SetTime::Server) => attributes.mtime = now,
                Some(SetTime::Client(time)) => attributes.mtime = time,
                None => {}
            }
            tree.touch(id, false);
            Ok(())
        };
        self.wcc(id, work).map(|((), wcc)| wcc)
    }

    fn enter(&mut self, directory: u64, name: &Name, child: u64) {
        let inode = self.at(directory);
        let cookie = inode.next_cookie;
        inode.next_cookie += 1;
        inode.names.insert(name.clone(), (child, cookie));
        self.touch(directory, true);
    }

    pub fn make(
        &mut self,
        directory: &Handle,
        name: &Name,
        file_type: FileType,
        how: CreateHow,
        set: &SetAttributes,
        target: &[u8],
    ) -> Result<Created> {
        let parent = self.directory(directory)?;
        let work = |tree: &mut Tree| {
            if let Some((there, _)) = tree.inodes[&parent].names.get(name).copied() {
                if how != CreateHow::Unchecked {
                    return Err(Status::Exist.into());
                }
                if set.size.is_some() {
                    let cut = SetAttributes { size: set.size, ..SetAttributes::default() };
                    tree.setattr(&handle(there), &cut, None)?;
                }
                return Ok(tree.node(there));
            }
            let default = if file_type == FileType::Directory { 0o755 } else { 0o644 };
            let mode = set.mode.unwrap_or(default);
            let id = tree.inode(file_type, mode, set.uid.unwrap_or(0), set.gid.unwrap_or(0));
            let inode = tree.at(id);
            inode.parent = parent;
            inode.target = target.to_vec();
            tree.enter(parent, name, id);
            if file_type == FileType::Directory {
                tree.at(parent).attributes.nlink += 1;
            }
            Ok(tree.node(id))
        };
        let (node, directory) = self.wcc(parent, work)?;
        Ok(Created { node, directory, lease: None })
    }

    pub fn remove(&mut self, directory: &Handle, name: &Name, rmdir: bool) -> Result<Wcc> {
        let parent = self.directory(directory)?;
        let work = |tree: &mut Tree| {
            let Some((child, _)) = tree.inodes[&parent].names.get(name).copied() else {
                return Err(Status::NoEnt.into());
            };
            let inode = &tree.inodes[&child];
            match (inode.attributes.is_dir(), rmdir) {
                (true, false) => return Err(Status::IsDir.into()),
                (false, true) => return Err(Status::NotDir.into()),
                (true, true) if !inode.names.is_empty() => return Err(Status::NotEmpty.into()),
                _ => {}
            }
            tree.at(parent).names.remove(name);
            tree.touch(parent, true);
            tree.unlink(child, parent);
            Ok(())
        };
        self.wcc(parent, work).map(|((), wcc)| wcc)
    }

    fn unlink(&mut self, child: u64, parent: u64) {
        let inode = self.at(child);
        inode.attributes.nlink -= 1;
        let is_dir = inode.attributes.is_dir();
        if is_dir || inode.attributes.nlink == 0 {
            self.inodes.remove(&child);
        } else {
            self.touch(child, false);
        }
        if is_dir {
            self.at(parent).attributes.nlink -= 1;
        }
    }

    pub fn rename(&mut self, from: (&Handle, &Name), to: (&Handle, &Name)) -> Result<Renamed> {
        let (source, target) = (self.directory(from.0)?, self.directory(to.0)?);
        let (before_source, before_target) =
            (self.inodes[&source].attributes, self.inodes[&target].attributes);
        let Some((child, _)) = self.inodes[&source].names.get(from.1).copied() else {
            return Err(Status::NoEnt.into());
        };
        let replaced = self.inodes[&target].names.get(to.1).map(|(id, _)| *id);
        if replaced != Some(child) {
            if let Some(replaced) = replaced {
                if !self.inodes[&replaced].names.is_empty() {
                    return Err(Status::NotEmpty.into());
                }
                self.at(target).names.remove(to.1);
                self.unlink(replaced, target);
            }
            self.at(source).names.remove(from.1);
            self.touch(source, true);
            self.enter(target, to.1, child);
            self.touch(child, false);
            if self.inodes[&child].attributes.is_dir() {
                self.at(source).attributes.nlink -= 1;
                self.at(target).attributes.nlink += 1;
                self.at(child).parent = target;
            }
        }
        let after = |tree: &Tree, id| Some(tree.inodes[&id].attributes);
        Ok(Renamed {
            from: Wcc::around(before_source.wcc(), after(self, source)),
            to: Wcc::around(before_target.wcc(), after(self, target)),
        })
    }

    pub fn link(&mut self, file: &Handle, directory: &Handle, name: &Name) -> Result<Created> {
        let (file, parent) = (self.id(file)?, self.directory(directory)?);
        let work = |tree: &mut Tree| {
            if tree.inodes[&parent].names.contains_key(name) {
                return Err(Status::Exist.into());
            }
            tree.at(file).attributes.nlink += 1;
            tree.touch(file, false);
            tree.enter(parent, name, file);
            Ok(tree.node(file))
        };
        let (node, directory) = self.wcc(parent, work)?;
        Ok(Created { node, directory, lease: None })
    }

    pub fn readdir(&self, principal: &Principal, directory: &Handle, part: ReadDir) -> Result<Listing> {
        let id = self.directory(directory)?;
        self.need(principal, directory, AccessMask::READ)?;
        let inode = &self.inodes[&id];
        let mut order: Vec<_> = inode.names.iter().map(|(name, (id, cookie))| (*cookie, name, *id)).collect();
        order.sort_unstable_by_key(|(cookie, ..)| *cookie);
        let rest: Vec<_> = order.into_iter().filter(|(cookie, ..)| *cookie > part.cookie).collect();
        let count = (part.bytes as usize / 32).max(1);
        let entry = |(cookie, name, child): &(u64, &Name, u64)| Entry {
            name: (*name).clone(),
            fileid: *child,
            cookie: *cookie,
            node: part.plus.then(|| self.node(*child)),
            file_type: None,
        };
        let entries = rest.iter().take(count).map(entry).collect();
        Ok(Listing {
            entries,
            verifier: [9; 8],
            eof: rest.len() <= count,
            directory: Some(inode.attributes),
            directory_lease: None,
        })
    }
}
