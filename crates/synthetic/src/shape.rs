//! The computed tree: which objects it has, and their names, attributes and bytes.
//!
//! Pure functions of the shape and of an object's number. The root is 1, the directories follow, then the
//! files, directory by directory. Numbers behind those are for objects that clients make.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use vfs::{Attributes, Device, FileType, Fsid, Name, Status, Timestamp};

/// The number of an object: its fileid too.
pub(crate) type Id = u64;

/// The root's number.
pub(crate) const ROOT: Id = 1;
/// The directories have the numbers from here.
const FIRST_DIRECTORY: Id = ROOT + 1;
/// What a name adds to the size of its directory, in bytes.
pub(crate) const NAME_BYTES: u64 = 32;
/// Digits of a computed name; more if the number has more.
const DIGITS: usize = 7;
/// 2020-01-01, in seconds: no computed time is earlier.
const FIRST_SECOND: u64 = 1_577_836_800;
/// All computed times are within so many nanoseconds.
const TIME_SPAN: u64 = 30 * 86_400 * 1_000_000_000;
/// Bytes that are computed at once.
const WORD: u64 = 8;

/// What a tree looks like. The root has `files / files_per_directory` directories, and each has that many
/// files; the last one has the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Chooses contents and times.
    pub seed: u64,
    /// Files in the tree.
    pub files: u32,
    /// Files in each directory.
    pub files_per_directory: NonZeroU32,
    /// Size of each file in bytes.
    pub file_bytes: u32,
}

impl Default for Shape {
    /// 10,000 files of 100 bytes, 1,000 in each directory.
    fn default() -> Shape {
        let files_per_directory = NonZeroU32::MIN.saturating_add(999);
        Shape { seed: 1, files: 10_000, files_per_directory, file_bytes: 100 }
    }
}

/// Why a text is no [`Shape`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A word without `=`, or with an unknown key.
    #[error("{0:?} is not one of files=N, per-directory=N, bytes=N and seed=N")]
    Key(String),
    /// A value that is no number in the range of its key.
    #[error("{value:?} is no value of {key}: give a number from {least} to {most}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// The least number that the key takes.
        least: u64,
        /// The greatest.
        most: u64,
    },
    /// A key that comes twice.
    #[error("{0} is given twice: give it once")]
    Twice(&'static str),
}

impl fmt::Display for Shape {
    /// The text that parses to this shape.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { seed, files, files_per_directory, file_bytes } = self;
        write!(f, "files={files},per-directory={files_per_directory},bytes={file_bytes},seed={seed}")
    }
}

impl FromStr for Shape {
    type Err = ShapeError;

    /// Parses `files=N,per-directory=N,bytes=N,seed=N`, in any order. A key that is absent has its default.
    fn from_str(text: &str) -> Result<Shape, ShapeError> {
        let mut shape = Shape::default();
        let mut given = Vec::new();
        for word in text.split(',') {
            let unknown = || ShapeError::Key(word.to_owned());
            let (key, value) = word.split_once('=').ok_or_else(unknown)?;
            let key = match key {
                "files" => {
                    shape.files = number("files", value, 0)?;
                    "files"
                }
                "per-directory" => {
                    let many = number("per-directory", value, 1)?;
                    shape.files_per_directory = NonZeroU32::MIN.saturating_add(many - 1);
                    "per-directory"
                }
                "bytes" => {
                    shape.file_bytes = number("bytes", value, 0)?;
                    "bytes"
                }
                "seed" => {
                    let most = u64::MAX;
                    let error =
                        |_| ShapeError::Value { key: "seed", value: value.to_owned(), least: 0, most };
                    shape.seed = value.parse().map_err(error)?;
                    "seed"
                }
                _ => return Err(unknown()),
            };
            if given.contains(&key) {
                return Err(ShapeError::Twice(key));
            }
            given.push(key);
        }
        Ok(shape)
    }
}

fn number(key: &'static str, value: &str, least: u32) -> Result<u32, ShapeError> {
    let error = || {
        let (least, most) = (least.into(), u32::MAX.into());
        ShapeError::Value { key, value: value.to_owned(), least, most }
    };
    value.parse().ok().filter(|number| *number >= least).ok_or_else(error)
}

impl Shape {
    /// Directories below the root.
    pub fn directories(&self) -> u64 {
        self.files().div_ceil(self.per_directory())
    }

