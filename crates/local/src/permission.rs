//! The rights of a caller to a file: the kernel's own decision, cached as long as ctime stays the same.
//!
//! Changes of mode, owner, group and access control lists all change ctime. A change that does not (a
//! security module's rule, a remount) takes effect when the file is opened again. Two changes within one
//! tick of the file system's clock may share a ctime. So a decision is cached only if the ctime is nonracy:
//! older than a tick.
//!
//! As in other NFS servers, the *owner* of a file may read and write it whatever its mode. A client may
//! have opened it before the mode changed. And execute permission implies read permission: a client has to
//! read a file in order to run it.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::time::ClockId;
use vfs::{AccessMask, Credential, FileType, Principal, Share, Status, Timestamp};

use crate::attributes::Stat;
use crate::descriptors::Node;
use crate::{errno, identity, sys};

/// `R_OK`, `W_OK` and `X_OK` of access(2).
pub(crate) const READ: u8 = 4;
pub(crate) const WRITE: u8 = 2;
pub(crate) const EXECUTE: u8 = 1;

/// Limit of cached credentials for each file.
const GRANTS_MAX: usize = 8;
/// Longer than a tick of any kernel's clock (10 ms at 100 Hz).
pub(crate) const TICK_NANOSECONDS: i128 = 20_000_000;

/// The kernel's decisions about one file.
#[derive(Default)]
pub(crate) struct Grants {
    known: Vec<Grant>,
    next: usize,
}

struct Grant {
    credential: Arc<Credential>,
    ctime: Timestamp,
    /// The rights that were checked, and the granted subset.
    asked: u8,
    granted: u8,
}

impl Grants {
    fn find(&self, credential: &Arc<Credential>, ctime: Timestamp) -> Option<&Grant> {
        let same = |grant: &&Grant| {
            grant.ctime == ctime
                && (Arc::ptr_eq(&grant.credential, credential) || grant.credential == *credential)
        };
        self.known.iter().find(same)
    }

    fn remember(&mut self, credential: &Arc<Credential>, ctime: Timestamp, asked: u8, granted: u8) {
        if let Some(grant) = self.known.iter_mut().find(|grant| grant.credential == *credential) {
            if grant.ctime != ctime {
                (grant.ctime, grant.asked, grant.granted) = (ctime, 0, 0);
            }
            grant.asked |= asked;
            grant.granted = (grant.granted & !asked) | granted;
            return;
        }
        let grant = Grant { credential: credential.clone(), ctime, asked, granted };
        if self.known.len() < GRANTS_MAX {
            self.known.push(grant);
        } else {
            self.next = (self.next + 1) % GRANTS_MAX;
            self.known[self.next] = grant;
        }
    }
}

impl Node {
    /// Is this right known to be granted, without asking the kernel?
    pub(crate) fn is_granted(&self, principal: &Principal, stat: &Stat, right: u8) -> bool {
        match principal {
            Principal::Machine => false,
            Principal::Unix(credential) => {
                let grants = self.grants.lock();
                grants.find(credential, stat.ctime()).is_some_and(|grant| grant.granted & right == right)
            }
        }
    }

    /// Caches the kernel's decision about the rights `asked`.
    pub(crate) fn note_grant(&self, principal: &Principal, stat: &Stat, asked: u8, granted: u8) {
        if let Principal::Unix(credential) = principal
            && is_nonracy(stat.ctime())
        {
            self.grants.lock().remember(credential, stat.ctime(), asked, granted);
        }
    }

    /// Does the caller have this right?
    ///
    /// # Errors
    /// `Access`, or the reason why no user has it.
    pub(crate) fn check(&self, principal: &Principal, stat: &Stat, right: u8) -> Result<(), Status> {
        if self.is_granted(principal, stat, right) {
            return Ok(());
        }
        let _worn = identity::wear(principal)?;
        sys::may_access(self.path.as_fd(), right).map_err(errno::status)?;
        self.note_grant(principal, stat, right, right);
        Ok(())
    }

    /// May the caller read the data of this regular file?
    pub(crate) fn check_read(&self, principal: &Principal, stat: &Stat) -> Result<(), Status> {
        if is_owner(principal, stat) {
            return identity::may_wear(principal);
        }
        match self.check(principal, stat, READ) {
            Err(Status::Access) => self.check(principal, stat, EXECUTE),
            other => other,
        }
    }

    /// May the caller write the data of this regular file?
    pub(crate) fn check_write(&self, principal: &Principal, stat: &Stat) -> Result<(), Status> {
        if is_owner(principal, stat) {
            return identity::may_wear(principal);
        }
        self.check(principal, stat, WRITE)
    }

