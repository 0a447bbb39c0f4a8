//! Tests of lost connections, lost replies, and servers that are away or busy.
//!
//! Promise: calls-that-take-effect-once

use std::time::Duration;

use client::Origin as _;
use protocol::Reply;
use protocol::nfs3::{self, Ftype, Procedure, call};
use rpc::message::Refusal;
use tokio::time::{Instant, timeout};
use vfs::{Caller, CreateHow, FileSystem, FileType, SetAttributes, Status, Timestamp};

use crate::scripted::*;

const SOON: Duration = Duration::from_secs(10);

fn wcc() -> nfs3::WccData {
    nfs3::WccData::default()
}

fn getattr() -> Act {
    reply::<call::Getattr>(&Reply::Ok(nfs3::GetattrOk { obj_attributes: fattr(Ftype::Dir, 512) }))
}

/// A LOOKUP that leads to `new`, a file of this type and size.
fn lookup(ftype: Ftype, size: u64) -> Act {
    reply::<call::Lookup>(&Reply::Ok(nfs3::LookupOk {
        object: wire_handle(b"new"),
        obj_attributes: Some(fattr(ftype, size)),
        dir_attributes: None,
    }))
}

#[tokio::test]
async fn a_removal_whose_reply_was_lost_was_a_removal() {
    let origin = Origin::start(|seen| match seen.nth {
        _ if seen.is::<call::Getattr>() => getattr(),
        0 => Act::HangUp,
        _ => reply::<call::Remove>(&Reply::Fail(nfs3::Status::NoEnt, wcc())),
    })
    .await;
    let fs = origin.mount("").await;
    let wcc = timeout(SOON, fs.remove(&caller(), &fs.root_handle(), &name(b"x"))).await.unwrap().unwrap();
    assert_eq!((wcc.before, wcc.after.map(|after| after.file_type)), (None, Some(FileType::Directory)));
    let xids = origin.xids::<call::Remove>();
    assert_eq!(xids.len(), 2);
    assert_eq!(xids[0], xids[1]);
    let counts = fs.counts();
    assert_eq!((counts.calls(Procedure::Remove), counts.of(Procedure::Remove).retransmitted), (1, 1));
    // The same error is an error if the call was sent once.
    let failed = fs.remove(&caller(), &fs.root_handle(), &name(b"x")).await.unwrap_err();
    assert_eq!(failed.status, Status::NoEnt);
    // But it is success if an earlier incarnation of ours had received the call.
    let resent = Caller { resent: true, ..caller() };
    fs.remove(&resent, &fs.root_handle(), &name(b"x")).await.unwrap();
}

#[tokio::test]
async fn a_creation_whose_reply_was_lost_is_told_from_anothers() {
    for (size, expected) in [(0, Ok(())), (7, Err(Status::Exist))] {
        let origin = Origin::start(move |seen| match seen.nth {
            _ if seen.is::<call::Lookup>() => lookup(Ftype::Reg, size),
            0 => Act::HangUp,
            _ => reply::<call::Create>(&Reply::Fail(nfs3::Status::Exist, wcc())),
        })
        .await;
        let fs = origin.mount("").await;
        let set = SetAttributes::default();
        let (asker, root) = (caller(), fs.root_handle());
        let file = name(b"x");
        let creating = fs.create(&asker, &root, &file, CreateHow::Guarded, &set);
        let created = timeout(SOON, creating).await.unwrap();
        assert_eq!(created.map(|_| ()).map_err(|error| error.status), expected);
        let xids = origin.xids::<call::Create>();
        assert_eq!((xids.len(), xids[0]), (2, xids[1]));
    }
}