    /// The path of a file below the root, by its number from 0.
    pub fn path(&self, file: u32) -> String {
        let (directory, index) =
            (u64::from(file) / self.per_directory(), u64::from(file) % self.per_directory());
        format!("{}/{}", text('d', directory), text('f', index))
    }

    /// The path of a directory below the root, by its number from 0.
    pub fn directory_path(&self, directory: u32) -> String {
        text('d', directory.into())
    }

    /// The bytes of a file, by its number from 0, as long as nobody changes it.
    pub fn bytes(&self, file: u32) -> Vec<u8> {
        self.read(self.first_file() + u64::from(file), 0, self.file_bytes.into())
    }

    fn files(&self) -> u64 {
        self.files.into()
    }

    fn per_directory(&self) -> u64 {
        u64::from(self.files_per_directory.get())
    }

    fn first_file(&self) -> Id {
        FIRST_DIRECTORY + self.directories()
    }

    /// The first number that no computed object has.
    pub(crate) fn end(&self) -> Id {
        self.first_file() + self.files()
    }

    /// Tells this tree from those of other shapes.
    pub(crate) fn key(&self) -> u64 {
        let parts = [self.files.into(), self.per_directory(), self.file_bytes.into()];
        parts.into_iter().fold(mix(self.seed), |key, part: u64| mix(key ^ part))
    }

    /// The type of an object; `None` if it is not computed.
    pub(crate) fn file_type(&self, id: Id) -> Option<FileType> {
        match id {
            ROOT => Some(FileType::Directory),
            _ if (FIRST_DIRECTORY..self.first_file()).contains(&id) => Some(FileType::Directory),
            _ if (self.first_file()..self.end()).contains(&id) => Some(FileType::Regular),
            _ => None,
        }
    }

    /// How many computed names a directory has.
    pub(crate) fn names_in(&self, directory: Id) -> u64 {
        match directory {
            ROOT => self.directories(),
            _ if self.file_type(directory) == Some(FileType::Directory) => {
                let before = (directory - FIRST_DIRECTORY) * self.per_directory();
                self.per_directory().min(self.files() - before)
            }
            _ => 0,
        }
    }

    /// The object of a directory's computed name, by the name's index.
    pub(crate) fn child(&self, directory: Id, index: u64) -> Id {
        match directory {
            ROOT => FIRST_DIRECTORY + index,
            _ => self.first_file() + (directory - FIRST_DIRECTORY) * self.per_directory() + index,
        }
    }

    /// The index of a computed name in a directory.
    pub(crate) fn index_of(&self, directory: Id, name: &Name) -> Option<u64> {
        let (&first, digits) = name.as_bytes().split_first()?;
        let prefix = if directory == ROOT { b'd' } else { b'f' };
        let is_canonical = |digits: &[u8]| digits.len() == DIGITS || digits.first() != Some(&b'0');
        if first != prefix || digits.len() < DIGITS || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let index = std::str::from_utf8(digits).ok()?.parse().ok()?;
        (is_canonical(digits) && index < self.names_in(directory)).then_some(index)
    }

    /// The attributes of a computed object that nobody has changed.
    pub(crate) fn attributes(&self, id: Id) -> Option<Attributes> {
        let file_type = self.file_type(id)?;
        let nanos = u128::from(FIRST_SECOND) * 1_000_000_000 + u128::from(mix(self.seed ^ id) % TIME_SPAN);
        let time = Timestamp::from_nanos(nanos as i128);
        let (mode, nlink, size) = match file_type {
            FileType::Directory => {
                let below = if id == ROOT { self.directories() } else { 0 };
                (0o777, (below as u32).saturating_add(2), self.names_in(id) * NAME_BYTES)
            }
            _ => (0o666, 1, self.file_bytes.into()),
        };
        Some(Attributes {
            file_type,
            mode,
            nlink,
            uid: 0,
            gid: 0,
            size,
            used: size,
            rdev: Device::default(),
            fsid: Fsid { major: self.key(), minor: 0 },
            fileid: id,
            atime: time,
            mtime: time,
            ctime: time,
            change: nanos as u64,
        })
    }

    /// Bytes of a computed file that nobody has written: at most `count` from `offset`.
    pub(crate) fn read(&self, id: Id, offset: u64, count: u64) -> Vec<u8> {
        let end = offset.saturating_add(count).min(self.file_bytes.into());
        let Some(length) = end.checked_sub(offset) else { return Vec::new() };
        let key = mix(self.seed ^ mix(id));
        let mut bytes = Vec::with_capacity((length + 2 * WORD) as usize);
        for word in offset / WORD..end.div_ceil(WORD) {
            bytes.extend_from_slice(&mix(key ^ word).to_le_bytes());
        }
        bytes.drain(..(offset % WORD) as usize);
        bytes.truncate(length as usize);
        bytes
    }
}

