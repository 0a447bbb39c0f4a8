//! When a lease has really ended: diagram 2, section 5, and recovery.
//!
//! Promise: leases-with-a-term

use std::time::Duration;

use protocol::nqnfs::{Cachetype, Stat, call};
use protocol::{Reply, nfs3};
use tokio::time::{Instant, advance};

use crate::nqnfs::stage::{NONE, READ, SKEW, SLACK, Stage, TERM};

/// Diagram 2: a write lease is renewed, and lost.
#[tokio::test(start_paused = true)]
async fn writes_that_come_after_the_lease_has_ended_are_waited_for() {
    let stage = Stage::new();
    let (mut writer, reader) = (stage.client("writer").await, stage.client("reader").await);
    assert!(writer.getlease(Cachetype::Write).await.unwrap().promise.cachable);
    advance(TERM.saturating_sub(Duration::from_secs(2))).await;
    assert!(writer.getlease(Cachetype::Write).await.unwrap().promise.cachable, "renewed");
    let granted = Instant::now();
    // From here on the server hears nothing from the writer until its delayed writes arrive, four seconds
    // late.
    let reading = async {
        advance(Duration::from_secs(1)).await;
        let read = reader.read_at_last(READ).await;
        (read, granted.elapsed())
    };
    let writing = async {
        tokio::time::sleep_until(granted + TERM + Duration::from_secs(4)).await;
        writer.write().await.unwrap()
    };
    let (((promise, read), waited), written) = tokio::join!(reading, writing);
    assert_eq!(read.attributes.rev, written.rev, "the reader sees what was written late");
    assert!(!promise.cachable, "the file changed hands");
    let end = TERM + Duration::from_secs(4) + SLACK;
    assert!(waited >= end && waited < end + Duration::from_secs(1), "{waited:?}");
    assert!(writer.evictions() > 3, "EVICTED is sent again and again");
}

/// Without a late write, the reader waits only for the skew and the slack.
#[tokio::test(start_paused = true)]
async fn a_writer_that_is_gone_is_waited_for_and_no_longer() {
    let stage = Stage::new();
    let (writer, reader) = (stage.client("writer").await, stage.client("reader").await);
    assert!(writer.getlease(Cachetype::Write).await.unwrap().promise.cachable);
    let start = Instant::now();
    reader.read_at_last(NONE).await;
    let end = TERM + SKEW + SLACK;
    let waited = start.elapsed();
    assert!(waited >= end && waited < end + Duration::from_secs(1), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_only_writes_are_served_until_all_is_over() {
    let home = tempfile::tempdir().unwrap();
    let below = crate::nqnfs::stage::below::Below::new(true);
    // An incarnation that grants no lease leaves nothing to wait for.
    let idle = Stage::after(&below, home.path());
    idle.client("idle").await.read(NONE).await.unwrap();
    drop(idle);
    let before = Stage::after(&below, home.path());
    let writer = before.client("writer").await;
    let leased = writer.getlease(Cachetype::Write).await.unwrap();
    assert!(leased.promise.cachable);
    drop((before, writer));
    let start = Instant::now();
    let stage = Stage::after(&below, home.path());
    let (writer, other) = (stage.client("writer").await, stage.client("other").await);
    assert_eq!(other.read(READ).await.unwrap_err(), Stat::Trylater);
    assert_eq!(other.getlease(Cachetype::Read).await.unwrap_err(), Stat::Trylater);
    let args = nfs3::GetattrArgs { object: stage.v3 };
    let delayed = other.call::<nfs3::call::Getattr>(args).await;
    assert!(matches!(delayed, Reply::Fail(nfs3::Status::Jukebox, ())), "{delayed:?}");
    // A write at the last moment, which delays the end.
    let terms = Duration::from_secs(60) + SKEW;
    advance((terms + SLACK).saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(other.read(READ).await.unwrap_err(), Stat::Trylater);
    let written = writer.write().await.unwrap();
    assert!(written.rev > leased.promise.rev);
    let (promise, read) = other.read_at_last(READ).await;
    let waited = start.elapsed();
    let end = (terms + SLACK * 2).saturating_sub(Duration::from_secs(1));
    assert!(waited >= end && waited < end + Duration::from_secs(1), "{waited:?}");
    assert!(promise.cachable && read.attributes.rev == written.rev);
}

/// Section 4.1: a client waits until another lease has ended and its record is free. After a few seconds it
/// is served without a lease.
#[tokio::test(start_paused = true)]
async fn when_all_records_are_taken_one_waits_a_little_or_goes_without() {
    let stage = Stage::with_records(1);
    let (one, two) = (stage.client("one").await, stage.client("two").await);
    assert!(one.read(READ).await.unwrap().0.cachable);
    let start = Instant::now();
    let (promise, read) = two.read(READ).await.unwrap();
    assert!(!promise.cachable && read.attributes.rev > 0 && start.elapsed().as_secs() == 0);
    // The first client renews no more. Its record is free when its lease has really ended.
    advance((TERM + SKEW).saturating_sub(Duration::from_secs(2))).await;
    let start = Instant::now();
    assert!(two.read(READ).await.unwrap().0.cachable);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(3), "{waited:?}");
    assert!(!one.read(READ).await.unwrap().0.cachable);
}

/// A malformed message gets an error and has no other effect.
#[tokio::test(start_paused = true)]
async fn what_is_malformed_is_refused() {
    use rpc::Service;
    use rpc::message::Refusal;
    use rpc::service::Outcome;

    let stage = Stage::new();
    let client = stage.client("client").await;
    for procedure in 0..30u32 {
        let mut asked = client.raw(procedure, b"\0\0\0\x09\xff\xff\xff\xff");
        asked.header.program = protocol::nqnfs::PROGRAM;
        asked.header.version = protocol::nqnfs::VERSION;
        let outcome = stage.front.clone().call(asked).await;
        let refused =
            matches!(outcome, Outcome::Refuse(Refusal::GarbageArguments | Refusal::ProcedureUnavailable));
        let void = [0, 3, 7].contains(&procedure);
        assert!(refused || void, "procedure {procedure}: {outcome:?}");
    }
    client.call::<call::Null>(()).await;
}
