//! The process of a virtual server, as its member has started it ([`super::keeper`]).
//!
//! - **The term.** The process may speak until the end of the member's term (`rpc::term`). New ends come on
//!   standard input, a line each: nanoseconds of `CLOCK_BOOTTIME`. If the input ends, the member has ended,
//!   and so does this process.
//! - **The epoch.** The state directory remembers the epoch of the virtual server that its files are of. In
//!   the same epoch, this process is a proxy that was started again. In another one, other members have run
//!   the server meanwhile: what the files say of clients, and of what is held at the origins, is out of date.
//!   Then both come from the store, and this process goes on as if it had run before. It has the same client
//!   owner and verifier at each origin, which has kept all opens, locks and delegations meanwhile.
//! - **The record of clients, and what is held at the origins**, are kept in the store too ([`held`]). They
//!   are written there on the condition that nobody has taken the server since.

mod held;
mod others;

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cluster::etcd::Etcd;
use cluster::records::Keys;
use cluster::store::{Change, Condition, Entry, Store, StoreError, Transaction};
use serde::{Deserialize, Serialize};
use server::{Export, ExportOptions, Replica};

use crate::Failure;
use crate::cli::Tls;
use crate::config::cluster::ClusterConfig;
use crate::config::origins::OriginConfig;
use crate::proxy::make_state;
use crate::state;

/// The variable that has the order.
pub const ENVIRONMENT: &str = "LEASEHOLD_VIRTUAL_SERVER";
/// How often the end of the term is looked at, besides before each message.
const LOOK: Duration = Duration::from_millis(20);
/// The files of a state directory that are of one epoch.
const OF_EPOCH: [&str; 3] = ["nfs4-clients", "replies", "replies.old"];
/// The file in the state directory of an origin that tells that other members have run the virtual server
/// since the index of the cache there was written. It is removed when the cache has heard of it.
const TAKEN_OVER: &str = "taken-over";
/// The file in the state directory of an origin that tells that an earlier member held something there.
const HELD: &str = "held";
/// How often the record is asked for at the start. Each attempt takes up to 2 s.
const ATTEMPTS: usize = 3;

/// An order of the member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The cluster.
    pub cluster: String,
    /// The virtual server.
    pub address: String,
    /// Its epoch.
    pub epoch: u64,
    /// The revision of its record in the store.
    pub changed_at: u64,
    /// The end of the term.
    pub until_nanos: u64,
    /// Tells apart two lives of the member.
    pub life: String,
    /// The digest of the configuration of the member.
    pub digest: String,
}

impl Order {
    /// The order, if a member has started this process.
    ///
    /// # Errors
    /// If the variable has something else.
    pub fn from_environment() -> Result<Option<Order>, Failure> {
        let Ok(text) = std::env::var(ENVIRONMENT) else { return Ok(None) };
        let wrong = |_| Failure(format!("{ENVIRONMENT} is for the processes of a cluster alone: unset it"));
        serde_json::from_str(&text).map(Some).map_err(wrong)
    }
}

/// The part of a proxy that belongs to its virtual server.
#[derive(Debug)]
pub struct VirtualServer {
    order: Order,
    keys: Keys,
    store: Etcd,
    /// All origins of the cluster.
    origins: Vec<Placed>,
    /// The options of exports of the whole file, at the start.
    whole: ExportOptions,
    /// The copy of the record of clients.
    kept: Copy,
}

/// An origin of the cluster.
#[derive(Debug)]
struct Placed {
    origin: OriginConfig,
    /// Its virtual server.
    home: String,
    /// Where this process asks for it: there, or at its virtual server. None if clients have to go there.
    asked: Option<client::Url>,
}

/// A copy in the store. Its writes follow each other: one that has no answer cannot be carried out after a
/// later one.
#[derive(Debug)]
struct Copy {
    turn: String,
    /// The revision of the key `turn`, if it is known.
    changed_at: tokio::sync::Mutex<Option<u64>>,
}

impl Copy {
    fn new(turn: String) -> Copy {
        Copy { turn, changed_at: tokio::sync::Mutex::new(None) }
    }
}

