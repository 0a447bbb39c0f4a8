//! `owner` and `owner_group`: decimal numbers, which Linux sends and accepts under AUTH_SYS (RFC 7530,
//! section 5.9). Names are accepted too, with or without a domain, if this machine knows them.

use bytes::Bytes;
use protocol::nfs4::{Limited, Status};

/// User or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `owner`
    User,
    /// `owner_group`
    Group,
}

/// The string for a number.
pub(crate) fn string(number: u32) -> Limited {
    let bytes = if number == 0 { Bytes::from_static(b"0") } else { Bytes::from(number.to_string()) };
    // Ten digits are within every limit.
    Limited::new(bytes).unwrap_or_default()
}

/// The number for a string.
///
/// # Errors
/// `Inval` if it is empty or not UTF-8, `BadOwner` if no user or group has this name.
pub(crate) fn number(owner: &[u8], kind: Kind) -> Result<u32, Status> {
    if owner.is_empty() {
        return Err(Status::Inval);
    }
    let text = std::str::from_utf8(owner).map_err(|_| Status::Inval)?;
    let name = text.split_once('@').map_or(text, |(name, _)| name);
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        // All ones is not a valid id: chown(2) takes it as "leave unchanged".
        return name.parse().ok().filter(|&number| number != u32::MAX).ok_or(Status::BadOwner);
    }
    let table = match kind {
        Kind::User => "/etc/passwd",
        Kind::Group => "/etc/group",
    };
    let table = std::fs::read_to_string(table).map_err(|_| Status::BadOwner)?;
    find(&table, name).ok_or(Status::BadOwner)
}

/// The third field of the line that begins with this name: the number in passwd(5) and group(5).
fn find(table: &str, name: &str) -> Option<u32> {
    let mut lines = table.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_numbers_or_names_that_are_known() {
        assert_eq!(number(b"1000", Kind::User), Ok(1000));
        assert_eq!(number(b"1000@example.org", Kind::Group), Ok(1000));
        assert_eq!(number(b"root@example.org", Kind::User), Ok(0));
        for (bad, status) in [
            (&b""[..], Status::Inval),
            (b"\xc0\xc1", Status::Inval),
            (b"4294967295", Status::BadOwner),
            (b"4294967296", Status::BadOwner),
            (b"@", Status::BadOwner),
            (b"nobody of that name", Status::BadOwner),
        ] {
            assert_eq!(number(bad, Kind::User), Err(status), "{}", bad.escape_ascii());
        }
        assert_eq!(find("daemon:x:1:1::/:\nalice:x:1001:100:A:/:\n", "alice"), Some(1001));
        assert_eq!(&string(4_000_000_000)[..], b"4000000000");
    }
}
