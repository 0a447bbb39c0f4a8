//! The durable record of clients that held state: one file, `nfs4-clients`, that the next server
//! incarnation reads.
//!
//! A log of checked entries: `kind 1 | length 2 | body | sum 4`. The first entry describes the server
//! incarnation, with the longest lease that a client may still hold. Each other entry adds a client, with
//! its holder id in the file systems, or removes one.
//!
//! An entry is on the disk when the call that wrote it returns. If an entry does not match its sum, nothing
//! from it on was ever acknowledged. The file is rewritten and renamed into place at each start, and
//! whenever most entries are obsolete.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use vfs::HolderId;

use super::clients::{Client, ClientName, Generation, Principal};

const INCARNATION: u8 = 1;
const GONE: u8 = 3;
/// A client in the format of an earlier version, without a principal. Kind 2 was the format before that,
/// without a holder.
const CLIENT_OF_ANYBODY: u8 = 4;
const CLIENT: u8 = 5;
/// Kind, length and sum.
const FRAME_BYTES: usize = 7;
/// Obsolete entries that do not yet justify a rewrite.
const SLACK: usize = 1024;

/// The identity of this server, for `server_owner4`.
pub(crate) type ServerId = [u8; 16];

/// A client that held state before the restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// Its holder id.
    pub(crate) holder: HolderId,
    /// The user that made the record; only this user may come back as the client. `None` if unknown: any
    /// user may.
    pub(crate) principal: Option<Principal>,
}

impl From<&Client> for Before {
    fn from(client: &Client) -> Before {
        Before { holder: client.holder, principal: Some(client.maker.principal) }
    }
}

impl Before {
    /// A host that locks through NLM. Its address stands for its identity.
    pub(crate) fn host(holder: HolderId) -> Before {
        Before { holder, principal: None }
    }
}

/// The clients that held state.
pub(crate) type Holders = BTreeMap<ClientName, Before>;

/// The file and its contents.
#[derive(Debug)]
pub(crate) struct Records {
    path: PathBuf,
    file: File,
    incarnation: Incarnation,
    /// The lease time of this incarnation.
    lease: Duration,
    clients: Holders,
    entries: usize,
    /// Counts the changes of the clients and of the lease.
    version: u64,
    /// A write has failed: the file may lack entries, or have a torn one that hides those behind it.
    damaged: bool,
}

/// One server incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Incarnation {
    epoch: u32,
    server: ServerId,
    /// The longest lease that its clients may have; zero if the record does not say.
    lease: Duration,
}

impl Records {
    /// Opens the file in the existing `directory` and begins a new server incarnation with this lease time.
    pub(crate) fn open(directory: &Path, lease: Duration) -> io::Result<Records> {
        let path = directory.join("nfs4-clients");
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let (incarnation, clients) = parse(&bytes);
        let incarnation = match incarnation {
            // Until grace is over, leases of earlier incarnations may still be valid.
            Some(before) if !clients.is_empty() => before.next(before.lease.max(lease)),
            Some(before) => before.next(lease),
            None => {
                let (epoch, server) = first_incarnation()?;
                Incarnation { epoch, server, lease }
            }
        };
        let file = write_anew(&path, incarnation, &clients)?;
        let entries = 1 + clients.len();
        Ok(Records { path, file, incarnation, lease, clients, entries, version: 0, damaged: false })
    }

    /// The epoch of this incarnation: never zero, and different from earlier ones.
    pub(crate) fn epoch(&self) -> u32 {
        self.incarnation.epoch
    }

    /// The server's identity, the same in every incarnation.
    pub(crate) fn server(&self) -> ServerId {
        self.incarnation.server
    }

    /// The longest lease that a client may have: of this incarnation or, until [`Records::keep`], of an
    /// earlier one.
    pub(crate) fn lease(&self) -> Duration {
        self.incarnation.lease
    }

    /// The clients that held state.
    pub(crate) fn clients(&self) -> &Holders {
        &self.clients
    }

    /// Grows with each change.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The contents of a file with this record.
    pub(crate) fn contents(&self) -> Vec<u8> {
        contents(self.incarnation, &self.clients)
    }

