//! etcd over TLS, which takes members with a certificate alone.

use crate::pki::Pki;
use crate::program::{self, fails_with, path};
use crate::site::{Site, open, write};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_reach_etcd_over_tls() {
    let pki = Pki::new();
    let (at_etcd, own) = (pki.issue("etcd", &["127.0.0.1"]), pki.issue("m1", &["m1"]));
    let etcd = lab::Etcd::start_over(
        1,
        Some(lab::EtcdTls { ca: pki.ca(), certificate: at_etcd.certificate, key: at_etcd.key }),
    );
    let mut site = Site::new(&["m1"]);
    site.terminate("m1");
    let config = site.config("m1", "");
    let text = std::fs::read_to_string(&config).unwrap();
    let plain = format!("endpoints = {:?}\n", site.etcd.endpoints());
    assert!(text.contains(&plain));
    let files = format!(
        "endpoints = {:?}\ntls_ca = {:?}\ntls_certificate = {:?}\ntls_key = {:?}\n",
        etcd.endpoints(),
        pki.ca(),
        own.certificate,
        own.key
    );
    let text = text.replace(&plain, &files);
    std::fs::write(&config, &text).unwrap();
    site.start_with("m1", &config);
    site.joined("m1").await;
    let client = site.client(0).await;
    let opened = open(&client, "one").await;
    write(&client, &opened, b'x').await;
    assert_eq!(site.content(0), [b'x'; 7]);

    // A file that is not there is named at the start.
    let wrong = site.home.path().join("wrong.toml");
    std::fs::write(&wrong, text.replace(path(&own.key), "/nothing.key").replace("m-m1", "m-m2")).unwrap();
    fails_with(&program::run(&["proxy", "--config", path(&wrong)]), &["/nothing.key", "PEM"]);
}
