//! Opens, locks, callbacks of the layer below, and questions to writers.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod below;

use std::time::Duration;

use arbiter::Options;
use below::{
    Below, ROOT, RW, Stage, anonymous, by_name, client, handle, is_denied, lock, name, open, options, owner,
    request, settle, truncating,
};
use bytes::Bytes;
use tokio::time::Instant;
use vfs::LockKind::{Exclusive, Shared};
use vfs::{
    Callback, CreateHow, DelayedAttributes, FileSystem, LeaseId, Lock, Locked, OpenRequest, Opens, Share,
    Stability, StateidBasis, Status, Times, Timestamp,
};

/// A front without callbacks, as for v2 and v3.
fn quiet() -> Options {
    Options { delegations: arbiter::Delegations::Never, ..options() }
}

#[tokio::test(start_paused = true)]
async fn calls_over_an_empty_table_go_through_as_they_are() {
    let stage = Stage::new(options());
    let (file, me) = (stage.below.add("a"), anonymous());
    for _ in 0..10 {
        stage.arbiter.getattr(&me, &file).await.unwrap();
        stage.arbiter.lookup(&me, &handle(ROOT), &name("a"), vfs::Want::None).await.unwrap();
        stage.arbiter.read(&me, &file, StateidBasis::Anonymous, 0, 1).await.unwrap();
        let write = stage.arbiter.write(
            &me,
            &file,
            StateidBasis::Anonymous,
            0,
            Bytes::from_static(b"x"),
            Stability::Unstable,
        );
        write.await.unwrap();
    }
    assert_eq!(stage.below.all_calls(), 40);
}

