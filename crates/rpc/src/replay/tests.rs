//! Tests of the reply cache, over one incarnation and several.
//!
//! Promise: calls-that-take-effect-once

use super::*;
use crate::auth::Credential;

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// A connection, and a second one that the same client makes afterwards.
const FIRST: Sender = Sender { address: SocketAddr::new(HERE, 700), connection: Some(1) };
const SECOND: Sender = Sender { address: SocketAddr::new(HERE, 701), connection: Some(2) };

fn header(xid: u32) -> CallHeader {
    CallHeader { xid, program: 100_003, version: 3, procedure: 8, credential: Credential::None }
}

fn message(text: &'static [u8]) -> Message {
    Message { first: Bytes::from_static(text), more: Vec::new() }
}

fn admit(cache: &Arc<ReplyCache>, xid: u32, arguments: &'static [u8]) -> Admission {
    again(cache, FIRST, xid, arguments)
}

fn again(cache: &Arc<ReplyCache>, from: Sender, xid: u32, arguments: &'static [u8]) -> Admission {
    cache.admit(from, &header(xid), (arguments, None), ReplyLifetime::UntilHeard)
}

/// A reply whose results begin with `status`.
fn ended(status: u32) -> Message {
    let mut reply = crate::message::success(1);
    reply.u32(status);
    reply.finish()
}

fn answer(admission: Admission, reply: &Message) {
    let Admission::Execute { slot, .. } = admission else { panic!("{admission:?}") };
    slot.complete(reply);
}

#[tokio::test]
async fn a_call_by_another_credential_is_another_call() {
    use crate::auth::AuthSys;
    use xdr::{List, Opaque};
    let cache = ReplyCache::volatile();
    let sys = AuthSys { uid: 1, gid: 2, gids: List::new(vec![3]).unwrap(), ..AuthSys::default() };
    let credentials = [
        Credential::None,
        Credential::Other(0x0005_f3d3),
        Credential::Sys(sys.clone()),
        Credential::Sys(AuthSys { uid: 9, ..sys.clone() }),
        Credential::Sys(AuthSys { gid: 9, ..sys.clone() }),
        Credential::Sys(AuthSys { gids: List::new(vec![]).unwrap(), ..sys.clone() }),
        Credential::Sys(AuthSys { gids: List::new(vec![3, 4]).unwrap(), ..sys.clone() }),
        Credential::Sys(AuthSys { machine: Opaque::new(&b"other"[..]).unwrap(), ..sys.clone() }),
    ];
    for credential in credentials {
        let header = CallHeader { credential, ..header(1) };
        let admitted = cache.admit(FIRST, &header, (b"mkdir a", None), ReplyLifetime::UntilHeard);
        assert!(matches!(admitted, Admission::Execute { resent: false, .. }), "{header:?}");
        answer(admitted, &message(b"done"));
    }
    let stamped = Credential::Sys(AuthSys { stamp: 77, ..sys });
    let header = CallHeader { credential: stamped, ..header(1) };
    let admitted = cache.admit(SECOND, &header, (b"mkdir a", None), ReplyLifetime::UntilHeard);
    assert!(matches!(admitted, Admission::Answered(_)), "a stamp may be new each time it is sent");
}

#[tokio::test]
async fn a_reply_that_was_heard_answers_the_same_port_alone() {
    let directory = tempfile::tempdir().unwrap();
    let cache = ReplyCache::open(directory.path()).unwrap();
    answer(admit(&cache, 1, b"mkdir a"), &ended(0));
    answer(admit(&cache, 2, b"mkdir a"), &ended(17));
    answer(cache.admit(FIRST, &header(3), (b"vacated", None), ReplyLifetime::Kept), &ended(0));
    cache.heard(9);
    for xid in [1, 2] {
        assert!(
            matches!(again(&cache, SECOND, xid, b"mkdir a"), Admission::Answered(_)),
            "its connection may have broken"
        );
    }
    cache.heard(1);
    let kept = cache.admit(SECOND, &header(3), (b"vacated", None), ReplyLifetime::Kept);
    assert!(matches!(kept, Admission::Answered(_)), "whatever the network does");
    for restarted in [true, false] {
        let cache = if restarted { ReplyCache::open(directory.path()).unwrap() } else { cache.clone() };
        if !restarted {
            assert!(matches!(again(&cache, FIRST, 1, b"mkdir a"), Admission::Answered(_)));
        }
        let Admission::Execute { slot, resent: true } = again(&cache, SECOND, 1, b"mkdir a") else {
            panic!("it took effect, and a relay may have lost the reply")
        };
        std::mem::forget(slot);
        let Admission::Execute { slot, resent: false } = again(&cache, SECOND, 2, b"mkdir a") else {
            panic!("it did nothing before")
        };
        std::mem::forget(slot);
    }
}

