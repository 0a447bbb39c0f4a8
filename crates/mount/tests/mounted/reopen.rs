//! Opens while a file enters or leaves passthrough, or while its name leads to another file: no program
//! gets ESTALE.
//!
//! Promise: opens-beside-renames

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::SeekFrom;

use crate::setting::{Setting, VERSIONS, may_mount};

/// Size in bytes of a file that enters passthrough once the cache has it.
const MUCH: usize = 640 << 10;

/// Repeats some work until this is dropped, and collects the errors.
struct Again<'a, 'scope> {
    stop: &'a AtomicBool,
    thread: Option<std::thread::ScopedJoinHandle<'scope, Vec<String>>>,
}

impl<'a, 'scope> Again<'a, 'scope> {
    fn new<'env>(
        scope: &'scope std::thread::Scope<'scope, 'env>,
        stop: &'a AtomicBool,
        work: impl Fn(u64) -> io::Result<()> + Send + 'scope,
    ) -> Again<'a, 'scope>
    where
        'a: 'scope,
    {
        let run = move || {
            let rounds = (0..).take_while(|_| !stop.load(Ordering::Relaxed));
            rounds.filter_map(|n| work(n).err()).map(|error| error.to_string()).collect()
        };
        Again { stop, thread: Some(scope.spawn(run)) }
    }

    fn errors(&mut self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(|thread| thread.join().unwrap()).unwrap_or_default()
    }
}

impl Drop for Again<'_, '_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn read(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    // An NFSv3 origin does not keep removed files for their opens, so a read may fail after a removal
    // there.
    let _ = file.read_to_end(&mut Vec::new());
    Ok(())
}

fn rewrite(path: &Path, round: u64, create: bool) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(create).truncate(false).open(path)?;
    file.write_all_at(&vec![round as u8; MUCH], 0)
}

#[test]
fn who_reads_and_who_rewrites_a_file_open_it_each_time() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        for (readers, create) in [(1, false), (3, true)] {
            let setting = Setting::new(&format!("vers={version}"));
            let path = setting.at("file");
            fs::write(&path, vec![0; MUCH]).unwrap();
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let mut readers: Vec<_> =
                    (0..readers).map(|_| Again::new(scope, &stop, |_| read(&path))).collect();
                let mut failed: Vec<String> = Vec::new();
                for round in 0..150 {
                    failed.extend(rewrite(&path, round, create).err().map(|error| error.to_string()));
                }
                failed.extend(readers.iter_mut().flat_map(Again::errors));
                assert!(
                    failed.is_empty(),
                    "version {version}: {} errors: {:?}",
                    failed.len(),
                    failed.first()
                );
            });
            setting.end();
        }
    }
}

/// Another client replaces a file by a new one again and again; the name exists at any time.
#[test]
fn a_name_that_others_rename_over_all_the_time_opens_each_time() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}"));
        let (there, new) = (setting.there("file"), setting.there("new"));
        fs::write(&there, b"0").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let rename = |round: u64| {
                fs::write(&new, round.to_string())?;
                fs::rename(&new, &there)
            };
            let mut other = Again::new(scope, &stop, rename);
            let path = setting.at("file");
            let failed: Vec<_> = (0..2000).filter_map(|_| read(&path).err()).collect();
            assert_eq!(other.errors(), Vec::<String>::new());
            assert!(failed.is_empty(), "version {version}: {} errors: {:?}", failed.len(), failed.first());
        });
        setting.end();
    }
}

/// This mount renames over a file while other processes open it. From then on the name leads to the new
/// file. An open in flight gets one of the two files and keeps it.
#[test]
fn a_rename_over_a_file_that_is_being_opened_is_seen_at_once() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}&actimeo=3600"));
        let (path, new) = (setting.at("file"), setting.at("new"));
        fs::write(&path, b"0").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut readers: Vec<_> = (0..3).map(|_| Again::new(scope, &stop, |_| read(&path))).collect();
            for round in 0..300 {
                fs::write(&new, round.to_string()).unwrap();
                let wanted = fs::metadata(&new).unwrap().ino();
                fs::rename(&new, &path).unwrap();
                let found = fs::symlink_metadata(&path).unwrap().ino();
                assert_eq!(found, wanted, "version {version}, round {round}");
            }
            let failed: Vec<String> = readers.iter_mut().flat_map(Again::errors).collect();
            assert!(failed.is_empty(), "version {version}: {} errors: {:?}", failed.len(), failed.first());
        });
        setting.end();
    }
}

