//! Leases between clients: which use recalls which lease, how long requesters wait, and which leases are
//! granted.
//!
//! Promise: exclusion-under-a-lease

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod below;

use std::time::Duration;

use arbiter::{Delegations, Options};
use below::{
    ROOT, RW, Stage, anonymous, by_name, client, handle, name, open, options, request, settle, truncating,
};
use bytes::Bytes;
use tokio::time::{Instant, sleep, sleep_until};
use vfs::{
    Callback, Caller, FileSystem, Handle, LeaseKind, Opens, SetAttributes, Share, Stability, StateidBasis,
    Status, Want,
};

async fn write(arbiter: &dyn FileSystem, caller: &Caller, file: &Handle) -> vfs::Result<vfs::Written> {
    arbiter
        .write(caller, file, StateidBasis::Anonymous, 0, Bytes::from_static(b"x"), Stability::FileSync)
        .await
}

#[tokio::test(start_paused = true)]
async fn an_asker_goes_on_in_the_moment_the_lease_is_returned() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let lease = open(&stage, &client(1), &file, RW).await.unwrap().lease.unwrap();
    assert_eq!(lease.kind, LeaseKind::Write);
    let began = Instant::now();
    let waiter = stage.start(|arbiter| async move {
        arbiter.open(&client(2), &request(&client(2), &file, Share::READ)).await
    });
    let recall = stage.recall().await;
    assert_eq!((recall.id, recall.handle), (lease.id, file));
    settle().await;
    assert!(!waiter.is_finished());
    stage.give_back(lease.id).await;
    let opened = waiter.await.unwrap().unwrap();
    assert_eq!(Instant::now(), began, "no time has passed");
    assert_eq!(opened.lease, None, "the file changed hands");
    stage.is_silent().await;
    assert_eq!(stage.arbiter.held().recalls, 1);
}

#[tokio::test(start_paused = true)]
async fn attributes_of_an_open_that_waited_are_from_after_the_wait() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let lease = open(&stage, &client(1), &file, RW).await.unwrap().lease.unwrap();
    let waiter = stage.start(|arbiter| async move {
        arbiter.open(&client(2), &request(&client(2), &file, Share::READ)).await
    });
    stage.recall().await;
    // The holder flushes its data.
    stage
        .arbiter
        .write(&client(1), &file, StateidBasis::Anonymous, 0, vec![0; 77].into(), Stability::FileSync)
        .await
        .unwrap();
    stage.give_back(lease.id).await;
    assert_eq!(waiter.await.unwrap().unwrap().attributes.size, 77);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_never_answers_is_revoked_at_the_deadline() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let lease = open(&stage, &client(1), &file, RW).await.unwrap().lease.unwrap();
    let began = Instant::now();
    let waiter = stage.start(|arbiter| async move { write(&*arbiter, &anonymous(), &file).await });
    assert_eq!(stage.recall().await.deadline, began + Duration::from_secs(20));
    waiter.await.unwrap().unwrap();
    assert!(began.elapsed() >= Duration::from_secs(20) && began.elapsed() < Duration::from_millis(20_100));
    assert!(matches!(stage.callback().await, Callback::Revoked { id, .. } if id == lease.id));
    let held = stage.arbiter.held();
    assert_eq!((held.revoked, held.write_leases, held.recall_time_max.as_secs()), (1, 0, 20));
    // The late return has no effect.
    stage.give_back(lease.id).await;
    assert_eq!(stage.arbiter.held().returned, 0);
}

#[tokio::test(start_paused = true)]
async fn an_asker_whose_patience_ends_is_told_to_come_again_while_the_recall_goes_on() {
    let patience = Duration::from_secs(5);
    let mut stage = Stage::new(Options { patience, ..options() });
    let file = stage.below.add("a");
    let lease = open(&stage, &client(1), &file, Share::READ).await.unwrap().lease.unwrap();
    let began = Instant::now();
    assert_eq!(write(&*stage.arbiter, &anonymous(), &file).await.unwrap_err().status, Status::Delay);
    assert!(began.elapsed() >= patience && began.elapsed() < patience * 2);
    assert_eq!(stage.recall().await.id, lease.id);
    let mut hurried = anonymous();
    hurried.deadline = Some(Instant::now() + Duration::from_secs(1));
    assert_eq!(write(&*stage.arbiter, &hurried, &file).await.unwrap_err().status, Status::Delay);
    assert!(began.elapsed() < Duration::from_secs(7));
    stage.is_silent().await;
    stage.give_back(lease.id).await;
    write(&*stage.arbiter, &anonymous(), &file).await.unwrap();
    assert_eq!(stage.below.count("write"), 1);
}