    /// Adds a client: from now on it may have state that it could reclaim.
    pub(crate) fn add(&mut self, name: &ClientName, client: Before) -> io::Result<()> {
        let was_known = self.clients.insert(name.clone(), client) == Some(client);
        if was_known && !self.damaged {
            return Ok(());
        }
        self.version += 1;
        self.append(&client_entry(name, client))
    }

    /// Removes a client: it has no state any more.
    pub(crate) fn remove(&mut self, name: &ClientName) -> io::Result<()> {
        if self.clients.remove(name).is_none() && !self.damaged {
            return Ok(());
        }
        self.version += 1;
        self.append(&entry(GONE, &body(name)))
    }

    /// Replaces the record: only these clients may have state.
    pub(crate) fn keep(&mut self, names: Holders) -> io::Result<()> {
        if names == self.clients && self.incarnation.lease == self.lease && !self.damaged {
            return Ok(());
        }
        self.version += 1;
        self.clients = names;
        self.incarnation.lease = self.lease;
        self.rewrite()
    }

    fn append(&mut self, entry: &[u8]) -> io::Result<()> {
        if self.damaged || self.entries > 2 * self.clients.len() + SLACK {
            return self.rewrite();
        }
        self.damaged = true;
        self.file.write_all(entry)?;
        self.file.sync_data()?;
        self.damaged = false;
        self.entries += 1;
        Ok(())
    }

    fn rewrite(&mut self) -> io::Result<()> {
        self.damaged = true;
        self.file = write_anew(&self.path, self.incarnation, &self.clients)?;
        self.damaged = false;
        self.entries = 1 + self.clients.len();
        Ok(())
    }
}

impl Incarnation {
    fn next(self, lease: Duration) -> Incarnation {
        Incarnation { epoch: self.epoch.checked_add(1).unwrap_or(1), lease, ..self }
    }

    fn body(self) -> Vec<u8> {
        let mut body = self.epoch.to_be_bytes().to_vec();
        body.extend_from_slice(&self.server);
        body.extend_from_slice(&u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX).to_be_bytes());
        body
    }

    fn parse(body: &[u8]) -> Option<Incarnation> {
        let (epoch, rest) = body.split_first_chunk::<4>()?;
        let (server, rest) = rest.split_first_chunk::<16>()?;
        // Records of an earlier version end here.
        let lease = rest.first_chunk::<8>().map_or(0, |millis| u64::from_be_bytes(*millis));
        Some(Incarnation {
            epoch: u32::from_be_bytes(*epoch),
            server: *server,
            lease: Duration::from_millis(lease),
        })
    }
}

/// A random epoch for an incarnation without a file, and a random server identity.
pub(crate) fn first_incarnation() -> io::Result<(u32, ServerId)> {
    let unavailable = |error: getrandom::Error| io::Error::other(error.to_string());
    let (mut epoch, mut server) = ([0; 4], [0; 16]);
    getrandom::fill(&mut epoch).map_err(unavailable)?;
    getrandom::fill(&mut server).map_err(unavailable)?;
    Ok((u32::from_be_bytes(epoch).max(1), server))
}

fn contents(incarnation: Incarnation, clients: &Holders) -> Vec<u8> {
    let mut bytes = entry(INCARNATION, &incarnation.body());
    for (name, client) in clients {
        bytes.extend_from_slice(&client_entry(name, *client));
    }
    bytes
}

fn write_anew(path: &Path, incarnation: Incarnation, clients: &Holders) -> io::Result<File> {
    let bytes = contents(incarnation, clients);
    let beside = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&beside)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(file)
}

fn body(name: &ClientName) -> Vec<u8> {
    let generation = match name.generation {
        Generation::Minor0 => 0,
        Generation::Sessions => 1,
        Generation::LockManager => 2,
    };
    let mut body = vec![generation];
    body.extend_from_slice(&name.ownerid);
    body
}

