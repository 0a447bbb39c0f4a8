//! Upstream calls per operation: the v2/v3 column of docs/reference/costs.md, row by row.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod origin;

use std::time::Duration;

use origin::{Bench, name, opener, read, root, write};
use vfs::{AccessMask, Caller, CreateHow, FileSystem, ReadDir, SetAttributes, StateidBasis, Status};

const SECOND: Duration = Duration::from_secs(1);
const PART: ReadDir = ReadDir {
    cookie: 0,
    verifier: [0; 8],
    bytes: 4096,
    plus: true,
    want_directory_lease: false,
    names_suffice: false,
};

// Promise: close-to-open
#[tokio::test]
async fn getattr_of_a_v3_client_is_one_getattr_each_time() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"data");
    let cache = bench.open().await;
    for _ in 0..3 {
        assert_eq!(cache.getattr(&opener(0), &file).await.unwrap().size, 4);
        assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    }
}

#[tokio::test]
async fn stat_within_the_timeout_is_free() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"data");
    let cache = bench.open().await;
    let stat = Caller::unix(0, 0, &[]);
    cache.getattr(&stat, &file).await.unwrap();
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    for _ in 0..3 {
        cache.getattr(&stat, &file).await.unwrap();
    }
    assert_eq!(bench.origin.calls(), []);
    assert_eq!(cache.stats().attributes.hits, 3);
}

// Promise: positive-entries
#[tokio::test]
async fn lookup_is_one_lookup_cold_and_one_getattr_of_the_child_warm() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"data");
    let directory = bench.origin.put_dir(&root(), "d");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    for (text, leads) in [("f", file), ("d", directory)] {
        cache.lookup(&opener(0), &root(), &name(text), vfs::Want::None).await.unwrap();
        assert_eq!(bench.origin.calls(), [("LOOKUP", 1)]);
        for _ in 0..2 {
            let found = cache.lookup(&opener(0), &root(), &name(text), vfs::Want::None).await.unwrap();
            assert_eq!(found.node.handle, leads);
            assert!(found.node.attributes.is_some() && found.directory.is_none());
            assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
        }
    }
    // Another client renames the file: the child's ctime shows it, and one LOOKUP follows.
    bench.origin.tree().rename((&root(), &name("f")), (&root(), &name("g"))).unwrap();
    let error = cache.lookup(&opener(0), &root(), &name("f"), vfs::Want::None).await.unwrap_err();
    assert_eq!(error.status, Status::NoEnt);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1), ("LOOKUP", 1)]);
}

// Promise: positive-entries
#[tokio::test]
async fn a_name_of_a_removed_file_costs_one_getattr_and_one_lookup() {
    let bench = Bench::new();
    bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    cache.lookup(&opener(0), &root(), &name("f"), vfs::Want::None).await.unwrap();
    bench.origin.tree().remove(&root(), &name("f"), false).unwrap();
    bench.origin.calls();
    assert_eq!(
        cache.lookup(&opener(0), &root(), &name("f"), vfs::Want::None).await.unwrap_err().status,
        Status::NoEnt
    );
    assert_eq!(bench.origin.calls(), [("GETATTR", 1), ("LOOKUP", 1)]);
}

// Promise: negative-entries
#[tokio::test]
async fn absence_is_one_lookup_cold_and_one_getattr_of_the_directory_warm() {
    let bench = Bench::new();
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let ask = async |calls: &[(&'static str, u64)]| {
        let error = cache.lookup(&opener(0), &root(), &name("none"), vfs::Want::None).await.unwrap_err();
        assert_eq!(error.status, Status::NoEnt);
        assert!(error.attributes.is_some_and(|attributes| attributes.is_dir()));
        assert_eq!(bench.origin.calls(), calls);
    };
    ask(&[("LOOKUP", 1)]).await;
    ask(&[("GETATTR", 1)]).await;
    ask(&[("GETATTR", 1)]).await;
    bench.origin.put(&root(), "other", b"");
    ask(&[("GETATTR", 1), ("LOOKUP", 1)]).await;
    bench.origin.put(&root(), "none", b"");
    bench.origin.pass(10 * SECOND);
    cache.lookup(&opener(0), &root(), &name("none"), vfs::Want::None).await.unwrap();
}

// Promise: remembered-rights
#[tokio::test]
async fn access_is_one_access_for_each_credential_and_then_one_getattr() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    for uid in [1, 2] {
        let accessed = cache.access(&opener(uid), &file, AccessMask::READ).await.unwrap();
        assert_eq!(accessed.granted, AccessMask::READ);
        assert_eq!(bench.origin.calls(), [("ACCESS", 1)]);
        let accessed = cache.access(&opener(uid), &file, AccessMask::all()).await.unwrap();
        assert_eq!(accessed.granted, AccessMask::READ);
        assert!(accessed.attributes.is_some());
        assert_eq!(bench.origin.calls(), [("GETATTR", 1)], "the first answer serves other questions");
    }
    // The next ACCESS notices that another client has changed the mode.
    let set = SetAttributes { mode: Some(0), ..SetAttributes::default() };
    bench.origin.tree().setattr(&file, &set, None).unwrap();
    let accessed = cache.access(&opener(1), &file, AccessMask::all()).await.unwrap();
    assert_eq!(accessed.granted, AccessMask::empty());
    assert_eq!(bench.origin.calls(), [("ACCESS", 1), ("GETATTR", 1)]);
}