/// After a restart of a server that granted leases with a term: writes under these leases come first,
/// whatever other clients have open.
// Promise: leases-with-a-term
#[tokio::test(start_paused = true)]
async fn while_leases_of_before_may_be_out_their_holders_write_and_nobody_else() {
    let seconds = Duration::from_secs;
    let start = Instant::now();
    let recovery = std::sync::Arc::new(vfs::Recovery::begin(start, seconds(63), seconds(5)));
    let stage = Stage::new(Options { recovery, ..options() });
    let file = stage.below.add("a");
    let (v4, nqnfs) = (client(1), client(vfs::HolderId::TERMED | 1));
    // The client had this open before the restart, and reclaims it.
    let reclaim = vfs::OpenRequest { reclaim: true, want: vfs::Want::None, ..request(&v4, &file, RW) };
    let reclaimed = stage.arbiter.open(&v4, &reclaim).await.unwrap();
    let by = StateidBasis::Open(reclaimed.id);
    let data = || Bytes::from_static(b"y");
    let write_open = || stage.arbiter.write(&v4, &file, by, 0, data(), Stability::FileSync);
    let refused = [
        write_open().await.map(drop),
        write(&*stage.arbiter, &v4, &file).await.map(drop),
        write(&*stage.arbiter, &anonymous(), &file).await.map(drop),
        stage.arbiter.setattr(&v4, &file, &SetAttributes::default(), None).await.map(drop),
        stage.arbiter.remove(&v4, &handle(ROOT), &name("a")).await.map(drop),
        stage.arbiter.open(&client(2), &request(&client(2), &file, RW)).await.map(drop),
        stage.arbiter.open(&client(2), &request(&client(2), &file, Share::READ)).await.map(drop),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.unwrap_err().status, Status::Delay, "{number}");
    }
    assert_eq!((stage.below.count("write"), stage.below.count("setattr")), (0, 0));
    sleep_until(start + seconds(62)).await;
    write(&*stage.arbiter, &nqnfs, &file).await.unwrap();
    // That was the last such write. The recovery lasts a moment longer, for a write that may be in flight.
    sleep_until(start + seconds(67)).await;
    assert_eq!(write_open().await.unwrap_err().status, Status::Delay);
    sleep_until(start + seconds(68)).await;
    write_open().await.unwrap();
    assert_eq!(stage.below.count("write"), 2);
}

#[tokio::test(start_paused = true)]
async fn what_a_holder_does_never_recalls_its_own_lease() {
    let mut stage = Stage::new(options());
    let (a, me) = (stage.below.add("a"), client(1));
    let opened = stage.arbiter.open(&me, &by_name(&me, "a", RW)).await.unwrap();
    assert!(opened.lease.is_some());
    write(&*stage.arbiter, &me, &a).await.unwrap();
    stage.arbiter.read(&me, &a, StateidBasis::Open(opened.id), 0, 1).await.unwrap();
    stage.arbiter.getattr(&me, &a).await.unwrap();
    let set = SetAttributes { size: Some(1), ..SetAttributes::default() };
    stage.arbiter.setattr(&me, &a, &set, None).await.unwrap();
    stage.arbiter.open(&me, &truncating(by_name(&me, "a", RW))).await.unwrap();
    stage.arbiter.link(&me, &a, &handle(ROOT), &name("b")).await.unwrap();
    stage.arbiter.rename(&me, &handle(ROOT), &name("b"), &handle(ROOT), &name("c")).await.unwrap();
    stage.arbiter.remove(&me, &handle(ROOT), &name("c")).await.unwrap();
    stage.arbiter.close(&me, opened.id).await.unwrap();
    stage.is_silent().await;
    assert_eq!(stage.arbiter.held().write_leases, 1);
}