impl VirtualServer {
    /// Obeys the term from now on, and prepares the directory of the process.
    ///
    /// # Errors
    /// If the store does not answer, or a file cannot be written.
    pub async fn begin(
        order: Order,
        config: &ClusterConfig,
        (origins, whole, tls): (Vec<OriginConfig>, ExportOptions, &Tls),
        key: Option<&Path>,
        directory: &Path,
    ) -> Result<Arc<VirtualServer>, Failure> {
        if super::digest::of(config, &origins, key)? != order.digest {
            return Err(Failure(
                "the configuration or the handle key has changed since this member was started; restart all members".into(),
            ));
        }
        rpc::term::set(Duration::from_nanos(order.until_nanos));
        std::thread::spawn(hear_of_terms);
        std::thread::spawn(watch_the_term);
        let servers: Vec<String> = config.servers.iter().map(|server| server.address.to_string()).collect();
        let place = |origin: OriginConfig| {
            let home = home(&origin, &servers);
            let asked = if home == order.address {
                Some(origin.url.clone())
            } else {
                let access = origin.access(&whole);
                let confined = crate::tls::confine(tls, access.xprtsec, &origin.path).ok();
                confined.and_then(|xprtsec| others::url(&origin, &home, &ExportOptions { xprtsec, ..access }))
            };
            Placed { origin, home, asked }
        };
        let origins = origins.into_iter().map(place).collect();
        let keys = Keys::new(&order.cluster);
        let of = VirtualServer {
            kept: Copy::new(keys.turn(&order.address, "kept")),
            keys,
            store: config.store()?,
            origins,
            whole,
            order,
        };
        of.prepare(directory).await?;
        Ok(Arc::new(of))
    }

    /// The place of a copy of what is held at an origin.
    pub fn replica(self: &Arc<VirtualServer>, url: &client::Url) -> Arc<dyn client::replica::Replica> {
        Arc::new(held::HeldAt::new(self.clone(), self.held_prefix(url)))
    }

    fn held_prefix(&self, url: &client::Url) -> String {
        self.keys.held(&self.order.address, &origin_id(url))
    }

