//! What a virtual server holds at an origin, in the store: an entry for each entry of the record.
//!
//! The entries are in sixteen parts, by the last digit of their keys, because one answer of the store has
//! only a few megabytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::replica::{Changes, Replica, Stored};
use cluster::store::{Change, Store, StoreError, Transaction};

use super::VirtualServer;
use crate::Failure;

/// The digits of keys, and the names of the parts.
const DIGITS: &[u8; 16] = b"0123456789abcdef";
/// Changes in one transaction. etcd allows 128 operations.
const AT_ONCE: usize = 100;
/// Attempts to read a part.
const ATTEMPTS: usize = 3;

/// The copy of what is held at one origin.
#[derive(Debug)]
pub struct HeldAt {
    pub(super) server: Arc<VirtualServer>,
    pub(super) prefix: String,
}

impl Replica for HeldAt {
    fn begin(&self, mut entries: BTreeMap<Vec<u8>, Vec<u8>>) -> Stored<'_> {
        Box::pin(async move {
            let mut changes = Changes::new();
            for digit in DIGITS {
                let part = format!("{}{}/", self.prefix, char::from(*digit));
                for found in self.server.write(Vec::new(), part).await? {
                    let Some(key) = key_of(&self.prefix, &found.key) else { continue };
                    match entries.get(&key) {
                        Some(value) if *value == found.value => drop(entries.remove(&key)),
                        Some(_) => {}
                        None => changes.push((key, None)),
                    }
                }
            }
            // New entries come first: see [`Changes`].
            let new = entries.into_iter().map(|(key, value)| (key, Some(value)));
            let gone = changes.into_iter().rev();
            self.store(new.chain(gone).collect()).await
        })
    }

    fn store(&self, changes: Changes) -> Stored<'_> {
        Box::pin(async move {
            let nothing = format!("{}none/", self.prefix);
            for part in changes.chunks(AT_ONCE) {
                let changes = part.iter().map(|(key, value)| {
                    let key = text(&self.prefix, key);
                    match value {
                        Some(value) => Change::Put { key, value: value.clone() },
                        None => Change::Delete { key },
                    }
                });
                self.server.write(changes.collect(), nothing.clone()).await?;
            }
            Ok(())
        })
    }
}

/// Reads all entries.
///
/// # Errors
/// If the store does not answer.
pub(super) async fn read(
    server: &VirtualServer,
    prefix: &str,
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Failure> {
    let mut entries = BTreeMap::new();
    for digit in DIGITS {
        let part =
            Transaction { prefix: format!("{prefix}{}/", char::from(*digit)), ..Transaction::default() };
        let mut attempt = 1;
        let told = loop {
            match server.store.transact(&part).await {
                Ok(told) => break told,
                Err(StoreError::Unknown(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => {
                    return Err(Failure(format!("what is held at the origins is not in reach: {error}")));
                }
            }
        };
        let found = told.entries.into_iter();
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