    /// May the caller open this regular file with this access?
    ///
    /// # Errors
    /// `Access`, or the reason why no user may.
    pub(crate) fn check_open(&self, principal: &Principal, access: Share) -> Result<(), Status> {
        let _worn = identity::wear(principal)?;
        let may = |right| sys::may_access(self.path.as_fd(), right).map_err(errno::status);
        if access.contains(Share::READ) {
            may(READ).or_else(|status| may(EXECUTE).map_err(|_| status))?;
        }
        if access.contains(Share::WRITE) { may(WRITE) } else { Ok(()) }
    }

    /// The rights of ACCESS that the caller has.
    pub(crate) fn rights(&self, principal: &Principal, stat: &Stat) -> Result<AccessMask, Status> {
        Ok(access_mask(self.file_type, self.bits(principal, stat)?))
    }

    fn bits(&self, principal: &Principal, stat: &Stat) -> Result<u8, Status> {
        const ALL: u8 = READ | WRITE | EXECUTE;
        if let Principal::Unix(credential) = principal
            && let Some(grant) = self.grants.lock().find(credential, stat.ctime())
            && grant.asked == ALL
        {
            return Ok(grant.granted);
        }
        let _worn = identity::wear(principal)?;
        let granted = [READ, WRITE, EXECUTE]
            .into_iter()
            .filter(|&right| sys::may_access(self.path.as_fd(), right).is_ok())
            .fold(0, |granted, right| granted | right);
        self.note_grant(principal, stat, ALL, granted);
        Ok(granted)
    }
}

/// The ACCESS bits for these rights, for this type of file.
fn access_mask(file_type: FileType, granted: u8) -> AccessMask {
    let has = |rights: u8| granted & rights == rights;
    let grants: &[(u8, AccessMask)] = match file_type {
        FileType::Directory => &[
            (READ, AccessMask::READ),
            (EXECUTE, AccessMask::LOOKUP),
            (WRITE | EXECUTE, AccessMask::MODIFY.union(AccessMask::EXTEND).union(AccessMask::DELETE)),
        ],
        _ => &[
            (READ, AccessMask::READ),
            (WRITE, AccessMask::MODIFY.union(AccessMask::EXTEND)),
            (EXECUTE, AccessMask::EXECUTE),
        ],
    };
    grants.iter().filter(|(rights, _)| has(*rights)).fold(AccessMask::empty(), |mask, (_, more)| mask | *more)
}

fn is_owner(principal: &Principal, stat: &Stat) -> bool {
    matches!(principal, Principal::Unix(credential) if credential.uid == stat.uid())
}

/// Will a later change of the file have another ctime?
pub(crate) fn is_nonracy(ctime: Timestamp) -> bool {
    is_nonracy_at(ctime, coarse_now())
}

/// Will a change of the file after `now` have another ctime?
pub(crate) fn is_nonracy_at(ctime: Timestamp, now: Timestamp) -> bool {
    now.as_nanos() - ctime.as_nanos() > TICK_NANOSECONDS
}

/// The clock that file systems use for timestamps; tests cannot replace it.
pub(crate) fn coarse_now() -> Timestamp {
    let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
    Timestamp::new(now.tv_sec, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_changed_with_two_rights() {
        assert_eq!(access_mask(FileType::Directory, WRITE), AccessMask::empty());
        assert_eq!(
            access_mask(FileType::Directory, WRITE | EXECUTE),
            AccessMask::LOOKUP | AccessMask::MODIFY | AccessMask::EXTEND | AccessMask::DELETE
        );
        assert_eq!(access_mask(FileType::Regular, READ | EXECUTE), AccessMask::READ | AccessMask::EXECUTE);
    }

    #[test]
    fn a_changed_file_is_asked_about_again() {
        let alice = Arc::new(Credential { uid: 1, gid: 1, groups: vec![] });
        let mut grants = Grants::default();
        let [before, after] = [Timestamp::new(1, 0), Timestamp::new(1, 1)];
        grants.remember(&alice, before, READ, READ);
        grants.remember(&alice, before, WRITE, 0);
        assert_eq!(grants.find(&alice, before).map(|grant| (grant.asked, grant.granted)), Some((6, 4)));
        grants.remember(&alice, after, EXECUTE, 0);
        assert!(grants.find(&alice, before).is_none());
        assert_eq!(grants.find(&alice, after).map(|grant| (grant.asked, grant.granted)), Some((1, 0)));
        for uid in 0..20 {
            let other = Arc::new(Credential { uid, gid: 7, groups: vec![] });
            grants.remember(&other, after, READ, READ);
        }
        assert_eq!(grants.known.len(), GRANTS_MAX);
    }
}
