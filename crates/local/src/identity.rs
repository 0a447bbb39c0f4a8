//! The identity of a thread: each operation runs with the caller's user, group and supplementary groups.
//!
//! Linux keeps these per thread. A root process takes the caller's identity with raw `setfsuid`, `setfsgid`
//! and `setgroups`, which change the calling thread only. While `fsuid` is not 0, the kernel also removes
//! the capabilities that override file permissions, and restores them afterwards. A change of identity
//! costs some microseconds. So an identity is not set twice: the threads of [`crate::workers`], which run
//! nothing else, keep the last one.
//!
//! A process that is not root cannot change its identity. It serves callers of its own uid with its own
//! groups, and refuses all others with `Access`.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, CapabilitySet};
use vfs::{Credential, Principal, Status};

use crate::sys;

/// The identity of the process.
struct Own {
    credential: Arc<Credential>,
    /// It may take other identities, and loses its privileges while it does.
    privileged: bool,
}

fn own() -> &'static Own {
    static OWN: OnceLock<Own> = OnceLock::new();
    OWN.get_or_init(|| {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let credential = Credential {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        };
        Own { privileged: may_change(credential.uid), credential: credential.into() }
    })
}

/// A process may serve others only if it is root *and* its capabilities follow `fsuid`. With
/// `SECBIT_NO_SETUID_FIXUP`, a caller would keep root's overrides.
fn may_change(uid: u32) -> bool {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let has = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(needed));
    let follows = rustix::thread::capabilities_secure_bits()
        .is_ok_and(|bits| !bits.contains(CapabilitiesSecureBits::NO_SETUID_FIXUP));
    uid == 0 && has && follows
}

/// Can this process serve users other than its own?
pub(crate) fn is_privileged() -> bool {
    own().privileged
}

/// The identity of a thread. `None` is the process's own.
#[derive(Default)]
struct Thread {
    worn: Option<Arc<Credential>>,
    depth: u32,
    keeps: bool,
}

thread_local! {
    static THREAD: RefCell<Thread> = RefCell::default();
}

/// Lets the calling thread keep the identity of its last operation. Only for threads that run nothing else.
pub(crate) fn keep_on_this_thread() {
    THREAD.with_borrow_mut(|thread| thread.keeps = true);
}

/// While this value lives, the thread has the requested identity; on drop it gets back the one before.
pub(crate) struct Worn {
    before: Option<Arc<Credential>>,
    /// The identity belongs to one thread.
    not_send: PhantomData<*const ()>,
}

/// Takes the identity of `principal`.
///
/// # Errors
/// `Access` if this process cannot.
pub(crate) fn wear(principal: &Principal) -> Result<Worn, Status> {
    let wanted = what_to_wear(principal)?;
    THREAD.with_borrow_mut(|thread| {
        let before = thread.worn.clone();
        thread.change_to(wanted.cloned()).map_err(|_| Status::Access)?;
        thread.depth += 1;
        Ok(Worn { before, not_send: PhantomData })
    })
}

/// Could [`wear`] succeed? Makes no system call.
pub(crate) fn may_wear(principal: &Principal) -> Result<(), Status> {
    what_to_wear(principal).map(drop)
}

fn what_to_wear(principal: &Principal) -> Result<Option<&Arc<Credential>>, Status> {
    match principal {
        Principal::Machine => Ok(None),
        Principal::Unix(credential) if own().privileged => Ok(Some(credential)),
        Principal::Unix(credential) if credential.uid == own().credential.uid => Ok(None),
        Principal::Unix(_) => Err(Status::Access),
    }
}

/// Is the caller root for the file system?
pub(crate) fn is_root(principal: &Principal) -> bool {
    match principal {
        Principal::Machine => own().credential.uid == 0,
        Principal::Unix(credential) => credential.uid == 0,
    }
}

/// Runs `job` with the process's own identity, then restores the caller's.
pub(crate) fn as_self<T>(job: impl FnOnce() -> T) -> Result<T, Status> {
    let _own = wear(&Principal::Machine)?;
    Ok(job())
}

impl Drop for Worn {
    fn drop(&mut self) {
        THREAD.with_borrow_mut(|thread| {
            thread.depth -= 1;
            if thread.depth == 0 && thread.keeps {
                return;
            }
            if thread.change_to(self.before.take()).is_err() {
                // The next operation would run with another caller's rights.
                std::process::abort();
            }
        });
    }
}

impl Thread {
    fn change_to(&mut self, wanted: Option<Arc<Credential>>) -> Result<(), Errno> {
        if self.worn == wanted {
            return Ok(());
        }
        let from = self.worn.take().unwrap_or_else(|| own().credential.clone());
        let to = wanted.as_ref().unwrap_or(&own().credential);
        let changed = put_on(&from, to);
        if changed.is_err() && put_on_all(&own().credential).is_err() {
            std::process::abort();
        }
        self.worn = if changed.is_ok() { wanted } else { None };
        changed
    }
}

/// Changes the ids that differ; the user last, so that a failure never leaves a caller with more rights
/// than it had.
fn put_on(from: &Credential, to: &Credential) -> Result<(), Errno> {
    if from.groups != to.groups {
        sys::set_thread_groups(&to.groups)?;
    }
    if from.gid != to.gid {
        sys::set_thread_fsgid(to.gid)?;
    }
    if from.uid != to.uid {
        sys::set_thread_fsuid(to.uid)?;
    }
    Ok(())
}

fn put_on_all(to: &Credential) -> Result<(), Errno> {
    sys::set_thread_fsuid(to.uid)?;
    sys::set_thread_fsgid(to.gid)?;
    sys::set_thread_groups(&to.groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Principal {
        Principal::Unix(Arc::new(Credential { uid, gid: uid, groups: vec![uid + 1] }))
    }

    /// The file-system uid and the groups, from `/proc/thread-self/status`.
    fn kernel_says() -> (u32, String) {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = |name: &str| status.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        (
            line("Uid:").split_whitespace().nth(4).unwrap().parse().unwrap(),
            line("Groups:")[7..].trim().to_owned(),
        )
    }

    #[test]
    fn an_identity_ends_with_its_guard_and_nests() {
        if !is_privileged() {
            eprintln!("skipped: only root can change its identity");
            return;
        }
        let before = kernel_says();
        {
            let _alice = wear(&user(1000)).unwrap();
            assert_eq!(kernel_says(), (1000, "1001".into()));
            as_self(|| assert_eq!(kernel_says(), before)).unwrap();
            assert_eq!(kernel_says(), (1000, "1001".into()));
        }
        assert_eq!(kernel_says(), before);
    }

    #[test]
    fn ids_that_are_none_are_refused() {
        assert_eq!(wear(&user(u32::MAX - 2)).err(), (!is_privileged()).then_some(Status::Access));
        let nobody = Principal::Unix(Arc::new(Credential { uid: u32::MAX, gid: 1, groups: vec![] }));
        assert_eq!(wear(&nobody).err(), Some(Status::Access));
        assert_eq!(kernel_says().0, rustix::process::geteuid().as_raw());
    }
}