    /// Changes a copy, on the condition that nobody has taken this server, and after all earlier writes.
    async fn write(&self, copy: &Copy, mut changes: Vec<Change>) -> io::Result<()> {
        let mut turn = copy.changed_at.lock().await;
        // It is known again when the answer is there.
        let known = match turn.take() {
            Some(known) => known,
            None => self
                .read(&copy.turn)
                .await?
                .iter()
                .find(|of| of.key == copy.turn)
                .map_or(0, |of| of.changed_at),
        };
        let server = self.keys.server(&self.order.address);
        let conditions = vec![
            Condition { key: server, changed_at: self.order.changed_at },
            Condition { key: copy.turn.clone(), changed_at: known },
        ];
        changes.push(Change::Put { key: copy.turn.clone(), value: self.order.life.clone().into_bytes() });
        let nothing = format!("{}/", copy.turn);
        match self.store.transact(&Transaction { conditions, changes, prefix: nothing }).await {
            Ok(told) if told.succeeded => {
                *turn = Some(told.revision);
                Ok(())
            }
            Ok(_) => {
                Err(io::Error::other("an earlier write came late, or another member has taken this server"))
            }
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Reads the entries with a prefix.
    async fn read(&self, prefix: &str) -> io::Result<Vec<Entry>> {
        let asking = Transaction { prefix: prefix.to_owned(), ..Transaction::default() };
        let mut attempt = 1;
        loop {
            match self.store.transact(&asking).await {
                Ok(told) => return Ok(told.entries),
                Err(StoreError::Unknown(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }

    /// The origins of this process, of all those of the file. Those of the other virtual servers are among
    /// them as far as clients of versions 2 and 3 can use them here.
    pub fn of_process(&self, tables: Vec<OriginConfig>) -> Vec<OriginConfig> {
        let here = |table: OriginConfig| {
            let placed = self.origins.iter().find(|placed| placed.origin.path == table.path)?;
            if placed.home == self.order.address {
                return Some(table);
            }
            let places = others::locations(&table.path, &placed.home);
            Some(table.of_other(placed.asked.clone()?, places))
        };
        tables.into_iter().filter_map(here).collect()
    }

    /// The exports of the others that no client can use here: referrals alone.
    pub fn referrals(&self) -> Vec<Export> {
        let export = |Placed { origin, home, .. }: &Placed| {
            let refer = others::locations(&origin.path, home);
            let options = ExportOptions { refer, ..origin.access(&self.whole) };
            let id = server::exports::ExportId::of(&origin.url.to_string());
            Export::new(id, origin.path.clone(), Arc::new(vfs::NullFileSystem), options)
        };
        self.origins.iter().filter(|placed| placed.asked.is_none()).map(export).collect()
    }

    /// Reads what an earlier member held at these places. The keys of turns name those where it held
    /// something at all.
    async fn held(&self, urls: &[client::Url]) -> io::Result<Vec<BTreeMap<Vec<u8>, Vec<u8>>>> {
        let turns = self.read(&self.keys.turn(&self.order.address, "")).await?;
        let mut held = Vec::new();
        for url in urls {
            let turn = self.keys.turn(&self.order.address, &origin_id(url));
            let is_there = turns.iter().any(|entry| entry.key == turn);
            let prefix = self.held_prefix(url);
            held.push(if is_there { held::read(self, &prefix).await? } else { BTreeMap::new() });
        }
        Ok(held)
    }

    /// Makes the files of the directory those of this epoch.
    async fn prepare(&self, directory: &Path) -> Result<(), Failure> {
        let state = make_state(directory)?;
        // The process of an earlier member may not have ended yet.
        let _lock = state::lock_after(&state, directory).await?;
        let failed = |error: io::Error| {
            Failure(format!("cannot prepare {}: {error}; make it writable", directory.display()))
        };
        let silent = |error: io::Error| {
            Failure(format!("the records of {} are not in reach: {error}", self.order.address))
        };
        // A store that was restored may have an epoch a second time.
        let epoch = format!("{} {} {}", self.order.cluster, self.order.epoch, self.order.life);
        let file = state.join("epoch");
        let is_same = std::fs::read_to_string(&file).is_ok_and(|found| found == epoch);
        let urls: Vec<client::Url> = self.origins.iter().filter_map(|placed| placed.asked.clone()).collect();
        let held = if is_same { Vec::new() } else { self.held(&urls).await.map_err(silent)? };
        let held = held.into_iter().map(Some).chain(std::iter::repeat(None));
        for (url, held) in urls.iter().zip(held) {
            let of_origin = make_state(&crate::proxy::directory_of(directory, url))?;
            let owner = format!("leasehold {} {} {url}", self.order.cluster, self.order.address);
            // RFC 8881 allows 1,024 bytes.
            let owner: String = owner.chars().take(500).collect();
            std::fs::write(of_origin.join("client.owner"), owner).map_err(failed)?;
            let Some(held) = held else { continue };
            if !held.is_empty() {
                std::fs::write(of_origin.join(HELD), "").map_err(failed)?;
            }
            // Locks over version 3 are those of this host, and stay to be given up.
            remove(&of_origin.join("client.state")).map_err(failed)?;
            std::fs::write(of_origin.join(TAKEN_OVER), "").map_err(failed)?;
            match client::replica::import(&of_origin.join("client.state"), held) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    crate::output::tell(format_args!(
                        "what an earlier member held at {url} is not taken over: its record is damaged; opens and locks are made anew"
                    ));
                }
                imported => imported.map_err(failed)?,
            }
        }
        if is_same {
            return Ok(());
        }
        for name in OF_EPOCH {
            remove(&state.join(name)).map_err(failed)?;
        }
        let key = self.keys.kept(&self.order.address);
        let kept = self.read(&key).await.map_err(silent)?;
        if let Some(record) = kept.into_iter().find(|entry| entry.key == key) {
            std::fs::write(state.join("nfs4-clients"), record.value).map_err(failed)?;
        }
        std::fs::write(&file, epoch).map_err(failed)
    }
}

impl Replica for VirtualServer {
    fn store(&self, record: Vec<u8>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        let changes = vec![Change::Put { key: self.keys.kept(&self.order.address), value: record }];
        Box::pin(self.write(&self.kept, changes))
    }
}

/// The name of an origin in the keys of the store.
fn origin_id(url: &client::Url) -> String {
    format!("{:08x}", server::exports::ExportId::of(&url.to_string()).0)
}

/// Have other members run the virtual server since the index of the cache in this directory was written?
pub fn is_taken_over(state: &Path) -> bool {
    state.join(TAKEN_OVER).exists()
}

/// Has an earlier process held something at the origin of this cache, or may it have?
pub fn was_held(state: &Path) -> bool {
    ["client.state", HELD].iter().any(|name| state.join(name).exists())
}

/// The cache has heard of it.
///
/// # Errors
/// If the file cannot be removed.
pub fn forget_taken_over(state: &Path) -> io::Result<()> {
    remove(&state.join(TAKEN_OVER))
}

/// The virtual server of an origin: the one that the file names, or one by rendezvous hashing.
pub fn home(origin: &OriginConfig, servers: &[String]) -> String {
    let named = origin.server.map(|server| server.to_string());
    named.unwrap_or_else(|| cluster::assign::home(&origin.path, servers).unwrap_or_default().to_owned())
}

fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn hear_of_terms() {
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        if let Ok(until) = line.trim().parse() {
            rpc::term::set(Duration::from_nanos(until));
        }
    }
    rpc::term::end();
}

fn watch_the_term() {
    loop {
        rpc::term::check();
        std::thread::sleep(LOOK.min(rpc::term::left().unwrap_or(LOOK)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_passed_on_as_text() {
        let order = Order {
            cluster: "site".into(),
            address: "10.0.0.5:2049".into(),
            epoch: 3,
            changed_at: 17,
            until_nanos: u64::MAX,
            life: "00ff".into(),
            digest: "d".into(),
        };
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
    }
}
