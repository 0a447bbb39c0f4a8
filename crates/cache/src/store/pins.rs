//! Pins: the objects that an administrator wants to keep. `DIR/pins`, one line each.
//!
//! Pins are an instruction and not cached data, so they are no part of the index, which may be put aside at
//! any time. The file is written completely, synced, and renamed over the old one. A killed process leaves
//! the old pins or the new ones.
//!
//! ```text
//! leasehold-pins 1
//! HANDLE SECONDS PATH   the handle in hexadecimal, when it was pinned, and its path then, for people to read
//! ```
//!
//! Promise: limits-and-pins

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, RwLock};
use vfs::Handle;

const HEAD: &str = "leasehold-pins 1";
/// The largest number of pins. The pin of a directory keeps everything below it, so few are needed.
pub const PINS_MAX: usize = 10_000;
/// The length that a line must not exceed, in bytes.
const LINE_MAX: usize = 16 << 10;

/// One pin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// The object.
    pub handle: Handle,
    /// When it was pinned, in seconds.
    pub since: i64,
    /// The path under which it was pinned, in printable form.
    pub path: String,
}

/// All pins of a cache.
#[derive(Debug)]
pub struct Pins {
    path: PathBuf,
    kept: RwLock<BTreeMap<Handle, Pinned>>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

impl Pins {
    /// The pins of a cache directory. A file that cannot be read is an error, because pins must not get lost
    /// silently.
    pub fn load(directory: &Path) -> io::Result<Pins> {
        let path = directory.join("pins");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let pins = if text.is_empty() { BTreeMap::new() } else { parse(&text)? };
        Ok(Pins { path, kept: RwLock::new(pins), writing: Mutex::new(()) })
    }

    /// Are there no pins?
    pub fn is_empty(&self) -> bool {
        self.kept.read().is_empty()
    }

    /// Has this object a pin of its own?
    pub fn has(&self, handle: &Handle) -> bool {
        self.kept.read().contains_key(handle)
    }

    /// All pins.
    pub fn all(&self) -> Vec<Pinned> {
        self.kept.read().values().cloned().collect()
    }

    /// Pins an object. The pin is durable when this returns. Blocks.
    ///
    /// # Errors
    /// If the file cannot be written, or there are too many pins; then the object is not pinned.
    pub fn pin(&self, pinned: Pinned) -> io::Result<()> {
        self.change(|pins| {
            if pins.len() >= PINS_MAX && !pins.contains_key(&pinned.handle) {
                let full = format!("there are {PINS_MAX} pins already; pin a directory above instead");
                return Err(io::Error::other(full));
            }
            pins.insert(pinned.handle, pinned);
            Ok(true)
        })
        .map(drop)
    }

    /// Removes a pin. False if there was none. Blocks.
    pub fn unpin(&self, handle: &Handle) -> io::Result<bool> {
        self.change(|pins| Ok(pins.remove(handle).is_some()))
    }

    fn change(
        &self,
        work: impl FnOnce(&mut BTreeMap<Handle, Pinned>) -> io::Result<bool>,
    ) -> io::Result<bool> {
        let _writing = self.writing.lock();
        let mut pins = self.kept.read().clone();
        if !work(&mut pins)? {
            return Ok(false);
        }
        write(&self.path, &pins)?;
        *self.kept.write() = pins;
        Ok(true)
    }
}

fn parse(text: &str) -> io::Result<BTreeMap<Handle, Pinned>> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        return Err(bad("it is no list of pins that this version knows"));
    }
    let pin = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let handle = unhex(words.next()?)?;
        Some(Pinned { handle, since: words.next()?.parse().ok()?, path: words.next()?.to_owned() })
    };
    lines
        .take(PINS_MAX)
        .map(|line| pin(line).map(|pin| (pin.handle, pin)).ok_or_else(|| bad("a line of it is damaged")))
        .collect()
}

fn unhex(text: &str) -> Option<Handle> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    let bytes = (0..text.len()).step_by(2).map(byte).collect::<Option<Vec<_>>>()?;
    Handle::new(&bytes)
}

fn write(path: &Path, pins: &BTreeMap<Handle, Pinned>) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    let mut text = format!("{HEAD}\n");
    for Pinned { handle, since, path } in pins.values() {
        let shown: String = path.chars().filter(|c| !c.is_control()).take(LINE_MAX / 4).collect();
        text.extend([&format!("{handle} {since} "), shown.as_str(), "\n"]);
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pinned(handle: &[u8], path: &str) -> Pinned {
        Pinned { handle: Handle::new(handle).unwrap(), since: 1_700_000_000, path: path.into() }
    }

    #[test]
    fn pins_come_back_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let pins = Pins::load(directory.path()).unwrap();
        assert!(pins.is_empty());
        pins.pin(pinned(b"\x01\xff", "/a dir/with spaces")).unwrap();
        pins.pin(pinned(b"\x02", "/")).unwrap();
        let again = Pins::load(directory.path()).unwrap();
        assert_eq!(again.all(), pins.all());
        assert!(again.has(&Handle::new(b"\x02").unwrap()));
        assert!(again.unpin(&Handle::new(b"\x02").unwrap()).unwrap());
        assert!(!again.unpin(&Handle::new(b"\x02").unwrap()).unwrap());
        assert_eq!(Pins::load(directory.path()).unwrap().all(), [pinned(b"\x01\xff", "/a dir/with spaces")]);
    }

    #[test]
    fn a_damaged_list_is_an_error_and_not_an_empty_one() {
        let directory = tempfile::tempdir().unwrap();
        for text in ["nonsense", "leasehold-pins 1\nxyz 1 /a\n", "leasehold-pins 1\n01 soon /a\n"] {
            std::fs::write(directory.path().join("pins"), text).unwrap();
            assert!(Pins::load(directory.path()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(lines in prop::collection::vec("[0-9a-f]{0,6} ?[-0-9a-zé]{0,4} ?.{0,5}", 0..5)) {
            let _ = parse(&format!("{HEAD}\n{}", lines.join("\n")));
        }
    }

    #[test]
    fn there_is_a_last_pin() {
        let directory = tempfile::tempdir().unwrap();
        let lines: Vec<String> = (0..PINS_MAX).map(|number| format!("{number:08x} 1 /f\n")).collect();
        let lines = lines.concat();
        std::fs::write(directory.path().join("pins"), format!("{HEAD}\n{lines}")).unwrap();
        let pins = Pins::load(directory.path()).unwrap();
        assert_eq!(pins.all().len(), PINS_MAX);
        assert!(pins.pin(pinned(b"one more", "/x")).unwrap_err().to_string().contains("a directory above"));
        assert!(!pins.has(&Handle::new(b"one more").unwrap()));
    }
}
