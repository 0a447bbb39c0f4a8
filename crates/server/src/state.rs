//! The state of version 4 clients: their identity, their sessions, and the state they hold.
//!
//! [`clients`], [`sessions`], [`stateids`], [`owners`] and [`grace`] are pure tables. They share one lock
//! that is never held across an `await`. The operations of `nfs4::op` update the tables and the file
//! systems together. This module itself calls no file system and no client.
//!
//! [`records`] is the part that survives a restart. [`stateless`] delays requests of v2 and v3, which have
//! no state of their own, during grace. [`capacity`] decides whose state goes when a limit is reached;
//! `shared` gives it back.

pub(crate) mod capacity;
mod channel;
pub(crate) mod clients;
mod closed;
pub(crate) mod current;
mod early;
pub(crate) mod footprint;
pub(crate) mod grace;
mod host_records;
pub(crate) mod hosts;
mod ids;
mod listing;
pub(crate) mod maker;
pub(crate) mod names;
pub(crate) mod owners;
mod peers;
mod records;
mod replica;
pub(crate) mod sessions;
mod slot;
pub(crate) mod stateids;
mod stateless;
pub(crate) mod turns;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use protocol::nfs4::{Clientid, Limited, Status};
use tokio::time::Instant;
use vfs::{HolderId, LeaseKind, Share};

use clients::{Client, ClientName, Clients, Generation};
use closed::Closed;
use early::Early;
use grace::{Claim, Grace};
use hosts::{HostName, Hosts};
use ids::IdKey;
use owners::Owners;
use peers::Peers;
use records::{Before, Holders, Records, ServerId};
use replica::Replicated;
use sessions::Sessions;
use stateids::{FileKey, Kind, Stateids};
use stateless::Stateless;
use turns::{Answer, Turns};

pub(crate) use slot::{Slot, retagged};

/// Numbers of version 4 clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownClients {
    /// Clients with a confirmed record.
    pub known: usize,
    /// The courtesy clients among them: their lease has expired.
    pub courtesy: usize,
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    pub use super::clients::fuzzing::clients;
    pub use super::owners::fuzzing::owners;
    pub use super::sessions::fuzzing::sessions;
    pub use super::stateids::fuzzing::states;
}

pub use capacity::Bounds;
pub(crate) use capacity::{Below, Capacity, Scarce};
pub(crate) use channel::Channel;
pub(crate) use early::Word;
pub use footprint::Footprint;
pub use listing::{Held, ListedClient, ListedState};
pub use replica::Replica;

/// The parameters of the v4 client state.
#[derive(Clone, Debug)]
pub struct StateOptions {
    /// An existing directory for the durable record of clients. Without one, clients cannot reclaim after a
    /// restart.
    pub directory: Option<PathBuf>,
    /// How long a client's state lasts after the client last renewed its lease.
    pub lease: Duration,
    /// How long clients may reclaim after a restart. The server extends it to the longest lease of earlier
    /// incarnations.
    pub grace: Duration,
    /// How long the server holds a v2 or v3 request that waits for the end of grace, before it asks the
    /// client to retry. The same limit applies to an OPEN for which there is no capacity.
    pub patience: Duration,
    /// Limits on the amount of state.
    pub bounds: Bounds,
    /// Where another machine finds the record, to take this server over.
    pub replica: Option<Arc<dyn Replica>>,
}

impl Default for StateOptions {
    /// Linux's 90 s for lease and grace, and no record. Requests wait as long as those that wait for a
    /// recall.
    fn default() -> StateOptions {
        let lease = Duration::from_secs(90);
        let patience = Duration::from_secs(5);
        let bounds = Bounds::default();
        StateOptions { directory: None, lease, grace: lease, patience, bounds, replica: None }
    }
}

/// All clients with their state.
#[derive(Debug)]
pub(crate) struct State {
    tables: Mutex<Tables>,
    records: Option<Replicated>,
    /// One change of the recorded hosts at a time.
    host_turn: tokio::sync::Mutex<()>,
    epoch: u32,
    server: ServerId,
    pub(crate) turns: Turns,
    pub(crate) peers: Peers,
    stateless: Stateless,
    pub(crate) capacity: Capacity,
    lease: Duration,
    patience: Duration,
    started: AtomicBool,
}

