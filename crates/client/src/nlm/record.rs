//! The record of the locks held at the origin, as keys and values of the [journal]: pure
//! encoding, and the part of an earlier process.
//!
//! | key | value |
//! |---|---|
//! | `1` | the mounted URL, and the boot of this machine |
//! | `2`, a handle and an owner | what the owner holds in the file |
//!
//! NLM locks have no term: the origin keeps those of a process that was killed until somebody gives them up.
//! So the next process uses a record of any boot of the machine. It takes the locks over if the machine has
//! not been restarted since; otherwise it gives them up, because the last entries may have been lost.

use std::path::Path;

use bytes::Bytes;
use vfs::{Handle, Owner};
use xdr::{List, Opaque, Xdr};

use super::table::{Held, RANGES_MAX};
use crate::journal::fields::{RangeRecord, TooLarge, Who, encoded, opaque};
use crate::journal::{self, Contents, Entries};

const ORIGIN: u8 = 1;
const LOCKS: u8 = 2;

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
struct OriginRecord {
    url: Opaque<8192>,
    boot: Opaque<64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
struct LocksRecord {
    handle: Opaque<128>,
    owner: Opaque<8192>,
    svid: u32,
    who: Who,
    ranges: List<RangeRecord, RANGES_MAX>,
    doubt: Option<RangeRecord>,
}

/// The locks that an earlier process held at the origin of this URL.
#[derive(Clone, Debug, Default)]
pub(crate) struct Past {
    pub(super) locks: Vec<(Handle, Owner, Held)>,
    /// The machine has been restarted since.
    pub(super) is_of_another_boot: bool,
}

impl Past {
    /// Reads the file of a record, if there is one of this URL.
    ///
    /// # Errors
    /// A message, if the file cannot be read or is damaged.
    pub(crate) fn read(path: &Path, url: &str, boot: Option<&[u8]>) -> Result<Past, String> {
        let Some(contents) = journal::read(path)? else { return Ok(Past::default()) };
        Past::parse(&contents, url, boot).ok_or_else(|| "it has an entry of another version".to_owned())
    }

    /// Parses the contents of a journal. `None` if an entry is invalid. Nothing is taken from a record of
    /// another URL.
    pub(crate) fn parse(contents: &Contents, url: &str, boot: Option<&[u8]>) -> Option<Past> {
        let (mut origin, mut locks) = (None, Vec::new());
        for (key, value) in &contents.entries {
            let value = Bytes::copy_from_slice(value);
            match *key.first()? {
                ORIGIN => origin = Some(xdr::from_bytes::<OriginRecord>(value).ok()?),
                LOCKS => locks.push(locks_of(xdr::from_bytes(value).ok()?)?),
                _ => return None,
            }
        }
        let origin = origin?;
        if origin.url[..] != *url.as_bytes() {
            return Some(Past::default());
        }
        let is_of_another_boot = boot.is_none_or(|boot| origin.boot[..] != *boot);
        Some(Past { locks, is_of_another_boot })
    }
}

/// The entry of the origin.
pub(super) fn origin(url: &str, boot: Option<&[u8]>) -> Result<Entries, TooLarge> {
    let record = OriginRecord { url: opaque(url.as_bytes())?, boot: opaque(boot.unwrap_or_default())? };
    Ok(Entries::from([(vec![ORIGIN], encoded(&record)?)]))
}

/// The key of what an owner holds in a file.
pub(super) fn key(handle: &Handle, owner: &Owner) -> Vec<u8> {
    let handle = handle.as_bytes();
    // The length keeps two pairs apart whose concatenations are equal.
    [&[LOCKS, handle.len() as u8][..], handle, &owner.0].concat()
}

/// The value of what an owner holds in a file.
pub(super) fn locks(handle: &Handle, owner: &Owner, held: &Held) -> Result<Vec<u8>, TooLarge> {
    encoded(&LocksRecord {
        handle: opaque(handle.as_bytes())?,
        owner: opaque(&owner.0)?,
        svid: held.svid,
        who: Who::of(&held.principal)?,
        ranges: List::new(held.ranges.iter().map(RangeRecord::of).collect()).ok_or(TooLarge)?,
        doubt: held.doubt.map(RangeRecord::of),
    })
}

fn locks_of(record: LocksRecord) -> Option<(Handle, Owner, Held)> {
    let ranges = record.ranges.iter().map(|range| range.range()).collect::<Option<_>>()?;
    let doubt = match record.doubt {
        Some(range) => Some(range.range()?),
        None => None,
    };
    let held = Held { svid: record.svid, principal: record.who.principal(), ranges, doubt };
    Some((Handle::new(&record.handle)?, Owner(record.owner.into_bytes()), held))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;
    use vfs::locks::{LockRange, LockRanges};
    use vfs::{Credential, LockKind, Principal};

    use super::*;

    const URL: &str = "nfs://filer/export?vers=3";

    fn held(exclusive: bool, doubt: bool) -> Held {
        let kind = if exclusive { LockKind::Exclusive } else { LockKind::Shared };
        let mut ranges = LockRanges::default();
        ranges.lock(LockRange { start: 5, end: u64::MAX, kind });
        let doubt = doubt.then_some(LockRange { start: 0, end: 3, kind });
        let unix = Credential { uid: 7, gid: 8, groups: vec![9, 10] };
        Held { svid: 11, principal: Principal::Unix(Arc::new(unix)), ranges, doubt }
    }

    fn contents(url: &str, boot: &[u8], locked: &[(Handle, Owner, Held)]) -> Contents {
        let mut entries = origin(url, Some(boot)).unwrap();
        for (handle, owner, held) in locked {
            entries.insert(key(handle, owner), locks(handle, owner, held).unwrap());
        }
        Contents { entries, removed: Vec::new() }
    }

    #[test]
    fn what_was_recorded_comes_back_for_the_same_origin_alone() {
        let handle = Handle::new(&[1; 28]).unwrap();
        let of = |n: u8| Owner(vec![n; 30].into());
        let locked = vec![(handle, of(1), held(true, false)), (handle, of(2), held(false, true))];
        let contents = contents(URL, b"boot", &locked);
        let past = Past::parse(&contents, URL, Some(b"boot")).unwrap();
        assert_eq!((past.locks, past.is_of_another_boot), (locked, false));
        assert!(Past::parse(&contents, URL, Some(b"other")).unwrap().is_of_another_boot);
        assert!(Past::parse(&contents, URL, None).unwrap().is_of_another_boot);
        let elsewhere = Past::parse(&contents, "nfs://other/export?vers=3", Some(b"boot")).unwrap();
        assert!(elsewhere.locks.is_empty());
    }

    #[test]
    fn two_pairs_of_handle_and_owner_have_two_keys() {
        let pair = |handle: &[u8], owner: &[u8]| {
            key(&Handle::new(handle).unwrap(), &Owner(Bytes::copy_from_slice(owner)))
        };
        assert_ne!(pair(b"ab", b"c"), pair(b"a", b"bc"));
    }

    proptest! {
        #[test]
        fn any_entries_parse_or_are_refused(
            entries in prop::collection::btree_map(
                prop::collection::vec(0..4u8, 0..4), prop::collection::vec(any::<u8>(), 0..200), 0..4
            )
        ) {
            let entries: BTreeMap<_, _> = entries;
            let _ = Past::parse(&Contents { entries, removed: Vec::new() }, URL, None);
        }
    }
}
