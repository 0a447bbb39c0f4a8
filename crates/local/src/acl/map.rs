//! The mapping between NFSv4 and POSIX lists.
//!
//! **From NFSv4** (`kept`): each class of the POSIX list (owner, group, each named user or group, others)
//! gets the rights that the entries allow it. For each right the first matching entry decides. A user whom
//! an entry denies a right may also match another class: a named user may be the owner. A member of a group
//! may be a member of another group, the owner or a named user. Then the other class is denied the right as
//! well, so that no user gets a right that the list denies.
//!
//! **To NFSv4** (`told`): if a class has fewer rights than a later class in the list, a DENY entry removes
//! the difference first.

use std::collections::BTreeMap;

use bytes::Bytes;
use vfs::{Ace, Acl, Status};

use super::posix::{Posix, Rights};

const ALLOW: u32 = 0;
const DENY: u32 = 1;
const FILE_INHERIT: u32 = 0x01;
const DIRECTORY_INHERIT: u32 = 0x02;
const NO_PROPAGATE: u32 = 0x04;
const INHERIT_ONLY: u32 = 0x08;
const IDENTIFIER_GROUP: u32 = 0x40;
const READ_DATA: u32 = 0x01;
const WRITE_DATA: u32 = 0x02;
const APPEND_DATA: u32 = 0x04;
const EXECUTE: u32 = 0x20;
const DELETE_CHILD: u32 = 0x40;
/// Granted to all: READ_ATTRIBUTES, READ_ACL, SYNCHRONIZE.
const EVERYBODY: u32 = 0x80 | 0x2_0000 | 0x10_0000;
/// Also granted to the owner: WRITE_ATTRIBUTES, WRITE_ACL.
const OWNER: u32 = 0x100 | 0x4_0000;

/// The POSIX form of an NFSv4 list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) access: Posix,
    /// For a directory with inheritable entries.
    pub(super) default: Option<Posix>,
}

/// The subject of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Owner,
    User(u32),
    Group,
    NamedGroup(u32),
    Everyone,
}

impl Who {
    fn parse(ace: &Ace) -> Result<Who, Status> {
        match &ace.who[..] {
            b"OWNER@" => Ok(Who::Owner),
            b"GROUP@" => Ok(Who::Group),
            b"EVERYONE@" => Ok(Who::Everyone),
            name => {
                let number = std::str::from_utf8(name).ok().and_then(|text| text.parse().ok());
                // The kernel's value for "no id".
                let id = number.filter(|id| *id != u32::MAX).ok_or(Status::Inval)?;
                Ok(if ace.flags & IDENTIFIER_GROUP != 0 { Who::NamedGroup(id) } else { Who::User(id) })
            }
        }
    }

    fn is_group(self) -> bool {
        matches!(self, Who::Group | Who::NamedGroup(_))
    }

    /// Could a user who is denied a right as `self` get it as `other`?
    fn may_be(self, other: Who) -> bool {
        match self {
            Who::User(_) => other == Who::Owner,
            Who::Group | Who::NamedGroup(_) => other != Who::Everyone,
            Who::Owner | Who::Everyone => false,
        }
    }
}

/// Converts an NFSv4 list.
///
/// # Errors
/// `Inval` for audit and alarm entries, and for a `who` that is not a number. `Inval` also for an
/// inheritable entry on a file, and for one that only some new objects inherit.
pub(super) fn kept(acl: &Acl, is_dir: bool) -> Result<Kept, Status> {
    let (mut here, mut below) = (Vec::new(), Vec::new());
    for ace in &acl.0 {
        if ace.kind > DENY {
            return Err(Status::Inval);
        }
        let rule = Rule { who: Who::parse(ace)?, allows: ace.kind == ALLOW, mask: ace.mask };
        let inherits = ace.flags & (FILE_INHERIT | DIRECTORY_INHERIT);
        if inherits != 0 {
            if !is_dir || inherits != FILE_INHERIT | DIRECTORY_INHERIT || ace.flags & NO_PROPAGATE != 0 {
                return Err(Status::Inval);
            }
            below.push(rule);
        }
        if ace.flags & INHERIT_ONLY == 0 {
            here.push(rule);
        }
    }
    let default = (!below.is_empty()).then(|| judged(&below));
    Ok(Kept { access: judged(&here), default })
}

#[derive(Clone, Copy)]
struct Rule {
    who: Who,
    allows: bool,
    mask: u32,
}

