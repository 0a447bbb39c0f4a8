//! The tree that the demo reads: the files of a small project, and a few larger ones.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The exported path.
pub const EXPORT: &str = "/sample";
/// The number of files.
pub const FILES: usize = DIRECTORIES * FILES_EACH;

const DIRECTORIES: usize = 10;
const FILES_EACH: usize = 10;
const KIB: usize = 1024;

/// Makes the tree, with times an hour in the past. A file written just now is racy (a second write could
/// carry the same timestamp), so the cache would not trust what it read of it.
pub fn make(root: &Path) -> io::Result<()> {
    let then = SystemTime::now() - Duration::from_secs(3600);
    let mut made = vec![root.to_path_buf()];
    fs::create_dir_all(root)?;
    for directory in 0..DIRECTORIES {
        let path = root.join(format!("part-{directory}"));
        fs::create_dir(&path)?;
        for number in 0..FILES_EACH {
            let file = path.join(format!("file-{number}.dat"));
            File::create(&file)?.write_all(&content(directory * FILES_EACH + number))?;
            made.push(file);
        }
        made.push(path);
    }
    // Set the times of directories last, because adding an entry changes them.
    for path in made.iter().rev() {
        File::open(path)?.set_modified(then)?;
    }
    Ok(())
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