#[tokio::test]
async fn read_is_one_read_cold_and_nothing_warm() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![7; 10_000]);
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    cache.getattr(&opener(5), &file).await.unwrap();
    bench.origin.calls();
    assert_eq!(read(&cache, &opener(5), &file, 0, 20_000).await, vec![7; 10_000]);
    assert_eq!(bench.origin.calls(), [("READ", 1)]);
    for offset in [0, 1, 5000, 9999, 10_000, 50_000] {
        let expected = 10_000usize.saturating_sub(offset as usize).min(4096);
        assert_eq!(read(&cache, &opener(5), &file, offset, 4096).await.len(), expected);
    }
    assert_eq!(bench.origin.calls(), [], "the origin has let this credential read");
    let reply = cache.read(&opener(5), &file, StateidBasis::Anonymous, 0, 100).await.unwrap();
    assert!(reply.attributes.is_none(), "attributes that were not asked for are not given");
    assert!(!reply.eof);
    assert!(cache.read(&opener(5), &file, StateidBasis::Anonymous, 9000, 1000).await.unwrap().eof);
    // Another credential: one ACCESS, then nothing.
    read(&cache, &opener(6), &file, 0, 100).await;
    assert_eq!(bench.origin.calls(), [("ACCESS", 1)]);
    read(&cache, &opener(6), &file, 0, 100).await;
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test]
async fn a_client_that_opens_and_reads_costs_one_getattr_when_warm() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![7; 10_000]);
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let user = opener(5);
    cache.access(&user, &file, AccessMask::READ).await.unwrap();
    read(&cache, &user, &file, 0, 10_000).await;
    assert_eq!(bench.origin.calls(), [("ACCESS", 1), ("READ", 1)]);
    for _ in 0..3 {
        cache.getattr(&user, &file).await.unwrap();
        read(&cache, &user, &file, 0, 10_000).await;
        assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    }
}

// Promise: close-to-open
#[tokio::test]
async fn a_change_by_somebody_else_is_read_after_the_next_open() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"old data");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    cache.getattr(&opener(0), &file).await.unwrap();
    read(&cache, &opener(0), &file, 0, 100).await;
    bench.origin.tree().write(&file, 0, b"new data").unwrap();
    assert_eq!(read(&cache, &opener(0), &file, 0, 100).await, "old data", "no open in between");
    cache.getattr(&opener(0), &file).await.unwrap();
    assert_eq!(read(&cache, &opener(0), &file, 0, 100).await, "new data");
    assert_eq!(cache.stats().distrusted, 1);
}

#[tokio::test]
async fn what_is_no_file_has_no_data_and_a_read_of_nothing_no_end() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"content");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let me = opener(5);
    for _ in 0..2 {
        cache.getattr(&me, &root()).await.unwrap();
        let error = cache.read(&me, &root(), StateidBasis::Anonymous, 0, 100).await.unwrap_err();
        assert_eq!(error.status, Status::IsDir);
        for (offset, count, eof) in [(0, 7, true), (0, 0, false), (7, 0, true), (9, 5, true)] {
            let read = cache.read(&me, &file, StateidBasis::Anonymous, offset, count).await.unwrap();
            assert_eq!(read.eof, eof, "{count} bytes at {offset}");
        }
    }
}

