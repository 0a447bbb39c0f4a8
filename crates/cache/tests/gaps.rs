//! Gaps that assemblers and linkers leave between their writes. Where no other client can have written, the
//! cache sends zeros for them. Elsewhere it sends nothing. Counted call by call.
//!
//! Promise: gaps-of-new-files

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cache::{Cache, WriteBehind};
use origin::durability::Came;
use origin::state::{Policy, unchecked};
use origin::{Bench, name, open_request, root, v4, v4_opener};
use vfs::{
    Caller, CreateHow, FileSystem, Handle, LeaseKind, Lock, LockKind, LockRequest, OpenId, OpenRequest,
    Opens, Owner, SetAttributes, Share, Stability, StateidBasis,
};

/// Sections of an object file, in the order in which an assembler writes them. Alignment leaves gaps between
/// them.
const SECTIONS: [(usize, usize); 4] = [(480, 1987), (64, 458), (2312, 3144), (0, 64)];
const BOTH: Share = Share::all();

async fn delaying(bench: &Bench) -> Arc<Cache> {
    bench.origin.be_volatile();
    let mut options = bench.options();
    options.write_behind = Some(WriteBehind::default());
    bench.open_with(options).await
}

fn user() -> Caller {
    v4(0, 1)
}

fn making(how: CreateHow, size: Option<u64>) -> OpenRequest {
    let create = Some((how, unchecked(size).1));
    OpenRequest { create, ..open_request(&root(), "o", 1, BOTH) }
}

async fn open(cache: &Cache, request: &OpenRequest) -> (OpenId, Handle) {
    let opened = cache.open(&v4_opener(0, 1), request).await.unwrap();
    (opened.id, opened.handle)
}

async fn assemble(cache: &Cache, by: OpenId, file: &Handle) -> Vec<u8> {
    let mut object = vec![0; 3144];
    for (number, (start, end)) in (1..).zip(SECTIONS) {
        let bytes = Bytes::from(vec![number; end - start]);
        object[start..end].copy_from_slice(&bytes);
        cache
            .write(&user(), file, StateidBasis::Open(by), start as u64, bytes, Stability::Unstable)
            .await
            .unwrap();
        // The assembler's library reads a block of the bytes written so far, by the same descriptor.
        let there = cache
            .read(&user(), file, StateidBasis::Open(by), 0, 4096)
            .await
            .unwrap()
            .data
            .to_bytes()
            .unwrap();
        assert!(there.ends_with(&[1]) || number > 2, "the end of what was written first");
        assert_eq!(there[..], object[..there.len()]);
    }
    object
}

/// The number of bytes in all WRITEs. Without our zeros it is the size of the sections.
fn sections(came: &[Came]) -> usize {
    came.iter().map(|came| came.length).sum()
}

