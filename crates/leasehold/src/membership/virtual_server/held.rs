//! What a virtual server holds at an origin, in the store: an entry for each entry of the record.
//!
//! The entries are in sixteen parts, by the last digit of their keys, because one answer of the store has
//! only a few megabytes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use client::replica::{Changes, Replica, Stored};
use cluster::store::Change;

use super::{Copy, VirtualServer};

/// The digits of keys, and the names of the parts.
const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// Changes in one transaction. etcd allows 128 operations.
const AT_ONCE: usize = 100;
/// Bytes of changes in one transaction. etcd allows 1.5 MiB.
const BYTES_MAX: usize = 512 << 10;

/// The copy of what is held at one origin.
#[derive(Debug)]
pub struct HeldAt {
    server: Arc<VirtualServer>,
    prefix: String,
    copy: Copy,
}

impl HeldAt {
    pub(super) fn new(server: Arc<VirtualServer>, prefix: String) -> HeldAt {
        let origin = prefix.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let copy = Copy::new(server.keys.turn(&server.order.address, origin));
        HeldAt { server, prefix, copy }
    }

    async fn store_part(&self, part: &[(Vec<u8>, Option<Vec<u8>>)]) -> io::Result<()> {
        let changes = part.iter().map(|(key, value)| {
            let key = text(&self.prefix, key);
            match value {
                Some(value) => Change::Put { key, value: value.clone() },
                None => Change::Delete { key },
            }
        });
        self.server.write(&self.copy, changes.collect()).await
    }
}

impl Replica for HeldAt {
    fn begin(&self, mut entries: BTreeMap<Vec<u8>, Vec<u8>>) -> Stored<'_> {
        Box::pin(async move {
            // After this, no earlier write is carried out any more.
            self.store_part(&[]).await?;
            let mut gone = Vec::new();
            for (key, value) in read(&self.server, &self.prefix).await? {
                match entries.get(&key) {
                    Some(wanted) if *wanted == value => drop(entries.remove(&key)),
                    Some(_) => {}
                    None => gone.push((key, None)),
                }
            }
            // New entries come first, and the first keys go last: see [`Changes`].
            let new = entries.into_iter().map(|(key, value)| (key, Some(value)));
            self.store(new.chain(gone.into_iter().rev()).collect()).await
        })
    }

    fn store(&self, changes: Changes) -> Stored<'_> {
        Box::pin(async move {
            let mut rest = &changes[..];
            while !rest.is_empty() {
                let mut bytes = 0;
                let fits = rest.iter().take(AT_ONCE).take_while(|(key, value)| {
                    bytes += key.len() + value.as_ref().map_or(0, Vec::len);
                    bytes <= BYTES_MAX
                });
                let (part, behind) = rest.split_at(fits.count().max(1));
                self.store_part(part).await?;
                rest = behind;
            }
            Ok(())
        })
    }
}

/// Reads all entries.
///
/// # Errors
/// If the store does not answer.
pub(super) async fn read(server: &VirtualServer, prefix: &str) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut entries = BTreeMap::new();
    for digit in DIGITS {
        let found = server.read(&format!("{prefix}{}/", char::from(*digit))).await?.into_iter();
        entries.extend(found.filter_map(|entry| Some((key_of(prefix, &entry.key)?, entry.value))));
    }
    Ok(entries)
}

/// The key of the store: the part, and the digits of the key.
fn text(prefix: &str, key: &[u8]) -> String {
    let digits: String = key
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect();
    let part = digits.chars().last().unwrap_or('0');
    format!("{prefix}{part}/{digits}")
}

/// The key of the record.
fn key_of(prefix: &str, text: &str) -> Option<Vec<u8>> {
    let (_, digits) = text.strip_prefix(prefix)?.split_once('/')?;
    let digits: Vec<u8> = digits
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_digits_in_sixteen_parts() {
        for key in [&b""[..], b"\x01", b"\x03\0\0\0\0\0\0\0\x2a", b"\xffowner"] {
            let text = text("p/", key);
            assert_eq!(key_of("p/", &text).unwrap(), key, "{text}");
        }
        assert_eq!(text("p/", b"\x03\x2a"), "p/a/032a");
        for odd in ["p/a/3", "p/a/xy", "p/32", "q/a/32"] {
            assert_eq!(key_of("p/", odd), None, "{odd}");
        }
    }
}
