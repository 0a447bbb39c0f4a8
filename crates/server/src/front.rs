//! The server as other crates see it. It owns what all versions share, and what each version keeps for
//! itself. `dispatch` answers the calls. No module below imports this one.

pub mod changes;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};

use protocol::nfs4::Clientid;
use vfs::HolderId;

use crate::counts::Counts;
use crate::exports::Exports;
use crate::groups::Groups;
use crate::handles::Handles;
use crate::mount::Mounts;
use crate::names::{NameDatabase, Names};
use crate::narrow::Cookies;
use crate::nfs4::Nfs4Front;
use crate::nlm::{ListedHost, Nlm};
use crate::nqnfs::{Nqnfs, NqnfsFront};
use crate::recalls;
use crate::shared::{FirstClient, Shared};
use crate::state::{Footprint, KnownClients, ListedClient, ListedState, State, StateOptions};
use crate::usage::Usage;

/// What hosts hold that lock through NLM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockManager {
    /// Client hosts.
    pub hosts: usize,
    /// Files on which a host holds a lock or a share, or waits for one.
    pub files: usize,
    /// Requests that wait for a lock, or for the client's answer to GRANTED.
    pub waiting: usize,
}

/// Answers NFS v4, NFS v3, NFS v2, NQNFS, MOUNT v1 to v3, NLM v1, v3, v4 and NSM over a table of exports.
#[derive(Debug)]
pub struct Front {
    pub(crate) shared: Arc<Shared>,
    pub(crate) nfs4: Nfs4Front,
    pub(crate) nqnfs: Arc<NqnfsFront>,
    /// Of version 2 and NQNFS.
    pub(crate) cookies: Arc<Cookies>,
    pub(crate) mounts: Mounts,
    pub(crate) nlm: Arc<Nlm>,
}

impl Front {
    /// A front over `exports` that makes and reads handles with `handles`. The state of v4 clients is kept
    /// in memory only.
    pub fn new(exports: Exports, handles: Handles) -> Arc<Front> {
        Front::over(exports, handles, State::default(), Nqnfs::default())
    }

    /// As [`Front::new`], with the state of v4 clients configured by `options`. If `options` names a
    /// directory, clients can reclaim their state from a later front that uses the same directory.
    ///
    /// # Errors
    /// If the record of clients cannot be read or written.
    pub fn with_state(
        exports: Exports,
        handles: Handles,
        options: &StateOptions,
    ) -> std::io::Result<Arc<Front>> {
        Front::with_leases(exports, handles, options, Nqnfs::default())
    }

    /// As [`Front::with_state`], with the NQNFS record that the previous incarnation left.
    ///
    /// # Errors
    /// As of [`Front::with_state`].
    pub fn with_leases(
        exports: Exports,
        handles: Handles,
        options: &StateOptions,
        nqnfs: Nqnfs,
    ) -> std::io::Result<Arc<Front>> {
        Ok(Front::over(exports, handles, State::open(options)?, nqnfs))
    }

    fn over(exports: Exports, handles: Handles, state: State, nqnfs: Nqnfs) -> Arc<Front> {
        let cookies = Arc::new(Cookies::default());
        let locks = Arc::new(OnceLock::<Weak<Nlm>>::new());
        let of_locks = locks.clone();
        let nqnfs = Arc::new_cyclic(|front: &Weak<NqnfsFront>| {
            let front = front.clone();
            let first_client = FirstClient(Box::new(move || {
                let nlm = of_locks.get().and_then(Weak::upgrade);
                if let (Some(front), Some(nlm)) = (front.upgrade(), nlm) {
                    recalls::start(&front, &nlm);
                }
            }));
            let shared = Shared::new(exports, handles, state, first_client);
            NqnfsFront::new(shared, nqnfs, cookies.clone())
        });
        let shared = nqnfs.shared.clone();
        let nlm = Arc::new(Nlm::new(shared.clone()));
        locks.get_or_init(|| Arc::downgrade(&nlm));
        let nfs4 = Nfs4Front::new(shared.clone());
        Arc::new(Front { shared, nfs4, nqnfs, cookies, mounts: Mounts::default(), nlm })
    }

