//! Programs that once found a bug, call for call.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::AtFlags;

use crate::program::{Access, CELLS, Dir, How, Op, Place, Step};
use crate::random::{READ, Table, mount};
use crate::setting::{Setting, VERSIONS, may_mount};
use crate::sys::Queue;

const WRITE: Access = Access { write: true, ..READ };
const EXCLUSIVE: Access = Access { exclusive: true, ..WRITE };

const A: usize = 0;
const B: usize = 1;

fn file(number: u16) -> Place {
    Place::new(Dir::Top(0), 'f', number)
}

fn alone(seat: usize, op: Op) -> Step {
    Step::Alone(seat, op)
}

/// Makes a file with content.
fn make(seat: usize, place: Place, id: u64) -> Vec<Step> {
    let write = Op::Write { slot: 0, cells: 0..CELLS, how: How::Call, id };
    let ops = [Op::Open { place, access: EXCLUSIVE, slot: 0 }, write, Op::Close { slot: 0 }];
    ops.into_iter().map(|op| alone(seat, op)).collect()
}

/// Reads a whole file.
fn read(seat: usize, place: Place) -> Vec<Step> {
    let read = Op::Read { slot: 1, cells: 0..CELLS, map: false };
    let ops = [Op::Open { place, access: READ, slot: 1 }, read, Op::Close { slot: 1 }];
    ops.into_iter().map(|op| alone(seat, op)).collect()
}

/// Runs a program on two mounts, with every combination of versions.
fn each(program: &[Step]) {
    if !may_mount() {
        return;
    }
    let [three, four] = [("vers=3,actimeo=60", 3), ("vers=4.2,actimeo=60", 4)];
    for (one, other) in [(three, three), (four, four), (three, four), (four, three)] {
        let mut table = Table::new(&[mount("a", one.0, one.1), mount("b", other.0, other.1)], &[0, 1]);
        if let Err(failure) = table.stage.run(program) {
            panic!("{} and {}:\n{}", one.0, other.0, table.stage.tell(&failure));
        }
    }
}

// Promise: negative-entries
#[test]
fn an_absent_name_is_believed_for_a_second_at_most() {
    let mut program = Vec::new();
    // Both clients make files there in turns, so neither gets a lease on the directory.
    for number in 0..4 {
        program.extend(make(A, file(10 + number), 1));
        program.extend(make(B, file(20 + number), 2));
        program.push(alone(A, Op::Look(file(30 + number))));
    }
    program.push(alone(A, Op::Look(file(0))));
    program.extend(make(B, file(0), 3));
    program.push(alone(A, Op::Pause { milliseconds: 1100 }));
    program.extend(read(A, file(0)));
    each(&program);
}

// Promise: lock-files
#[test]
fn the_holder_of_a_lock_file_sees_what_was_there_before_it() {
    let mut program = Vec::new();
    for round in 0..4 {
        let (reference, lock) = (file(round), file(90 + round));
        program.push(alone(B, Op::Look(reference)));
        program.extend(make(A, reference, 1));
        program.push(alone(B, Op::Open { place: lock, access: EXCLUSIVE, slot: 2 }));
        program.push(alone(B, Op::Look(reference)));
        program.extend(read(B, reference));
        program.push(alone(B, Op::Write { slot: 2, cells: 0..3, how: How::Call, id: 2 }));
        program.push(alone(B, Op::Close { slot: 2 }));
        program.push(alone(B, Op::Rename(lock, reference)));
        program.extend(read(A, reference));
    }
    each(&program);
}

// Promise: negative-entries
#[test]
fn every_point_of_coherence_confirms_what_is_absent() {
    let mut program = Vec::new();
    program.extend(make(A, file(1), 1));
    let points: [&[Op]; 5] = [
        &[Op::Open { place: file(1), access: READ, slot: 3 }, Op::Close { slot: 3 }],
        &[Op::Rename(file(1), file(2)), Op::Rename(file(2), file(1))],
        &[Op::Link(file(1), file(3))],
        &[Op::Mkdir(Place::new(Dir::Top(0), 'e', 0))],
        &[Op::List(Dir::Top(0))],
    ];
    for (point, number) in points.into_iter().zip(40..) {
        program.push(alone(B, Op::Look(file(number))));
        program.extend(make(A, file(number), 2));
        program.extend(point.iter().map(|op| alone(B, op.clone())));
        program.push(alone(B, Op::Look(file(number))));
        program.extend(read(B, file(number)));
    }
    each(&program);
}

// Promise: opens-beside-renames
#[test]
fn a_file_that_is_replaced_elsewhere_is_opened() {
    let mut program = Vec::new();
    for round in 0..4 {
        let (from, to) = (file(90 + round), file(round));
        program.extend(make(A, to, 1));
        program.extend(make(B, from, 2));
        // From here on the kernel has both names cached.
        program.push(alone(A, Op::List(Dir::Top(0))));
        program.push(alone(A, Op::Look(from)));
        program.push(alone(A, Op::Look(to)));
        program.push(alone(B, Op::Rename(from, to)));
        program.extend(read(A, to));
    }
    each(&program);
}

