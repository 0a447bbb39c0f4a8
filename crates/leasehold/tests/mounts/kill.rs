//! Kills a mount and a proxy with `kill -9`, repeatedly, in the middle of everything that programs do.
//!
//! Workers write in order with occasional syncs, append small pieces, work at random, replace files by
//! renaming, unpack an archive, read, and hold removed files. Each worker keeps a model of what it may find
//! afterwards. The test kills the mount, mounts again, and checks:
//!
//! - Synced data is neither missing nor wrong, and unsynced data is at most what a worker wrote.
//! - Over version 4.2 every file is under a write lease: nothing that was answered is missing.
//! - Renamed files are complete.
//! - Files that were warm are still warm, and the cache holds the data that was stored in it.
//!
//! `LAB_SEED` repeats a failure, `LAB_ROUNDS` sets the number of kills.
//!
//! Promise: killed-mounts

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lab::Rng;

use crate::model::Model;
use crate::setting::{Setting, VERSIONS, may_mount, output, wait_until};

const WARM_FILES: usize = 6;
const WARM_BYTES: usize = 300_000;
const COLD_FILES: usize = 40;
const RANDOM_BYTES: usize = 80_000;

/// The state of a worker. Unless `strict`, it may get errors, but only if the end comes soon.
struct Work<'a> {
    directory: PathBuf,
    before: &'a Before,
    rng: Rng,
    ended: &'a AtomicBool,
    /// Every error fails the test, even after the end.
    strict: bool,
    /// Writes last once they are answered, because they are under a lease.
    lasting: bool,
}

