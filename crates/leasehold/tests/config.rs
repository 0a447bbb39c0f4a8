//! Configuration files of processes that run: the start, SIGHUP, and `leasehold config`.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod program;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStringExt;
use std::process::{ChildStderr, Stdio};
use std::time::Duration;

use client::Url;
use program::{Running, Tree, fails_with};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;
use vfs::{Caller, CreateHow, Name, SetAttributes, Status};

/// A process with a configuration file, and its messages.
struct Configured {
    running: Running,
    messages: BufReader<ChildStderr>,
    file: String,
}

impl Configured {
    fn start(tree: &Tree, arguments: &[&str], text: &str) -> Configured {
        let file = tree.path("config.toml");
        std::fs::write(&file, text).unwrap();
        let mut running = Running::start(&[arguments, &["--config", &file]].concat());
        let messages = BufReader::new(running.child.stderr.take().unwrap());
        Configured { running, messages, file }
    }

    /// Writes the file and sends SIGHUP. Returns the messages up to the one that contains `last`.
    fn reload(&mut self, text: &str, last: &str) -> String {
        std::fs::write(&self.file, text).unwrap();
        kill_process(Pid::from_child(&self.running.child), Signal::HUP).unwrap();
        let mut all = String::new();
        while !all.contains(last) {
            assert!(self.messages.read_line(&mut all).unwrap() > 0, "the process has ended: {all}");
        }
        all
    }
}

/// The status of making a file.
async fn make(server: &Running, name: &str) -> Result<(), Status> {
    let url = Url::parse(&format!("{}&vers=3", server.url())).unwrap();
    let client = client::connect(&url).await.map_err(|_| Status::Access)?;
    let (root, name) = (client.root_handle(), Name::new(name.as_bytes()).unwrap());
    let (caller, set) = (Caller::unix(0, 0, &[]), SetAttributes::default());
    let made = client.create(&caller, &root, &name, CreateHow::Guarded, &set).await;
    made.map(drop).map_err(|error| error.status)
}

