//! The entries that record a client, as keys and values of the [journal](crate::journal): pure encoding.
//!
//! | key | value |
//! |---|---|
//! | `1` | this incarnation: the client's identity and its server |
//! | `2` | when the lease was renewed last, in seconds since the machine started |
//! | `3 open` | an open; one that is `going` is being closed |
//! | `3 open owner` | the locks of one lock owner through that open |
//! | `4 lease` | a delegation; one that is `going` is being returned |
//! | `5 number` | an OPEN in flight; it is unknown whether it was executed |
//!
//! Every value is XDR with bounds, so that any file yields records or an error.

use bytes::Bytes;
use protocol::nfs4::Stateid;
use vfs::{Combinations, Handle, Name, Owner, Principal, Shares};
use xdr::{List, Opaque, Xdr};

use crate::journal::Entries;
use crate::journal::fields::{RangeRecord, TooLarge, Who, encoded, opaque};
use crate::nfs4::state::{Delegation, Doubt, Locks, Open};

const INCARNATION: u8 = 1;
const RENEWED: u8 = 2;
const OPEN: u8 = 3;
const LEASE: u8 = 4;
const OPENING: u8 = 5;

/// Most ranges of one lock owner in one file.
const RANGES_MAX: usize = 4096;

/// The client's identity and its server. Every other entry belongs to this client at this server.
#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
pub(crate) struct Incarnation {
    /// The mounted URL.
    pub(crate) url: Opaque<8192>,
    /// `boot_id` of the machine. A record of another boot is rejected.
    pub(crate) boot: Opaque<64>,
    pub(crate) owner: Opaque<1024>,
    pub(crate) verifier: [u8; 8],
    /// `so_major_id` and scope.
    pub(crate) server: Opaque<1024>,
    pub(crate) scope: Opaque<1024>,
    pub(crate) clientid: u64,
    pub(crate) session: [u8; 16],
    pub(crate) lease_seconds: u32,
    /// The last id assigned to an open or a lease.
    pub(crate) last_name: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
struct OpenRecord {
    handle: Opaque<128>,
    owner: Opaque<8192>,
    access: u32,
    deny: u32,
    had: u32,
    who: Who,
    stateid: Stateid,
    going: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
struct LocksRecord {
    stateid: Option<Stateid>,
    ranges: List<RangeRecord, RANGES_MAX>,
    doubt: Option<DoubtRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Xdr)]
struct DoubtRecord {
    range: RangeRecord,
    unlocking: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
struct LeaseRecord {
    handle: Opaque<128>,
    write: bool,
    directory: bool,
    who: Who,
    stateid: Stateid,
    going: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Xdr)]
struct OpeningRecord {
    handle: Opaque<128>,
    name: Option<Opaque<1024>>,
    owner: Opaque<8192>,
    who: Who,
}

/// An OPEN in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opening {
    /// The file, or the directory that holds the name.
    pub(crate) handle: Handle,
    pub(crate) name: Option<Name>,
    pub(crate) owner: Owner,
    pub(crate) principal: Principal,
}

/// One decoded entry.
#[derive(Debug)]
pub(crate) enum Entry {
    Incarnation(Incarnation),
    /// Seconds since the machine started.
    Renewed(u64),
    /// An open; its locks are separate entries.
    Open(u64, Open, Going),
    Locks(u64, Owner, Option<Locks>, Option<Doubt>),
    Lease(u64, Delegation, Going),
    Opening(Opening),
}

/// Is the object being given back to the server?
pub(crate) type Going = bool;

/// The key of the incarnation.
pub(crate) fn incarnation_key() -> Vec<u8> {
    vec![INCARNATION]
}

/// The key of the last renewal.
pub(crate) fn renewed_key() -> Vec<u8> {
    vec![RENEWED]
}

/// The key of an open, which is the prefix of the keys of its locks.
pub(crate) fn open_key(id: u64) -> Vec<u8> {
    numbered(OPEN, id)
}

/// The key of a delegation.
pub(crate) fn lease_key(id: u64) -> Vec<u8> {
    numbered(LEASE, id)
}

/// The key of an OPEN in flight.
pub(crate) fn opening_key(number: u64) -> Vec<u8> {
    numbered(OPENING, number)
}

fn numbered(kind: u8, number: u64) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The id in a key, if the key is that of an open or a lease.
pub(crate) fn name_of(key: &[u8]) -> Option<u64> {
    let (kind, rest) = key.split_first()?;
    let number = rest.first_chunk::<8>()?;
    matches!(*kind, OPEN | LEASE).then(|| u64::from_be_bytes(*number))
}

/// The value of the incarnation.
pub(crate) fn incarnation(incarnation: &Incarnation) -> Result<Vec<u8>, TooLarge> {
    encoded(incarnation)
}

/// The value of the incarnation, as one of this boot of a machine. `None` if it is invalid.
pub(crate) fn in_boot(value: &[u8], boot: &[u8]) -> Option<Vec<u8>> {
    let record: Incarnation = xdr::from_bytes(Bytes::copy_from_slice(value)).ok()?;
    let boot = Opaque::new(Bytes::copy_from_slice(boot))?;
    encoded(&Incarnation { boot, ..record }).ok()
}

/// The value of a renewal.
pub(crate) fn renewed(seconds: u64) -> Result<Vec<u8>, TooLarge> {
    encoded(&seconds)
}