/// Each of these changes by another client recalls a read lease, and takes effect only after its return.
#[tokio::test(start_paused = true)]
async fn every_change_recalls_a_read_lease_first() {
    let changes = [
        "write",
        "setattr",
        "remove",
        "rename",
        "rename over",
        "link",
        "truncating create",
        "truncating open",
    ];
    for change in changes {
        let mut stage = Stage::new(options());
        let a = stage.below.add("a");
        stage.below.add("b");
        let opened = stage.arbiter.open(&client(1), &by_name(&client(1), "a", Share::READ)).await.unwrap();
        let lease = opened.lease.unwrap();
        let before = stage.below.files.lock().by_id[&1].change;
        let waiter = stage.start(|arbiter| async move {
            let (root, size) = (handle(ROOT), SetAttributes { size: Some(0), ..SetAttributes::default() });
            let me = anonymous();
            match change {
                "write" => write(&*arbiter, &me, &a).await.map(|_| ()),
                "setattr" => arbiter.setattr(&me, &a, &size, None).await.map(|_| ()),
                "remove" => arbiter.remove(&me, &root, &name("a")).await.map(|_| ()),
                "rename" => arbiter.rename(&me, &root, &name("a"), &root, &name("c")).await.map(|_| ()),
                "rename over" => arbiter.rename(&me, &root, &name("b"), &root, &name("a")).await.map(|_| ()),
                "link" => arbiter.link(&me, &a, &root, &name("c")).await.map(|_| ()),
                "truncating create" => {
                    arbiter.create(&me, &root, &name("a"), vfs::CreateHow::Unchecked, &size).await.map(|_| ())
                }
                _ => arbiter.open(&me, &truncating(by_name(&me, "a", RW))).await.map(|_| ()),
            }
        });
        assert_eq!(stage.recall().await.id, lease.id, "{change}");
        settle().await;
        {
            let files = stage.below.files.lock();
            assert_eq!((files.by_id[&1].change, files.names.len()), (before, 2), "{change} went ahead");
            assert!(!waiter.is_finished(), "{change}");
        }
        stage.give_back(lease.id).await;
        waiter.await.unwrap().unwrap();
        stage.is_silent().await;
    }
}