/// A connection that the server has accepted: it has answered a NULL call, which everybody may send.
fn connect(server: &Running) -> TcpStream {
    let mut connection = TcpStream::connect(&server.address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // The record mark; transaction, call, RPC version 2, NFS version 3, NULL; no credential, no verifier.
    let words: [u32; 11] = [0x8000_0028, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0];
    connection.write_all(&words.map(u32::to_be_bytes).concat()).unwrap();
    let mut reply = [0; 28];
    connection.read_exact(&mut reply).unwrap();
    connection
}

/// The server ends a connection whose peer it judges otherwise than when it began.
fn has_ended(mut connection: TcpStream) {
    assert_eq!(connection.read(&mut [0]).unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_changes_the_options_of_exports_that_are_served() {
    let tree = Tree::new();
    let export =
        format!("[[export]]\ndirectory = '{}'\npath = '/export'\nsecure = false\n", tree.path("served"));
    let begin = format!("{export}root_squash = false\n");
    let state = tree.path("state");
    let mut serve = Configured::start(&tree, &["serve", "--state", &state], &begin);
    make(&serve.running, "before").await.unwrap();

    let text = format!("lease_time = 30\n{begin}ro = true\n");
    let said = serve.reload(&text, "1 change is in force, 1 needs a restart");
    assert!(said.contains("export /export ro is true, and was false\n"), "{said}");
    assert!(said.contains("lease_time is 30, and was 90; this needs a restart"), "{said}");
    assert_eq!(make(&serve.running, "readonly").await, Err(Status::Rofs));

    let wrong = format!("{text}anonuid = 'nobody'\n");
    let said = serve.reload(&wrong, "stays");
    assert!(said.contains("config.toml:8:11: "), "{said}");
    assert_eq!(make(&serve.running, "readonly").await, Err(Status::Rofs), "a wrong file changes nothing");

    let elsewhere = format!("{begin}clients = ['192.0.2.1']\n");
    let before = connect(&serve.running);
    let said = serve.reload(&elsewhere, "read again");
    has_ended(before);
    assert!(said.contains("export /export clients is 192.0.2.1, and was *"), "{said}");
    make(&serve.running, "foreign").await.unwrap_err();

    let stranger = connect(&serve.running);
    let said = serve.reload(&format!("{begin}\n[[export]]\ndirectory = '/'\n"), "read again");
    assert!(said.contains("export / is new; this needs a restart"), "{said}");
    has_ended(stranger);
    make(&serve.running, "after").await.unwrap();
}

/// A name is looked up before the first connection and again at SIGHUP.
#[tokio::test(flavor = "multi_thread")]
async fn clients_are_admitted_by_name() {
    let tree = Tree::new();
    let export =
        format!("[[export]]\ndirectory = '{}'\npath = '/export'\nsecure = false\n", tree.path("served"));
    let text = |clients: &str| format!("{export}root_squash = false\nclients = ['{clients}']\n");
    let state = tree.path("state");
    let mut serve = Configured::start(&tree, &["serve", "--state", &state], &text("localhost"));
    make(&serve.running, "known").await.unwrap();

    let before = connect(&serve.running);
    let said = serve.reload(&text("@no-such-netgroup"), "getent netgroup no-such-netgroup");
    assert!(said.contains("it is not admitted"), "{said}");
    has_ended(before);
    make(&serve.running, "unknown").await.unwrap_err();

    let stranger = connect(&serve.running);
    serve.reload(&text("localhost"), "read again");
    has_ended(stranger);
    make(&serve.running, "again").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_changes_the_limits_of_a_cache_and_the_log() {
    let tree = Tree::new();
    let origin = tree.serve();
    let begin = format!(
        "origin = '{}'\nsecure = false\nroot_squash = false\ncache = '{}'\nmin_free = 0\n",
        origin.url(),
        tree.path("cache")
    );
    let mut proxy = Configured::start(&tree, &["proxy"], &begin);
    make(&proxy.running, "before").await.unwrap();
    let said = proxy.reload(&format!("{begin}cache_size = '1M'\nlog_level = 'info'\n"), "read again");
    assert!(said.contains("log_level is info, and was not set"), "{said}");
    assert!(said.contains("cache_size is 1M, and was 10G\n"), "{said}");
    let status = program::run(&["status", "--json", &tree.path("cache")]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["cache"]["used_max_bytes"], 1 << 20, "{status}");
    let said =
        proxy.reload(&format!("{begin}cache_size = '1M'\nlog_level = 'info'\n"), "nothing has changed");
    assert!(!said.contains(" is "), "{said}");
    make(&proxy.running, "after").await.unwrap();
}

#[test]
fn a_process_without_a_file_says_so_at_sighup_and_goes_on() {
    let tree = Tree::new();
    let mut serve = tree.serve();
    kill_process(Pid::from_child(&serve.child), Signal::HUP).unwrap();
    let mut said = String::new();
    BufReader::new(serve.child.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("start with --config FILE"), "{said}");
    assert!(serve.child.try_wait().unwrap().is_none());
    serve.terminate();
}

#[test]
fn a_terminal_that_goes_away_ends_what_was_started_in_it() {
    let tree = Tree::new();
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap();
    let name = std::path::PathBuf::from(std::ffi::OsString::from_vec(name.into_bytes()));
    let stdin = std::fs::File::options().read(true).write(true).open(name).unwrap();
    let (served, state) = (tree.path("served"), tree.path("state"));
    let mut serve = program::leasehold(&["serve", &served, "--state", &state, "--listen", "127.0.0.1:0"])
        .stdin(stdin)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(serve.stdout.take().unwrap()).read_line(&mut line).unwrap();
    kill_process(Pid::from_child(&serve), Signal::HUP).unwrap();
    assert!(serve.wait().unwrap().success());
}

#[test]
fn config_checks_and_explains_files() {
    let tree = Tree::new();
    let file = tree.path("proxy.toml");
    std::fs::write(&file, "origin = 'nfs://filer/export'\ncache_size = '2G'\n").unwrap();
    let said = |arguments: &[&str]| {
        let output = program::run(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(said(&["config", "check", &file]), format!("{file}: a proxy with 2 keys\n"));
    let shown = said(&["config", "show", &file, "--min-free", "5G"]);
    let line = |key: &str| shown.lines().find(|line| line.starts_with(key)).unwrap().to_owned();
    assert!(line("cache_size ").ends_with(&format!("2G  {file}:2")) || line("cache_size ").contains(":2"));
    assert!(line("min_free ").contains("5G") && line("min_free ").ends_with("command line"), "{shown}");
    assert!(line("udp ").contains("true") && line("udp ").ends_with("default"), "{shown}");
    let first = said(&["config", "show", "--json", &file]);
    let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert_eq!(
        (&first["key"], &first["from"], &first["line"]),
        (&"origin".into(), &"file".into(), &1.into())
    );
    let keys = said(&["config", "keys", "mount"]);
    assert!(keys.contains("source = SOURCE\n") && keys.contains("log_level = LEVEL\n"), "{keys}");

    std::fs::write(&file, "origin = 'nfs://filer/export'\ncache_sise = '2G'\n").unwrap();
    fails_with(&program::run(&["config", "check", &file]), &["proxy.toml:2:1: ", "`cache_size`"]);
    let started = program::run(&["proxy", "--config", &file]);
    fails_with(&started, &["proxy.toml:2:1: "]);
    fails_with(&program::run(&["config", "check", &tree.path("none")]), &["cannot read", "none"]);
    fails_with(&program::run(&["config", "check", "/dev/zero"]), &["cannot read", "more than"]);
}

#[test]
fn config_check_opens_the_files_for_tls_and_finds_contradictions() {
    let tree = Tree::new();
    let (file, served) = (tree.path("checked.toml"), tree.path("served"));
    let export = format!("[[export]]\ndirectory = '{served}'\n");
    let member = "handle_key = '/none/key'\n[[origin]]\nurl = 'nfs://filer/e'\n[cluster]\nname = 'c'\nmember = 'a'\n\
                  endpoints = ['https://127.0.0.1:1']\ntls_ca = '/none/ca'\n\
                  [[server]]\naddress = '127.0.0.1:2049'\n";
    for (text, wanted) in [
        (format!("tls = 'allow'\ntls_certificate = '/none/crt'\n{export}"), "cannot use /none/crt"),
        (format!("tls = 'allow'\n{export}"), "--tls-certificate"),
        (format!("{export}xprtsec = 'tls'\n"), "nobody could use"),
        (format!("{export}exclusive = true\n{export}path = '/other'\n"), "other"),
        ("origin = 'nfs://filer/e?xprtsec=tls&tlsca=/none/ca'\n".into(), "cannot use /none/ca"),
        ("[[origin]]\nurl = 'nfs://filer/e?xprtsec=tls&tlsca=/none/ca'\n".into(), "cannot use /none/ca"),
        (member.into(), "cannot use /none/ca"),
        (format!("sync = false\n{member}"), "/e: a member of a cluster cannot delay writes"),
        (
            member.replace("[cluster]", "fsync = 'journal'\n[cluster]"),
            "/e: a member of a cluster cannot delay writes",
        ),
        (
            "source = 'filer:/e'\ndirectory = '/mnt'\noptions = 'xprtsec=tls,tlsca=/none/ca'\n".into(),
            "cannot use /none/ca",
        ),
    ] {
        std::fs::write(&file, &text).unwrap();
        fails_with(&program::run(&["config", "check", &file]), &["checked.toml", wanted]);
    }
}

#[test]
fn the_samples_of_the_package_are_right() {
    let samples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/etc/leasehold");
    for (name, kind) in [
        ("exports.toml.sample", "a serve"),
        ("proxy/example.toml.sample", "a proxy"),
        ("mount/example.toml.sample", "a mount"),
    ] {
        let output = program::run(&["config", "check", &format!("{samples}/{name}")]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains(kind),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
