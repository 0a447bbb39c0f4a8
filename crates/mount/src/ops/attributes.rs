//! GETATTR, SETATTR, ACCESS, STATFS.

use rustix::io::Errno;
use vfs::{AccessMask, Attributes, Caller, SetAttributes, SetTime, Timestamp, Wcc};

use crate::credentials::caller;
use crate::errno;
use crate::front::Front;
use crate::inodes::Inode;
use crate::wire::abi::Fattr;
use crate::wire::reply::{Answer, Outcome, Statfs};
use crate::wire::request::{Header, SetAttr};

/// Block size of `statfs`.
const BLOCK_BYTES: u64 = 4096;
/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

impl Front {
    /// GETATTR: what `stat` shows.
    pub async fn getattr(&self, header: &Header) -> Outcome {
        let inode = self.inode(header.node)?;
        let attributes = self.fs.getattr(&caller(header), &inode.handle).await.map_err(errno::of)?;
        Ok(Answer::Attr(self.valid(&inode), self.attr(&inode, &attributes)))
    }

    /// SETATTR.
    pub async fn setattr(&self, header: &Header, set: &SetAttr) -> Outcome {
        let inode = self.inode(header.node)?;
        let caller = caller(header);
        let wanted = wanted(set);
        let attributes = self.set(&caller, &inode, &wanted).await?;
        let attributes = if set.valid.contains(Fattr::KILL_SUIDGID) && wanted.mode.is_none() {
            self.without_set_id(&caller, &inode, attributes).await?
        } else {
            attributes
        };
        Ok(Answer::Attr(self.valid(&inode), self.attr(&inode, &attributes)))
    }

    async fn set(&self, caller: &Caller, inode: &Inode, set: &SetAttributes) -> Result<Attributes, Errno> {
        let wcc = self.fs.setattr(caller, &inode.handle, set, None).await.map_err(errno::of)?;
        let attributes = match wcc.after {
            Some(attributes) => attributes,
            None => self.fs.getattr(caller, &inode.handle).await.map_err(errno::of)?,
        };
        let leased = inode.is_leased();
        inode.state.lock().pages.wrote(&Wcc { after: Some(attributes), ..wcc }, leased);
        Ok(attributes)
    }

    /// Clears the set-id bits that somebody who is not privileged has lost by writing.
    pub async fn without_set_id(
        &self,
        caller: &Caller,
        inode: &Inode,
        attributes: Attributes,
    ) -> Result<Attributes, Errno> {
        // Set-group-id without group execution is the mark of mandatory locking, and stays.
        let group = if attributes.mode & 0o010 == 0 { 0o2000 } else { 0 };
        let lost = attributes.mode & SET_ID & !group;
        if lost == 0 {
            return Ok(attributes);
        }
        let set = SetAttributes { mode: Some(attributes.mode & !lost), ..SetAttributes::default() };
        self.set(caller, inode, &set).await
    }

    /// ACCESS: asked only where the kernel does not check mode bits itself.
    pub async fn access(&self, header: &Header, mask: u32) -> Outcome {
        let inode = self.inode(header.node)?;
        let caller = caller(header);
        let is_dir = self.fs.getattr(&caller, &inode.handle).await.map_err(errno::of)?.is_dir();
        let mut asked = AccessMask::empty();
        for (bit, wanted) in [
            (libc::R_OK, AccessMask::READ),
            (libc::W_OK, AccessMask::MODIFY | AccessMask::EXTEND),
            (libc::X_OK, if is_dir { AccessMask::LOOKUP } else { AccessMask::EXECUTE }),
        ] {
            if mask & bit as u32 != 0 {
                asked |= wanted;
            }
        }
        if asked.is_empty() {
            return Ok(Answer::Done);
        }
        let accessed = self.fs.access(&caller, &inode.handle, asked).await.map_err(errno::of)?;
        if accessed.granted.contains(asked) { Ok(Answer::Done) } else { Err(Errno::ACCESS) }
    }

    /// STATFS.
    pub async fn statfs(&self, header: &Header) -> Outcome {
        let inode = self.inode(header.node)?;
        let stat = self.fs.fsstat(&caller(header), &inode.handle).await.map_err(errno::of)?;
        Ok(Answer::Statfs(Statfs {
            blocks: stat.total_bytes / BLOCK_BYTES,
            bfree: stat.free_bytes / BLOCK_BYTES,
            bavail: stat.available_bytes / BLOCK_BYTES,
            files: stat.total_files,
            ffree: stat.free_files,
            bsize: BLOCK_BYTES as u32,
            namelen: self.limits.name_max,
        }))
    }
}

fn wanted(set: &SetAttr) -> SetAttributes {
    let given = |flag: Fattr| set.valid.contains(flag);
    let time = |flag: Fattr, now: Fattr, (seconds, nanoseconds): (i64, u32)| {
        let client = SetTime::Client(Timestamp::new(seconds, nanoseconds));
        given(flag).then_some(if given(now) { SetTime::Server } else { client })
    };
    SetAttributes {
        mode: given(Fattr::MODE).then_some(set.mode & 0o7777),
        uid: given(Fattr::UID).then_some(set.uid),
        gid: given(Fattr::GID).then_some(set.gid),
        size: given(Fattr::SIZE).then_some(set.size),
        atime: time(Fattr::ATIME, Fattr::ATIME_NOW, set.atime),
        mtime: time(Fattr::MTIME, Fattr::MTIME_NOW, set.mtime),
    }
}