#[tokio::test(start_paused = true)]
async fn changes_by_name_cost_nothing_more_while_nothing_is_held() {
    let stage = Stage::new(options());
    stage.below.add("a");
    let (me, root) = (anonymous(), handle(ROOT));
    stage.arbiter.rename(&me, &root, &name("a"), &root, &name("b")).await.unwrap();
    stage.arbiter.remove(&me, &root, &name("b")).await.unwrap();
    assert_eq!(stage.below.all_calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn many_may_read_under_leases_and_only_one_may_write() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let leases = [
        open(&stage, &client(1), &file, Share::READ).await.unwrap().lease.unwrap(),
        open(&stage, &client(2), &file, Share::READ).await.unwrap().lease.unwrap(),
    ];
    assert!(leases.iter().all(|lease| lease.kind == LeaseKind::Read));
    stage.arbiter.getattr(&anonymous(), &file).await.unwrap();
    stage.arbiter.read(&anonymous(), &file, StateidBasis::Anonymous, 0, 1).await.unwrap();
    stage.is_silent().await;
    let waiter =
        stage.start(|arbiter| async move { arbiter.open(&client(3), &request(&client(3), &file, RW)).await });
    let recalled = [stage.recall().await.id, stage.recall().await.id];
    assert_eq!(recalled, leases.map(|lease| lease.id));
    for lease in leases {
        stage.give_back(lease.id).await;
    }
    assert_eq!(waiter.await.unwrap().unwrap().lease, None, "others have it open");
}

#[tokio::test(start_paused = true)]
async fn policies_and_wishes_are_followed() {
    for (delegations, want, expected) in [
        (Delegations::Never, Want::Any, None),
        (Delegations::Auto, Want::None, None),
        (Delegations::Auto, Want::Any, Some(LeaseKind::Write)),
        (Delegations::Auto, Want::Read, None),
        (Delegations::Always, Want::Write, Some(LeaseKind::Write)),
    ] {
        let stage = Stage::new(Options { delegations, ..options() });
        let file = stage.below.add("a");
        let mut wish = request(&client(1), &file, RW);
        wish.want = want;
        let opened = stage.arbiter.open(&client(1), &wish).await.unwrap();
        assert_eq!(opened.lease.map(|lease| lease.kind), expected, "{delegations:?} {want:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_lease_from_below_allows_no_more_than_reading() {
    let stage = Stage::new(options());
    *stage.below.grants.lock() = Some(LeaseKind::Read);
    let file = stage.below.add("a");
    assert_eq!(open(&stage, &client(1), &file, RW).await.unwrap().lease, None);
    let other = stage.below.add("b");
    assert!(open(&stage, &client(1), &other, Share::READ).await.unwrap().lease.is_some());
    *stage.below.grants.lock() = None;
    let third = stage.below.add("c");
    assert_eq!(open(&stage, &client(1), &third, Share::READ).await.unwrap().lease, None);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_changed_hands_gets_no_lease_until_it_is_quiet() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let opened = open(&stage, &client(1), &file, Share::READ).await.unwrap();
    let waiter = stage.start(|arbiter| async move { write(&*arbiter, &anonymous(), &file).await });
    let id = stage.recall().await.id;
    stage.give_back(id).await;
    waiter.await.unwrap().unwrap();
    stage.arbiter.close(&client(1), opened.id).await.unwrap();
    assert_eq!(open(&stage, &client(1), &file, Share::READ).await.unwrap().lease, None);
    sleep(Duration::from_secs(101)).await;
    assert!(open(&stage, &client(1), &file, Share::READ).await.unwrap().lease.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_thousand_files_share_ten_leases() {
    let mut stage = Stage::new(Options { leases_max: 10, idle_min: Duration::ZERO, ..options() });
    for number in 0..250 {
        stage.below.add(&format!("{number}"));
    }
    let (mut recalled, mut asked) = (0, 0);
    for number in 0..1000 {
        let me = client(number / 250);
        let file = format!("{}", number % 250);
        let opened = stage.arbiter.open(&me, &by_name(&me, &file, Share::READ)).await.unwrap();
        stage.arbiter.close(&me, opened.id).await.unwrap();
        let held = stage.arbiter.held();
        assert!(held.read_leases <= 10);
        // The holder returns each recalled lease at once.
        while let Ok(callback) = tokio::time::timeout(Duration::from_micros(1), stage.callback()).await {
            match callback {
                Callback::Recall(recall) => {
                    recalled += 1;
                    stage.give_back(recall.id).await;
                }
                Callback::RecallAny { holder, keep } => {
                    assert!(holder.is_some() && keep < 10);
                    asked += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(recalled >= 900 && asked >= 1, "{recalled} recalled, {asked} asked");
    assert_eq!(stage.arbiter.held().granted, 1000, "each open got one");
    assert_eq!(
        stage.below.files.lock().leases.len(),
        stage.arbiter.held().read_leases,
        "none is kept below in vain"
    );
    assert_eq!(stage.arbiter.leases(None, 4).len(), 4);
}

/// A walk through more files than there are leases.
// Promise: recalls-for-capacity
#[tokio::test(start_paused = true)]
async fn no_lease_that_is_in_use_is_recalled_to_grant_another_of_its_kind() {
    let mut stage = Stage::new(Options { leases_max: 100, ..options() });
    for number in 0..250 {
        stage.below.add(&format!("{number}"));
    }
    let me = client(1);
    let walk = async |stage: &Stage| {
        let mut granted = 0;
        for number in 0..250 {
            let opened =
                stage.arbiter.open(&me, &by_name(&me, &format!("{number}"), Share::READ)).await.unwrap();
            granted += u32::from(opened.lease.is_some());
            stage.arbiter.close(&me, opened.id).await.unwrap();
        }
        granted
    };
    assert_eq!(walk(&stage).await, 100);
    assert_eq!((stage.arbiter.held().recalls, stage.arbiter.held().read_leases), (0, 100));
    // The second walk uses the leases, so they stay.
    assert_eq!(walk(&stage).await, 0);
    sleep(Duration::from_secs(29)).await;
    assert_eq!((walk(&stage).await, stage.arbiter.held().recalls), (0, 0));
    // Unused for 30 s: one batch, and no further one until it is back.
    sleep(Duration::from_secs(31)).await;
    let opened = stage.arbiter.open(&me, &by_name(&me, "249", Share::READ)).await.unwrap();
    assert_eq!((opened.lease, stage.arbiter.held().recalls), (None, 12), "twice the reserve");
    for number in 100..249 {
        let opened = stage.arbiter.open(&me, &by_name(&me, &format!("{number}"), Share::READ)).await.unwrap();
        assert_eq!(opened.lease, None);
    }
    assert_eq!(stage.arbiter.held().recalls, 12);
    let mut returned = 0;
    while returned < 12 {
        if let Callback::Recall(recall) = stage.callback().await {
            stage.give_back(recall.id).await;
            returned += 1;
        }
    }
    for number in 100..112 {
        let opened = stage.arbiter.open(&me, &by_name(&me, &format!("{number}"), Share::READ)).await.unwrap();
        assert!(opened.lease.is_some(), "file {number}");
    }
    // The next batch follows when the reserve is touched.
    assert_eq!(stage.arbiter.held().recalls, 12 + 6);
}

#[tokio::test(start_paused = true)]
async fn a_lack_of_capacity_below_recalls_leases_that_take_some_of_it_or_whose_files_are_open() {
    for (leases_take_capacity, closed, recalls) in [(true, false, 1), (false, true, 0), (false, false, 1)] {
        let stage = Stage::new(Options { leases_take_capacity, ..options() });
        let file = stage.below.add("a");
        let opened = open(&stage, &client(1), &file, Share::READ).await.unwrap();
        assert!(opened.lease.is_some());
        if closed {
            stage.arbiter.close(&client(1), opened.id).await.unwrap();
            settle().await;
        }
        assert!(
            !stage.arbiter.free_capacity(&client(2)).await,
            "{leases_take_capacity} {closed}: nothing was returned"
        );
        assert_eq!(stage.arbiter.held().recalls, recalls, "{leases_take_capacity} {closed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_that_an_open_overtakes_is_in_the_attributes_that_its_lease_vouches_for() {
    let stage = Stage::new(options());
    let file = stage.below.add("a");
    let (opens, writes) = (stage.below.hold("open"), stage.below.hold("write"));
    let writer = stage.start(|arbiter| async move { write(&*arbiter, &anonymous(), &file).await });
    let opener = stage.start(|arbiter| async move {
        arbiter.open(&client(1), &request(&client(1), &file, Share::READ)).await
    });
    settle().await;
    // The open has read the attributes, and its reply is in flight when the change takes effect.
    writes.add_permits(1);
    writer.await.unwrap().unwrap();
    opens.add_permits(1);
    let opened = opener.await.unwrap().unwrap();
    assert_eq!(opened.lease.unwrap().change, 101);
    assert_eq!(opened.attributes.change, 101);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_granted_while_a_change_is_under_way() {
    for by_name in [false, true] {
        let stage = Stage::new(options());
        let file = stage.below.add("a");
        let gate = stage.below.hold(if by_name { "remove" } else { "write" });
        let change = stage.start(|arbiter| async move {
            if by_name {
                arbiter.remove(&anonymous(), &handle(ROOT), &name("a")).await.map(|_| ())
            } else {
                write(&*arbiter, &anonymous(), &file).await.map(|_| ())
            }
        });
        settle().await;
        assert_eq!(open(&stage, &client(1), &file, Share::READ).await.unwrap().lease, None);
        gate.add_permits(1);
        change.await.unwrap().unwrap();
        assert!(open(&stage, &client(1), &file, Share::READ).await.unwrap().lease.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn an_asker_that_goes_away_before_it_is_told_of_its_open_has_none() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let opened = open(&stage, &client(1), &file, RW).await.unwrap();
    let _never = stage.below.hold("getattr");
    let waiter = stage.start(|arbiter| async move {
        arbiter.open(&client(2), &request(&client(2), &file, Share::READ)).await
    });
    let recall = stage.recall().await;
    stage.give_back(recall.id).await;
    settle().await;
    assert_eq!(
        (stage.arbiter.held().opens, waiter.is_finished()),
        (2, false),
        "its attributes are read anew"
    );
    waiter.abort();
    settle().await;
    assert_eq!(stage.arbiter.held().opens, 1);
    assert_eq!(stage.below.files.lock().opens.len(), 1);
    stage.arbiter.close(&client(1), opened.id).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_asker_that_goes_away_leaves_nothing_behind() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let opened = open(&stage, &client(1), &file, RW).await.unwrap();
    let waiter = stage.start(|arbiter| async move {
        arbiter.open(&client(2), &request(&client(2), &file, Share::READ)).await
    });
    let recall = stage.recall().await;
    settle().await;
    waiter.abort();
    settle().await;
    assert_eq!(stage.below.files.lock().opens.len(), 1, "what it opened below is closed");
    stage.give_back(recall.id).await;
    stage.arbiter.close(&client(1), opened.id).await.unwrap();
    settle().await;
    assert_eq!(stage.arbiter.held().opens, 0);
    assert!(stage.below.files.lock().opens.is_empty() && stage.below.files.lock().leases.is_empty());
}

/// The holder of a write lease renames another file over the name while another client waits to open it.
/// The holder drops its unsent data of the replaced file with the last link. The open gets the file that
/// the name leads to now.
#[tokio::test(start_paused = true)]
async fn an_open_that_waited_is_of_what_the_name_leads_to_then() {
    let mut stage = Stage::new(options());
    let old = stage.below.add("a");
    let new = stage.below.add("b");
    let lease = open(&stage, &client(1), &old, RW).await.unwrap().lease.unwrap();
    let waiter = stage.start(|arbiter| async move {
        arbiter.open(&client(2), &by_name(&client(2), "a", Share::READ)).await
    });
    stage.recall().await;
    let root = handle(ROOT);
    stage.arbiter.rename(&client(1), &root, &name("b"), &root, &name("a")).await.unwrap();
    stage.give_back(lease.id).await;
    assert_eq!(waiter.await.unwrap().unwrap().handle, new);
}
