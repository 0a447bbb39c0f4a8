//! A POSIX access control list, and its format in Linux's extended attributes (acl(5), xattr(7)).

/// The version of all kernels.
const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The id of entries without a user or group.
const NOBODY: u32 = u32::MAX;
/// Size of an entry in bytes.
const ENTRY_BYTES: usize = 8;

/// Rights as in a mode: 4 read, 2 write, 1 execute.
pub(super) type Rights = u8;

/// A POSIX list. Named users and groups are sorted and unique.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Posix {
    pub(super) owner: Rights,
    pub(super) users: Vec<(u32, Rights)>,
    pub(super) group: Rights,
    pub(super) groups: Vec<(u32, Rights)>,
    /// Upper bound of the rights of named users and all groups. Required if any are named.
    pub(super) mask: Option<Rights>,
    pub(super) other: Rights,
}

impl Posix {
    /// The list that is equivalent to a mode.
    pub(super) fn of_mode(mode: u32) -> Posix {
        let part = |shift: u32| (mode >> shift & 7) as Rights;
        Posix { owner: part(6), group: part(3), other: part(0), ..Posix::default() }
    }

    /// Parses the extended attribute; `None` if it is malformed.
    pub(super) fn parse(bytes: &[u8]) -> Option<Posix> {
        let (version, entries) = bytes.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION || entries.len() % ENTRY_BYTES != 0 {
            return None;
        }
        let mut list = Posix::default();
        for entry in entries.chunks_exact(ENTRY_BYTES) {
            let short = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            let rights = (short(2) & 7) as Rights;
            match short(0) {
                USER_OBJ => list.owner = rights,
                USER => list.users.push((id, rights)),
                GROUP_OBJ => list.group = rights,
                GROUP => list.groups.push((id, rights)),
                MASK => list.mask = Some(rights),
                OTHER => list.other = rights,
                _ => return None,
            }
        }
        Some(list)
    }

    /// Encodes the list for the extended attribute.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        let mut entry = |tag: u16, rights: Rights, id: u32| {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&u16::from(rights).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        };
        entry(USER_OBJ, self.owner, NOBODY);
        self.users.iter().for_each(|(id, rights)| entry(USER, *rights, *id));
        entry(GROUP_OBJ, self.group, NOBODY);
        self.groups.iter().for_each(|(id, rights)| entry(GROUP, *rights, *id));
        if let Some(mask) = self.mask {
            entry(MASK, mask, NOBODY);
        }
        entry(OTHER, self.other, NOBODY);
        bytes
    }

    /// The same with the mask applied, and the narrowest new mask.
    pub(super) fn effective(&self) -> Posix {
        let mask = self.mask.unwrap_or(7);
        let masked =
            |named: &[(u32, Rights)]| named.iter().map(|(id, rights)| (*id, rights & mask)).collect();
        let list = Posix {
            users: masked(&self.users),
            group: self.group & mask,
            groups: masked(&self.groups),
            mask: None,
            ..*self
        };
        list.masked()
    }

    /// Adds the widest mask that changes nothing, if the list needs one.
    pub(super) fn masked(self) -> Posix {
        let named = self.users.iter().chain(&self.groups);
        let mask = named.fold(self.group, |all, (_, rights)| all | rights);
        let any = !(self.users.is_empty() && self.groups.is_empty());
        Posix { mask: any.then_some(mask), ..self }
    }
}
