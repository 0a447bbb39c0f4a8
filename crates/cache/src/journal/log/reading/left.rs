//! Looks at the journal of a process that is gone, and takes files out of it, without taking it over.
//!
//! The caller holds the lock of the cache directory, so no process uses the journal meanwhile.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

use vfs::Handle;

use super::{Contents, Restored, join, numbers, replace};
use crate::journal::entry::LIVE_AT;
use crate::journal::log::Journal;

impl Journal {
    /// The same as [`Journal::restore`] returns, without any change on the disk.
    ///
    /// # Errors
    /// As [`Journal::restore`].
    pub fn look(&self) -> io::Result<(Vec<Restored>, bool)> {
        let mut contents = self.contents()?;
        contents.drop_over();
        let Contents { files, lost, complete, .. } = contents;
        let (files, _) = replace(files, &complete);
        Ok((join(files), lost))
    }

    /// The entries of these files no longer count.
    ///
    /// # Errors
    /// As [`Journal::restore`].
    pub fn forget(&self, handles: &HashSet<Handle>) -> io::Result<()> {
        self.forget_those(|handle| handles.contains(handle))
    }

    /// Removes the journal, and with it the entries of before the machine started.
    ///
    /// # Errors
    /// As [`Journal::restore`].
    pub fn forget_all(&self) -> io::Result<()> {
        // If the machine goes down meanwhile, none of the entries that stay may count.
        self.forget_those(|_| true)?;
        // In their order, so that the last segment, whose end may be torn, stays the last one.
        numbers(&self.directory)?.into_iter().try_for_each(|number| std::fs::remove_file(self.path(number)))
    }

    fn forget_those(&self, is_chosen: impl Fn(&Handle) -> bool) -> io::Result<()> {
        let contents = self.contents()?;
        self.sync_found(&contents.segments)?;
        // In the order of the records: a record that was replaced must not count again.
        let records = contents.files.values().map(|file| &file.journaled);
        for record in records.filter(|record| is_chosen(&record.begin.handle)) {
            // A mark on the last part says that all of the record is over.
            for part in record.parts.iter().rev() {
                let segment = contents.segments.get(&part.segment).ok_or(ErrorKind::NotFound)?;
                segment.file.write_all_at(&[0], part.at + LIVE_AT)?;
            }
        }
        contents.segments.values().try_for_each(|segment| segment.file.sync_all())
    }

    fn contents(&self) -> io::Result<Contents> {
        let mut contents = Contents::default();
        let numbers = numbers(&self.directory)?;
        for number in &numbers {
            self.read(*number, Some(number) == numbers.last(), &mut contents)?;
        }
        Ok(contents)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use bytes::Bytes;
    use vfs::{LeaseId, Principal, Timestamp};

    use super::*;
    use crate::journal::entry::{Begin, Entry};
    use crate::journal::log::Journaled;

    fn handle(number: u8) -> Handle {
        Handle::new(&[number]).unwrap()
    }

    /// So that a few entries fill a segment.
    fn journal(directory: &Path, boot: u64) -> Journal {
        journal_of(directory, boot, false)
    }

    fn journal_of(directory: &Path, boot: u64, durable: bool) -> Journal {
        let mut journal = Journal::new(directory.join("writeback"), boot, 1 << 20, true, durable);
        journal.segment_bytes = 400;
        journal
    }

    fn write(offset: u64) -> Entry {
        Entry::Write {
            writer: Principal::Machine,
            offset,
            modified: Timestamp::default(),
            bytes: Bytes::from(vec![offset as u8; 150]),
        }
    }

    /// Enters writes of three files over several segments, and one of them anew. Then the process is killed.
    fn leave(directory: &Path, durable: bool) {
        let mut journal = journal_of(directory, 7, durable);
        let begin = |number, replaces| {
            let begin =
                Begin { handle: handle(number), lease: LeaseId(1), change: None, replaces, place: None };
            journal.begin(Box::new(begin))
        };
        let mut files: Vec<Journaled> = (1..4).map(|number| begin(number, None)).collect();
        for round in 0..4 {
            for file in &mut files {
                journal.append(file, &write(round * 1000), round).unwrap();
            }
        }
        let mut anew = begin(2, Some(files[1].number()));
        for entry in [write(50_000), Entry::Complete(1)] {
            journal.append(&mut anew, &entry, 9).unwrap();
        }
        if let Some(upto) = journal.unsynced() {
            journal.sync(upto).unwrap();
        }
        journal.log.get_mut().segments.clear();
    }

    /// All of a directory.
    fn contents_of(directory: &Path) -> BTreeMap<std::ffi::OsString, Vec<u8>> {
        let entries = std::fs::read_dir(directory.join("writeback")).unwrap();
        entries
            .map(|entry| entry.unwrap())
            .map(|e| (e.file_name(), std::fs::read(e.path()).unwrap()))
            .collect()
    }

    /// The first offset of each file.
    fn seen(files: &[Restored]) -> Vec<(Handle, usize, u64)> {
        let offset = |entries: &[Entry]| match entries.first() {
            Some(Entry::Write { offset, .. }) => *offset,
            other => panic!("{other:?}"),
        };
        let of = |file: &Restored| (file.journaled.begin.handle, file.entries.len(), offset(&file.entries));
        files.iter().map(of).collect()
    }

    #[test]
    fn a_look_finds_what_a_restore_finds_and_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        leave(directory, false);
        // The process was killed in the middle of an entry.
        let last = directory
            .join("writeback")
            .join(super::numbers(&directory.join("writeback")).unwrap().len().to_string());
        let torn = [std::fs::read(&last).unwrap(), vec![200, 0, 0]].concat();
        std::fs::write(&last, torn).unwrap();
        let before = contents_of(directory);
        assert!(before.len() > 2, "several segments");
        let (files, lost) = journal(directory, 7).look().unwrap();
        assert_eq!(contents_of(directory), before);
        let wanted = [(handle(1), 4, 0), (handle(3), 4, 0), (handle(2), 2, 50_000)];
        assert_eq!((seen(&files), lost), (wanted.to_vec(), false));
        // After a restart of the machine.
        let (none, lost) = journal(directory, 8).look().unwrap();
        assert_eq!((none.len(), lost), (0, true));
        assert_eq!(contents_of(directory), before);
        let (restored, _) = journal(directory, 7).restore().unwrap();
        assert_eq!(seen(&restored), wanted);
    }

