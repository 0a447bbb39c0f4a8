//! Sessions without a cache: which files are expected after which opens. The index is one row in memory.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn directory(n: u32) -> Handle {
    Handle::new(&n.to_be_bytes()).unwrap()
}

fn texts(names: &[Name]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Opens of one directory, and what is in the index.
struct Reader {
    companions: Companions,
    saved: Option<Group>,
    now: Instant,
}

impl Reader {
    fn new() -> Reader {
        Reader { companions: Companions::default(), saved: None, now: Instant::now() }
    }

    /// Opens a file. Returns the names that are expected then.
    fn open(&mut self, text: &str) -> Vec<String> {
        let (of, name) = (directory(0), name(text));
        let expected = self.companions.expect(&of, &name, self.now);
        let saved = self.saved.clone();
        self.companions.note(&of, &name, self.now, || saved.unwrap_or_default());
        texts(&expected)
    }

    fn open_all(&mut self, all: &[&str]) {
        all.iter().for_each(|text| drop(self.open(text)));
    }

    /// As after a restart.
    fn restart(&mut self) {
        if let Some((_, group)) = self.companions.take_rows(self.now, true).pop() {
            self.saved = Group::decode(&group.encode());
        }
        self.companions = Companions::default();
    }

    fn saved(&self) -> Vec<String> {
        let names = self.saved.iter().flat_map(|group| group.list.iter().map(|file| file.name.clone()));
        texts(&names.collect::<Vec<_>>())
    }
}

#[test]
fn the_second_file_of_a_group_expects_the_others_once() {
    let mut reader = Reader::new();
    reader.open_all(&["c", "a", "d", "b", "a"]);
    assert!(reader.open("c").is_empty(), "there was no earlier session");
    reader.restart();
    assert_eq!(reader.saved(), ["c", "a", "d", "b"], "in the order of the first opens");
    assert!(reader.open("a").is_empty(), "one file tells nothing");
    assert!(reader.open("a").is_empty(), "the same once more neither");
    assert_eq!(reader.open("b"), ["c", "d"]);
    assert!(reader.open("d").is_empty(), "once");
}

#[test]
fn a_reader_that_opens_other_files_expects_nothing() {
    let mut reader = Reader::new();
    reader.open_all(&["a", "b", "c"]);
    reader.restart();
    for text in ["a", "x", "b", "y", "c", "z"] {
        assert!(reader.open(text).is_empty(), "{text}");
    }
    reader.restart();
    assert_eq!(reader.saved(), ["a", "x", "b", "y", "c", "z"]);
}

#[test]
fn a_name_that_was_expected_in_vain_twice_is_dropped() {
    let mut reader = Reader::new();
    reader.open_all(&["a", "b", "c", "old"]);
    for left in [4, 3] {
        reader.restart();
        assert_eq!(reader.saved().len(), left.max(4));
        reader.open_all(&["a", "b", "c"]);
    }
    reader.restart();
    assert_eq!(reader.saved(), ["a", "b", "c"]);
}

#[test]
fn a_session_ends_after_a_pause() {
    let mut reader = Reader::new();
    reader.open_all(&["a", "b", "c"]);
    assert!(reader.companions.take_rows(reader.now, false).is_empty(), "it goes on");
    reader.now += SAVE_AFTER;
    assert_eq!(reader.companions.take_rows(reader.now, false).len(), 1);
    assert!(reader.companions.take_rows(reader.now, false).is_empty(), "nothing new");
    reader.now += SESSION_IDLE;
    assert!(reader.open("a").is_empty());
    assert_eq!(reader.open("b"), ["c"], "the next session follows the one before");
    reader.now += SESSION_IDLE + SECOND;
    assert_eq!(reader.companions.take_rows(reader.now, false).len(), 1);
    assert!(reader.companions.0.lock().is_empty());
}

#[test]
fn sessions_and_names_are_bounded() {
    let mut reader = Reader::new();
    for n in 0..2 * NAMES_MAX {
        reader.open(&format!("f{n}"));
    }
    let mut rows = 0;
    for n in 1..=2 * SESSIONS_MAX as u32 {
        reader.now += Duration::from_millis(1);
        for text in ["a", "b"] {
            let row = reader.companions.note(&directory(n), &name(text), reader.now, Group::default);
            rows += usize::from(row.is_some());
        }
    }
    assert_eq!(reader.companions.0.lock().len(), SESSIONS_MAX);
    assert_eq!(rows, SESSIONS_MAX + 1, "those that gave way are written");
    reader.restart();
    let mut lone = Reader::new();
    lone.open("a");
    lone.restart();
    assert!(lone.saved().is_empty(), "one file is no group");
}
