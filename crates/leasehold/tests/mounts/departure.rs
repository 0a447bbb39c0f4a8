//! A mount that ends in order leaves nothing at the server: no open, no lease, no client.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::setting::{Setting, VERSIONS, may_mount, output};

const FILES: usize = 300;

/// Opens, leases and clients at the server.
fn held(setting: &Setting) -> [u64; 3] {
    let mut status = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    let status = output(status.args(["status", "--json"]).arg(setting.place("state")));
    let status: Value = serde_json::from_str(&status).unwrap();
    let held = &status["held"]["/export"];
    let count = |name: &str| held[name].as_u64().unwrap();
    let leases = count("read_leases") + count("write_leases") + count("directory_leases");
    [count("opens"), leases, status["clients"]["known"].as_u64().unwrap()]
}

/// Mounts, and uses files in every way that leaves something at the server.
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

#[test]
fn an_orderly_end_of_a_mount_leaves_nothing_at_the_server() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    drop(work(&mut setting, "unmounted"));
    setting.unmount("a");
    assert_eq!(held(&setting), [0, 0, 0]);
    // Told to end, while programs have files open and locked.
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

/// The terminal is closed, or somebody presses Ctrl-\\.
#[test]
fn a_signal_that_ends_a_process_ends_a_mount_in_order() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    for (signal, name) in [(Signal::HUP, "hung up"), (Signal::QUIT, "quit")] {
        setting.mount("a", "vers=4.2");
        // Under a lease what is closed is not sent yet.
        fs::write(setting.at("a", name), b"content").unwrap();
        kill_process(setting.pid_of("a").unwrap(), signal).unwrap();
        assert!(setting.ended("a").success(), "{name}");
        assert!(mount::mounted_at(&setting.at("a", "")).is_none(), "{name}");
        assert_eq!(fs::read(setting.there(name)).unwrap(), b"content");
    }
}

/// umount(8) of a `hard` mount, as an administrator calls it: in a process that knows nothing of us. Without `--force` it
/// asks for the attributes of an absolute path and its file system first, which only the server knows.
#[test]
fn umount_returns_while_the_server_is_frozen_and_what_was_written_gets_there() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version},hard,noac"));
        fs::write(setting.at("a", "file"), b"content").unwrap();
        kill_process(setting.server().pid(), Signal::STOP).unwrap();
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
