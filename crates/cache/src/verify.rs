//! Is the cached data still what was stored, and what the origin has?
//!
//! There are two checks. **The disk**: each range has the checksum of the bytes that were stored. Reading the
//! range back finds damage, without an origin. **The origin**: the bytes are read again there and compared.
//! That finds any other error, and costs as much as reading the files for the first time. Damaged data is
//! dropped, and fetched again at the next read.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use vfs::{Handle, StateidBasis, Status};

use crate::Cache;
use crate::core::Core;
use crate::data::Proof;
use crate::inspect::patient;
use crate::object::{ObjectState, Opening};
use crate::store::objects::blocking;
use crate::store::{ObjectFile, Pin};
use crate::sums::Sum;
use crate::table::Object;
use crate::upstream::read::Reader;

/// Bytes read at a time.
const PIECE_BYTES: u64 = 1 << 20;

/// The result of checking one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Bytes that were checked and are right.
    pub good_bytes: u64,
    /// Bytes that have no checksum, or could not be compared.
    pub unchecked_bytes: u64,
    /// Ranges that have changed.
    pub damaged: Vec<Range<u64>>,
    /// The file has changed at the origin since it was cached: the comparison has stopped.
    pub changed: bool,
    /// The cached data of the file was dropped.
    pub dropped: bool,
}

/// The data under check, which is not overwritten while this value exists.
struct Subject {
    object: Arc<Object>,
    file: Arc<ObjectFile>,
    generation: u64,
    valid: Vec<Range<u64>>,
    sums: Vec<Sum>,
    _pin: Pin,
}

