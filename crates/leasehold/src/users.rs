//! The users of this machine, as nsswitch.conf(5) finds them: files, LDAP, SSSD and so on.

use std::ffi::CString;
use std::io;

use server::{NameDatabase, NameKind, UserDatabase};

use crate::sys;

/// The user database of the C library.
pub struct Nsswitch;

impl UserDatabase for Nsswitch {
    fn groups_of(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        let Some((name, gid)) = sys::user(uid)? else { return Ok(None) };
        sys::groups(&name, gid).map(Some)
    }
}

impl NameDatabase for Nsswitch {
    fn number_of(&self, name: &str, kind: NameKind) -> io::Result<Option<u32>> {
        let Ok(name) = CString::new(name) else { return Ok(None) };
        match kind {
            NameKind::User => Ok(sys::user_named(&name)?.map(|(uid, _)| uid)),
            NameKind::Group => sys::group_named(&name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The groups of a user by the files alone, which every machine asks first.
    fn by_files(name: &str) -> Vec<u32> {
        let groups = std::fs::read_to_string("/etc/group").unwrap();
        let of = groups.lines().filter_map(|line| {
            let mut fields = line.split(':').skip(2);
            let (gid, members) = (fields.next()?.parse().ok()?, fields.next()?);
            members.split(',').any(|member| member == name).then_some(gid)
        });
        of.collect()
    }

    #[test]
    fn users_of_the_machine_have_the_groups_of_its_files() {
        let users = std::fs::read_to_string("/etc/passwd").unwrap();
        let mut seen = 0;
        for line in users.lines() {
            let mut fields = line.split(':');
            let (Some(name), Some(uid), Some(gid)) = (fields.next(), fields.nth(1), fields.next()) else {
                continue;
            };
            let (uid, gid): (u32, u32) = (uid.parse().unwrap(), gid.parse().unwrap());
            let groups = Nsswitch.groups_of(uid).unwrap().expect("it is in the file");
            assert!(groups.contains(&gid), "{name}: {groups:?}");
            assert!(by_files(name).iter().all(|group| groups.contains(group)), "{name}: {groups:?}");
            seen += 1;
        }
        assert!(seen > 0);
    }

    #[test]
    fn groups_of_the_machine_have_the_numbers_of_its_files() {
        let groups = std::fs::read_to_string("/etc/group").unwrap();
        for line in groups.lines() {
            let fields: Vec<&str> = line.split(':').collect();
            let number = Nsswitch.number_of(fields[0], NameKind::Group).unwrap();
            assert_eq!(number, Some(fields[2].parse().unwrap()), "{line}");
        }
        assert_eq!(Nsswitch.number_of("root", NameKind::User).unwrap(), Some(0));
    }

    #[test]
    fn a_user_that_does_not_exist_is_not_an_error() {
        assert_eq!(Nsswitch.groups_of(3_999_999_999).unwrap(), None);
        for kind in [NameKind::User, NameKind::Group] {
            for name in ["no-such-name", "a\0b", ""] {
                assert_eq!(Nsswitch.number_of(name, kind).unwrap(), None, "{name:?}");
            }
        }
    }
}
