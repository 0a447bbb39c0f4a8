//! Sparse files. A hole at the server is a hole in the cache, costs no READ if the server reports holes, and
//! stays a hole when the file is copied.
//!
//! Promise: holes

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate};

use crate::setting::{Setting, VERSIONS, may_mount, output};

const MIB: u64 = 1 << 20;
/// The size of the sparse file, and the offset of its 64 KiB of data.
const SIZE: u64 = 128 * MIB;
const DATA_AT: u64 = 50 * MIB + 12_345;
static DATA: [u8; 64 << 10] = [7; 64 << 10];

fn make_sparse(path: &Path) {
    let file = File::create(path).unwrap();
    file.write_all_at(&DATA, DATA_AT).unwrap();
    file.set_len(SIZE).unwrap();
}

/// Reads a whole file. Returns its size, and the range that is not zero.
fn scan(path: &Path) -> (u64, Option<(u64, u64)>) {
    let mut file = File::open(path).unwrap();
    let (mut at, mut found, mut bytes) = (0, None, vec![0; 256 << 10]);
    let zeros = bytes.clone();
    loop {
        let read = file.read(&mut bytes).unwrap();
        if read == 0 {
            return (at, found);
        }
        if bytes[..read] != zeros[..read] {
            for (place, _) in bytes[..read].iter().enumerate().filter(|(_, byte)| **byte != 0) {
                let place = at + place as u64;
                found = Some((found.map_or(place, |(first, _)| first), place + 1));
            }
        }
        at += read as u64;
    }
}

/// Disk space that a directory uses, in bytes.
fn used_bytes(directory: &Path) -> u64 {
    let text = output(Command::new("du").arg("--block-size=1").arg("--summarize").arg(directory));
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn holes_cost_no_reads_and_no_space() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        make_sparse(&setting.there("file"));
        setting.mount("a", &format!("vers={version}"));
        let before = used_bytes(&setting.place("cache-a"));
        let data = Some((DATA_AT, DATA_AT + DATA.len() as u64));
        assert_eq!(scan(&setting.at("a", "file")), (SIZE, data));
        assert!(used_bytes(&setting.place("cache-a")) < before + 8 * MIB, "vers={version}");
        let reads = setting.reads("a");
        assert_eq!(scan(&setting.at("a", "file")), (SIZE, data), "warm");
        if version == "4.2" {
            assert!(reads <= 8, "{reads} READs for 64 KiB of data");
            assert_eq!(setting.reads("a"), reads);
        }
        // The next open sees how another client has changed holes and data.
        let there = File::options().write(true).open(setting.there("file")).unwrap();
        there.write_all_at(b"x", 3 * MIB).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&there, punch, DATA_AT - 5, DATA.len() as u64 + 10).unwrap();
        drop(there);
        assert_eq!(scan(&setting.at("a", "file")), (SIZE, Some((3 * MIB, 3 * MIB + 1))));
        // It sees this client's own changes, too.
        let here = File::options().write(true).open(setting.at("a", "file")).unwrap();
        here.write_all_at(b"yy", 100 * MIB).unwrap();
        drop(here);
        assert_eq!(scan(&setting.at("a", "file")), (SIZE, Some((3 * MIB, 100 * MIB + 2))));
        setting.verify("a");
    }
}

#[test]
fn a_copy_of_a_sparse_file_is_sparse() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version}"));
        let (here, copied) = (setting.at("a", "file"), setting.at("a", "copy"));
        make_sparse(&here);
        // Over version 3 holes are not reported, so cp(1) must look for zeros.
        let how = if version == "3" { "--sparse=always" } else { "--sparse=auto" };
        output(Command::new("cp").arg(how).arg(&here).arg(&copied));
        if version != "3" {
            let (from, to) = (File::open(&here).unwrap(), File::create(setting.at("a", "ranged")).unwrap());
            let mut left = SIZE as usize;
            while left > 0 {
                let done = rustix::fs::copy_file_range(&from, None, &to, None, left).unwrap();
                assert!(done > 0);
                left -= done;
            }
        }
        setting.unmount("a");
        setting.assert_idle();
        for name in ["file", "copy", "ranged"] {
            let Ok(metadata) = fs::metadata(setting.there(name)) else { continue };
            assert!(
                metadata.blocks() * 512 < 4 * MIB,
                "vers={version}: {name} uses {} blocks",
                metadata.blocks()
            );
            let data = Some((DATA_AT, DATA_AT + DATA.len() as u64));
            assert_eq!(scan(&setting.there(name)), (SIZE, data), "vers={version}: {name}");
        }
    }
}

/// stat(2) counts space for data that is not sent yet, and does not count space twice.
#[test]
fn writing_where_room_was_allocated_takes_no_more_room() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    setting.mount("a", "vers=4.2");
    let blocks = |path: &Path| fs::metadata(path).unwrap().blocks();
    let file = File::create(setting.at("a", "allocated")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 4095, 2).unwrap();
    let before = blocks(&setting.at("a", "allocated"));
    assert!(before > 0);
    file.write_all_at(b"xx", 4095).unwrap();
    assert_eq!(blocks(&setting.at("a", "allocated")), before);
    let file = File::create(setting.at("a", "sparse")).unwrap();
    file.write_all_at(&DATA, DATA_AT).unwrap();
    let told = blocks(&setting.at("a", "sparse")) * 512;
    assert!((DATA.len() as u64..4 * MIB).contains(&told), "{told} bytes");
}