impl Rule {
    /// The rights that it allows completely, or denies at least in part.
    fn rights(self) -> Rights {
        let write = if self.allows {
            self.mask & (WRITE_DATA | APPEND_DATA) == WRITE_DATA | APPEND_DATA
        } else {
            self.mask & (WRITE_DATA | APPEND_DATA) != 0
        };
        let bit = |set: bool, right: Rights| if set { right } else { 0 };
        bit(self.mask & READ_DATA != 0, 4) | bit(write, 2) | bit(self.mask & EXECUTE != 0, 1)
    }

    fn is_about(self, class: Who) -> bool {
        self.who == class || self.who == Who::Everyone || (!self.allows && self.who.may_be(class))
    }
}

/// The rights that each class of a POSIX list gets by these rules.
fn judged(rules: &[Rule]) -> Posix {
    let rights_of = |class: Who| {
        let (mut allowed, mut decided): (Rights, Rights) = (0, 0);
        for rule in rules.iter().filter(|rule| rule.is_about(class)) {
            let new = rule.rights() & !decided;
            decided |= new;
            if rule.allows {
                allowed |= new;
            }
        }
        allowed
    };
    let mut named: BTreeMap<Who, Rights> = BTreeMap::new();
    for rule in rules {
        if let Who::User(_) | Who::NamedGroup(_) = rule.who {
            named.entry(rule.who).or_insert_with(|| rights_of(rule.who));
        }
    }
    let mut list = Posix {
        owner: rights_of(Who::Owner),
        group: rights_of(Who::Group),
        other: rights_of(Who::Everyone),
        ..Posix::default()
    };
    for (who, rights) in named {
        match who {
            Who::User(id) => list.users.push((id, rights)),
            Who::NamedGroup(id) => list.groups.push((id, rights)),
            Who::Owner | Who::Group | Who::Everyone => {}
        }
    }
    list.masked()
}

/// The NFSv4 form of a file's lists.
pub(super) fn told(access: &Posix, default: Option<&Posix>, is_dir: bool) -> Acl {
    let mut aces = entries(access, is_dir, 0);
    if let Some(default) = default {
        aces.extend(entries(default, is_dir, FILE_INHERIT | DIRECTORY_INHERIT | INHERIT_ONLY));
    }
    Acl(aces)
}

fn entries(list: &Posix, is_dir: bool, flags: u32) -> Vec<Ace> {
    let list = list.effective();
    let all = |named: &[(u32, Rights)]| named.iter().fold(0, |all: Rights, (_, rights)| all | rights);
    let groups = list.group | all(&list.groups) | list.other;
    let mut aces = Vec::new();
    let mut ace = |kind: u32, who: Who, rights: Rights| {
        if kind == ALLOW || rights != 0 {
            aces.push(entry(kind, who, (rights, is_dir), flags));
        }
    };
    ace(DENY, Who::Owner, (groups | all(&list.users)) & !list.owner);
    ace(ALLOW, Who::Owner, list.owner);
    for (id, rights) in &list.users {
        ace(DENY, Who::User(*id), groups & !rights);
        ace(ALLOW, Who::User(*id), *rights);
    }
    ace(ALLOW, Who::Group, list.group);
    list.groups.iter().for_each(|(id, rights)| ace(ALLOW, Who::NamedGroup(*id), *rights));
    ace(DENY, Who::Group, list.other & !list.group);
    list.groups.iter().for_each(|(id, rights)| ace(DENY, Who::NamedGroup(*id), list.other & !rights));
    ace(ALLOW, Who::Everyone, list.other);
    aces
}