/// The content of the files when the work began. It comes from the round before, and is durable where the
/// mount was killed since.
struct Before(HashMap<&'static str, Vec<u8>>);

impl Before {
    fn read(directory: &Path) -> Before {
        let names = ["in-order", "appends", "at-random", "replaced"];
        Before(names.map(|name| (name, fs::read(directory.join(name)).unwrap_or_default())).into())
    }

    /// The model of a file that is not touched yet.
    fn model(&self, name: &str) -> Model {
        let mut model = Model::default();
        model.write(0, &self.0[name]);
        model.synced();
        model
    }

    /// The model of a file that was opened with O_TRUNC. If the open failed, the file may be empty or not.
    fn cut(&self, name: &str, opened: &io::Result<File>) -> Model {
        let mut model = Model::default();
        if opened.is_err() {
            model = self.model(name);
            model.set_len(0);
        }
        model
    }
}

/// What a worker leaves for the check.
enum Left {
    /// A file, and the models one of which it must match.
    File(PathBuf, Vec<Model>),
    /// The original directory, and a directory with parts of its files; with all of them, if true.
    Parts(PathBuf, PathBuf, bool),
}

impl Work<'_> {
    fn goes_on(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    /// Plays rounds until the end. An error fails the test unless the end comes soon.
    fn play(&mut self, mut round: impl FnMut(&mut Rng) -> io::Result<()>) {
        while self.goes_on() {
            if let Err(error) = round(&mut self.rng) {
                assert!(!self.strict, "{error}");
                wait_until(|| !self.goes_on());
            }
        }
    }

    /// Writes chunks one after the other with occasional syncs; at 1 MiB starts again.
    fn in_order(mut self) -> Vec<Left> {
        let lasting = self.lasting;
        let path = self.directory.join("in-order");
        let file = open(&path);
        let mut model = self.before.cut("in-order", &file);
        self.play(|rng| {
            if model.now().len() > 1 << 20 {
                model.set_len(0);
                file.as_ref().map_err(again)?.set_len(0)?;
            }
            let data = bytes(rng, 20_000);
            write(file.as_ref(), &mut model, model_end, &data)?;
            sync_now_and_then(rng, (10, lasting), file.as_ref(), &mut model)
        });
        vec![Left::File(path, vec![model])]
    }

    /// Appends small pieces.
    fn appends(mut self) -> Vec<Left> {
        let lasting = self.lasting;
        let path = self.directory.join("appends");
        let emptied = File::create(&path);
        let mut model = self.before.cut("appends", &emptied);
        let file = emptied.and_then(|_| OpenOptions::new().append(true).open(&path));
        self.play(|rng| {
            let data = bytes(rng, 150);
            model.write(model.now().len(), &data);
            file.as_ref().map_err(again)?.write_all(&data)?;
            sync_now_and_then(rng, (100, lasting), file.as_ref(), &mut model)
        });
        vec![Left::File(path, vec![model])]
    }

    /// Reads, writes, truncates and syncs at random, and checks every read.
    fn at_random(mut self) -> Vec<Left> {
        let lasting = self.lasting;
        let path = self.directory.join("at-random");
        let file = open(&path);
        let mut model = self.before.cut("at-random", &file);
        self.play(|rng| {
            let at = rng.below(RANDOM_BYTES);
            let opened = file.as_ref().map_err(again)?;
            match rng.below(10) {
                0..6 => {
                    let data = bytes(rng, 5000);
                    write(Ok(opened), &mut model, |_| at, &data)?;
                }
                6 => {
                    model.set_len(at);
                    opened.set_len(at as u64)?;
                }
                _ => {
                    let found = read_up_to(opened, at, 5000)?;
                    let wanted = model.now().get(at..).unwrap_or_default();
                    let wanted = &wanted[..wanted.len().min(5000)];
                    assert!(found == wanted, "a read of what is there: {}", difference(&found, wanted));
                }
            }
            sync_now_and_then(rng, (20, lasting), Ok(opened), &mut model)
        });
        vec![Left::File(path, vec![model])]
    }

    /// Writes a new file and renames it over the old one without a sync. Sometimes keeps the file open and
    /// writes on.
    fn replaces(mut self) -> Vec<Left> {
        let (path, beside) = (self.directory.join("replaced"), self.directory.join("beside"));
        let mut versions = vec![self.before.model("replaced")];
        let (start, mut came_through) = (Instant::now(), Vec::new());
        self.play(|rng| {
            let mut model = Model::default();
            let file = OpenOptions::new().write(true).create(true).truncate(true).open(&beside)?;
            for _ in 0..rng.below(4) {
                write(Ok(&file), &mut model, model_end, &bytes(rng, 30_000))?;
            }
            let open = rng.below(2) == 0;
            let file = Some(file).filter(|_| open);
            // The mount makes a file durable before it renames it.
            model.synced();
            versions.push(model);
            fs::rename(&beside, &path)?;
            came_through.push(start.elapsed());
            versions.drain(..versions.len() - 1);
            if let Some(file) = &file {
                write(Ok(file), &mut versions[0], model_end, &bytes(rng, 3000))?;
            }
            Ok(())
        });
        // A stall delays the first rename. The model allows for it, so print the times.
        let longest = came_through.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max();
        eprintln!(
            "{} renames in {:?}, the first after {:?}, the longest between two {longest:?}",
            came_through.len(),
            start.elapsed(),
            came_through.first()
        );
        vec![Left::File(path, versions)]
    }

    /// Unpacks an archive, and syncs every unpacked file.
    fn unpacks(mut self, archive: &Path, original: &Path) -> Vec<Left> {
        let mut left = Vec::new();
        let directory = self.directory.clone();
        self.play(|rng| {
            let into = directory.join(format!("unpacked-{}", rng.next_u64()));
            left.push(Left::Parts(original.to_owned(), into.clone(), false));
            fs::create_dir(&into)?;
            let mut tar = Command::new("tar");
            tar.arg("xf").arg(archive).arg("-C").arg(&into).stderr(Stdio::null());
            if !tar.status()?.success() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            for entry in fs::read_dir(&into)? {
                File::open(entry?.path())?.sync_all()?;
            }
            left.pop();
            left.push(Left::Parts(original.to_owned(), into, true));
            Ok(())
        });
        left
    }

    /// Reads files that are warm, and fetches files that are cold.
    fn reads(mut self) -> Vec<Left> {
        let directory = self.directory.clone();
        self.play(|rng| {
            let (name, size) = match rng.below(2) {
                0 => (format!("warm-{}", rng.below(WARM_FILES)), WARM_BYTES),
                _ => (format!("cold-{}", rng.below(COLD_FILES)), WARM_BYTES / 3),
            };
            let found = fs::read(directory.join(&name))?;
            assert!(found == content(&name, size), "{name}");
            Ok(())
        });
        Vec::new()
    }

    /// Holds removed files open, and writes and reads them.
    fn removes(mut self) -> Vec<Left> {
        let path = self.directory.join("removed");
        self.play(|rng| {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
            let data = bytes(rng, 10_000);
            file.write_all_at(&data, 0)?;
            fs::remove_file(&path)?;
            file.write_all_at(&data, data.len() as u64)?;
            let mut found = vec![0; 2 * data.len()];
            file.read_exact_at(&mut found, 0)?;
            assert!(found == [&data[..], &data].concat(), "a removed file");
            Ok(())
        });
        Vec::new()
    }
}

/// Dropping the value signals the end.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)
}

