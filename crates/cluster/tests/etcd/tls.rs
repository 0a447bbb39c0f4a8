//! The store over TLS: etcd proves who it is, and so does the member.

use std::path::PathBuf;

use cluster::etcd::{Endpoint, Etcd, Tls};
use cluster::store::{Store, StoreError, Transaction};
use rpc::tls::{ClientFiles, Identity};

use crate::pki::{Issued, Pki};
use crate::{create, endpoints, wait};

fn store(endpoints: &[Endpoint], ca: PathBuf, own: Option<&Issued>) -> Etcd {
    let identity = |own: &Issued| Identity { certificate: own.certificate.clone(), key: own.key.clone() };
    let files = ClientFiles { ca: Some(ca), identity: own.map(identity) };
    Etcd::with_tls(endpoints, Tls::new(move || files.config(&[]).map_err(|error| error.to_string())))
}

async fn failure(store: &Etcd) -> String {
    match store.transact(&Transaction::default()).await {
        Err(StoreError::Unknown(why)) => {
            assert_eq!(why.lines().count(), 1, "{why}");
            why
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_both_ends_prove_who_they_are() {
    let (pki, others) = (Pki::new(), Pki::new());
    let at_etcd = pki.issue("etcd", &["127.0.0.1"]);
    let etcd = lab::Etcd::start_over(
        1,
        Some(lab::EtcdTls {
            ca: pki.ca(),
            certificate: at_etcd.certificate.clone(),
            key: at_etcd.key.clone(),
        }),
    );
    let (own, foreign) = (pki.issue("member", &["member"]), others.issue("member", &["member"]));
    let at = endpoints(&etcd);
    let good = store(&at, pki.ca(), Some(&own));
    wait(&good).await.unwrap();
    assert!(good.transact(&create("a")).await.unwrap().succeeded);

    let told = failure(&store(&at, others.ca(), Some(&own))).await;
    assert!(told.contains("TLS: ") && told.contains("UnknownIssuer"), "{told}");
    // With TLS 1.3, a client hears with the first answer that its certificate was refused.
    let told = failure(&store(&at, pki.ca(), None)).await;
    assert!(told.to_lowercase().contains("certificate"), "{told}");
    let told = failure(&store(&at, pki.ca(), Some(&foreign))).await;
    assert!(told.to_lowercase().contains("certificate") || told.contains("alert"), "{told}");
    let told = failure(&store(&at, PathBuf::from("/nothing.crt"), None)).await;
    assert!(told.contains("/nothing.crt"), "{told}");
    let elsewhere: Vec<Endpoint> =
        etcd.endpoints().iter().map(|url| url.replace("127.0.0.1", "localhost").parse().unwrap()).collect();
    let told = failure(&store(&elsewhere, pki.ca(), Some(&own))).await;
    assert!(told.contains("TLS: "), "the certificate has another name: {told}");
    let plain: Vec<Endpoint> =
        etcd.endpoints().iter().map(|url| url.replace("https", "http").parse().unwrap()).collect();
    failure(&Etcd::new(&plain)).await;

    // A new certificate is used from the next connection on.
    let mut later = pki.issue("later", &["member"]);
    let replaced = store(&at, pki.ca(), Some(&later));
    std::fs::copy(&foreign.certificate, &later.certificate).unwrap();
    std::fs::copy(&foreign.key, &later.key).unwrap();
    failure(&replaced).await;
    later = pki.issue("later", &["member"]);
    assert!(later.key.exists());
    wait(&replaced).await.unwrap();
}
