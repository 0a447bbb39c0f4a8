//! The reply cache, over one life and several.

use super::*;
use crate::auth::Credential;

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn header(xid: u32) -> CallHeader {
    CallHeader { xid, program: 100_003, version: 3, procedure: 8, credential: Credential::None }
}

fn message(text: &'static [u8]) -> Message {
    Message { first: Bytes::from_static(text), more: Vec::new() }
}

fn admit(cache: &Arc<ReplyCache>, xid: u32, arguments: &'static [u8]) -> Admission {
    cache.admit(CLIENT, &header(xid), arguments)
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
