//! UNLINK, RMDIR and RENAME, with silly names for files that are removed while they are open.

use std::sync::Arc;

use rustix::io::Errno;
use tokio::time::Instant;
use vfs::{Caller, Name, Status};

use super::names::mode_only;
use crate::credentials::caller;
use crate::errno;
use crate::front::{Front, LEASED, name};
use crate::inodes::{Inode, Silly};
use crate::wire::reply::{Answer, Outcome};
use crate::wire::request::Header;

/// Mode of a directory that is created only to be replaced.
const PLACE_MODE: u32 = 0o700;

impl Front {
    /// UNLINK. An open file gets a silly name until the last close.
    pub async fn unlink(&self, header: &Header, text: &[u8]) -> Outcome {
        let directory = self.inode(header.node)?;
        let (caller, name) = (caller(header), name(text)?);
        let removal = self.begin_removal((directory.number, name.clone()), None);
        if let Some(open) = removal.open() {
            let silly = self.silly_of(&caller, (&directory, &name), open);
            self.silly.add(&silly).map_err(|_| Errno::IO)?;
            let handle = &directory.handle();
            let renamed = self.fs.rename(&caller, handle, &name, handle, &silly.name).await;
            return self.sillied(open, silly, renamed.map(drop)).await.map(|()| Answer::Done);
        }
        self.fs.remove(&caller, &directory.handle(), &name).await.map_err(errno::of)?;
        self.unname(directory.number, &name);
        Ok(Answer::Done)
    }

    /// RMDIR.
    pub async fn rmdir(&self, header: &Header, text: &[u8]) -> Outcome {
        let directory = self.inode(header.node)?;
        let name = name(text)?;
        let _removal = self.begin_removal((directory.number, name.clone()), None);
        let removed = self.inodes.named(directory.number, &name);
        // It may only have names of files that are closed. They may also go while this request is on its way.
        let silly = removed.as_ref().filter(|removed| self.silly.has(&removed.handle()));
        let mut outcome = self.fs.rmdir(&caller(header), &directory.handle(), &name).await;
        if let Some(removed) = silly
            && outcome.as_ref().is_err_and(|error| error.status == Status::NotEmpty)
            && self.silly.cleared(&removed.handle()).await
        {
            outcome = self.fs.rmdir(&caller(header), &directory.handle(), &name).await;
        }
        outcome.map_err(errno::of)?;
        if let Some(removed) = removed {
            removed.is_removed(None);
        }
        self.unname(directory.number, &name);
        Ok(Answer::Done)
    }

    /// RENAME. NFS has no RENAME_NOREPLACE. For a file, a LINK and a REMOVE take its place. For a
    /// directory, MKDIR creates the target, and RENAME replaces that new directory. LINK and MKDIR fail if
    /// the target exists.
    pub async fn rename(&self, header: &Header, from: &[u8], to: (u64, &[u8]), flags: u32) -> Outcome {
        let (source, target) = (self.inode(header.node)?, self.inode(to.0)?);
        let (caller, old, new) = (caller(header), name(from)?, name(to.1)?);
        match flags {
            0 => {}
            libc::RENAME_NOREPLACE => {
                return self.rename_noreplace(&caller, (&source, &old), (&target, &new)).await;
            }
            // RENAME_EXCHANGE and RENAME_WHITEOUT have no equivalent in NFS, and must be atomic.
            _ => return Err(Errno::INVAL),
        }
        let moved = self.inodes.named(source.number, &old);
        let gone = self.inodes.named(target.number, &new);
        let gone = gone.filter(|gone| !moved.as_ref().is_some_and(|moved| Arc::ptr_eq(moved, gone)));
        let removal = self.begin_removal((target.number, new.clone()), moved.as_ref());
        // A LOOKUP of the old name may also be answered before the move and processed after it.
        let _source = self.begin_removal((source.number, old.clone()), moved.as_ref());
        let replaced = removal.open();
        let kept = match replaced {
            Some(replaced) => self.keep_replaced(&caller, &target, &new, replaced).await?,
            None => None,
        };
        let renamed = self.fs.rename(&caller, &source.handle(), &old, &target.handle(), &new).await;
        if let (Some(replaced), Some(silly)) = (replaced, kept) {
            let outcome = renamed.as_ref().map(drop).map_err(Clone::clone);
            if outcome.is_err() {
                // The link that preserved the replaced file is not needed.
                let _ = self.fs.remove(&caller, &silly.directory, &silly.name).await;
            }
            let _ = self.sillied(replaced, silly, outcome).await;
        }
        renamed.map_err(errno::of)?;
        if let Some(gone) = gone {
            gone.is_removed(None);
        }
        self.unname(target.number, &new);
        if let Some(moved) = moved {
            self.renamed(&moved, &(source.number, old), (target.number, new));
        }
        Ok(Answer::Done)
    }

