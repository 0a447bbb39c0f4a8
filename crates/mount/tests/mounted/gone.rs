//! Directories and files that another client removes while programs of this machine use them. Programs see
//! what a local file system shows: no call gets ESTALE.
//!
//! Promise: removed-open-files

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::files::wait_until;
use crate::setting::{Setting, VERSIONS, may_mount};

/// Attribute timeouts longer than any test: the kernel believes every name that it has found.
const LONG: &str = "actimeo=3600";

/// A directory of the mount with a file and a directory in it, which the kernel knows, held open.
fn known(setting: &Setting, name: &str) -> File {
    fs::create_dir_all(setting.there(name).join("inner")).unwrap();
    fs::write(setting.there(name).join("f"), b"x").unwrap();
    // A lease on the directory above may have to be returned first.
    wait_until(|| fs::metadata(setting.at(name).join("f")).is_ok_and(|known| known.len() == 1));
    assert!(fs::metadata(setting.at(name).join("inner")).unwrap().is_dir());
    File::open(setting.at(name)).unwrap()
}

type PathCall = (&'static str, fn(&Path) -> io::Result<()>);
type Call = (&'static str, fn(&File, &File) -> Result<(), Errno>);

/// Calls with names in a removed directory, which is the first argument; the second one exists and has a
/// file `f`.
const CALLS: [Call; 17] = [
    ("mkdirat", |gone, _| sys::mkdirat(gone, "new", Mode::RWXU)),
    ("mknodat", |gone, _| sys::mknodat(gone, "new", FileType::Fifo, Mode::RWXU, 0)),
    ("symlinkat", |gone, _| sys::symlinkat("target", gone, "new")),
    ("openat to create", |gone, _| open(gone, "new", OFlags::CREATE | OFlags::WRONLY)),
    ("openat to create what was there", |gone, _| open(gone, "f", OFlags::CREATE | OFlags::WRONLY)),
    ("openat exclusively", |gone, _| open(gone, "new", OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY)),
    ("openat", |gone, _| open(gone, "f", OFlags::RDONLY)),
    ("openat of a directory", |gone, _| open(gone, "inner", OFlags::RDONLY)),
    ("openat of what was never there", |gone, _| open(gone, "never", OFlags::RDONLY)),
    ("statat of what was never there", |gone, _| sys::statat(gone, "never", AtFlags::empty()).map(drop)),
    ("unlinkat", |gone, _| sys::unlinkat(gone, "f", AtFlags::empty())),
    ("unlinkat of a directory", |gone, _| sys::unlinkat(gone, "inner", AtFlags::REMOVEDIR)),
    ("linkat into it", |gone, there| sys::linkat(there, "f", gone, "new", AtFlags::empty())),
    ("linkat out of it", |gone, there| sys::linkat(gone, "f", there, "new", AtFlags::empty())),
    ("renameat within it", |gone, _| sys::renameat(gone, "f", gone, "new")),
    ("renameat into it", |gone, there| sys::renameat(there, "f", gone, "new")),
    ("renameat out of it", |gone, there| sys::renameat(gone, "f", there, "new")),
];

fn open(directory: &File, name: &str, flags: OFlags) -> Result<(), Errno> {
    sys::openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(drop)
}

/// Each call is the first one after the removal, and then comes once more.
#[test]
fn names_in_a_directory_that_somebody_else_has_removed_do_not_exist() {
    each(&[LONG, "actimeo=0"], |setting, of| {
        fs::create_dir(setting.there("there")).unwrap();
        fs::write(setting.there("there/f"), b"x").unwrap();
        let there = File::open(setting.at("there")).unwrap();
        let mut wrong = Vec::new();
        let each =
            [false, true].into_iter().flat_map(|replaced| CALLS.iter().map(move |call| (replaced, call)));
        for (number, (replaced, (what, call))) in each.enumerate() {
            let name = format!("d{number}");
            let gone = known(setting, &name);
            setting.remove_all_elsewhere(&name);
            if replaced {
                fs::create_dir_all(setting.there(&name).join("inner")).unwrap();
                fs::write(setting.there(&name).join("f"), b"new").unwrap();
            }
            for round in 0..2 {
                let result = call(&gone, &there);
                if result != Err(Errno::NOENT) {
                    wrong.push(format!("{what}, replaced: {replaced}, round {round}: {result:?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{of}: {wrong:#?}");
        assert_eq!(fs::read_dir(setting.there("there")).unwrap().count(), 1, "{of}");
    });
}

#[test]
fn a_directory_that_somebody_else_has_removed_is_empty_and_has_no_link() {
    each(&[LONG, "actimeo=0"], |setting, of| {
        for replaced in [false, true] {
            let name = format!("d-{replaced}");
            let gone = known(setting, &name);
            let before = gone.metadata().unwrap();
            setting.remove_all_elsewhere(&name);
            if replaced {
                fs::create_dir(setting.there(&name)).unwrap();
                fs::write(setting.there(&name).join("other"), b"").unwrap();
            }
            // Whatever the kernel has kept goes with a call that finds the directory gone.
            assert_eq!(open(&gone, "f", OFlags::RDONLY), Err(Errno::NOENT), "{of}");
            let known = gone.metadata().unwrap();
            assert_eq!((known.ino(), known.is_dir(), known.nlink()), (before.ino(), true, 0), "{of}");
            assert_eq!((known.mode(), known.uid()), (before.mode(), before.uid()), "{of}");
            assert_eq!(names_of(&gone), Ok(Vec::new()), "{of}");
            // Another open of it.
            let again = sys::openat(&gone, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
            assert_eq!(names_of(&File::from(again)), Ok(Vec::new()), "{of}");
            sys::fstatfs(&gone).unwrap();
            sys::fchmod(&gone, Mode::RWXU).unwrap();
            assert_eq!(gone.metadata().unwrap().mode() & 0o7777, 0o700, "{of}");
        }
    });
}

/// The first call after the removal asks for attributes or reads the directory. The kernel does not repeat
/// these calls if they fail.
#[test]
fn what_the_kernel_does_not_repeat_does_not_fail_either() {
    each(&["actimeo=0"], |setting, of| {
        let gone = known(setting, "stat");
        setting.remove_all_elsewhere("stat");
        assert_eq!(gone.metadata().unwrap().nlink(), 0, "{of}");
        let gone = known(setting, "list");
        setting.remove_all_elsewhere("list");
        assert_eq!(names_of(&gone), Ok(Vec::new()), "{of}");
        // A descriptor that is no open of the file system.
        known(setting, "path");
        let gone = sys::open(setting.at("path"), OFlags::PATH, Mode::empty()).unwrap();
        setting.remove_all_elsewhere("path");
        assert_eq!(sys::fstat(&gone).map(|known| known.st_nlink), Ok(0), "{of}");
    });
}

/// The names in a directory, without `.` and `..`.
fn names_of(directory: &File) -> Result<Vec<String>, Errno> {
    let mut buffer = Vec::with_capacity(4 << 10);
    let mut listing = sys::RawDir::new(directory, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = listing.next() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        names.extend((name != "." && name != "..").then_some(name));
    }
    Ok(names)
}

#[test]
fn a_program_whose_working_directory_somebody_else_has_removed_finds_no_names_there() {
    // Each line is one program's first call there.
    let scripts =
        ["mkdir new", ": > new", ": < f", "ln -s target new", "rm f", "rmdir inner", "mv f new", "ln f new"];
    each(&[LONG, "actimeo=0"], |setting, of| {
        for (number, script) in scripts.iter().enumerate() {
            let name = format!("d{number}");
            known(setting, &name);
            let mut shell = Command::new("sh")
                .args(["-c", &format!("echo; read _; {script}; stat -c %h . ; ls -a")])
                .env("LC_ALL", "C")
                .current_dir(setting.at(&name))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            BufReader::new(shell.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
            setting.remove_all_elsewhere(&name);
            shell.stdin.take().unwrap().write_all(b"\n").unwrap();
            let told = shell.wait_with_output().unwrap();
            let errors = String::from_utf8_lossy(&told.stderr);
            // ": > new" is an error of the shell itself, which ends it.
            let said =
                errors.lines().all(|line| line.contains("No such file") || line.contains("nonexistent"));
            assert!(said && !errors.is_empty(), "{of}: {script}: {errors}");
            let shown = String::from_utf8_lossy(&told.stdout);
            assert!(matches!(&*shown, "" | "0\n" | "0\n.\n..\n"), "{of}: {script}: {shown}");
        }
    });
}

/// The kernel believes the name of the directory that was removed. A path leads to the new one.
#[test]
fn a_path_leads_to_the_directory_that_has_replaced_another_one() {
    let calls: [PathCall; 9] = [
        ("mkdir", |at| fs::create_dir(at.join("new"))),
        ("create", |at| File::create(at.join("new")).map(drop)),
        ("open", |at| fs::read(at.join("g")).map(drop)),
        ("open what was there", |at| fs::read(at.join("f")).map(drop)),
        ("unlink", |at| fs::remove_file(at.join("f"))),
        ("rename", |at| fs::rename(at.join("f"), at.join("new"))),
        ("link", |at| fs::hard_link(at.join("f"), at.join("new"))),
        ("list", |at| {
            let names = fs::read_dir(at)?.count();
            if names == 2 { Ok(()) } else { Err(io::Error::other(format!("{names} names"))) }
        }),
        ("chmod", |at| fs::set_permissions(at, fs::Permissions::from_mode(0o711))),
    ];
    each(&[LONG, "actimeo=0"], |setting, of| {
        let mut wrong = Vec::new();
        for held in [false, true] {
            for (what, call) in &calls {
                let name = format!("{what}-{held}");
                let (at, there) = (setting.at(&name), setting.there(&name));
                let kept = Some(known(setting, &name)).filter(|_| held);
                setting.remove_all_elsewhere(&name);
                fs::create_dir(&there).unwrap();
                fs::write(there.join("f"), b"new").unwrap();
                fs::write(there.join("g"), b"new").unwrap();
                wrong.extend(call(&at).err().map(|error| format!("{name}: {error}")));
                drop(kept);
                if *what == "chmod" {
                    assert_eq!(fs::metadata(&there).unwrap().mode() & 0o7777, 0o711, "{of}");
                }
                // Not even the path exists any more.
                setting.remove_all_elsewhere(&name);
                let result = call(&at).map_err(|error| error.kind());
                if result != Err(io::ErrorKind::NotFound) {
                    wrong.push(format!("{name}, removed: {result:?}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{of}: {wrong:#?}");
    });
}

/// The kernel does not keep the names of a file with many links. It looks such a name up in the directory
/// that it remembers, drops it, and looks it up once more, all in one walk of the path.
#[test]
fn a_name_that_the_kernel_does_not_keep_is_found_in_the_new_directory_and_not_in_the_old_one() {
    let link = |setting: &Setting, data: &[u8]| {
        let file = setting.there("d/f");
        fs::write(&file, data).unwrap();
        (0..10).for_each(|n| fs::hard_link(&file, setting.there(format!("d/{n}"))).unwrap());
    };
    each(&[LONG], |setting, of| {
        let gone = known(setting, "d");
        link(setting, b"x");
        // An open looks at the origin; a stat would not before the attributes time out.
        let links = || File::open(setting.at("d/f")).and_then(|file| file.metadata()).unwrap().nlink();
        wait_until(|| links() == 11);
        setting.remove_all_elsewhere("d");
        fs::create_dir(setting.there("d")).unwrap();
        link(setting, b"new");
        assert_eq!(fs::read(setting.at("d/f")).unwrap(), b"new", "{of}");
        assert_eq!(open(&gone, "f", OFlags::RDONLY), Err(Errno::NOENT), "{of}");
    });
}

/// mkdir(2) and its like do not repeat the LOOKUP of a name that the new directory has. The next call finds
/// it.
#[test]
fn a_name_that_a_new_directory_has_is_found_at_the_second_creation_at_the_latest() {
    each(&[LONG], |setting, of| {
        known(setting, "d");
        setting.remove_all_elsewhere("d");
        fs::create_dir_all(setting.there("d/inner")).unwrap();
        let make = || fs::create_dir(setting.at("d/inner")).map_err(|error| error.raw_os_error());
        let first = make();
        assert!([Some(libc::EEXIST), Some(libc::ESTALE)].map(Err).contains(&first), "{of}: {first:?}");
        assert_eq!(make(), Err(Some(libc::EEXIST)), "{of}");
    });
}

/// Another client puts a new directory in the place of the old one all the time.
#[test]
fn a_path_through_a_directory_that_others_replace_all_the_time_is_never_stale() {
    each(&[LONG], |setting, of| {
        let (there, at) = (setting.there("d"), setting.at("d"));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let replace = || {
                let new = setting.there("new");
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    fs::create_dir(&new).unwrap();
                    fs::write(new.join("f"), b"x").unwrap();
                    let old = setting.there(format!("old{round}"));
                    let _ = fs::rename(&there, &old);
                    fs::rename(&new, &there).unwrap();
                    // The program may be making a name in it.
                    while old.exists() {
                        let _ = fs::remove_dir_all(&old);
                    }
                }
            };
            let end = Stop(&stop);
            scope.spawn(replace);
            let mut failed: Vec<String> = Vec::new();
            for round in 0..400 {
                let own = at.join(format!("own{round}"));
                let results = [
                    ("open", File::open(at.join("f")).map(drop)),
                    ("stat", fs::symlink_metadata(at.join("f")).map(drop)),
                    ("create", File::create(&own).map(drop)),
                    ("rename", fs::rename(at.join("f"), at.join("g"))),
                    ("unlink", fs::remove_file(&own)),
                    ("mkdir", fs::create_dir(&own)),
                    ("list", fs::read_dir(&at).map(drop)),
                ];
                for (what, result) in results {
                    let wrong = result.err().filter(|error| error.raw_os_error() == Some(libc::ESTALE));
                    failed.extend(wrong.map(|error| format!("{what}, round {round}: {error}")));
                }
            }
            drop(end);
            assert!(failed.is_empty(), "{of}: {} errors: {:?}", failed.len(), failed.first());
        });
    });
}

/// An open that makes its file succeeds although another client removes each new file at once.
// Promise: opens-beside-renames
#[test]
fn a_file_that_others_remove_as_soon_as_it_is_made_is_made() {
    each(&[LONG], |setting, of| {
        let (there, at) = (setting.there("f"), setting.at("f"));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let end = Stop(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _ = fs::remove_file(&there);
                }
            });
            let mut failed: Vec<String> = Vec::new();
            for round in 0..500 {
                let mut options = OpenOptions::new();
                options.write(true);
                let made = match round % 4 {
                    0 => options.create(true).truncate(true).open(&at),
                    1 => options.create(true).append(true).open(&at),
                    2 => options.create(true).truncate(false).mode(0o604).open(&at),
                    _ => options.create_new(true).open(&at),
                };
                let exists = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
                let wrong = made.err().filter(|error| !(round % 4 == 3 && exists(error)));
                failed.extend(wrong.map(|error| format!("round {round}: {error}")));
            }
            drop(end);
            assert!(failed.is_empty(), "{of}: {} errors: {:?}", failed.len(), failed.first());
        });
    });
}

/// Names in a directory whose listing does not fit into one read.
const MANY: usize = 200;

/// A listing in progress was fetched before this mount removes, replaces or moves names that come later in
/// it. The kernel gets no file for them.
// Promise: opens-beside-renames
#[test]
fn a_listing_does_not_bring_back_what_was_removed_since_it_was_fetched() {
    each(&[LONG], |setting, of| {
        let path = |n: usize| setting.at(format!("name-{n}"));
        (0..MANY).for_each(|n| fs::write(setting.there(format!("name-{n}")), b"old").unwrap());
        fs::create_dir(setting.there("name-x")).unwrap();
        let directory = File::open(setting.mnt()).unwrap();
        let mut buffer = Vec::with_capacity(2 << 10);
        let mut listing = sys::RawDir::new(&directory, buffer.spare_capacity_mut());
        let mut told = Vec::new();
        while told.len() < 10 {
            told.push(listing.next().unwrap().unwrap().file_name().to_string_lossy().into_owned());
        }
        let ahead: Vec<usize> = (0..MANY).filter(|n| !told.contains(&format!("name-{n}"))).collect();
        let (removed, rest) = ahead.split_at(40);
        let (moved, replaced) = (&rest[..40], &rest[40..80]);
        // The attributes of each of these files are known and believed when its entry goes to the kernel.
        let mut held = Vec::new();
        let mut hold = |n: usize| held.push(File::open(path(n)).unwrap());
        for n in removed {
            hold(*n);
            fs::remove_file(path(*n)).unwrap();
        }
        fs::remove_dir(setting.at("name-x")).unwrap();
        for (number, n) in moved.iter().enumerate() {
            fs::rename(path(*n), setting.at(format!("moved-{number}"))).unwrap();
            drop(File::open(setting.at(format!("moved-{number}"))).unwrap());
        }
        for n in replaced {
            hold(*n);
            fs::write(setting.at("new"), b"newer").unwrap();
            fs::rename(setting.at("new"), path(*n)).unwrap();
        }
        held.iter().for_each(|file| assert_eq!(file.metadata().unwrap().len(), 3));
        // A lookup of a name there makes the kernel ask for attributes with the next entries.
        let mut more = true;
        while more {
            let _ = fs::symlink_metadata(setting.at(&told[told.len() - 1]));
            more = listing
                .next()
                .map(|entry| {
                    told.push(entry.unwrap().file_name().to_string_lossy().into_owned());
                })
                .is_some();
        }
        for n in removed.iter().chain(moved) {
            let found = fs::symlink_metadata(path(*n)).map(|known| known.ino());
            assert!(found.is_err(), "{of}: name-{n} is back");
        }
        assert!(fs::symlink_metadata(setting.at("name-x")).is_err(), "{of}");
        for n in replaced {
            assert_eq!(fs::symlink_metadata(path(*n)).unwrap().len(), 5, "{of}: name-{n} is what it was");
        }
    });
}

/// Ends another thread, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs a test over each NFS version, with each of these options.
fn each(options: &[&str], test: impl Fn(&Setting, &str)) {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        for option in options {
            let of = format!("vers={version}&{option}");
            test(&Setting::new(&of), &of);
        }
    }
}

/// Before link(2) sends its request, it checks the rights on the file, and goes on whatever that says. Over
/// version 4, `serve` notices no rename by a process of its own machine.
#[test]
fn a_link_of_a_file_that_others_have_replaced_is_one_of_the_new_file() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new("vers=3&actimeo=1");
    for round in 0..5 {
        let [made, file, twin] = ["made", "file", "twin"].map(|name| format!("{name}{round}"));
        fs::write(setting.at(&made), b"old").unwrap();
        fs::rename(setting.at(&made), setting.at(&file)).unwrap();
        let other = setting.there("other");
        fs::write(&other, b"new").unwrap();
        fs::rename(&other, setting.there(&file)).unwrap();
        fs::hard_link(setting.at(&file), setting.at(&twin)).unwrap();
        assert_eq!(fs::read(setting.there(&twin)).unwrap(), b"new", "round {round}");
    }
}
