//! A cache with delayed writes, and one file.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cache::{Cache, WriteBehind};
use vfs::{Caller, FileSystem, Handle, OpenId, OpenRequest, Opens, Share, Stability, StateidBasis, Verifier};

use super::{Bench, open_request, root, v4, v4_opener};

pub const BOTH: Share = Share::all();
const SECOND: Duration = Duration::from_secs(1);

/// A cache with delayed writes.
pub async fn delaying(bench: &Bench, change: impl FnOnce(&mut WriteBehind)) -> Arc<Cache> {
    let mut behind = WriteBehind::default();
    change(&mut behind);
    let mut options = bench.options();
    options.write_behind = Some(behind);
    bench.open_with(options).await
}

/// A cache with delayed writes over a new origin that keeps unstable writes in memory, with one file.
pub async fn setup(data: &[u8]) -> (Bench, Arc<Cache>, Handle) {
    over(Bench::new(), data).await
}

/// The same over the origin of this bench.
pub async fn over(bench: Bench, data: &[u8]) -> (Bench, Arc<Cache>, Handle) {
    bench.origin.be_volatile();
    let file = bench.origin.put(&root(), "f", data);
    bench.origin.pass(10 * SECOND);
    let cache = delaying(&bench, |_| ()).await;
    (bench, cache, file)
}

/// OPEN by a client of v4.
pub async fn open(cache: &Cache, request: &OpenRequest) -> OpenId {
    cache.open(&v4_opener(0, 1), request).await.unwrap().id
}

/// Opens the file for reading and writing, and resets the counts of calls.
pub async fn open_file(bench: &Bench, cache: &Cache) -> OpenId {
    let id = open(cache, &open_request(&root(), "f", 1, BOTH)).await;
    bench.origin.calls();
    id
}

/// The writer.
pub fn user() -> Caller {
    v4(0, 1)
}

/// A WRITE whose bytes are delayed. Returns the verifier of the reply.
pub async fn put(cache: &Cache, by: OpenId, file: &Handle, offset: usize, data: &[u8]) -> Verifier {
    let data = Bytes::copy_from_slice(data);
    let length = data.len() as u32;
    let written = cache
        .write(&user(), file, StateidBasis::Open(by), offset as u64, data, Stability::Unstable)
        .await
        .unwrap();
    assert_eq!((written.count, written.stability), (length, Stability::Unstable));
    written.verifier
}
