//! Approximate speed of the back end alone, with one caller at a time. To run it:
//! `cargo run --release -p local --example speed [DIRECTORY]`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a tool for developers")]

use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;
use local::{LocalFs, Options};
use vfs::{AccessMask, Caller, CreateHow, FileSystem, Name, ReadDir, SetAttributes, Stability, StateidBasis};

/// How long each operation is repeated.
const TIME: Duration = Duration::from_millis(500);

async fn measure<F: Future>(what: &str, mut operation: impl FnMut(u64) -> F) {
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < TIME {
        for _ in 0..50 {
            operation(count).await;
            count += 1;
        }
    }
    let each = start.elapsed().as_secs_f64() / count as f64;
    println!("{what:28} {:>9.0} /s {:>8.2} µs", 1.0 / each, each * 1e6);
}

#[tokio::main]
async fn main() {
    let parent = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, Into::into);
    let home = tempfile::TempDir::new_in(parent).unwrap();
    let directory = home.path().join("exported");
    std::fs::create_dir(&directory).unwrap();
    for file in ["file", "big"] {
        std::fs::write(directory.join(file), vec![7; 4 << 20]).unwrap();
    }
    for number in 0..1000 {
        std::fs::write(directory.join(format!("many-{number}")), "").unwrap();
    }
    std::thread::sleep(Duration::from_millis(50)); // so that access decisions are cached
    for (user, caller) in [("root", Caller::unix(0, 0, &[])), ("user", Caller::unix(1000, 1000, &[4, 5]))] {
        if user == "user" && !LocalFs::serves_all_users() {
            continue;
        }
        println!("{user}");
        run(&directory, &home.path().join("state"), &caller).await;
    }
}

async fn run(directory: &std::path::Path, state: &std::path::Path, caller: &Caller) {
    let options = Options { sync: false, ..Options::new(state) };
    let fs = &LocalFs::open(directory, options).unwrap();
    let machine = &Caller::machine();
    let root = fs.root(machine).await.unwrap().handle;
    let name = |name: &str| Name::new(name.as_bytes()).unwrap();
    let set = &SetAttributes { mode: Some(0o666), ..SetAttributes::default() };
    let open = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
    fs.setattr(machine, &root, &open, None).await.unwrap();
    let file_name = &name("file");
    let file = &fs.lookup(caller, &root, file_name, vfs::Want::None).await.unwrap().node.handle;
    let big = &fs.lookup(caller, &root, &name("big"), vfs::Want::None).await.unwrap().node.handle;
    fs.setattr(machine, file, set, None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    measure("GETATTR", |_| async { fs.getattr(caller, file).await.unwrap() }).await;
    measure("ACCESS", |_| async { fs.access(caller, file, AccessMask::all()).await.unwrap() }).await;
    measure("LOOKUP", |_| async { fs.lookup(caller, &root, file_name, vfs::Want::None).await.unwrap() })
        .await;
    let at = |number: u64| number * 7919 % 1024 * 4096;
    measure("READ 4 KiB", |number| async move {
        fs.read(caller, big, StateidBasis::Anonymous, at(number), 4096).await.unwrap()
    })
    .await;
    measure("READ 1 MiB, as a range", |number| async move {
        fs.read(caller, big, StateidBasis::Anonymous, (number % 4) << 20, 1 << 20).await.unwrap()
    })
    .await;
    let data = &Bytes::from(vec![1; 4096]);
    measure("WRITE 4 KiB, unstable", |number| async move {
        fs.write(caller, file, StateidBasis::Anonymous, at(number), data.clone(), Stability::Unstable)
            .await
            .unwrap()
    })
    .await;
    let fresh = &name("fresh");
    measure("CREATE and REMOVE, async", |_| async {
        fs.create(caller, &root, fresh, CreateHow::Guarded, set).await.unwrap();
        fs.remove(caller, &root, fresh).await.unwrap()
    })
    .await;
    for plus in [false, true] {
        let what = if plus { "READDIRPLUS of 1002" } else { "READDIR of 1002" };
        let part = ReadDir {
            cookie: 0,
            verifier: [0; 8],
            bytes: 1 << 20,
            plus,
            want_directory_lease: false,
            names_suffice: false,
        };
        measure(what, |_| async move { fs.readdir(caller, &root, part).await.unwrap() }).await;
    }
}
