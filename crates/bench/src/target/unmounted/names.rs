//! Paths, directories and names.

use vfs::{Attributes, Error, FileType, Handle, Name, Node, ReadDir, Result, SetAttributes, Status};

use super::Listed;
use super::memory::{Client, Leads};

/// Bytes per READDIRPLUS.
const LISTING_BYTES: u32 = 1 << 16;

/// The result of a name lookup.
pub(super) struct Found {
    pub(super) handle: Handle,
    /// True if the server has just returned its attributes.
    pub(super) fresh: bool,
}

impl Client {
    /// Resolves the directory of a path. Returns it and the last name; `None` for the root.
    pub(super) async fn walk(&self, path: &str) -> Result<(Handle, Option<Name>)> {
        let mut at = self.memory.lock().root;
        let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
        while let Some(part) = parts.next() {
            let name = Name::new(part.as_bytes())?;
            if parts.peek().is_none() {
                return Ok((at, Some(name)));
            }
            at = self.find(&at, &name).await?.handle;
        }
        Ok((at, None))
    }

    /// As `walk`, but the path must end in a name.
    pub(super) async fn walk_to_name(&self, path: &str) -> Result<(Handle, Name)> {
        let (directory, name) = self.walk(path).await?;
        Ok((directory, name.ok_or(Status::IsDir)?))
    }

    /// Resolves a name in a directory.
    pub(super) async fn find(&self, directory: &Handle, name: &Name) -> Result<Found> {
        self.believe(directory).await?;
        match self.memory.lock().name(directory, name) {
            Some(Leads::To(handle)) => return Ok(Found { handle, fresh: false }),
            Some(Leads::Nowhere) => return Err(Status::NoEnt.into()),
            None => {}
        }
        match self.fs.lookup(&self.caller, directory, name, vfs::Want::None).await {
            Ok(looked) => {
                let mut memory = self.memory.lock();
                looked.directory.into_iter().for_each(|attributes| memory.learn(directory, attributes));
                learn_node(&mut memory, &looked.node);
                memory.set_name(directory, name, Some(looked.node.handle));
                Ok(Found { handle: looked.node.handle, fresh: looked.node.attributes.is_some() })
            }
            Err(error) => {
                if error.status == Status::NoEnt {
                    let mut memory = self.memory.lock();
                    error.attributes.iter().for_each(|attributes| memory.learn(directory, **attributes));
                    memory.set_name(directory, name, None);
                }
                Err(error)
            }
        }
    }

    /// The attributes: from the cache within their timeout, else from the server.
    pub(super) async fn believe(&self, handle: &Handle) -> Result<Attributes> {
        let believed = self.memory.lock().believed(handle);
        match believed {
            Some(attributes) => Ok(attributes),
            None => self.getattr(handle).await,
        }
    }

    /// The attributes from the server.
    pub(super) async fn getattr(&self, handle: &Handle) -> Result<Attributes> {
        let attributes = self.fs.getattr(&self.caller, handle).await?;
        self.memory.lock().learn(handle, attributes);
        Ok(attributes)
    }

    pub(super) async fn stat(&self, path: &str) -> Result<Attributes> {
        let (directory, name) = self.walk(path).await?;
        let handle = match name {
            Some(name) => self.find(&directory, &name).await?.handle,
            None => directory,
        };
        let mut attributes = self.believe(&handle).await?;
        // Unsent writes count for this client.
        if let Some(dirty) = self.memory.lock().dirty.get(&handle) {
            attributes.size = attributes.size.max(dirty.end());
        }
        Ok(attributes)
    }

    /// Lists a directory. Opening it counts as an open, so it fetches the attributes.
    pub(super) async fn list(&self, path: &str) -> Result<Vec<Listed>> {
        let (directory, name) = self.walk(path).await?;
        let handle = match name {
            Some(name) => self.find(&directory, &name).await?.handle,
            None => directory,
        };
        let attributes = self.getattr(&handle).await?;
        if !attributes.is_dir() {
            return Err(Status::NotDir.into());
        }
        if let Some(listed) = self.memory.lock().listing(&handle, attributes.change) {
            return Ok(listed);
        }
        let mut listed = self.read_directory(&handle).await?;
        listed.sort();
        self.memory.lock().set_listing(&handle, attributes.change, listed.clone());
        Ok(listed)
    }