#[tokio::test(start_paused = true)]
async fn an_open_that_others_deny_is_closed_below_again() {
    let stage = Stage::new(quiet());
    let file = stage.below.add("a");
    let deny = OpenRequest { deny: Share::WRITE, ..request(&client(1), &file, Share::READ) };
    let held = stage.arbiter.open(&client(1), &deny).await.unwrap();
    let denied = stage.arbiter.open(&client(2), &by_name(&client(2), "a", RW)).await;
    assert_eq!(denied.unwrap_err().status, Status::ShareDenied);
    settle().await;
    assert_eq!((stage.below.count("open"), stage.below.count("close")), (2, 1));
    // An open that is known to be denied is not sent to the layer below.
    assert_eq!(open(&stage, &client(2), &file, RW).await.unwrap_err().status, Status::ShareDenied);
    assert_eq!(stage.below.count("open"), 2);
    let write = |me| {
        let arbiter = stage.arbiter.clone();
        async move {
            arbiter.write(&me, &file, StateidBasis::Anonymous, 0, Bytes::new(), Stability::Unstable).await
        }
    };
    assert_eq!(write(anonymous()).await.unwrap_err().status, Status::ShareDenied);
    let own = write(client(1)).await;
    assert_eq!(own.unwrap_err().status, Status::ShareDenied, "without lease and open it is anybody");
    stage.arbiter.close(&client(1), held.id).await.unwrap();
    assert!(write(anonymous()).await.is_ok());
    assert!(open(&stage, &client(2), &file, RW).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_an_open_denies_is_not_truncated_by_name() {
    for stateful in [true, false] {
        let stage = Stage::over(Below::new(stateful), quiet());
        let file = stage.below.add("a");
        let deny = OpenRequest { deny: Share::WRITE, ..request(&client(1), &file, Share::READ) };
        stage.arbiter.open(&client(1), &deny).await.unwrap();
        let open = truncating(by_name(&client(2), "a", RW));
        assert_eq!(stage.arbiter.open(&client(2), &open).await.unwrap_err().status, Status::ShareDenied);
        let set = vfs::SetAttributes { size: Some(0), ..vfs::SetAttributes::default() };
        let (me, root, named) = (anonymous(), handle(ROOT), name("a"));
        let create = stage.arbiter.create(&me, &root, &named, CreateHow::Unchecked, &set);
        assert_eq!(create.await.unwrap_err().status, Status::ShareDenied);
        assert_eq!(stage.below.files.lock().by_id[&1].size, 10);
        let other = truncating(by_name(&client(2), "b", RW));
        assert!(stage.arbiter.open(&client(2), &other).await.unwrap().created);
    }
}

#[tokio::test(start_paused = true)]
async fn an_arbiter_that_was_made_before_the_runtime_attends_from_the_first_open_on() {
    let below = Below::new(true);
    let made = below.clone();
    let stage = std::thread::spawn(move || Stage::over(made, options())).join().unwrap();
    let file = below.add("a");
    let opened = open(&stage, &client(1), &file, Share::READ).await.unwrap();
    stage.give_back(opened.lease.unwrap().id).await;
    let under = below.lease_on(&file).unwrap();
    below.recall(under, file, Duration::from_secs(8)).await;
    settle().await;
    assert_eq!(below.count("returned"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_second_open_by_the_same_owner_widens_the_first() {
    let stage = Stage::new(quiet());
    let (file, me) = (stage.below.add("a"), client(1));
    let first = open(&stage, &me, &file, Share::READ).await.unwrap().id;
    let write = |by| stage.arbiter.write(&me, &file, by, 0, Bytes::new(), Stability::Unstable);
    assert_eq!(write(StateidBasis::Open(first)).await.unwrap_err().status, Status::OpenMode);
    assert_eq!(stage.arbiter.open(&me, &by_name(&me, "a", Share::WRITE)).await.unwrap().id, first);
    write(StateidBasis::Open(first)).await.unwrap();
    stage.arbiter.read(&me, &file, StateidBasis::Open(first), 0, 1).await.unwrap();
    assert_eq!(stage.arbiter.downgrade(&me, first, RW, Share::READ).await.unwrap_err().status, Status::Inval);
    for _ in 0..5 {
        open(&stage, &me, &file, RW).await.unwrap();
        open(&stage, &me, &file, Share::READ).await.unwrap();
    }
    settle().await;
    assert_eq!(stage.below.files.lock().opens.len(), 3, "one for each share");
    stage.arbiter.downgrade(&me, first, Share::READ, Share::empty()).await.unwrap();
    let below = stage.below.files.lock().opens.values().map(|open| open.1).collect::<Vec<_>>();
    assert_eq!(below, [Share::READ], "what wrote is closed below");
    assert_eq!(write(StateidBasis::Open(first)).await.unwrap_err().status, Status::OpenMode);
    stage.arbiter.close(&me, first).await.unwrap();
    assert!(stage.below.files.lock().opens.is_empty());
    assert_eq!(stage.arbiter.close(&me, first).await.unwrap_err().status, Status::BadStateId);
    assert_eq!(write(StateidBasis::Open(first)).await.unwrap_err().status, Status::BadStateId);
}

#[tokio::test(start_paused = true)]
async fn an_open_for_writing_alone_may_read_too() {
    let stage = Stage::new(quiet());
    let (file, me) = (stage.below.add("a"), client(1));
    let id = open(&stage, &me, &file, Share::WRITE).await.unwrap().id;
    stage.arbiter.read(&me, &file, StateidBasis::Open(id), 0, 1).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn over_a_layer_without_opens_they_are_kept_here() {
    let stage = Stage::over(Below::new(false), options());
    let (file, me) = (stage.below.add("a"), client(1));
    stage.below.files.lock().by_id.get_mut(&1).unwrap().size = 10;
    let opened = open(&stage, &me, &file, RW).await.unwrap();
    assert_eq!((opened.lease, opened.created), (None, false));
    let set = vfs::SetAttributes::default();
    let create = |file: &str, how| OpenRequest { create: Some((how, set)), ..by_name(&me, file, RW) };
    for (file, how, created) in [
        ("a", CreateHow::Unchecked, Ok(false)),
        ("b", CreateHow::Unchecked, Ok(true)),
        ("b", CreateHow::Guarded, Err(Status::Exist)),
        ("c", CreateHow::Guarded, Ok(true)),
        ("d", CreateHow::Exclusive([7; 8]), Ok(true)),
    ] {
        let opened = stage.arbiter.open(&me, &create(file, how)).await;
        assert_eq!(
            opened.map(|opened| opened.created).map_err(|error| error.status),
            created,
            "{file} {how:?}"
        );
    }
    let truncated = stage.arbiter.open(&me, &truncating(by_name(&me, "a", RW))).await.unwrap();
    assert_eq!((truncated.created, truncated.attributes.size, truncated.id), (false, 0, opened.id));
    assert_eq!(stage.below.count("open"), 1, "it is not asked again");
    let wanted = lock(&me, Exclusive, 0, 10);
    assert_eq!(stage.arbiter.lock(&me, opened.id, &wanted).await.unwrap(), Locked::Granted);
    assert_eq!(stage.below.count("lock"), 0);
    stage.arbiter.read(&me, &file, StateidBasis::Open(opened.id), 0, 1).await.unwrap();
    stage.arbiter.close(&me, opened.id).await.unwrap();
    assert_eq!(stage.arbiter.held().locks, 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_told_when_a_lock_is_released() {
    let mut stage = Stage::new(quiet());
    let file = stage.below.add("a");
    let (one, two) = (client(1), client(2));
    let (a, b) =
        (open(&stage, &one, &file, RW).await.unwrap().id, open(&stage, &two, &file, RW).await.unwrap().id);
    let (held, wanted) = (lock(&one, Exclusive, 0, 10), lock(&two, Shared, 5, 10));
    assert_eq!(stage.arbiter.lock(&one, a, &held).await.unwrap(), Locked::Granted);
    assert_eq!(stage.arbiter.lock(&two, b, &wanted).await.unwrap(), Locked::Denied(held.lock.clone()));
    assert_eq!(stage.below.count("lock"), 1, "what is denied here is not asked below");
    assert_eq!(stage.arbiter.test(&two, &file, &wanted.lock).await.unwrap(), Some(held.lock));
    stage.arbiter.unlock(&one, a, &owner(&one), (0, 2)).await.unwrap();
    stage.is_silent().await;
    // Changing an exclusive lock into a shared one admits another shared lock.
    stage.arbiter.lock(&one, a, &lock(&one, Shared, 2, 8)).await.unwrap();
    match stage.callback().await {
        Callback::NotifyLock { holder, owner: of, handle } => {
            assert_eq!((Some(holder), of, handle), (two.holder, owner(&two), file));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(stage.arbiter.lock(&two, b, &wanted).await.unwrap(), Locked::Granted);
    assert!(stage.arbiter.holds_locks(b, &owner(&two)));
    assert_eq!(stage.arbiter.held().lock_waiters, 0);
    stage.arbiter.close(&one, a).await.unwrap();
    stage.arbiter.close(&two, b).await.unwrap();
    stage.end().await;
}

// Promise: lock-queries
#[tokio::test(start_paused = true)]
async fn the_first_conflict_by_offset_is_named_here_or_below() {
    let stage = Stage::new(quiet());
    let (file, me, other) = (stage.below.add("a"), client(1), client(2));
    let id = open(&stage, &me, &file, RW).await.unwrap().id;
    let foreign = Lock { owner: owner(&anonymous()), kind: Shared, offset: 2, length: 2 };
    stage.arbiter.lock(&me, id, &lock(&me, Exclusive, 10, 5)).await.unwrap();
    stage.arbiter.lock(&me, id, &lock(&me, Shared, 4, 5)).await.unwrap();
    stage.below.files.lock().foreign_lock = Some(foreign.clone());
    let test = async |kind, offset| {
        let wanted = lock(&other, kind, offset, u64::MAX).lock;
        stage.arbiter.test(&other, &file, &wanted).await.unwrap()
    };
    assert_eq!(test(Exclusive, 0).await, Some(foreign));
    assert_eq!(test(Shared, 0).await, Some(lock(&me, Exclusive, 10, 5).lock));
    let asked = stage.below.count("test");
    assert_eq!(test(Exclusive, 4).await, Some(lock(&me, Shared, 4, 5).lock));
    assert_eq!(stage.below.count("test"), asked, "none can begin earlier");
    let opened = open(&stage, &other, &file, RW).await.unwrap().id;
    let denied = stage.arbiter.lock(&other, opened, &lock(&other, Exclusive, 0, u64::MAX)).await.unwrap();
    assert_eq!(denied, Locked::Denied(lock(&me, Shared, 4, 5).lock));
}

#[tokio::test(start_paused = true)]
async fn a_close_releases_what_was_locked_through_the_open() {
    let mut stage = Stage::new(quiet());
    let file = stage.below.add("a");
    let (one, two) = (client(1), client(2));
    let (a, b) =
        (open(&stage, &one, &file, RW).await.unwrap().id, open(&stage, &two, &file, RW).await.unwrap().id);
    stage.arbiter.lock(&one, a, &lock(&one, Exclusive, 0, 10)).await.unwrap();
    stage.arbiter.lock(&one, a, &lock(&one, Shared, 20, 10)).await.unwrap();
    stage.arbiter.lock(&two, b, &lock(&two, Exclusive, 40, 10)).await.unwrap();
    assert!(is_denied(&stage.arbiter.lock(&two, b, &lock(&two, Exclusive, 25, 1)).await));
    assert_eq!(stage.arbiter.held().locks, 3);
    stage.arbiter.close(&one, a).await.unwrap();
    assert!(matches!(stage.callback().await, Callback::NotifyLock { .. }));
    assert_eq!(stage.arbiter.held().locks, 1);
    assert!(stage.arbiter.holds_locks(b, &owner(&two)));
    stage.arbiter.close(&two, b).await.unwrap();
    stage.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_denied_below_is_not_held_here() {
    let stage = Stage::new(quiet());
    let (file, me, other) = (stage.below.add("a"), client(1), client(2));
    let id = open(&stage, &me, &file, RW).await.unwrap().id;
    let elsewhere = open(&stage, &other, &file, RW).await.unwrap().id;
    let foreign = Lock { owner: owner(&anonymous()), kind: Shared, offset: 0, length: u64::MAX };
    stage.below.files.lock().foreign_lock = Some(foreign.clone());
    stage.arbiter.lock(&me, id, &lock(&me, Shared, 0, 10)).await.unwrap();
    let exclusive = lock(&me, Exclusive, 5, 10);
    assert_eq!(stage.arbiter.lock(&me, id, &exclusive).await.unwrap(), Locked::Denied(foreign.clone()));
    // The earlier shared lock is unchanged.
    assert_eq!(
        stage.arbiter.lock(&other, elsewhere, &lock(&other, Shared, 0, 20)).await.unwrap(),
        Locked::Granted
    );
    assert_eq!(stage.arbiter.held().locks, 2);
    assert_eq!(
        stage.arbiter.test(&anonymous(), &file, &lock(&client(3), Exclusive, 50, 1).lock).await.unwrap(),
        Some(foreign)
    );
    let read_only = open(&stage, &client(4), &file, Share::READ).await.unwrap().id;
    let refused = stage.arbiter.lock(&client(4), read_only, &lock(&client(4), Exclusive, 90, 1)).await;
    assert_eq!(refused.unwrap_err().status, Status::OpenMode);
}

#[tokio::test(start_paused = true)]
async fn a_recall_from_below_is_passed_on_and_answered_when_ours_are_back() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let leases = [
        open(&stage, &client(1), &file, Share::READ).await.unwrap().lease.unwrap(),
        open(&stage, &client(2), &file, Share::READ).await.unwrap().lease.unwrap(),
    ];
    let under = stage.below.lease_on(&file).unwrap();
    let began = Instant::now();
    stage.below.recall(under, file, Duration::from_secs(8)).await;
    for lease in leases {
        let recall = stage.recall().await;
        assert_eq!(recall.id, lease.id);
        assert!(recall.deadline < began + Duration::from_secs(8), "some time is left to give it back");
    }
    assert_eq!(open(&stage, &client(3), &file, Share::READ).await.unwrap().lease, None);
    stage.give_back(leases[0].id).await;
    settle().await;
    assert_eq!(stage.below.count("returned"), 0);
    stage.give_back(leases[1].id).await;
    settle().await;
    assert_eq!(stage.below.count("returned"), 1);
    assert_eq!(Instant::now(), began, "no time has passed");
}

#[tokio::test(start_paused = true)]
async fn a_recall_from_below_that_overtakes_the_grant_is_answered_and_nothing_granted() {
    let stage = Stage::new(options());
    let file = stage.below.add("a");
    let gate = stage.below.hold("open");
    let opener = stage.start(|arbiter| async move {
        arbiter.open(&client(1), &request(&client(1), &file, Share::READ)).await
    });
    settle().await;
    let under = stage.below.lease_on(&file).unwrap();
    stage.below.recall(under, file, Duration::from_secs(8)).await;
    settle().await;
    assert_eq!(stage.below.count("returned"), 0, "the grant is on its way");
    gate.add_permits(1);
    assert_eq!(opener.await.unwrap().unwrap().lease, None);
    settle().await;
    assert_eq!(stage.below.count("returned"), 1);
    assert_eq!(stage.below.lease_on(&file), None);
}

#[tokio::test(start_paused = true)]
async fn what_the_layer_below_has_lost_our_clients_have_lost() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let lease = open(&stage, &client(1), &file, RW).await.unwrap().lease.unwrap();
    let id = stage.below.lease_on(&file).unwrap();
    stage.below.say(Callback::Revoked { id, handle: file }).await;
    assert!(matches!(stage.callback().await, Callback::Revoked { id, .. } if id == lease.id));
    assert_eq!(stage.arbiter.held().write_leases, 0);
    // A revocation of an unknown lease is ignored.
    stage.below.say(Callback::Revoked { id: LeaseId(12345), handle: file }).await;
    stage.is_silent().await;
}

#[tokio::test(start_paused = true)]
async fn the_layer_below_may_ask_for_all_but_a_few() {
    let mut stage = Stage::new(options());
    let mut leases = Vec::new();
    for file in ["a", "b", "c"] {
        let file = stage.below.add(file);
        leases.push(open(&stage, &client(1), &file, Share::READ).await.unwrap().lease.unwrap().id);
    }
    stage.below.say(Callback::RecallAny { holder: None, keep: 1 }).await;
    assert_eq!([stage.recall().await.id, stage.recall().await.id], leases[..2]);
    stage.is_silent().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_from_below_goes_back_when_nobody_has_the_file() {
    let stage = Stage::new(options());
    let file = stage.below.add("a");
    let opened = open(&stage, &client(1), &file, Share::READ).await.unwrap();
    stage.arbiter.close(&client(1), opened.id).await.unwrap();
    settle().await;
    assert_eq!(stage.below.count("returned"), 0, "it is under the client's");
    stage.give_back(opened.lease.unwrap().id).await;
    settle().await;
    assert_eq!(stage.below.count("returned"), 1);
}

/// The holder's answer about a file that had ten bytes.
fn made(size: u64, times: Option<Times>) -> DelayedAttributes {
    DelayedAttributes { modified: size != 10, size, times }
}

// Promise: times-seen-elsewhere
#[tokio::test(start_paused = true)]
async fn times_that_only_the_writer_knows_are_told() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    open(&stage, &client(1), &file, RW).await.unwrap().lease.unwrap();
    let known = stage.arbiter.getattr(&client(1), &file).await.unwrap();
    let [long_ago, read] = [3, 4].map(|seconds| Timestamp::new(seconds, 5));
    let times = |ctime| Times { atime: read, mtime: long_ago, ctime };
    let before = known.ctime;
    let older = Timestamp::from_nanos(before.as_nanos() - 1);
    let later = known.ctime.plus(Duration::from_nanos(1));
    // Four holders: one has changed the times itself. One only repeats the times that it was sent. One does
    // not know yet that its own data has arrived, but does at the second question. The last does not even
    // then.
    for (told, shown) in
        [(&[later][..], true), (&[before], false), (&[older, later], true), (&[older; 2], false)]
    {
        let waiter = stage.start(|arbiter| async move { arbiter.getattr(&anonymous(), &file).await });
        for ctime in told {
            stage.query().await.answer.send(made(11, Some(times(*ctime)))).unwrap();
        }
        let seen = waiter.await.unwrap().unwrap();
        assert_eq!((seen.mtime == long_ago, seen.atime == read), (shown, shown), "{told:?}: {seen:?}");
        assert!(shown || (seen.mtime > known.mtime && seen.atime == known.atime), "{seen:?}");
        assert!(seen.ctime >= known.ctime && seen.change > known.change);
    }
    stage.is_silent().await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_is_asked_and_its_answer_told() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let lease = open(&stage, &client(1), &file, RW).await.unwrap().lease.unwrap();
    let mut told = Vec::new();
    for size in [10, 5000, 5000] {
        let waiter = stage.start(|arbiter| async move { arbiter.getattr(&anonymous(), &file).await });
        let query = stage.query().await;
        assert_eq!(query.id, lease.id);
        assert_eq!((query.change, query.times), (lease.change, true));
        query.answer.send(made(size, None)).unwrap();
        let attributes = waiter.await.unwrap().unwrap();
        assert_eq!(attributes.size, size);
        told.push((attributes.change, attributes.mtime));
    }
    assert_eq!(told[0].0, lease.change, "unmodified");
    assert!(told[1].0 > told[0].0 && told[2].0 > told[1].0 && told[1].1 > told[0].1);
    let accessed = stage.arbiter.access(&anonymous(), &file, vfs::AccessMask::READ).await.unwrap();
    assert_eq!(accessed.attributes, None, "nobody asks for those that only come along");
    // A holder's own GETATTR asks no question. A LOOKUP by another client does.
    stage.arbiter.getattr(&client(1), &file).await.unwrap();
    stage.is_silent().await;
    let waiter = stage.start(|arbiter| async move {
        arbiter.lookup(&anonymous(), &handle(ROOT), &name("a"), vfs::Want::None).await
    });
    stage.query().await.answer.send(made(7, None)).unwrap();
    assert_eq!(waiter.await.unwrap().unwrap().node.attributes.unwrap().size, 7);
    assert_eq!(stage.arbiter.held().recalls, 0);
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_cannot_say_or_does_not_in_time_is_recalled() {
    for answers in [true, false] {
        let mut stage = Stage::new(options());
        let file = stage.below.add("a");
        let lease = open(&stage, &client(1), &file, RW).await.unwrap().lease.unwrap();
        let waiter = stage.start(|arbiter| async move { arbiter.getattr(&anonymous(), &file).await });
        let query = stage.query().await;
        let kept = if answers { None } else { Some(query) };
        assert_eq!(stage.recall().await.id, lease.id);
        drop(kept);
        stage.give_back(lease.id).await;
        assert_eq!(waiter.await.unwrap().unwrap().size, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn many_who_ask_at_a_time_share_a_question() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    open(&stage, &client(1), &file, RW).await.unwrap().lease.unwrap();
    let ask =
        |arbiter: std::sync::Arc<arbiter::Arbiter>| async move { arbiter.getattr(&anonymous(), &file).await };
    let mut waiters = vec![stage.start(ask)];
    let first = stage.query().await;
    waiters.extend((0..20).map(|_| stage.start(ask)));
    settle().await;
    first.answer.send(made(1, None)).unwrap();
    // The other requesters came after the first question was sent, so their answer must come from a later
    // question.
    stage.query().await.answer.send(made(2, None)).unwrap();
    let mut sizes = Vec::new();
    for waiter in waiters {
        sizes.push(waiter.await.unwrap().unwrap().size);
    }
    assert_eq!((sizes[0], &sizes[1..]), (1, &[2; 20][..]));
    assert_eq!(stage.arbiter.held().questions, 2);
}

#[tokio::test(start_paused = true)]
async fn a_question_from_below_is_for_whoever_writes() {
    let mut stage = Stage::new(options());
    let file = stage.below.add("a");
    let lease = open(&stage, &client(1), &file, RW).await.unwrap().lease.unwrap();
    let id = stage.below.lease_on(&file).unwrap();
    let ask = || {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let deadline = Instant::now() + Duration::from_secs(1);
        let query = vfs::Query { id, handle: file, change: 1, times: false, answer, deadline };
        (Callback::Getattr(query), answered)
    };
    let (question, answered) = ask();
    stage.below.say(question).await;
    let query = stage.query().await;
    assert_eq!((query.id, query.change, query.times), (lease.id, lease.change, false));
    query.answer.send(made(6, None)).unwrap();
    assert_eq!(answered.await.unwrap().size, 6);
    stage.give_back(lease.id).await;
    let (question, answered) = ask();
    stage.below.say(question).await;
    assert_eq!(answered.await.unwrap(), made(10, None));
}
