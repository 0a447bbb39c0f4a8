//! Tests of mounting exports from URLs, and of its failures.

use std::time::Duration;

use client::{ConnectError, Nfs3, Origin as _, Url};
use protocol::Reply;
use protocol::nfs3::{self, Ftype, call};
use vfs::{Caller, FileSystem};

use protocol::nfs4::{self, ArgOp, ResOp};

use crate::scripted::*;
use crate::scripted4::{Origin4, Say, say};

fn getattr(_: &Seen) -> Act {
    reply::<call::Getattr>(&Reply::Ok(nfs3::GetattrOk { obj_attributes: fattr(Ftype::Dir, 512) }))
}

#[tokio::test]
async fn mount_is_answered_on_the_port_of_nfs() {
    let origin = Origin::start(getattr).await;
    let fs = origin.mount("").await;
    let root = fs.root(&caller()).await.unwrap();
    assert_eq!(root.handle, handle(ROOT));
    assert_eq!(root.attributes.unwrap().mode, 0o644);
    assert_eq!(root.attributes.unwrap().change, 1_700_000_000_000_000_005);
    assert_eq!(fs.server(), origin.address);
    assert_eq!((fs.counts().calls(nfs3::Procedure::Getattr), fs.counts().total_calls()), (1, 1));
}

#[tokio::test]
async fn callers_come_with_their_credential() {
    let origin = Origin::start(getattr).await;
    let fs = origin.mount("").await;
    fs.root(&caller()).await.unwrap();
    fs.root(&Caller::machine()).await.unwrap();
    let credentials = origin.seen().into_iter().map(|seen| match seen.credential {
        rpc::Credential::Sys(sys) => (sys.uid, sys.gid, sys.gids.to_vec()),
        other => panic!("{other:?}"),
    });
    assert_eq!(credentials.collect::<Vec<_>>(), [(1000, 100, vec![1, 2, 3]), (0, 0, vec![])]);
}

#[tokio::test]
async fn the_port_mapper_is_asked_for_what_is_not_given() {
    let origin = Origin::start(getattr).await;
    let url = Url::parse("nfs://localhost/export").unwrap();
    let fs = Nfs3::connect_through(&url, origin.address.port()).await.unwrap();
    assert_eq!(fs.server(), origin.address);
    fs.root(&caller()).await.unwrap();
}

#[tokio::test]
async fn connections_are_used_in_turn() {
    let origin = Origin::start(getattr).await;
    let fs = origin.mount("nconnect=3").await;
    for _ in 0..6 {
        fs.root(&caller()).await.unwrap();
    }
    let mut peers: Vec<_> = origin.seen().iter().map(|seen| seen.peer).collect();
    assert_eq!(peers[..3], peers[3..]);
    peers.sort();
    peers.dedup();
    assert_eq!(peers.len(), 3);
}

#[tokio::test]
async fn calls_come_from_a_reserved_port_if_they_may() {
    let origin = Origin::start(getattr).await;
    let fs = origin.mount("").await;
    fs.root(&caller()).await.unwrap();
    let fs = origin.mount("noresvport").await;
    fs.root(&caller()).await.unwrap();
    let ports: Vec<_> = origin.seen().iter().map(|seen| seen.peer.port()).collect();
    assert!(ports[1] >= 1024);
    if std::net::TcpListener::bind(("127.0.0.1", 666)).is_err_and(|error| error.raw_os_error() == Some(13)) {
        eprintln!("skipped: this process may not use reserved ports");
    } else {
        assert!(ports[0] < 1024);
    }
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let origin = Origin::start(getattr).await;
    let error = |path: &'static str| {
        let url = origin.url(path);
        async move { Nfs3::connect(&url).await.unwrap_err() }
    };
    let missing = error("/nowhere").await;
    assert!(matches!(missing, ConnectError::Refused { .. }));
    assert_eq!(
        missing.to_string(),
        format!(
            "{} does not let us mount /nowhere: there is no such export; `showmount -e HOST` lists them",
            origin.address
        )
    );
    assert!(matches!(error("/kerberos").await, ConnectError::Flavor { flavors, .. } if flavors.len() == 2));
    assert!(matches!(error("/empty").await, ConnectError::Nonsense { .. }));
    assert!(matches!(error("/export?mountport=1").await, ConnectError::Mount { .. }));
}

#[tokio::test]
async fn nobody_there_is_said_soon() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = Url::parse(&format!("nfs://{nobody}/export")).unwrap();
    let connecting = Nfs3::connect_through(&url, nobody.port());
    let error = tokio::time::timeout(Duration::from_secs(5), connecting).await.unwrap().unwrap_err();
    assert!(matches!(error, ConnectError::Mount { .. }), "{error}");
    assert!(error.to_string().contains("give its port as mountport=PORT"));
    let url = Url::parse("nfs://no.such.host.invalid/export").unwrap();
    assert!(matches!(Nfs3::connect(&url).await, Err(ConnectError::Resolve { .. })));
}

#[tokio::test]
async fn without_vers_the_highest_version_that_the_server_speaks_is_spoken() {
    let three = Origin::start(getattr).await;
    let connected = client::connect(&three.url("/export")).await.unwrap();
    assert_eq!(connected.version(), "3");
    let pinned = Url::parse(&format!("{}?vers=4.1", three.url("/export"))).unwrap();
    assert!(matches!(client::connect(&pinned).await, Err(ConnectError::Version { .. })));
    let four = Origin4::start(|_, _| Say::Usual).await;
    let url = Url::parse(&format!("nfs://{}/export?noresvport", four.address)).unwrap();
    assert_eq!(client::connect(&url).await.unwrap().version(), "4.1");
    let udp = Url::parse(&format!("nfs://{}/export?noresvport&udp", four.address)).unwrap();
    assert!(
        client::connect(&udp).await.is_err_and(|error| error.is_no_answer()),
        "version 3 is all that UDP has"
    );
}

#[tokio::test]
async fn a_path_that_version_4_does_not_have_is_looked_for_in_version_3() {
    let four = Origin4::start(|operation, _| match operation {
        ArgOp::Lookup(_) => say(ResOp::Lookup(Err(nfs4::Status::NoEnt))),
        _ => Say::Usual,
    })
    .await;
    let url = Url::parse(&format!("nfs://{}/export?noresvport", four.address)).unwrap();
    // No server of version 3 answers, so the user gets the error of version 4.
    assert!(matches!(client::connect(&url).await, Err(ConnectError::Refused4 { .. })));
}
