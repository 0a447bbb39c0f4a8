//! `leasehold cache` with a running proxy, with a proxy that was killed, and with a proxy whose origin is
//! away.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod program;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use client::{Nfs3, Url};
use program::{Running, Tree, fails_in_lines, fails_with, leasehold, run};
use serde_json::Value;
use vfs::{Caller, FileSystem, Name, StateidBasis};

/// Makes `files` files of at least 64 KiB in two directories, and a file whose name is not UTF-8.
fn grow(tree: &Tree, files: usize) {
    for number in 0..files {
        let directory = PathBuf::from(tree.path("served")).join(format!("d{}", number % 2)).join("below");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(format!("f{number}")), content(number)).unwrap();
    }
    let strange = PathBuf::from(tree.path("served")).join(std::ffi::OsStr::from_bytes(b"n\xffme"));
    std::fs::write(strange, b"strange").unwrap();
}

fn content(number: usize) -> Vec<u8> {
    (0..(64 << 10) + 1000 * number).map(|at| (at * (number + 3) % 251) as u8).collect()
}

/// Runs `leasehold cache COMMAND DIR …`
fn cache(tree: &Tree, command: &str, more: &[&str]) -> Output {
    run(&[&["cache", command, &tree.path("cache")][..], more].concat())
}

/// The same with `--json`. The command must succeed; returns its lines.
#[track_caller]
fn asked(tree: &Tree, command: &str, more: &[&str]) -> Vec<Value> {
    let output = cache(tree, command, &[more, &["--json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    lines(&output)
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The last line of an answer.
fn done(lines: &[Value]) -> &Value {
    &lines.last().unwrap()["done"]
}

fn entries(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter_map(|line| line.get("entry")).collect()
}

/// Reads a file through a server. None if that takes too long.
async fn read(origin: &Nfs3, path: &str) -> Option<Vec<u8>> {
    let work = async {
        let caller = Caller::unix(0, 0, &[]);
        let mut at = origin.root(&caller).await.unwrap().handle;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = origin
                .lookup(&caller, &at, &Name::new(name.as_bytes()).unwrap(), vfs::Want::None)
                .await
                .unwrap()
                .node
                .handle;
        }
        let mut bytes = Vec::new();
        loop {
            let read = origin
                .read(&caller, &at, StateidBasis::Anonymous, bytes.len() as u64, 1 << 20)
                .await
                .unwrap();
            bytes.extend_from_slice(&read.data.to_bytes().unwrap());
            if read.eof {
                return bytes;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), work).await.ok()
}

async fn mount(server: &Running) -> Nfs3 {
    Nfs3::connect(&Url::parse(&server.url()).unwrap()).await.unwrap()
}

/// The files of the cache that hold data.
fn objects(tree: &Tree) -> Vec<PathBuf> {
    let shards = std::fs::read_dir(tree.path("cache") + "/objects").unwrap();
    let files = shards.flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn what_is_cached_is_seen_kept_checked_and_dropped_with_a_proxy_and_without() {
    let tree = Tree::new();
    grow(&tree, 6);
    let serve = tree.serve();
    let proxy = tree.proxy(&serve);
    // Warm the cache, and warm it again.
    let warmed = asked(&tree, "warm", &["--pin", "/d0", "/d1", "/n\\xffme"]);
    assert_eq!(
        (&done(&warmed)["fetched"], &done(&warmed)["failed"]),
        (&Value::from(7), &Value::from(0)),
        "{warmed:?}"
    );
    let again = asked(&tree, "warm", &["/"]);
    assert_eq!(
        (&done(&again)["complete"], &done(&again)["fetched"]),
        (&Value::from(7), &Value::from(1)),
        "{again:?}"
    );
    // `warm` with a list from standard input and `--newer`.
    let mut listed =
        leasehold(&["cache", "warm", &tree.path("cache"), "--from", "-", "--newer", "1h", "--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    listed.stdin.take().unwrap().write_all(b"/file\n/d0/below/f0\n").unwrap();
    assert_eq!(done(&lines(&listed.wait_with_output().unwrap()))["complete"], 2);
    assert_eq!(
        done(&asked(&tree, "warm", &["--newer", "@99999999999"]))["files"],
        0,
        "nothing is as new as that"
    );
    let listing = asked(&tree, "ls", &["-R"]);
    let listing = entries(&listing);
    assert_eq!(listing.len(), 12, "{listing:?}");
    assert!(listing.iter().any(|entry| entry["path"] == "/n\\xffme" && entry["pinned"] == "itself"));
    let stat = asked(&tree, "stat", &["/d0/below/f2"]);
    let stat = entries(&stat)[0].clone();
    assert_eq!(
        (&stat["complete"], &stat["pinned"], &stat["size"]),
        (&"complete".into(), &"/d0".into(), &67_536.into())
    );
    assert!(stat["age_s"].as_u64().unwrap() < 60 && stat["used"].is_i64(), "{stat}");
    let text = String::from_utf8(cache(&tree, "stat", &["/d0/below/f2"]).stdout).unwrap();
    assert!(text.contains("pinned     by /d0") && text.contains("complete"), "{text}");
    fails_in_lines(&cache(&tree, "stat", &["/none"]), &["1 path failed"], 2);
    assert_eq!(done(&asked(&tree, "verify", &["--origin"]))["damaged"], 0);
    // The proxy is killed: the command on the directory shows the same.
    drop(proxy);
    let offline = asked(&tree, "stat", &["/d0/below/f2"]);
    assert_eq!(
        (&entries(&offline)[0]["complete"], &entries(&offline)[0]["pinned"]),
        (&"complete".into(), &"/d0".into())
    );
    assert_eq!(done(&asked(&tree, "du", &[]))["complete"], 8);
    assert_eq!(done(&asked(&tree, "verify", &[]))["damaged"], 0);
    fails_with(&cache(&tree, "warm", &["/"]), &["`warm` needs the origin", "start the proxy"]);
    fails_with(&cache(&tree, "verify", &["--origin"]), &["needs the origin"]);
    fails_with(&run(&["cache", "ls", &tree.path("served")]), &["no cache directory"]);
    // One bit of a cached file flips.
    let rotten = &objects(&tree)[3];
    let mut bytes = std::fs::read(rotten).unwrap();
    bytes[1] ^= 1;
    std::fs::write(rotten, bytes).unwrap();
    fails_in_lines(&cache(&tree, "verify", &[]), &["1 file was damaged"], 2);
    assert_eq!(done(&asked(&tree, "verify", &[]))["files"], 7, "it was dropped");
    // A new proxy fetches only the missing file.
    let proxy = tree.proxy(&serve);
    let mended = asked(&tree, "warm", &["/"]);
    assert_eq!((&done(&mended)["complete"], &done(&mended)["fetched"]), (&Value::from(7), &Value::from(1)));
    assert_eq!(entries(&asked(&tree, "pin", &[])).len(), 3);
    assert_eq!(done(&asked(&tree, "unpin", &["/d0", "/n\\xffme"]))["unpinned"], 2);
    assert_eq!(done(&asked(&tree, "unpin", &["--all"]))["unpinned"], 1);
    assert!(done(&asked(&tree, "drop", &["/d0"]))["bytes"].as_u64().unwrap() > 3 * (64 << 10));
    assert_eq!(done(&asked(&tree, "du", &[]))["files"], 5);
    asked(&tree, "drop", &["--all"]);
    assert_eq!(done(&asked(&tree, "du", &[]))["disk_bytes"], 0);
    // A client without a request gets the state; an unknown request is an error that says so.
    let status = run(&["status", "--json", &tree.path("cache")]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["role"], "proxy");
    let mut old = std::os::unix::net::UnixStream::connect(tree.path("cache") + "/admin.sock").unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut old, &mut answer).unwrap();
    assert!(serde_json::from_str::<Value>(&answer).unwrap()["cache"].is_object());
    let mut newer = std::os::unix::net::UnixStream::connect(tree.path("cache") + "/admin.sock").unwrap();
    newer.write_all(b"{\"cache\":{\"command\":\"levitate\"}}\n").unwrap();
    answer.clear();
    std::io::Read::read_to_string(&mut newer, &mut answer).unwrap();
    assert!(answer.contains("does not know the request"), "{answer}");
    fails_with(&run(&["cache", "ls", &tree.path("state")]), &["there is no cache here"]);
    proxy.terminate();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warming_that_was_killed_goes_on_where_it_was() {
    let tree = Tree::new();
    grow(&tree, 300);
    let serve = tree.serve();
    let proxy = tree.proxy(&serve);
    let mut warming = leasehold(&["cache", "warm", &tree.path("cache"), "/", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..5000 {
        if objects(&tree).len() > 30 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(proxy);
    let told = warming.wait().unwrap();
    let offline = asked(&tree, "verify", &[]);
    assert_eq!(done(&offline)["damaged"], 0, "kill -9 leaves nothing wrong behind");
    let before = done(&asked(&tree, "du", &[]))["complete"].as_u64().unwrap();
    let proxy = tree.proxy(&serve);
    let rest = asked(&tree, "warm", &["/"]);
    let count = |field: &str| done(&rest)[field].as_u64().unwrap();
    assert_eq!((count("complete") + count("fetched"), count("failed")), (302, 0), "{rest:?}");
    assert!(count("complete") >= before.min(1), "what was whole was not fetched again: {before} {rest:?}");
    assert!(told.success() || before < 302);
    let client = mount(&proxy).await;
    for number in [0, 7, 299] {
        let path = format!("/d{}/below/f{number}", number % 2);
        assert_eq!(read(&client, &path).await.unwrap(), content(number));
    }
}

// Promise: reads-without-the-origin
#[tokio::test(flavor = "multi_thread")]
async fn whole_files_are_read_while_the_origin_is_away_and_it_is_told_how_old_they_are() {
    let tree = Tree::new();
    grow(&tree, 2);
    let serve = tree.serve();
    let address = serve.address.clone();
    let proxy = tree.proxy_with(&serve, &["--offline", "read", "--offline-after", "1"]);
    asked(&tree, "warm", &["/d0"]);
    let client = mount(&proxy).await;
    assert_eq!(read(&client, "/d0/below/f0").await.unwrap(), content(0));
    drop(serve);
    assert_eq!(read(&client, "/d0/below/f0").await.expect("it is read without the origin"), content(0));
    let stat = asked(&tree, "stat", &["/d0/below/f0"]);
    assert_eq!(entries(&stat)[0]["validity"], "offline");
    let unknown = read(&client, "/d1/below/f1");
    assert!(
        tokio::time::timeout(Duration::from_millis(500), unknown).await.is_err(),
        "what is not here waits"
    );
    let serve = tree.serve_at(&address);
    std::fs::write(tree.path("served") + "/d0/below/f0", b"changed meanwhile").unwrap();
    for attempt in 0.. {
        let bytes = read(&client, "/d0/below/f0").await.unwrap();
        if bytes == b"changed meanwhile" {
            break;
        }
        assert_eq!(bytes, content(0));
        assert!(attempt < 1000, "the origin is back, and is not asked");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(read(&client, "/d1/below/f1").await.unwrap(), content(1));
    let log = proxy.terminate();
    assert_eq!(log.matches("is read as of").count(), 1, "once for a file and outage: {log}");
    assert!(
        log.contains("f0") && log.contains("has not answered for") && log.contains("answers again"),
        "{log}"
    );
    drop(serve);
}

#[test]
fn limits_and_thresholds_are_said_on_the_command_line() {
    let tree = Tree::new();
    grow(&tree, 8);
    let serve = tree.serve();
    let proxy = tree
        .proxy_with(&serve, &["--cache-size", "256K", "--file-min", "1K", "--file-max", "66K", "--no-fill"]);
    // `file` and the file with the strange name are too small; all files from f2 on are too large.
    let warmed = asked(&tree, "warm", &["/d0/below/f0", "/d1/below", "/file"]);
    assert_eq!((&done(&warmed)["fetched"], &done(&warmed)["skipped"]), (&2.into(), &4.into()), "{warmed:?}");
    let used = asked(&tree, "du", &[]);
    assert_eq!((&done(&used)["files"], &done(&used)["max_bytes"]), (&2.into(), &(256 << 10).into()));
    assert_eq!(entries(&used).len(), 1, "one file system: {used:?}");
    proxy.terminate();
    let proxy =
        tree.proxy_with(&serve, &["--cache-size", "256K", "--cache-soft", "200K", "--export-size", "1M"]);
    fails_with(&cache(&tree, "warm", &["/"]), &["does not fit", "--cache-size"]);
    assert!(done(&asked(&tree, "du", &[]))["disk_bytes"].as_u64().unwrap() <= 256 << 10);
    proxy.terminate();
}

// Promise: profiles
#[tokio::test(flavor = "multi_thread")]
async fn a_profile_is_recorded_and_brought_at_a_proxy() {
    let tree = Tree::new();
    grow(&tree, 6);
    // Until its timestamps are nonracy, what is known of the tree is good for one open.
    tokio::time::sleep(Duration::from_millis(3100)).await;
    let serve = tree.serve();
    let (first, second) = (tree.path("first"), tree.path("second"));
    let proxy = tree.proxy(&serve);
    let recorded =
        leasehold(&["cache", "record", &tree.path("cache"), "-o", &first, "--json", "--", "sh", "-c"])
            .args(["touch $0; while test -e $0; do sleep 0.05; done", &second])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    let begun = async {
        while !std::path::Path::new(&second).exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), begun).await.unwrap();
    let client = mount(&proxy).await;
    for path in ["/d1/below/f5", "/d0/below/f2"] {
        read(&client, path).await.unwrap();
    }
    std::fs::remove_file(&second).unwrap();
    let recorded = recorded.wait_with_output().unwrap();
    assert!(recorded.status.success() && done(&lines(&recorded))["uses"].as_u64().unwrap() >= 2);
    let mode = std::fs::metadata(&first).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the names in a tree are not for everybody");
    let text = std::fs::read_to_string(&first).unwrap();
    let at = |line: &str| text.lines().position(|there| there == line);
    assert!(text.starts_with("# leasehold profile 1 of nfs://"), "{text}");
    assert!(at("read 0+70536 /d1/below/f5").unwrap() < at("read 0+67536 /d0/below/f2").unwrap(), "{text}");
    drop(client);
    proxy.terminate();

    // A new cache, of which the cleaner begins early.
    std::fs::remove_dir_all(tree.path("cache")).unwrap();
    let proxy = tree.proxy_with(&serve, &["--no-fill"]);
    let part = "# leasehold profile 1\nread 0+4096,65536+10 /d1/below/f5\nopen /d0/below/f0\nlist /\n";
    std::fs::write(&second, part).unwrap();
    let warmed = asked(&tree, "warm", &["--profile", &second]);
    assert_eq!((&done(&warmed)["fetched"], &done(&warmed)["failed"]), (&2.into(), &0.into()), "{warmed:?}");
    let warmed = asked(&tree, "warm", &["--profile", &first]);
    assert_eq!((&done(&warmed)["gone"], &done(&warmed)["failed"]), (&0.into(), &0.into()), "{warmed:?}");
    let stat = asked(&tree, "stat", &["/d1/below/f5", "/d0/below/f2", "/d0/below/f4"]);
    let complete: Vec<_> = entries(&stat).iter().map(|entry| entry["complete"].clone()).collect();
    assert_eq!(complete, ["complete", "complete", "nothing"], "{stat:?}");
    proxy.terminate();

    // A cache that is too small says so, and the mistakes of a user are one line.
    std::fs::remove_dir_all(tree.path("cache")).unwrap();
    let proxy = tree.proxy_with(&serve, &["--cache-size", "80K", "--no-fill"]);
    fails_with(&cache(&tree, "warm", &["--profile", &first]), &["no space for /d", "--cache-size"]);
    fails_with(&cache(&tree, "warm", &["--profile", &tree.path("none")]), &["cannot read the profile"]);
    fails_with(&cache(&tree, "warm", &["--profile", &tree.path("served/file")]), &["this is no profile"]);
    fails_with(&cache(&tree, "record", &["-o", "/proc/none/x", "--", "true"]), &["cannot write the profile"]);
    fails_with(&cache(&tree, "record", &["-o", &second, "--", "/none/such"]), &["cannot run /none/such"]);
    assert_eq!(std::fs::read_to_string(&second).unwrap(), part, "the earlier profile stays");
    let beside = std::fs::read_dir(std::path::Path::new(&second).parent().unwrap()).unwrap();
    let mut names = beside.map(|entry| entry.unwrap().file_name());
    assert!(!names.any(|name| name.to_string_lossy().starts_with(".second")), "nothing else stays");
    // A hang-up reaches the command, whose exit code is told, and the profile is written.
    let hung = tree.path("hung");
    let ended = cache(&tree, "record", &["-o", &hung, "--", "sh", "-c", "kill -HUP $PPID; exec sleep 60"]);
    assert_eq!(ended.status.code(), Some(128 + 1), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(std::fs::exists(&hung).unwrap());
    for wrong in ["1000", "1000:", "1:2,x", "-1:0"] {
        let output = cache(&tree, "warm", &["--profile", &first, "--as", wrong]);
        assert_eq!(output.status.code(), Some(2), "{wrong}");
    }
    // The origin goes away: the replay says so, and does not wait for ever.
    std::fs::write(&second, "# leasehold profile 1\nlist /d1/below\nread 0+10 /d1/below/f1\n").unwrap();
    drop(serve);
    fails_with(&cache(&tree, "warm", &["--profile", &second]), &["the origin does not answer"]);
    drop(proxy);
    fails_with(&cache(&tree, "warm", &["--profile", &second]), &["`warm` needs the origin"]);
}
