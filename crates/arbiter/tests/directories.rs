//! Leases on directories: which changes recall them, which do not, and the calls that a creation costs
//! below.
//!
//! Promise: directory-leases

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod below;

use std::time::Duration;

use arbiter::{Arbiter, Delegations, Options};
use below::{ROOT, RW, Stage, anonymous, by_name, client, handle, name, options, settle, truncating};
use tokio::time::Instant;
use vfs::{
    AccessMask, Callback, Caller, CreateHow, Delegated, Device, FileSystem, FileType, LeaseKind, Leases,
    Opens, SetAttributes, Share,
};

async fn delegate(stage: &Stage, caller: &Caller) -> Delegated {
    stage.arbiter.delegate(caller, &handle(ROOT), AccessMask::LOOKUP).await.unwrap()
}

/// Runs one of the changes; its success does not matter.
async fn change(arbiter: &Arbiter, caller: &Caller, what: &str) {
    let (root, a, new, none) = (handle(ROOT), name("a"), name("new"), SetAttributes::default());
    let size = SetAttributes { size: Some(0), ..none };
    match what {
        "create" => drop(arbiter.create(caller, &root, &new, CreateHow::Guarded, &none).await),
        "exclusive create" => {
            drop(arbiter.create(caller, &root, &new, CreateHow::Exclusive([1; 8]), &none).await);
        }
        "truncating create" => drop(arbiter.create(caller, &root, &new, CreateHow::Unchecked, &size).await),
        "open that creates" => drop(arbiter.open(caller, &truncating(by_name(caller, "new", RW))).await),
        "mkdir" => drop(arbiter.mkdir(caller, &root, &new, &none, vfs::Want::None).await),
        "symlink" => drop(arbiter.symlink(caller, &root, &new, b"a", &none).await),
        "mknod" => {
            let device = Device::default();
            drop(arbiter.mknod(caller, &root, &new, FileType::Fifo, device, &none).await);
        }
        "link" => drop(arbiter.link(caller, &handle(1), &root, &new).await),
        "remove" => drop(arbiter.remove(caller, &root, &a).await),
        "rmdir" => drop(arbiter.rmdir(caller, &root, &a).await),
        "rename" => drop(arbiter.rename(caller, &root, &a, &root, &new).await),
        "rename away" => drop(arbiter.rename(caller, &root, &a, &handle(77), &new).await),
        "rename into" => drop(arbiter.rename(caller, &handle(77), &a, &root, &new).await),
        "setattr" => drop(arbiter.setattr(caller, &root, &none, None).await),
        other => panic!("{other}"),
    }
}

const CHANGES: [&str; 14] = [
    "create",
    "exclusive create",
    "truncating create",
    "open that creates",
    "mkdir",
    "symlink",
    "mknod",
    "link",
    "remove",
    "rmdir",
    "rename",
    "rename away",
    "rename into",
    "setattr",
];