    #[test]
    fn a_durable_journal_is_looked_at_and_forgotten_after_a_restart_of_the_machine() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        leave(directory, true);
        let before = contents_of(directory);
        for durable in [true, false] {
            let (files, lost) = journal_of(directory, 8, durable).look().unwrap();
            let wanted = [(handle(1), 4, 0), (handle(3), 4, 0), (handle(2), 2, 50_000)];
            assert_eq!((seen(&files), lost), (wanted.to_vec(), false));
        }
        assert_eq!(contents_of(directory), before);
        journal(directory, 8).forget(&HashSet::from([handle(2), handle(3)])).unwrap();
        let (restored, _) = journal_of(directory, 9, true).restore().unwrap();
        assert_eq!(seen(&restored), [(handle(1), 4, 0)]);
        journal(directory, 9).forget_all().unwrap();
        assert_eq!(contents_of(directory), BTreeMap::new());
    }

    #[test]
    fn what_is_forgotten_does_not_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        leave(directory, false);
        journal(directory, 7).forget(&HashSet::from([handle(2), handle(9)])).unwrap();
        let (files, _) = journal(directory, 7).look().unwrap();
        assert_eq!(seen(&files), [(handle(1), 4, 0), (handle(3), 4, 0)]);
        let (files, _) = journal(directory, 7).restore().unwrap();
        assert_eq!(seen(&files), [(handle(1), 4, 0), (handle(3), 4, 0)]);
        leave_more(directory);
        journal(directory, 7).forget_all().unwrap();
        assert_eq!(contents_of(directory), BTreeMap::new());
        assert_eq!(journal(directory, 7).look().unwrap().0.len(), 0);
        assert!(journal(&directory.join("none"), 7).forget_all().is_ok());
    }

    /// A segment of before the machine started.
    fn leave_more(directory: &Path) {
        let mut older = journal(directory, 6);
        let begin = Begin { handle: handle(5), lease: LeaseId(1), change: None, replaces: None, place: None };
        let mut file = older.begin(Box::new(begin));
        older.directory = directory.join("older");
        older.append(&mut file, &write(0), 0).unwrap();
        older.log.get_mut().segments.clear();
        std::fs::rename(directory.join("older/1"), directory.join("writeback/77")).unwrap();
        let (files, lost) = journal(directory, 7).look().unwrap();
        assert!(lost && files.len() == 2);
    }

    #[test]
    fn damage_is_an_error_that_names_the_segment() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        leave(directory, false);
        let first = directory.join("writeback/1");
        let mut content = std::fs::read(&first).unwrap();
        content[100] ^= 1;
        std::fs::write(&first, content).unwrap();
        let before = contents_of(directory);
        let journal = journal(directory, 7);
        for error in [journal.look().unwrap_err(), journal.forget(&HashSet::new()).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            assert!(error.to_string().contains("writeback/1 is damaged"), "{error}");
        }
        assert_eq!(contents_of(directory), before);
    }
}