/// The periodic work that is due.
#[derive(Debug)]
pub(crate) struct Due {
    /// It is time to end grace.
    pub(crate) grace_ends: bool,
    /// It is time to end the grace period of hosts that lock through NLM.
    pub(crate) lock_grace_ends: bool,
    /// The clients whose courtesy time is over.
    pub(crate) overdue: Vec<Clientid>,
}

/// The tables. They change together, under one lock.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) clients: Clients,
    pub(crate) sessions: Sessions<Channel>,
    pub(crate) stateids: Stateids,
    pub(crate) owners: Owners<Answer>,
    pub(crate) grace: Grace,
    pub(crate) hosts: Hosts,
    /// Callbacks that named a lease before the OPEN that gets the lease has returned.
    pub(crate) early: Early,
    /// Opens that were closed a moment ago.
    pub(crate) closed: Closed,
}

impl Tables {
    /// Does the client hold any state that would be lost with its record?
    pub(crate) fn has_state(&self, client: Clientid) -> bool {
        self.stateids.has(client)
    }

    /// The client for which a compound acts, by the holder that its session or its state has shown.
    pub(crate) fn client_of(&self, holder: Option<HolderId>) -> Option<&Client> {
        self.clients.holder(holder?)
    }
}

impl Default for State {
    /// In memory alone.
    fn default() -> State {
        // If the system has no randomness, the current time is the best way to tell incarnations apart.
        let (epoch, server) = records::first_incarnation().unwrap_or_else(|_| {
            let now = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
            (now.as_secs() as u32, u128::to_be_bytes(now.as_nanos()))
        });
        State::new(epoch, server, None, &StateOptions::default())
    }
}

impl State {
    /// The state after a start: empty, except for the clients that may reclaim according to the record.
    pub(crate) fn open(options: &StateOptions) -> io::Result<State> {
        let Some(directory) = &options.directory else {
            let (epoch, server) = records::first_incarnation()?;
            return Ok(State::new(epoch, server, None, options));
        };
        let records = Records::open(directory, options.lease)?;
        Ok(State::new(records.epoch(), records.server(), Some(records), options))
    }

    fn new(epoch: u32, server: ServerId, records: Option<Records>, options: &StateOptions) -> State {
        let recorded = records.as_ref().map(|records| records.clients().clone()).unwrap_or_default();
        let hosts =
            recorded.iter().filter_map(|(name, before)| Some((HostName::parse(name)?, before.holder)));
        let hosts: Vec<_> = hosts.collect();
        let is_client = |name: &ClientName| name.generation != Generation::LockManager;
        let before: Holders = recorded.into_iter().filter(|(name, _)| is_client(name)).collect();
        let grace = records.as_ref().map_or(options.grace, |records| records.lease().max(options.grace));
        if !before.is_empty() || !hosts.is_empty() {
            let (clients, hosts) = (before.len(), hosts.len());
            tracing::info!(clients, hosts, seconds = grace.as_secs(), "grace period begins");
        }
        let (bounds, ids) = (options.bounds, IdKey::random());
        let stateless = Stateless::new((!before.is_empty()).then_some(grace), options.patience);
        State {
            tables: Mutex::new(Tables {
                clients: Clients::new((epoch, ids), options.lease, before.clone()).up_to(bounds.clients),
                sessions: Sessions::new(ids).up_to(bounds.sessions, bounds.cached_bytes),
                stateids: Stateids::new((epoch, ids)).up_to(bounds.states, bounds.delegations),
                owners: Owners::default().up_to(bounds.owners),
                grace: Grace::new(before.into_keys(), Instant::now(), grace),
                hosts: Hosts::new(hosts, Instant::now(), grace),
                early: Early::default(),
                closed: Closed::default(),
            }),
            records: records.map(|records| Replicated::new(records, options.replica.clone())),
            host_turn: tokio::sync::Mutex::default(),
            epoch,
            server,
            turns: Turns::default(),
            peers: Peers::default(),
            stateless,
            capacity: Capacity::default(),
            lease: options.lease,
            patience: options.patience,
            started: AtomicBool::new(false),
        }
    }

