//! Everyday programs on two mounts of one `serve`. git keeps every commit, sqlite keeps every transaction,
//! and copies equal their sources.

use std::fs;
use std::process::Command;

use crate::everyday::{self, Pair};
use crate::setting::{Setting, VERSIONS, may_mount};

/// Commits of each client.
const COMMITS: usize = 6;
/// Transactions of each client for each pair of journal modes.
const TRANSACTIONS: usize = 10;

fn may_run(program: &str) -> bool {
    may_mount() && everyday::has(program)
}

/// Two mounts of one server.
fn two_mounts(version: &str) -> (Setting, Pair) {
    let mut setting = Setting::new();
    setting.mount("a", &format!("vers={version}"));
    setting.mount("b", &format!("vers={version}"));
    let scratch = setting.place("scratch");
    fs::create_dir(&scratch).unwrap();
    let clients = ["a", "b"].map(|name| (name, setting.at(name, "")));
    let pair = Pair { clients, scratch, setting: format!("two mounts, version {version}") };
    (setting, pair)
}

#[test]
fn two_clients_of_one_git_repository_lose_no_commit() {
    if may_run("git") {
        for version in VERSIONS {
            let (_setting, pair) = two_mounts(version);
            everyday::git::play(&pair, everyday::commits(COMMITS));
        }
    }
}

#[test]
fn two_clients_of_one_sqlite_database_lose_no_transaction() {
    if may_run("sqlite3") {
        let (_setting, pair) = two_mounts("4.2");
        everyday::sqlite::play(&pair, everyday::commits(TRANSACTIONS));
    }
}

/// One client copies a tree, and the other client finds the same tree.
#[test]
fn a_tree_that_one_client_copies_is_what_the_other_finds() {
    for program in ["cp", "rsync"] {
        if !may_run(program) {
            continue;
        }
        for version in VERSIONS {
            let mut setting = Setting::new();
            setting.mount("a", &format!("vers={version}"));
            setting.mount("b", &format!("vers={version}"));
            let from = setting.place("tree");
            for directory in 0..5 {
                let directory = from.join(format!("d{directory}"));
                fs::create_dir_all(&directory).unwrap();
                for file in 0..20_usize {
                    fs::write(directory.join(format!("f{file}")), vec![file as u8; file * 1777]).unwrap();
                }
            }
            let copied =
                Command::new(program).arg("-a").arg(&from).arg(setting.at("a", "")).status().unwrap();
            assert!(copied.success(), "version {version}: {program}");
            let differs =
                Command::new("diff").arg("-r").arg(&from).arg(setting.at("b", "tree")).output().unwrap();
            let said = String::from_utf8_lossy(&differs.stdout).into_owned();
            assert!(differs.status.success(), "version {version}: {program}: {said}");
        }
    }
}
