//! Attributes that are set once the delayed bytes are at the origin.
//!
//! **Time of modification.** The origin stamps a file when a WRITE arrives. Under a write lease that may be
//! long after the program has closed the file and looked at its times. The times must stay as the program
//! saw them, so the cache sets them when everything is durable. It does so whether or not a program here
//! has looked. Suppose another client edits a source file after our compiler wrote the object file. The
//! source must not look older than that object file, or `make` would not rebuild it, and nothing tells us
//! of edits to files without a lease.
//!
//! **Requests that may wait.** If a program sets times while bytes are delayed under a write lease, its
//! SETATTR waits with them. The same holds for a program that unpacks an archive: it makes a file, writes
//! it, and then sets owner and mode. That SETATTR waits if the file has this owner and mode already. A real
//! change of owner or mode does not wait, because a client that checks rights elsewhere causes no recall of
//! the lease.
//!
//! A newer write makes a pending time of modification void.

use tokio::time::Instant;
use vfs::{Attributes, Caller, SetAttributes, SetTime, Timestamp};

use super::restoring::caller;
use crate::journal::Set;

impl From<&Pending> for Set {
    fn from(pending: &Pending) -> Set {
        Set {
            writer: pending.caller.principal.clone(),
            atime: pending.atime,
            mtime: pending.mtime,
            rights: [pending.mode, pending.uid, pending.gid],
            asked: pending.asked,
        }
    }
}

impl From<&Set> for Pending {
    fn from(set: &Set) -> Pending {
        let [mode, uid, gid] = set.rights;
        let (atime, mtime, asked) = (set.atime, set.mtime, set.asked);
        Pending { atime, mtime, mode, uid, gid, asked, ..Pending::of(&caller(set.writer.clone())) }
    }
}

/// The permission bits of a mode: all but set-user-ID, set-group-ID and sticky.
const PERMISSIONS: u32 = 0o777;

/// Attributes to set.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The caller in whose name they are set.
    pub caller: Caller,
    /// The atime to set, if any.
    pub atime: Option<Timestamp>,
    /// The mtime to set, if any.
    pub mtime: Option<Timestamp>,
    /// The mode to set, if any. It equals the mode that the file has.
    pub mode: Option<u32>,
    /// The owner to set, if any. It equals the owner that the file has.
    pub uid: Option<u32>,
    /// The group to set, if any. It equals the group that the file has.
    pub gid: Option<u32>,
    /// A program requested it, and gets the error if it fails.
    pub asked: bool,
    /// The number of the request, in the order of the file's writes.
    pub first: u64,
    /// The time of the request.
    pub since: Instant,
}

impl Pending {
    /// Nothing to set yet, in this caller's name.
    pub fn of(caller: &Caller) -> Pending {
        Pending {
            caller: caller.clone(),
            atime: None,
            mtime: None,
            mode: None,
            uid: None,
            gid: None,
            asked: false,
            first: 0,
            since: Instant::now(),
        }
    }

    /// The attributes that a program's SETATTR sets, with `now` for the server's time. None if the SETATTR
    /// must not wait, given that the file's attributes are `shown`.
    pub fn asked(
        caller: &Caller,
        set: &SetAttributes,
        now: Timestamp,
        shown: &Attributes,
    ) -> Option<Pending> {
        let SetAttributes { atime, mtime, mode, uid, gid, .. } = *set;
        let known = SetAttributes { atime, mtime, mode, uid, gid, ..SetAttributes::default() };
        if *set != known || *set == SetAttributes::default() {
            return None;
        }
        let rights = mode.is_some() || uid.is_some() || gid.is_some();
        // The origin clears set-ID bits at a change of owner or data, as it sees fit.
        if rights && shown.mode & !PERMISSIONS != 0 {
            return None;
        }
        if mode.is_some_and(|mode| mode != shown.mode)
            || uid.is_some_and(|uid| uid != shown.uid)
            || gid.is_some_and(|gid| gid != shown.gid)
        {
            return None;
        }
        let stamp = |time: SetTime| match time {
            SetTime::Server => now,
            SetTime::Client(time) => time,
        };
        let (atime, mtime) = (atime.map(stamp), mtime.map(stamp));
        Some(Pending { atime, mtime, mode, uid, gid, asked: true, ..Pending::of(caller) })
    }

    /// Merges these with those requested earlier. These count where both set something.
    #[must_use]
    pub fn after(self, before: Option<Pending>) -> Pending {
        let Some(before) = before else { return self };
        Pending {
            atime: self.atime.or(before.atime),
            mtime: self.mtime.or(before.mtime),
            mode: self.mode.or(before.mode),
            uid: self.uid.or(before.uid),
            gid: self.gid.or(before.gid),
            asked: self.asked || before.asked,
            ..self
        }
    }

    /// Is nothing left to set?
    pub fn is_empty(&self) -> bool {
        !self.sets_times() && !self.sets_rights()
    }

    /// Does it set atime or mtime?
    pub fn sets_times(&self) -> bool {
        self.atime.is_some() || self.mtime.is_some()
    }

    /// Does it set mode, owner or group?
    fn sets_rights(&self) -> bool {
        self.mode.is_some() || self.uid.is_some() || self.gid.is_some()
    }

