//! Tests of requests that are sent again while the origin executes them. Each keeps its slot, and no other
//! request gets its results.
//!
//! Promise: calls-that-take-effect-once

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use protocol::nfs4::{ArgOp, Fattr, Ftype, GetattrOk, ResOp};
use tokio::sync::Notify;
use tokio::time::Instant;
use vfs::{Caller, FileSystem, StateidBasis, Status};

use crate::scripted::{caller, handle, name};
use crate::scripted4::{Origin4, Say, fattr, say};
use crate::state4::{soon, until};

/// The offset at which a READ takes long.
const SLOW: u64 = 7;

/// An origin that executes such a READ and a REMOVE until it is notified.
async fn busy() -> (Origin4, Arc<Notify>, Arc<Notify>) {
    let (read, removed) = (Arc::<Notify>::default(), Arc::<Notify>::default());
    let origin = Origin4::start({
        let (read, removed) = (read.clone(), removed.clone());
        move |operation, all| match operation {
            ArgOp::Read(args) if args.offset == SLOW => Say::Wait(read.clone()),
            ArgOp::Remove(_) => Say::Wait(removed.clone()),
            ArgOp::Getattr(args) if all.iter().any(|operation| matches!(operation, ArgOp::Remove(_))) => {
                let directory = Fattr { ftype: Some(Ftype::Dir), ..fattr(args.attr_request) };
                say(ResOp::Getattr(Ok(GetattrOk { obj_attributes: Box::new(directory) })))
            }
            _ => Say::Usual,
        }
    });
    (origin.await, read, removed)
}

#[tokio::test]
async fn what_the_origin_is_still_carrying_out_keeps_its_slot_when_it_is_sent_again() {
    let (mut origin, read, removed) = busy().await;
    let fs = Arc::new(origin.mount("").await);
    let reading = tokio::spawn({
        let fs = fs.clone();
        async move { fs.read(&caller(), &handle(b"file"), StateidBasis::Anonymous, SLOW, 100).await }
    });
    until(|| origin.operations("READ").len() == 1).await;
    let removing = tokio::spawn({
        let fs = fs.clone();
        async move { fs.remove(&caller(), &handle(b"directory"), &name(b"x")).await }
    });
    until(|| origin.operations("REMOVE").len() == 1).await;

    origin.reconnect().await;
    until(|| origin.delays() >= 2).await;
    read.notify_one();
    soon(reading).await.unwrap().unwrap();
    // The slot of the READ is free now, and it is lower than that of the REMOVE.
    let told = origin.delays();
    for _ in 0..3 {
        soon(fs.read(&caller(), &handle(b"file"), StateidBasis::Anonymous, 0, 100)).await.unwrap();
    }
    until(|| origin.delays() > told).await;
    removed.notify_one();
    soon(removing).await.unwrap().unwrap();
    assert_eq!(origin.operations("REMOVE").len(), 1);
    assert_eq!(origin.mistaken(), 0);
}

#[tokio::test]
async fn the_slot_of_what_is_given_up_while_the_origin_is_at_it_is_nobodys() {
    let (mut origin, _, removed) = busy().await;
    let fs = Arc::new(origin.mount("").await);
    let removing = tokio::spawn({
        let (fs, deadline) = (fs.clone(), Instant::now() + Duration::from_millis(500));
        let hurried = Caller { deadline: Some(deadline), ..caller() };
        async move { fs.remove(&hurried, &handle(b"directory"), &name(b"x")).await }
    });
    until(|| origin.operations("REMOVE").len() == 1).await;
    origin.reconnect().await;
    assert_eq!(soon(removing).await.unwrap().unwrap_err().status, Status::Delay);
    for _ in 0..3 {
        soon(fs.read(&caller(), &handle(b"file"), StateidBasis::Anonymous, 0, 100)).await.unwrap();
    }
    removed.notify_one();
    let probed = origin.replays();
    until(|| origin.replays() > probed).await;
    soon(fs.read(&caller(), &handle(b"file"), StateidBasis::Anonymous, 0, 100)).await.unwrap();
    assert_eq!((origin.operations("REMOVE").len(), origin.mistaken()), (1, 0));
    assert_eq!(origin.operations("CREATE_SESSION").len(), 1);
}

#[tokio::test]
async fn what_is_sent_again_over_a_connection_that_is_not_bound_keeps_its_slot() {
    let (mut origin, _, removed) = busy().await;
    let fs = Arc::new(origin.mount("").await);
    let removing = tokio::spawn({
        let fs = fs.clone();
        async move { fs.remove(&caller(), &handle(b"directory"), &name(b"x")).await }
    });
    until(|| origin.operations("REMOVE").len() == 1).await;
    let unbound = Arc::new(AtomicBool::new(false));
    origin.refuse_connection(unbound.clone());
    origin.reconnect().await;
    until(|| unbound.load(Ordering::Relaxed) && origin.delays() > 0).await;
    for _ in 0..3 {
        soon(fs.read(&caller(), &handle(b"file"), StateidBasis::Anonymous, 0, 100)).await.unwrap();
    }
    removed.notify_one();
    soon(removing).await.unwrap().unwrap();
    assert_eq!((origin.operations("REMOVE").len(), origin.mistaken()), (1, 0));
    assert_eq!(origin.operations("CREATE_SESSION").len(), 1);
}