    /// Must be called before the first call is answered. If no client may reclaim state from before a
    /// restart, this tells the file systems to drop the state they keep for reclaiming.
    pub async fn begin(&self) {
        if !self.shared.state.in_lock_grace() {
            self.shared.end_reclaim().await;
        }
        if self.shared.state.do_hosts_reclaim() {
            // The task that ends grace. No host may come back to start it.
            self.shared.start_tasks();
        }
    }

    /// Stores the record of clients where another machine finds it ([`StateOptions::replica`]).
    ///
    /// # Errors
    /// If that place does not take it.
    pub async fn replicate(&self) -> std::io::Result<()> {
        self.shared.state.replicate().await
    }

    /// The server listens on this address. Client hosts that held locks before a restart are told of it, so
    /// that they reclaim them.
    pub fn listening(&self, address: SocketAddr) {
        self.nlm.listening(address);
    }

    /// From now on, the supplementary groups of AUTH_SYS users are these, and not those that clients send.
    /// Must be called before the first call is answered; a second time it has no effect.
    pub fn manage_gids(&self, groups: Groups) {
        self.shared.groups.get_or_init(|| groups);
    }

    /// From now on, the names of owners that clients of version 4 send are looked up in this database.
    /// Without one, they are those of the files alone. Must be called before the first call is answered; a
    /// second time it has no effect.
    pub fn look_up_names(&self, database: impl NameDatabase) {
        self.shared.set_names(Names::new(database));
    }

    /// The users whose groups are remembered, and the look-ups in flight. None without
    /// [`Front::manage_gids`].
    pub fn groups_known(&self) -> Option<(usize, usize)> {
        self.shared.groups.get().map(Groups::counts)
    }

    /// Asks the user database again from the next call of each user on.
    pub fn forget_groups(&self) {
        if let Some(groups) = self.shared.groups.get() {
            groups.forget();
        }
    }

    /// The port of the port mappers of client hosts, if not 111. For tests, whose hosts have others.
    pub fn set_mapper_port(&self, port: u16) {
        self.nlm.set_mapper_port(port);
    }

    /// What hosts hold that lock through NLM.
    pub fn lock_manager(&self) -> LockManager {
        let (hosts, files, waiting) = self.nlm.held();
        LockManager { hosts, files, waiting }
    }

    /// The hosts that lock through NLM, by address and name.
    pub fn list_hosts(&self) -> Vec<ListedHost> {
        self.nlm.list()
    }

    /// What a host holds that locks through NLM. Files on which a request is in progress are left out.
    pub fn list_host_states(&self, holder: HolderId) -> Vec<ListedState> {
        self.nlm.list_states(holder)
    }

    /// Takes everything from a host that locks through NLM, as if it had restarted. NLM has no way to tell
    /// the host, so its programs go on as if they held their locks.
    pub async fn revoke_host(&self, holder: HolderId) {
        self.nlm.revoke(holder).await;
    }

    /// Calls answered so far.
    pub fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// The clients and files that are used most.
    pub fn usage(&self) -> &Usage {
        &self.shared.usage
    }

    /// The number of version 4 clients.
    pub fn clients(&self) -> KnownClients {
        self.shared.state.clients()
    }

    /// The version 4 clients, by address and name.
    pub fn list_clients(&self) -> Vec<ListedClient> {
        self.shared.state.list_clients()
    }

    /// What a version 4 client holds.
    pub fn list_states(&self, client: Clientid) -> Vec<ListedState> {
        self.shared.state.list_states(client)
    }

    /// Removes a version 4 client with all that it holds. Other clients no longer wait for it; what it has
    /// not written is refused. The client learns of it at its next request and makes itself known again.
    pub async fn revoke(&self, client: Clientid) {
        self.shared.expire(client).await;
    }

    /// The memory that the state of clients takes.
    pub fn footprint(&self) -> Footprint {
        self.shared.state.footprint()
    }

    /// Is there a grace period, in which clients only reclaim?
    pub fn in_grace(&self) -> bool {
        self.shared.state.in_grace()
    }

    /// The exports.
    pub fn exports(&self) -> &Exports {
        &self.shared.exports
    }
}