/// Linux moves its old name of a directory to the new one, and fails if the old parent is locked.
// Promise: opens-beside-renames
#[test]
fn a_directory_that_is_moved_elsewhere_is_found_by_calls_that_make_names() {
    let mut program = Vec::new();
    for round in 0..12 {
        let (from, to) = (Place::new(Dir::Top(0), 'e', round), Place::new(Dir::Top(1), 'e', round));
        program.push(alone(B, Op::Mkdir(from)));
        program.push(alone(A, Op::List(Dir::Top(0))));
        program.push(alone(A, Op::Look(from)));
        program.push(alone(B, Op::Rename(from, to)));
        // rename(2) locks both directories before it finds the moved one.
        let other = Place::new(Dir::Top(0), 'e', 100 + round);
        program.push(alone(A, if round % 2 == 0 { Op::Mkdir(to) } else { Op::Mkdir(other) }));
        program.push(alone(A, if round % 2 == 0 { Op::Look(to) } else { Op::Rename(other, to) }));
    }
    each(&program);
}

/// Each file has a second name in a directory that another client removes. The first open tells the thread
/// that it met a stale name, so the mount takes the next open for the second walk of a path.
// Promise: removed-open-files
#[test]
fn a_file_is_opened_by_the_name_that_it_keeps() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        for name in ["a", "b"] {
            setting.mount(name, &format!("vers={version},actimeo=60"));
        }
        let files = ["one", "other"].map(|name| (setting.at("a", name), format!("{name}-gone")));
        let mut held = Vec::new();
        for (file, directory) in &files {
            let (directory, elsewhere) = (setting.at("a", directory), setting.at("b", directory));
            fs::create_dir(&directory).unwrap();
            fs::write(file, b"x").unwrap();
            fs::hard_link(file, directory.join("f")).unwrap();
            assert!(fs::metadata(directory.join("f")).is_ok_and(|known| known.nlink() == 2));
            // The kernel knows the directory as long as it is open.
            let open = File::open(&directory).unwrap();
            fs::remove_dir_all(elsewhere).unwrap();
            let end = Instant::now() + PATIENCE;
            while open.metadata().unwrap().nlink() > 0 {
                assert!(Instant::now() < end, "version {version}: the directory is not removed");
                assert!(rustix::fs::statat(&open, "never", AtFlags::empty()).is_err());
            }
            held.push(open);
        }
        // After a second, no call can be on its way through the removed directories.
        std::thread::sleep(Duration::from_millis(1100));
        for (file, _) in &files {
            assert_eq!(fs::read(file).unwrap(), b"x", "version {version}");
        }
    }
}

/// The new content has the same size, and the clock of the server has not ticked. After a write through a
/// map under a lease, the proxy must still return the new content.
// Promise: chained-proxies
#[test]
fn what_is_written_beside_a_proxy_is_read_through_it() {
    if !may_mount() {
        return;
    }
    let (near, far, of) = (A, B, "vers=4.2,actimeo=1");
    let mut program = Vec::new();
    for round in 0..4 {
        let (place, other) = (file(round), file(10 + round));
        program.push(alone(far, Op::Open { place, access: EXCLUSIVE, slot: 2 }));
        program.push(alone(far, Op::Write { slot: 2, cells: 9..16, how: How::Call, id: 1 }));
        program.push(alone(near, Op::Open { place, access: READ, slot: 3 }));
        program.push(alone(far, Op::Close { slot: 2 }));
        program.push(alone(near, Op::Open { place: other, access: EXCLUSIVE, slot: 0 }));
        program.push(alone(near, Op::Close { slot: 0 }));
        program.push(alone(near, Op::Open { place, access: READ, slot: 0 }));
        program.push(alone(near, Op::Close { slot: 0 }));
        program.push(alone(far, Op::Open { place, access: Access { create: true, ..WRITE }, slot: 1 }));
        program.push(alone(near, Op::Mkdir(Place::new(Dir::Top(0), 's', round))));
        program.push(alone(far, Op::Write { slot: 1, cells: 4..15, how: How::Map, id: 2 }));
        program.push(alone(far, Op::Close { slot: 1 }));
        program.extend(read(near, place));
        program.push(alone(near, Op::Close { slot: 3 }));
    }
    let mut table = Table::new(&[mount("near", of, 4).behind_a_proxy(), mount("far", of, 4)], &[near, far]);
    if let Err(failure) = table.stage.run(&program) {
        panic!("{}", table.stage.tell(&failure));
    }
}

/// How long a mount may take to find out that a directory was removed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The size of a file that the kernel may read by itself.
const BIG: usize = 640 << 10;