fn client_entry(name: &ClientName, client: Before) -> Vec<u8> {
    let mut bytes = client.holder.0.to_be_bytes().to_vec();
    let kind = if let Some(principal) = client.principal {
        let mut push = |kind: u8, value: &[u8]| {
            bytes.push(kind);
            bytes.extend_from_slice(value);
        };
        match principal {
            Principal::None => push(0, &[0; 4]),
            Principal::User(uid) => push(1, &uid.to_be_bytes()),
            Principal::Other(flavor) => push(2, &flavor.to_be_bytes()),
            Principal::Kerberos(hash) => push(3, &hash.to_be_bytes()),
        }
        CLIENT
    } else {
        CLIENT_OF_ANYBODY
    };
    bytes.extend_from_slice(&body(name));
    entry(kind, &bytes)
}

fn entry(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(FRAME_BYTES + body.len());
    entry.push(kind);
    entry.extend_from_slice(&(body.len() as u16).to_be_bytes());
    entry.extend_from_slice(body);
    let sum = crc32c::crc32c(&entry);
    entry.extend_from_slice(&sum.to_be_bytes());
    entry
}

fn parse(bytes: &[u8]) -> (Option<Incarnation>, Holders) {
    let (mut incarnation, mut clients, mut rest) = (None, Holders::new(), bytes);
    while let Some((kind, body, behind)) = parse_entry(rest) {
        match kind {
            INCARNATION => incarnation = Incarnation::parse(body),
            CLIENT | CLIENT_OF_ANYBODY => clients.extend(parse_client(kind, body)),
            GONE => drop(parse_name(body).map(|name| clients.remove(&name))),
            _ => {}
        }
        rest = behind;
    }
    if !rest.is_empty() {
        tracing::warn!(
            bytes = rest.len(),
            "the record of NFSv4 clients ends in a torn entry, which is cut off"
        );
    }
    (incarnation, clients)
}

