//! The issues that Sun's paper called hard, and those that Unix has added since.
//!
//! Promise: unix-semantics

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, FlockOperation, RenameFlags, SeekFrom};

use crate::files::wait_until;
use crate::setting::{Setting, VERSIONS, may_mount};

fn each(test: impl Fn(&Setting, &str)) {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        eprintln!("version {version}");
        test(&Setting::new(&format!("vers={version}")), version);
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

#[test]
fn names_are_bytes() {
    each(|setting, _| {
        let name = OsStr::from_bytes(b"caf\xe9 \x01\xff");
        fs::write(setting.at(name), b"x").unwrap();
        assert!(setting.there(name).exists());
        let listed = fs::read_dir(setting.mnt()).unwrap().next().unwrap().unwrap().file_name();
        assert_eq!(listed, name);
        let long = "n".repeat(256);
        assert_eq!(fs::write(setting.at(&long), b"").unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
        fs::write(setting.at(&long[..255]), b"").unwrap();
    });
}

#[test]
fn every_kind_of_file_is_made_and_told() {
    each(|setting, _| {
        std::os::unix::fs::symlink("to nowhere", setting.at("link")).unwrap();
        assert_eq!(fs::read_link(setting.at("link")).unwrap(), Path::new("to nowhere"));
        std::os::unix::net::UnixListener::bind(setting.at("socket")).unwrap();
        assert!(fs::symlink_metadata(setting.at("socket")).unwrap().file_type().is_socket());
        for (name, kind, device) in
            [("pipe", libc::S_IFIFO, 0), ("char", libc::S_IFCHR, 0x0103), ("block", libc::S_IFBLK, 0x0801)]
        {
            let kind = rustix::fs::FileType::from_raw_mode(kind);
            rustix::fs::mknodat(rustix::fs::CWD, setting.at(name), kind, 0o600.into(), device).unwrap();
            let (here, there) =
                (setting.at(name).metadata().unwrap(), setting.there(name).metadata().unwrap());
            assert_eq!((here.mode(), here.rdev()), (there.mode(), there.rdev()), "{name}");
        }
        fs::write(setting.at("a"), b"x").unwrap();
        fs::hard_link(setting.at("a"), setting.at("b")).unwrap();
        assert_eq!(setting.at("a").metadata().unwrap().nlink(), 2);
        fs::remove_file(setting.at("a")).unwrap();
        assert_eq!(setting.at("b").metadata().unwrap().nlink(), 1);
    });
}

#[test]
fn rename_keeps_to_its_flags() {
    each(|setting, _| {
        let rename = |from: &str, to: &str, flags| {
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                setting.at(from),
                rustix::fs::CWD,
                setting.at(to),
                flags,
            )
        };
        fs::write(setting.at("a"), b"a").unwrap();
        fs::write(setting.at("b"), b"b").unwrap();
        assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
        rename("a", "c", RenameFlags::NOREPLACE).unwrap();
        assert_eq!(fs::read(setting.there("c")).unwrap(), b"a");
        assert!(!setting.there("a").exists() && !setting.at("a").exists());
        assert_eq!(rename("b", "c", RenameFlags::EXCHANGE), Err(rustix::io::Errno::INVAL));
        rename("b", "c", RenameFlags::empty()).unwrap();
        assert_eq!(fs::read(setting.at("c")).unwrap(), b"b");
        fs::create_dir(setting.at("d")).unwrap();
        fs::write(setting.at("d/f"), b"f").unwrap();
        fs::rename(setting.at("d"), setting.at("e")).unwrap();
        assert_eq!(fs::read(setting.at("e/f")).unwrap(), b"f");
        // Directories, also if another client has created the target and the kernel does not know it yet.
        for there in ["empty", "full"] {
            assert!(!setting.at(there).exists());
            fs::create_dir(setting.there(there)).unwrap();
        }
        fs::write(setting.there("full/x"), b"").unwrap();
        for taken in ["empty", "full", "c"] {
            assert_eq!(rename("e", taken, RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST), "{taken}");
        }
        assert!(setting.there("empty").is_dir() && setting.there("full/x").exists());
        rename("e", "g", RenameFlags::NOREPLACE).unwrap();
        assert_eq!(fs::read(setting.at("g/f")).unwrap(), b"f");
        assert!(!setting.at("e").exists() && !setting.there("e").exists());
    });
}

#[test]
fn mapped_pages_are_the_file() {
    each(|setting, _| {
        let text = vec![b'.'; 3 * 4096];
        fs::write(setting.at("file"), &text).unwrap();
        let script = "import mmap,os,sys\n\
            f=os.open(sys.argv[1],os.O_RDWR)\n\
            m=mmap.mmap(f,0)\n\
            p=mmap.mmap(f,0,flags=mmap.MAP_PRIVATE)\n\
            p[0:3]=b'not'\n\
            m[5000:5005]=b'hello'\n\
            assert os.pread(f,5,5000)==b'hello'\n\
            os.pwrite(f,b'there',100)\n\
            assert m[100:105]==b'there'\n\
            m.flush()\n";
        let python = Command::new("python3").arg("-c").arg(script).arg(setting.at("file")).status();
        let Ok(python) = python else {
            eprintln!("skipped: there is no python3 to map with");
            return;
        };
        assert!(python.success());
        let there = fs::read(setting.there("file")).unwrap();
        assert_eq!(
            (&there[..3], &there[100..105], &there[5000..5005]),
            (&b"..."[..], &b"there"[..], &b"hello"[..])
        );
    });
}

#[test]
fn sparse_files_and_space() {
    each(|setting, version| {
        let file = open(&setting.at("file"));
        file.write_all_at(b"data", 1 << 20).unwrap();
        let data = rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap();
        let punched = rustix::fs::fallocate(
            &file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            1 << 20,
            4096,
        );
        if version == "3" {
            assert_eq!(data, 0, "the protocol has no holes: all is data");
            assert_eq!(punched, Err(rustix::io::Errno::OPNOTSUPP));
            return;
        }
        assert_eq!(data, 1 << 20);
        punched.unwrap();
        let mut bytes = [1; 4];
        file.read_exact_at(&mut bytes, 1 << 20).unwrap();
        assert_eq!(bytes, [0; 4]);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 2 << 20, 4096).unwrap();
        assert_eq!(file.metadata().unwrap().len(), (2 << 20) + 4096);
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(3 << 20)), Err(rustix::io::Errno::NXIO));
    });
}

