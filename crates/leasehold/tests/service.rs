//! What systemd is told, and the units and completions that the package brings.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod program;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use client::Url;
use program::{Running, Tree};
use rustix::process::{Pid, Signal, kill_process};
use vfs::{Caller, Name, StateidBasis, Want};

const PATIENCE: Duration = Duration::from_secs(30);

/// The next message that contains `wanted`.
fn heard(socket: &UnixDatagram, wanted: &str) -> String {
    let mut buffer = [0; 4096];
    loop {
        let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("no {wanted}: {error}"));
        let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if message.contains(wanted) {
            return message;
        }
    }
}

#[test]
fn systemd_is_told_of_the_start_the_end_and_the_health() {
    let tree = Tree::new();
    let (served, state, path) = (tree.path("served"), tree.path("state"), tree.path("notify"));
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut serve = program::leasehold(&[
        "serve",
        &served,
        "--export",
        "/export",
        "--state",
        &state,
        "--listen",
        "127.0.0.1:0",
        "--insecure",
    ])
    .env("NOTIFY_SOCKET", &path)
    .env("WATCHDOG_USEC", "200000")
    .stdout(Stdio::null())
    .spawn()
    .unwrap();
    let ready = heard(&socket, "READY=1");
    assert!(ready.contains("STATUS=serving on 127.0.0.1:"), "{ready}");
    heard(&socket, "WATCHDOG=1");
    heard(&socket, "WATCHDOG=1");
    kill_process(Pid::from_child(&serve), Signal::TERM).unwrap();
    heard(&socket, "STOPPING=1");
    assert!(serve.wait().unwrap().success());
}

/// Starts a server that logs its start and its end, with a file as its standard error. Returns the log.
fn logged(environment: impl Fn(&std::fs::Metadata) -> (&'static str, String)) -> String {
    let tree = Tree::new();
    let (served, state, path) = (tree.path("served"), tree.path("state"), tree.path("log"));
    let file = std::fs::File::create(&path).unwrap();
    let (name, value) = environment(&file.metadata().unwrap());
    let mut serve = program::leasehold(&["serve", &served, "--state", &state, "--listen", "127.0.0.1:0"])
        .env("LEASEHOLD_LOG", "info")
        .env(name, value)
        .stdout(Stdio::piped())
        .stderr(file)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(serve.stdout.take().unwrap()).read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&serve), Signal::TERM).unwrap();
    serve.wait().unwrap();
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_log_is_json_if_wished_and_has_priorities_for_the_journal() {
    let json = logged(|_| ("LEASEHOLD_LOG_FORMAT", "json".to_owned()));
    assert!(!json.is_empty());
    for line in json.lines() {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(message["level"].is_string() && message["timestamp"].is_string(), "{line}");
    }
    let journal = logged(|file| ("JOURNAL_STREAM", format!("{}:{}", file.dev(), file.ino())));
    assert!(!journal.is_empty() && journal.lines().all(|line| line.starts_with("<6>")), "{journal}");
    let other = logged(|file| ("JOURNAL_STREAM", format!("{}:{}", file.dev(), file.ino() + 1)));
    assert!(!other.is_empty() && !other.contains("<6>"), "{other}");
}

#[test]
fn shells_get_completions() {
    for (shell, words) in
        [("bash", "complete -F _leasehold"), ("zsh", "#compdef leasehold"), ("fish", "revoke")]
    {
        let output = program::run(&["completions", shell]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(words) && text.contains("prefetch"), "{shell}");
    }
}

/// The tree of the container holds all that a proxy needs. Only root can change its root.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_runs_in_the_tree_of_the_container() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let tree = Tree::new();
    let (origin, to) = (tree.serve(), tree.path("package"));
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let mut xtask = Command::new(program.with_file_name("xtask"));
    xtask.args(["package", "--to", &to, "--program"]).arg(program).env("DPKG_DEB_COMPRESSOR_TYPE", "none");
    let packaged = xtask.output().expect("cargo build -p xtask makes target/debug/xtask");
    assert!(packaged.status.success(), "{}", String::from_utf8_lossy(&packaged.stderr));
    let url = origin.url();
    let cache = ["--cache", "/var/cache/leasehold/one", "--min-free", "0", "--no-rpcbind"];
    let proxy = Running::start_in(Path::new(&to).join("container"), &[&["proxy", &url], &cache[..]].concat());
    let client = client::connect(&Url::parse(&proxy.url()).unwrap()).await.unwrap();
    let caller = Caller::machine();
    let root = client.root_handle();
    let file = client.lookup(&caller, &root, &Name::new(b"file").unwrap(), Want::None).await.unwrap().node;
    let read = client.read(&caller, &file.handle, StateidBasis::Anonymous, 0, 100).await.unwrap();
    assert_eq!(read.data.to_bytes().unwrap(), "content");
    assert!(Path::new(&to).join("container/var/cache/leasehold/one").exists());
}

/// Where systemd is installed, it reads the units and complains of nothing.
#[test]
fn systemd_understands_the_units() {
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd");
    let directory = tempfile::tempdir().unwrap();
    let mut units = Vec::new();
    for unit in std::fs::read_dir(contrib).unwrap() {
        let unit = unit.unwrap().path();
        // The program is not installed where the units expect it.
        let text = std::fs::read_to_string(&unit).unwrap().replace("/usr/bin/leasehold", "/bin/true");
        let name = unit.file_name().unwrap().to_str().unwrap().replace("@.", "@name.");
        let place = directory.path().join(name);
        std::fs::write(&place, text).unwrap();
        units.push(place);
    }
    assert_eq!(units.len(), 3);
    let Ok(output) = Command::new("systemd-analyze").args(["verify", "--man=no"]).args(&units).output()
    else {
        return;
    };
    let told = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = told.lines().filter(|line| line.contains("leasehold")).collect();
    assert!(ours.is_empty(), "{}", ours.join("\n"));
}
