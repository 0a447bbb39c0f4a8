//! The end of a mount: a server that is away, an unmount while files are open, silly names after a crash.
//!
//! Promise: no-program-hangs

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::files::wait_until;
use crate::setting::{Setting, VERSIONS, may_mount};

#[test]
fn a_server_that_is_away_keeps_nobody_from_being_killed_and_nothing_from_being_unmounted() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new(&format!("vers={version}&actimeo=0"));
        fs::write(setting.there("file"), vec![1; 1 << 20]).unwrap();
        setting.stop_server();
        let mut stuck = Command::new("cat").arg(setting.at("file")).stdout(Stdio::null()).spawn().unwrap();
        wait_until(|| setting.stats().waiting > 0);
        stuck.kill().unwrap();
        let start = Instant::now();
        assert!(!stuck.wait().unwrap().success());
        assert!(start.elapsed() < Duration::from_secs(5), "version {version}: {:?}", start.elapsed());
        let mut stuck = Command::new("ls")
            .arg(setting.mnt())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until(|| setting.stats().waiting > 0);
        let start = Instant::now();
        setting.unmount();
        assert!(start.elapsed() < Duration::from_secs(20));
        stuck.kill().unwrap();
        stuck.wait().unwrap();
        assert!(mount::mounted_at(&setting.mnt()).is_none());
    }
}

#[test]
fn a_server_that_comes_back_is_gone_on_with() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new(&format!("vers={version}&timeo=10"));
        let mut file =
            OpenOptions::new().create(true).truncate(true).write(true).open(setting.at("file")).unwrap();
        file.write_all(b"before ").unwrap();
        setting.stop_server();
        let path = setting.at("file");
        let writer = std::thread::spawn(move || {
            file.write_all(b"after").unwrap();
            file.sync_all()
        });
        wait_until(|| setting.stats().waiting > 0);
        setting.start_server();
        let synced = writer.join().unwrap();
        // A server that restarted may have lost unstable data; then fsync reports it.
        if synced.is_ok() {
            assert_eq!(fs::read(path).unwrap(), b"before after", "version {version}");
        }
    }
}

// Promise: removed-open-files
#[test]
fn open_files_do_not_keep_it_mounted_and_a_new_mount_starts_clean() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new(&format!("vers={version}"));
        let file =
            OpenOptions::new().create(true).truncate(true).write(true).open(setting.at("file")).unwrap();
        file.write_all_at(b"written before", 0).unwrap();
        let removed = File::create(setting.at("removed")).unwrap();
        fs::remove_file(setting.at("removed")).unwrap();
        assert_eq!(fs::read_dir(setting.there(".")).unwrap().count(), 2, "it has a name still");
        setting.remount();
        assert!(file.write_all_at(b"x", 0).is_err(), "that mount is gone");
        drop((file, removed));
        assert_eq!(fs::read(setting.at("file")).unwrap(), b"written before");
        wait_until(|| fs::read_dir(setting.there(".")).unwrap().count() == 1);
    }
}

#[test]
fn a_mount_that_somebody_else_unmounts_ends() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new("vers=3");
    assert!(Command::new("umount").arg(setting.mnt()).status().unwrap().success());
    setting.wait_for_the_end();
    setting.mount();
    fs::write(setting.at("file"), b"again").unwrap();
    assert_eq!(fs::read(setting.there("file")).unwrap(), b"again");
}

/// Files that are written, locked, removed while they are open, and listed; then a clean end.
#[test]
fn a_clean_end_leaves_nothing_in_any_layer() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let setting = Setting::new(&format!("vers={version}"));
        for name in ["kept", "removed"] {
            let path = setting.at(name);
            let file =
                OpenOptions::new().create(true).truncate(true).read(true).write(true).open(path).unwrap();
            file.write_all_at(&vec![1; 100_000], 0).unwrap();
            match file.try_lock() {
                Ok(()) => {}
                Err(error) => panic!("version {version}: {error}"),
            }
            if name == "removed" {
                fs::remove_file(setting.at(name)).unwrap();
            }
            let mut part = [0; 10];
            file.read_exact_at(&mut part, 50_000).unwrap();
            assert_eq!(part, [1; 10]);
        }
        // The kernel does not wait for RELEASE, after which the silly name of `removed` goes.
        wait_until(|| fs::read_dir(setting.mnt()).unwrap().count() == 1);
        assert!(!setting.at("absent").exists());
        setting.end();
    }
}
