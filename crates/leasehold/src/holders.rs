//! `leasehold clients`, `opens`, `locks`, `leases` and `revoke`: what the clients of a running `serve` or
//! `proxy` hold, and how to take it from them.
//!
//! Clients are those of version 4, and hosts that lock through NLM. The holders of leases are also those of
//! NQNFS, which have no record here. The process of the server answers over its admin socket.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use arbiter::Arbiter;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use server::exports::ExportId;
use server::{Front, Held, ListedClient, ListedHost};
use tokio::sync::mpsc;
use vfs::{Handle, HolderId, LeaseId, LeaseKind, Share};

use crate::Failure;
use crate::admin::{Asked, Request};
use crate::cachectl::{Reply, path};
use crate::cli::{Holding, Revoke};
use crate::live::Live;
use crate::units::ago;

/// Leases read from the table at one time.
const LEASES_AT_ONCE: usize = 1000;

/// A request. Paths are written as [`path::show`] writes them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum HoldersRequest {
    /// List the clients.
    Clients,
    /// List what clients hold.
    Held {
        /// The kind.
        what: What,
        /// Only this file, or what is below this directory.
        path: Option<String>,
    },
    /// Remove a client and all that it holds.
    Revoke {
        /// Its id, its name, or its address.
        client: String,
    },
}

/// The kind of state to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// Opens.
    Opens,
    /// Byte-range locks.
    Locks,
    /// Leases.
    Leases,
}

/// A server, as its holders are listed.
#[derive(Clone)]
pub struct Holders {
    /// The server.
    pub front: Arc<Front>,
    /// Its exports.
    pub exports: Live<Listed>,
}

/// An export.
#[derive(Clone)]
pub struct Listed {
    /// Its id.
    pub id: ExportId,
    /// Its path.
    pub path: String,
    /// What clients hold of it.
    pub arbiter: Arc<Arbiter>,
    /// Finds the path of a file below the export; `None` if it is not known. It may wait for the disk.
    pub place: Arc<Place>,
}

/// The path of a file.
pub type Place = dyn Fn(&Handle) -> Option<Vec<u8>> + Send + Sync;

/// Answers a request. Sends the entries to `sink`.
///
/// # Errors
/// One line for the user.
pub async fn execute(
    holders: &Holders,
    request: HoldersRequest,
    sink: mpsc::Sender<Reply>,
) -> Result<Value, String> {
    let entries = match request {
        HoldersRequest::Clients => {
            let hosts = holders.front.list_hosts();
            let clients = holders.front.list_clients();
            clients.iter().map(client_entry).chain(hosts.iter().map(host_entry)).collect()
        }
        HoldersRequest::Held { what, path } => {
            let holders = holders.clone();
            let listed = tokio::task::spawn_blocking(move || list(&holders, what, path.as_deref()));
            listed.await.map_err(|_| "the listing has failed; ask again".to_owned())?
        }
        HoldersRequest::Revoke { client } => return revoke(holders, &client).await,
    };
    let count = entries.len();
    for entry in entries {
        if sink.send(Reply::Entry(entry)).await.is_err() {
            break;
        }
    }
    Ok(json!({ "entries": count }))
}

fn client_entry(client: &ListedClient) -> Value {
    json!({
        "id": format!("{:016x}", client.id),
        "name": path::show(&client.name),
        "address": client.address,
        "version": if client.is_minor0 { "4.0" } else { "4.1+" },
        "silent_s": client.silent.as_secs(),
        "courtesy": client.is_courtesy,
        "opens": client.opens,
        "locks": client.locks,
        "leases": client.delegations,
        "revoked": client.revoked,
    })
}

/// A host as a client: it has no leases, and its opens are those of its locks.
fn host_entry(host: &ListedHost) -> Value {
    json!({
        "id": host_id(host),
        "name": path::show(&host.name),
        "address": host.address,
        "version": "NLM",
        "silent_s": host.silent.as_secs(),
        "courtesy": false,
        "opens": 0,
        "locks": host.files,
        "leases": 0,
        "revoked": 0,
    })
}

fn host_id(host: &ListedHost) -> String {
    format!("{:016x}", host.holder.0)
}

fn list(holders: &Holders, what: What, below: Option<&str>) -> Vec<Value> {
    let clients = holders.front.list_clients();
    let below = below.map(|path| path::tidy(&path::read(path)));
    let mut entries = Vec::new();
    for export in &holders.exports.now() {
        let place = |handle: &Handle| (export.place)(handle);
        let mut add = |client: Option<Holder<'_>>, handle: &Handle, held: Value| {
            let at = place(handle);
            if below.as_deref().is_some_and(|below| !at.as_deref().is_some_and(|at| is_in(at, below))) {
                return;
            }
            let mut entry = held;
            entry["export"] = json!(export.path);
            entry["path"] = json!(at.as_deref().map(path::show));
            entry["client"] = json!(client.as_ref().map(|client| &client.id));
            entry["name"] = json!(client.as_ref().map(|client| path::show(client.name)));
            entry["address"] = json!(client.map(|client| client.address));
            entries.push(entry);
        };
        match what {
            What::Leases => each_lease(export, &clients, &mut add),
            What::Opens | What::Locks => each_state(holders, export, what, &clients, &mut add),
        }
        if what != What::Leases {
            each_state_of_hosts(holders, export, what, &mut add);
        }
    }
    entries
}