/// The computed name with this index in a directory.
///
/// # Errors
/// None, in fact: a computed name is a name.
pub(crate) fn computed_name(directory: Id, index: u64) -> Result<Name, Status> {
    let name = text(if directory == ROOT { 'd' } else { 'f' }, index);
    Name::new(name.as_bytes()).map_err(|error| error.status)
}

fn text(prefix: char, number: u64) -> String {
    format!("{prefix}{number:0DIGITS$}")
}

/// A bijection that scatters its argument: splitmix64's.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> Shape {
        text.parse().unwrap()
    }

    #[test]
    fn names_and_objects_belong_to_each_other() {
        let shape = shape("files=2505,per-directory=1000");
        assert_eq!((shape.directories(), shape.end()), (3, 1 + 1 + 3 + 2505));
        let mut objects = vec![ROOT];
        for directory in [ROOT, 2, 3, 4] {
            for index in 0..shape.names_in(directory) {
                let name = computed_name(directory, index).unwrap();
                assert_eq!(shape.index_of(directory, &name), Some(index));
                objects.push(shape.child(directory, index));
            }
        }
        objects.sort_unstable();
        assert_eq!(objects, (ROOT..shape.end()).collect::<Vec<_>>());
        assert_eq!((shape.names_in(4), shape.names_in(5), shape.names_in(shape.end())), (505, 0, 0));
        assert_eq!(shape.path(1003), "d0000001/f0000003");
    }

    #[test]
    fn a_name_has_one_spelling() {
        let shape = shape("files=20000001,per-directory=20000000");
        let index = |name: &str| shape.index_of(2, &Name::new(name.as_bytes()).unwrap());
        assert_eq!(index("f0000003"), Some(3));
        assert_eq!(index("f12345678"), Some(12_345_678));
        for other in ["f3", "f00000003", "d0000003", "f+000003", "f20000000", "f000000x", "f", "é0000003"] {
            assert_eq!(index(other), None, "{other}");
        }
    }

    #[test]
    fn bytes_do_not_depend_on_where_a_read_begins() {
        let shape = shape("files=2,bytes=100");
        let all = shape.bytes(1);
        assert_eq!(all.len(), 100);
        assert_ne!(all, shape.bytes(0));
        for offset in 0..110_usize {
            for count in [0, 1, 7, 8, 9, 200] {
                let from = offset.min(100);
                let expected = &all[from..(from + count).min(100)];
                assert_eq!(shape.read(4, offset as u64, count as u64), expected, "{offset} {count}");
            }
        }
    }

    #[test]
    fn the_seed_and_the_counts_make_the_tree() {
        let one = shape("files=10,seed=1");
        assert_eq!(one.to_string(), "files=10,per-directory=1000,bytes=100,seed=1");
        assert_eq!(one, shape("seed=1,files=10"));
        assert_ne!(one.bytes(3), shape("files=10,seed=2").bytes(3));
        assert_ne!(one.key(), shape("files=11,seed=1").key());
        assert_eq!(one.attributes(ROOT).unwrap().nlink, 3);
        assert_eq!(one.attributes(one.end()), None);
    }

    #[test]
    fn an_empty_tree_has_a_root() {
        let empty = shape("files=0");
        assert_eq!((empty.directories(), empty.end(), empty.names_in(ROOT)), (0, 2, 0));
    }

    #[test]
    fn a_wrong_text_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "\"\" is not one of files=N, per-directory=N, bytes=N and seed=N"),
            ("files", "\"files\" is not one of files=N, per-directory=N, bytes=N and seed=N"),
            ("size=3", "\"size=3\" is not one of files=N, per-directory=N, bytes=N and seed=N"),
            ("per-directory=0", "\"0\" is no value of per-directory: give a number from 1 to 4294967295"),
            ("files=-1", "\"-1\" is no value of files: give a number from 0 to 4294967295"),
            ("seed=x", "\"x\" is no value of seed: give a number from 0 to 18446744073709551615"),
            ("files=1,bytes=2,files=3", "files is given twice: give it once"),
        ] {
            assert_eq!(text.parse::<Shape>().unwrap_err().to_string(), reason, "{text}");
        }
    }
}