#[test]
fn copies_are_made_at_the_server_or_here() {
    each(|setting, _| {
        let text: Vec<u8> = (0..100_000u32).map(|n| (n % 241) as u8).collect();
        fs::write(setting.at("from"), &text).unwrap();
        // std copies with copy_file_range where the kernel has it.
        assert_eq!(fs::copy(setting.at("from"), setting.at("to")).unwrap(), 100_000);
        assert_eq!(fs::read(setting.at("to")).unwrap(), text);
        // A copy of cached bytes is a write: it reaches the server with fsync, if not before.
        File::open(setting.at("to")).unwrap().sync_all().unwrap();
        assert_eq!(fs::read(setting.there("to")).unwrap(), text);
    });
}

#[test]
fn extended_attributes_are_the_origins() {
    each(|setting, version| {
        fs::write(setting.at("file"), b"").unwrap();
        let path = setting.at("file");
        let set = rustix::fs::setxattr(&path, "user.colour", b"blue", rustix::fs::XattrFlags::CREATE);
        if version == "3" {
            assert_eq!(set, Err(rustix::io::Errno::OPNOTSUPP));
            return;
        }
        set.unwrap();
        let again = rustix::fs::setxattr(&path, "user.colour", b"red", rustix::fs::XattrFlags::CREATE);
        assert_eq!(again, Err(rustix::io::Errno::EXIST));
        let mut value = [0; 64];
        let length = rustix::fs::getxattr(&path, "user.colour", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"blue");
        let length = rustix::fs::listxattr(&path, &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"user.colour\0");
        rustix::fs::removexattr(&path, "user.colour").unwrap();
        assert_eq!(
            rustix::fs::getxattr(&path, "user.colour", &mut value[..]),
            Err(rustix::io::Errno::NODATA)
        );
    });
}