/// An exclusive create must be the only creator. An empty new file proves nothing.
// Promise: exclusive-creations
#[tokio::test]
async fn an_exclusive_creation_is_the_origins_to_tell() {
    let origin = Origin::start(move |seen| match seen.nth {
        _ if seen.is::<call::Lookup>() => lookup(Ftype::Reg, 0),
        0 => Act::HangUp,
        _ => reply::<call::Create>(&Reply::Fail(nfs3::Status::Exist, wcc())),
    })
    .await;
    let fs = origin.mount("").await;
    let (root, file) = (fs.root_handle(), name(b"x"));
    let how = CreateHow::Exclusive(*b"verifier");
    // The client resends the first create on a new connection. An earlier incarnation of ours had received
    // the second.
    for asker in [caller(), Caller { resent: true, ..caller() }] {
        let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let creating = fs.create(&asker, &root, &file, how, &set);
        let failed = timeout(SOON, creating).await.unwrap().unwrap_err();
        assert_eq!(failed.status, Status::Exist);
    }
    let xids = origin.xids::<call::Create>();
    assert_eq!((xids.len(), xids[0]), (3, xids[1]));
    assert_eq!(fs.counts().calls(Procedure::Lookup), 0, "nothing there could prove it");
}

#[tokio::test]
async fn renames_links_symlinks_and_guards_are_settled_too() {
    let origin = Origin::start(|seen| {
        if seen.is::<call::Lookup>() {
            return lookup(Ftype::Lnk, 6);
        }
        if seen.is::<call::Getattr>() {
            return getattr();
        }
        if seen.is::<call::Readlink>() {
            let data = nfs3::Nfspath::new(&b"target"[..]).unwrap();
            return reply::<call::Readlink>(&Reply::Ok(nfs3::ReadlinkOk { symlink_attributes: None, data }));
        }
        if seen.nth == 0 {
            return Act::HangUp;
        }
        if seen.is::<call::Rename>() {
            reply::<call::Rename>(&Reply::Fail(nfs3::Status::NoEnt, nfs3::RenameRes::default()))
        } else if seen.is::<call::Link>() {
            reply::<call::Link>(&Reply::Fail(nfs3::Status::Exist, nfs3::LinkRes::default()))
        } else if seen.is::<call::Setattr>() {
            reply::<call::Setattr>(&Reply::Fail(nfs3::Status::NotSync, wcc()))
        } else {
            reply::<call::Symlink>(&Reply::Fail(nfs3::Status::Exist, wcc()))
        }
    })
    .await;
    let fs = origin.mount("").await;
    let (asker, root, x) = (caller(), fs.root_handle(), name(b"x"));
    let set = SetAttributes::default();
    fs.rename(&asker, &root, &x, &root, &name(b"y")).await.unwrap();
    fs.link(&asker, &handle(b"new"), &root, &x).await.unwrap();
    let made = fs.symlink(&asker, &root, &x, b"target", &set).await.unwrap();
    assert_eq!(made.node.handle, handle(b"new"));
    let guard = Some(Timestamp::new(1, 0));
    let mode = SetAttributes { mode: Some(0o644), ..set };
    fs.setattr(&asker, &root, &mode, guard).await.unwrap();
    // Another target means another link, and another mode means another client's change.
    let resent = Caller { resent: true, ..caller() };
    let failed = fs.symlink(&resent, &root, &x, b"elsewhere", &set).await.unwrap_err();
    assert_eq!(failed.status, Status::Exist);
    let other = SetAttributes { mode: Some(0o600), ..set };
    assert_eq!(fs.setattr(&resent, &root, &other, guard).await.unwrap_err().status, Status::NotSync);
}

