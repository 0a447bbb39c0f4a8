//! Unix semantics where delayed writes and caches could show. Files are truncated, renamed, linked, copied,
//! punched and removed while some of their data is only in memory, and rights change under an open file.
//! Each result is compared with the server's content afterwards.
//!
//! Promise: unix-semantics

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;

use rustix::fs::{FallocateFlags, RenameFlags, SeekFrom, Timestamps};
use rustix::io::Errno;

use crate::setting::{Setting, VERSIONS, may_mount, wait_until};

/// Runs a test over each version, on a mount called `a`.
fn each(test: impl Fn(&mut Setting, &str)) {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        eprintln!("version {version}");
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version}"));
        test(&mut setting, version);
    }
}

fn open(setting: &Setting, name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.open(setting.at("a", name)).unwrap()
}

fn part(file: &File, at: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let found = file.read_at(&mut bytes, at).unwrap();
    bytes.truncate(found);
    bytes
}

#[test]
fn an_open_that_cuts_cuts_what_others_have_in_memory() {
    each(|setting, _| {
        let writer = open(setting, "file");
        writer.write_all_at(&[b'Z'; 5000], 0).unwrap();
        let path = setting.at("a", "file");
        let cutter = OpenOptions::new().read(true).write(true).truncate(true).open(&path).unwrap();
        assert_eq!((writer.metadata().unwrap().len(), part(&writer, 0, 10)), (0, vec![]));
        writer.write_all_at(b"q", 5000).unwrap();
        assert_eq!((cutter.metadata().unwrap().len(), part(&cutter, 4999, 3)), (5001, b"\0q".to_vec()));
        drop((writer, cutter));
        let mut wanted = vec![0; 5001];
        wanted[5000] = b'q';
        assert_eq!(fs::read(setting.there("file")).unwrap(), wanted);
        let exclusive = OpenOptions::new().write(true).create_new(true).open(&path);
        assert_eq!(exclusive.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
        std::os::unix::fs::symlink("nowhere", setting.at("a", "link")).unwrap();
        let link = OpenOptions::new().write(true).create_new(true).open(setting.at("a", "link"));
        assert_eq!(link.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
        fs::write(setting.at("a", "link"), b"through it").unwrap();
        assert_eq!(fs::read(setting.there("nowhere")).unwrap(), b"through it");
    });
}

// Promise: rights-at-the-open
#[test]
fn who_made_or_opened_a_file_may_write_it_whatever_its_mode_becomes() {
    each(|setting, _| {
        for mode in [0o444, 0] {
            let name = format!("mode-{mode:o}");
            let path = setting.at("a", &name);
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create_new(true).mode(mode).open(&path).unwrap();
            file.write_all_at(b"hello", 0).unwrap();
            file.sync_all().unwrap();
            assert_eq!(part(&file, 0, 9), b"hello");
            assert_eq!(fs::read(setting.there(&name)).unwrap(), b"hello");
        }
        // Another user takes its own rights away and goes on writing.
        fs::set_permissions(setting.at("a", ""), fs::Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(setting.place(""), fs::Permissions::from_mode(0o755)).unwrap();
        let script =
            "exec 3>$0/own; echo one >&3; chmod 0 $0/own; echo two >&3; exec 3>&-; ! cat $0/own 2>/dev/null";
        let mut shell = Command::new("setpriv");
        shell.args(["--reuid", "4343", "--regid", "4343", "--clear-groups", "sh", "-ec", script]);
        assert!(shell.arg(setting.at("a", "")).status().unwrap().success());
        assert_eq!(fs::read(setting.there("own")).unwrap(), b"one\ntwo\n");
    });
}

/// AUTH_SYS takes sixteen groups to the server.
// Promise: more-than-sixteen-groups
#[test]
fn a_user_with_forty_groups_has_the_rights_of_all_of_them() {
    each(|setting, version| {
        let groups: Vec<u32> = (5001..=5040).collect();
        let list = groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        fs::set_permissions(setting.there(""), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(setting.place(""), fs::Permissions::from_mode(0o755)).unwrap();
        let own = |name: &str, group: u32, mode: u32| {
            std::os::unix::fs::chown(setting.there(name), Some(0), Some(group)).unwrap();
            fs::set_permissions(setting.there(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        let put = |name: &str, group: u32, mode: u32| {
            fs::write(setting.there(name), name).unwrap();
            own(name, group, mode);
        };
        let shell = |script: &str| {
            let mut shell = Command::new("setpriv");
            shell.args(["--reuid", "4343", "--regid", "4343", "--groups", &list, "sh", "-ec", script]);
            let output = shell.arg(setting.at("a", "")).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            if output.status.success() { Ok(output.stdout) } else { Err(error) }
        };
        fs::create_dir(setting.there("dir")).unwrap();
        own("dir", 5039, 0o2770);
        for (name, group) in [("first", 5001), ("last", 5040), ("other", 5041)] {
            put(name, group, 0o640);
        }
        // A user may link a file of another only with the right to write it (fs.protected_hardlinks).
        put("dir/last", 5040, 0o660);
        // The group has fewer rights than others have.
        put("not-for-the-group", 5040, 0o604);
        for _ in 0..2 {
            for name in ["first", "last", "dir/last"] {
                assert_eq!(shell(&format!("cat $0/{name}")), Ok(name.into()), "version {version}");
            }
            for name in ["other", "not-for-the-group"] {
                let refused = shell(&format!("cat $0/{name}")).unwrap_err();
                assert!(refused.contains("Permission denied"), "version {version}: {refused}");
            }
        }
        let made =
            "cd $0/dir; echo new >new; mkdir sub; mv last moved; ln moved linked; rm moved; chgrp 5038 new";
        assert_eq!(shell(made), Ok(vec![]), "version {version}");
        let group = |name: &str| setting.there(name).metadata().unwrap().gid();
        assert_eq!((group("dir/new"), group("dir/sub")), (5038, 5039), "version {version}");
        // Root gives files to another group, of which the calls of the user have not heard.
        let give = |name: &str, group: u32| {
            std::os::unix::fs::chown(setting.at("a", name), None, Some(group)).unwrap();
            fs::set_permissions(setting.at("a", name), fs::Permissions::from_mode(0o660)).unwrap();
        };
        give("other", 5035);
        assert_eq!(shell("cat $0/other; echo more >>$0/other"), Ok("other".into()), "version {version}");
        assert_eq!(fs::read(setting.there("other")).unwrap(), b"othermore\n", "version {version}");
        give("last", 5041);
        assert!(shell("cat $0/last").is_err(), "version {version}");
    });
}

// Promise: set-id-bits
#[test]
fn who_writes_to_or_cuts_a_set_id_file_of_another_takes_the_bits_away() {
    each(|setting, version| {
        fs::set_permissions(setting.at("a", ""), fs::Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(setting.place(""), fs::Permissions::from_mode(0o755)).unwrap();
        let script = "exec 3<>$0; if [ $1 = cut ]; then truncate -s 2 $0; else printf new >&3; fi; \
            stat -L -c %a /proc/self/fd/3 $0";
        for (owner, how) in [(0, "write"), (0, "cut"), (4343, "write"), (4343, "cut")] {
            for mode in [0o4777, 0o2777, 0o6777] {
                let path = setting.at("a", "file");
                fs::write(&path, b"old bytes").unwrap();
                std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                let mut shell = Command::new("setpriv");
                shell.args(["--reuid", "4343", "--regid", "4343", "--clear-groups", "sh", "-ec", script]);
                let output = shell.arg(&path).arg(how).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                let case = format!("version {version}, {how} {mode:o} of {owner}: {said}");
                assert!(output.status.success(), "{case}");
                assert_eq!(String::from_utf8_lossy(&output.stdout), "777\n777\n", "{case}");
                let changed: &[u8] = if how == "cut" { b"ol" } else { b"new bytes" };
                assert_eq!(fs::read(setting.there("file")).unwrap(), changed, "{case}");
                assert_eq!(setting.there("file").metadata().unwrap().mode() & 0o7777, 0o777, "{case}");
                fs::remove_file(&path).unwrap();
            }
        }
    });
}

// Promise: renames-of-unsent-files
#[test]
fn what_is_renamed_or_linked_is_at_the_server_before_its_name_is() {
    each(|setting, version| {
        let rename = |from: &str, to: &str, flags| {
            let here = rustix::fs::CWD;
            rustix::fs::renameat_with(here, setting.at("a", from), here, setting.at("a", to), flags)
        };
        let file = open(setting, "one");
        file.write_all_at(b"written", 0).unwrap();
        fs::rename(setting.at("a", "one"), setting.at("a", "two")).unwrap();
        // A link reads the inode without an open, so no lease is recalled and the mount is not asked to send
        // data.
        assert_eq!(size_there(setting, "two"), 7, "version {version}");
        file.write_all_at(b" more", 7).unwrap();
        rename("two", "three", RenameFlags::NOREPLACE).unwrap();
        assert_eq!(size_there(setting, "three"), 12);
        file.write_all_at(b" and more", 12).unwrap();
        fs::hard_link(setting.at("a", "three"), setting.at("a", "four")).unwrap();
        assert_eq!(size_there(setting, "four"), 21);
        assert_eq!(rename("three", "four", RenameFlags::NOREPLACE), Err(Errno::EXIST));
        // Renaming one name of a file to another name of the same file does nothing.
        fs::rename(setting.at("a", "three"), setting.at("a", "four")).unwrap();
        assert_eq!(setting.at("a", "three").metadata().unwrap().nlink(), 2);
        drop(file);
        assert_eq!(fs::read(setting.there("three")).unwrap(), b"written more and more");
        // One of two names is removed, and the other name shows the new link count.
        fs::write(setting.at("a", "x"), b"").unwrap();
        fs::rename(setting.at("a", "x"), setting.at("a", "y")).unwrap();
        fs::hard_link(setting.at("a", "y"), setting.at("a", "z")).unwrap();
        fs::remove_file(setting.at("a", "y")).unwrap();
        assert_eq!(setting.at("a", "z").metadata().unwrap().nlink(), 1);
    });
}

/// The size of a file on the server. Reading it recalls no lease.
fn size_there(setting: &Setting, name: &str) -> u64 {
    setting.there(name).metadata().unwrap().len()
}

// Promise: removed-unsent-files
#[test]
fn what_is_removed_is_read_while_it_is_open_and_not_sent() {
    each(|setting, _| {
        let file = open(setting, "scratch");
        file.write_all_at(&vec![b'x'; 100_000], 0).unwrap();
        fs::remove_file(setting.at("a", "scratch")).unwrap();
        file.write_all_at(b"more", 100_000).unwrap();
        assert_eq!(part(&file, 99_999, 9), b"xmore");
        assert_eq!(file.metadata().unwrap().nlink(), 0, "links of a file that was removed");
        drop(file);
        wait_until(|| fs::read_dir(setting.there("")).unwrap().next().is_none());
        assert_eq!(setting.upstream("a", "WRITE"), 0, "WRITEs of a file that was removed before its close");
        // A file that still has another name is kept.
        let file = open(setting, "one");
        fs::hard_link(setting.at("a", "one"), setting.at("a", "two")).unwrap();
        file.write_all_at(b"kept", 0).unwrap();
        fs::remove_file(setting.at("a", "one")).unwrap();
        drop(file);
        assert_eq!(fs::read(setting.there("two")).unwrap(), b"kept");
        // A directory is not empty while a removed file in it is open.
        fs::create_dir(setting.at("a", "directory")).unwrap();
        let file = open(setting, "directory/file");
        fs::remove_file(setting.at("a", "directory/file")).unwrap();
        let full = fs::remove_dir(setting.at("a", "directory")).unwrap_err();
        assert_eq!(full.raw_os_error(), Some(libc::ENOTEMPTY), "as with every NFS client");
        drop(file);
        wait_until(|| fs::remove_dir(setting.at("a", "directory")).is_ok());
    });
}

#[test]
fn holes_and_copies_know_what_is_in_memory() {
    each(|setting, version| {
        let file = open(setting, "sparse");
        file.write_all_at(b"x", 1 << 20).unwrap();
        let data = rustix::fs::seek(&file, SeekFrom::Data(0)).unwrap();
        assert_eq!(data, if version == "3" { 0 } else { 1 << 20 });
        file.write_all_at(&[b'A'; 8192], 0).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = rustix::fs::fallocate(&file, hole, 0, 4096);
        let grown = rustix::fs::fallocate(&file, FallocateFlags::empty(), 1 << 20, 4096);
        if version == "3" {
            assert_eq!((punched, grown), (Err(Errno::OPNOTSUPP), Err(Errno::OPNOTSUPP)));
        } else {
            assert_eq!((part(&file, 0, 1), part(&file, 4096, 1)), (vec![0], vec![b'A']));
            assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 4096);
        }
        // Copy from dirty data onto dirty data.
        let (from, to) = (open(setting, "from"), open(setting, "to"));
        let mut wanted: Vec<u8> = (0..100_000u32).map(|at| (at % 241) as u8).collect();
        from.write_all_at(&wanted, 0).unwrap();
        let copy = |at: u64, count: usize| {
            rustix::fs::copy_file_range(from.as_fd(), Some(&mut 0), to.as_fd(), Some(&mut { at }), count)
        };
        let mut copied = 0;
        while copied < wanted.len() {
            let (mut source, mut target) = (copied as u64, copied as u64);
            let rest = wanted.len() - copied;
            copied +=
                rustix::fs::copy_file_range(&from, Some(&mut source), &to, Some(&mut target), rest).unwrap();
        }
        to.write_all_at(b"in memory", 10).unwrap();
        assert_eq!(copy(12, 5).unwrap(), 5);
        let start = wanted[..5].to_vec();
        wanted[10..19].copy_from_slice(b"in memory");
        wanted[12..17].copy_from_slice(&start);
        assert_eq!(part(&to, 0, 200_000), wanted);
        drop(to);
        assert_eq!(fs::read(setting.there("to")).unwrap(), wanted);
    });
}

#[test]
fn times_and_modes_that_are_set_stay_whatever_is_in_memory() {
    each(|setting, _| {
        let path = setting.at("a", "file");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"first ").unwrap();
        let time = |seconds| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 7 };
        let times = Timestamps { last_access: time(1_000_000_000), last_modification: time(1_100_000_000) };
        rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
        let known = path.metadata().unwrap();
        assert_eq!((known.mtime(), known.mtime_nsec(), known.atime()), (1_100_000_000, 7, 1_000_000_000));
        drop(file);
        assert_eq!(path.metadata().unwrap().mtime(), 1_100_000_000);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"second").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        file.write_all(b" third").unwrap();
        let before = path.metadata().unwrap();
        assert!(before.mtime() > 1_100_000_000, "a write is a change");
        // After a sync the times are those of the server.
        file.sync_all().unwrap();
        let (here, there) = (path.metadata().unwrap(), setting.there("file").metadata().unwrap());
        assert_eq!((here.mtime(), here.mtime_nsec()), (there.mtime(), there.mtime_nsec()));
        assert_eq!((here.len(), here.mode() & 0o7777, here.ino()), (18, 0o400, there.ino()));
        // A change of the owner clears the set-id bits.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        std::os::unix::fs::chown(&path, Some(1), Some(1)).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o755);
        // A directory made in a set-group-id directory gets that directory's group.
        fs::create_dir(setting.at("a", "directory")).unwrap();
        std::os::unix::fs::chown(setting.at("a", "directory"), None, Some(777)).unwrap();
        fs::set_permissions(setting.at("a", "directory"), fs::Permissions::from_mode(0o2777)).unwrap();
        fs::create_dir(setting.at("a", "directory/below")).unwrap();
        let below = setting.at("a", "directory/below").metadata().unwrap();
        assert_eq!((below.gid(), below.mode() & 0o2000), (777, 0o2000));
    });
}

// Promise: rights-at-the-open
#[test]
fn lists_of_rights_are_those_of_nfs() {
    each(|setting, version| {
        let path = setting.at("a", "file");
        fs::write(&path, b"x").unwrap();
        let mut value = [0; 1024];
        let list = rustix::fs::getxattr(&path, "system.nfs4_acl", &mut value[..]);
        if version == "3" {
            assert_eq!(list, Err(Errno::OPNOTSUPP));
            return;
        }
        let mut list = value[..list.unwrap()].to_vec();
        // Set the same list again: the mode must not change.
        assert!(list.windows(6).any(|window| window == b"OWNER@"), "{list:?}");
        rustix::fs::setxattr(&path, "system.nfs4_acl", &list, rustix::fs::XattrFlags::empty()).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o644, "the list that there was");
        list.truncate(7);
        let torn = rustix::fs::setxattr(&path, "system.nfs4_acl", &list, rustix::fs::XattrFlags::empty());
        assert_eq!(torn, Err(Errno::INVAL));
        let posix = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut value[..]);
        assert_eq!(posix, Err(Errno::OPNOTSUPP), "as with the kernel's own client");
    });
}

#[test]
fn a_file_system_tells_how_large_it_is_and_holds_files_that_are_far_larger() {
    each(|setting, _| {
        let here = rustix::fs::statvfs(setting.at("a", "")).unwrap();
        let there = rustix::fs::statvfs(setting.there("")).unwrap();
        assert_eq!(here.f_namemax, 255);
        let bytes = |of: &rustix::fs::StatVfs| of.f_blocks * of.f_frsize;
        assert_eq!(bytes(&here), bytes(&there));
        let file = open(setting, "file");
        file.write_all_at(b"here", 1 << 40).unwrap();
        drop(file);
        let mut text = String::new();
        let mut file = File::open(setting.there("file")).unwrap();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(1 << 40)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "here");
    });
}