/// One process reads a file and another one overwrites it, without any other client. Neither may get ESTALE.
// Promise: opens-beside-renames
#[test]
fn an_open_is_not_told_of_a_handle_that_a_lookup_would_mend() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version}"));
        let path = setting.at("a", "file");
        fs::write(&path, vec![0; BIG]).unwrap();
        let end = Instant::now() + Duration::from_secs(3);
        let opens = AtomicUsize::new(0);
        let failed = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut failed = Vec::new();
                while Instant::now() < end {
                    opens.fetch_add(1, Ordering::Relaxed);
                    failed.extend(fs::read(&path).err());
                }
                failed
            });
            let mut failed = Vec::new();
            for round in 0.. {
                if Instant::now() >= end {
                    break;
                }
                opens.fetch_add(1, Ordering::Relaxed);
                let file = OpenOptions::new().read(true).write(true).open(&path);
                failed.extend(file.and_then(|file| file.write_all_at(&vec![round as u8; BIG], 0)).err());
            }
            failed.extend(reader.join().unwrap());
            failed
        });
        let opens = opens.into_inner();
        assert!(failed.is_empty(), "version {version}: {} of {opens} opens: {:?}", failed.len(), failed[0]);
    }
}

/// Number of writers of one file, and of its readers.
const HANDS: usize = 4;
/// Bytes of one write, which is made in parts.
const REGION: usize = 64 << 10;
const PARTS: usize = 4;
/// The memory alignment that `O_DIRECT` needs on a local file system.
const ALIGNMENT: usize = 4096;

/// The bytes that a writer writes to its region in a round.
fn stamp(writer: usize, round: u32) -> Vec<u8> {
    let word = (round << 4 | writer as u32).to_le_bytes();
    word.into_iter().cycle().take(REGION).collect()
}

/// Asynchronous writes bypass the kernel's page cache while readers fill it. A read after a write must show
/// the data.
// Promise: direct-writes
#[test]
fn what_was_written_asynchronously_and_directly_is_read() {
    if !may_mount() {
        return;
    }
    let mut wrong = Vec::new();
    for version in ["none", "3", "4.2"] {
        let mut setting = Setting::new();
        let mut path = setting.there("file");
        // On the served file system itself, the program must find no fault.
        if version != "none" {
            setting.mount("a", &format!("vers={version}"));
            path = setting.at("a", "file");
        }
        wrong.extend(write_beside_readers(&path).map(|what| format!("version {version}: {what}")));
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Returns a description of the fault, if there was one.
fn write_beside_readers(path: &Path) -> Option<String> {
    fs::write(path, vec![0; HANDS * REGION]).unwrap();
    let over = AtomicBool::new(false);
    let end = Instant::now() + Duration::from_secs(3);
    let told = std::thread::scope(|scope| {
        for _ in 0..HANDS {
            scope.spawn(|| {
                let file = File::open(path).unwrap();
                let mut bytes = vec![0; HANDS * REGION];
                while !over.load(Ordering::Relaxed) {
                    file.read_exact_at(&mut bytes, 0).unwrap();
                }
            });
        }
        let writers: Vec<_> =
            (0..HANDS).map(|writer| scope.spawn(move || write_directly(path, writer, end))).collect();
        let told: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        // End the readers even after a failure.
        over.store(true, Ordering::Relaxed);
        told.into_iter().map(|told| told.unwrap()).collect::<Vec<(usize, u32)>>()
    });
    let found = fs::read(path).unwrap();
    let wanted: Vec<u8> = told.iter().enumerate().flat_map(|(at, (_, rounds))| stamp(at, *rounds)).collect();
    let (stale, writes) = told.iter().fold((0, 0), |sums, (stale, writes)| (sums.0 + stale, sums.1 + writes));
    let stay = found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count();
    let what = format!("{stale} of {writes} reads after a write were stale, {stay} bytes stay so");
    (stale + stay > 0).then_some(what)
}

/// Returns how many reads after a write did not show it, and the number of writes.
fn write_directly(path: &Path, writer: usize, end: Instant) -> (usize, u32) {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(direct).open(path).unwrap();
    let buffered = File::open(path).unwrap();
    let queue = Queue::new(PARTS).unwrap();
    let (mut stale, mut round) = (0, 0);
    let mut found = vec![0; REGION];
    let mut memory = vec![0; REGION + ALIGNMENT];
    let aligned = memory.as_ptr().align_offset(ALIGNMENT);
    while Instant::now() < end {
        round += 1;
        let data = &mut memory[aligned..aligned + REGION];
        data.copy_from_slice(&stamp(writer, round));
        let parts = data.chunks(REGION / PARTS).enumerate();
        let at = |part: usize| (writer * REGION + part * (REGION / PARTS)) as u64;
        let parts: Vec<(u64, &[u8])> = parts.map(|(part, bytes)| (at(part), bytes)).collect();
        queue.write(&file, &parts).unwrap();
        buffered.read_exact_at(&mut found, at(0)).unwrap();
        stale += usize::from(found != data);
    }
    (stale, round)
}