fn entry(kind: u32, who: Who, (rights, is_dir): (Rights, bool), flags: u32) -> Ace {
    let bit = |right: Rights, mask: u32| if rights & right != 0 { mask } else { 0 };
    let write = WRITE_DATA | APPEND_DATA | if is_dir { DELETE_CHILD } else { 0 };
    let mut mask = bit(4, READ_DATA) | bit(2, write) | bit(1, EXECUTE);
    if kind == ALLOW {
        mask |= EVERYBODY | if who == Who::Owner { OWNER } else { 0 };
    }
    let name = match who {
        Who::Owner => Bytes::from_static(b"OWNER@"),
        Who::Group => Bytes::from_static(b"GROUP@"),
        Who::Everyone => Bytes::from_static(b"EVERYONE@"),
        Who::User(id) | Who::NamedGroup(id) => Bytes::from(id.to_string()),
    };
    let group = if who.is_group() { IDENTIFIER_GROUP } else { 0 };
    Ace { kind, flags: flags | group, mask, who: name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ace(kind: u32, who: &'static str, mask: u32, flags: u32) -> Ace {
        Ace { kind, flags, mask, who: Bytes::from_static(who.as_bytes()) }
    }

    fn lists() -> impl Strategy<Value = Posix> {
        let named = || proptest::collection::btree_map(0..20u32, 0..8u8, 0..4);
        (0..8u8, named(), 0..8u8, named(), 0..8u8, 0..8u8).prop_map(
            |(owner, users, group, groups, mask, other)| {
                let (users, groups): (Vec<_>, Vec<_>) =
                    (users.into_iter().collect(), groups.into_iter().collect());
                let any = !users.is_empty() || !groups.is_empty();
                Posix { owner, users, group, groups, mask: any.then_some(mask), other }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_told_is_kept_when_it_is_set_again(
            access in lists(),
            default in proptest::option::of(lists()),
            is_dir: bool,
        ) {
            let default = default.filter(|_| is_dir);
            let kept = kept(&told(&access, default.as_ref(), is_dir), is_dir).unwrap();
            prop_assert_eq!(kept.access, access.effective());
            prop_assert_eq!(kept.default, default.map(|list| list.effective()));
        }

        #[test]
        fn lists_come_back_from_their_bytes(list in lists()) {
            prop_assert_eq!(Posix::parse(&list.to_bytes()), Some(list));
        }

        /// No user has a right that the first matching entry denies to any of the user's identities.
        #[test]
        fn nobody_gets_more_than_the_list_says(
            rules in proptest::collection::vec((any::<bool>(), 0..6usize, 0..8u8), 0..8),
            is in (any::<bool>(), 0..2u32, any::<bool>(), 0..2u32),
        ) {
            const WHO: [&str; 6] = ["OWNER@", "0", "GROUP@", "0", "1", "EVERYONE@"];
            let mask = |rights: u8| entry(DENY, Who::Owner, (rights, false), 0).mask;
            let aces: Vec<Ace> = rules.iter().map(|(allows, who, rights)| {
                let group = if matches!(who, 2..=4) { IDENTIFIER_GROUP } else { 0 };
                ace(if *allows { ALLOW } else { DENY }, WHO[*who], mask(*rights), group)
            }).collect();
            let list = kept(&Acl(aces), false).unwrap().access;
            let (owns, uid, in_group, gid) = is;
            let matches = |who: usize| match who {
                0 => owns,
                1 => uid == 0,
                2 => in_group,
                3 => gid == 0,
                4 => gid == 1,
                _ => true,
            };
            let has = kernel(&list, owns, uid, in_group, gid);
            for right in [4, 2, 1u8] {
                let first = rules.iter().find(|(_, who, rights)| matches(*who) && rights & right != 0);
                let allowed = first.is_some_and(|(allows, ..)| *allows);
                prop_assert!(allowed || has & right == 0, "{:?}", list);
            }
        }
    }

    /// The access check of acl(5); among several groups, each right of any group counts.
    fn kernel(list: &Posix, owns: bool, uid: u32, in_group: bool, gid: u32) -> Rights {
        let mask = list.mask.unwrap_or(7);
        if owns {
            return list.owner;
        }
        if let Some((_, rights)) = list.users.iter().find(|(id, _)| *id == uid) {
            return rights & mask;
        }
        let named = list.groups.iter().filter(|(id, _)| *id == gid).map(|(_, rights)| *rights);
        let mut groups = named.chain(in_group.then_some(list.group)).peekable();
        if groups.peek().is_none() { list.other } else { groups.fold(0, |all, one| all | one) & mask }
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        let all = FILE_INHERIT | DIRECTORY_INHERIT;
        for (entry, is_dir, error) in [
            (ace(2, "OWNER@", 1, 0), false, Status::Inval),
            (ace(ALLOW, "OWNER@", 1, all), false, Status::Inval),
            (ace(ALLOW, "OWNER@", 1, FILE_INHERIT), true, Status::Inval),
            (ace(ALLOW, "OWNER@", 1, all | NO_PROPAGATE), true, Status::Inval),
            (ace(ALLOW, "somebody", 1, 0), false, Status::Inval),
            (ace(ALLOW, "4294967295", 1, 0), false, Status::Inval),
        ] {
            assert_eq!(kept(&Acl(vec![entry.clone()]), is_dir), Err(error), "{entry:?}");
        }
    }
}
