//! The log of a reply cache: two files, `replies` and the older `replies.old`.
//!
//! A record has a length, a CRC32C, a kind, the key, and the reply or time. Reading a file ends at a record
//! that is cut off or does not match its checksum: the process died while it wrote that record. When the
//! newer file exceeds [`FILE_MAX_BYTES`], it replaces the older one, whose calls are over by then.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::Key;

const FILE_MAX_BYTES: u64 = 4 << 20;
const INTENT: u8 = 1;
const REPLY: u8 = 2;
const FORGET: u8 = 3;
const PUT_OFF: u8 = 4;
/// Kind and key.
const PREFIX_BYTES: usize = 17;

/// One record of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The call is about to run.
    Intent(Key),
    /// The call ran with this reply.
    Reply(Key, Bytes),
    /// The call did not run, or the identity without session is over.
    Forget(Key),
    /// A resent call of this identity without session was put off, at this time in seconds since 1970.
    PutOff(Key, u64),
}

impl Record {
    fn key(&self) -> Key {
        match self {
            Record::Intent(key) | Record::Reply(key, _) | Record::Forget(key) | Record::PutOff(key, _) => {
                *key
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Log {
    directory: PathBuf,
    file: File,
    bytes: u64,
}

impl Log {
    /// Opens the log and reads what is in it, oldest first.
    pub(super) fn open(directory: &Path) -> io::Result<(Log, Vec<Record>)> {
        let mut records = Vec::new();
        for name in ["replies.old", "replies"] {
            match File::open(directory.join(name)) {
                Ok(file) => read_records(file, &mut records)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let records = latest(records);
        // A torn record at the end would hide everything appended after it. So start a new file with the
        // valid records.
        let fresh = directory.join("replies.new");
        let mut log = Log { directory: directory.into(), file: File::create(&fresh)?, bytes: 0 };
        records.iter().try_for_each(|record| log.write(record))?;
        std::fs::rename(fresh, directory.join("replies"))?;
        // Its records are in the new file, but for those that are over. The next start must not find them.
        match std::fs::remove_file(directory.join("replies.old")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok((log, records))
    }

    /// Appends a record. When this returns, the record survives the end of the process.
    pub(super) fn append(&mut self, record: &Record) -> io::Result<()> {
        if self.bytes > FILE_MAX_BYTES {
            self.rotate()?;
        }
        self.write(record)
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        let encoded = encode(record);
        self.file.write_all(&encoded)?;
        self.bytes += encoded.len() as u64;
        Ok(())
    }

    /// The newer file becomes the older one, and an empty file replaces it.
    fn rotate(&mut self) -> io::Result<()> {
        let young = self.directory.join("replies");
        std::fs::rename(&young, self.directory.join("replies.old"))?;
        self.file = File::create(young)?;
        self.bytes = 0;
        Ok(())
    }
}

/// The last record of each key, in order, without the forgotten calls.
fn latest(records: Vec<Record>) -> Vec<Record> {
    let mut seen = HashSet::new();
    let mut kept: Vec<Record> =
        records.into_iter().rev().filter(|record| seen.insert(record.key())).collect();
    kept.retain(|record| !matches!(record, Record::Forget(_)));
    kept.reverse();
    kept
}

fn encode(record: &Record) -> Vec<u8> {
    let time;
    let (kind, key, more): (u8, Key, &[u8]) = match record {
        Record::Intent(key) => (INTENT, *key, &[]),
        Record::Reply(key, reply) => (REPLY, *key, reply),
        Record::Forget(key) => (FORGET, *key, &[]),
        Record::PutOff(key, at) => {
            time = at.to_be_bytes();
            (PUT_OFF, *key, &time)
        }
    };
    let mut body = Vec::with_capacity(8 + PREFIX_BYTES + more.len());
    body.extend_from_slice(&[0; 8]);
    body.push(kind);
    body.extend_from_slice(&key.to_be_bytes());
    body.extend_from_slice(more);
    let (length, sum) = ((body.len() - 8) as u32, crc32c::crc32c(&body[8..]));
    body[..4].copy_from_slice(&length.to_be_bytes());
    body[4..8].copy_from_slice(&sum.to_be_bytes());
    body
}

fn read_records(mut file: File, records: &mut Vec<Record>) -> io::Result<()> {
    let mut all = Vec::new();
    file.read_to_end(&mut all)?;
    let mut rest = &all[..];
    while let Some((record, behind)) = parse(rest) {
        records.push(record);
        rest = behind;
    }
    Ok(())
}

fn parse(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (body, behind) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    if crc32c::crc32c(body) != u32::from_be_bytes(*sum) {
        return None;
    }
    let (kind, body) = body.split_first()?;
    let (key, more) = body.split_first_chunk::<16>()?;
    let key = Key::from_be_bytes(*key);
    let record = match *kind {
        INTENT => Record::Intent(key),
        REPLY => Record::Reply(key, Bytes::copy_from_slice(more)),
        FORGET => Record::Forget(key),
        PUT_OFF => Record::PutOff(key, u64::from_be_bytes(more.try_into().ok()?)),
        _ => return None,
    };
    Some((record, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_record_ends_the_log_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let reply = Record::Reply(1, Bytes::from_static(b"reply"));
        let records =
            [Record::Intent(1), reply.clone(), Record::Intent(9), Record::Forget(9), Record::Intent(3)];
        let (mut log, none) = Log::open(directory.path()).unwrap();
        assert_eq!(none, []);
        records.iter().for_each(|record| log.append(record).unwrap());
        log.file.write_all(&encode(&Record::Intent(7))[..20]).unwrap();
        drop(log);
        let (mut log, read) = Log::open(directory.path()).unwrap();
        assert_eq!(read, [reply, Record::Intent(3)]);
        log.append(&Record::Intent(5)).unwrap();
        drop(log);
        let (_, read) = Log::open(directory.path()).unwrap();
        assert_eq!(read.last(), Some(&Record::Intent(5)));
        assert_eq!(read.len(), 3);
    }

    #[test]
    fn the_log_stays_small() {
        let directory = tempfile::tempdir().unwrap();
        let (mut log, _) = Log::open(directory.path()).unwrap();
        let reply = Bytes::from(vec![0; 4000]);
        (0..4000).for_each(|key| log.append(&Record::Reply(key, reply.clone())).unwrap());
        let bytes =
            std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len());
        assert!(bytes.sum::<u64>() < 3 * FILE_MAX_BYTES);
    }
}
