//! A mount that ends in order leaves nothing at the server: no open, no lease, no client.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;

use serde_json::Value;

use crate::setting::{Setting, may_mount, output};

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
    setting.terminate("a");
    assert_eq!(held(&setting), [0, 0, 0]);
    drop(open);
    for round in ["unmounted", "told"] {
        for number in 0..FILES {
            assert_eq!(fs::read(setting.there(format!("{round}/{number}"))).unwrap(), b"content");
        }
    }
}
