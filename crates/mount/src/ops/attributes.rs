//! GETATTR, SETATTR, ACCESS, STATFS.

use std::time::Duration;

use rustix::io::Errno;
use vfs::{
    AccessMask, Attributes, Caller, FsStat, Principal, SetAttributes, SetTime, Status, Timestamp, Wcc,
};

use crate::credentials::{caller, machine};
use crate::errno;
use crate::files::File;
use crate::front::{Front, opening};
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
        self.settle_names(header, &inode).await;
        let attributes = match self.fs.getattr(&caller(header), &inode.handle()).await {
            Ok(attributes) => attributes,
            Err(error) => {
                let gone = matches!(error.status, Status::Stale | Status::BadHandle);
                let opened = if gone { self.retries.attributes(header) } else { None };
                return opened.map(|attr| Answer::Attr(Duration::ZERO, attr)).ok_or(errno::of(error));
            }
        };
        self.wait_for_refill(&inode, &attributes).await;
        Ok(Answer::Attr(self.valid(&inode), self.attr(&inode, &attributes)))
    }

    /// SETATTR.
    pub async fn setattr(&self, header: &Header, set: &SetAttr) -> Outcome {
        let inode = self.inode(header.node)?;
        let caller = caller(header);
        let wanted = wanted(set);
        let attributes = self.set(&caller, &inode, &wanted).await?;
        let attributes = if set.valid.contains(Fattr::KILL_SUIDGID) && wanted.mode.is_none() {
            self.without_set_id(&caller, &inode, attributes).await
        } else {
            attributes
        };
        Ok(Answer::Attr(self.valid(&inode), self.attr(&inode, &attributes)))
    }

    async fn set(&self, caller: &Caller, inode: &Inode, set: &SetAttributes) -> Result<Attributes, Errno> {
        let wcc = self.fs.setattr(caller, &inode.handle(), set, None).await.map_err(errno::of)?;
        let attributes = match wcc.after {
            Some(attributes) => attributes,
            None => self.fs.getattr(caller, &inode.handle()).await.map_err(errno::of)?,
        };
        let leased = inode.is_leased();
        inode.state.lock().opened.pages.wrote(&Wcc { after: Some(attributes), ..wcc }, leased);
        self.refill_soon(&inode.handle());
        Ok(attributes)
    }

    /// Clears the set-id bits of a file that a process without privilege has just written.
    ///
    /// Only the owner may set the mode. For other writers the origin clears the bits when it gets the data.
    /// So delayed data is sent first.
    ///
    /// # Errors
    /// The origin refused the delayed data.
    pub async fn written_without_privilege(&self, file: &File) -> Result<(), Errno> {
        let inode = &file.inode;
        let known = self.fs.getattr(&file.caller, &inode.handle()).await.map_err(errno::of)?;
        if set_id_lost(&known) == 0 {
            return Ok(());
        }
        let known = if owns(&file.caller, &known) {
            known
        } else {
            self.commit(file).await?;
            self.fs.getattr(&opening(&file.caller), &inode.handle()).await.map_err(errno::of)?
        };
        self.without_set_id(&file.caller, inode, known).await;
        // After a write the kernel asks for size and times, but for the mode only after an invalidation.
        self.notifier.attributes(inode.number);
        Ok(())
    }

    /// Clears the set-id bits that a file loses if `caller` changes it: as the owner, else with the rights
    /// of the mount. Returns the attributes afterwards. If the origin refuses both, the bits stay and the
    /// change stands.
    async fn without_set_id(&self, caller: &Caller, inode: &Inode, known: Attributes) -> Attributes {
        let lost = set_id_lost(&known);
        if lost == 0 {
            return known;
        }
        let set = SetAttributes { mode: Some(known.mode & !lost), ..SetAttributes::default() };
        let with = if owns(caller, &known) { caller.clone() } else { machine() };
        match self.set(&with, inode, &set).await {
            Ok(attributes) => attributes,
            Err(errno) => {
                tracing::debug!("{} keeps its set-id bits after a change: {errno}", inode.handle());
                known
            }
        }
    }

    /// ACCESS: the kernel sends it only if it does not check mode bits itself.
    pub async fn access(&self, header: &Header, mask: u32) -> Outcome {
        let inode = self.inode(header.node)?;
        let caller = caller(header);
        let is_dir = self.fs.getattr(&caller, &inode.handle()).await.map_err(errno::of)?.is_dir();
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
        let accessed = self.fs.access(&caller, &inode.handle(), asked).await.map_err(errno::of)?;
        if accessed.granted.contains(asked) { Ok(Answer::Done) } else { Err(Errno::ACCESS) }
    }

    /// STATFS.
    pub async fn statfs(&self, header: &Header) -> Outcome {
        let inode = self.inode(header.node)?;
        let caller = caller(header);
        let stat = self.fs.fsstat(&caller, &inode.handle()).await.map_err(errno::of)?;
        Ok(Answer::Statfs(statfs_of(&stat, self.limits.name_max)))
    }
}

/// The reply to a STATFS.
pub fn statfs_of(stat: &FsStat, name_max: u32) -> Statfs {
    Statfs {
        blocks: stat.total_bytes / BLOCK_BYTES,
        bfree: stat.free_bytes / BLOCK_BYTES,
        bavail: stat.available_bytes / BLOCK_BYTES,
        files: stat.total_files,
        ffree: stat.free_files,
        bsize: BLOCK_BYTES as u32,
        namelen: name_max,
    }
}

/// The set-id bits that a file loses when a process without privilege changes it.
fn set_id_lost(attributes: &Attributes) -> u32 {
    // Set-group-id without group execution marks mandatory locking, and stays.
    let group = if attributes.mode & 0o010 == 0 { 0o2000 } else { 0 };
    attributes.mode & SET_ID & !group
}

fn owns(caller: &Caller, attributes: &Attributes) -> bool {
    matches!(&caller.principal, Principal::Unix(credential) if credential.uid == attributes.uid)
}

/// The attributes that a SETATTR of the kernel sets.
pub fn wanted(set: &SetAttr) -> SetAttributes {
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