/// A client or a host, as it is listed beside what it holds.
struct Holder<'a> {
    id: String,
    name: &'a [u8],
    address: IpAddr,
}

impl<'a> From<&'a ListedClient> for Holder<'a> {
    fn from(client: &'a ListedClient) -> Holder<'a> {
        Holder { id: format!("{:016x}", client.id), name: &client.name, address: client.address }
    }
}

impl<'a> From<&'a ListedHost> for Holder<'a> {
    fn from(host: &'a ListedHost) -> Holder<'a> {
        Holder { id: host_id(host), name: &host.name, address: host.address }
    }
}

/// Takes a client, a file, and what the client holds of it.
type Add<'a> = &'a mut dyn FnMut(Option<Holder<'_>>, &Handle, Value);

fn each_lease(export: &Listed, clients: &[ListedClient], add: Add<'_>) {
    let by_holder: HashMap<HolderId, &ListedClient> =
        clients.iter().map(|client| (client.holder, client)).collect();
    let mut behind: Option<LeaseId> = None;
    loop {
        let leases = export.arbiter.leases(behind, LEASES_AT_ONCE);
        for lease in &leases {
            let kind = match (lease.kind, lease.directory) {
                (LeaseKind::Write, _) => "write",
                (_, true) => "directory",
                (_, false) => "read",
            };
            let recalled = lease.recalled.map(|since| since.as_secs());
            let held = json!({ "kind": kind, "recalled_s": recalled });
            add(by_holder.get(&lease.holder).map(|client| Holder::from(*client)), &lease.handle, held);
        }
        let Some(last) = leases.last() else { return };
        behind = Some(last.id);
    }
}

fn each_state(holders: &Holders, export: &Listed, what: What, clients: &[ListedClient], add: Add<'_>) {
    for client in clients {
        for state in holders.front.list_states(client.id).iter().filter(|state| state.export == export.id) {
            if let Some(held) = state_entry(&state.held, what) {
                add(Some(client.into()), &state.handle, held);
            }
        }
    }
}

fn each_state_of_hosts(holders: &Holders, export: &Listed, what: What, add: Add<'_>) {
    for host in &holders.front.list_hosts() {
        let states = holders.front.list_host_states(host.holder);
        for state in states.iter().filter(|state| state.export == export.id) {
            if let Some(held) = state_entry(&state.held, what) {
                add(Some(host.into()), &state.handle, held);
            }
        }
    }
}

fn state_entry(held: &Held, what: What) -> Option<Value> {
    match (held, what) {
        (Held::Open { access, deny }, What::Opens) => {
            Some(json!({ "access": share(*access), "deny": share(*deny) }))
        }
        (Held::Locks { owner }, What::Locks) => Some(json!({ "owner": owner_text(owner) })),
        _ => None,
    }
}

fn share(share: Share) -> &'static str {
    match (share.contains(Share::READ), share.contains(Share::WRITE)) {
        (true, true) => "read-write",
        (true, false) => "read",
        (false, true) => "write",
        (false, false) => "none",
    }
}

fn owner_text(owner: &Bytes) -> String {
    path::show(owner)
}

/// Is the path the given one, or below it?
fn is_in(at: &[u8], directory: &[u8]) -> bool {
    directory == b"/" || at.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}

async fn revoke(holders: &Holders, wanted: &str) -> Result<Value, String> {
    let (clients, hosts) = (holders.front.list_clients(), holders.front.list_hosts());
    let clients: Vec<_> = clients.iter().filter(|client| is_named(&Holder::from(*client), wanted)).collect();
    let hosts: Vec<_> = hosts.iter().filter(|host| is_named(&Holder::from(*host), wanted)).collect();
    let (revoked, name, address) = match (&clients[..], &hosts[..]) {
        ([client], []) => {
            holders.front.revoke(client.id).await;
            (client_entry(client), &client.name, client.address)
        }
        ([], [host]) => {
            holders.front.revoke_host(host.holder).await;
            (host_entry(host), &host.name, host.address)
        }
        ([], []) => {
            return Err(format!(
                "no client has the id, name or address {wanted}; see: leasehold clients DIR"
            ));
        }
        _ => {
            let count = clients.len() + hosts.len();
            return Err(format!("{count} clients are at {wanted}; give the id of one of them"));
        }
    };
    tracing::warn!("{} at {address} was revoked by an administrator", path::show(name));
    Ok(json!({ "revoked": revoked }))
}

fn is_named(holder: &Holder<'_>, wanted: &str) -> bool {
    holder.id == wanted
        || path::show(holder.name) == wanted
        || wanted.parse::<IpAddr>().is_ok_and(|address| address == holder.address)
}

