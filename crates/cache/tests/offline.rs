//! `offline=read`: which requests are answered while the origin does not answer, and which wait. The first
//! call afterwards is judged as if there had been no outage.
//!
//! Promise: reads-without-the-origin

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use cache::{Cache, Offline};
use origin::{Bench, Gate, name, open_request, opener, read, root, until, v4_opener, write};
use tokio::time::{Instant, timeout};
use vfs::{
    AccessMask, FileSystem, Freshness, Handle, Opens, ReadDir, Share, Stability, StateidBasis, Status, Want,
};

const LONG: Duration = Duration::from_secs(100);
const PART: ReadDir = ReadDir {
    cookie: 0,
    verifier: [0; 8],
    bytes: 1 << 16,
    plus: true,
    want_directory_lease: false,
    names_suffice: false,
};
const CALLS: [&str; 10] =
    ["GETATTR", "SETATTR", "ACCESS", "LOOKUP", "READ", "READDIR", "READLINK", "WRITE", "CREATE", "OPEN"];

/// An origin with a complete file, one that is cached in part, and one that is not known.
struct Scene {
    bench: Bench,
    cache: Arc<Cache>,
    directory: Handle,
    complete: Handle,
    part: Handle,
    gates: Vec<Arc<Gate>>,
}

async fn scene(offline: Offline, bench: Bench) -> Scene {
    scene_that(offline, false, bench).await
}

async fn scene_that(offline: Offline, puts_off: bool, bench: Bench) -> Scene {
    let directory = bench.origin.put_dir(&root(), "d");
    let complete = bench.origin.put(&directory, "whole", &vec![7; 200_000]);
    let part = bench.origin.put(&directory, "part", &vec![8; 3 << 20]);
    bench.origin.pass(LONG);
    let mut options = bench.options();
    options.offline = offline;
    options.puts_off = puts_off;
    options.offline_after = Duration::from_millis(50);
    options.readahead_max_bytes = 0;
    let cache = bench.open_with(options).await;
    cache.root(&opener(5)).await.unwrap();
    for handle in [root(), directory, complete, part] {
        cache.access(&opener(5), &handle, AccessMask::all()).await.unwrap();
    }
    cache.lookup(&opener(5), &root(), &name("d"), vfs::Want::None).await.unwrap();
    cache.lookup(&opener(5), &root(), &name("none"), vfs::Want::None).await.unwrap_err();
    cache.readdir(&opener(5), &directory, PART).await.unwrap();
    cache.complete(&opener(5), &complete).await.unwrap();
    read(&cache, &opener(5), &part, 0, 4096).await;
    until(|| cache.info(&part).cached_bytes > 0).await;
    Scene { bench, cache, directory, complete, part, gates: Vec::new() }
}

impl Scene {
    /// The origin stops answering.
    fn cut(&mut self) {
        self.gates = CALLS.map(|call| self.bench.origin.gate(call)).into();
        self.bench.origin.silence.send_replace(Some(Instant::now()));
    }

    /// The origin answers again.
    fn mend(&mut self) {
        self.gates.iter().for_each(|gate| gate.open());
        self.bench.origin.silence.send_replace(None);
    }
}

/// Checks that this waits for the origin.
async fn waits<T>(what: impl Future<Output = T>) {
    assert!(timeout(Duration::from_millis(150), what).await.is_err(), "it should wait for the origin");
}

