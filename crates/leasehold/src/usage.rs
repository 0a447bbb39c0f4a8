//! The clients that use a running process most, and the files that are used most: the source of `leasehold
//! top`.
//!
//! The counts are those since a client or a file was first seen, or seen again after it was forgotten.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use cache::Cache;
use serde_json::{Value, json};
use server::exports::ExportId;
use vfs::{Handle, Used};

use crate::cachectl::path;
use crate::holders::{Holders, Listed};
use crate::status::Source;

/// The most clients, and the most files, in an answer.
pub const ENTRIES_MAX: usize = 100;

/// The state, with the clients and the files of a server that are used most.
pub fn of_server(status: Source, holders: Holders) -> Source {
    Arc::new(move || {
        let usage = holders.front.usage();
        let clients: Vec<Value> = most(usage.clients(), ENTRIES_MAX).into_iter().map(client).collect();
        let exports = holders.exports.now();
        let file = |(of, used)| file_of(&exports, &of, used);
        let files: Vec<Value> = most(usage.files(), ENTRIES_MAX).into_iter().map(file).collect();
        answer(&status(), &clients, &files)
    })
}

/// The state, with the files of a mount that are used most.
pub fn of_mount(status: Source, mounted: Weak<mount::Mount>, cache: Arc<Cache>) -> Source {
    Arc::new(move || {
        let used = mounted.upgrade().map(|mounted| mounted.files_used()).unwrap_or_default();
        let file = |(handle, used): (Handle, Used)| entry(json!({ "path": path_in(&cache, &handle) }), used);
        let files: Vec<Value> = most(used, ENTRIES_MAX).into_iter().map(file).collect();
        answer(&status(), &[], &files)
    })
}

/// The state alone, of a process that serves nobody itself.
pub fn of_state(status: Source) -> Source {
    Arc::new(move || answer(&status(), &[], &[]))
}

fn answer(status: &Value, clients: &[Value], files: &[Value]) -> Value {
    json!({ "status": status, "clients": clients, "files": files })
}

/// Those that were used most, first, and so many of them at most.
pub fn most<K>(mut all: Vec<(K, Used)>, entries_max: usize) -> Vec<(K, Used)> {
    all.sort_by_key(|(_, used)| Reverse((used.read_bytes + used.written_bytes, used.calls)));
    all.truncate(entries_max);
    all
}

fn client((address, used): (IpAddr, Used)) -> Value {
    entry(json!({ "address": address }), used)
}

fn file_of(exports: &[Listed], (export, handle): &(ExportId, Handle), used: Used) -> Value {
    let listed = exports.iter().find(|listed| listed.id == *export);
    let at = listed.and_then(|listed| (listed.place)(handle));
    let name = listed.map(|listed| listed.path.as_str());
    entry(json!({ "export": name, "path": at.as_deref().map(path::show) }), used)
}

/// The path of a file, below the root of the mount.
fn path_in(cache: &Cache, handle: &Handle) -> Option<String> {
    let names = cache.path_of(handle)?;
    let path = names.iter().fold(b"/".to_vec(), |path, name| path::join(&path, name.as_bytes()));
    Some(path::show(&path))
}

fn entry(mut entry: Value, used: Used) -> Value {
    entry["calls"] = json!(used.calls);
    entry["read_bytes"] = json!(used.read_bytes);
    entry["written_bytes"] = json!(used.written_bytes);
    entry
}
