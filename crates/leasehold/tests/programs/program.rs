//! Programs of POSIX calls: the calls of each seat, and their order. They print as calls.
//!
//! The names of files tell their purpose. `f` are small files and `b` big ones, which are renamed only
//! within their kind. `l` are files that are read and written under locks. `e` are directories that stay
//! empty, and `s` are directories with files.

use std::fmt;
use std::ops::Range;

/// Bytes of a cell of a small file. Several cells share a page.
const SMALL_UNIT: usize = 512;
/// Cells of a small file in one page of the kernel.
pub const PAGE_CELLS: usize = 4096 / SMALL_UNIT;
/// Bytes of a cell of a big file.
const BIG_UNIT: usize = 32 << 10;
/// The largest number of cells of a file.
pub const CELLS: usize = 20;
/// The largest number of files that a seat has open.
pub const SLOTS: usize = 5;
/// Directories that exist before a program begins.
pub const TOPS: usize = 2;

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// `f`, `b`, `l`, `e` or `s`.
    pub kind: char,
    pub number: u16,
}

/// A directory that contains files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dir {
    /// A directory that always exists.
    Top(usize),
    /// A directory that is made and removed within a directory that always exists.
    Sub(usize, u16),
}

/// A path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub dir: Dir,
    pub name: Name,
}

/// How a file is opened.
pub use lab::Access;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Look(Place),
    Open { place: Place, access: Access, slot: usize },
    Read { slot: usize, cells: Range<usize>, map: bool },
    Write { slot: usize, cells: Range<usize>, how: How, id: u64 },
    Cut { slot: usize, cells: usize },
    Sync { slot: usize },
    Close { slot: usize },
    Lock { slot: usize, cells: Range<usize>, exclusive: bool },
    Unlock { slot: usize },
    Link(Place, Place),
    Rename(Place, Place),
    Unlink(Place),
    Mkdir(Place),
    Rmdir(Place),
    List(Dir),
    Pause { milliseconds: u64 },
}

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Call,
    /// Through a map.
    Map,
    /// Through a map, with msync(2).
    MapSync,
}

/// A step of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A call of one seat.
    Alone(usize, Op),
    /// Simultaneous calls: several seats, each with a sequence of calls.
    Together(Vec<(usize, Vec<Op>)>),
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The inode number of an opened file. None after mkdir and link, which are followed by a look.
    Inode(Option<u64>),
    Data(Vec<u8>),
    Stat {
        ino: u64,
        size: u64,
        is_directory: bool,
    },
    Names(Vec<String>),
    Locked(bool),
    /// An error number.
    Failed(i32),
    /// No reply.
    Broken(String),
    /// Not called: no file is open in the slot, or one is open already, or the model does not determine the
    /// outcome.
    Skipped,
}

impl Name {
    pub fn unit(self) -> usize {
        if self.kind == 'b' { BIG_UNIT } else { SMALL_UNIT }
    }
}

impl Place {
    pub fn new(dir: Dir, kind: char, number: u16) -> Place {
        Place { dir, name: Name { kind, number } }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}{}", self.kind, self.number)
    }
}

impl fmt::Display for Dir {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dir::Top(top) => write!(to, "d{top}"),
            Dir::Sub(top, sub) => write!(to, "d{top}/s{sub}"),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}/{}", self.dir, self.name)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Look(place) => write!(to, "lstat({place})"),
            Op::Open { place, access, slot } => write!(to, "fd{slot} = open({place}, {})", flags(*access)),
            Op::Read { slot, cells, map } => {
                write!(to, "{}(fd{slot}, cells {cells:?})", if *map { "read by mmap" } else { "pread" })
            }
            Op::Write { slot, cells, how, id } => {
                let call = match how {
                    How::Call => "pwrite",
                    How::Map => "write by mmap",
                    How::MapSync => "write by mmap and msync",
                };
                write!(to, "{call}(fd{slot}, cells {cells:?}, data {id})")
            }
            Op::Cut { slot, cells } => write!(to, "ftruncate(fd{slot}, {cells} cells)"),
            Op::Sync { slot } => write!(to, "fsync(fd{slot})"),
            Op::Close { slot } => write!(to, "close(fd{slot})"),
            Op::Lock { slot, cells, exclusive } => {
                let kind = if *exclusive { "F_WRLCK" } else { "F_RDLCK" };
                write!(to, "fcntl(fd{slot}, F_OFD_SETLK, {kind}, cells {cells:?})")
            }
            Op::Unlock { slot } => write!(to, "fcntl(fd{slot}, F_OFD_SETLK, F_UNLCK)"),
            Op::Link(from, at) => write!(to, "link({from}, {at})"),
            Op::Rename(from, at) => write!(to, "rename({from}, {at})"),
            Op::Unlink(place) => write!(to, "unlink({place})"),
            Op::Mkdir(place) => write!(to, "mkdir({place})"),
            Op::Rmdir(place) => write!(to, "rmdir({place})"),
            Op::List(dir) => write!(to, "readdir({dir})"),
            Op::Pause { milliseconds } => write!(to, "sleep({milliseconds} ms)"),
        }
    }
}