#[tokio::test(start_paused = true)]
async fn an_object_file_is_one_write_and_is_read_back_from_here() {
    for state in [None, Some(Policy::Never), Some(Policy::Always(LeaseKind::Write))] {
        let bench = state.map_or_else(Bench::new, Bench::with_state);
        let cache = delaying(&bench).await;
        let (id, file) = open(&cache, &making(CreateHow::Guarded, None)).await;
        bench.origin.calls();
        let object = assemble(&cache, id, &file).await;
        assert_eq!(
            bench.origin.calls(),
            [],
            "who has made it and opened it for reading needs no leave: {state:?}"
        );
        cache.commit(&user(), &file, 0, 0).await.unwrap();
        assert_eq!(bench.origin.calls(), [("WRITE", 1)], "{state:?}");
        let stability = Stability::FileSync;
        assert_eq!(bench.origin.came(), [Came { uid: 0, offset: 0, length: 3144, stability }]);
        assert_eq!(bench.origin.contents(&file), object);
        cache.close(&user(), id).await.unwrap();
        let (id, _) = open(&cache, &open_request(&root(), "o", 2, Share::READ)).await;
        bench.origin.calls();
        let there = cache
            .read(&user(), &file, StateidBasis::Open(id), 0, 4096)
            .await
            .unwrap()
            .data
            .to_bytes()
            .unwrap();
        assert_eq!(there[..], object);
        assert_eq!(bench.origin.calls(), [], "gaps too: {state:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_emptied_is_as_good_as_new() {
    for by_open in [true, false] {
        let bench = Bench::new();
        bench.origin.put(&root(), "o", &[9; 5000]);
        bench.origin.pass(Duration::from_secs(10));
        let cache = delaying(&bench).await;
        let (id, file) = if by_open {
            open(&cache, &making(CreateHow::Unchecked, Some(0))).await
        } else {
            // As FUSE does it.
            let (id, file) = open(&cache, &open_request(&root(), "o", 1, BOTH)).await;
            let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
            cache.setattr(&user(), &file, &empty, None).await.unwrap();
            (id, file)
        };
        bench.origin.calls();
        let object = assemble(&cache, id, &file).await;
        cache.close(&user(), id).await.unwrap();
        assert_eq!(bench.origin.calls(), [("WRITE", 1)], "{by_open}");
        assert_eq!(bench.origin.contents(&file), object);
    }
}

/// Another client writes into a gap. Its bytes must be there after our close.
async fn beside_another(bench: &Bench, cache: &Cache, id: OpenId, file: &Handle, seen: bool) {
    let mut object = assemble(cache, id, file).await;
    bench.origin.tree().write(file, 1990, &[77; 20]).unwrap();
    object[1990..2010].fill(77);
    if seen {
        cache.getattr(&origin::opener(0), file).await.unwrap();
    }
    bench.origin.came();
    cache.close(&user(), id).await.unwrap();
    assert_eq!(bench.origin.contents(file), object);
    assert_eq!(sections(&bench.origin.came()), 1507 + 394 + 64 + 832, "what was written and no more");
}

#[tokio::test(start_paused = true)]
async fn what_others_wrote_is_kept_where_the_file_is_not_new_or_not_ours_alone() {
    // The file existed, empty, when it was opened.
    let bench = Bench::new();
    bench.origin.put(&root(), "o", b"");
    bench.origin.pass(Duration::from_secs(10));
    let cache = delaying(&bench).await;
    let (id, file) = open(&cache, &open_request(&root(), "o", 1, BOTH)).await;
    beside_another(&bench, &cache, id, &file, false).await;
    // Made here, closed, and opened again: other clients may know the file by now.
    let bench = Bench::new();
    let cache = delaying(&bench).await;
    let (id, _) = open(&cache, &making(CreateHow::Guarded, None)).await;
    cache.close(&user(), id).await.unwrap();
    let (id, file) = open(&cache, &open_request(&root(), "o", 1, BOTH)).await;
    beside_another(&bench, &cache, id, &file, false).await;
    // Made here, and a change by another client has been seen.
    let bench = Bench::new();
    let cache = delaying(&bench).await;
    let (id, file) = open(&cache, &making(CreateHow::Guarded, None)).await;
    beside_another(&bench, &cache, id, &file, true).await;
}

#[tokio::test(start_paused = true)]
async fn under_a_lock_nothing_is_written_but_what_was_written() {
    let bench = Bench::with_state(Policy::Never);
    let cache = delaying(&bench).await;
    let (id, file) = open(&cache, &making(CreateHow::Guarded, None)).await;
    let owner = Owner(Bytes::from_static(b"me"));
    let lock = Lock { owner, kind: LockKind::Exclusive, offset: 0, length: 3144 };
    cache.lock(&user(), id, &LockRequest { lock, wait: false, reclaim: false }).await.unwrap();
    assemble(&cache, id, &file).await;
    bench.origin.came();
    cache.commit(&user(), &file, 0, 0).await.unwrap();
    assert_eq!(sections(&bench.origin.came()), 1507 + 394 + 64 + 832);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_another_made_anew_under_the_name_is_another_file() {
    let bench = Bench::new();
    let cache = delaying(&bench).await;
    let (id, file) = open(&cache, &making(CreateHow::Guarded, None)).await;
    let object = assemble(&cache, id, &file).await;
    bench.origin.tree().rename((&root(), &name("o")), (&root(), &name("old"))).unwrap();
    let other = bench.origin.put(&root(), "o", b"other");
    cache.close(&user(), id).await.unwrap();
    assert_eq!((bench.origin.contents(&file), bench.origin.contents(&other)), (object, b"other".to_vec()));
}
