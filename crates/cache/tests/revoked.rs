//! Delayed writes of a file whose write lease ends without a return: they are never written over what another
//! client has written since.
//!
//! Promise: revoked-write-leases

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cache::Cache;
use origin::behind::{BOTH, delaying, open, put, user};
use origin::state::Policy;
use origin::{Bench, name, open_request, root, until};
use tokio::time::Instant;
use vfs::{FileSystem, Handle, LeaseKind, OpenId, Opens, SetAttributes, Share, Status};

const SECOND: Duration = Duration::from_secs(1);

struct Scene {
    bench: Bench,
    cache: Arc<Cache>,
    file: Handle,
    by: OpenId,
}

impl Scene {
    /// A program writes into a file under a write lease. The bytes are delayed.
    async fn set() -> Scene {
        let bench = Bench::with_state(Policy::Always(LeaseKind::Write));
        let file = bench.origin.put(&root(), "f", b"of the origin");
        bench.origin.pass(10 * SECOND);
        let cache = delaying(&bench, |_| ()).await;
        let by = open(&cache, &open_request(&root(), "f", 1, BOTH)).await;
        put(&cache, by, &file, 0, b"ours").await;
        bench.origin.calls();
        Scene { bench, cache, file, by }
    }

    fn fall_silent(&self) {
        self.bench.origin.silence.send_replace(Some(Instant::now()));
    }

    async fn write_as_another(&self) {
        self.bench.origin.pass(10 * SECOND);
        self.bench.origin.others_write(&self.file, 7, b"OTHERS").await;
    }

    /// The contents of the files that are kept.
    fn kept(&self) -> Vec<Vec<u8>> {
        let entries =
            std::fs::read_dir(self.bench.directory.path().join("cache/conflicts")).into_iter().flatten();
        entries.map(|entry| read(&entry.unwrap().path())).collect()
    }

    async fn is_kept(&self, bytes: &[u8]) {
        until(|| self.cache.stats().conflicts == 1 && self.kept() == [bytes]).await;
        until(|| self.cache.stats().dirty_bytes == 0).await;
        let told = self.cache.close(&user(), self.by).await.map_err(|error| error.status);
        assert_eq!(told, Err(Status::Io), "the program is told");
        assert_eq!(self.bench.origin.contents(&self.file), b"of the OTHERS");
    }

    async fn is_sent(&self) {
        until(|| self.bench.origin.contents(&self.file) == b"ourshe origin").await;
        until(|| self.cache.stats().dirty_bytes == 0).await;
        self.cache.close(&user(), self.by).await.unwrap();
        assert_eq!(self.kept(), Vec::<Vec<u8>>::new());
    }
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

#[tokio::test]
async fn what_waits_is_kept_if_another_client_has_changed_the_file() {
    for silent in [false, true] {
        let scene = Scene::set().await;
        if silent {
            scene.fall_silent();
        }
        // The others write before this cache hears of the revocation.
        let asked = scene.bench.origin.gate("GETATTR");
        scene.bench.origin.revoke(&scene.file);
        asked.wait_for(1).await;
        scene.write_as_another().await;
        asked.open();
        scene.is_kept(b"ours").await;
    }
}

/// The reply to an OPEN brings another lease, and attributes after the change, before the revocation is
/// heard.
#[tokio::test]
async fn what_waits_is_kept_if_another_lease_comes_first() {
    let scene = Scene::set().await;
    scene.bench.origin.revoke_unheard(&scene.file);
    scene.write_as_another().await;
    scene.bench.origin.tree().link(&scene.file, &root(), &name("g")).unwrap();
    let again = open(&scene.cache, &open_request(&root(), "g", 2, Share::READ)).await;
    scene.is_kept(b"ours").await;
    let _ = scene.cache.close(&user(), again).await;
}

#[tokio::test]
async fn what_waits_is_sent_if_nobody_has_changed_the_file() {
    let scene = Scene::set().await;
    scene.bench.origin.revoke(&scene.file);
    until(|| scene.cache.stats().revoked == 1).await;
    scene.cache.flush().await;
    let _ = scene.cache.commit(&user(), &scene.file, 0, 0).await.unwrap();
    scene.is_sent().await;
}

#[tokio::test]
async fn a_write_on_its_way_is_given_up() {
    let scene = Scene::set().await;
    let written = scene.bench.origin.gate("WRITE");
    let flushing = tokio::spawn({
        let (cache, file) = (scene.cache.clone(), scene.file);
        async move { cache.commit(&user(), &file, 0, 0).await }
    });
    written.wait_for(1).await;
    scene.fall_silent();
    let asked = scene.bench.origin.gate("GETATTR");
    scene.bench.origin.revoke(&scene.file);
    asked.wait_for(1).await;
    scene.write_as_another().await;
    asked.open();
    written.open();
    assert_eq!(flushing.await.unwrap().unwrap_err().status, Status::Io);
    until(|| scene.kept() == [b"ours"]).await;
    assert_eq!(scene.bench.origin.contents(&scene.file), b"of the OTHERS");
}

#[tokio::test]
async fn a_truncation_waits_until_it_is_known_what_becomes_of_the_bytes() {
    let scene = Scene::set().await;
    let asked = scene.bench.origin.gate("GETATTR");
    scene.bench.origin.revoke(&scene.file);
    asked.wait_for(1).await;
    let cutting = tokio::spawn({
        let (cache, file) = (scene.cache.clone(), scene.file);
        let set = SetAttributes { size: Some(2), ..SetAttributes::default() };
        async move { cache.setattr(&user(), &file, &set, None).await }
    });
    scene.write_as_another().await;
    asked.open();
    until(|| scene.kept() == [b"ours"]).await;
    let _ = cutting.await.unwrap();
    assert_eq!(scene.kept(), [b"ours"]);
    until(|| scene.cache.stats().dirty_bytes == 0).await;
}

#[tokio::test]
async fn a_write_whose_reply_was_lost_is_no_change_of_another() {
    for silent in [false, true] {
        let scene = Scene::set().await;
        let written = scene.bench.origin.gate("WRITE");
        let flushing = tokio::spawn({
            let (cache, file) = (scene.cache.clone(), scene.file);
            async move { cache.commit(&user(), &file, 0, 0).await }
        });
        written.admit(1);
        until(|| scene.bench.origin.contents(&scene.file) == b"ourshe origin").await;
        scene.bench.origin.pass(10 * SECOND);
        if silent {
            scene.fall_silent();
        }
        scene.bench.origin.revoke(&scene.file);
        until(|| scene.cache.stats().revoked == 1).await;
        written.open();
        flushing.await.unwrap().unwrap();
        scene.is_sent().await;
    }
}
