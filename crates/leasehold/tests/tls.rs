//! `serve` and `proxy` with TLS, as a user starts them, and clients that may or may not use them.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "../../rpc/tests/tls/pki.rs"]
mod pki;
mod program;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Origin, Url};
use pki::{Issued, Pki};
use program::{Running, Tree};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use vfs::{Caller, Data, Name, OpenRequest, Owner, Share, Stability, StateidBasis, Want};

/// Another protocol on the same port each.
const VERSIONS: [&str; 4] = ["3", "4.1", "4.2", "nqnfs"];
const BYTES: usize = 5 << 20;

/// A CA, a served directory with a large file, and the certificates of both ends.
struct Setting {
    pki: Pki,
    tree: Tree,
    server: Issued,
    client: Issued,
}

impl Setting {
    fn new() -> Setting {
        let (pki, tree) = (Pki::new(), Tree::new());
        std::fs::write(format!("{}/large", tree.path("served")), content()).unwrap();
        let (server, client) = (pki.issue("server", &["127.0.0.1"]), pki.issue("client", &["client"]));
        Setting { pki, tree, server, client }
    }

    /// The options of the server's side.
    fn tls(&self, policy: &str) -> Vec<String> {
        let (certificate, key) = (&self.server.certificate, &self.server.key);
        let files = [certificate, key, &self.pki.ca()].map(|path| path.display().to_string());
        let [certificate, key, ca] = files;
        let words = ["--tls", policy, "--tls-certificate", &certificate, "--tls-key", &key];
        words.into_iter().chain(["--tls-client-ca", &ca]).map(str::to_owned).collect()
    }

    fn serve(&self, policy: &str, more: &[&str]) -> Running {
        let (served, state) = (self.tree.path("served"), self.tree.path("state"));
        let (tls, own) = (self.tls(policy), ["serve", &served, "--export", "/export", "--state", &state]);
        let tls: Vec<&str> = tls.iter().map(String::as_str).collect();
        Running::start(&[&own[..], &tls, more].concat())
    }

    fn options(&self, xprtsec: &str, ca: &Pki) -> String {
        let own = match xprtsec {
            "mtls" => {
                format!("&tlscert={}&tlskey={}", self.client.certificate.display(), self.client.key.display())
            }
            _ => String::new(),
        };
        format!("&xprtsec={xprtsec}&tlsca={}{own}", ca.ca().display())
    }

    fn url(&self, server: &Running, version: &str, xprtsec: &str) -> String {
        let tls = if xprtsec == "none" { String::new() } else { self.options(xprtsec, &self.pki) };
        format!("{}&vers={version}{tls}", server.url())
    }

    async fn connect(&self, server: &Running, version: &str, xprtsec: &str) -> Arc<dyn Origin> {
        connect(&self.url(server, version, xprtsec)).await.unwrap()
    }
}

async fn connect(url: &str) -> Result<Arc<dyn Origin>, String> {
    let url = Url::parse(url).unwrap();
    let connecting = client::connect(&url);
    let connected = tokio::time::timeout(Duration::from_secs(60), connecting).await.unwrap();
    connected.map_err(|error| error.to_string())
}

fn content() -> Vec<u8> {
    (0..BYTES).map(|at| (at / 7 % 253) as u8).collect()
}

fn root() -> Caller {
    Caller::unix(0, 0, &[])
}

