//! Clients of version 3 use all origins at one address. The virtual server that they have mounted asks the
//! one that has the file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::Origin;
use serde_json::Value;
use vfs::{Freshness, Name, Stability, StateidBasis, Status, Want};

use crate::program::{self, path};
use crate::site::{LONGEST, Site, open, user, write};

/// A client of version 3 of the virtual server 0, at the origin of the virtual server 1.
async fn older(site: &Site) -> Arc<dyn Origin> {
    site.client_at(0, "b", "3").await
}

async fn file(at: &Arc<dyn Origin>) -> vfs::Handle {
    let name = Name::new(b"file").unwrap();
    at.lookup(&user(), &at.root_handle(), &name, Want::None).await.unwrap().node.handle
}

/// Repeats a call of version 3 while it is put off, as kernels do.
async fn again<T>(mut attempt: impl AsyncFnMut() -> Result<T, vfs::Error>) -> T {
    let begun = Instant::now();
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => assert!(error.status == Status::Delay && begun.elapsed() < LONGEST, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What an open and a read give.
async fn read(at: &Arc<dyn Origin>, file: &vfs::Handle) -> Vec<u8> {
    let caller = user().with_freshness(Freshness::Open);
    again(async || at.getattr(&caller, file).await).await;
    let read = again(async || at.read(&user(), file, StateidBasis::Anonymous, 0, 100).await).await;
    read.data.to_bytes().unwrap().to_vec()
}

async fn overwrite(at: &Arc<dyn Origin>, file: &vfs::Handle, byte: u8) {
    let data = Bytes::from(vec![byte; 7]);
    let basis = StateidBasis::Anonymous;
    again(async || at.write(&user(), file, basis, 0, data.clone(), Stability::FileSync).await).await;
}

/// READs that the origin of the virtual server 1 has answered.
fn reads(site: &Site) -> u64 {
    let state = site.home.path().join("state-b");
    let output = program::run(&["status", "--json", path(&state)]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let calls = status["calls"].as_object().unwrap();
    calls.iter().filter(|(name, _)| name.ends_with("READ")).map(|(_, count)| count.as_u64().unwrap()).sum()
}

// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_version_3_uses_all_origins_at_one_address() {
    let site = Site::new(&["m1", "m2"]);
    let (older, newer) = (older(&site).await, site.client(1).await);
    let at = file(&older).await;
    assert_eq!(read(&older, &at).await, b"content");
    let opened = open(&newer, "newer").await;
    assert_eq!(read(&newer, &opened.handle).await, b"content");
    assert_eq!(reads(&site), 1, "every byte comes from the origin once");
    for byte in b'a'..b'e' {
        write(&newer, &opened, byte).await;
        assert_eq!(read(&older, &at).await, [byte; 7]);
        let byte = byte.to_ascii_uppercase();
        overwrite(&older, &at, byte).await;
        assert_eq!(site.content(1), [byte; 7]);
        assert_eq!(read(&newer, &opened.handle).await, [byte; 7]);
    }
}

// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_version_3_goes_on_when_either_virtual_server_moves() {
    let mut site = Site::new(&["m1", "m2", "m3"]);
    let older = older(&site).await;
    let at = file(&older).await;
    for (byte, server) in (b'a'..).zip([0, 1, 0, 1]) {
        let victim = site.holder(server);
        site.kill(victim);
        let begun = Instant::now();
        overwrite(&older, &at, byte).await;
        eprintln!("server {server} was killed: the write took {:?}", begun.elapsed());
        assert_eq!(site.content(1), [byte; 7]);
        assert_eq!(read(&older, &at).await, [byte; 7]);
        site.moved(server, victim);
        site.start(victim);
    }
}

/// A client of version 3 has gone, and its virtual server moves. What that one holds at the other virtual
/// server is in the way of nobody, although no client asks for it again.
// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_behind_when_clients_of_version_3_are_gone() {
    let mut site = Site::new(&["m1", "m2"]);
    {
        let older = older(&site).await;
        let at = file(&older).await;
        overwrite(&older, &at, b'x').await;
        assert_eq!(read(&older, &at).await, [b'x'; 7]);
    }
    let victim = site.holder(0);
    site.kill(victim);
    site.moved(0, victim);
    let newer = site.client(1).await;
    let begun = Instant::now();
    let opened = open(&newer, "newer").await;
    write(&newer, &opened, b'y').await;
    let took = begun.elapsed();
    eprintln!("a write behind a client that has gone took {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(site.content(1), [b'y'; 7]);
}

/// The last member takes both virtual servers down with it. Neither waits for the other one.
// Promise: virtual-servers
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_member_ends_although_its_virtual_servers_are_clients_of_each_other() {
    let mut site = Site::new(&["m1"]);
    let older = older(&site).await;
    let at = file(&older).await;
    overwrite(&older, &at, b'x').await;
    let begun = Instant::now();
    site.terminate("m1");
    let took = begun.elapsed();
    eprintln!("the end took {took:?}");
    assert!(took < Duration::from_secs(8), "{took:?}");
    assert_eq!(site.content(1), [b'x'; 7]);
}
