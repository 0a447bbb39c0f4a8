//! A mount that shuts down cleanly leaves no open, no lease and no client at the server.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::setting::{Setting, VERSIONS, may_mount, output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");
const FILES: usize = 300;
/// How long a line may take to appear in the log.
const LOG_PATIENCE: Duration = Duration::from_secs(30);
/// The content of files that are stored only at the end.
const CONTENT: &[u8] = &[7; 100_000];

/// Opens, leases and clients at the server.
fn held(setting: &Setting) -> [u64; 3] {
    let mut status = Command::new(PROGRAM);
    let status = output(status.args(["status", "--json"]).arg(setting.place("state")));
    let status: Value = serde_json::from_str(&status).unwrap();
    let held = &status["held"]["/export"];
    let count = |name: &str| held[name].as_u64().unwrap();
    let leases = count("read_leases") + count("write_leases") + count("directory_leases");
    [count("opens"), leases, status["clients"]["known"].as_u64().unwrap()]
}

/// Mounts, and uses files in every way that creates state at the server.
fn work(setting: &mut Setting, round: &str) -> Vec<File> {
    setting.mount("a", "vers=4.2");
    fs::create_dir(setting.at("a", round)).unwrap();
    let name = |number: usize| format!("{round}/{number}");
    let mut open = Vec::new();
    for number in 0..FILES {
        let mut file = File::create(setting.at("a", name(number))).unwrap();
        file.write_all(b"content").unwrap();
        if number % 100 == 7 {
            open.push(file);
        }
    }
    for number in 0..FILES {
        assert_eq!(fs::read(setting.at("a", name(number))).unwrap(), b"content");
    }
    rustix::fs::flock(&open[0], rustix::fs::FlockOperation::LockExclusive).unwrap();
    let [opens, leases, clients] = held(setting);
    assert!(opens > 0 && leases > 0, "{opens} opens, {leases} leases");
    assert_eq!(clients, 1);
    open
}

// Promise: courtesy-clients
// Promise: unmount
#[test]
fn an_orderly_end_of_a_mount_leaves_nothing_at_the_server() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    drop(work(&mut setting, "unmounted"));
    setting.unmount("a");
    assert_eq!(held(&setting), [0, 0, 0]);
    // Stopped by a signal while programs have files open and locked.
    let open = work(&mut setting, "told");
    assert!(setting.terminate("a").wait().unwrap().success());
    assert_eq!(held(&setting), [0, 0, 0]);
    drop(open);
    for round in ["unmounted", "told"] {
        for number in 0..FILES {
            assert_eq!(fs::read(setting.there(format!("{round}/{number}"))).unwrap(), b"content");
        }
    }
}

/// The user presses Ctrl-\\, or a service manager says goodbye. SIGHUP is no end: nobody is at a terminal.
// Promise: unmount
#[test]
fn a_signal_that_ends_a_process_ends_a_mount_in_order() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    for (signal, name) in [(Signal::QUIT, "quit"), (Signal::INT, "interrupted")] {
        setting.mount("a", "vers=4.2");
        kill_process(setting.pid_of("a").unwrap(), Signal::HUP).unwrap();
        // Under a lease, a close sends nothing.
        fs::write(setting.at("a", name), b"content").unwrap();
        kill_process(setting.pid_of("a").unwrap(), signal).unwrap();
        assert!(setting.ended("a").success(), "{name}");
        assert!(mount::mounted_at(&setting.at("a", "")).is_none(), "{name}");
        assert_eq!(fs::read(setting.there(name)).unwrap(), b"content");
    }
}

