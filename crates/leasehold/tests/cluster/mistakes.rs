//! Members that do not fit, and what they are told. Nothing is served that could be wrong.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::program::{self, path};
use crate::site::{Site, secret};

/// Starts a member of a wrong configuration, and waits for a line on standard error with these words.
fn told(config: &std::path::Path, words: &str) {
    let mut command = program::leasehold(&["proxy", "--config", path(config)]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut heard = Vec::new();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let is_told = lines.map_while(Result::ok).any(|line| {
        heard.push(line.clone());
        line.contains(words)
    });
    let _ = child.kill();
    let _ = child.wait();
    assert!(is_told, "{words}: {heard:?}");
}

// Promise: virtual-servers
#[test]
fn members_that_do_not_fit_are_refused() {
    let site = Site::new(&["m1"]);
    // Other tables: the same servers, and another path.
    let other = site.config("m2", "");
    let text = std::fs::read_to_string(&other).unwrap();
    std::fs::write(&other, format!("{text}path = '/elsewhere'\n")).unwrap();
    told(&other, "member m1 has other [[server]] or [[origin]] tables, or another handle key");
    // Another key.
    let key = site.home.path().join("other-key");
    secret(&key, 8);
    let text = text.replace(&format!("{}/key", site.home.path().display()), path(&key));
    std::fs::write(&other, text).unwrap();
    told(&other, "or another handle key; all members must have the same");
    // The same name in another directory.
    let same = site.config("m1", "");
    let text = std::fs::read_to_string(&same).unwrap().replace("/m-m1", "/m-m9");
    std::fs::write(&same, text).unwrap();
    told(&same, "a member m1 is in the cluster already");
    assert_eq!(site.holder(0), "m1");

    // A cluster whose part of etcd has something else.
    let put = |key: &str| {
        let endpoints = format!("--endpoints={}", site.etcd.endpoints()[0]);
        let mut command = std::process::Command::new("etcdctl");
        assert!(
            command.env("ETCDCTL_API", "3").args([&endpoints, "put", key, "x"]).status().unwrap().success()
        );
    };
    put("/leasehold/odd/live/servers/10.0.0.5:2049");
    let odd = site.config("m3", "");
    let text = std::fs::read_to_string(&odd).unwrap().replace("name = 'site'", "name = 'odd'");
    std::fs::write(&odd, text).unwrap();
    told(&odd, "in etcd is not of this version of Leasehold; choose another name of the cluster");
}

#[test]
fn a_configuration_that_cannot_work_ends_at_once() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("c.toml");
    let text = "handle_key = '/nonexistent/key'\n[cluster]\nname = 's'\nmember = 'a'\nendpoints = ['http://127.0.0.1:9']\n\
                [[server]]\naddress = '127.0.0.5:2049'\n[[origin]]\nurl = 'nfs://127.0.0.1:9/a'\n";
    std::fs::write(&file, format!("cache = '{}/c'\n{text}", home.path().display())).unwrap();
    let output = program::run(&["proxy", "--config", path(&file)]);
    program::fails_with(&output, &["cannot read the handle key", "copy it to all members"]);
    let output = program::run(&["cluster", "status", path(home.path())]);
    assert!(!output.status.success());
}
