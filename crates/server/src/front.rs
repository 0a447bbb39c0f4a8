//! The server as other crates see it. It owns what all versions share, and what each version keeps for
//! itself. `dispatch` answers the calls. No module below imports this one.

use std::sync::{Arc, Weak};

use protocol::nfs4::Clientid;
use vfs::{Clock, SystemClock};

use crate::counts::Counts;
use crate::exports::Exports;
use crate::handles::Handles;
use crate::mount::Mounts;
use crate::narrow::Cookies;
use crate::nfs4::Nfs4Front;
use crate::nqnfs::{Nqnfs, NqnfsFront};
use crate::recalls;
use crate::shared::{FirstClient, Shared};
use crate::state::{KnownClients, ListedClient, ListedState, State, StateOptions};
use crate::usage::Usage;

/// Answers NFS v4, NFS v3, NFS v2, NQNFS and MOUNT v1 to v3 over a table of exports.
#[derive(Debug)]
pub struct Front {
    pub(crate) shared: Arc<Shared>,
    pub(crate) nfs4: Nfs4Front,
    pub(crate) nqnfs: Arc<NqnfsFront>,
    /// Of version 2 and NQNFS.
    pub(crate) cookies: Arc<Cookies>,
    pub(crate) mounts: Mounts,
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
        let nqnfs = Arc::new_cyclic(|front: &Weak<NqnfsFront>| {
            let front = front.clone();
            let first_client = FirstClient(Box::new(move || {
                if let Some(front) = front.upgrade() {
                    recalls::start(&front);
                }
            }));
            let shared = Shared::new(exports, handles, state, first_client);
            NqnfsFront::new(shared, nqnfs, cookies.clone())
        });
        let shared = nqnfs.shared.clone();
        let nfs4 = Nfs4Front::new(shared.clone(), SystemClock.wall());
        Arc::new(Front { shared, nfs4, nqnfs, cookies, mounts: Mounts::default() })
    }

    /// Must be called before the first call is answered. If no client may reclaim state from before a
    /// restart, this tells the file systems to drop the state they keep for reclaiming.
    pub async fn begin(&self) {
        if !self.shared.state.in_grace() {
            self.shared.end_reclaim().await;
        }
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

    /// Is there a grace period, in which clients only reclaim?
    pub fn in_grace(&self) -> bool {
        self.shared.state.in_grace()
    }

    /// The exports.
    pub fn exports(&self) -> &Exports {
        &self.shared.exports
    }
}