    /// How long a client's state lasts after its last renewal, in seconds: `lease_time`.
    pub(crate) fn lease_seconds(&self) -> u32 {
        self.lease.as_secs().max(1) as u32
    }

    /// Until when an OPEN that arrives now waits if there is no capacity for it.
    pub(crate) fn patience(&self) -> Instant {
        Instant::now() + self.patience
    }

    /// Is the grace period on? Then clients reclaim, and nothing may change that could belong to one of
    /// them.
    pub(crate) fn in_grace(&self) -> bool {
        self.tables().grace.is_on()
    }

    /// Do hosts that lock through NLM reclaim, or clients of version 4? Then nobody gets a new byte-range
    /// lock.
    pub(crate) fn in_lock_grace(&self) -> bool {
        let tables = self.tables();
        tables.grace.is_on() || tables.hosts.in_grace()
    }

    /// Do hosts that lock through NLM reclaim? Then no client gets a new delegation either, because a client
    /// with a delegation locks without a call.
    pub(crate) fn do_hosts_reclaim(&self) -> bool {
        self.tables().hosts.in_grace()
    }

    /// During grace names do not change, because a client may still reclaim a delegation of the file (RFC
    /// 8881, section 8.4.2.1).
    ///
    /// # Errors
    /// `Grace`.
    pub(crate) fn no_grace(&self) -> Result<(), Status> {
        if self.in_grace() { Err(Status::Grace) } else { Ok(()) }
    }

    /// During grace only a client that has the file open for writing may change its attributes. Then no
    /// other client has a delegation of the file to reclaim.
    ///
    /// # Errors
    /// `Grace`.
    pub(crate) fn may_change_attributes(
        &self,
        holder: Option<HolderId>,
        file: &FileKey,
    ) -> Result<(), Status> {
        let tables = self.tables();
        if !tables.grace.is_on() {
            return Ok(());
        }
        let client = tables.client_of(holder).map(|client| client.id);
        let is_writer = tables.stateids.of_file(file).any(|held| {
            Some(held.client) == client
                && match &held.kind {
                    Kind::Open { access, .. } => access.contains(Share::WRITE),
                    Kind::Delegation { kind, .. } => *kind == LeaseKind::Write,
                    Kind::Lock { .. } => false,
                }
        });
        if is_writer { Ok(()) } else { Err(Status::Grace) }
    }