#[tokio::test(start_paused = true)]
async fn every_change_of_names_by_somebody_else_waits_for_the_lease() {
    for what in CHANGES {
        for other in [client(2), anonymous()] {
            let mut stage = Stage::new(options());
            stage.below.add("a");
            let delegated = delegate(&stage, &client(1)).await;
            let lease = delegated.lease.unwrap();
            assert_eq!((lease.kind, stage.arbiter.held().directory_leases), (LeaseKind::Read, 1));
            let changing = stage.start(move |arbiter| async move { change(&arbiter, &other, what).await });
            assert_eq!(stage.recall().await.id, lease.id, "{what}");
            settle().await;
            assert!(!changing.is_finished(), "{what}");
            assert_eq!(stage.below.files.lock().root_changes, 0, "{what}");
            stage.give_back(lease.id).await;
            changing.await.unwrap();
            assert!(stage.below.files.lock().root_changes > 0, "{what}");
            settle().await;
            assert_eq!(stage.below.lease_on(&handle(ROOT)), None, "what nobody has goes back");
            assert!(delegate(&stage, &client(1)).await.lease.is_none(), "it changed hands: {what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_changes_names_under_its_own_lease() {
    for what in CHANGES {
        let mut stage = Stage::new(options());
        stage.below.add("a");
        assert!(delegate(&stage, &client(1)).await.lease.is_some());
        change(&stage.arbiter, &client(1), what).await;
        stage.is_silent().await;
        assert_eq!(stage.arbiter.held().directory_leases, 1, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn many_may_have_one_and_looking_disturbs_nobody() {
    let mut stage = Stage::new(options());
    stage.below.add("a");
    let first = delegate(&stage, &client(1)).await.lease.unwrap();
    let second = delegate(&stage, &client(2)).await.lease.unwrap();
    assert!(delegate(&stage, &client(2)).await.lease.is_none(), "it has one");
    assert!(delegate(&stage, &anonymous()).await.lease.is_none(), "nobody to call back");
    for caller in [client(3), anonymous()] {
        stage.arbiter.lookup(&caller, &handle(ROOT), &name("a"), vfs::Want::None).await.unwrap();
        stage.arbiter.getattr(&caller, &handle(ROOT)).await.unwrap();
        let mut reading = by_name(&caller, "a", Share::READ);
        reading.want = vfs::Want::None;
        stage.arbiter.open(&caller, &reading).await.unwrap();
    }
    stage.is_silent().await;
    let changing = stage.start(|arbiter| async move { change(&arbiter, &client(1), "create").await });
    assert_eq!(stage.recall().await.id, second.id, "that of the other alone");
    stage.give_back(second.id).await;
    changing.await.unwrap();
    stage.is_silent().await;
    assert_eq!(stage.arbiter.leases(None, 10).iter().map(|held| held.id).collect::<Vec<_>>(), [first.id]);
}

#[tokio::test(start_paused = true)]
async fn a_file_is_no_directory_and_never_is_always_never() {
    let stage = Stage::new(options());
    let a = stage.below.add("a");
    assert!(stage.arbiter.delegate(&client(1), &a, AccessMask::READ).await.unwrap().lease.is_none());
    settle().await;
    assert_eq!(stage.below.lease_on(&a), None, "what came with it went back");
    let stage = Stage::new(Options { delegations: Delegations::Never, ..options() });
    assert!(delegate(&stage, &client(1)).await.lease.is_none());
    assert_eq!(stage.below.count("delegate"), 0);
}

/// The attributes that come with a lease are those at its start.
#[tokio::test(start_paused = true)]
async fn what_was_changed_while_the_lease_was_on_its_way_is_seen() {
    let stage = Stage::new(options());
    let gate = stage.below.hold("delegate");
    let asking = stage.start(|arbiter| async move {
        arbiter.delegate(&client(1), &handle(ROOT), AccessMask::LOOKUP).await.unwrap()
    });
    settle().await;
    change(&stage.arbiter, &client(2), "create").await;
    gate.add_permits(1);
    let delegated = asking.await.unwrap();
    assert_eq!(delegated.lease.unwrap().change, 2);
    assert_eq!(delegated.accessed.attributes.unwrap().change, 2);
}

#[tokio::test(start_paused = true)]
async fn none_is_granted_while_names_are_changed() {
    let stage = Stage::new(options());
    stage.below.add("a");
    let gate = stage.below.hold("remove");
    let removing = stage.start(|arbiter| async move { change(&arbiter, &client(2), "remove").await });
    settle().await;
    assert!(delegate(&stage, &client(1)).await.lease.is_none());
    gate.add_permits(1);
    removing.await.unwrap();
    assert!(delegate(&stage, &client(1)).await.lease.is_some());
}

#[tokio::test(start_paused = true)]
async fn who_keeps_one_too_long_loses_it() {
    let mut stage = Stage::new(options());
    let lease = delegate(&stage, &client(1)).await.lease.unwrap();
    let began = Instant::now();
    change(&stage.arbiter, &anonymous(), "mkdir").await;
    assert!(began.elapsed() >= options().recall_deadline);
    assert_eq!(stage.recall().await.id, lease.id);
    assert!(matches!(stage.callback().await, Callback::Revoked { id, .. } if id == lease.id));
    assert_eq!(stage.arbiter.held().directory_leases, 0);
}

#[tokio::test(start_paused = true)]
async fn they_count_against_the_bound() {
    let mut stage = Stage::new(Options { leases_max: 2, idle_min: Duration::ZERO, ..options() });
    let first = delegate(&stage, &client(1)).await.lease.unwrap();
    assert!(delegate(&stage, &client(2)).await.lease.is_some());
    assert!(delegate(&stage, &client(3)).await.lease.is_none(), "full");
    assert_eq!(stage.recall().await.id, first.id, "the one that was useful longest ago makes room");
    stage.give_back(first.id).await;
    assert!(delegate(&stage, &client(3)).await.lease.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_recall_from_below_goes_up_and_the_return_comes_down() {
    let mut stage = Stage::new(options());
    let lease = delegate(&stage, &client(1)).await.lease.unwrap();
    let below = stage.below.lease_on(&handle(ROOT)).unwrap();
    stage.below.recall(below, handle(ROOT), Duration::from_secs(30)).await;
    assert_eq!(stage.recall().await.id, lease.id);
    assert!(delegate(&stage, &client(2)).await.lease.is_none());
    stage.give_back(lease.id).await;
    settle().await;
    assert_eq!((stage.below.count("returned"), stage.below.lease_on(&handle(ROOT))), (1, None));
}

/// NQNFS: a lease with a term, without an open.
#[tokio::test(start_paused = true)]
async fn one_with_a_term_is_renewed_and_ends_by_itself() {
    let mut stage = Stage::new(options());
    let term = Duration::from_secs(10);
    let lease =
        async |caller: &Caller, kind| stage.arbiter.lease(caller, &handle(ROOT), kind, term).await.unwrap();
    assert_eq!(lease(&client(1), LeaseKind::Write).await, None, "a directory is not written");
    let first = lease(&client(1), LeaseKind::Read).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let asked = stage.below.all_calls();
    assert_eq!(lease(&client(1), LeaseKind::Read).await.unwrap().id, first.id);
    assert_eq!(stage.below.all_calls(), asked, "renewals are settled here");
    change(&stage.arbiter, &client(1), "create").await;
    let began = Instant::now();
    change(&stage.arbiter, &client(2), "create").await;
    assert_eq!(stage.recall().await.id, first.id);
    assert!(began.elapsed() >= term && began.elapsed() < term + Duration::from_secs(4));
}

/// A creation that may truncate an existing file must look it up first. If the name probably does not
/// exist, a guarded create is tried first.
#[tokio::test(start_paused = true)]
async fn a_new_file_costs_one_call_and_a_file_that_is_there_is_recalled_before_it_is_cut() {
    let mut stage = Stage::new(options());
    let a = stage.below.add("a");
    let lease = below::open(&stage, &client(1), &a, Share::READ).await.unwrap().lease.unwrap();
    *stage.below.remembers.lock() = Some(false);
    let before = stage.below.all_calls();
    let made = stage.arbiter.open(&client(2), &truncating(by_name(&client(2), "new", RW))).await.unwrap();
    assert!(made.created);
    let size = SetAttributes { size: Some(0), ..SetAttributes::default() };
    let arbiter = stage.arbiter.clone();
    let create = async |caller: Caller, file: &str| {
        arbiter.create(&caller, &handle(ROOT), &name(file), CreateHow::Unchecked, &size).await
    };
    create(anonymous(), "newer").await.unwrap();
    assert_eq!(stage.below.all_calls(), before + 2, "one each");
    let cutting = stage.start(|arbiter| async move {
        arbiter.open(&client(2), &truncating(by_name(&client(2), "a", RW))).await.unwrap()
    });
    assert_eq!(stage.recall().await.id, lease.id);
    settle().await;
    assert_eq!(stage.below.files.lock().by_id[&1].size, 10, "not before the lease is back");
    stage.give_back(lease.id).await;
    assert!(!cutting.await.unwrap().created);
    assert_eq!(stage.below.files.lock().by_id[&1].size, 0);
    let resent = Caller { resent: true, ..client(3) };
    stage.arbiter.open(&resent, &truncating(by_name(&resent, "new", RW))).await.unwrap();
    create(client(1), "a").await.unwrap();
}