/// umount(8) of a `hard` mount, as an administrator runs it, without our helper. Without `--force`,
/// umount(8) first asks for the attributes of the directory and its file system, which only the server
/// knows.
// Promise: no-program-hangs
#[test]
fn umount_returns_while_the_server_is_frozen_and_what_was_written_gets_there() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version},hard,noac"));
        fs::write(setting.at("a", "file"), b"content").unwrap();
        lab::freeze(setting.server().pid());
        let mut killed = Command::new("ls").arg(setting.at("a", "")).stdout(Stdio::null()).spawn().unwrap();
        killed.kill().unwrap();
        killed.wait().unwrap();
        let at = setting.at("a", "");
        let umount = ["-s", "KILL", "20", "umount", "--force"];
        let unmounted = Command::new("timeout").args(umount).arg(&at).status().unwrap();
        assert!(unmounted.success(), "version {version}");
        assert!(mount::mounted_at(&at).is_none());
        kill_process(setting.server().pid(), Signal::CONT).unwrap();
        assert!(setting.ended("a").success());
        assert_eq!(fs::read(setting.there("file")).unwrap(), b"content", "version {version}");
    }
}

/// Writes files under write leases, so no data is sent.
fn write_files(directory: &Path, files: usize) {
    for number in 0..files {
        fs::write(directory.join(number.to_string()), CONTENT).unwrap();
    }
}

#[track_caller]
fn assert_stored(directory: &Path, files: usize) {
    let stored =
        |number: &usize| fs::read(directory.join(number.to_string())).is_ok_and(|content| content == CONTENT);
    assert_eq!((0..files).filter(stored).count(), files, "files are stored");
}

/// Starts a program, and returns a reader of its standard error.
fn start(command: &mut Command) -> (Child, BufReader<ChildStderr>) {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let words = BufReader::new(child.stderr.take().unwrap());
    (child, words)
}

fn line(words: &mut BufReader<ChildStderr>) -> String {
    let mut line = String::new();
    words.read_line(&mut line).unwrap();
    line
}

// Promise: unmount
#[test]
fn umount_returns_when_all_is_stored_and_given_back() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        // Two rounds: the next mount gets the cache directory at once.
        for _ in 0..2 {
            setting.mount("a", &format!("vers={version}"));
            write_files(&setting.at("a", ""), 200);
            let unmounted = Command::new(PROGRAM).arg("umount").arg(setting.at("a", "")).status().unwrap();
            assert_stored(&setting.there(""), 200);
            assert_eq!(held(&setting), [0, 0, 0]);
            assert!(unmounted.success() && setting.ended("a").success());
        }
    }
}

/// Runs in a mount namespace of its own, because umount(8) looks for helpers only in /sbin.
// Promise: unmount
#[test]
fn umount8_waits_through_the_helper() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new();
    let at = setting.at("a", "");
    fs::create_dir(&at).unwrap();
    let script = r#"
        set -e
        mount -t tmpfs helpers /usr/sbin
        mount -t tmpfs run /run
        [ -e /sbin/umount.leasehold ] && exit 9
        for name in mount.leasehold umount.leasehold umount.fuse.leasehold; do ln -s "$PROGRAM" /usr/sbin/$name; done
        for how in "" "-c" "-v"; do
            mount -t leasehold "$ADDRESS" "$AT" -o "vers=4.2,_netdev,$OPTIONS"
            grep -q "helper=leasehold,_netdev" /run/mount/utab
            mkdir -p "$AT/d"
            for file in 1 2 3 4 5 6 7 8 9; do head -c 1000000 /dev/zero > "$AT/d/$file$how"; done
            umount $how "$AT"
            [ "$(find "$THERE/d" -size 1000000c -name "?$how" | wc -l)" = 9 ]
            [ -z "$(cat /run/mount/utab)" ]
            ! findmnt "$AT"
        done
        mount -t leasehold "$ADDRESS" "$AT" -o "vers=4.2,$OPTIONS"
        leasehold_status=0; (cd "$AT" && umount "$AT") || leasehold_status=$?
        [ $leasehold_status = 32 ]
        umount "$AT"
    "#;
    let (cache, log) = (setting.place("cache-a"), setting.log("a"));
    let options = format!("cache={},minfree=0,noresvport,log={}", cache.display(), log.display());
    let ran = Command::new("timeout")
        .args(["-s", "KILL", "100", "unshare", "--mount", "--propagation", "private", "sh", "-xc", script])
        .env("PROGRAM", PROGRAM)
        .env("ADDRESS", format!("nfs://{}/export", setting.address()))
        .env("AT", &at)
        .env("THERE", setting.there(""))
        .env("OPTIONS", options)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