/// Reads a file of the export.
async fn read(client: &Arc<dyn Origin>, name: &str) -> Vec<u8> {
    let name = Name::new(name.as_bytes()).unwrap();
    let found = client.lookup(&root(), &client.root_handle(), &name, Want::None).await.unwrap();
    let mut all = Vec::new();
    loop {
        let (offset, by) = (all.len() as u64, StateidBasis::Anonymous);
        let read = client.read(&root(), &found.node.handle, by, offset, 1 << 20).await.unwrap();
        let Data::Bytes(bytes) = read.data else { panic!("bytes of a connection") };
        all.extend_from_slice(&bytes);
        if read.eof || bytes.is_empty() {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_version_reads_megabytes_over_tls_from_end_to_end() {
    for version in VERSIONS {
        let setting = Setting::new();
        let serve = setting.serve("require", &["--xprtsec", "mtls"]);
        let (origin, cache) = (setting.url(&serve, version, "mtls"), setting.tree.path("cache"));
        let tls = setting.tls("require");
        let own = ["proxy", &origin, "--cache", &cache, "--min-free", "0"].map(str::to_owned);
        let all: Vec<String> = own.into_iter().chain(tls).collect();
        let proxy = Running::start(&all.iter().map(String::as_str).collect::<Vec<_>>());
        for xprtsec in ["tls", "mtls"] {
            let client = setting.connect(&proxy, version, xprtsec).await;
            assert!(read(&client, "large").await == content(), "version {version} with {xprtsec}");
        }
        let direct = setting.connect(&serve, version, "mtls").await;
        assert!(read(&direct, "large").await == content(), "version {version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recall_of_a_delegation_comes_over_tls() {
    let setting = Setting::new();
    let serve = setting.serve("require", &["--delegations", "always"]);
    let (origin, cache) = (setting.url(&serve, "4.2", "mtls"), setting.tree.path("cache"));
    let proxy = Running::start(&["proxy", &origin, "--cache", &cache, "--min-free", "0"]);
    let behind = setting.connect(&proxy, "4.2", "none").await;
    let owner = Owner(Bytes::from_static(b"owner"));
    let open = |client: Arc<dyn Origin>, share: Share| {
        let name = Some(Name::new(b"file").unwrap());
        let request = OpenRequest {
            want: Want::Read,
            ..OpenRequest::new(client.root_handle(), name, owner.clone(), share)
        };
        async move { client.open(&root(), &request).await.unwrap() }
    };
    open(behind.clone(), Share::READ).await;
    assert_eq!(read(&behind, "file").await, b"content");
    let held = |server: &str| -> Value {
        let status = program::run(&["status", "--json", server]);
        serde_json::from_slice(&status.stdout).unwrap()
    };
    let state = setting.tree.path("state");
    let recalls = |status: &Value| status["held"]["/export"]["recalls"].as_u64().unwrap();
    assert_eq!(recalls(&held(&state)), 0);
    let writer = setting.connect(&serve, "4.2", "tls").await;
    let opened = open(writer.clone(), Share::all()).await;
    let (by, data) = (StateidBasis::Open(opened.id), Bytes::from_static(b"changed"));
    writer.write(&root(), &opened.handle, by, 0, data, Stability::FileSync).await.unwrap();
    assert_eq!(read(&behind, "file").await, b"changed");
    let status = held(&state);
    assert!(recalls(&status) >= 1, "{status}");
    assert_eq!(status["held"]["/export"]["revoked"], 0, "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_text_gets_nothing_where_tls_is_required() {
    let setting = Setting::new();
    let serve = setting.serve("require", &[]);
    for version in VERSIONS {
        let refused = connect(&setting.url(&serve, version, "none")).await.unwrap_err();
        assert!(refused.contains("xprtsec=tls") || version == "nqnfs", "{version}: {refused}");
    }
    // MOUNT over UDP, too.
    let url = format!("{}&mountproto=udp", setting.url(&serve, "3", "none"));
    let refused = connect(&url).await.unwrap_err();
    assert!(refused.contains("xprtsec=tls"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_certificate_gets_nothing_where_one_is_required() {
    let setting = Setting::new();
    let serve = setting.serve("allow", &["--xprtsec", "mtls"]);
    for version in ["3", "4.2"] {
        for xprtsec in ["none", "tls"] {
            let refused = connect(&setting.url(&serve, version, xprtsec)).await.unwrap_err();
            assert!(refused.contains("mtls"), "{version}, {xprtsec}: {refused}");
        }
        let client = setting.connect(&serve, version, "mtls").await;
        assert_eq!(read(&client, "file").await, b"content");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_that_prove_nothing_are_refused_and_told_once() {
    let setting = Setting::new();
    let other = Pki::new();
    let serve = setting.serve("allow", &[]);
    for version in ["3", "4.2"] {
        let wrong_ca = format!("{}&vers={version}{}", serve.url(), setting.options("tls", &other));
        let refused = connect(&wrong_ca).await.unwrap_err();
        assert!(refused.contains("no CA that is trusted here"), "{refused}");
        let wrong_name = setting.url(&serve, version, "tls").replace("127.0.0.1", "localhost");
        let refused = connect(&wrong_name).await.unwrap_err();
        assert!(refused.contains("has another name"), "{refused}");
        for own in [other.issue("other", &["client"]), setting.pki.issue_until("late", &["client"], 2020)] {
            let url = format!(
                "{}&vers={version}&xprtsec=mtls&tlsca={}&tlscert={}&tlskey={}",
                serve.url(),
                setting.pki.ca().display(),
                own.certificate.display(),
                own.key.display()
            );
            let refused = connect(&url).await.unwrap_err();
            assert!(refused.contains("our certificate"), "{refused}");
        }
    }
    let log = serve.terminate();
    assert_eq!(log.matches("a client is refused").count(), 1, "{log}");
    let plain = setting.tree.serve();
    let refused = connect(&setting.url(&plain, "4.2", "tls")).await.unwrap_err();
    assert!(refused.contains("the server offers no TLS"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_export_says_what_it_needs() {
    let setting = Setting::new();
    let config = setting.tree.path("exports.toml");
    std::fs::create_dir(setting.tree.path("open")).unwrap();
    std::fs::write(format!("{}/file", setting.tree.path("open")), "for all").unwrap();
    let export = |path: &str, directory: &str, xprtsec: &str| {
        format!(
            "[[export]]\npath = '{path}'\ndirectory = '{}'\nxprtsec = '{xprtsec}'\nsecure = false\nroot_squash = false\n",
            setting.tree.path(directory)
        )
    };
    let both = [export("/export", "served", "tls:mtls"), export("/open", "open", "none:tls")].concat();
    std::fs::write(&config, both).unwrap();
    let (state, tls) = (setting.tree.path("state"), setting.tls("allow"));
    let own = ["serve", "--config", &config, "--state", &state].map(str::to_owned);
    let all: Vec<String> = own.into_iter().chain(tls).collect();
    let serve = Running::start(&all.iter().map(String::as_str).collect::<Vec<_>>());
    for version in ["3", "4.2"] {
        let plain = setting.url(&serve, version, "none");
        let open = connect(&plain.replace("/export", "/open")).await.unwrap();
        assert_eq!(read(&open, "file").await, b"for all");
        let refused = connect(&plain).await.unwrap_err();
        assert!(refused.contains("xprtsec=tls"), "{refused}");
        assert_eq!(read(&setting.connect(&serve, version, "tls").await, "file").await, b"content");
        let certified = setting.url(&serve, version, "mtls").replace("/export?", "/open?");
        assert!(connect(&certified).await.is_err(), "`none:tls` has no mtls");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_signal_brings_new_certificates() {
    let setting = Setting::new();
    let serve = setting.serve("require", &[]);
    let before = setting.connect(&serve, "4.2", "tls").await;
    let new = Pki::new();
    let replacement = new.issue("replacement", &["127.0.0.1"]);
    std::fs::copy(replacement.certificate, &setting.server.certificate).unwrap();
    std::fs::copy(replacement.key, &setting.server.key).unwrap();
    kill_process(Pid::from_child(&serve.child), Signal::HUP).unwrap();
    let trusting_new = format!("{}&vers=4.2{}", serve.url(), setting.options("tls", &new));
    let connected = async {
        loop {
            match connect(&trusting_new).await {
                Ok(connected) => return connected,
                Err(old) => assert!(old.contains("no CA that is trusted here"), "{old}"),
            }
        }
    };
    let after = tokio::time::timeout(Duration::from_secs(60), connected).await.unwrap();
    assert!(read(&after, "large").await == content());
    assert_eq!(read(&before, "file").await, b"content");
}

/// A kernel's view of it.
#[test]
fn a_mount_reads_and_writes_over_tls() {
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !(device && rustix::process::geteuid().is_root()) {
        return eprintln!("skipped: mounting takes root and /dev/fuse");
    }
    let setting = Setting::new();
    let serve = setting.serve("require", &["--xprtsec", "mtls"]);
    let (mnt, cache) = (setting.tree.path("mnt"), setting.tree.path("cache"));
    std::fs::create_dir(&mnt).unwrap();
    for version in ["3", "4.2"] {
        let tls = setting.options("mtls", &setting.pki).replace('&', ",");
        let options = format!("vers={version},noresvport,minfree=0,cache={cache}{tls}");
        let url = format!("nfs://{}/export", serve.address);
        let mounted = program::run(&["mount", &url, &mnt, "-o", &options]);
        assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
        let read = std::fs::read(format!("{mnt}/large"));
        let written = std::fs::write(format!("{mnt}/of {version}"), content());
        let unmounted = program::run(&["umount", &mnt]);
        if !unmounted.status.success() {
            let _ = Command::new("umount").args(["-l", &mnt]).status();
        }
        assert!(read.unwrap() == content() && written.is_ok() && unmounted.status.success());
        let arrived = std::fs::read(format!("{}/of {version}", setting.tree.path("served"))).unwrap();
        assert!(arrived == content(), "version {version}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_at_the_start() {
    let setting = Setting::new();
    let served = setting.tree.path("served");
    let certificate = setting.server.certificate.display().to_string();
    let fails = |arguments: &[&str], words: &[&str]| program::fails_with(&program::run(arguments), words);
    fails(&["serve", &served, "--tls", "require"], &["--tls-certificate"]);
    fails(&["serve", &served, "--xprtsec", "tls"], &["nobody could use", "--tls allow"]);
    fails(&["serve", &served, "--tls", "allow", "--tls-certificate", &certificate], &["no private key"]);
    fails(&["proxy", "nfs://h/x?xprtsec=mtls"], &["xprtsec=mtls", "tlscert=FILE"]);
    fails(&["proxy", "nfs://h/x?tlsca=/x"], &["xprtsec=none", "tlsca"]);
    fails(&["proxy", "nfs://h/x?xprtsec=tls&udp"], &["TLS needs TCP"]);
}
