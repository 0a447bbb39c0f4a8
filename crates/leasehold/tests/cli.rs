//! The program as a user runs it, with mistakes, too. Checks exit codes, and that a failure is one line that
//! names thing, cause and way out.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod program;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use program::{Tree, fails_with, path, run};
use serde_json::Value;

#[test]
fn mistakes_on_the_command_line_are_code_2() {
    for wrong in
        [&["serve"][..], &["proxy", "http://host/"], &["proxy", "nfs://host/x?acregmin=soon"], &["mend"]]
    {
        let output = run(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    let error = String::from_utf8(run(&["proxy", "nfs://host/x?colour=red"]).stderr).unwrap();
    assert!(error.contains("unknown option `colour=red`") && error.contains("nconnect"), "{error}");
    assert!(run(&["proxy", "--help"]).status.success());
}

#[test]
fn a_computed_tree_is_served_in_place_of_a_directory() {
    let tree = Tree::new();
    let state = tree.path("state");
    for (shape, reason) in [
        ("files=many", "\"many\" is no value of files"),
        ("size=3", "\"size=3\" is not one of files=N"),
        ("files=1,files=2", "files is given twice"),
    ] {
        let output = run(&["serve", "--synthetic", shape, "--state", &state]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.lines().next().unwrap().contains(reason), "{error}");
    }
    let shape = "files=25,per-directory=10,bytes=100,seed=7";
    let both = run(&["serve", &tree.path("served"), "--synthetic", shape, "--state", &state]);
    assert_eq!(both.status.code(), Some(2));
    let serve =
        program::Running::start(&["serve", "--synthetic", shape, "--export", "/export", "--state", &state]);
    let url = client::Url::parse(&serve.url()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let read = runtime.block_on(async {
        let (client, caller) = (client::connect(&url).await.unwrap(), vfs::Caller::unix(0, 0, &[]));
        let mut at = client.root_handle();
        for name in ["d0000001", "f0000003"] {
            let name = vfs::Name::new(name.as_bytes()).unwrap();
            at = client.lookup(&caller, &at, &name, vfs::Want::None).await.unwrap().node.handle;
        }
        client.read(&caller, &at, vfs::StateidBasis::Anonymous, 0, 200).await.unwrap().data.to_bytes()
    });
    let expected = shape.parse::<synthetic::Shape>().unwrap().bytes(13);
    assert_eq!(read.unwrap(), expected);
}

#[test]
fn options_of_one_export_are_refused_beside_a_configuration_file() {
    let tree = Tree::new();
    let (config, state) = (tree.path("exports.toml"), tree.path("state"));
    std::fs::write(&config, "").unwrap();
    let options: [&[&str]; 8] = [
        &["--export", "/x"],
        &["--async"],
        &["--no-crossmnt"],
        &["--exclusive"],
        &["--refer", "/srv@other.example.com"],
        &["--ro"],
        &["--clients", "192.0.2.7"],
        &["--anonuid", "65534"],
    ];
    for options in options {
        let output = run(&[&["serve", "--config", &config, "--state", &state], options].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {error}");
        assert!(error.contains("--config") && error.contains(options[0]), "{options:?}: {error}");
    }
}

#[test]
fn a_directory_or_port_that_cannot_be_had_is_one_line() {
    let tree = Tree::new();
    fails_with(&run(&["serve", "/nonexistent", "--state", &tree.path("state")]), &["/nonexistent"]);
    let serve = tree.serve();
    let other = tempfile::tempdir().unwrap();
    let taken = ["serve", &tree.path("served"), "--state", path(other.path()), "--listen", &serve.address];
    fails_with(&run(&taken), &["cannot listen on", &serve.address, "--listen"]);
    let same_state = ["serve", &tree.path("served"), "--state", &tree.path("state")];
    fails_with(&run(&same_state), &["in use", &tree.path("state")]);
    let no_export = format!("nfs://{}/elsewhere?noresvport", serve.address);
    fails_with(
        &run(&["proxy", &no_export, "--cache", &tree.path("cache")]),
        &["/elsewhere", "there is no such path"],
    );
    let config = tree.path("exports.toml");
    std::fs::write(&config, "[[export]]\ndirectory = 3\n").unwrap();
    fails_with(
        &run(&["serve", "--config", &config, "--state", &tree.path("state")]),
        &["exports.toml:2:13: "],
    );
}

#[test]
fn who_is_referred_elsewhere_is_told_where() {
    let tree = Tree::new();
    let (served, state) = (tree.path("served"), tree.path("state"));
    let places = "/srv@other.example.com+192.0.2.7:/@[2001:db8::1]";
    let options = ["serve", &served, "--state", &state, "--export", "/export", "--refer", places];
    let serve = program::Running::start(&options);
    let below = format!("nfs://{}/export/below?noresvport", serve.address);
    for (url, path) in [(serve.url(), ""), (below, "/below")] {
        let words = [
            "/export".to_owned(),
            serve.address.clone(),
            format!("use nfs://other.example.com/srv{path} or nfs://192.0.2.7/srv{path} or "),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        fails_with(&run(&["proxy", &url, "--cache", &tree.path("cache")]), &words);
    }
    let v3 = format!("{}&vers=3&mountport={}", serve.url(), serve.address.rsplit(':').next().unwrap());
    fails_with(&run(&["proxy", &v3, "--cache", &tree.path("cache")]), &["there is no such export"]);
    serve.terminate();

    // A referral below the mounted export is reported in the log, and the files beside it can be read.
    let config = tree.path("exports.toml");
    std::fs::write(tree.path("served/beside"), "content").unwrap();
    let away = format!("{served}/away");
    std::fs::create_dir(&away).unwrap();
    let text = format!(
        "[[export]]\ndirectory = '{served}'\npath = '/export'\nroot_squash = false\nsecure = false\n\
         [[export]]\ndirectory = '{away}'\npath = '/export/away'\nsecure = false\nrefer = '/srv@other.example.com'\n"
    );
    std::fs::write(&config, text).unwrap();
    let serve = program::Running::start(&["serve", "--config", &config, "--state", &state]);
    let proxy = tree.proxy_with(&serve, &["--referrals", "report"]);
    let listed = run(&["cache", "warm", &tree.path("cache"), "/", "--json"]);
    let said = proxy.terminate();
    assert!(said.contains("`away` is not on") && said.contains("nfs://other.example.com/srv"), "{said}");
    assert!(String::from_utf8_lossy(&listed.stdout).contains("done"), "{listed:?}");
    serve.terminate();
    let wrong = ["serve", &served, "--state", &state, "--refer", "other.example.com"];
    assert_eq!(run(&wrong).status.code(), Some(2));
}

#[test]
fn a_cache_directory_is_for_one_proxy_of_one_origin() {
    let tree = Tree::new();
    let serve = tree.serve();
    let proxy = tree.proxy(&serve);
    let cache = tree.path("cache");
    fails_with(&run(&["proxy", &serve.url(), "--cache", &cache]), &["in use", &cache]);
    let status = run(&["status", "--json", &cache]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["role"], "proxy");
    assert!(status["cache"]["data"]["hits"].is_u64(), "{status}");
    proxy.terminate();
    fails_with(&run(&["status", &cache]), &["nothing answers"]);
    let other = Tree::new();
    let elsewhere = other.serve();
    fails_with(&run(&["proxy", &elsewhere.url(), "--cache", &cache]), &[&cache, "--cache"]);
    let file = tree.path("served/file");
    fails_with(&run(&["proxy", &serve.url(), "--cache", &file]), &[&file]);
    fails_with(&run(&["proxy", &serve.url(), "--cache", "/proc/leasehold"]), &["/proc/leasehold"]);
}

#[test]
fn a_cache_that_may_take_nothing_is_told_of() {
    let tree = Tree::new();
    let serve = tree.serve();
    let cache = tree.path("cache");
    let proxy = program::Running::start(&["proxy", &serve.url(), "--cache", &cache, "--min-free", "900T"]);
    let said = proxy.terminate();
    assert!(said.contains(&cache) && said.contains("--min-free") && said.lines().count() == 1, "{said}");
}

#[test]
fn who_may_not_ask_is_told_that_and_not_that_nobody_is_there() {
    let tree = Tree::new();
    let serve = tree.serve();
    let proxy = tree.proxy(&serve);
    let cache = tree.path("cache");
    if rustix::process::geteuid().is_root() {
        let (_directory, program) = program_for_nobody();
        for words in [&["status", &cache][..], &["cache", "ls", &cache]] {
            let output = Command::new(&program).args(words).uid(65534).gid(65534).output().unwrap();
            fails_with(&output, &[&cache, "Permission denied", "as root or as the owner"]);
        }
    }
    proxy.terminate();
}

#[test]
fn the_status_is_ten_lines_that_tell_of_a_silent_origin() {
    let tree = Tree::new();
    std::fs::create_dir_all(tree.path("served")).unwrap();
    std::fs::write(tree.path("served/file"), "content").unwrap();
    let serve = tree.serve();
    let proxy = tree.proxy(&serve);
    let cache = tree.path("cache");
    let told = |words: &[&str]| {
        let output = run(&[&["status"], words, &[&cache]].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(run(&["cache", "warm", &cache, "/"]).status.success());
    let summary = told(&[]);
    assert_eq!(summary.lines().count(), 10, "{summary}");
    let process = format!("process {}, Leasehold ", proxy.child.id());
    for words in ["proxy of nfs://", &process, "exports   /export", "trouble   none"] {
        assert!(summary.contains(words), "{words}: {summary}");
    }
    let all = told(&["--all"]);
    assert!(all.contains("  used_max_bytes: ") && all.lines().count() > 40, "{all}");
    assert_eq!(run(&["status", "--all", "--json", &cache]).status.code(), Some(2));

    let signal = |signal| {
        rustix::process::kill_process(rustix::process::Pid::from_child(&serve.child), signal).unwrap();
    };
    lab::freeze(rustix::process::Pid::from_child(&serve.child));
    let mut waiting = program::leasehold(&["cache", "warm", &cache, "/unknown"]).spawn().unwrap();
    let began = std::time::Instant::now();
    let silent = loop {
        let summary = told(&[]);
        if summary.contains("the origin has not answered for") {
            break summary;
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{summary}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    };
    signal(rustix::process::Signal::CONT);
    assert!(!silent.contains("trouble   none") && silent.contains("1 call waits"), "{silent}");
    assert!(!waiting.wait().unwrap().success());
    assert!(told(&[]).contains("trouble   none"));
    proxy.terminate();
}

#[test]
fn a_damaged_index_costs_warmth_and_nothing_else() {
    let tree = Tree::new();
    let serve = tree.serve();
    tree.proxy(&serve).terminate();
    let index = tree.directory.path().join("cache/index");
    let mut damaged = 0;
    let mut waiting = vec![index];
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                std::fs::write(path, b"this is no index").unwrap();
                damaged += 1;
            }
        }
    }
    assert!(damaged > 0);
    let error = tree.proxy(&serve).terminate();
    assert!(error.contains("put aside"), "{error}");
}

#[test]
fn the_demo_ends_by_itself_and_shows_what_it_is_for() {
    shows_what_it_is_for(&["demo", "--json", "--rtt-ms", "10"]);
}

/// The front, the arbiter, the client and the cache do not know which back end they have.
#[test]
fn the_demo_shows_the_same_with_its_origin_in_memory() {
    shows_what_it_is_for(&["demo", "--memory", "--json", "--rtt-ms", "10"]);
}

fn shows_what_it_is_for(demo: &[&str]) {
    let start = std::time::Instant::now();
    let output = run(demo);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(start.elapsed().as_secs() < 30);
    let table: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = table["rows"].as_array().unwrap();
    let [direct, cold, warm] = &rows[..] else { panic!("three rows: {table}") };
    let of = |row: &Value, call: &str| row["calls"][call].as_u64().unwrap_or(0);
    // The first READ of each file comes with its OPEN.
    assert_eq!(of(cold, "OPEN") + of(cold, "READ"), of(direct, "READ"), "cold, each file is read once");
    assert!(warm["calls"].get("READ").is_none() && warm["calls"].get("LOOKUP").is_none(), "{warm}");
    assert!(
        warm["origin_bytes"].as_u64().unwrap() * 100 < direct["origin_bytes"].as_u64().unwrap(),
        "{table}"
    );
}

/// Copies the program to a directory that every user may enter and write; the build directory may be closed
/// to others.
fn program_for_nobody() -> (tempfile::TempDir, std::path::PathBuf) {
    let nobody = tempfile::tempdir().unwrap();
    std::fs::set_permissions(nobody.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let program = nobody.path().join("leasehold");
    std::fs::copy(env!("CARGO_BIN_EXE_leasehold"), &program).unwrap();
    (nobody, program)
}

/// The README promises that the demo needs no root. If root runs this test, it becomes another user for the
/// demo.
#[test]
fn the_demo_needs_no_root() {
    let (nobody, program) = program_for_nobody();
    for origin in [&[][..], &["--memory"]] {
        let mut command = Command::new(&program);
        command.args(["demo", "--json", "--rtt-ms", "1"]).args(origin);
        command.env("TMPDIR", nobody.path()).stdin(Stdio::null());
        if rustix::process::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{origin:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn man_pages_are_written() {
    let directory = tempfile::tempdir().unwrap();
    assert!(run(&["man", path(directory.path())]).status.success());
    for page in [
        "leasehold.1",
        "leasehold-proxy.1",
        "leasehold-serve.1",
        "leasehold-cache.1",
        "leasehold-cache-warm.1",
    ] {
        assert!(directory.path().join(page).metadata().unwrap().len() > 500, "{page}");
    }
}

/// A pipe whose reader is closed, as after `| head -0`.
fn unread() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

#[test]
fn a_command_whose_answer_nobody_reads_ends_quietly_and_a_server_goes_on() {
    let tree = Tree::new();
    let serve = tree.serve();
    let (cache, state) = (tree.path("cache"), tree.path("state"));
    let url = serve.url();
    let mut proxy = program::leasehold(&[
        "proxy",
        &url,
        "--cache",
        &cache,
        "--min-free",
        "0",
        "--no-rpcbind",
        "--listen",
        "127.0.0.1:0",
    ]);
    let mut proxy = proxy.stdout(unread()).stderr(Stdio::null()).spawn().unwrap();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !run(&["status", &cache]).status.success() {
        assert!(std::time::Instant::now() < end, "the proxy does not answer");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for command in [
        &["status", &state][..],
        &["status", "--json", &state],
        &["cache", "ls", &cache],
        &["cache", "stat", &cache, "/"],
        &["cache", "du", "--json", &cache],
        &["cache", "verify", &cache],
        &["bench", "--list"],
        &["--help"],
    ] {
        let mut child = program::leasehold(command);
        let output =
            child.stdout(unread()).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.is_empty() && matches!(output.status.code(), Some(0 | 141)), "{command:?}: {error}");
    }
    assert!(proxy.try_wait().unwrap().is_none(), "the proxy goes on");
    proxy.kill().unwrap();
    proxy.wait().unwrap();
}
