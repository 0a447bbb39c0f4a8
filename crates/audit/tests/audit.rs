//! The lines of the audit log, for operations on a file system in memory.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use audit::{Audit, Audited, Destination, Export, RECORDS_MAX, Scope};
use bytes::Bytes;
use memory::Memory;
use parking_lot::Mutex;
use serde_json::Value;
use vfs::{
    Caller, CreateHow, FileSystem, Handle, Name, OpenRequest, Owner, SetAttributes, Share, Stability,
    StateidBasis, Want,
};

/// A file system under audit, and the lines of its log.
struct Setting {
    fs: Audited,
    audit: Arc<Audit>,
    lines: Arc<Mutex<Vec<Value>>>,
    root: Handle,
}

fn caller() -> Caller {
    let client = Some("10.0.0.5".parse().unwrap());
    Caller { client, ..Caller::unix(1000, 100, &[]) }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// A file system in which everybody may make files, and its root.
async fn below() -> (Arc<Memory>, Handle) {
    let (fs, root) = (Memory::new(memory::Options::default()), Caller::unix(0, 0, &[]));
    let handle = fs.root(&root).await.unwrap().handle;
    let set = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
    fs.setattr(&root, &handle, &set, None).await.unwrap();
    (Arc::new(fs), handle)
}

impl Setting {
    async fn new(scope: Scope) -> Setting {
        let (below, root) = below().await;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let to = lines.clone();
        let write = move |line: &str| to.lock().push(serde_json::from_str(line).unwrap());
        let audit = Audit::open(Destination::Lines(Box::new(write)), scope).unwrap();
        let find = move |handle: &Handle| (*handle == root).then(|| b"/".to_vec());
        let export = Export { path: "/export".to_owned(), find: Arc::new(find) };
        let fs = Audited::new(below, audit.clone(), export);
        Setting { fs, audit, lines, root }
    }

    /// The lines so far; they are forgotten.
    async fn lines(&self) -> Vec<Value> {
        self.audit.flush().await;
        std::mem::take(&mut self.lines.lock())
    }
}

#[tokio::test]
async fn changes_are_recorded_with_who_where_what_and_the_result() {
    let setting = Setting::new(Scope::Changes).await;
    let (fs, root) = (&setting.fs, &setting.root);
    let (who, set) = (caller(), SetAttributes { mode: Some(0o640), ..SetAttributes::default() });
    fs.mkdir(&who, root, &name("d"), &set, Want::None).await.unwrap();
    fs.mkdir(&who, root, &name("d"), &set, Want::None).await.unwrap_err();
    fs.rename(&who, root, &name("d"), root, &name("e")).await.unwrap();
    let made = fs.create(&who, root, &name("f"), CreateHow::Guarded, &set).await.unwrap().node;
    fs.getattr(&who, &made.handle).await.unwrap();
    let lines = setting.lines().await;
    let told: Vec<[&Value; 3]> =
        lines.iter().map(|line| [&line["operation"], &line["path"], &line["result"]]).collect();
    let wanted =
        [["mkdir", "/d", "OK"], ["mkdir", "/d", "EXIST"], ["rename", "/d", "OK"], ["create", "/f", "OK"]];
    assert_eq!(told, wanted);
    assert_eq!(lines[2]["to"], "/e");
    let first = &lines[0];
    assert_eq!(
        (&first["client"], &first["uid"], &first["gid"]),
        (&"10.0.0.5".into(), &1000.into(), &100.into())
    );
    assert_eq!((&first["export"], &first["set"]["mode"]), (&"/export".into(), &"0640".into()));
    assert!(first["time"].as_str().unwrap().ends_with('Z'), "{first}");
}

#[tokio::test(start_paused = true)]
async fn writes_without_an_open_are_recorded_once_a_minute() {
    let setting = Setting::new(Scope::Changes).await;
    let (fs, who, set) = (&setting.fs, caller(), SetAttributes::default());
    let file =
        fs.create(&who, &setting.root, &name("f"), CreateHow::Guarded, &set).await.unwrap().node.handle;
    let write = || {
        let data = Bytes::from_static(b"data");
        fs.write(&who, &file, StateidBasis::Anonymous, 0, data, Stability::FileSync)
    };
    for _ in 0..3 {
        write().await.unwrap();
    }
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    write().await.unwrap();
    let lines = setting.lines().await;
    let writes: Vec<&Value> = lines.iter().filter(|line| line["operation"] == "write").collect();
    assert_eq!(writes.len(), 2, "{lines:?}");
    assert_eq!((&writes[0]["count"], &writes[0]["path"]), (&4.into(), &Value::Null));
}

#[tokio::test]
async fn opens_for_writing_are_changes_and_all_operations_are_recorded_if_asked_for() {
    let owner = || Owner(Bytes::from_static(b"o"));
    for (scope, wanted) in
        [(Scope::Changes, &["open", "open"][..]), (Scope::All, &["open", "open", "open", "lookup"])]
    {
        let setting = Setting::new(scope).await;
        let (fs, who) = (&setting.fs, caller());
        let request = |access| OpenRequest::new(setting.root, Some(name("f")), owner(), access);
        let create = Some((CreateHow::Unchecked, SetAttributes::default()));
        // A file system without opens refuses them; that is recorded, too.
        let _ = vfs::Opens::open(fs, &who, &OpenRequest { create, ..request(Share::READ) }).await;
        let _ = vfs::Opens::open(fs, &who, &request(Share::WRITE)).await;
        let _ = vfs::Opens::open(fs, &who, &request(Share::READ)).await;
        let _ = fs.lookup(&who, &setting.root, &name("f"), Want::None).await;
        let lines = setting.lines().await;
        let told: Vec<&str> = lines.iter().map(|line| line["operation"].as_str().unwrap()).collect();
        assert_eq!(told, wanted, "{lines:?}");
        assert_eq!(lines[1]["access"], "write");
    }
}

#[tokio::test]
async fn what_a_user_repeats_is_counted_and_loses_no_operation() {
    let setting = Setting::new(Scope::All).await;
    let (fs, who, set) = (&setting.fs, caller(), SetAttributes::default());
    let file =
        fs.create(&who, &setting.root, &name("f"), CreateHow::Guarded, &set).await.unwrap().node.handle;
    let data = Bytes::from_static(b"0123456789");
    fs.write(&who, &file, StateidBasis::Anonymous, 0, data, Stability::FileSync).await.unwrap();
    let other = Caller { client: who.client, ..Caller::unix(7, 7, &[]) };
    for offset in 0..100 {
        fs.read(&who, &file, StateidBasis::Anonymous, offset, 4).await.unwrap();
        fs.lookup(&who, &setting.root, &name("f"), Want::None).await.unwrap();
        fs.lookup(&who, &setting.root, &name("none"), Want::None).await.unwrap_err();
        fs.getattr(&other, &file).await.unwrap();
    }
    let lines = setting.lines().await;
    let times = |operation: &str, uid: u32, path: &Value, result: &str| -> u64 {
        let of = lines.iter().filter(|line| {
            line["operation"] == operation
                && line["uid"] == uid
                && line["path"] == *path
                && line["result"] == result
        });
        of.map(|line| line["times"].as_u64().unwrap_or(1)).sum()
    };
    assert_eq!(times("read", 1000, &Value::Null, "OK"), 100, "{lines:?}");
    assert_eq!(times("lookup", 1000, &"/f".into(), "OK"), 100);
    assert_eq!(times("lookup", 1000, &"/none".into(), "NOENT"), 100);
    assert_eq!(times("getattr", 7, &Value::Null, "OK"), 100);
    let read = lines.iter().filter(|line| line["operation"] == "read");
    assert_eq!(read.map(|line| line["count"].as_u64().unwrap()).sum::<u64>(), 400);
    assert!(lines.len() < 402, "nothing was counted up");
}

/// The thread writes a line later than the operation, and the directory may have gone by then.
#[tokio::test]
async fn a_directory_that_is_gone_has_the_path_that_it_had() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let to = lines.clone();
    let write = move |line: &str| to.lock().push(serde_json::from_str::<Value>(line).unwrap());
    let audit = Audit::open(Destination::Lines(Box::new(write)), Scope::Changes).unwrap();
    let (below, root) = below().await;
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = gone.clone();
    let find = move |_: &Handle| (!is_gone.load(Ordering::Relaxed)).then(|| b"/d".to_vec());
    let fs = Audited::new(below, audit.clone(), Export { path: "/export".to_owned(), find: Arc::new(find) });
    // The first removal makes the thread look for paths again.
    for text in ["a", "b"] {
        fs.remove(&caller(), &root, &name(text)).await.unwrap_err();
        audit.flush().await;
        gone.store(true, Ordering::Relaxed);
    }
    let lines = lines.lock();
    assert_eq!((&lines[0]["path"], &lines[1]["path"]), (&"/d/a".into(), &"/d/b".into()));
}

