//! Reads the journal of an earlier process.

mod left;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use vfs::{Handle, LeaseId};

use super::header::{DURABLE_AT, HEADER_BYTES, Header};
use super::{Journal, Journaled, Part, Segment};
use crate::journal::entry::{self, Begin, Entry, Numbered, Unread};

/// No lease has this id, because ids count up.
pub(super) const NO_LEASE: LeaseId = LeaseId(u64::MAX);

/// A file of an earlier process, with what was to be sent.
#[derive(Debug)]
pub struct Restored {
    /// Its place in the journal.
    pub journaled: Journaled,
    /// Its entries in order, without those that name it.
    pub entries: Vec<Entry>,
    /// Some are of before the machine started.
    rebooted: bool,
}

impl Restored {
    fn new(file: u64, begin: &Begin) -> Restored {
        let journaled = Journaled { file, begin: Box::new(begin.clone()), parts: Vec::new() };
        Restored { journaled, entries: Vec::new(), rebooted: false }
    }

    /// Number of bytes that its writes have.
    pub fn bytes(&self) -> u64 {
        let bytes = self.entries.iter().map(|entry| match entry {
            Entry::Write { bytes, .. } => bytes.len() as u64,
            _ => 0,
        });
        bytes.sum()
    }

    /// The size of a truncation of which it is not known whether the origin carried it out.
    pub fn cut(&self) -> Option<u64> {
        let last = self.entries.iter().rev().find(|entry| matches!(entry, Entry::Cut(_) | Entry::CutEnd(_)));
        match last {
            Some(Entry::Cut(end)) => Some(*end),
            _ => None,
        }
    }

    /// Does a truncation follow another one whose outcome is missing? The disk has lost entries between them.
    pub fn has_gap(&self) -> bool {
        let cuts = self.entries.iter().filter(|entry| matches!(entry, Entry::Cut(_) | Entry::CutEnd(_)));
        let ends: Vec<bool> = cuts.map(|entry| matches!(entry, Entry::CutEnd(_))).collect();
        ends.windows(2).any(|pair| matches!(pair, [false, false]))
    }
}

/// The contents of the segments.
#[derive(Default)]
pub(super) struct Contents {
    segments: BTreeMap<u64, Segment>,
    pub(super) files: BTreeMap<u64, Restored>,
    /// Segments of before the machine started, and others without an entry.
    outdated: Vec<u64>,
    /// Entries of before the machine started.
    lost: bool,
    /// The records of each file, dead or live: their numbers, and those that they replace.
    records: HashMap<Handle, BTreeMap<u64, Option<u64>>>,
    /// How many entries of each record have been read, without those that name it.
    counts: HashMap<u64, u64>,
    /// Records that replace another one and are complete.
    pub(super) complete: HashSet<u64>,
    /// Records that are over, and whose marks have not reached the disk.
    over: Vec<Journaled>,
}

impl Journal {
    /// Reads the entries that an earlier process has left, in the order of its files. Segments of before the
    /// machine started count as far as they can be read, if their journal was durable. Others of that time
    /// are removed: not all of their bytes need have reached the disk, nor has anybody been told that they
    /// were stored. Returns true if they had entries that count.
    ///
    /// # Errors
    /// Those of the disk. `InvalidData` for a segment that is damaged before its end or in what was synced,
    /// or that another version wrote. Nothing is removed then, and the journal must not be used.
    pub fn restore(&self) -> io::Result<(Vec<Restored>, bool)> {
        let mut contents = Contents::default();
        let numbers = numbers(&self.directory)?;
        for number in &numbers {
            self.read(*number, Some(number) == numbers.last(), &mut contents)?;
        }
        contents.drop_over();
        let Contents { mut segments, files, mut outdated, lost, over, records, complete, .. } = contents;
        let found = files.values().map(|restored| &restored.journaled).chain(&over);
        for part in found.flat_map(|journaled| &journaled.parts) {
            segments.get_mut(&part.segment).into_iter().for_each(|segment| segment.live += 1);
        }
        self.sync_found(&segments)?;
        segments.values().try_for_each(|segment| segment.file.set_len(segment.bytes))?;
        outdated.retain(|number| self.remove(*number));
        let mut log = self.log.lock();
        log.files =
            records.values().filter_map(|records| records.keys().next_back()).max().copied().unwrap_or(0);
        log.segments = segments;
        log.taken_over = true;
        drop(log);
        let (files, replaced) = replace(files, &complete);
        replaced.into_iter().chain(over).for_each(|journaled| self.end(journaled));
        self.adopt_segments()?;
        let mut log = self.log.lock();
        log.taken_over = false;
        self.tidy(&mut log);
        drop(log);
        Ok((join(files), lost))
    }