// Promise: remembered-rights
#[tokio::test]
async fn read_that_is_not_allowed_is_left_to_the_origin() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"secret");
    let set = SetAttributes { mode: Some(0o400), uid: Some(5), ..SetAttributes::default() };
    bench.origin.tree().setattr(&file, &set, None).unwrap();
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    cache.getattr(&opener(5), &file).await.unwrap();
    read(&cache, &opener(5), &file, 0, 100).await;
    bench.origin.calls();
    for calls in [vec![("ACCESS", 1), ("READ", 1)], vec![("READ", 1)]] {
        let error = cache.read(&opener(6), &file, StateidBasis::Anonymous, 0, 100).await.unwrap_err();
        assert_eq!(error.status, Status::Access);
        assert_eq!(bench.origin.calls(), calls);
    }
    // The owner of a file without any permission may still read it. The origin allows it, and that is
    // remembered.
    let set = SetAttributes { mode: Some(0), ..SetAttributes::default() };
    cache.setattr(&opener(5), &file, &set, None).await.unwrap();
    bench.origin.calls();
    assert_eq!(read(&cache, &opener(5), &file, 0, 100).await, "secret");
    assert_eq!(bench.origin.calls(), [("ACCESS", 1), ("READ", 1)]);
    assert_eq!(read(&cache, &opener(5), &file, 0, 100).await, "secret");
    assert_eq!(bench.origin.calls(), []);
}

// Promise: own-changes
#[tokio::test]
async fn own_writes_stay_in_the_cache() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &[1; 8192]);
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let user = opener(0);
    cache.getattr(&user, &file).await.unwrap();
    read(&cache, &user, &file, 0, 8192).await;
    write(&cache, &user, &file, 100, &[2; 50]).await;
    bench.origin.pass(SECOND);
    write(&cache, &user, &file, 8192, &[3; 5000]).await;
    assert_eq!(bench.origin.calls(), [("GETATTR", 1), ("READ", 1), ("WRITE", 2)]);
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    cache.setattr(&user, &file, &set, None).await.unwrap();
    cache.commit(&user, &file, 0, 0).await.unwrap();
    cache.getattr(&user, &file).await.unwrap();
    bench.origin.calls();
    read(&cache, &user, &file, 0, 1).await;
    assert_eq!(bench.origin.calls(), [("ACCESS", 1)], "a change of mode takes remembered rights away");
    let all = read(&cache, &user, &file, 0, 1 << 20).await;
    assert_eq!(all, bench.origin.tree().get(&file).unwrap().data);
    assert_eq!(all.len(), 13_192);
    assert_eq!(bench.origin.calls(), []);
    assert_eq!(cache.stats().distrusted, 0);
}

// Promise: own-changes
#[tokio::test]
async fn own_truncation_keeps_what_is_left() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", &vec![1; 10_000]);
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let user = opener(0);
    cache.getattr(&user, &file).await.unwrap();
    read(&cache, &user, &file, 0, 10_000).await;
    for size in [5000, 9000] {
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        cache.setattr(&user, &file, &set, None).await.unwrap();
    }
    bench.origin.calls();
    assert_eq!(read(&cache, &user, &file, 0, 5000).await, vec![1; 5000]);
    assert_eq!(bench.origin.calls(), []);
    assert_eq!(read(&cache, &user, &file, 5000, 5000).await, vec![0; 4000]);
    assert_eq!(bench.origin.calls(), [("READ", 1)]);
}

// Promise: own-changes
#[tokio::test]
async fn own_changes_of_names_edit_what_is_known() {
    let bench = Bench::new();
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let user = opener(0);
    let set = SetAttributes::default();
    let absent = async |text: &str| {
        cache.lookup(&user, &root(), &name(text), vfs::Want::None).await.unwrap_err().status
    };
    assert_eq!(absent("a").await, Status::NoEnt);
    assert_eq!(absent("never").await, Status::NoEnt);
    let file = cache.create(&user, &root(), &name("a"), CreateHow::Guarded, &set).await.unwrap().node.handle;
    write(&cache, &user, &file, 0, b"contents").await;
    bench.origin.calls();

    assert_eq!(cache.lookup(&user, &root(), &name("a"), vfs::Want::None).await.unwrap().node.handle, file);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    assert_eq!(absent("never").await, Status::NoEnt);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)], "still known, since the change was ours");

    cache.rename(&user, &root(), &name("a"), &root(), &name("b")).await.unwrap();
    bench.origin.calls();
    assert_eq!(absent("a").await, Status::NoEnt);
    assert_eq!(bench.origin.calls(), [("LOOKUP", 1)]);
    assert_eq!(cache.lookup(&user, &root(), &name("b"), vfs::Want::None).await.unwrap().node.handle, file);
    assert_eq!(bench.origin.calls(), [("LOOKUP", 1)], "its ctime has moved from nobody knows where");
    assert_eq!(read(&cache, &user, &file, 0, 100).await, "contents");
    bench.origin.calls();

    cache.remove(&user, &root(), &name("b")).await.unwrap();
    bench.origin.calls();
    assert_eq!(absent("b").await, Status::NoEnt);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
}