#[tokio::test]
async fn what_is_known_is_answered_and_the_rest_waits() {
    let mut scene = scene(Offline::Read, Bench::new()).await;
    scene.cut();
    let (cache, directory, complete, part) =
        (scene.cache.clone(), scene.directory, scene.complete, scene.part);
    let user = opener(5);
    assert_eq!(cache.getattr(&user, &complete).await.unwrap().size, 200_000);
    assert!(
        cache.access(&user, &complete, AccessMask::READ).await.unwrap().granted.contains(AccessMask::READ)
    );
    assert_eq!(
        cache.lookup(&user, &root(), &name("d"), vfs::Want::None).await.unwrap().node.handle,
        directory
    );
    assert_eq!(
        cache.lookup(&user, &directory, &name("whole"), vfs::Want::None).await.unwrap().node.handle,
        complete
    );
    assert_eq!(
        cache.lookup(&user, &root(), &name("none"), vfs::Want::None).await.unwrap_err().status,
        Status::NoEnt
    );
    assert_eq!(cache.readdir(&user, &directory, PART).await.unwrap().entries.len(), 2);
    assert_eq!(cache.root(&user).await.unwrap().handle, root());
    assert_eq!(read(&cache, &user, &complete, 0, 1 << 20).await, vec![7; 200_000]);
    assert_eq!(read(&cache, &user, &complete, 199_999, 10).await, vec![7; 1]);
    assert_eq!(read(&cache, &user, &complete, 500_000, 10).await, "");
    assert!(cache.stats().is_away && cache.stats().offline >= 10);
    // These wait: a file that is cached in part, a caller without a known right, a name that is not known,
    // and every change.
    waits(cache.read(&user, &part, StateidBasis::Anonymous, 1 << 20, 4096)).await;
    waits(cache.read(&opener(6), &complete, StateidBasis::Anonymous, 0, 10)).await;
    waits(cache.lookup(&user, &root(), &name("never asked"), vfs::Want::None)).await;
    let data = bytes::Bytes::from_static(b"x");
    waits(cache.write(&user, &complete, StateidBasis::Anonymous, 0, data, Stability::Unstable)).await;
}

#[tokio::test]
async fn a_write_that_waited_is_carried_out_and_nothing_stale_is_read_afterwards() {
    let mut scene = scene(Offline::Read, Bench::new()).await;
    scene.cut();
    let (cache, user) = (scene.cache.clone(), opener(5));
    assert_eq!(read(&cache, &user, &scene.complete, 0, 5).await, vec![7; 5]);
    let waiting = {
        let (cache, complete) = (cache.clone(), scene.part);
        tokio::spawn(async move { write(&cache, &opener(5), &complete, 0, b"late").await })
    };
    // Another client changes the file meanwhile.
    scene.bench.origin.tree().write(&scene.complete, 0, b"other").unwrap();
    assert_eq!(read(&cache, &user, &scene.complete, 0, 5).await, vec![7; 5], "as it was last known");
    scene.mend();
    waiting.await.unwrap();
    assert_eq!(&scene.bench.origin.tree().get(&scene.part).unwrap().data[..4], b"late");
    cache.getattr(&user, &scene.complete).await.unwrap();
    assert_eq!(read(&cache, &user, &scene.complete, 0, 5).await, "other");
    assert!(!cache.stats().is_away);
}

#[tokio::test]
async fn without_the_option_everything_waits() {
    let mut scene = scene(Offline::Wait, Bench::new()).await;
    scene.cut();
    waits(scene.cache.getattr(&opener(5), &scene.complete)).await;
    assert!(!scene.cache.stats().is_away);
    scene.mend();
    scene.cache.getattr(&opener(5), &scene.complete).await.unwrap();
}

/// `puts_off`: nobody waits for an origin that is away, but for the outcome of a change that was sent.
#[tokio::test]
async fn what_needs_an_origin_that_is_away_is_put_off() {
    let mut scene = scene_that(Offline::Wait, true, Bench::new()).await;
    let user = |uid: u32| opener(uid).with_freshness(Freshness::Timeout);
    let (cache, directory, complete) = (scene.cache.clone(), scene.directory, scene.complete);
    scene.gates = CALLS.map(|call| scene.bench.origin.gate(call)).into();
    let asking = tokio::spawn({
        let cache = cache.clone();
        async move { cache.getattr(&opener(5), &complete).await }
    });
    let writing = tokio::spawn({
        let cache = cache.clone();
        async move { write(&cache, &opener(5), &complete, 0, b"sent").await }
    });
    scene.gates[0].wait_for(1).await;
    scene.gates[7].wait_for(1).await;
    scene.bench.origin.silence.send_replace(Some(Instant::now()));
    assert_eq!(asking.await.unwrap().unwrap_err().status, Status::Delay);
    let put_off = |status: Status| assert_eq!(status, Status::Delay);
    // Within the attribute timeout no call is needed.
    assert_eq!(
        cache.lookup(&user(5), &directory, &name("part"), Want::None).await.unwrap().node.handle,
        scene.part
    );
    put_off(cache.getattr(&opener(5), &directory).await.unwrap_err().status);
    put_off(cache.lookup(&opener(5), &root(), &name("unknown"), Want::None).await.unwrap_err().status);
    put_off(cache.read(&user(5), &scene.part, StateidBasis::Anonymous, 1 << 20, 9).await.unwrap_err().status);
    let data = bytes::Bytes::from_static(b"late");
    let by = StateidBasis::Anonymous;
    put_off(cache.write(&user(5), &scene.part, by, 0, data, Stability::Unstable).await.unwrap_err().status);
    put_off(cache.remove(&user(5), &directory, &name("part")).await.unwrap_err().status);
    assert!(!cache.stats().is_away && !writing.is_finished());
    scene.mend();
    writing.await.unwrap();
    assert_eq!(&scene.bench.origin.tree().get(&complete).unwrap().data[..4], b"sent");
    assert_eq!(
        scene.bench.origin.tree().get(&scene.part).unwrap().data[0],
        8,
        "what was put off is not sent"
    );
    cache.getattr(&opener(5), &directory).await.unwrap();
}