// Promise: rights-at-the-open
#[test]
fn rights_are_those_of_the_opener_with_all_its_groups() {
    each(|setting, _| {
        fs::write(setting.at("secret"), b"for group 4242").unwrap();
        std::os::unix::fs::chown(setting.at("secret"), Some(0), Some(4242)).unwrap();
        fs::set_permissions(setting.at("secret"), fs::Permissions::from_mode(0o640)).unwrap();
        let path: Vec<_> = setting.mnt().ancestors().map(Path::to_owned).collect();
        path.iter()
            .take(2)
            .for_each(|part| fs::set_permissions(part, fs::Permissions::from_mode(0o755)).unwrap());
        let cat = |groups: &[u32]| {
            let mut command = Command::new("setpriv");
            let list = groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            command.args(["--reuid", "4343", "--regid", "4343"]);
            match groups {
                [] => command.arg("--clear-groups"),
                _ => command.args(["--groups", &list]),
            };
            command.arg("cat").arg(setting.at("secret")).stderr(Stdio::null()).output().unwrap()
        };
        assert!(!cat(&[]).status.success());
        assert_eq!(cat(&[4242]).stdout, b"for group 4242");
        assert!(!cat(&[7]).status.success(), "what one was told is not for another");
        // A user may run a program without the right to read it.
        fs::copy("/bin/true", setting.at("program")).unwrap();
        fs::set_permissions(setting.at("program"), fs::Permissions::from_mode(0o711)).unwrap();
        let other = |program: &str| {
            let mut command = Command::new(program);
            command
                .uid(4343)
                .gid(4343)
                .arg(setting.at("program"))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        assert!(other(setting.at("program").to_str().unwrap()) && !other("cat"));
        // The set-id bits are cleared when another user writes.
        fs::set_permissions(setting.at("secret"), fs::Permissions::from_mode(0o6777)).unwrap();
        let write = Command::new("sh")
            .arg("-c")
            .arg("echo x >> \"$0\"")
            .arg(setting.at("secret"))
            .uid(4343)
            .gid(4343)
            .status();
        assert!(write.unwrap().success());
        assert_eq!(setting.at("secret").metadata().unwrap().mode() & 0o7777, 0o777);
    });
}

#[test]
fn locks_exclude_and_are_given_up() {
    each(|setting, version| {
        let (a, b) = (open(&setting.at("file")), open(&setting.at("file")));
        rustix::fs::flock(&a, FlockOperation::NonBlockingLockExclusive).unwrap();
        let other = rustix::fs::flock(&b, FlockOperation::NonBlockingLockShared);
        assert_eq!(other, Err(rustix::io::Errno::WOULDBLOCK), "version {version}");
        rustix::fs::flock(&a, FlockOperation::Unlock).unwrap();
        rustix::fs::flock(&b, FlockOperation::NonBlockingLockShared).unwrap();
        rustix::fs::flock(&a, FlockOperation::NonBlockingLockShared).unwrap();
        drop(b);
        wait_until(|| rustix::fs::flock(&a, FlockOperation::NonBlockingLockExclusive).is_ok());
        drop(a);
        // Another process waits for the lock, and gets it when it is free.
        let held = open(&setting.at("file"));
        rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
        let mut waiting = Command::new("flock").arg(setting.at("file")).args(["-c", "true"]).spawn().unwrap();
        wait_until(|| is_waiting(waiting.id()));
        drop(held);
        assert!(waiting.wait().unwrap().success());
    });
}

#[test]
fn who_waits_for_a_lock_can_be_killed() {
    each(|setting, _| {
        let held = open(&setting.at("file"));
        rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
        for signal in [libc::SIGKILL, libc::SIGTERM] {
            let mut waiting =
                Command::new("flock").arg(setting.at("file")).args(["-c", "true"]).spawn().unwrap();
            wait_until(|| is_waiting(waiting.id()));
            let pid = rustix::process::Pid::from_child(&waiting);
            let signal = rustix::process::Signal::from_named_raw(signal).unwrap();
            rustix::process::kill_process(pid, signal).unwrap();
            let start = Instant::now();
            assert!(!waiting.wait().unwrap().success());
            assert!(start.elapsed() < Duration::from_secs(5));
        }
        // The killed waiters did not get the lock.
        drop(held);
        let again = open(&setting.at("file"));
        wait_until(|| rustix::fs::flock(&again, FlockOperation::NonBlockingLockExclusive).is_ok());
    });
}

/// Does a process wait in a system call?
fn is_waiting(pid: u32) -> bool {
    let call = fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    call.starts_with(&format!("{} ", libc::SYS_flock))
}

#[test]
fn an_error_of_the_server_is_told() {
    each(|setting, _| {
        let mut file = open(&setting.at("file"));
        file.write_all(b"x").unwrap();
        assert!(file.as_raw_fd() > 0);
        // Under a lease on the file, the server need not notice a removal by a process of its own machine.
        setting.remove_elsewhere("file");
        wait_until(|| {
            File::open(setting.at("file")).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        });
        assert_eq!(fs::remove_dir(setting.at("nothing")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        fs::create_dir(setting.at("d")).unwrap();
        fs::write(setting.at("d/f"), b"").unwrap();
        assert_eq!(fs::remove_dir(setting.at("d")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
        assert_eq!(fs::remove_file(setting.at("d")).unwrap_err().raw_os_error(), Some(libc::EISDIR));
    });
}
