//! Tests of the end of a client without a next incarnation. Everything goes back to the origin, many objects
//! at once, and an origin that is away does not delay the end for long.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::{Incarnation, Nfs4, Origin as _, Url};
use protocol::nfs4::{self, ArgOp, ResOp};
use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::{FileSystem, OpenRequest, Opens, Owner, Want};

use crate::restart4::live;
use crate::scripted::caller;
use crate::scripted4::{Origin4, Say, opened, say};
use crate::state4::{request, soon, write_delegation};

const OPENS: u32 = 40;
/// This many CLOSEs are answered only after the next one has come.
const AT_ONCE: usize = 5;

/// Gives every owner its own open with a delegation, and delays the first CLOSEs.
fn holding() -> impl FnMut(&ArgOp, &[ArgOp]) -> Say + Send {
    let mut opens = 0;
    let mut held: Vec<Arc<Notify>> = Vec::new();
    move |operation, _| match operation {
        ArgOp::Open(_) => {
            opens += 1;
            let mut other = [7; 12];
            other[..4].copy_from_slice(&u32::to_be_bytes(opens));
            say(ResOp::Open(Ok(opened(nfs4::Stateid { seqid: 1, other }, write_delegation()))))
        }
        ArgOp::Close(_) if held.len() < AT_ONCE => {
            held.push(Arc::default());
            Say::Wait(held[held.len() - 1].clone())
        }
        ArgOp::Close(_) => {
            held.iter().for_each(|waiting| waiting.notify_one());
            Say::Usual
        }
        _ => Say::Usual,
    }
}

async fn open_many(fs: &Nfs4) {
    for number in 0..OPENS {
        let owner = Owner(Bytes::copy_from_slice(&number.to_be_bytes()));
        soon(fs.open(&caller(), &OpenRequest { owner, ..request(Want::Any) })).await.unwrap();
    }
}

#[tokio::test]
async fn who_leaves_nothing_gives_back_everything_many_at_once_and_ends_its_record() {
    let directory = tempfile::tempdir().unwrap();
    let origin = Origin4::start(holding()).await;
    let fs = live(&origin, directory.path()).await;
    open_many(&fs).await;
    fs.leave_nothing();
    soon(fs.shutdown()).await;
    assert_eq!(origin.operations("CLOSE").len(), OPENS as usize);
    assert_eq!(origin.operations("DELEGRETURN").len(), 1);
    let seen = origin.seen();
    assert_eq!(seen[seen.len() - 2..], [["DESTROY_SESSION"], ["DESTROY_CLIENTID"]]);
    let record = directory.path().join("client.state");
    assert!(!record.exists());
    let url = Url::parse(&format!("nfs://{}/export?vers=4.1&noresvport", origin.address)).unwrap();
    let (next, reason) = Incarnation::resume(&url, Bytes::from_static(b"the proxy"), &record);
    assert!(!next.resumes() && reason.is_none());
}

#[tokio::test]
async fn who_lives_on_gives_nothing_back() {
    let directory = tempfile::tempdir().unwrap();
    let origin = Origin4::start(holding()).await;
    let fs = live(&origin, directory.path()).await;
    open_many(&fs).await;
    let before = origin.seen().len();
    soon(fs.shutdown()).await;
    assert_eq!(origin.seen().len(), before);
    assert!(directory.path().join("client.state").exists());
}

#[tokio::test]
async fn an_origin_that_is_away_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut origin = Origin4::start(holding()).await;
    let fs = live(&origin, directory.path()).await;
    open_many(&fs).await;
    origin.stop();
    tokio::time::pause();
    fs.leave_nothing();
    let started = Instant::now();
    fs.shutdown().await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    let kept = std::fs::read(directory.path().join("client.state")).unwrap();
    assert!(!kept.is_empty(), "for the next life to give back");
}