/// An OPEN that was sent is not given up, so a name that is not known is not opened in an outage, and no file
/// is made.
#[tokio::test]
async fn opens_of_names_that_are_not_known_are_not_sent_in_an_outage() {
    for offline in [Offline::Wait, Offline::Read] {
        opens_are_put_off(offline).await;
    }
}

async fn opens_are_put_off(offline: Offline) {
    let mut scene = scene_that(offline, true, Bench::with_state(origin::state::Policy::Never)).await;
    scene.cut();
    // Its listing is not known, so nothing says that there is no such name.
    let (cache, directory) = (scene.cache.clone(), root());
    tokio::time::sleep(Duration::from_millis(60)).await;
    scene.bench.origin.calls();
    let unknown = open_request(&directory, "unknown", 1, Share::READ);
    assert_eq!(cache.open(&v4_opener(5, 1), &unknown).await.unwrap_err().status, Status::Delay);
    let create = Some((vfs::CreateHow::Guarded, vfs::SetAttributes::default()));
    let making = vfs::OpenRequest { create, ..open_request(&directory, "made", 1, Share::WRITE) };
    assert_eq!(cache.open(&v4_opener(5, 1), &making).await.unwrap_err().status, Status::Delay);
    assert!(scene.bench.origin.calls().iter().all(|(call, _)| *call != "OPEN"));
    scene.mend();
    assert_eq!(cache.open(&v4_opener(5, 1), &unknown).await.unwrap_err().status, Status::NoEnt);
}

#[tokio::test]
async fn an_origin_that_falls_silent_while_somebody_waits() {
    let mut scene = scene(Offline::Read, Bench::new()).await;
    scene.gates = CALLS.map(|call| scene.bench.origin.gate(call)).into();
    let (cache, complete) = (scene.cache.clone(), scene.complete);
    let waiting = tokio::spawn(async move { cache.getattr(&opener(5), &complete).await });
    scene.gates[0].wait_for(1).await;
    scene.bench.origin.silence.send_replace(Some(Instant::now()));
    assert_eq!(waiting.await.unwrap().unwrap().size, 200_000);
    // Two short silences do not add up to a long one.
    scene.bench.origin.silence.send_replace(None);
    scene.bench.origin.silence.send_replace(Some(Instant::now()));
    scene.mend();
    scene.cache.getattr(&opener(5), &scene.complete).await.unwrap();
}

#[tokio::test]
async fn opens_for_reading_of_whole_files_work() {
    use origin::state::Policy;
    for state in [false, true] {
        let bench = if state { Bench::with_state(Policy::Never) } else { Bench::new() };
        let mut scene = scene(Offline::Read, bench).await;
        let cache = scene.cache.clone();
        let limits = cache.limits(&opener(5), &root()).await.unwrap();
        assert_eq!(limits.features.contains(vfs::Features::STATE), state);
        scene.cut();
        let caller = v4_opener(5, 1);
        let request = open_request(&scene.directory, "whole", 1, Share::READ);
        let opened = cache.open(&caller, &request).await.unwrap();
        assert_eq!((opened.handle, opened.lease), (scene.complete, None));
        let part = cache.read(&caller, &opened.handle, StateidBasis::Open(opened.id), 0, 3).await.unwrap();
        assert_eq!(part.data.to_bytes().unwrap(), vec![7; 3]);
        waits(cache.open(&caller, &open_request(&scene.directory, "part", 2, Share::READ))).await;
        waits(cache.open(&caller, &open_request(&scene.directory, "whole", 3, Share::WRITE))).await;
        scene.mend();
        // After the outage the open goes on, and ends like any other.
        scene.bench.origin.pass(LONG);
        let part = cache.read(&caller, &opened.handle, StateidBasis::Open(opened.id), 0, 3).await.unwrap();
        assert_eq!(part.data.to_bytes().unwrap(), vec![7; 3]);
        cache.close(&caller, opened.id).await.unwrap();
    }
}