fn flags(access: Access) -> String {
    let words = [
        (true, if access.write { "O_RDWR" } else { "O_RDONLY" }),
        (access.create || access.exclusive, "O_CREAT"),
        (access.exclusive, "O_EXCL"),
        (access.truncate, "O_TRUNC"),
        (access.direct, "O_DIRECT"),
    ];
    let words: Vec<&str> = words.into_iter().filter_map(|(has, word)| has.then_some(word)).collect();
    words.join("|")
}

impl fmt::Display for Outcome {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Inode(Some(ino)) => write!(to, "inode {ino}"),
            Outcome::Inode(None) => write!(to, "an inode"),
            Outcome::Data(data) => write!(to, "{}", describe(data)),
            Outcome::Stat { ino, is_directory: true, .. } => write!(to, "directory, inode {ino}"),
            Outcome::Stat { ino, size, .. } => write!(to, "{size} bytes, inode {ino}"),
            Outcome::Names(names) => write!(to, "{names:?}"),
            Outcome::Done | Outcome::Locked(true) => write!(to, "0"),
            Outcome::Locked(false) => write!(to, "EAGAIN"),
            Outcome::Failed(number) => {
                write!(to, "{}", std::io::Error::from_raw_os_error(*number))
            }
            Outcome::Broken(why) => write!(to, "no answer: {why}"),
            Outcome::Skipped => write!(to, "skipped"),
        }
    }
}

/// Bytes of one line in a cell.
const LINE: usize = 16;

/// The content of a cell to which data `id` was written. Data 0 is all zeros.
pub fn fill(id: u64, cell: usize, unit: usize) -> Vec<u8> {
    let line = [id.to_le_bytes(), (cell as u64).to_le_bytes()].concat();
    line.iter().copied().cycle().take(unit).collect()
}

/// The data in a cell. None if the cell contains parts of several data, or data of another cell.
pub fn data_of(bytes: &[u8], cell: usize) -> Option<u64> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let (id, rest) = bytes.first_chunk::<8>().map(|id| (*id, &bytes[8..]))?;
    let wanted = (cell as u64).to_le_bytes();
    let same =
        rest.first_chunk::<8>() == Some(&wanted) && bytes.chunks(LINE).all(|line| line == &bytes[..LINE]);
    same.then(|| u64::from_le_bytes(id))
}

/// Describes a file's content by the data in its cells.
fn describe(data: &[u8]) -> String {
    let count = data.len();
    let unit = if count > CELLS * SMALL_UNIT { BIG_UNIT } else { SMALL_UNIT };
    let of = |cell: &[u8]| match cell.first_chunk::<8>() {
        Some(id) if cell.chunks(LINE).all(|line| line == &cell[..LINE.min(cell.len())]) => {
            u64::from_le_bytes(*id).to_string()
        }
        _ => "mixed".to_owned(),
    };
    let cells: Vec<String> = data.chunks(unit).map(of).collect();
    format!("{count} bytes, data [{}]", cells.join(" "))
}

#[test]
fn a_cell_tells_what_was_written_to_it() {
    assert_eq!(data_of(&fill(7, 3, 512), 3), Some(7));
    assert_eq!(data_of(&fill(7, 3, 512), 4), None, "of another cell");
    assert_eq!(data_of(&[0; 512], 3), Some(0));
    let mut torn = fill(7, 3, 512);
    torn[256..].copy_from_slice(&fill(8, 3, 256));
    assert_eq!(data_of(&torn, 3), None);
}