#[tokio::test]
async fn the_same_call_gets_the_same_reply() {
    let cache = ReplyCache::volatile();
    let Admission::Execute { slot, resent: false } = admit(&cache, 1, b"mkdir a") else { panic!("new") };
    let Admission::Running(mut done) = admit(&cache, 1, b"mkdir a") else { panic!("running") };
    assert!(matches!(admit(&cache, 1, b"mkdir b"), Admission::Execute { resent: false, .. }));
    slot.complete(&message(b"done"));
    assert_eq!(done.wait_for(Option::is_some).await.unwrap().as_ref().unwrap().first, "done");
    let Admission::Answered(reply) = admit(&cache, 1, b"mkdir a") else { panic!("answered") };
    assert_eq!(reply.first, "done");
    assert!(matches!(admit(&cache, 2, b"mkdir a"), Admission::Execute { resent: false, .. }));
}

#[tokio::test]
async fn replies_and_intents_outlive_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let cache = ReplyCache::open(directory.path()).unwrap();
    let Admission::Execute { slot, .. } = admit(&cache, 1, b"answered") else { panic!("new") };
    slot.complete(&message(b"reply"));
    let Admission::Execute { slot: cut_off, .. } = admit(&cache, 2, b"cut off") else { panic!("new") };
    let Admission::Execute { slot, .. } = admit(&cache, 3, b"refused") else { panic!("new") };
    slot.forget();
    std::mem::forget(cut_off);
    for _ in 0..2 {
        let cache = ReplyCache::open(directory.path()).unwrap();
        assert!(
            matches!(admit(&cache, 1, b"answered"), Admission::Answered(reply) if reply.first == "reply")
        );
        let Admission::Execute { slot, resent: true } = admit(&cache, 2, b"cut off") else {
            panic!("resent")
        };
        std::mem::forget(slot);
        let Admission::Execute { slot, resent: false } = admit(&cache, 3, b"refused") else {
            panic!("new again")
        };
        slot.forget();
    }
}

#[tokio::test]
async fn a_call_given_up_counts_as_resent() {
    let cache = ReplyCache::volatile();
    drop(admit(&cache, 1, b"given up"));
    assert!(matches!(admit(&cache, 1, b"given up"), Admission::Execute { resent: true, .. }));
}