    /// An earlier process was killed, so not all that was read here is on the disk. Syncs it before anything
    /// is marked, cut off or removed, if the rules of [`super::syncing`] apply.
    fn sync_found(&self, segments: &BTreeMap<u64, Segment>) -> io::Result<()> {
        if !self.syncing.is_careful() || segments.is_empty() {
            return Ok(());
        }
        segments.values().try_for_each(|segment| segment.file.sync_data())?;
        self.sync_names()
    }

    /// If this journal is durable, the segments of an earlier process become it, too.
    fn adopt_segments(&self) -> io::Result<()> {
        if let Some(upto) = self.unsynced() {
            self.sync(upto)?;
        }
        if self.syncing.is_durable() {
            for segment in self.log.lock().segments.values() {
                segment.file.write_all_at(&1_u64.to_le_bytes(), DURABLE_AT)?;
                segment.file.sync_data()?;
            }
        }
        Ok(())
    }

    fn read(&self, number: u64, is_last: bool, contents: &mut Contents) -> io::Result<()> {
        let path = self.path(number);
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let content = Bytes::from(std::fs::read(&path)?);
        let damaged = || {
            let text = format!("{} is damaged, or of another version", path.display());
            io::Error::new(ErrorKind::InvalidData, text)
        };
        let keep = |bytes| Segment { file: Arc::new(file), bytes, live: 0, changed: 0, over: 0, own: false };
        match Header::decode(&content) {
            Some(header) if header.boot == self.boot => {
                let (bytes, end) = contents.read(number, &content, false);
                // Only the last frame of all can be torn.
                if end == Unread::Damaged || (bytes < content.len() as u64 && !is_last) {
                    return Err(damaged());
                }
                if header.durable {
                    self.syncing.be_careful();
                }
                contents.segments.insert(number, keep(bytes));
            }
            Some(header) if header.durable => {
                let (bytes, _) = contents.read(number, &content, true);
                if bytes < header.synced {
                    return Err(damaged());
                }
                if bytes < content.len() as u64 {
                    tracing::warn!(
                        "{}: the last {} bytes were not synced when the machine went down, and are dropped",
                        path.display(),
                        content.len() as u64 - bytes
                    );
                }
                self.syncing.be_careful();
                contents.segments.insert(number, keep(bytes));
            }
            Some(_) => {
                let mut old = Contents::default();
                old.read(number, &content, true);
                contents.lost |= !old.files.is_empty();
                contents.outdated.push(number);
            }
            // The process was killed, or the machine went down, while the segment was made.
            None if is_unmade(&content) => contents.outdated.push(number),
            None => return Err(damaged()),
        }
        Ok(())
    }
}

/// Was the process killed, or did the machine go down, before the header of the segment was stored?
fn is_unmade(content: &[u8]) -> bool {
    (content.len() as u64) < HEADER_BYTES || content.iter().take(HEADER_BYTES as usize).all(|byte| *byte == 0)
}

/// Takes out the records that do not count because their file was entered anew, or was about to be.
pub(super) fn replace(
    mut files: BTreeMap<u64, Restored>,
    complete: &HashSet<u64>,
) -> (BTreeMap<u64, Restored>, Vec<Journaled>) {
    let mut replaced = Vec::new();
    let numbers: Vec<u64> = files.keys().copied().collect();
    for number in numbers {
        let Some(later) = files.get(&number) else { continue };
        let Some(earlier) = later.journaled.begin.replaces.filter(|earlier| files.contains_key(earlier))
        else {
            continue;
        };
        let gone = if complete.contains(&number) { earlier } else { number };
        replaced.extend(files.remove(&gone).map(|gone| gone.journaled));
    }
    (files, replaced)
}