fn parse_entry(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&kind, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first_chunk::<2>()?;
    let (body, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    let (sum, behind) = rest.split_first_chunk::<4>()?;
    let summed = bytes.get(..3 + body.len())?;
    (crc32c::crc32c(summed) == u32::from_be_bytes(*sum)).then_some((kind, body, behind))
}

fn parse_client(kind: u8, body: &[u8]) -> Option<(ClientName, Before)> {
    let (holder, body) = body.split_first_chunk::<8>()?;
    let holder = HolderId(u64::from_be_bytes(*holder));
    if kind == CLIENT_OF_ANYBODY {
        return Some((parse_name(body)?, Before { holder, principal: None }));
    }
    let (kind, body) = body.split_first()?;
    if *kind == 3 {
        let (hash, body) = body.split_first_chunk::<16>()?;
        let principal = Some(Principal::Kerberos(u128::from_be_bytes(*hash)));
        return Some((parse_name(body)?, Before { holder, principal }));
    }
    let (value, body) = body.split_first_chunk::<4>()?;
    let principal = match (kind, u32::from_be_bytes(*value)) {
        (0, _) => Principal::None,
        (1, uid) => Principal::User(uid),
        (2, flavor) => Principal::Other(flavor),
        _ => return None,
    };
    Some((parse_name(body)?, Before { holder, principal: Some(principal) }))
}

fn parse_name(body: &[u8]) -> Option<ClientName> {
    let (generation, ownerid) = body.split_first()?;
    let generation = match generation {
        0 => Generation::Minor0,
        1 => Generation::Sessions,
        2 => Generation::LockManager,
        _ => return None,
    };
    Some(ClientName { generation, ownerid: Bytes::copy_from_slice(ownerid) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEASE: Duration = Duration::from_secs(90);

    fn holder(number: u8) -> Before {
        let principal = match number % 4 {
            0 => None,
            1 => Some(Principal::None),
            2 => Some(Principal::User(number.into())),
            _ => Some(Principal::Other(6)),
        };
        Before { holder: HolderId(7 << 32 | u64::from(number)), principal }
    }

    fn name(number: u8) -> ClientName {
        let generation = if number.is_multiple_of(2) { Generation::Minor0 } else { Generation::Sessions };
        ClientName { generation, ownerid: Bytes::from(vec![number; usize::from(number) * 4]) }
    }

    #[test]
    fn a_torn_entry_costs_itself_alone() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = Records::open(directory.path(), LEASE).unwrap();
        let (epoch, server) = (records.epoch(), records.server());
        records.add(&name(1), holder(1)).unwrap();
        records.file.write_all(&client_entry(&name(2), holder(2))[..5]).unwrap();
        drop(records);
        let mut records = Records::open(directory.path(), LEASE).unwrap();
        assert_eq!((records.epoch(), records.server()), (epoch.checked_add(1).unwrap_or(1), server));
        records.add(&name(3), holder(3)).unwrap();
        drop(records);
        let records = Records::open(directory.path(), LEASE).unwrap();
        assert_eq!(*records.clients(), Holders::from([(name(1), holder(1)), (name(3), holder(3))]));
    }

    #[test]
    fn after_a_failed_write_the_file_is_written_anew() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = Records::open(directory.path(), LEASE).unwrap();
        records.file.write_all(&client_entry(&name(1), holder(1))[..5]).unwrap();
        // No write gets through a file that is open for reading.
        records.file = File::open(&records.path).unwrap();
        records.add(&name(2), holder(2)).unwrap_err();
        records.add(&name(2), holder(2)).unwrap();
        drop(records);
        let mut records = Records::open(directory.path(), LEASE).unwrap();
        assert_eq!(*records.clients(), Holders::from([(name(2), holder(2))]));
        records.file = File::open(&records.path).unwrap();
        records.remove(&name(2)).unwrap_err();
        records.remove(&name(2)).unwrap();
        drop(records);
        assert!(Records::open(directory.path(), LEASE).unwrap().clients().is_empty());
    }

    #[test]
    fn the_longest_lease_is_known_until_nobody_believes_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let open = |seconds| Records::open(directory.path(), Duration::from_secs(seconds)).unwrap();
        assert_eq!(open(90).lease().as_secs(), 90);
        assert_eq!(open(60).lease().as_secs(), 60, "nobody held anything");
        open(90).add(&name(1), holder(1)).unwrap();
        assert_eq!(open(10).lease().as_secs(), 90);
        let mut records = open(5);
        assert_eq!(records.lease().as_secs(), 90, "grace was never over");
        records.keep(records.clients().clone()).unwrap();
        assert_eq!(records.lease().as_secs(), 5);
        assert_eq!(open(1).lease().as_secs(), 5, "of the life before alone");
    }

    #[test]
    fn a_record_without_a_lease_is_read() {
        let incarnation = Incarnation { epoch: 7, server: [3; 16], lease: LEASE };
        let short = entry(INCARNATION, &incarnation.body()[..20]);
        assert_eq!(parse(&short).0, Some(Incarnation { lease: Duration::ZERO, ..incarnation }));
        assert_eq!(parse(&entry(INCARNATION, &incarnation.body())).0, Some(incarnation));
    }

    #[test]
    fn the_file_does_not_grow_with_the_past() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = Records::open(directory.path(), LEASE).unwrap();
        for _ in 0..SLACK {
            records.add(&name(9), holder(9)).unwrap();
            records.remove(&name(9)).unwrap();
        }
        assert!(records.entries <= SLACK + 2);
        let size = std::fs::metadata(directory.path().join("nfs4-clients")).unwrap().len();
        assert!(size < 64 * SLACK as u64, "{size} bytes");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        /// Against a set: the next incarnation finds every client that was added and not removed.
        #[test]
        fn the_next_life_knows_who_held_state(steps in proptest::collection::vec((0u8..5, 0u8..6), 0..30)) {
            let directory = tempfile::tempdir().unwrap();
            let mut records = Records::open(directory.path(), LEASE).unwrap();
            let mut model = Holders::new();
            for (step, number) in steps {
                match step {
                    0 => {
                        records.remove(&name(number)).unwrap();
                        model.remove(&name(number));
                    }
                    1 => {
                        model.retain(|other, _| *other <= name(number));
                        records.keep(model.clone()).unwrap();
                    }
                    2 => {
                        drop(records);
                        records = Records::open(directory.path(), LEASE).unwrap();
                    }
                    _ => {
                        let holder = holder(number + step);
                        records.add(&name(number), holder).unwrap();
                        model.insert(name(number), holder);
                    }
                }
                prop_assert_eq!(records.clients(), &model);
            }
        }

        #[test]
        fn no_file_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let (incarnation, _) = parse(&bytes);
            prop_assert!(incarnation.is_none() || bytes.len() >= FRAME_BYTES);
        }
    }
}
