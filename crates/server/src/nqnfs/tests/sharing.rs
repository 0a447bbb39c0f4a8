//! Sharing: diagrams 1 and 3, and clients of other protocols.
//!
//! Promise: leases-with-a-term

use protocol::nqnfs::Cachetype;
use protocol::{Reply, nfs3};
use tokio::time::{Instant, advance};

use crate::nqnfs::stage::{NONE, READ, SKEW, SLACK, Stage, TERM};

/// Diagram 1: read sharing.
#[tokio::test(start_paused = true)]
async fn many_read_under_leases_that_run_out_by_themselves() {
    let stage = Stage::new();
    let (mut one, mut two, writer) =
        (stage.client("one").await, stage.client("two").await, stage.client("writer").await);
    let (first, read) = one.read(READ).await.unwrap();
    assert!(first.cachable && first.duration == 30 && first.rev == read.attributes.rev && first.rev > 0);
    assert_eq!(two.read(READ).await.unwrap().0, first);
    // After one lease has expired, the next one shows that the cached data is valid.
    advance(TERM).await;
    assert_eq!(one.getlease(Cachetype::Read).await.unwrap().promise, first);
    // A write evicts only clients whose lease may still be valid. The second client's lease ends after the
    // clock skew.
    advance(SKEW).await;
    let start = Instant::now();
    let writing = writer.write();
    let vacating = async {
        one.evicted().await;
        one.vacated().await;
    };
    let (written, ()) = tokio::join!(writing, vacating);
    assert!(written.unwrap().rev > first.rev);
    assert_eq!((start.elapsed().as_secs(), two.evictions()), (0, 0));
}

/// Diagram 3: write sharing.
#[tokio::test(start_paused = true)]
async fn write_sharing_makes_all_leases_non_caching() {
    let stage = Stage::new();
    let (mut reader, mut writer) = (stage.client("reader").await, stage.client("writer").await);
    assert!(reader.read(READ).await.unwrap().0.cachable);
    let asking = writer.getlease(Cachetype::Write);
    let vacating = async {
        reader.evicted().await;
        reader.vacated().await;
    };
    let (refused, ()) = tokio::join!(asking, vacating);
    let refused = refused.unwrap().promise;
    assert!(!refused.cachable && refused.duration == 30, "{refused:?}");
    // From now on all reads and writes go to the server, in order, and no client is evicted.
    for _ in 0..3 {
        let written = writer.write().await.unwrap();
        let (promise, read) = reader.read(READ).await.unwrap();
        assert!(!promise.cachable && read.attributes.rev == written.rev);
    }
    assert_eq!((reader.evictions(), writer.evictions()), (0, 0));
    // After the clients have stopped sharing, the server grants leases again.
    advance(TERM).await;
    assert!(writer.getlease(Cachetype::Write).await.unwrap().promise.cachable);
}

/// A v3 request is held until the writer has flushed.
#[tokio::test(start_paused = true)]
async fn a_client_of_v3_evicts_a_writer_and_reads_what_it_wrote() {
    let stage = Stage::new();
    let (mut writer, other) = (stage.client("writer").await, stage.client("other").await);
    let leased = writer.getlease(Cachetype::Write).await.unwrap();
    let args = nfs3::GetattrArgs { object: stage.v3 };
    let asking = other.call::<nfs3::call::Getattr>(args);
    let flushing = async {
        writer.evicted().await;
        let written = writer.write().await.unwrap();
        writer.vacated().await;
        written
    };
    let (attributes, written) = tokio::join!(asking, flushing);
    let Reply::Ok(attributes) = attributes else { panic!("{attributes:?}") };
    assert!(written.rev > leased.promise.rev);
    assert_eq!(attributes.obj_attributes.mtime.seconds, written.mtime.seconds);
    assert!(!writer.getlease(Cachetype::Write).await.unwrap().promise.cachable, "it changes hands");
}

/// A client's operations under its own lease evict no client, and the lease of a lone reader can become a
/// write lease.
#[tokio::test(start_paused = true)]
async fn a_client_alone_is_never_evicted() {
    let stage = Stage::new();
    let mut client = stage.client("alone").await;
    assert!(client.read(READ).await.unwrap().0.cachable);
    assert!(client.getlease(Cachetype::Write).await.unwrap().promise.cachable);
    let rev = client.write().await.unwrap().rev;
    let (promise, read) = client.read(READ).await.unwrap();
    assert!(promise.cachable && promise.rev == rev && read.attributes.rev == rev);
    advance(TERM + SKEW + SLACK).await;
    assert!(!client.read(NONE).await.unwrap().0.cachable);
    assert_eq!(client.evictions(), 0);
}