#[tokio::test]
async fn a_listing_is_read_once_and_revalidated_with_one_getattr() {
    let bench = Bench::new();
    for number in 0..300 {
        bench.origin.put(&root(), &format!("file-{number}"), b"");
    }
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let user = opener(0);
    let list = async || {
        let mut names = Vec::new();
        let mut part = PART;
        loop {
            let listing = cache.readdir(&user, &root(), part).await.unwrap();
            let Some(last) = listing.entries.last() else { return names };
            (part.cookie, part.verifier) = (last.cookie, listing.verifier);
            names.extend(listing.entries.iter().map(|entry| entry.name.clone()));
            if listing.eof {
                return names;
            }
        }
    };
    let cold = list().await;
    assert_eq!(cold.len(), 300);
    assert_eq!(bench.origin.calls(), [("READDIR", 3)]);
    assert_eq!(list().await, cold);
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);

    // The listing has told where the names lead: each LOOKUP costs one GETATTR.
    cache.access(&user, &root(), AccessMask::all()).await.unwrap();
    bench.origin.calls();
    cache.lookup(&user, &root(), &name("file-7"), vfs::Want::None).await.unwrap();
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)]);
    assert_eq!(
        cache.lookup(&user, &root(), &name("none"), vfs::Want::None).await.unwrap_err().status,
        Status::NoEnt
    );
    assert_eq!(bench.origin.calls(), [("GETATTR", 1)], "what is not listed is not there");

    bench.origin.put(&root(), "none", b"");
    cache.lookup(&user, &root(), &name("none"), vfs::Want::None).await.unwrap();
    assert_eq!(bench.origin.calls(), [("GETATTR", 1), ("LOOKUP", 1)]);
    assert_eq!(list().await.len(), 301);
}

#[tokio::test]
async fn stat_and_lookup_of_fuse_are_free_within_the_timeouts() {
    let bench = Bench::new();
    bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(10 * SECOND);
    let cache = bench.open().await;
    let user = Caller::unix(0, 0, &[]);
    cache.lookup(&user, &root(), &name("f"), vfs::Want::None).await.unwrap();
    assert_eq!(
        cache.lookup(&user, &root(), &name("none"), vfs::Want::None).await.unwrap_err().status,
        Status::NoEnt
    );
    bench.origin.calls();
    let found = cache.lookup(&user, &root(), &name("f"), vfs::Want::None).await.unwrap();
    assert!(found.node.attributes.is_some());
    assert_eq!(
        cache.lookup(&user, &root(), &name("none"), vfs::Want::None).await.unwrap_err().status,
        Status::NoEnt
    );
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test]
async fn symbolic_links_are_read_once() {
    let bench = Bench::new();
    let cache = bench.open().await;
    let user = opener(0);
    let set = SetAttributes::default();
    let link = cache.symlink(&user, &root(), &name("l"), b"target", &set).await.unwrap().node.handle;
    bench.origin.calls();
    assert_eq!(cache.readlink(&user, &link).await.unwrap().0, "target");
    assert_eq!(bench.origin.calls(), [("READLINK", 1)]);
    assert_eq!(cache.readlink(&user, &link).await.unwrap().0, "target");
    assert_eq!(bench.origin.calls(), []);
}

// Promise: nocto
#[tokio::test]
async fn nocto_believes_the_timeouts_even_of_a_v3_client() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(10 * SECOND);
    let mut options = bench.options();
    options.consistency = cache::Consistency::NoCto;
    let cache = bench.open_with(options).await;
    cache.getattr(&opener(0), &file).await.unwrap();
    bench.origin.calls();
    cache.getattr(&opener(0), &file).await.unwrap();
    assert_eq!(bench.origin.calls(), []);
}

#[tokio::test]
async fn noac_asks_before_every_read() {
    let bench = Bench::new();
    let file = bench.origin.put(&root(), "f", b"data");
    bench.origin.pass(10 * SECOND);
    let mut options = bench.options();
    options.timeouts = cache::Timeouts::noac();
    let cache = bench.open_with(options).await;
    let user = opener(0);
    cache.getattr(&user, &file).await.unwrap();
    read(&cache, &user, &file, 0, 4).await;
    bench.origin.calls();
    read(&cache, &user, &file, 0, 4).await;
    // A right is believed no longer than the attributes: the origin is asked for it as well.
    assert!(bench.origin.calls().contains(&("GETATTR", 1)));
    bench.origin.tree().write(&file, 0, b"DATA").unwrap();
    assert_eq!(read(&cache, &user, &file, 0, 4).await, "DATA");
}