impl Cache {
    /// Compares the data on the disk with the checksums of what was stored. `repair` drops damaged data.
    pub async fn verify_disk(&self, handle: &Handle, repair: bool) -> Verified {
        let Some(subject) = self.core.subject(handle) else { return Verified::default() };
        let valid: u64 = subject.valid.iter().map(|range| range.end - range.start).sum();
        let sums = subject.sums.clone();
        let file = subject.file.clone();
        let mut found = match blocking(move || check(&file, &sums)).await {
            Ok(found) => found,
            // A killed process had removed the file without telling the index: there is no data.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let dropped = repair && self.core.drop_subject(&subject).await;
                return Verified { dropped, ..Verified::default() };
            }
            Err(_) => Verified { damaged: subject.valid.clone(), ..Verified::default() },
        };
        let damaged: u64 = found.damaged.iter().map(|range| range.end - range.start).sum();
        found.unchecked_bytes = valid.saturating_sub(found.good_bytes + damaged);
        if repair && !found.damaged.is_empty() {
            found.dropped = self.core.drop_damaged(&subject).await;
            self.tell_damage(handle, &found);
        }
        found
    }

    /// Compares the data on the disk with the origin's, as a caller that may read the file. `repair` drops
    /// data that differs.
    ///
    /// # Errors
    /// The status of the origin's reply.
    pub async fn verify_origin(&self, handle: &Handle, repair: bool) -> Result<Verified, Status> {
        let Some(subject) = self.core.subject(handle) else { return Ok(Verified::default()) };
        let mut found = Verified::default();
        let caller = self.core.reader_of(&subject.object);
        for range in subject.valid.iter().flat_map(pieces) {
            match self.core.compare(&patient(&caller), &subject, &range).await {
                Ok(Some(true)) => found.good_bytes += range.end - range.start,
                Ok(Some(false)) => found.damaged.push(range),
                Ok(None) => {
                    found.changed = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if repair && !found.damaged.is_empty() {
            found.dropped = self.core.drop_damaged(&subject).await;
            self.tell_damage(handle, &found);
        }
        Ok(found)
    }
}

impl Cache {
    /// Logs the damage. A user that views an offline cache is told otherwise.
    fn tell_damage(&self, handle: &Handle, found: &Verified) {
        if !found.dropped || self.is_offline() {
            return;
        }
        let inode = self.info(handle).attributes.map_or(0, |known| known.fileid);
        tracing::warn!(
            "cache {}: data of inode {inode} of {} was damaged and dropped; it is fetched again when it is read; check the disk",
            self.core.options.directory.display(),
            self.origin()
        );
    }
}

impl Core {
    fn subject(&self, handle: &Handle) -> Option<Subject> {
        let object = self.glance(handle);
        self.with(&object, |state| {
            let file = state.data.file()?.clone();
            let valid: Vec<_> = state.data.valid().iter().cloned().collect();
            let end = valid.last()?.end;
            Some(Subject {
                object: object.clone(),
                generation: state.data.generation(),
                sums: state.data.sums().of(state.data.valid()),
                _pin: file.pin(0..end),
                file,
                valid,
            })
        })
    }

    /// Are the bytes of this range those of the origin? `None` if the file is no longer the one that was
    /// looked at.
    async fn compare(
        &self,
        caller: &vfs::Caller,
        subject: &Subject,
        range: &Range<u64>,
    ) -> Result<Option<bool>, Status> {
        let sent = self.policy.sending();
        self.know_limits(caller, &subject.object.handle).await;
        let mut theirs = Vec::new();
        while (theirs.len() as u64) < range.end - range.start {
            let at = range.start + theirs.len() as u64;
            let count = (range.end - at).min(self.chunk_bytes()) as u32;
            let reader = Reader { caller, by: StateidBasis::Anonymous, told: None };
            let answered = self.read_below(reader, &subject.object, at, count).await;
            let read = answered.map_err(|error| error.status)?.read;
            self.observe(&subject.object, read.attributes.as_ref(), &sent, Opening::No);
            let bytes = read.data.to_bytes().map_err(|_| Status::Io)?;
            theirs.extend_from_slice(&bytes);
            if read.eof || bytes.is_empty() {
                break;
            }
        }
        let file = subject.file.clone();
        let part = range.clone();
        let ours = blocking(move || {
            let mut ours = vec![0; (part.end - part.start) as usize];
            file.open_again()?.read_exact_at(&mut ours, part.start)?;
            Ok(ours)
        });
        let same = ours.await.is_ok_and(|ours| ours == theirs);
        // A READ need not carry attributes, so a GETATTR tells whether the file is the same. It does not
        // count as an open.
        let sent = self.policy.sending();
        self.counters.getattr.bump();
        let now = self.below.getattr(caller, &subject.object.handle).await.map_err(|error| error.status)?;
        self.observe(&subject.object, Some(&now), &sent, Opening::No);
        let still = self.with(&subject.object, |state| {
            state.data.generation() == subject.generation && !state.is_suspect()
        });
        // A write of ours may have invalidated the range meanwhile.
        let there = self.with(&subject.object, |state| state.data.valid().contains(range));
        Ok((still && there).then_some(same))
    }

    /// Compares the data of a complete file from an earlier process with its checksums, once.
    pub async fn prove(&self, handle: &Handle) {
        let object = self.glance(handle);
        let open = self.with(&object, |state| {
            state.is_complete() && !state.is_proven() && state.data.proof == Proof::Open
        });
        let Some(subject) = open.then(|| self.subject(handle)).flatten() else { return };
        let valid: u64 = subject.valid.iter().map(|range| range.end - range.start).sum();
        let (file, sums) = (subject.file.clone(), subject.sums.clone());
        let good = blocking(move || check(&file, &sums)).await.is_ok_and(|found| found.good_bytes == valid);
        self.with(&object, |state| {
            if state.data.generation() == subject.generation {
                state.data.proof = if good { Proof::Given } else { Proof::Failed };
            }
        });
    }

    async fn drop_damaged(&self, subject: &Subject) -> bool {
        let dropped = self.drop_subject(subject).await;
        if dropped {
            self.counters.damaged.bump();
        }
        dropped
    }

    /// Drops the data under check, unless it was dropped already.
    async fn drop_subject(&self, subject: &Subject) -> bool {
        let dropped = self.with(&subject.object, |state| {
            let same = state.data.generation() == subject.generation;
            if same {
                state.drop_data();
            }
            same
        });
        self.empty_trash().await;
        dropped
    }
}

impl ObjectState {
    /// Is the cached data one state of the file, whatever an earlier process was doing when it was killed? If
    /// the origin has been asked since, its attributes have proven it.
    pub fn is_proven(&self) -> bool {
        self.is_seen() || self.data.proof == Proof::Given
    }
}

/// Reads the ranges that have a checksum back from the disk.
fn check(file: &ObjectFile, sums: &[Sum]) -> io::Result<Verified> {
    let mut found = Verified::default();
    let opened = file.open_again()?;
    for Sum { range, crc } in sums {
        let good = sum_of(&opened, range).is_ok_and(|sum| sum == *crc);
        if good {
            found.good_bytes += range.end - range.start;
        } else {
            found.damaged.push(range.clone());
        }
    }
    Ok(found)
}

fn sum_of(file: &File, range: &Range<u64>) -> io::Result<u32> {
    let mut buffer = vec![0; PIECE_BYTES.min(range.end - range.start) as usize];
    let mut sum = 0;
    for piece in pieces(range) {
        let part = &mut buffer[..(piece.end - piece.start) as usize];
        file.read_exact_at(part, piece.start)?;
        sum = crc32c::crc32c_append(sum, part);
    }
    Ok(sum)
}

fn pieces(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    (range.start..end).step_by(PIECE_BYTES as usize).map(move |at| at..(at + PIECE_BYTES).min(end))
}