/// Admits a call of a session, whose arguments begin with the name of the session.
fn in_session(cache: &Arc<ReplyCache>, xid: u32, arguments: &'static [u8]) -> (Slot, bool) {
    let sessionless = arguments.split(|byte| *byte == b' ').next_back();
    match cache.admit(SECOND, &header(xid), (arguments, sessionless), ReplyLifetime::UntilHeard) {
        Admission::Execute { slot, resent } => (slot, resent),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_resent_call_that_was_put_off_is_resent_in_the_next_session() {
    let directory = tempfile::tempdir().unwrap();
    let restarted = || ReplyCache::open(directory.path()).unwrap();
    let cache = restarted();
    let (killed, false) = in_session(&cache, 1, b"old rename") else { panic!("new") };
    std::mem::forget(killed);
    let cache = restarted();
    // Another call of the kind is a new one, until the copy of the first has come.
    let (slot, false) = in_session(&cache, 2, b"new rename") else { panic!("new") };
    slot.put_off(&message(b"later"));
    let (slot, true) = in_session(&cache, 1, b"old rename") else { panic!("resent") };
    slot.put_off(&message(b"later"));
    // It is put off for the grace period, through further restarts.
    for xid in [3, 4, 5] {
        let cache = restarted();
        let (slot, false) = in_session(&cache, xid, b"new other") else { panic!("another call") };
        slot.forget();
        let (slot, true) = in_session(&cache, xid, b"new rename") else { panic!("resent, {xid}") };
        let (beside, false) = in_session(&cache, xid + 10, b"new rename") else { panic!("one is the copy") };
        beside.forget();
        slot.put_off(&message(b"later"));
    }
    let cache = restarted();
    let (slot, true) = in_session(&cache, 6, b"new rename") else { panic!("resent") };
    slot.complete(&ended(0));
    for cache in [cache, restarted()] {
        let (slot, false) = in_session(&cache, 7, b"new rename") else { panic!("the first one is over") };
        slot.forget();
    }
}

/// A copy that came on another connection waits for the same reply.
#[tokio::test]
async fn a_copy_that_waits_is_told_that_the_call_is_put_off() {
    let cache = ReplyCache::volatile();
    let (slot, false) = in_session(&cache, 1, b"s mkdir") else { panic!("new") };
    let Admission::Running(mut done) = admit(&cache, 1, b"s mkdir") else { panic!("running") };
    slot.put_off(&message(b"later"));
    assert_eq!(done.wait_for(Option::is_some).await.unwrap().as_ref().unwrap().first, "later");
}

/// The slot of the session answers until the server dies. Then the log does.
#[tokio::test]
async fn what_a_slot_keeps_is_answered_after_a_restart_alone() {
    let directory = tempfile::tempdir().unwrap();
    let cache = ReplyCache::open(directory.path()).unwrap();
    let in_slot = |cache: &Arc<ReplyCache>| {
        cache.admit(FIRST, &header(1), (b"s mkdir", Some(b"mkdir")), ReplyLifetime::Slot)
    };
    answer(in_slot(&cache), &ended(0));
    assert!(cache.table.lock().entries.is_empty());
    for _ in 0..2 {
        let cache = ReplyCache::open(directory.path()).unwrap();
        assert!(matches!(in_slot(&cache), Admission::Answered(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_put_off_and_never_comes_again_is_forgotten() {
    let cache = ReplyCache::volatile();
    drop(in_session(&cache, 1, b"old rename"));
    in_session(&cache, 1, b"old rename").0.put_off(&message(b"later"));
    tokio::time::advance(KEPT * 9 / 10).await;
    // Each time that it is put off again, the wait begins anew.
    let (slot, true) = in_session(&cache, 2, b"new rename") else { panic!("resent") };
    slot.put_off(&message(b"later"));
    tokio::time::advance(KEPT * 9 / 10).await;
    let (slot, true) = in_session(&cache, 3, b"new rename") else { panic!("resent") };
    slot.put_off(&message(b"later"));
    tokio::time::advance(KEPT).await;
    assert!(!in_session(&cache, 4, b"new rename").1);
    assert!(is_kept(unix_seconds()) && !is_kept(unix_seconds() - KEPT.as_secs()));
}

#[tokio::test(start_paused = true)]
async fn replies_are_forgotten_in_time_and_in_number() {
    let cache = ReplyCache::volatile();
    let Admission::Execute { slot, .. } = admit(&cache, 1, b"old") else { panic!("new") };
    slot.complete(&message(b"reply"));
    tokio::time::advance(KEPT + Duration::from_secs(1)).await;
    assert!(matches!(admit(&cache, 1, b"old"), Admission::Execute { resent: false, .. }));
    for xid in 0..2 * ENTRIES_MAX as u32 {
        let Admission::Execute { slot, .. } = admit(&cache, xid, b"many") else { panic!("new") };
        slot.complete(&message(b"reply"));
    }
    let table = cache.table.lock();
    assert!(table.entries.len() <= ENTRIES_MAX && table.order.len() <= 4 * ENTRIES_MAX);
}