    async fn read_directory(&self, handle: &Handle) -> Result<Vec<Listed>> {
        let mut part = ReadDir {
            cookie: 0,
            verifier: [0; 8],
            bytes: LISTING_BYTES,
            plus: true,
            want_directory_lease: false,
            names_suffice: false,
        };
        let mut listed = Vec::new();
        loop {
            let listing = self.fs.readdir(&self.caller, handle, part).await?;
            part.verifier = listing.verifier;
            part.cookie = listing.entries.last().map_or(0, |last| last.cookie);
            for entry in listing.entries {
                let mut memory = self.memory.lock();
                let attributes = entry.node.and_then(|node| node.attributes);
                if let Some(node) = &entry.node {
                    learn_node(&mut memory, node);
                    memory.set_name(handle, &entry.name, Some(node.handle));
                }
                let is_dir = attributes.is_some_and(|it| it.file_type == FileType::Directory);
                listed.push(Listed { name: entry.name.to_string(), is_dir });
            }
            if listing.eof || part.cookie == 0 {
                return Ok(listed);
            }
        }
    }

    pub(super) async fn mkdir(&self, path: &str) -> Result<()> {
        let (directory, name) = self.walk_to_name(path).await?;
        self.believe(&directory).await?;
        if matches!(self.memory.lock().name(&directory, &name), Some(Leads::To(_))) {
            return Err(Status::Exist.into());
        }
        let set = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        let created = self.fs.mkdir(&self.caller, &directory, &name, &set, vfs::Want::None).await?;
        let mut memory = self.memory.lock();
        memory.learn_own(&directory, &created.directory);
        learn_node(&mut memory, &created.node);
        memory.set_name(&directory, &name, Some(created.node.handle));
        Ok(())
    }

    pub(super) async fn remove(&self, path: &str, is_dir: bool) -> Result<()> {
        let (directory, name) = self.walk_to_name(path).await?;
        let known = self.memory.lock().name(&directory, &name).and_then(Leads::handle);
        if let Some(handle) = known {
            // Linux returns a delegation before it removes the file.
            self.give_back(&handle, None).await;
        }
        let wcc = if is_dir {
            self.fs.rmdir(&self.caller, &directory, &name).await?
        } else {
            self.fs.remove(&self.caller, &directory, &name).await?
        };
        let mut memory = self.memory.lock();
        memory.learn_own(&directory, &wcc);
        memory.set_name(&directory, &name, None);
        known.iter().for_each(|handle| memory.gone(handle));
        Ok(())
    }

    pub(super) async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, from_name) = self.walk_to_name(from).await?;
        let (to, to_name) = self.walk_to_name(to).await?;
        let moved = self.find(&from, &from_name).await?.handle;
        let replaced = self.memory.lock().name(&to, &to_name).and_then(Leads::handle);
        for handle in replaced.iter().chain([&moved]) {
            self.give_back(handle, None).await;
        }
        let renamed = self.fs.rename(&self.caller, &from, &from_name, &to, &to_name).await?;
        let mut memory = self.memory.lock();
        memory.learn_own(&from, &renamed.from);
        if from != to {
            memory.learn_own(&to, &renamed.to);
        }
        memory.set_name(&from, &from_name, None);
        memory.set_name(&to, &to_name, Some(moved));
        memory.expire(&moved);
        Ok(())
    }

    /// True if the error means that the name does not exist.
    pub(super) fn is_absent(error: &Error) -> bool {
        error.status == Status::NoEnt
    }
}

pub(super) fn learn_node(memory: &mut super::memory::Memory, node: &Node) {
    if let Some(attributes) = node.attributes {
        memory.learn(&node.handle, attributes);
    }
}