#[tokio::test]
async fn a_hard_mount_waits_for_the_server_to_come_back() {
    let mut origin = Origin::start(|_| getattr()).await;
    let fs = std::sync::Arc::new(origin.mount("timeo=2").await);
    fs.root(&caller()).await.unwrap();
    origin.stop();
    let waiting = tokio::spawn({
        let fs = fs.clone();
        async move { fs.root(&caller()).await }
    });
    while fs.counts().calls(Procedure::Getattr) < 2 {
        tokio::task::yield_now().await;
    }
    assert!(timeout(Duration::from_millis(500), std::future::pending::<()>()).await.is_err());
    assert!(!waiting.is_finished());
    origin.restart().await;
    timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn a_soft_mount_gives_up_in_time() {
    let origin = Origin::start(|_| Act::NoAnswer).await;
    let fs = origin.mount("soft&timeo=2&retrans=2").await;
    let started = Instant::now();
    let failed = timeout(SOON, fs.root(&caller())).await.unwrap().unwrap_err();
    assert_eq!(failed.status, Status::Io);
    assert!(started.elapsed() >= Duration::from_millis(400));
    assert_eq!(fs.counts().of(Procedure::Getattr).failed, 1);
}

#[tokio::test]
async fn a_callers_deadline_is_honoured() {
    let origin = Origin::start(|_| Act::NoAnswer).await;
    let fs = origin.mount("hard").await;
    let deadline = Some(Instant::now() + Duration::from_millis(200));
    let hurried = Caller { deadline, ..caller() };
    let failed = timeout(SOON, fs.root(&hurried)).await.unwrap().unwrap_err();
    assert_eq!(failed.status, Status::Delay);
    // A call whose deadline has passed is not even sent.
    let calls = fs.counts().total_calls();
    assert_eq!(fs.root(&hurried).await.unwrap_err().status, Status::Delay);
    assert_eq!(fs.counts().total_calls(), calls);
}

#[tokio::test]
async fn jukebox_is_tried_again_with_a_new_xid() {
    let origin = Origin::start(|seen| match seen.nth {
        0 | 1 => reply::<call::Getattr>(&Reply::Fail(nfs3::Status::Jukebox, ())),
        _ => getattr(),
    })
    .await;
    let fs = origin.mount("").await;
    timeout(SOON, fs.root(&caller())).await.unwrap().unwrap();
    let mut xids = origin.xids::<call::Getattr>();
    xids.dedup();
    assert_eq!(xids.len(), 3);
    assert_eq!(fs.counts().calls(Procedure::Getattr), 3);
}

#[tokio::test]
async fn jukebox_ends_with_the_callers_deadline() {
    let origin = Origin::start(|_| reply::<call::Getattr>(&Reply::Fail(nfs3::Status::Jukebox, ()))).await;
    let fs = origin.mount("").await;
    let deadline = Instant::now() + Duration::from_millis(450);
    let hurried = Caller { deadline: Some(deadline), ..caller() };
    let failed = timeout(SOON, fs.root(&hurried)).await.unwrap().unwrap_err();
    assert_eq!(failed.status, Status::Delay);
    assert!(Instant::now() >= deadline);
    assert!(fs.counts().total_calls() <= 3);
}

#[tokio::test]
async fn lost_datagrams_are_sent_again_with_the_same_xid() {
    let origin = Origin::start(|seen| if seen.nth == 0 { Act::NoAnswer } else { getattr() }).await;
    let fs = origin.mount("proto=udp&timeo=1").await;
    timeout(SOON, fs.root(&caller())).await.unwrap().unwrap();
    let xids = origin.xids::<call::Getattr>();
    assert!(xids.len() >= 2 && xids.iter().all(|xid| *xid == xids[0]));
    assert_eq!(fs.counts().of(Procedure::Getattr).retransmitted, 1);
}

#[tokio::test]
async fn a_stale_handle_is_no_lost_server() {
    let origin = Origin::start(|seen| match seen.nth {
        0 => reply::<call::Getattr>(&Reply::Fail(nfs3::Status::Stale, ())),
        1 => reply::<call::Getattr>(&Reply::Fail(nfs3::Status::BadHandle, ())),
        2 => Act::Refuse(Refusal::Auth(rpc::message::AUTH_TOOWEAK)),
        _ => Act::Refuse(Refusal::SystemError),
    })
    .await;
    let fs = origin.mount("").await;
    for expected in [Status::Stale, Status::BadHandle, Status::Access, Status::Io] {
        assert_eq!(fs.root(&caller()).await.unwrap_err().status, expected);
    }
    let failed = fs.getattr(&caller(), &handle(&[1; 100])).await.unwrap_err();
    assert_eq!(failed.status, Status::BadHandle);
    assert_eq!(fs.counts().total_calls(), 4);
}