/// The same for a file that the kernel knows by two names, one of which stays.
#[test]
fn of_two_names_one_of_which_others_rename_over_each_opens_each_time() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}"));
        let (a, b) = (setting.there("a"), setting.there("b"));
        fs::write(&a, b"0").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let relink = |round: u64| {
                // In every other round both names lead to one file.
                let new = setting.there("new");
                if round.is_multiple_of(2) {
                    fs::hard_link(&a, &new)?;
                } else {
                    fs::write(&new, b"1")?;
                }
                fs::rename(&new, &b)
            };
            relink(1).unwrap();
            let mut other = Again::new(scope, &stop, relink);
            let failed: Vec<_> = (0..1000)
                .flat_map(|_| ["a", "b"].map(|name| read(&setting.at(name)).err()))
                .flatten()
                .collect();
            assert_eq!(other.errors(), Vec::<String>::new());
            assert!(failed.is_empty(), "version {version}: {} errors: {:?}", failed.len(), failed.first());
        });
        setting.end();
    }
}

// Promise: removed-open-files
#[test]
fn a_directory_that_is_removed_or_replaced_while_it_is_open_is_empty_and_has_no_link() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}"));
        let open = |name: &str| {
            fs::create_dir(setting.at(name)).unwrap();
            (File::open(setting.at(name)).unwrap(), setting.at(name))
        };
        let (removed, path) = open("removed");
        fs::remove_dir(&path).unwrap();
        let (replaced, path) = open("replaced");
        fs::create_dir(setting.at("new")).unwrap();
        fs::write(setting.at("new/file"), b"").unwrap();
        fs::rename(setting.at("new"), &path).unwrap();
        for directory in [removed, replaced] {
            let known = directory.metadata().unwrap();
            assert!(known.is_dir() && known.nlink() == 0, "version {version}: {} links", known.nlink());
            rustix::fs::fchmod(&directory, 0o700.into()).unwrap();
            assert_eq!(directory.metadata().unwrap().mode() & 0o7777, 0o700);
            rustix::fs::fstatfs(&directory).unwrap();
            let new = rustix::fs::openat(&directory, "x", rustix::fs::OFlags::CREATE, 0o600.into());
            assert_eq!(new.unwrap_err(), rustix::io::Errno::NOENT);
            let itself =
                PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&directory)));
            let names = fs::read_dir(itself).map(|names| names.flatten().count());
            assert_eq!(names.unwrap(), 0, "version {version}");
        }
        assert!(fs::metadata(setting.at("replaced/file")).is_ok());
    }
}

#[test]
fn a_directory_of_many_names_goes_on_where_it_is_told_to() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}"));
        (0..1000).for_each(|n| fs::write(setting.there(format!("name-{n}")), b"").unwrap());
        let directory = File::open(setting.mnt()).unwrap();
        let mut buffer = Vec::with_capacity(16 << 10);
        let mut listing = rustix::fs::RawDir::new(&directory, buffer.spare_capacity_mut());
        let (mut names, mut cookie) = (Vec::new(), 0);
        while let Some(entry) = listing.next() {
            let entry = entry.unwrap();
            names.push((cookie, entry.file_name().to_owned()));
            cookie = entry.next_entry_cookie();
        }
        assert_eq!(names.len(), 1002);
        for n in (0..names.len()).map(|n| n * 617 % names.len()) {
            let (cookie, name) = &names[n];
            rustix::fs::seek(&directory, SeekFrom::Start(*cookie)).unwrap();
            let mut buffer = Vec::with_capacity(4 << 10);
            let mut listing = rustix::fs::RawDir::new(&directory, buffer.spare_capacity_mut());
            let found = listing.next().unwrap().unwrap();
            assert_eq!(found.file_name(), name.as_c_str(), "version {version}, at {cookie}");
        }
        // A file created later is listed after a rewind.
        fs::write(setting.at("later"), b"").unwrap();
        rustix::fs::seek(&directory, SeekFrom::Start(0)).unwrap();
        let mut buffer = Vec::with_capacity(16 << 10);
        let mut listing = rustix::fs::RawDir::new(&directory, buffer.spare_capacity_mut());
        let mut found = false;
        while let Some(entry) = listing.next() {
            found |= entry.unwrap().file_name() == c"later";
        }
        assert!(found, "version {version}");
    }
}
