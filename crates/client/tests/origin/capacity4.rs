//! Tests with an origin that says DELAY to every OPEN, as an origin without capacity does. A client that
//! holds opens for others gets an error, and a mount waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::{Nfs4, Origin as _};
use protocol::nfs4::{self, ArgOp, ResOp, Status as Wire};
use vfs::{Caller, HolderId, Opens, Status, Want};

use crate::restart4::live;
use crate::scripted::caller;
use crate::scripted4::{Origin4, Say, opened, say};
use crate::state4::{request, soon, until, write_delegation};

/// Refuses every OPEN until it is `roomy`.
fn cramped(roomy: &Arc<AtomicBool>) -> impl FnMut(&ArgOp, &[ArgOp]) -> Say + Send + use<> {
    let roomy = roomy.clone();
    move |operation, _| match operation {
        ArgOp::Open(_) if roomy.load(Ordering::SeqCst) => {
            say(ResOp::Open(Ok(opened(nfs4::Stateid { seqid: 1, other: [1; 12] }, write_delegation()))))
        }
        ArgOp::Open(_) => say(ResOp::Open(Err(Wire::Delay))),
        _ => Say::Usual,
    }
}

async fn open(fs: &Nfs4) -> vfs::Result<vfs::Opened> {
    let holding = Caller { holder: Some(HolderId(1)), ..caller() };
    fs.open(&holding, &request(Want::Any)).await
}

#[tokio::test]
async fn who_holds_for_others_is_told_that_there_is_no_room_and_a_mount_waits_for_it() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let roomy = Arc::new(AtomicBool::new(false));
    let origins = [Origin4::start(cramped(&roomy)).await, Origin4::start(cramped(&roomy)).await];
    let mount = live(&origins[0], directories[0].path()).await;
    let waiting = tokio::spawn(async move { open(&mount).await });
    until(|| !origins[0].operations("OPEN").is_empty()).await;
    let proxy = live(&origins[1], directories[1].path()).await;
    proxy.holds_for_others();
    let started = Instant::now();
    assert_eq!(soon(open(&proxy)).await.unwrap_err().status, Status::Resource);
    assert!(started.elapsed() >= Duration::from_secs(5), "a recall may take as long");
    let asked = origins[0].operations("OPEN").len();
    until(|| origins[0].operations("OPEN").len() > asked + 1).await;
    assert!(!waiting.is_finished());
    roomy.store(true, Ordering::SeqCst);
    soon(waiting).await.unwrap().unwrap();
    soon(open(&proxy)).await.unwrap();
}
