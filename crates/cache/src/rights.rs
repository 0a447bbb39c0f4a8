//! The rights that the origin has granted: ACCESS answers and successful operations, remembered per
//! credential.
//!
//! A hit is decided by these alone, never by mode bits. Owner override, squashing, access lists and
//! server-side groups are the origin's business. An entry is either the answer to an ACCESS, or the success
//! of an operation that needs the right. All entries are forgotten when another client changes the object's
//! attributes, and when we change its mode or owner. They expire after `acregmax` or `acdirmax`, because
//! groups and exports may change at the origin without a trace on the file.
//!
//! The key is the whole credential, with every supplementary group. An origin may have been sent only some of
//! them (`client::groups`). So an entry serves no caller for which the origin might have been sent others.
//!
//! Promise: remembered-rights

use std::time::Duration;

use vfs::{AccessMask, Credential, Principal, Timestamp};

/// Credentials that are remembered per object. The least recently used one is replaced.
const CREDENTIALS_MAX: usize = 16;

/// The rights of one credential on one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// The credential.
    pub principal: Principal,
    /// The answer to an ACCESS that asked for everything.
    pub granted: Option<AccessMask>,
    /// The rights that successful operations have proven.
    pub proven: AccessMask,
    /// The state was racy when the answer was requested: it does not answer the next open.
    pub racy: bool,
    /// When the answer was requested.
    pub learnt: Timestamp,
}

impl Right {
    /// Was this right ever granted or proven, as far as is remembered?
    pub fn may_ever(&self, bit: AccessMask) -> bool {
        self.proven.contains(bit) || self.granted.is_some_and(|granted| granted.contains(bit))
    }
}

/// The rights on one object, least recently used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    entries: Vec<Right>,
    generation: u64,
    touched: u64,
}

impl Rights {
    /// Counts our own changes of mode and owner, before and after each. An answer that was requested before
    /// the count moved is not stored.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The event of the last such change.
    pub fn touched(&self) -> u64 {
        self.touched
    }

    /// A change of mode or owner by us is about to begin, or has ended, at this event: drops all rights. True
    /// if there were any.
    pub fn touch(&mut self, event: u64) -> bool {
        self.generation += 1;
        self.touched = event;
        self.clear()
    }

    /// Has the credential this right? `None` if the origin has not been asked, or was asked too long ago.
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

    /// The complete ACCESS answer, if it was requested, is not too old, and belongs to a nonracy state.
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
        // An earlier proof must not outlive its time with the new answer. The next such operation proves the
        // right again.
        self.take(principal);
        let proven = AccessMask::empty();
        self.push(Right { principal: principal.clone(), granted: Some(granted), proven, racy, learnt });
    }

    /// An operation that needs this right has succeeded.
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

    /// The rights that were granted or proven last, however long ago.
    pub fn last(&self, principal: &Principal) -> Option<AccessMask> {
        let right = self.entries.iter().find(|right| same(&right.principal, principal))?;
        Some(right.granted.unwrap_or(AccessMask::empty()) | right.proven)
    }

    /// Forgets the answers that belong to a racy state. True if there were any.
    pub fn forget_racy(&mut self) -> bool {
        let before = self.entries.len();
        self.entries.retain(|right| !right.racy);
        self.entries.len() < before
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

    /// Adds an entry as the one used last.
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
    fn every_group_belongs_to_the_credential() {
        let mut rights = Rights::default();
        let at = Timestamp::new(1000, 0);
        let groups: Vec<u32> = (1..=40).collect();
        let of = |groups: &[u32]| Caller::unix(1, 100, groups).principal;
        rights.remember_answer(&of(&groups), AccessMask::READ, false, at);
        assert_eq!(rights.may(&of(&groups), AccessMask::READ, at, HOUR), Some(true));
        for fewer in [&groups[1..], &groups[..39], &groups[..16], &[]] {
            assert_eq!(rights.may(&of(fewer), AccessMask::READ, at, HOUR), None, "{fewer:?}");
        }
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
