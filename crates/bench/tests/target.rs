//! Tests of the target without a mount: programs see the same as on a mounted directory, and the client makes
//! no more calls than a kernel's client.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arbiter::Arbiter;
use bench::relay::{Calls, Options, Relay};
use bench::target::{Forgetting, Habits, How, Mounted, Target, Unmounted, make_all, remove_all};
use bench::workload::{read_file, write_file};
use local::LocalFs;
use rpc::{ReplyCache, Server, ServerOptions};
use server::exports::ExportId;
use server::{Export, ExportOptions, Exports, Front, HandleKey, Handles, Squash};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const TIME: Duration = Duration::from_secs(3600);

/// A server behind a relay that counts. Dropping it removes the directories.
struct Served {
    runtime: Runtime,
    relay: Relay,
    _server: Server,
    _directories: [TempDir; 2],
}

impl Served {
    fn start() -> Served {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (tree, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let options = local::Options { sync: false, ..local::Options::new(state.path()) };
        let (relay, server) = runtime.block_on(async {
            let fs = Arc::new(LocalFs::open(tree.path(), options).unwrap());
            let options = ExportOptions { secure: false, squash: Squash::None, ..ExportOptions::default() };
            let fs = Arc::new(Arbiter::with_options(fs, arbiter::Options::default()));
            let export = Export::new(ExportId(1), "/export".into(), fs, options);
            let handles = Handles::open(HandleKey::new([1; 16]), state.path()).unwrap();
            let front = Front::new(Exports::new(vec![export]).unwrap(), handles);
            let options = ServerOptions::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
            let replies = ReplyCache::open(state.path()).unwrap();
            let server = Server::start(options, front, replies).await.unwrap();
            (Relay::start(server.local_addr(), Options::default()).unwrap(), server)
        });
        Served { runtime, relay, _server: server, _directories: [tree, state] }
    }

    fn mount(&self, vers: &str, change: impl Fn(&mut Habits)) -> Unmounted {
        let url = format!("nfs://{}/export?noresvport&vers={vers}", self.relay.local_addr());
        let origin = self.runtime.block_on(client::connect(&url.parse().unwrap())).unwrap();
        let mut habits = Habits::linux(vers != "3").with_actimeo(TIME);
        change(&mut habits);
        Unmounted::new(self.runtime.handle().clone(), origin, habits, "").unwrap()
    }

    /// The calls that the server gets during `work`.
    fn calls(&self, work: impl FnOnce()) -> String {
        let before = self.relay.calls();
        work();
        let Calls { calls, .. } = self.relay.calls().since(&before);
        let words: Vec<String> = calls.iter().map(|(name, count)| format!("{name} {count}")).collect();
        words.join(", ")
    }
}

/// A program that uses all operations. Returns what it saw.
fn program(target: &dyn Target) -> Vec<String> {
    let mut seen = Vec::new();
    make_all(target, "a/b").unwrap();
    make_all(target, "a/b").unwrap();
    let data: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    write_file(target, "a/b/file", &data, 10_000).unwrap();
    assert!(read_file(target, "a/b/file").unwrap() == data);
    let mut file = target.open("a/b/file", How::Update).unwrap();
    file.lock(true).unwrap();
    file.write_at(b"in the middle", 150_000).unwrap();
    file.write_at(b"behind the end", 310_000).unwrap();
    let mut buffer = [9; 20];
    assert_eq!(file.read_at(&mut buffer, 149_996).unwrap(), 20);
    seen.push(String::from_utf8_lossy(&buffer[4..17]).into_owned());
    assert_eq!(file.read_at(&mut buffer, 309_999).unwrap(), 15);
    assert_eq!(buffer[0], 0, "a hole is zeros");
    file.unlock().unwrap();
    file.sync().unwrap();
    seen.push(format!("{} bytes", file.size().unwrap()));
    file.close().unwrap();
    target.forget().unwrap();
    seen.push(format!("{:?}", read_file(target, "a/b/file").unwrap().get(149_998..150_004)));
    write_file(target, "a/b/file", b"short", 100).unwrap();
    seen.push(String::from_utf8_lossy(&read_file(target, "a/b/file").unwrap()).into_owned());
    target.rename("a/b/file", "a/moved").unwrap();
    seen.push(format!("{:?}", target.open("a/b/file", How::Read).err().map(|error| error.kind())));
    seen.push(format!("{:?} {:?}", target.list("a").unwrap(), target.stat("a/moved").unwrap()));
    seen.push(format!("{:?}", target.mkdir("a").err().map(|error| error.kind())));
    seen.push(format!("{:?}", target.rmdir("a").err().map(|error| error.kind())));
    seen.push(format!("{:?}", target.stat("a/nothing").err().map(|error| error.kind())));
    remove_all(target, "a").unwrap();
    seen.push(format!("{:?}", target.list("").unwrap()));
    seen
}

#[test]
fn a_program_sees_the_same_with_and_without_a_mount() {
    let directory = tempfile::tempdir().unwrap();
    let expected = program(&Mounted::new(directory.path(), Forgetting::Everything));
    assert_eq!(expected[0], "in the middle");
    for vers in ["3", "4.1", "4.2"] {
        let served = Served::start();
        assert_eq!(program(&served.mount(vers, |_| {})), expected, "version {vers}");
        assert_eq!(
            program(&served.mount(vers, |habits| habits.delegations = false)),
            expected,
            "version {vers}"
        );
        let small = |habits: &mut Habits| (habits.memory_bytes, habits.transfer_bytes) = (16 << 10, 8 << 10);
        assert_eq!(program(&served.mount(vers, small)), expected, "version {vers}, little memory");
    }
}

fn ten_files(target: &dyn Target) {
    make_all(target, "files").unwrap();
    (0..10).for_each(|file| write_file(target, &format!("files/{file}"), b"content", 100).unwrap());
}

fn read_ten(target: &dyn Target) {
    (0..10).for_each(|file| assert_eq!(read_file(target, &format!("files/{file}")).unwrap(), b"content"));
}

#[test]
fn opens_cost_what_they_cost_a_kernel() {
    let served = Served::start();
    ten_files(&served.mount("3", |_| {}));
    let v3 = served.mount("3", |_| {});
    assert_eq!(served.calls(|| read_ten(&v3)), "ACCESS 10, LOOKUP 11, READ 10");
    assert_eq!(served.calls(|| read_ten(&v3)), "GETATTR 10");
    let undelegated = served.mount("4.2", |habits| habits.delegations = false);
    assert_eq!(served.calls(|| read_ten(&undelegated)), "CLOSE 10, LOOKUP 1, OPEN 10, READ 10");
    assert_eq!(served.calls(|| read_ten(&undelegated)), "CLOSE 10, OPEN 10");
    let delegated = served.mount("4.2", |_| {});
    assert_eq!(served.calls(|| read_ten(&delegated)), "LOOKUP 1, OPEN 10, READ 10");
    assert_eq!(served.calls(|| read_ten(&delegated)), "");
    let ended = "CLOSE 10, DELEGRETURN 10, DESTROY_CLIENTID 1, DESTROY_SESSION 1";
    assert_eq!(served.calls(|| drop(delegated)), ended);
}

#[test]
fn absence_is_looked_up_once() {
    let served = Served::start();
    for vers in ["3", "4.2"] {
        let client = served.mount(vers, |_| {});
        let look = || assert!(client.open("nothing", How::Read).is_err());
        assert_ne!(served.calls(look), "");
        assert_eq!(served.calls(look), "", "version {vers}");
    }
}

#[test]
fn small_writes_are_one_write_or_each_its_own() {
    let served = Served::start();
    let write = |target: &dyn Target| {
        let mut file = target.open("numbers", How::Create).unwrap();
        (0..100u64).for_each(|at| file.write_at(b"x", at).unwrap());
        file.close().unwrap();
    };
    assert_eq!(served.calls(|| write(&served.mount("3", |_| {}))).split(", ").last(), Some("WRITE 1"));
    let synchronous = served.mount("3", |habits| habits.synchronous = true);
    assert!(served.calls(|| write(&synchronous)).contains("WRITE 100"));
    // Several WRITEs are followed by one COMMIT.
    let pieces = served.mount("3", |habits| habits.transfer_bytes = 4096);
    let data = vec![1; 40_960];
    let calls = served.calls(|| write_file(&pieces, "large", &data, 1000).unwrap());
    assert!(calls.contains("COMMIT 1") && calls.contains("WRITE 10"), "{calls}");
}

#[test]
fn what_another_client_wrote_and_closed_is_read_at_the_next_open() {
    let served = Served::start();
    for vers in ["3", "4.2"] {
        let (reader, writer) = (served.mount(vers, |_| {}), served.mount(vers, |_| {}));
        write_file(&writer, "shared", b"first", 100).unwrap();
        for round in 0..20 {
            let text = format!("round {round}");
            write_file(&writer, "shared", text.as_bytes(), 100).unwrap();
            assert_eq!(read_file(&reader, "shared").unwrap(), text.as_bytes(), "version {vers}");
            assert_eq!(read_file(&writer, "shared").unwrap(), text.as_bytes(), "version {vers}");
        }
    }
}