/// Repeats the error of the failed open.
fn again(error: &io::Error) -> io::Error {
    error.kind().into()
}

fn model_end(model: &Model) -> usize {
    model.now().len()
}

fn bytes(rng: &mut Rng, most: usize) -> Vec<u8> {
    let (count, first) = (1 + rng.below(most), rng.next_u64());
    (0..count as u64).map(|at| (first.wrapping_add(at.wrapping_mul(0x9e37_79b9)) >> 8) as u8 | 1).collect()
}

fn write(
    file: Result<&File, &io::Error>,
    model: &mut Model,
    at: impl FnOnce(&Model) -> usize,
    data: &[u8],
) -> io::Result<()> {
    let at = at(model);
    model.write(at, data);
    file.map_err(again)?.write_all_at(data, at as u64)
}

/// Reads to the end of the file. If the mount dies in between, a kernel returns the bytes that it has, and
/// the error later.
fn read_up_to(file: &File, at: usize, most: usize) -> io::Result<Vec<u8>> {
    let mut found = vec![0; most];
    let mut count = 0;
    while count < most {
        match file.read_at(&mut found[count..], (at + count) as u64)? {
            0 => break,
            more => count += more,
        }
    }
    found.truncate(count);
    Ok(found)
}

/// Describes the first difference of two contents.
fn difference(found: &[u8], wanted: &[u8]) -> String {
    let first = found.iter().zip(wanted).position(|(a, b)| a != b);
    format!("{} bytes and not {}, the first other one: {first:?}", found.len(), wanted.len())
}

/// Syncs once in so many times. An answered write under a lease lasts without it.
fn sync_now_and_then(
    rng: &mut Rng,
    (once_in, lasting): (usize, bool),
    file: Result<&File, &io::Error>,
    model: &mut Model,
) -> io::Result<()> {
    let syncs = rng.below(once_in) == 0;
    if syncs {
        file.map_err(again)?.sync_all()?;
    }
    if syncs || lasting {
        model.synced();
    }
    Ok(())
}

/// The content of a file that no worker writes.
fn content(name: &str, size: usize) -> Vec<u8> {
    name.bytes().cycle().zip(0u32..).map(|(byte, at)| byte ^ (at / 977) as u8).take(size).collect()
}

/// Makes the files to read, and an archive.
fn provide(setting: &Setting) -> (PathBuf, PathBuf) {
    for (kind, count, size) in [("warm", WARM_FILES, WARM_BYTES), ("cold", COLD_FILES, WARM_BYTES / 3)] {
        for number in 0..count {
            let name = format!("{kind}-{number}");
            fs::write(setting.there(&name), content(&name, size)).unwrap();
        }
    }
    let (original, archive) = (setting.place("original"), setting.place("archive.tar"));
    fs::create_dir(&original).unwrap();
    for number in 0..60 {
        let name = format!("member-{number}");
        fs::write(original.join(&name), content(&name, 37 + number * 997)).unwrap();
    }
    output(Command::new("tar").arg("cf").arg(&archive).arg("-C").arg(&original).arg("."));
    (original, archive)
}

/// Runs all workers at the same time until `blow` has struck.
fn work(
    setting: &mut Setting,
    rng: &mut Rng,
    (original, archive): (&Path, &Path),
    (strict, lasting): (bool, bool),
    blow: impl FnOnce(&mut Setting),
) -> Vec<Left> {
    let ended = AtomicBool::new(false);
    let directory = setting.at("a", "");
    let before = Before::read(&directory);
    let mut with = || {
        let rng = Rng::new(rng.next_u64());
        Work { directory: directory.clone(), before: &before, rng, ended: &ended, strict, lasting }
    };
    let works: [_; 7] = std::array::from_fn(|_| with());
    let [in_order, appends, at_random, replaces, unpacks, reads, removes] = works;
    std::thread::scope(|scope| {
        let workers = [
            scope.spawn(move || in_order.in_order()),
            scope.spawn(move || appends.appends()),
            scope.spawn(move || at_random.at_random()),
            scope.spawn(move || replaces.replaces()),
            scope.spawn(move || unpacks.unpacks(archive, original)),
            scope.spawn(move || reads.reads()),
            scope.spawn(move || removes.removes()),
        ];
        // Dropping this ends the workers even if the blow panics.
        let over = Over(&ended);
        std::thread::sleep(Duration::from_millis(300 + rng.below(700) as u64));
        blow(setting);
        drop(over);
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    })
}