    /// The arguments of its SETATTR.
    pub fn set(&self) -> SetAttributes {
        let time = |time: Option<Timestamp>| time.map(SetTime::Client);
        SetAttributes {
            atime: time(self.atime),
            mtime: time(self.mtime),
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            ..SetAttributes::default()
        }
    }

    /// May one SETATTR set `now` together with pending attributes? Not if `now` sets an owner, a size, or
    /// set-ID bits: a change of owner clears those, and the origin chooses the order.
    pub fn joins(now: &SetAttributes) -> bool {
        let SetAttributes { atime, mtime, mode, .. } = *now;
        let known = SetAttributes { atime, mtime, mode, ..SetAttributes::default() };
        *now == known && mode.is_none_or(|mode| mode & !PERMISSIONS == 0)
    }

    /// The arguments of a SETATTR that sets the pending attributes and `now`. `now` counts where both set
    /// something.
    pub fn joined(&self, now: &SetAttributes) -> SetAttributes {
        let before = self.set();
        SetAttributes {
            atime: now.atime.or(before.atime),
            mtime: now.mtime.or(before.mtime),
            mode: now.mode.or(before.mode),
            uid: now.uid.or(before.uid),
            gid: now.gid.or(before.gid),
            ..*now
        }
    }

    /// Shows the attributes as they will be.
    pub fn show(&self, attributes: &mut Attributes) {
        attributes.atime = self.atime.unwrap_or(attributes.atime);
        attributes.mtime = self.mtime.unwrap_or(attributes.mtime);
        attributes.mode = self.mode.unwrap_or(attributes.mode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::{Device, FileType, Fsid};

    fn shown(mode: u32) -> Attributes {
        let zero = Timestamp::default();
        Attributes {
            file_type: FileType::Regular,
            mode,
            nlink: 1,
            uid: 1,
            gid: 2,
            size: 0,
            used: 0,
            rdev: Device::default(),
            fsid: Fsid::default(),
            fileid: 5,
            atime: zero,
            mtime: zero,
            ctime: zero,
            change: 0,
        }
    }

    fn waits(set: SetAttributes, mode: u32) -> bool {
        Pending::asked(&Caller::machine(), &set, Timestamp::new(9, 0), &shown(mode)).is_some()
    }

    #[test]
    fn what_nobody_else_can_miss_may_wait() {
        let none = SetAttributes::default();
        let mode = |mode| SetAttributes { mode: Some(mode), ..none };
        assert!(waits(mode(0o600), 0o600));
        assert!(!waits(mode(0o644), 0o600), "somebody may not read it yet, and would be refused");
        assert!(!waits(mode(0o600), 0o644), "somebody may read it and shall not");
        assert!(!waits(mode(0o4755), 0o4755) && !waits(mode(0o755), 0o4700) && !waits(mode(0o1777), 0o777));
        let owner = |uid, gid| SetAttributes { uid: Some(uid), gid: Some(gid), ..none };
        assert!(waits(owner(1, 2), 0o600));
        assert!(!waits(owner(3, 2), 0o600) && !waits(owner(1, 3), 0o600) && !waits(owner(1, 2), 0o2600));
        let time = Some(SetTime::Server);
        assert!(waits(SetAttributes { mtime: time, ..none }, 0o6755), "times alone");
        assert!(!waits(SetAttributes { mtime: time, size: Some(0), ..none }, 0o600) && !waits(none, 0o600));
    }

    #[test]
    fn what_is_asked_for_last_counts() {
        let caller = Caller::machine();
        let first =
            SetAttributes { mode: Some(0o640), mtime: Some(SetTime::Server), ..SetAttributes::default() };
        let first = Pending::asked(&caller, &first, Timestamp::new(9, 0), &shown(0o640)).unwrap();
        let then = SetAttributes { mode: Some(0o640), uid: Some(1), ..SetAttributes::default() };
        let then = Pending::asked(&caller, &then, Timestamp::new(9, 0), &shown(0o640)).unwrap();
        let both = then.after(Some(first)).set();
        let mtime = Some(SetTime::Client(Timestamp::new(9, 0)));
        assert_eq!(
            both,
            SetAttributes { mode: Some(0o640), uid: Some(1), mtime, ..SetAttributes::default() }
        );
        assert!(Pending::of(&caller).is_empty());
    }

    #[test]
    fn what_waits_goes_along_with_what_changes() {
        let set = SetAttributes { uid: Some(1), mtime: Some(SetTime::Server), ..SetAttributes::default() };
        let waits = Pending::asked(&Caller::machine(), &set, Timestamp::new(9, 0), &shown(0o600)).unwrap();
        let mode = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        let mtime = Some(SetTime::Client(Timestamp::new(9, 0)));
        assert!(Pending::joins(&mode(0o644)));
        assert_eq!(waits.joined(&mode(0o644)), SetAttributes { uid: Some(1), mtime, ..mode(0o644) });
        let later = SetAttributes { mtime: Some(SetTime::Server), ..SetAttributes::default() };
        assert_eq!(waits.joined(&later), SetAttributes { uid: Some(1), ..later });
        assert!(!Pending::joins(&mode(0o4755)), "the change of owner might take it away");
        assert!(!Pending::joins(&SetAttributes { gid: Some(3), ..mode(0o644) }));
        assert!(!Pending::joins(&SetAttributes { size: Some(0), ..SetAttributes::default() }));
    }
}
