//! The tree that the demo reads: the files of a small project, and a few larger ones.
//!
//! All times are an hour in the past. A file written just now is racy (a second write could carry the same
//! timestamp), so the cache would not trust what it read of it. Directories get their times last, because
//! adding an entry changes them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use vfs::{
    Caller, CreateHow, FileSystem, Handle, Name, SetAttributes, SetTime, Stability, StateidBasis, Want,
};

/// The exported path.
pub const EXPORT: &str = "/sample";
/// The number of files.
pub const FILES: usize = DIRECTORIES * FILES_EACH;

const DIRECTORIES: usize = 10;
const FILES_EACH: usize = 10;
const KIB: usize = 1024;

/// Makes the tree in a directory.
pub fn make(root: &Path) -> io::Result<()> {
    let then = an_hour_ago();
    let mut made = vec![root.to_path_buf()];
    fs::create_dir_all(root)?;
    for directory in 0..DIRECTORIES {
        let path = root.join(directory_name(directory));
        fs::create_dir(&path)?;
        for number in 0..FILES_EACH {
            let file = path.join(file_name(number));
            File::create(&file)?.write_all(&content(directory * FILES_EACH + number))?;
            made.push(file);
        }
        made.push(path);
    }
    for path in made.iter().rev() {
        File::open(path)?.set_modified(then)?;
    }
    Ok(())
}

/// Makes the tree in any file system, below its root.
pub async fn load(fs: &dyn FileSystem) -> vfs::Result<()> {
    let caller = Caller::machine();
    let root = fs.root(&caller).await?.handle;
    for directory in 0..DIRECTORIES {
        let (name, set) = (Name::new(directory_name(directory).as_bytes())?, mode(0o755));
        let made = fs.mkdir(&caller, &root, &name, &set, Want::None).await?.node.handle;
        for number in 0..FILES_EACH {
            let (name, set) = (Name::new(file_name(number).as_bytes())?, mode(0o644));
            let file = fs.create(&caller, &made, &name, CreateHow::Guarded, &set).await?.node.handle;
            let (by, data) = (StateidBasis::Anonymous, content(directory * FILES_EACH + number));
            fs.write(&caller, &file, by, 0, data.into(), Stability::FileSync).await?;
            set_time(fs, &caller, &file).await?;
        }
        set_time(fs, &caller, &made).await?;
    }
    set_time(fs, &caller, &root).await
}

async fn set_time(fs: &dyn FileSystem, caller: &Caller, handle: &Handle) -> vfs::Result<()> {
    let then = Some(SetTime::Client(an_hour_ago().into()));
    let set = SetAttributes { atime: then, mtime: then, ..SetAttributes::default() };
    fs.setattr(caller, handle, &set, None).await.map(drop)
}

fn mode(bits: u32) -> SetAttributes {
    SetAttributes { mode: Some(bits), ..SetAttributes::default() }
}

fn an_hour_ago() -> SystemTime {
    SystemTime::now() - Duration::from_secs(3600)
}

fn directory_name(number: usize) -> String {
    format!("part-{number}")
}

fn file_name(number: usize) -> String {
    format!("file-{number}.dat")
}

/// The content of a file: a few KiB, and for every tenth file a MiB.
fn content(number: usize) -> Vec<u8> {
    let length = if number % 10 == 9 { 1024 * KIB } else { (1 + number * 7 % 32) * KIB };
    let mut word = number as u64 + 1;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) as u8
    };
    (0..length).map(|_| next()).collect()
}
