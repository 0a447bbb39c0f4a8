//! Files as programs use them.
//!
//! Promise: unix-semantics

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::process::Command;

use crate::setting::{Setting, VERSIONS, may_mount};

/// Runs a test over each NFS version.
fn each(test: impl Fn(&Setting)) {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        eprintln!("version {version}");
        test(&Setting::new(&format!("vers={version}")));
    }
}

#[test]
fn what_is_written_is_there_and_is_read_back() {
    each(|setting| {
        let text: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        fs::write(setting.at("file"), &text).unwrap();
        assert_eq!(fs::read(setting.there("file")).unwrap(), text);
        assert_eq!(fs::read(setting.at("file")).unwrap(), text);
        let (here, there) =
            (fs::metadata(setting.at("file")).unwrap(), fs::metadata(setting.there("file")).unwrap());
        assert_eq!((here.ino(), here.len(), here.mode()), (there.ino(), there.len(), there.mode()));
        fs::create_dir(setting.at("directory")).unwrap();
        // Another process of the server's machine makes it. The lease on the directory goes a moment later.
        let path = setting.there("directory/of the server");
        let made = Command::new("sh").args(["-c", r#"printf hello > "$0""#]).arg(path).status().unwrap();
        assert!(made.success());
        let entries =
            || fs::read_dir(setting.at("directory")).unwrap().map(|entry| entry.unwrap().file_name());
        wait_until(|| entries().eq(["of the server"]));
        assert_eq!(fs::read(setting.at("directory/of the server")).unwrap(), b"hello");
        fs::remove_dir_all(setting.at("directory")).unwrap();
        assert!(!setting.there("directory").exists());
    });
}

// Promise: appends
#[test]
fn two_appenders_do_not_overwrite_each_other() {
    each(|setting| {
        let open = || OpenOptions::new().append(true).create(true).open(setting.at("log")).unwrap();
        let (mut a, mut b) = (open(), open());
        for n in 0..20 {
            writeln!(a, "a{n}").unwrap();
            writeln!(b, "b{n}").unwrap();
        }
        drop((a, b));
        let lines = fs::read_to_string(setting.there("log")).unwrap();
        assert_eq!(lines.lines().count(), 40);
        assert!(lines.lines().eq((0..20).flat_map(|n| [format!("a{n}"), format!("b{n}")])));
    });
}

#[test]
fn an_exclusive_create_has_one_winner() {
    each(|setting| {
        let make = || OpenOptions::new().write(true).create_new(true).open(setting.at("lock"));
        make().unwrap();
        assert_eq!(make().unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
        fs::write(setting.there("theirs"), b"x").unwrap();
        let theirs = OpenOptions::new().write(true).create_new(true).open(setting.at("theirs"));
        assert_eq!(theirs.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    });
}

#[test]
fn truncation_and_holes_are_zeros() {
    each(|setting| {
        fs::write(setting.at("file"), b"0123456789").unwrap();
        let file = OpenOptions::new().read(true).write(true).open(setting.at("file")).unwrap();
        file.set_len(4).unwrap();
        file.set_len(8).unwrap();
        let mut bytes = Vec::new();
        (&file).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"0123\0\0\0\0");
        file.write_all_at(b"end", 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 3);
        drop(file);
        let file = File::create(setting.at("file")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        assert_eq!(fs::read(setting.there("file")).unwrap(), b"");
    });
}

// Promise: removed-open-files
#[test]
fn a_removed_file_lives_until_it_is_closed_and_leaves_nothing() {
    each(|setting| {
        fs::create_dir(setting.at("d")).unwrap();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(setting.at("d/f"))
            .unwrap();
        file.write_all(b"still here").unwrap();
        fs::remove_file(setting.at("d/f")).unwrap();
        assert!(!setting.at("d/f").exists());
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all(b", really").unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "still here, really");
        drop(file);
        let empty = || fs::read_dir(setting.there("d")).unwrap().next().is_none();
        wait_until(empty);
        fs::remove_dir(setting.at("d")).unwrap();
    });
}

/// The kernel does not wait for the RELEASE of a file.
#[test]
fn a_directory_goes_as_soon_as_its_removed_files_are_closed() {
    each(|setting| {
        for n in 0..100 {
            let directory = setting.at(format!("d{n}"));
            fs::create_dir(&directory).unwrap();
            let file = fs::File::create(directory.join("f")).unwrap();
            fs::remove_file(directory.join("f")).unwrap();
            if n % 2 == 1 {
                // The unlock comes before the removal.
                file.lock().unwrap();
            }
            if n == 0 {
                let error = fs::remove_dir(&directory).unwrap_err();
                assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty, "the file is open");
            }
            drop(file);
            fs::remove_dir(&directory).unwrap();
        }
    });
}

// Promise: removed-open-files
#[test]
fn a_file_that_is_replaced_while_it_is_open_lives_until_it_is_closed() {
    each(|setting| {
        fs::write(setting.at("old"), b"old").unwrap();
        fs::write(setting.at("new"), b"new").unwrap();
        let old = File::open(setting.at("old")).unwrap();
        fs::rename(setting.at("new"), setting.at("old")).unwrap();
        let mut bytes = [0; 3];
        old.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"old");
        assert_eq!(fs::read(setting.at("old")).unwrap(), b"new");
        drop(old);
        wait_until(|| fs::read_dir(setting.there(".")).unwrap().count() == 1);
    });
}

#[test]
fn direct_and_synchronous_files_work() {
    each(|setting| {
        for flag in [libc::O_DIRECT, libc::O_SYNC, libc::O_DSYNC] {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).custom_flags(flag);
            let file = options.open(setting.at("file")).unwrap();
            // Direct I/O needs aligned memory: one page of a vector of pages.
            let mut pages = vec![0u8; 3 * 4096];
            let at = pages.as_ptr().align_offset(4096);
            pages[at..at + 4096].fill(7);
            file.write_all_at(&pages[at..at + 4096], 0).unwrap();
            pages[at..at + 4096].fill(0);
            file.read_exact_at(&mut pages[at..at + 4096], 0).unwrap();
            assert!(pages[at..at + 4096].iter().all(|byte| *byte == 7));
            file.sync_all().unwrap();
            assert_eq!(fs::read(setting.there("file")).unwrap().len(), 4096);
        }
    });
}

/// Waits for a condition; a test that waits for more than ten seconds has failed.
pub fn wait_until(condition: impl Fn() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !condition() {
        assert!(std::time::Instant::now() < end, "it did not come about");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