    /// The tables, locked. Never hold the guard across an `await`.
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock()
    }

    /// The memory of the tables.
    pub(crate) fn footprint(&self) -> Footprint {
        let tables = self.tables();
        Footprint {
            clients: tables.clients.bytes(),
            sessions: tables.sessions.bytes(),
            replies: tables.sessions.reply_bytes(),
            states: tables.stateids.bytes(),
            owners: tables.owners.bytes(),
        }
    }

    /// The current numbers of clients.
    pub(crate) fn clients(&self) -> KnownClients {
        let (tables, now) = (self.tables(), Instant::now());
        let is_courtesy = |client: &&Client| tables.clients.is_courtesy(client.id, now);
        let (known, courtesy) =
            (tables.clients.iter().count(), tables.clients.iter().filter(is_courtesy).count());
        KnownClients { known, courtesy }
    }

    /// The name of this server, the same in every incarnation: `so_major_id` and the scope.
    pub(crate) fn server_name(&self) -> Limited {
        let text = format!("{:032x}", u128::from_be_bytes(self.server));
        Limited::new(text.into_bytes()).unwrap_or_default()
    }

    /// The background tasks are being started. False if they were started before.
    pub(crate) fn start(&self) -> bool {
        !self.started.swap(true, Ordering::Relaxed)
    }

    /// Have the background tasks been started?
    pub(crate) fn has_started(&self) -> bool {
        self.started.load(Ordering::Relaxed)
    }

    /// How long a client's state lasts after its last renewal.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Forgets idle owners, and says what else is due.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let mut tables = self.tables();
        let Tables { clients, stateids, owners, grace, hosts, .. } = &mut *tables;
        let overdue = clients.overdue(now, |client| stateids.has(client));
        owners.forget_idle(now, self.lease, |name| stateids.has_of(name));
        let grace_ends = grace.tick(now);
        Due { grace_ends, lock_grace_ends: hosts.tick(now, grace.is_on()), overdue }
    }

    /// May the client take or reclaim an open or a lock? If so, the client is in the durable record from
    /// now on, because reclaiming needs the record.
    pub(crate) async fn claim(&self, holder: Option<HolderId>, claim: Claim) -> Result<(), Status> {
        let unrecorded = {
            let tables = self.tables();
            let client = holder.and_then(|holder| tables.clients.holder(holder)).ok_or(Status::Expired)?;
            tables.grace.admit(&client.name, client.reclaim_complete, claim)?;
            // RECLAIM_COMPLETE records a client with sessions. Before it, the client may have reclaimed
            // only a part.
            let minor0 = client.name.generation == Generation::Minor0;
            (minor0 && !client.recorded).then_some((client.id, client.name.clone()))
        };
        match unrecorded {
            Some((id, name)) => self.record(id, name).await,
            None => Ok(()),
        }
    }

    /// Enters a client into the durable record.
    ///
    /// # Errors
    /// `Delay` if the record cannot be written. The server gives out no state that could not be reclaimed.
    pub(crate) async fn record(&self, id: Clientid, name: ClientName) -> Result<(), Status> {
        // Set the flag before writing, so that an end of grace meanwhile keeps the client in the record.
        self.set_recorded(id, true);
        let client = self.tables().clients.confirmed(id).map(Before::from).ok_or(Status::Expired)?;
        self.write_records(move |records| records.add(&name, client)).await.map_err(|error| {
            tracing::error!(%error, "the record of NFSv4 clients cannot be written");
            self.set_recorded(id, false);
            Status::Delay
        })
    }

    fn set_recorded(&self, id: Clientid, recorded: bool) {
        if let Some(client) = self.tables().clients.confirmed_mut(id) {
            client.recorded = recorded;
        }
    }

    /// Removes a client from the durable record.
    pub(crate) async fn unrecord(&self, name: ClientName) -> io::Result<()> {
        self.write_records(move |records| records.remove(&name)).await
    }

    /// Stores the record where another machine finds it, as it is after the start: with a new epoch.
    ///
    /// # Errors
    /// If that place does not take it.
    pub(crate) async fn replicate(&self) -> io::Result<()> {
        self.write_records(|_| Ok(())).await
    }

    /// Writes to the durable record on a blocking thread, and to the copy.
    async fn write_records(
        &self,
        job: impl FnOnce(&mut Records) -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        match &self.records {
            Some(records) => records.write(job).await,
            None => Ok(()),
        }
    }

    /// Ends grace, after the file systems have dropped the state that was not reclaimed. A client that has
    /// reclaimed nothing by now leaves the record, so that it cannot reclaim in the next incarnation
    /// either.
    pub(crate) async fn end_grace(&self) {
        let names = {
            let tables = self.tables();
            let recorded = tables.clients.iter().filter(|client| client.recorded);
            let recorded = recorded.map(|client| (client.name.clone(), Before::from(client)));
            let hosts = tables.hosts.iter().map(|(host, holder)| (host.record(), Before::host(holder)));
            recorded.chain(hosts).collect()
        };
        let recorded = self.write_records(move |records| records.keep(names)).await;
        match &recorded {
            Ok(()) => tracing::info!("grace period is over"),
            Err(error) => tracing::error!(%error, "the record of NFSv4 clients cannot be written"),
        }
        let mut tables = self.tables();
        tables.grace.end(recorded.is_ok());
        if recorded.is_ok() {
            tables.clients.end_grace();
            self.stateless.grace_is_over();
        }
    }
}
