//! Close-to-open, with two mounts and another client of the server, all with warm caches. A reader that
//! opens a file after a writer has closed it reads the written data, with `read` and through a map. That
//! holds whatever pages the kernel has cached or mapped.
//!
//! The players and the checker are those of the lab. Each mount is a seat, and the third seat is a client
//! without a cache.
//!
//! Promise: opens-through-a-mount

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use lab::{CloseToOpen, Hand, Rng, Seat};

use crate::setting::{Setting, VERSIONS, may_mount};

/// Reads each file through a new map, and keeps the last maps and descriptors, so that the kernel's pages
/// stay in use. Needs python3.
const MAPPER: &str = "import mmap,os,sys,hashlib\n\
    kept=[]\n\
    for line in sys.stdin:\n\
    \x20   f=os.open(line.rstrip('\\n'),os.O_RDONLY)\n\
    \x20   m=mmap.mmap(f,0,prot=mmap.PROT_READ)\n\
    \x20   print(hashlib.md5(m).hexdigest(),flush=True)\n\
    \x20   kept=kept[-7:]+[(f,m)] if f%2 else kept\n\
    \x20   (f,m) in kept or os.close(f)\n";

struct Mapper {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Mapper {
    fn start() -> Option<Mapper> {
        let mut python = Command::new("python3");
        python.arg("-c").arg(MAPPER).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = python.spawn() else {
            eprintln!("skipped: there is no python3 to map with");
            return None;
        };
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Some(Mapper { child, to, from })
    }

    /// The checksum of a file that is opened and mapped now.
    fn sum(&mut self, path: &Path) -> String {
        writeln!(self.to, "{}", path.display()).unwrap();
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// Promise: fsync-and-close
#[test]
fn two_mounts_and_a_client_keep_close_to_open() {
    if !may_mount() {
        return;
    }
    for (one, other) in [("3", "3"), ("4.2", "4.2"), ("3", "4.2")] {
        eprintln!("versions {one} and {other}");
        let mut setting = Setting::new();
        // With timeouts longer than the test, only opens reveal changes.
        setting.mount("a", &format!("vers={one},actimeo=3600"));
        setting.mount("b", &format!("vers={other},actimeo=3600"));
        setting.mount("direct", "vers=3,noac,nocto");
        let seat = |name: &str| Seat::new(name, Hand::on_host(), setting.at(name, ""));
        let mut seats = ["a", "b", "direct"].map(seat);
        let checker = CloseToOpen { rounds: 150, ..CloseToOpen::default() };
        let reads = checker.run(&mut seats, &mut Rng::from_environment());
        assert!(reads > 100, "{reads}");
    }
}

#[test]
fn who_maps_a_file_after_the_open_sees_what_the_last_writer_left() {
    if !may_mount() {
        return;
    }
    for version in ["3", "4.2"] {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version},actimeo=3600"));
        setting.mount("b", &format!("vers={version},actimeo=3600"));
        let Some(mut mapper) = Mapper::start() else { return };
        let mut rng = Rng::from_environment();
        for round in 0..80 {
            let name = format!("file-{}", rng.below(3));
            let size = [4096, 10_007, 300_000][rng.below(3)];
            let content: Vec<u8> = (0..size).map(|at| (at / 7 + round * 31) as u8).collect();
            let (writer, reader) = [("a", "b"), ("b", "a")][rng.below(2)];
            // Wait for more than the granularity of the server's timestamps.
            std::thread::sleep(std::time::Duration::from_millis(11));
            fs::write(setting.at(writer, &name), &content).unwrap();
            let wanted = mapper.sum(&place(&setting, &content));
            for seat in [reader, writer] {
                let found = mapper.sum(&setting.at(seat, &name));
                assert_eq!(found, wanted, "version {version}, round {round}: {name} on {seat}");
            }
        }
    }
}

/// The kernel knows both names and trusts them as long as the timeouts or a lease allow.
// Promise: opens-beside-renames
#[test]
fn of_a_file_with_two_names_each_is_opened_for_itself_under_leases_too() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version},actimeo=3600"));
        setting.mount("b", &format!("vers={version},actimeo=3600"));
        fs::write(setting.at("b", "one"), b"old").unwrap();
        fs::hard_link(setting.at("b", "one"), setting.at("b", "two")).unwrap();
        for name in ["one", "two"] {
            assert_eq!(fs::read(setting.at("a", name)).unwrap(), b"old");
        }
        fs::write(setting.at("b", "new"), b"new content").unwrap();
        fs::rename(setting.at("b", "new"), setting.at("b", "one")).unwrap();
        assert_eq!(fs::read(setting.at("a", "one")).unwrap(), b"new content", "version {version}");
        assert_eq!(fs::read(setting.at("a", "two")).unwrap(), b"old", "version {version}");
    }
}

/// Writes the same content to a local file.
fn place(setting: &Setting, content: &[u8]) -> std::path::PathBuf {
    let path = setting.place("wanted");
    fs::write(&path, content).unwrap();
    path
}
