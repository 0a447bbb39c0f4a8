//! What the origin allowed to whom: ACCESS answers and successes, remembered per credential.
//!
//! A hit is decided by these alone, never by mode bits: owner override, squashing, access lists and server-side groups
//! are the origin's business. An answer is either that of an ACCESS, or the success of an operation that only a holder
//! of the right can have. All of them are forgotten when the object's attributes change by another hand than ours,
//! when we change its mode or owner, and when they are older than `acregmax` or `acdirmax`: groups and exports may
//! change at the origin without a trace on the file.
//!
//! Promise: remembered-rights

use std::time::Duration;

use vfs::{AccessMask, Credential, Principal, Timestamp};

/// Credentials remembered per object; the least recently asked one gives way.
const CREDENTIALS_MAX: usize = 16;

/// What one credential may do with one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// Whose.
    pub principal: Principal,
    /// The answer to an ACCESS that asked for everything.
    pub granted: Option<AccessMask>,
    /// What it was seen to succeed with.
    pub proven: AccessMask,
    /// The answer belongs to a state that was not settled when it was asked: no answer to the next open.
    pub racy: bool,
    /// When it was asked.
    pub learnt: Timestamp,
}

impl Right {
    /// Was it ever told, or seen, to have this, as far as is remembered?
    pub fn may_ever(&self, bit: AccessMask) -> bool {
        self.proven.contains(bit) || self.granted.is_some_and(|granted| granted.contains(bit))
    }
}

/// The rights on one object, least recently used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    entries: Vec<Right>,
}

impl Rights {
    /// May it? `None` if that has not been asked, or too long ago.
    pub fn may(
        &mut self,
        principal: &Principal,
        bit: AccessMask,
        now: Timestamp,
        max: Duration,
    ) -> Option<bool> {
        let right = self.find(principal, now, max)?;
        if right.proven.contains(bit) {
            return Some(true);
        }
        right.granted.map(|granted| granted.contains(bit))
    }

    /// The whole ACCESS answer, if it was asked, not too long ago, and of a settled state.
    pub fn answer(&mut self, principal: &Principal, now: Timestamp, max: Duration) -> Option<AccessMask> {
        self.find(principal, now, max).filter(|right| !right.racy)?.granted
    }

    /// An ACCESS for everything was answered.
    pub fn remember_answer(
        &mut self,
        principal: &Principal,
        granted: AccessMask,
        racy: bool,
        learnt: Timestamp,
    ) {
        // What was proven before is proven again when it is next done: it must not outlive its time by riding along.
        self.take(principal);
        let proven = AccessMask::empty();
        self.push(Right { principal: principal.clone(), granted: Some(granted), proven, racy, learnt });
    }

    /// An operation succeeded that needs this right.
    pub fn remember_success(&mut self, principal: &Principal, bit: AccessMask, learnt: Timestamp) {
        let mut right = self.take(principal).unwrap_or(Right {
            principal: principal.clone(),
            granted: None,
            proven: AccessMask::empty(),
            racy: false,
            learnt,
        });
        right.proven |= bit;
        self.push(right);
    }

    /// What it was last told, or seen, to have, however long ago.
    pub fn last(&self, principal: &Principal) -> Option<AccessMask> {
        let right = self.entries.iter().find(|right| same(&right.principal, principal))?;
        Some(right.granted.unwrap_or(AccessMask::empty()) | right.proven)
    }

    /// Forgets what was asked of a state that was not settled.
    pub fn forget_racy(&mut self) {
        self.entries.retain(|right| !right.racy);
    }

    /// Forgets everything. True if there was anything.
    pub fn clear(&mut self) -> bool {
        let any = !self.entries.is_empty();
        self.entries.clear();
        any
    }

    /// All of them, least recently used first.
    pub fn iter(&self) -> impl Iterator<Item = &Right> {
        self.entries.iter()
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds what the index remembers.
    pub fn push(&mut self, right: Right) {
        if self.entries.len() == CREDENTIALS_MAX {
            self.entries.remove(0);
        }
        self.entries.push(right);
    }

    fn find(&mut self, principal: &Principal, now: Timestamp, max: Duration) -> Option<&Right> {
        let right = self.take(principal)?;
        let age = now.as_nanos() - right.learnt.as_nanos();
        if age < 0 || age > max.as_nanos() as i128 {
            return None;
        }
        self.entries.push(right);
        self.entries.last()
    }

    fn take(&mut self, principal: &Principal) -> Option<Right> {
        let at = self.entries.iter().position(|right| same(&right.principal, principal))?;
        Some(self.entries.remove(at))
    }
}

fn same(a: &Principal, b: &Principal) -> bool {
    match (a, b) {
        (Principal::Unix(a), Principal::Unix(b)) => std::sync::Arc::ptr_eq(a, b) || equal(a, b),
        (Principal::Machine, Principal::Machine) => true,
        _ => false,
    }
}

fn equal(a: &Credential, b: &Credential) -> bool {
    a.uid == b.uid && a.gid == b.gid && a.groups == b.groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use vfs::Caller;

    const HOUR: Duration = Duration::from_secs(3600);

    fn user(uid: u32) -> Principal {
        Caller::unix(uid, 100, &[5]).principal
    }

    #[test]
    fn answers_are_per_credential_and_expire() {
        let mut rights = Rights::default();
        let at = Timestamp::new(1000, 0);
        rights.remember_answer(&user(1), AccessMask::READ, false, at);
        assert_eq!(rights.may(&user(1), AccessMask::READ, at, HOUR), Some(true));
        assert_eq!(rights.may(&user(1), AccessMask::LOOKUP, at, HOUR), Some(false));
        assert_eq!(rights.may(&user(2), AccessMask::READ, at, HOUR), None);
        assert_eq!(rights.may(&Caller::unix(1, 100, &[6]).principal, AccessMask::READ, at, HOUR), None);
        assert_eq!(rights.may(&user(1), AccessMask::READ, Timestamp::new(4601, 0), HOUR), None);
        assert_eq!(rights.may(&user(1), AccessMask::READ, at, HOUR), None, "expired is forgotten");
    }

    #[test]
    fn success_proves_one_bit_and_answers_no_access() {
        let mut rights = Rights::default();
        let at = Timestamp::new(1000, 0);
        rights.remember_success(&user(1), AccessMask::LOOKUP, at);
        assert_eq!(rights.may(&user(1), AccessMask::LOOKUP, at, HOUR), Some(true));
        assert_eq!(rights.may(&user(1), AccessMask::READ, at, HOUR), None);
        assert_eq!(rights.answer(&user(1), at, HOUR), None);
        rights.remember_answer(&user(1), AccessMask::empty(), true, at);
        assert_eq!(rights.answer(&user(1), at, HOUR), None, "young");
        assert_eq!(rights.may(&user(1), AccessMask::READ, at, HOUR), Some(false));
        rights.remember_success(&user(1), AccessMask::READ, at);
        assert_eq!(rights.may(&user(1), AccessMask::READ, at, HOUR), Some(true), "execute-only and the like");
    }

    #[test]
    fn the_number_of_credentials_is_bounded() {
        let mut rights = Rights::default();
        let at = Timestamp::new(1000, 0);
        (0..40).for_each(|uid| rights.remember_answer(&user(uid), AccessMask::READ, false, at));
        assert_eq!(rights.len(), CREDENTIALS_MAX);
        assert_eq!(rights.may(&user(39), AccessMask::READ, at, HOUR), Some(true));
    }
}
