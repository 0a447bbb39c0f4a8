//! `leasehold top` of running processes: once, and in a terminal.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod program;

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use client::Url;
use program::{Running, Tree, fails_with};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use vfs::{Caller, Name, StateidBasis};

const PATIENCE: Duration = Duration::from_secs(30);

/// Reads a file again and again, until it is told to stop.
async fn read_until(at: &Running, version: &str, stop: Arc<AtomicBool>) {
    let url = Url::parse(&format!("{}&vers={version}", at.url())).unwrap();
    let origin = client::connect(&url).await.unwrap();
    let (caller, name) = (Caller::unix(0, 0, &[]), Name::new(b"file").unwrap());
    let file = origin.lookup(&caller, &origin.root_handle(), &name, vfs::Want::None).await.unwrap();
    while !stop.load(Ordering::Relaxed) {
        origin.read(&caller, &file.node.handle, StateidBasis::Anonymous, 0, 100).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What `top --once --json` says while a client reads.
async fn top_while_reading(server: &Running, version: &str, directory: &str) -> Value {
    let stop = Arc::new(AtomicBool::new(false));
    let said = {
        let (directory, stop) = (directory.to_owned(), stop.clone());
        tokio::task::spawn_blocking(move || {
            let output = program::run(&["top", "--once", "--json", "--interval", "1", &directory]);
            stop.store(true, Ordering::Relaxed);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        })
    };
    let (said, ()) = tokio::join!(said, read_until(server, version, stop));
    said.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn top_names_the_clients_and_files_that_are_used() {
    let tree = Tree::new();
    let serve = tree.serve();
    let proxy = tree.proxy(&serve);
    for version in ["3", "4.2"] {
        let top = top_while_reading(&proxy, version, &tree.path("cache")).await;
        assert!(top["head"][0].as_str().unwrap().starts_with("proxy of nfs://127.0.0.1"), "{top}");
        assert_eq!(top["clients"][0]["name"], "127.0.0.1", "{top}");
        assert!(top["clients"][0]["calls/s"].as_f64().unwrap() > 1.0, "{top}");
        assert!(top["clients"][0]["read/s"].as_f64().unwrap() > 1.0, "{top}");
        assert_eq!(top["files"][0]["name"], "/export: /file", "{top}");
        assert!(top["files"][0]["calls/s"].as_f64().unwrap() > 1.0, "{top}");
        let is_read = |row: &&Value| row["name"].as_str().unwrap().ends_with(" READ");
        let reads = top["requests"].as_array().unwrap().iter().filter(is_read);
        assert!(reads.map(|row| row["calls/s"].as_f64().unwrap()).any(|rate| rate > 1.0), "{top}");
    }
    let top = top_while_reading(&serve, "3", &tree.path("state")).await;
    assert_eq!((&top["files"][0]["name"], &top["origin"]), (&"/export: /file".into(), &Value::Array(vec![])));
    fails_with(&program::run(&["top", "--once", &tree.path("served")]), &["nothing answers at"]);
    let output = program::run(&["top", &tree.path("cache")]);
    assert_eq!(output.status.code(), Some(1), "there is no terminal");
}

#[test]
fn top_works_in_a_terminal() {
    let tree = Tree::new();
    let _serve = tree.serve();
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = std::ffi::OsString::from_vec(ptsname(&terminal, Vec::new()).unwrap().into_bytes());
    let open = || File::options().read(true).write(true).open(&name).unwrap();
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&terminal, size).unwrap();
    let mut top = program::leasehold(&["top", "--interval", "1", &tree.path("state")])
        .env("TERM", "xterm")
        .stdin(open())
        .stdout(open())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut terminal = File::from(terminal);
    let (sender, screen) = mpsc::channel();
    let mut shown = terminal.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = shown.read(&mut buffer) {
            if sender.send(String::from_utf8_lossy(&buffer[..length]).into_owned()).is_err() {
                return;
            }
        }
    });
    let mut seen = String::new();
    // Between two words there may be movements of the cursor.
    let mut wait_for = |word: &str| {
        let began = Instant::now();
        while !seen.contains(word) {
            let left = PATIENCE.saturating_sub(began.elapsed());
            seen += &screen.recv_timeout(left).unwrap_or_else(|_| panic!("no {word:?} in {seen:?}"));
        }
    };
    wait_for("written/s");
    terminal.write_all(b"h").unwrap();
    wait_for("reverse");
    terminal.write_all(b"xq").unwrap();
    assert!(top.wait().unwrap().success());
    // The screen is given back.
    wait_for("\u{1b}[?1049l");
}