// Promise: unmount
#[test]
fn umount_tells_what_is_left_while_it_waits_and_lazily_does_not_wait() {
    if !may_mount() {
        return;
    }
    for lazy in [false, true] {
        let mut setting = Setting::new();
        setting.mount("a", "vers=4.2");
        let at = setting.at("a", "");
        write_files(&at, 10);
        lab::freeze(setting.server().pid());
        let mut umount = Command::new(PROGRAM);
        let (mut child, mut words) = start(umount.arg("umount").arg(&at).args(lazy.then_some("--lazy")));
        let said = line(&mut words);
        assert!(said.contains("10 files, 1.0 MB are still to be stored"), "{said}");
        assert!(mount::mounted_at(&at).is_none());
        if lazy {
            assert!(child.wait().unwrap().success());
            // Another `umount` may wait instead.
            let mut again = Command::new(PROGRAM);
            (child, words) = start(again.arg("umount").arg(&at));
            let said = line(&mut words);
            assert!(said.contains("10 files, 1.0 MB are still to be stored"), "{said}");
        }
        assert!(child.try_wait().unwrap().is_none());
        // The mount's process logs it as well, at its own times.
        let logged = || {
            let log = fs::read_to_string(setting.log("a")).unwrap();
            log.contains("is shutting down: 10 files, 1.0 MB are still to be stored").then_some(())
        };
        lab::wait_for("the log of the mount to say what is left", LOG_PATIENCE, logged);
        // Further signals change nothing: the mount stores its data.
        for _ in 0..2 {
            kill_process(setting.pid_of("a").unwrap(), Signal::TERM).unwrap();
        }
        kill_process(setting.server().pid(), Signal::CONT).unwrap();
        assert!(child.wait().unwrap().success());
        assert_stored(&setting.there(""), 10);
        assert!(setting.ended("a").success());
    }
}

// Promise: unmount
#[test]
fn the_next_mount_waits_for_the_one_before_and_can_be_interrupted() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    setting.mount("a", "vers=4.2");
    let at = setting.at("a", "");
    // A second mount does not wait for a process that goes on.
    let elsewhere = setting.place("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let source = format!("nfs://{}/export", setting.address());
    let words = format!("cache={},noresvport", setting.place("cache-a").display());
    let mut second = Command::new(PROGRAM);
    second.args(["mount", &source]).arg(&elsewhere).args(["-o", &words]);
    let refused = second.output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("is in use by another leasehold"), "{said}");
    write_files(&at, 10);
    lab::freeze(setting.server().pid());
    // umount(8) without the helper does not wait.
    assert!(Command::new("umount").arg("-i").arg(&at).status().unwrap().success());
    let mut first = setting.leave("a");
    let (mut interrupted, mut words) = start(&mut setting.mounting(&setting.address(), "a", "vers=4.2"));
    let said = line(&mut words);
    assert!(said.contains("still at its end: 10 files, 1.0 MB are still to be stored"), "{said}");
    kill_process(rustix::process::Pid::from_child(&interrupted), Signal::TERM).unwrap();
    assert_eq!(interrupted.wait().unwrap().code(), Some(1));
    let (next, mut words) = start(&mut setting.mounting(&setting.address(), "a", "vers=4.2"));
    assert!(line(&mut words).contains("still at its end"));
    assert!(first.try_wait().unwrap().is_none());
    kill_process(setting.server().pid(), Signal::CONT).unwrap();
    setting.mounted("a", next);
    assert!(first.wait().unwrap().success());
    assert_stored(&setting.there(""), 10);
    assert_stored(&at, 10);
    setting.unmount("a");
}
