//! The process of a virtual server, as its member has started it ([`super::keeper`]).
//!
//! - **The term.** The process may speak until the end of the member's term (`rpc::term`). New ends come on
//!   standard input, a line each: nanoseconds of `CLOCK_BOOTTIME`. If the input ends, the member has ended,
//!   and so does this process.
//! - **The epoch.** The state directory remembers the epoch of the virtual server that its files are of. In
//!   the same epoch, this process is a proxy that was started again. In another one, other members have run
//!   the server meanwhile: what the files say of clients, and of what is held at the origins, is out of date.
//!   Then both come from the store, and this process goes on as if it had run before: with the same client
//!   owner and verifier at each origin, which has kept all opens, locks and delegations meanwhile.
//! - **The record of clients, and what is held at the origins**, are kept in the store too ([`held`]). They
//!   are written there on the condition that nobody has taken the server since.

mod held;

use std::io::{self, BufRead};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cluster::etcd::Etcd;
use cluster::records::Keys;
use cluster::store::{Change, Condition, Entry, Store, StoreError, Transaction};
use serde::{Deserialize, Serialize};
use server::{Export, ExportOptions, Location, Locations, Replica};

use crate::Failure;
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
    /// All origins of the cluster, with the virtual server of each.
    origins: Vec<(OriginConfig, String)>,
    /// Another member has run the server since this one did.
    taken_over: bool,
}

impl VirtualServer {
    /// Obeys the term from now on, and prepares the directory of the process.
    ///
    /// # Errors
    /// If the store does not answer, or a file cannot be written.
    pub async fn begin(
        order: Order,
        config: &ClusterConfig,
        origins: Vec<OriginConfig>,
        directory: &Path,
    ) -> Result<Arc<VirtualServer>, Failure> {
        rpc::term::set(Duration::from_nanos(order.until_nanos));
        std::thread::spawn(hear_of_terms);
        std::thread::spawn(watch_the_term);
        let servers: Vec<String> = config.servers.iter().map(|server| server.address.to_string()).collect();
        let origins = origins.into_iter().map(|origin| {
            let home = home(&origin, &servers);
            (origin, home)
        });
        let mut of = VirtualServer {
            keys: Keys::new(&order.cluster),
            store: Etcd::new(&config.endpoints),
            origins: origins.collect(),
            taken_over: false,
            order,
        };
        of.taken_over = of.prepare(directory).await?;
        Ok(Arc::new(of))
    }

    /// Has another member run the server since this one did? Then caches know less than they think.
    pub fn is_taken_over(&self) -> bool {
        self.taken_over
    }

    /// The place of a copy of what is held at an origin.
    pub fn replica(self: &Arc<VirtualServer>, url: &client::Url) -> Arc<dyn client::replica::Replica> {
        Arc::new(held::HeldAt { server: self.clone(), prefix: self.held_prefix(url) })
    }

    fn held_prefix(&self, url: &client::Url) -> String {
        let origin = server::exports::ExportId::of(&url.to_string());
        self.keys.held(&self.order.address, &format!("{:08x}", origin.0))
    }