/// Compares the files with what they may hold. With `all`, nothing may be lost: the files must be as the
/// programs last saw them.
#[track_caller]
fn check(left: &[Left], from: &Path, to: &Path, all: bool) {
    let moved = |path: &Path| to.join(path.strip_prefix(from).unwrap());
    for left in left {
        match left {
            Left::File(path, models) => {
                let found = fs::read(moved(path)).unwrap_or_default();
                if all {
                    assert!(
                        found == models.last().unwrap().now(),
                        "{} is not what was written",
                        path.display()
                    );
                    continue;
                }
                let checked: Vec<_> = models.iter().map(|model| model.check(&found)).collect();
                assert!(checked.iter().any(Result::is_ok), "{}: {checked:?}", path.display());
            }
            Left::Parts(original, path, complete) => check_parts(original, &moved(path), *complete || all),
        }
    }
}

#[track_caller]
fn check_parts(original: &Path, path: &Path, complete: bool) {
    let names = |directory: &Path| -> Vec<_> {
        let entries = fs::read_dir(directory).into_iter().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let found = names(path);
    assert!(!complete || found == names(original), "{}: {found:?}", path.display());
    for name in found {
        let (wanted, found) = (fs::read(original.join(&name)).unwrap(), fs::read(path.join(&name)).unwrap());
        let may = found.len() <= wanted.len() && found.iter().zip(&wanted).all(|(a, b)| a == b || *a == 0);
        assert!(if complete { found == wanted } else { may }, "{}", path.join(name).display());
    }
}

/// Reads the warm files, and returns the number of READs that the server got.
fn read_warm(setting: &Setting) -> u64 {
    let before = setting.reads("a");
    for number in 0..WARM_FILES {
        let name = format!("warm-{number}");
        assert!(fs::read(setting.at("a", &name)).unwrap() == content(&name, WARM_BYTES), "{name}");
    }
    setting.reads("a") - before
}

fn rounds() -> usize {
    std::env::var("LAB_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

#[test]
fn a_mount_that_is_killed_loses_nothing_that_was_synced_and_stays_warm() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut rng = Rng::from_environment();
        let mut setting = Setting::new();
        let (original, archive) = provide(&setting);
        let options = format!("vers={version},nofill");
        setting.mount("a", &options);
        wait_until(|| read_warm(&setting) == 0);
        for round in 0..rounds() {
            eprintln!("version {version}, round {round}");
            let kill = |setting: &mut Setting| setting.kill("a");
            let left = work(&mut setting, &mut rng, (&original, &archive), (false, version != "3"), kill);
            setting.mount("a", &options);
            assert_eq!(read_warm(&setting), 0, "READs for what was warm");
            let mnt = setting.at("a", "");
            check(&left, &mnt, &mnt, false);
            wait_until(|| !fs::read_dir(&mnt).unwrap().any(|entry| is_silly(&entry.unwrap())));
            for entry in fs::read_dir(&mnt).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    fs::remove_dir_all(entry.path()).unwrap();
                }
            }
        }
        // The server has the content that the mount shows.
        setting.unmount("a");
        setting.verify("a");
    }
}

fn is_silly(entry: &fs::DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(b".nfs")
}

#[test]
fn a_mount_goes_on_through_kills_of_the_proxy_before_it_and_loses_nothing() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut rng = Rng::from_environment();
        let mut setting = Setting::new();
        let (original, archive) = provide(&setting);
        let mut proxy = setting.proxy("127.0.0.1:0").start();
        let address = proxy.address.clone();
        setting.mount_from(&address, "a", &format!("vers={version},timeo=20"));
        for round in 0..rounds() {
            eprintln!("version {version}, round {round}");
            let next = setting.proxy(&address);
            let left = work(&mut setting, &mut rng, (&original, &archive), (true, false), |_| {
                proxy.kill();
                proxy = next.start();
            });
            let mnt = setting.at("a", "");
            check(&left, &mnt, &mnt, true);
            if round + 1 < rounds() {
                continue;
            }
            setting.unmount("a");
            check(&left, &mnt, &setting.there(""), true);
        }
        proxy.kill();
        setting.verify("a");
        setting.verify("proxy");
    }
}
