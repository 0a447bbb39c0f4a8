//! `owner` and `owner_group`: decimal numbers, which Linux sends and accepts under AUTH_SYS (RFC 7530,
//! section 5.9). Names are accepted too, with or without a domain, if this machine knows them. Linux sends
//! names under Kerberos.

use bytes::Bytes;
use protocol::nfs4::{Limited, Status};

pub(crate) use crate::names::{Kind, Names};

/// The string for a number.
pub(crate) fn string(number: u32) -> Limited {
    let bytes = if number == 0 { Bytes::from_static(b"0") } else { Bytes::from(number.to_string()) };
    // Ten digits are within every limit.
    Limited::new(bytes).unwrap_or_default()
}

/// The number for a string.
///
/// # Errors
/// `Inval` if it is empty or not UTF-8, `BadOwner` if no user or group has this name, `Delay` if the user
/// database does not answer.
pub(crate) async fn number(names: &Names, owner: &[u8], kind: Kind) -> Result<u32, Status> {
    if owner.is_empty() {
        return Err(Status::Inval);
    }
    let text = std::str::from_utf8(owner).map_err(|_| Status::Inval)?;
    let name = text.split_once('@').map_or(text, |(name, _)| name);
    if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        // All ones is not a valid id: chown(2) takes it as "leave unchanged".
        return name.parse().ok().filter(|&number| number != u32::MAX).ok_or(Status::BadOwner);
    }
    match names.number_of(name, kind).await {
        Ok(number) => number.ok_or(Status::BadOwner),
        Err(error) => {
            tracing::warn!(
                "the {kind:?} `{}` cannot be looked up: {error}; look at nsswitch.conf(5) and its services",
                name.escape_debug()
            );
            Err(Status::Delay)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn owners_are_numbers_or_names_that_are_known() {
        struct Away;
        impl crate::names::NameDatabase for Away {
            fn number_of(&self, _: &str, _: Kind) -> std::io::Result<Option<u32>> {
                Err(std::io::Error::other("the server is away"))
            }
        }
        let names = Names::default();
        assert_eq!(number(&names, b"1000", Kind::User).await, Ok(1000));
        assert_eq!(number(&names, b"1000@example.org", Kind::Group).await, Ok(1000));
        assert_eq!(number(&names, b"root@example.org", Kind::User).await, Ok(0));
        for (bad, status) in [
            (&b""[..], Status::Inval),
            (b"\xc0\xc1", Status::Inval),
            (b"4294967295", Status::BadOwner),
            (b"4294967296", Status::BadOwner),
            (b"@", Status::BadOwner),
            (b"nobody of that name", Status::BadOwner),
        ] {
            assert_eq!(number(&names, bad, Kind::User).await, Err(status), "{}", bad.escape_ascii());
        }
        assert_eq!(number(&Names::new(Away), b"alice", Kind::User).await, Err(Status::Delay));
        assert_eq!(&string(4_000_000_000)[..], b"4000000000");
    }
}