#[tokio::test]
async fn what_was_known_to_a_killed_process_is_answered_too() {
    let first = scene(Offline::Read, Bench::new()).await;
    first.cache.flush().await;
    let killed = first.bench.killed();
    let mut options = killed.options();
    options.offline = Offline::Read;
    options.offline_after = Duration::ZERO;
    let cache = killed.open_with(options).await;
    let gates = CALLS.map(|call| killed.origin.gate(call));
    killed.origin.silence.send_replace(Some(Instant::now()));
    // So long ago that no attribute and no right would be believed without asking.
    killed.origin.pass(LONG * 1000);
    let found = cache.lookup(&opener(5), &first.directory, &name("whole"), vfs::Want::None).await.unwrap();
    assert_eq!(read(&cache, &opener(5), &found.node.handle, 0, 1 << 20).await, vec![7; 200_000]);
    assert!(cache.info(&first.complete).age.unwrap() >= LONG * 900);
    gates.iter().for_each(|gate| gate.open());
    killed.origin.silence.send_replace(None);
    cache.getattr(&opener(5), &first.complete).await.unwrap();
    assert!(cache.info(&first.complete).age.unwrap() < LONG);
}

#[tokio::test]
async fn a_file_that_was_being_written_when_the_process_was_killed_is_not_put_together_from_two_states() {
    let first = scene(Offline::Read, Bench::new()).await;
    first.cache.flush().await;
    write(&first.cache, &opener(5), &first.complete, 100_000, &[9; 4096]).await;
    // The write is on this disk, and the index does not know of it. After a crash of the machine, only a
    // part is on disk.
    until(|| first.cache.info(&first.complete).cached_bytes >= 200_000).await;
    let killed = first.bench.killed();
    let files = killed.stored_files().into_iter().map(|path| (std::fs::read(&path).unwrap(), path));
    let (mut data, path) = files.into_iter().find(|(data, _)| data.get(100_000) == Some(&9)).unwrap();
    data[100_000..102_048].fill(7);
    std::fs::write(path, data).unwrap();
    let mut options = killed.options();
    options.offline = Offline::Read;
    options.offline_after = Duration::ZERO;
    let cache = killed.open_with(options).await;
    let gates = CALLS.map(|call| killed.origin.gate(call));
    killed.origin.silence.send_replace(Some(Instant::now()));
    let mut new = vec![7; 200_000];
    new[100_000..104_096].fill(9);
    let user = opener(5);
    let reading = cache.read(&user, &first.complete, StateidBasis::Anonymous, 0, 1 << 20);
    if let Ok(read) = timeout(Duration::from_millis(150), reading).await {
        let data = read.unwrap().data.to_bytes().unwrap();
        assert!(data == vec![7; 200_000] || data == new, "neither of the two");
    }
    let request = open_request(&first.directory, "whole", 1, Share::READ);
    let caller = v4_opener(5, 1);
    if let Ok(opened) = timeout(Duration::from_millis(150), cache.open(&caller, &request)).await {
        let opened = opened.unwrap();
        let reading = cache.read(&caller, &opened.handle, StateidBasis::Open(opened.id), 0, 1 << 20);
        let data = timeout(LONG, reading).await.unwrap().unwrap().data.to_bytes().unwrap();
        assert!(data == vec![7; 200_000] || data == new, "neither of the two");
    }
    // When the origin is back, a reader gets the current contents.
    gates.iter().for_each(|gate| gate.open());
    killed.origin.silence.send_replace(None);
    assert_eq!(read(&cache, &user, &first.complete, 0, 1 << 20).await, new);
}