#[tokio::test]
async fn operations_wait_for_a_log_that_is_behind_and_none_is_left_out() {
    let (opened, gate) = std::sync::mpsc::channel::<()>();
    let written = Arc::new(AtomicUsize::new(0));
    let count = written.clone();
    // It waits for the gate, which is then open for good.
    let write = move |_: &str| {
        let _ = gate.recv();
        count.fetch_add(1, Ordering::Relaxed);
    };
    let audit = Audit::open(Destination::Lines(Box::new(write)), Scope::Changes).unwrap();
    let (below, root) = below().await;
    let export = Export { path: "/export".to_owned(), find: Arc::new(|_| None) };
    let fs = Audited::new(below, audit.clone(), export);
    let (who, name) = (caller(), name("none"));
    let mut done = 0;
    let waiting = loop {
        let mut operation = Box::pin(fs.remove(&who, &root, &name));
        if futures_util::poll!(&mut operation).is_pending() {
            break operation;
        }
        done += 1;
        assert!(done < 3 * RECORDS_MAX, "operations do not wait");
    };
    assert!(done >= RECORDS_MAX, "{done}");
    drop(opened);
    waiting.await.unwrap_err();
    audit.flush().await;
    assert_eq!(written.load(Ordering::Relaxed), done + 1);
}

#[tokio::test]
async fn a_file_that_was_renamed_is_left_and_a_new_one_begun() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let audit = Audit::open(Destination::File(path("log").into()), Scope::Changes).unwrap();
    let (below, root) = below().await;
    let export = Export { path: "/export".to_owned(), find: Arc::new(|_| None) };
    let fs = Audited::new(below, audit.clone(), export);
    let make = async |text: &str| {
        fs.mkdir(&caller(), &root, &name(text), &SetAttributes::default(), Want::None).await.unwrap();
        audit.flush().await;
    };
    let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
    make("a").await;
    std::fs::rename(path("log"), path("log.1")).unwrap();
    make("b").await;
    assert_eq!(lines(&path("log.1")), 2);
    audit.reopen();
    make("c").await;
    assert_eq!((lines(&path("log.1")), lines(&path("log"))), (2, 1));
}