/// `leasehold clients`
pub async fn clients(arguments: &Holding) -> Result<(), Failure> {
    ask(&arguments.directory, HoldersRequest::Clients, arguments.json, client_line).await
}

/// `leasehold opens`, `locks` and `leases`
pub async fn held(arguments: &crate::cli::HoldingOf, what: What) -> Result<(), Failure> {
    use std::os::unix::ffi::OsStrExt;
    let given = arguments.path.as_ref().map(|given| path::show(&path::read(given.as_bytes())));
    let request = HoldersRequest::Held { what, path: given };
    ask(&arguments.of.directory, request, arguments.of.json, held_line).await
}

/// `leasehold revoke`
pub async fn take(arguments: &Revoke) -> Result<(), Failure> {
    let request = HoldersRequest::Revoke { client: arguments.client.clone() };
    ask(&arguments.of.directory, request, arguments.of.json, |_| String::new()).await
}

/// Sends a request, and prints the answer: each line as JSON, or each entry as text.
async fn ask(
    directory: &Path,
    request: HoldersRequest,
    json: bool,
    text: fn(&Value) -> String,
) -> Result<(), Failure> {
    let Some(mut asked) = Asked::of(directory, &Request::Holders(request)).await? else {
        let directory = directory.display();
        return Err(Failure(format!(
            "nothing runs on {directory}; name the state directory of a running serve, or the cache directory of a proxy"
        )));
    };
    while let Some(line) = asked.line().await? {
        if let Some(error) = line["error"].as_str() {
            return Err(Failure(error.to_owned()));
        }
        if json {
            crate::output::line(format_args!("{line}"));
        } else if let Some(entry) = line.get("entry") {
            crate::output::line(text(entry));
        } else if let Some(revoked) = line.pointer("/done/revoked") {
            crate::output::line(format_args!("revoked: {}", client_line(revoked)));
        }
        if line.get("done").is_some() {
            return Ok(());
        }
    }
    Err(Failure("the answer ended early; ask again".to_owned()))
}

fn word<'v>(entry: &'v Value, field: &str) -> &'v str {
    entry[field].as_str().unwrap_or("-")
}

fn client_line(entry: &Value) -> String {
    let number = |field: &str| entry[field].as_u64().unwrap_or(0);
    let courtesy = if entry["courtesy"] == true { " (expired)" } else { "" };
    let revoked = match number("revoked") {
        0 => String::new(),
        revoked => format!(" ({revoked} revoked)"),
    };
    format!(
        "{}  {:<15}  v{:<4}  {:>5} opens {:>5} locks {:>5} leases{revoked}  seen {} ago{courtesy}  {}",
        word(entry, "id"),
        word(entry, "address"),
        word(entry, "version"),
        number("opens"),
        number("locks"),
        number("leases"),
        ago(number("silent_s")),
        word(entry, "name"),
    )
}

fn held_line(entry: &Value) -> String {
    let what = if entry.get("kind").is_some() {
        let recalled = entry["recalled_s"].as_u64().map(|seconds| format!(", recalled {} ago", ago(seconds)));
        format!("{}{}", word(entry, "kind"), recalled.unwrap_or_default())
    } else if entry.get("access").is_some() {
        match word(entry, "deny") {
            "none" => word(entry, "access").to_owned(),
            deny => format!("{}, denies {deny}", word(entry, "access")),
        }
    } else {
        format!("owner {}", word(entry, "owner"))
    };
    let at = entry["path"].as_str().unwrap_or("(a file whose name is not known)");
    let export = word(entry, "export");
    format!("{export}  {at}  {what}  {}  {}", word(entry, "address"), word(entry, "name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_its_directories() {
        assert!(is_in(b"/a/b", b"/a") && is_in(b"/a", b"/a") && is_in(b"/a", b"/"));
        assert!(!is_in(b"/ab", b"/a") && !is_in(b"/a", b"/a/b"));
    }

    #[test]
    fn a_line_says_who_holds_what() {
        let client = json!({
            "id": "00000001", "address": "10.0.0.5", "version": "4.1+", "opens": 2, "locks": 0, "leases": 27,
            "silent_s": 130, "courtesy": true, "name": "Linux NFSv4.2 farm7",
        });
        assert_eq!(
            client_line(&client),
            "00000001  10.0.0.5         v4.1+      2 opens     0 locks    27 leases  seen 2 min ago (expired)  Linux NFSv4.2 farm7"
        );
        let mut client = client;
        client["revoked"] = json!(3);
        assert!(client_line(&client).contains("27 leases (3 revoked)  seen"));
        let lease = json!({
            "kind": "write", "recalled_s": 3, "export": "/srv", "path": "/a b", "address": "10.0.0.5", "name": "farm7",
        });
        assert_eq!(held_line(&lease), "/srv  /a b  write, recalled 3 s ago  10.0.0.5  farm7");
        let open = json!({ "access": "read", "deny": "none", "export": "/srv", "path": null, "address": null, "name": null });
        assert_eq!(held_line(&open), "/srv  (a file whose name is not known)  read  -  -");
    }
}
