//! `serve`, `proxy` and `mount` with Kerberos, as a user starts them, with a KDC. Skipped for who is not root:
//! the test makes files of several users.
//!
//! Promise: proven-users
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../program/mod.rs"]
mod program;
mod setting;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lab::with_realm;
use program::{Running, fails_in_lines, fails_with, leasehold, run};
use setting::{BIN, DAEMON, GAMES, Setting, connect, content, read, user};
use vfs::{CreateHow, Name, OpenRequest, Owner, SetAttributes, Share, Stability, StateidBasis, Status, Want};

const VERSIONS: [&str; 3] = ["3", "4.1", "4.2"];
const PROTECTIONS: [&str; 3] = ["krb5", "krb5i", "krb5p"];
const ALL: &str = "krb5:krb5i:krb5p";
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test in a realm, with a runtime.
fn in_realm(name: &str, body: impl AsyncFnOnce(Setting<'_>)) {
    if !lab::is_root() {
        eprintln!("skipped: {name} needs root");
        return;
    }
    with_realm(name, |realm| {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(body(Setting::new(realm)));
    });
}

/// Mounts the export for all users.
fn mount(setting: &Setting<'_>, serve: &Running) -> String {
    let (directory, cache) = (setting.tree.path("mnt"), setting.tree.path("cache"));
    std::fs::create_dir(&directory).unwrap();
    let url = format!("nfs://{}/export", serve.address.replace("127.0.0.1", "localhost"));
    let options = format!("cache={cache},minfree=0,noresvport,allow_other,{}", setting.options("krb5p"));
    let mounted = run(&["mount", &url, &directory, "-o", &options]);
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    directory
}

fn umount(directory: &str) {
    let ended = run(&["umount", directory]);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

/// A script that a user of this machine runs.
fn as_user(uid: u32, script: &str) -> Command {
    let mut command = Command::new("setpriv");
    let id = uid.to_string();
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c", script]);
    command
}

#[test]
fn users_are_told_apart_in_every_version_and_protection() {
    in_realm("users_are_told_apart_in_every_version_and_protection", async |setting| {
        let serve = setting.serve(ALL);
        for (version, sec) in VERSIONS.into_iter().flat_map(|version| PROTECTIONS.map(|sec| (version, sec))) {
            let client = setting.connect(&serve, version, sec).await;
            assert!(read(&client, DAEMON, "secret").await.unwrap() == content(), "{version} {sec}");
            assert_eq!(read(&client, BIN, "secret").await, Err(Status::Access), "{version} {sec}");
            assert!(read(&client, BIN, "open").await.unwrap() == content(), "{version} {sec}");
            // Root is the machine, which is no user of the server.
            assert_eq!(read(&client, 0, "secret").await, Err(Status::Access), "{version} {sec}");
            assert_eq!(
                read(&client, GAMES, "open").await,
                Err(Status::NoTicket),
                "{version} {sec}: no ticket"
            );
        }
        // Of each client: the machine and two users.
        let status = run(&["status", &setting.tree.path("state"), "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        assert_eq!(status["load"]["kerberos_contexts"], VERSIONS.len() * PROTECTIONS.len() * 3, "{status}");
    });
}

#[test]
fn what_a_user_makes_is_the_users_own() {
    in_realm("what_a_user_makes_is_the_users_own", async |setting| {
        let serve = setting.serve(ALL);
        for (version, sec) in [("4.1", "krb5i"), ("4.2", "krb5p"), ("4.2", "krb5")] {
            let client = setting.connect(&serve, version, sec).await;
            let all = Name::new(b"all").unwrap();
            let root = client.root_handle();
            let all = client.lookup(&user(BIN), &root, &all, Want::None).await.unwrap().node.handle;
            let name = format!("of-{version}-{sec}");
            let request = OpenRequest {
                create: Some((
                    CreateHow::Unchecked,
                    SetAttributes { mode: Some(0o640), ..SetAttributes::default() },
                )),
                ..OpenRequest::new(
                    all,
                    Some(Name::new(name.as_bytes()).unwrap()),
                    Owner(Bytes::from_static(b"owner")),
                    Share::all(),
                )
            };
            let opened = client.open(&user(BIN), &request).await.unwrap();
            let (by, data) = (StateidBasis::Open(opened.id), Bytes::from(content()).slice(..1 << 20));
            let bin = user(BIN);
            let written = client.write(&bin, &opened.handle, by, 0, data.clone(), Stability::FileSync);
            assert_eq!(written.await.unwrap().count as usize, data.len());
            client.close(&user(BIN), opened.id).await.unwrap();
            let path = format!("{}/all/{name}", setting.tree.path("served"));
            assert_eq!(std::fs::metadata(&path).unwrap().uid(), BIN, "{name}");
            assert!(std::fs::read(&path).unwrap() == data, "{name}");
        }
    });
}

#[test]
fn an_export_takes_the_flavors_that_it_names_and_no_other() {
    in_realm("an_export_takes_the_flavors_that_it_names_and_no_other", async |setting| {
        let serve = setting.serve("krb5p");
        for version in VERSIONS {
            for sec in ["sys", "krb5", "krb5i"] {
                let refused = connect(&setting.url(&serve, version, sec)).await.unwrap_err();
                assert!(refused.contains("krb5p"), "{version} {sec}: {refused}");
                assert!(!refused.contains('\n'), "{refused}");
            }
            let client = setting.connect(&serve, version, "krb5p").await;
            assert!(read(&client, DAEMON, "secret").await.is_ok());
        }
        // NQNFS has no Kerberos, and its client is told nothing.
        let client = setting.connect(&serve, "nqnfs", "sys").await;
        assert_eq!(read(&client, DAEMON, "open").await, Err(Status::Access));
        drop(serve);
        let plain = setting.tree.serve();
        let refused = connect(&setting.url(&plain, "4.2", "krb5")).await.unwrap_err();
        assert!(refused.contains("takes no Kerberos"), "{refused}");
    });
}

#[test]
fn clients_go_on_after_a_kill_of_the_server_which_loses_all_contexts() {
    in_realm("clients_go_on_after_a_kill_of_the_server_which_loses_all_contexts", async |setting| {
        let mut serve = setting.serve(ALL);
        let mut clients = Vec::new();
        for (version, sec) in VERSIONS.into_iter().zip(PROTECTIONS) {
            let client = setting.connect(&serve, version, sec).await;
            assert!(read(&client, DAEMON, "secret").await.is_ok());
            clients.push(client);
        }
        let address = serve.address.clone();
        serve.child.kill().unwrap();
        drop(serve);
        let _again = setting.serve_at(&address, ALL);
        for client in clients {
            assert!(read(&client, DAEMON, "secret").await.unwrap() == content());
            assert_eq!(read(&client, BIN, "secret").await, Err(Status::Access));
        }
    });
}

#[test]
fn a_user_who_gets_a_ticket_gets_on() {
    in_realm("a_user_who_gets_a_ticket_gets_on", async |setting| {
        setting.realm.set_clock_skew(Duration::from_secs(1));
        let serve = setting.serve(ALL);
        let client = setting.connect(&serve, "4.2", "krb5i").await;
        assert_eq!(read(&client, GAMES, "open").await, Err(Status::NoTicket));
        let gets = async |expected: bool| {
            let begun = Instant::now();
            while read(&client, GAMES, "open").await.is_ok() != expected {
                assert!(begun.elapsed() < PATIENCE, "{expected}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        // A ticket that ends soon, and another one.
        setting.keep(&setting.realm.tickets_for("games", 10), GAMES);
        gets(true).await;
        gets(false).await;
        setting.log_in("games", GAMES);
        gets(true).await;
        // Without a KDC, those who have a context go on.
        setting.realm.stop_kdc();
        assert!(read(&client, GAMES, "open").await.is_ok());
    });
}

#[test]
fn a_user_without_a_ticket_keeps_nobody_else_from_going_on_after_a_kill_of_the_server() {
    let name = "a_user_without_a_ticket_keeps_nobody_else_from_going_on_after_a_kill_of_the_server";
    in_realm(name, async |setting| {
        setting.realm.set_clock_skew(Duration::from_secs(1));
        let mut serve = setting.serve_at("127.0.0.1:0", ALL);
        let client = setting.connect(&serve, "4.2", "krb5i").await;
        setting.keep(&setting.realm.tickets_for("games", 8), GAMES);
        // Both have a file open, which they reclaim.
        for uid in [GAMES, DAEMON] {
            let request = OpenRequest {
                want: Want::Read,
                ..OpenRequest::new(
                    client.root_handle(),
                    Some(Name::new(b"open").unwrap()),
                    Owner(Bytes::from(format!("owner {uid}"))),
                    Share::READ,
                )
            };
            client.open(&user(uid), &request).await.unwrap();
        }
        let begun = Instant::now();
        while read(&client, GAMES, "open").await != Err(Status::NoTicket) {
            assert!(begun.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let address = serve.address.clone();
        serve.child.kill().unwrap();
        drop(serve);
        let _again = setting.serve_at(&address, ALL);
        let reading = read(&client, DAEMON, "secret");
        assert!(tokio::time::timeout(PATIENCE, reading).await.unwrap().unwrap() == content());
        assert_eq!(read(&client, GAMES, "open").await, Err(Status::NoTicket));
    });
}

#[test]
fn what_a_user_wrote_waits_for_a_ticket() {
    in_realm("what_a_user_wrote_waits_for_a_ticket", async |setting| {
        if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
            eprintln!("skipped: there is no /dev/fuse");
            return;
        }
        setting.realm.set_clock_skew(Duration::from_secs(1));
        let serve = setting.serve(ALL);
        let directory = mount(&setting, &serve);
        setting.keep(&setting.realm.tickets_for("games", 8), GAMES);
        let path = format!("{directory}/all/late");
        // The writer keeps the file open until the ticket has ended, writes more, and closes: it waits.
        let script = format!("exec 3> {path}; echo first >&3; sleep 14; echo second >&3");
        let mut writer = as_user(GAMES, &script).spawn().unwrap();
        let served = format!("{}/all/late", setting.tree.path("served"));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(18) {
            assert_ne!(std::fs::read_to_string(&served).unwrap_or_default(), "first\nsecond\n");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        setting.log_in("games", GAMES);
        let begun = Instant::now();
        while std::fs::read_to_string(&served).unwrap_or_default() != "first\nsecond\n" {
            assert!(begun.elapsed() < PATIENCE, "{:?}", std::fs::read_to_string(&served));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(writer.wait().unwrap().success());
        umount(&directory);
    });
}

#[test]
fn through_a_proxy_every_user_has_the_rights_of_the_origin_for_hits_too() {
    in_realm("through_a_proxy_every_user_has_the_rights_of_the_origin_for_hits_too", async |setting| {
        let serve = setting.serve("krb5i");
        let origin = setting.url(&serve, "4.2", "krb5i");
        let proxy = setting.proxy(&origin, "krb5p");
        for version in VERSIONS {
            let client = setting.connect(&proxy, version, "krb5p").await;
            assert_eq!(read(&client, BIN, "secret").await, Err(Status::Access), "{version}");
            for _ in 0..2 {
                assert!(read(&client, DAEMON, "secret").await.unwrap() == content(), "{version}");
                assert_eq!(read(&client, BIN, "secret").await, Err(Status::Access), "{version}");
                assert_eq!(read(&client, GAMES, "secret").await, Err(Status::NoTicket), "{version}");
            }
        }
    });
}

#[test]
fn processes_on_a_mount_act_with_the_tickets_of_their_users() {
    in_realm("processes_on_a_mount_act_with_the_tickets_of_their_users", async |setting| {
        if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
            eprintln!("skipped: there is no /dev/fuse");
            return;
        }
        let serve = setting.serve(ALL);
        let directory = mount(&setting, &serve);
        let act = |uid: u32, script: &str| {
            as_user(uid, script).current_dir(&directory).output().unwrap().status.success()
        };
        let own = act(DAEMON, "cat secret > /dev/null && echo mine > all/mine && chmod 600 all/mine");
        let (other, again) = (act(BIN, "cat secret"), act(BIN, "cat all/mine"));
        let (stranger, root) = (act(GAMES, "cat open"), act(0, "cat secret"));
        umount(&directory);
        assert_eq!((own, other, again, stranger, root), (true, false, false, false, false));
        let mine = format!("{}/all/mine", setting.tree.path("served"));
        assert_eq!(std::fs::read_to_string(&mine).unwrap(), "mine\n");
        assert_eq!(std::fs::metadata(&mine).unwrap().uid(), DAEMON);
    });
}

#[test]
fn options_that_make_no_sense_are_named() {
    in_realm("options_that_make_no_sense_are_named", async |setting| {
        let (served, state) = (setting.tree.path("served"), setting.tree.path("state"));
        let serve = |more: &[&str]| run(&[&["serve", &served, "--state", &state][..], more].concat());
        fails_with(
            &serve(&["--sec", "krb5", "--keytab", "/no/keytab"]),
            &["cannot accept Kerberos", "/no/keytab"],
        );
        let keytab = setting.keytab.display().to_string();
        fails_with(&serve(&["--keytab", &keytab]), &["no export accepts Kerberos", "--sec"]);
        let proxy = |options: &str| run(&["proxy", &format!("nfs://localhost:1/export?{options}")]);
        fails_with(&proxy("sec=krb5&vers=nqnfs"), &["sec=krb5", "NQNFS"]);
        fails_with(&proxy(&format!("keytab={keytab}")), &["sec=krb5"]);
        let server = setting.serve(ALL);
        // No key for this machine, and a server by a name that has no key.
        let url = setting.url(&server, "4.2", "krb5");
        let error = connect(&url.replace("keytab=", "keytab=/no")).await.unwrap_err();
        assert!(error.contains("no Kerberos with localhost") && error.contains("/no"), "{error}");
        let error = connect(&url.replace("localhost", "127.0.0.1")).await.unwrap_err();
        assert!(error.contains("no Kerberos with 127.0.0.1"), "{error}");
    });
}

/// As on systems where krb5.conf says `default_ccache_name = KEYRING:persistent:%{uid}`.
#[test]
fn tickets_in_a_persistent_keyring_are_the_users_own() {
    in_realm("tickets_in_a_persistent_keyring_are_the_users_own", async |setting| {
        let serve = setting.serve(ALL);
        let url = setting.url(&serve, "4.2", "krb5i");
        let (usual, _) = url.split_once("&ccachedir=").unwrap();
        let client = connect(usual).await.unwrap();
        setting.log_in_keyring("games", GAMES);
        assert!(read(&client, GAMES, "open").await.unwrap() == content());
        assert_eq!(read(&client, GAMES, "secret").await, Err(Status::Access));
        assert_eq!(read(&client, BIN, "open").await, Err(Status::NoTicket), "no ticket in a keyring");
        assert!(rustix::process::geteuid().is_root());
        setting.log_out_keyring(GAMES);
        let later = connect(usual).await.unwrap();
        assert_eq!(read(&later, GAMES, "open").await, Err(Status::NoTicket));
        // Where a directory is named, nothing else counts.
        setting.log_in_keyring("games", GAMES);
        let named = connect(&url).await.unwrap();
        assert_eq!(read(&named, GAMES, "open").await, Err(Status::NoTicket));
        setting.log_out_keyring(GAMES);
    });
}

/// When a site starts, a proxy may be up before the KDC.
#[test]
fn a_proxy_waits_for_a_kdc_that_does_not_answer_unless_it_is_soft() {
    let name = "a_proxy_waits_for_a_kdc_that_does_not_answer_unless_it_is_soft";
    in_realm(name, async |setting| {
        let serve = setting.serve(ALL);
        let (url, cache) = (setting.url(&serve, "4.2", "krb5"), setting.tree.path("cache"));
        let own = ["--cache", &cache, "--min-free", "0", "--listen", "127.0.0.1:0"];
        setting.realm.stop_kdc();
        let soft = format!("{url}&soft");
        let words = ["no Kerberos with localhost", "KDC"];
        fails_in_lines(&run(&[&["proxy", &soft][..], &own].concat()), &words, 3);
        let mut command = leasehold(&[&["proxy", &url][..], &own].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let told = BufReader::new(child.stderr.take().unwrap());
        let mut proxy = Running { child, address: String::new() };
        let mut told = told.lines().map_while(Result::ok);
        assert!(told.any(|line| line.contains("KDC") && line.ends_with("still trying")));
        setting.realm.start_kdc();
        let mut ready = String::new();
        BufReader::new(proxy.child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("proxy of nfs://localhost"), "{ready}");
    });
}