/// All entries of an open: its own and those of its locks. Empty if the server has lost the open.
pub(crate) fn open(id: u64, open: &Open, going: Going) -> Result<Entries, TooLarge> {
    let Some(stateid) = open.stateid else { return Ok(Entries::new()) };
    let record = OpenRecord {
        handle: opaque(open.handle().as_bytes())?,
        owner: opaque(&open.owner.0)?,
        access: open.shares.access.bits().into(),
        deny: open.shares.deny.bits().into(),
        had: open.had.bits().into(),
        who: Who::of(&open.principal)?,
        stateid,
        going,
    };
    let mut entries = Entries::from([(open_key(id), encoded(&record)?)]);
    let unknown = open.doubts().keys().filter(|owner| !open.locks().contains_key(*owner));
    for owner in open.locks().keys().chain(unknown) {
        let locks = open.locks().get(owner);
        let ranges =
            locks.map(|locks| locks.ranges.iter().map(RangeRecord::of).collect()).unwrap_or_default();
        let record = LocksRecord {
            stateid: locks.map(|locks| locks.stateid),
            ranges: List::new(ranges).ok_or(TooLarge)?,
            doubt: open
                .doubts()
                .get(owner)
                .map(|doubt| DoubtRecord { range: RangeRecord::of(doubt.range), unlocking: doubt.unlocking }),
        };
        let mut key = open_key(id);
        key.extend_from_slice(&owner.0);
        entries.insert(key, encoded(&record)?);
    }
    Ok(entries)
}

/// The value of a delegation.
pub(crate) fn lease(held: &Delegation, going: Going) -> Result<Vec<u8>, TooLarge> {
    encoded(&LeaseRecord {
        handle: opaque(held.handle.as_bytes())?,
        write: held.kind == vfs::LeaseKind::Write,
        directory: held.directory,
        who: Who::of(&held.principal)?,
        stateid: held.stateid,
        going,
    })
}

/// The value of an OPEN in flight.
pub(crate) fn opening(opening: &Opening) -> Result<Vec<u8>, TooLarge> {
    encoded(&OpeningRecord {
        handle: opaque(opening.handle.as_bytes())?,
        name: opening.name.as_ref().map(|name| opaque(name.as_bytes())).transpose()?,
        owner: opaque(&opening.owner.0)?,
        who: Who::of(&opening.principal)?,
    })
}

/// Decodes an entry. `None` if it is invalid.
pub(crate) fn decode(key: &[u8], value: &[u8]) -> Option<Entry> {
    let (kind, rest) = key.split_first()?;
    let value = Bytes::copy_from_slice(value);
    let number = rest.split_first_chunk::<8>().map(|(number, rest)| (u64::from_be_bytes(*number), rest));
    match (*kind, number) {
        (INCARNATION, None) if rest.is_empty() => xdr::from_bytes(value).ok().map(Entry::Incarnation),
        (RENEWED, None) if rest.is_empty() => xdr::from_bytes(value).ok().map(Entry::Renewed),
        (OPEN, Some((id, []))) => decode_open(id, value),
        (OPEN, Some((id, owner))) => decode_locks(id, owner, value),
        (LEASE, Some((id, []))) => decode_lease(id, value),
        (OPENING, Some((_, []))) => decode_opening(value),
        _ => None,
    }
}

fn decode_open(id: u64, value: Bytes) -> Option<Entry> {
    let record: OpenRecord = xdr::from_bytes(value).ok()?;
    let (handle, owner) = (Handle::new(&record.handle)?, Owner(record.owner.into_bytes()));
    let shares = Shares { access: share(record.access)?, deny: share(record.deny)? };
    let mut open = Open::new(&handle, owner, shares, record.who.principal());
    open.had = Combinations::from_bits(record.had.try_into().ok()?);
    open.stateid = Some(record.stateid);
    Some(Entry::Open(id, open, record.going))
}

fn decode_locks(id: u64, owner: &[u8], value: Bytes) -> Option<Entry> {
    let record: LocksRecord = xdr::from_bytes(value).ok()?;
    let ranges = record.ranges.iter().map(|range| range.range()).collect::<Option<_>>()?;
    let locks = record.stateid.map(|stateid| Locks { stateid, ranges });
    let doubt = match record.doubt {
        Some(DoubtRecord { range, unlocking }) => Some(Doubt { range: range.range()?, unlocking }),
        None => None,
    };
    Some(Entry::Locks(id, Owner(Bytes::copy_from_slice(owner)), locks, doubt))
}

fn decode_lease(id: u64, value: Bytes) -> Option<Entry> {
    let record: LeaseRecord = xdr::from_bytes(value).ok()?;
    let held = Delegation {
        handle: (&Handle::new(&record.handle)?).into(),
        kind: if record.write { vfs::LeaseKind::Write } else { vfs::LeaseKind::Read },
        directory: record.directory,
        stateid: record.stateid,
        principal: record.who.principal(),
        recalled: false,
        change: None,
    };
    Some(Entry::Lease(id, held, record.going))
}

fn decode_opening(value: Bytes) -> Option<Entry> {
    let record: OpeningRecord = xdr::from_bytes(value).ok()?;
    let name = match record.name {
        Some(name) => Some(Name::new(&name).ok()?),
        None => None,
    };
    let opening = Opening {
        handle: Handle::new(&record.handle)?,
        name,
        owner: Owner(record.owner.into_bytes()),
        principal: record.who.principal(),
    };
    Some(Entry::Opening(opening))
}

fn share(bits: u32) -> Option<vfs::Share> {
    vfs::Share::from_bits(bits.try_into().ok()?)
}
