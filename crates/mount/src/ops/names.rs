//! LOOKUP, READLINK, and whatever makes a name: MKNOD, MKDIR, SYMLINK, LINK.

use std::time::Duration;

use rustix::io::Errno;
use vfs::{CreateHow, Created, Name, SetAttributes, Status};

use crate::credentials::caller;
use crate::errno;
use crate::front::{Front, LookupCache, device_of, file_type, name};
use crate::inodes::Inode;
use crate::wire::reply::{Answer, EntryOut, Outcome};
use crate::wire::request::Header;

/// How long the kernel believes that a name leads nowhere: longer, and a file that `ls` shows would not open.
const ABSENT_MAX: Duration = Duration::from_secs(1);
/// `PATH_MAX` less the NUL, as the layers below bound it.
const TARGET_MAX_BYTES: usize = 4096;

impl Front {
    /// LOOKUP. A name that leads nowhere is an answer too, if the kernel may remember it.
    pub async fn lookup(&self, header: &Header, text: &[u8]) -> Outcome {
        let directory = self.inode(header.node)?;
        let (caller, name) = (caller(header), name(text)?);
        match self.fs.lookup(&caller, &directory.handle, &name).await {
            Ok(looked) => {
                let at = Some((directory.number, name));
                Ok(Answer::Entry(self.entry(&caller, &looked.node, at).await?))
            }
            Err(error) if error.status == Status::NoEnt => self.absent(&directory),
            Err(error) => Err(errno::of(error)),
        }
    }

    fn absent(&self, directory: &Inode) -> Outcome {
        let valid = self.valid(directory).min(ABSENT_MAX);
        if valid.is_zero() || self.options.lookup_cache != LookupCache::All {
            return Err(Errno::NOENT);
        }
        Ok(Answer::Entry(EntryOut { entry_valid: valid, ..EntryOut::default() }))
    }

    /// READLINK.
    pub async fn readlink(&self, header: &Header) -> Outcome {
        let inode = self.inode(header.node)?;
        let (target, _) = self.fs.readlink(&caller(header), &inode.handle).await.map_err(errno::of)?;
        Ok(Answer::Data(target))
    }

    /// SYMLINK.
    pub async fn symlink(&self, header: &Header, text: &[u8], target: &[u8]) -> Outcome {
        if target.len() > TARGET_MAX_BYTES {
            return Err(Errno::NAMETOOLONG);
        }
        let directory = self.inode(header.node)?;
        let (caller, name, set) = (caller(header), name(text)?, SetAttributes::default());
        let made = self.fs.symlink(&caller, &directory.handle, &name, target, &set).await;
        self.made(header, &directory, name, made).await
    }

    /// MKNOD.
    pub async fn mknod(&self, header: &Header, text: &[u8], mode: u32, rdev: u32) -> Outcome {
        let directory = self.inode(header.node)?;
        let (caller, name, set) = (caller(header), name(text)?, mode_only(mode));
        let kind = file_type(mode)?;
        let made = if kind == vfs::FileType::Regular {
            self.fs.create(&caller, &directory.handle, &name, CreateHow::Guarded, &set).await
        } else {
            self.fs.mknod(&caller, &directory.handle, &name, kind, device_of(rdev), &set).await
        };
        self.made(header, &directory, name, made).await
    }

    /// MKDIR.
    pub async fn mkdir(&self, header: &Header, text: &[u8], mode: u32) -> Outcome {
        let directory = self.inode(header.node)?;
        let (caller, name) = (caller(header), name(text)?);
        let made = self.fs.mkdir(&caller, &directory.handle, &name, &mode_only(mode)).await;
        self.made(header, &directory, name, made).await
    }

    /// LINK.
    pub async fn link(&self, header: &Header, old: u64, text: &[u8]) -> Outcome {
        let (file, directory) = (self.inode(old)?, self.inode(header.node)?);
        let (caller, name) = (caller(header), name(text)?);
        let made = self.fs.link(&caller, &file.handle, &directory.handle, &name).await;
        // Whatever came along may be of before the link.
        let made = made.map(|made| Created { node: vfs::Node { attributes: None, ..made.node }, ..made });
        self.made(header, &directory, name, made).await
    }

    async fn made(
        &self,
        header: &Header,
        directory: &Inode,
        name: Name,
        made: vfs::Result<Created>,
    ) -> Outcome {
        let node = made.map_err(errno::of)?.node;
        let at = Some((directory.number, name));
        Ok(Answer::Entry(self.entry(&caller(header), &node, at).await?))
    }
}

/// The attributes of what is made: its mode.
pub fn mode_only(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode & 0o7777), ..SetAttributes::default() }
}