    /// Carries out changes, on the condition that nobody has taken this server. Returns the entries with the
    /// prefix.
    async fn write(&self, changes: Vec<Change>, prefix: String) -> io::Result<Vec<Entry>> {
        let server = self.keys.server(&self.order.address);
        let conditions = vec![Condition { key: server, changed_at: self.order.changed_at }];
        match self.store.transact(&Transaction { conditions, changes, prefix }).await {
            Ok(told) if told.succeeded => Ok(told.entries),
            Ok(_) => Err(io::Error::other("another member has taken this server")),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// The origins of this server, of all those of the file.
    pub fn own(&self, tables: Vec<OriginConfig>) -> Vec<OriginConfig> {
        let is_own = |table: &OriginConfig| {
            self.origins.iter().any(|(origin, home)| origin.path == table.path && *home == self.order.address)
        };
        tables.into_iter().filter(is_own).collect()
    }

    /// The exports of the other servers: referrals to them.
    pub fn referrals(&self, whole: &ExportOptions) -> Vec<Export> {
        let others = self.origins.iter().filter(|(_, home)| *home != self.order.address);
        let exports = others.map(|(origin, home)| {
            let host = home.rsplit_once(':').map_or(home.as_str(), |(host, _)| host);
            let names = origin.path.split('/').filter(|name| !name.is_empty());
            let location = Location {
                hosts: vec![host.trim_matches(['[', ']']).to_owned()],
                path: names.map(str::to_owned).collect(),
            };
            let refer = Locations::of(vec![location]).unwrap_or_default();
            let options = ExportOptions { refer, ..origin.access(whole) };
            let id = server::exports::ExportId::of(&origin.url.to_string());
            Export::new(id, origin.path.clone(), Arc::new(vfs::NullFileSystem), options)
        });
        exports.collect()
    }

    /// Makes the files of the directory those of this epoch. True if they were of another one.
    async fn prepare(&self, directory: &Path) -> Result<bool, Failure> {
        let state = make_state(directory)?;
        // The process of an earlier member may not have ended yet.
        let _lock = state::lock_after(&state, directory).await?;
        let file = state.join("epoch");
        let failed = |error: io::Error| {
            Failure(format!("cannot write in {}: {error}; make it writable", state.display()))
        };
        let is_same =
            std::fs::read_to_string(&file).is_ok_and(|epoch| epoch.trim().parse() == Ok(self.order.epoch));
        for (origin, _) in self.origins.iter().filter(|(_, home)| *home == self.order.address) {
            let of_origin = make_state(&crate::proxy::directory_of(directory, &origin.url))?;
            let owner = format!("leasehold {} {} {}", self.order.cluster, self.order.address, origin.url);
            // RFC 8881 allows 1,024 bytes.
            let owner: String = owner.chars().take(500).collect();
            std::fs::write(of_origin.join("client.owner"), owner).map_err(failed)?;
            if !is_same {
                for name in ["client.state", "client.locks"] {
                    remove(&of_origin.join(name)).map_err(failed)?;
                }
                let held = held::read(self, &self.held_prefix(&origin.url)).await?;
                if !held.is_empty() {
                    client::replica::import(&of_origin.join("client.state"), held).map_err(failed)?;
                }
            }
        }
        if is_same {
            return Ok(false);
        }
        for name in OF_EPOCH {
            remove(&state.join(name)).map_err(failed)?;
        }
        if let Some(record) = self.record().await? {
            std::fs::write(state.join("nfs4-clients"), record).map_err(failed)?;
        }
        std::fs::write(&file, self.order.epoch.to_string()).map_err(failed)?;
        Ok(true)
    }

    /// The record of clients in the store.
    async fn record(&self) -> Result<Option<Vec<u8>>, Failure> {
        let key = self.keys.kept(&self.order.address);
        let asking = Transaction { prefix: key.clone(), ..Transaction::default() };
        let mut attempt = 1;
        loop {
            match self.store.transact(&asking).await {
                Ok(told) => {
                    let found = told.entries.into_iter().find(|entry| entry.key == key);
                    return Ok(found.map(|entry| entry.value));
                }
                Err(StoreError::Unknown(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(error) => return Err(Failure(format!("the record of clients is not in reach: {error}"))),
            }
        }
    }
}

impl Replica for VirtualServer {
    fn store(&self, record: Vec<u8>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + '_>> {
        let key = self.keys.kept(&self.order.address);
        let nothing = format!("{key}/");
        let changes = vec![Change::Put { key, value: record }];
        Box::pin(async move { self.write(changes, nothing).await.map(drop) })
    }
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
        };
        let text = serde_json::to_string(&order).unwrap();
        assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
    }
}