/// Joins the records of one file, should there be several.
pub(super) fn join(files: BTreeMap<u64, Restored>) -> Vec<Restored> {
    let mut joined: Vec<Restored> = Vec::new();
    let mut places: HashMap<Handle, usize> = HashMap::new();
    for (_, mut later) in files {
        let handle = later.journaled.begin.handle;
        if let Some(earlier) = places.get(&handle).and_then(|at| joined.get_mut(*at)) {
            earlier.entries.append(&mut later.entries);
            earlier.journaled.parts.append(&mut later.journaled.parts);
            // Neither a lease nor a change proves anything about both.
            earlier.journaled.begin.lease = NO_LEASE;
            earlier.journaled.begin.change = None;
        } else {
            places.insert(handle, joined.len());
            joined.push(later);
        }
    }
    joined
}

impl Contents {
    /// Adds the entries of a segment to those of their files. Returns how many bytes of it are sound, and
    /// what ends them.
    pub(super) fn read(&mut self, number: u64, content: &Bytes, rebooted: bool) -> (u64, Unread) {
        let mut at = HEADER_BYTES;
        // The files whose part in this segment counts.
        let mut live = HashSet::new();
        loop {
            let frame = match entry::decode(&content.slice(at as usize..)) {
                Ok(frame) => frame,
                Err(end) => return (at, end),
            };
            let Numbered { file, entry } = frame.entry;
            self.note(file, &entry);
            match entry {
                Entry::Begin(begin) if frame.live => {
                    live.insert(file);
                    let restored = self.files.entry(file).or_insert_with(|| Restored::new(file, &begin));
                    restored.journaled.parts.push(Part { segment: number, at, last: 0 });
                    restored.journaled.begin = begin;
                    restored.rebooted |= rebooted;
                }
                // Parts are marked from the first on.
                Entry::Begin(_) => {
                    live.remove(&file);
                    self.over.extend(self.files.remove(&file).map(|restored| restored.journaled));
                }
                entry if live.contains(&file) => {
                    if let Some(restored) = self.files.get_mut(&file) {
                        restored.journaled.learn(&entry);
                        restored.entries.push(entry);
                    }
                }
                _ => {}
            }
            at += frame.bytes as u64;
        }
    }

    fn note(&mut self, file: u64, entry: &Entry) {
        let count = self.counts.entry(file).or_default();
        match entry {
            Entry::Begin(begin) => {
                self.records.entry(begin.handle).or_default().insert(file, begin.replaces);
            }
            Entry::Complete(all) if count == all => drop(self.complete.insert(file)),
            _ => *count += 1,
        }
    }

    /// After a restart of the machine, marks may be missing. A record is over if a later one of its file
    /// replaces nothing, or is complete. One that is not complete does not count if an earlier one does.
    pub(super) fn drop_over(&mut self) {
        let numbers: Vec<u64> = self.files.keys().copied().collect();
        for number in numbers {
            let Some(restored) = self.files.get(&number).filter(|restored| restored.rebooted) else {
                continue;
            };
            let Some(records) = self.records.get(&restored.journaled.begin.handle) else { continue };
            let is_whole =
                |number: &u64, replaces: &Option<u64>| replaces.is_none() || self.complete.contains(number);
            let is_over = records.range(number + 1..).any(|(later, replaces)| is_whole(later, replaces));
            let is_part = !is_whole(&number, &restored.journaled.begin.replaces)
                && records.range(..number).any(|(earlier, _)| self.files.contains_key(earlier));
            if is_over || is_part {
                self.over.extend(self.files.remove(&number).map(|restored| restored.journaled));
            }
        }
    }
}

/// The numbers of the segments in a directory, in order. None if there is no directory.
pub(super) fn numbers(directory: &Path) -> io::Result<Vec<u64>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}
