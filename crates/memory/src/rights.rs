//! The rights of a caller: mode bits, owner and groups, as Linux decides about local users.

use vfs::{AccessMask, Attributes, Caller, Credential, Principal, SetAttributes, SetTime, Share, Status};

/// `R_OK`, `W_OK` and `X_OK` of access(2), and the position of the bits in each digit of a mode.
pub(crate) const READ: u32 = 4;
pub(crate) const WRITE: u32 = 2;
pub(crate) const EXECUTE: u32 = 1;

/// A caller as a user. `Machine` is root.
#[derive(Clone, Copy)]
pub(crate) struct User<'c>(Option<&'c Credential>);

impl<'c> User<'c> {
    pub(crate) fn of(caller: &'c Caller) -> User<'c> {
        match &caller.principal {
            Principal::Unix(credential) => User(Some(credential)),
            Principal::Machine => User(None),
        }
    }

    pub(crate) fn uid(self) -> u32 {
        self.0.map_or(0, |credential| credential.uid)
    }

    pub(crate) fn gid(self) -> u32 {
        self.0.map_or(0, |credential| credential.gid)
    }

    pub(crate) fn is_root(self) -> bool {
        self.uid() == 0
    }

    pub(crate) fn is_in(self, gid: u32) -> bool {
        self.is_root() || self.gid() == gid || self.0.is_some_and(|user| user.groups.contains(&gid))
    }

    /// May the user do what only the owner may?
    pub(crate) fn owns(self, file: &Attributes) -> bool {
        self.is_root() || self.uid() == file.uid
    }

    /// The rights that mode, owner and groups give.
    pub(crate) fn granted(self, file: &Attributes) -> u32 {
        if self.is_root() {
            let executable = file.is_dir() || file.mode & 0o111 != 0;
            return READ | WRITE | if executable { EXECUTE } else { 0 };
        }
        let class = match () {
            () if self.uid() == file.uid => 6,
            () if self.is_in(file.gid) => 3,
            () => 0,
        };
        file.mode >> class & 7
    }

    /// # Errors
    /// `Access` if the user lacks one of the rights.
    pub(crate) fn check(self, file: &Attributes, rights: u32) -> Result<(), Status> {
        if self.granted(file) & rights == rights { Ok(()) } else { Err(Status::Access) }
    }

    /// May the user open this regular file? Execute permission suffices to read: a client has to read a file
    /// in order to run it.
    ///
    /// # Errors
    /// `Access`
    pub(crate) fn check_open(self, file: &Attributes, access: Share) -> Result<(), Status> {
        let granted = self.granted(file);
        let readable = granted & (READ | EXECUTE) != 0 || !access.contains(Share::READ);
        let writable = granted & WRITE != 0 || !access.contains(Share::WRITE);
        if readable && writable { Ok(()) } else { Err(Status::Access) }
    }

    /// May the user read or write this regular file without an open? The owner may: a client may have opened
    /// it before the mode changed.
    ///
    /// # Errors
    /// `Access`
    pub(crate) fn check_data(self, file: &Attributes, access: Share) -> Result<(), Status> {
        if self.owns(file) { Ok(()) } else { self.check_open(file, access) }
    }

    /// May the user remove or replace a name of `file` in `directory`?
    ///
    /// # Errors
    /// `Access`; `Perm` in a sticky directory of another user.
    pub(crate) fn check_removal(self, directory: &Attributes, file: &Attributes) -> Result<(), Status> {
        self.check(directory, WRITE | EXECUTE)?;
        let sticky = directory.mode & 0o1000 != 0;
        if sticky && !self.owns(directory) && !self.owns(file) { Err(Status::Perm) } else { Ok(()) }
    }

    /// May the user set these attributes, except the size?
    ///
    /// # Errors
    /// `Perm`; `Access` for the times; `Inval` for values that no file has.
    pub(crate) fn check_set(self, file: &Attributes, set: &SetAttributes) -> Result<(), Status> {
        check_values(set)?;
        let owns = self.owns(file);
        let gives_away = set.uid.is_some_and(|uid| !owns || !self.is_root() && uid != file.uid);
        let regroups = set.gid.is_some_and(|gid| !owns || gid != file.gid && !self.is_in(gid));
        if gives_away || regroups || set.mode.is_some() && !owns {
            return Err(Status::Perm);
        }
        match (set.atime, set.mtime) {
            (None, None) => Ok(()),
            _ if owns => Ok(()),
            (Some(SetTime::Server), Some(SetTime::Server)) => self.check(file, WRITE),
            _ => Err(Status::Perm),
        }
    }
}

/// # Errors
/// `Inval` for an owner or group that means "leave unchanged" to Linux, and for a time that is none.
pub(crate) fn check_values(set: &SetAttributes) -> Result<(), Status> {
    let is_time = |time: Option<SetTime>| match time {
        Some(SetTime::Client(time)) => time.nanoseconds < 1_000_000_000,
        _ => true,
    };
    let is_id = |id: Option<u32>| id != Some(u32::MAX);
    let valid = is_id(set.uid) && is_id(set.gid) && is_time(set.atime) && is_time(set.mtime);
    if valid { Ok(()) } else { Err(Status::Inval) }
}

/// The ACCESS bits of these rights.
pub(crate) fn access_mask(file: &Attributes, granted: u32) -> AccessMask {
    let change = AccessMask::MODIFY | AccessMask::EXTEND;
    let mut mask = AccessMask::empty();
    mask.set(AccessMask::READ, granted & READ != 0);
    if file.is_dir() {
        mask.set(AccessMask::LOOKUP, granted & EXECUTE != 0);
        mask.set(change | AccessMask::DELETE, granted & (WRITE | EXECUTE) == WRITE | EXECUTE);
    } else {
        mask.set(AccessMask::EXECUTE, granted & EXECUTE != 0);
        mask.set(change, granted & WRITE != 0);
    }
    mask
}