    async fn rename_noreplace(
        &self,
        caller: &Caller,
        (source, old): (&Inode, &Name),
        (target, new): (&Inode, &Name),
    ) -> Outcome {
        let moved = self.inodes.named(source.number, old);
        let _source = self.begin_removal((source.number, old.clone()), moved.as_ref());
        let found =
            self.fs.lookup(caller, &source.handle(), old, vfs::Want::None).await.map_err(errno::of)?;
        let file = found.node.handle;
        let is_dir = match found.node.attributes {
            Some(attributes) => attributes.is_dir(),
            None => self.fs.getattr(caller, &file).await.map_err(errno::of)?.is_dir(),
        };
        if is_dir {
            self.move_directory(caller, (source, old), (target, new)).await?;
        } else if self.limits.hard_links {
            self.fs.link(caller, &file, &target.handle(), new).await.map_err(errno::of)?;
            if let Err(error) = self.fs.remove(caller, &source.handle(), old).await {
                let _ = self.fs.remove(caller, &target.handle(), new).await;
                return Err(errno::of(error));
            }
        } else {
            return Err(Errno::INVAL);
        }
        if let Some(moved) = self.inodes.named(source.number, old) {
            self.renamed(&moved, &(source.number, old.clone()), (target.number, new.clone()));
        }
        Ok(Answer::Done)
    }

    async fn move_directory(
        &self,
        caller: &Caller,
        (source, old): (&Inode, &Name),
        (target, new): (&Inode, &Name),
    ) -> Result<(), Errno> {
        let place = mode_only(PLACE_MODE);
        self.fs.mkdir(caller, &target.handle(), new, &place, vfs::Want::None).await.map_err(errno::of)?;
        let Err(error) = self.fs.rename(caller, &source.handle(), old, &target.handle(), new).await else {
            return Ok(());
        };
        let left = self.fs.rmdir(caller, &target.handle(), new).await;
        // Another client has put an entry into the new directory, so the directory belongs to that client
        // now.
        let taken = error.status == Status::NotEmpty && left.is_err();
        Err(if taken { Errno::EXIST } else { errno::of(error) })
    }

    /// Preserves a file that is about to be replaced under a silly name. It uses a link, so that the name
    /// never disappears. If the layer below has no links, it moves the name. If another client has removed
    /// the file, returns `None`.
    async fn keep_replaced(
        &self,
        caller: &Caller,
        directory: &Inode,
        name: &Name,
        replaced: &Inode,
    ) -> Result<Option<Silly>, Errno> {
        let silly = self.silly_of(caller, (directory, name), replaced);
        self.silly.add(&silly).map_err(|_| Errno::IO)?;
        let handle = &directory.handle();
        let linked = self.fs.link(caller, &replaced.handle(), handle, &silly.name).await.map(drop);
        let kept = match linked {
            Err(error) if !is_gone(&error) => {
                self.fs.rename(caller, handle, name, handle, &silly.name).await.map(drop)
            }
            other => other,
        };
        let Err(error) = kept else { return Ok(Some(silly)) };
        self.silly.done(handle);
        if !is_gone(&error) {
            return Err(errno::of(error));
        }
        self.inodes.unname(replaced, &(directory.number, name.clone()));
        Ok(None)
    }

    /// Finishes the change to a silly name, with its outcome.
    async fn sillied(&self, open: &Inode, silly: Silly, outcome: vfs::Result<()>) -> Result<(), Errno> {
        if let Err(error) = outcome {
            self.silly.done(&silly.directory);
            return Err(errno::of(error));
        }
        self.inodes.unname(open, &silly.of);
        if let Some(silly) = open.opens.give_silly(silly) {
            self.remove_silly(&silly).await;
        }
        Ok(())
    }

    /// Removes the silly name of a file after the last close.
    pub async fn remove_silly(&self, silly: &Silly) {
        self.silly.leave(&silly.directory);
        self.remove_leaving(silly).await;
    }

    /// The same, for a name that is recorded as leaving.
    pub async fn remove_leaving(&self, silly: &Silly) {
        let removed = self.fs.remove(&silly.caller, &silly.directory, &silly.name).await;
        let failed = removed.as_ref().err().filter(|error| !is_gone(error));
        if let Some(error) = failed {
            tracing::warn!("cannot remove {}, which was deleted while it was open: {error}", silly.name);
        }
        self.silly.left(&silly.directory, failed.is_none());
    }

    fn silly_of(&self, caller: &Caller, (directory, name): (&Inode, &Name), file: &Inode) -> Silly {
        let of = (directory.number, name.clone());
        Silly {
            directory: directory.handle(),
            name: self.silly.name(file.number),
            of,
            caller: caller.clone(),
        }
    }

    fn unname(&self, parent: u64, name: &Name) {
        if let Some(inode) = self.inodes.named(parent, name) {
            self.inodes.unname(&inode, &(parent, name.clone()));
        }
    }

    fn renamed(&self, moved: &Inode, from: &(u64, Name), to: (u64, Name)) {
        self.inodes.unname(moved, from);
        // The kernel caches the new name for as long as it cached the old one.
        let until = Instant::now() + LEASED;
        if let Some((parent, name)) = self.inodes.name(moved, to, false, until) {
            self.notifier.name_later(parent, &name);
        }
    }
}

/// Does the name not exist, or is the handle stale?
fn is_gone(error: &vfs::Error) -> bool {
    matches!(error.status, Status::NoEnt | Status::Stale)
}
