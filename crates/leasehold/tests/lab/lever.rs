//! Lever's table (2001, *Simple Benchmark*) at small scale. The same build, of 24 modules and 217 headers,
//! runs on the kernel's client and on `leasehold mount`. The test compares the calls of both to the same
//! origin over version 3.
//!
//! The paper's point: an open costs one GETATTR, and each name is looked up once. An assembler writes an
//! object file in pieces with gaps. Still it costs one WRITE and is not read again.

use std::path::Path;
use std::process::Command;

use lab::{CallCounts, Lab, Link, V3, suite};

use crate::mounted::Mounted;
use crate::stack;

/// Builds, builds again with nothing to do, and rebuilds everything.
const BUILD: &str = "make -s >/dev/null && make -s >/dev/null && make -s clean && make -s >/dev/null
    [ $(./program) = $(cat ANSWER) ]";

/// Attributes stay valid for longer than any build takes. Otherwise a busy machine would add GETATTRs to
/// those of the opens.
const TIMEOUT: &str = "actimeo=3600";

/// The rows of the table with the procedures that they count. No row may exceed the kernel's.
const ROWS: [(&str, &[&str]); 8] = [
    ("LOOKUP", &["LOOKUP"]),
    ("GETATTR", &["GETATTR"]),
    ("ACCESS", &["ACCESS"]),
    ("READ", &["READ"]),
    ("WRITE and COMMIT", &["WRITE", "COMMIT"]),
    ("CREATE", &["CREATE"]),
    ("SETATTR", &["SETATTR"]),
    ("READDIR", &["READDIR", "READDIRPLUS"]),
];

fn row(calls: &CallCounts, procedures: &[&str]) -> u64 {
    procedures.iter().map(|procedure| calls.of(procedure)).sum()
}

/// Makes a tree at the origin for one client.
fn provide(served: &Path, name: &str) {
    suite::tree::generate(&served.join(name), suite::tree::Size::Large).unwrap();
}

#[test]
fn a_build_on_a_mount_costs_fewer_calls_of_each_kind_than_on_the_kernels_client() {
    let Some(lab) = Lab::enter("lever") else { return };
    let served = lab.subdirectory("served");
    ["kernel", "mount"].iter().for_each(|name| provide(&served, name));
    let serve = stack::serve(&lab, &served);
    let links = [(); 2].map(|()| Link::to(&lab, &serve.origin()));
    let guest = lab.guest("kernel");
    guest.mount_nfs(&links[0].origin(), "/mnt/nfs", &format!("{V3},{TIMEOUT}"));
    let before = links[0].nfs3_calls();
    let built = guest.run(&format!("cd /mnt/nfs/kernel; {BUILD}; cd /; sync -f /mnt/nfs"));
    assert!(built.ok(), "{}", built.tail());
    let kernel = links[0].nfs3_calls().since(&before);
    let mounted = Mounted::new(&lab, &links[1].origin(), "cache", &format!("vers=3,prefetch=0,{TIMEOUT}"));
    let before = links[1].nfs3_calls();
    let built = Command::new("sh").args(["-ec", BUILD]).current_dir(mounted.at().join("mount")).status();
    assert!(built.unwrap().success());
    let mount = links[1].nfs3_calls().since(&before);
    let opens = ["opens_ordinary", "opens_passthrough"]
        .map(|kind| mounted.status()["kernel"][kind].as_u64().unwrap())
        .iter()
        .sum::<u64>();
    eprintln!("lab: lever: kernel: {kernel} ({})", kernel.total());
    eprintln!("lab: lever: mount: {mount} ({}), {opens} opens", mount.total());
    mounted.unmount();
    let names = names_below(&served.join("mount"));
    eprintln!("lab: lever: {names} names there");
    for (name, procedures) in ROWS {
        let (ours, theirs) = (row(&mount, procedures), row(&kernel, procedures));
        assert!(ours <= theirs, "{name}: {ours} by the mount, {theirs} by the kernel's client");
    }
    assert!(mount.of("GETATTR") <= opens, "at most one for each open");
    assert!(mount.of("LOOKUP") <= names, "names are looked up once");
}

/// The number of files and directories below a directory.
fn names_below(directory: &Path) -> u64 {
    let below = |entry: std::fs::DirEntry| {
        let is_dir = entry.file_type().unwrap().is_dir();
        1 + if is_dir { names_below(&entry.path()) } else { 0 }
    };
    std::fs::read_dir(directory).unwrap().map(|entry| below(entry.unwrap())).sum()
}
