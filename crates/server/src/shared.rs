//! What all versions share: the exports, the file handles, the clients that hold state, the routes for
//! callbacks to them, and the counters. No type of a version appears here.
//!
//! [`request`] reads one call. [`release`] and [`capacity`] take state away from clients and give it back to
//! the file systems. The lock order is: the tables of `state`, then the tables of a version or of the routes.

mod capacity;
mod crossing;
mod release;
mod request;

use std::fmt;
use std::sync::{Arc, OnceLock};

use rpc::Call;

use crate::callback::Ways;
use crate::counts::Counts;
use crate::exports::Exports;
use crate::groups::Groups;
use crate::handles::Handles;
use crate::names::Names;
use crate::state::State;
use crate::usage::Usage;

pub(crate) use crossing::Below;
pub(crate) use request::{Object, Request, arguments, reply};

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) exports: Exports,
    pub(crate) handles: Handles,
    pub(crate) state: Arc<State>,
    pub(crate) callbacks: Ways,
    pub(crate) counts: Counts,
    pub(crate) usage: Usage,
    /// Set if users have the groups of this machine's user database.
    pub(crate) groups: OnceLock<Groups>,
    names: OnceLock<Names>,
    first_client: FirstClient,
}

/// Runs when the first client appears that may hold state: starts the tasks that receive the callbacks of
/// file systems, which need the versions.
pub(crate) struct FirstClient(pub(crate) Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for FirstClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FirstClient")
    }
}

impl Shared {
    pub(crate) fn new(
        exports: Exports,
        handles: Handles,
        state: State,
        first_client: FirstClient,
    ) -> Arc<Shared> {
        let state = Arc::new(state);
        let callbacks = Ways::new(state.clone());
        let (counts, usage) = (Counts::default(), Usage::default());
        let (groups, names) = (OnceLock::new(), OnceLock::new());
        Arc::new(Shared { exports, handles, state, callbacks, counts, usage, groups, names, first_client })
    }

    /// The names of users and groups: those of the files, if there is no other database.
    pub(crate) fn names(&self) -> &Names {
        self.names.get_or_init(Names::default)
    }

    /// From now on, names are those of this database, unless one was looked up already.
    pub(crate) fn set_names(&self, names: Names) {
        self.names.get_or_init(|| names);
    }

    /// Starts the background tasks when the first client appears that may hold state: callbacks, and the
    /// expiry of leases and of grace.
    pub(crate) fn start_tasks(self: &Arc<Shared>) {
        if self.state.start() {
            tokio::spawn(release::keep_house(Arc::downgrade(self), self.state.lease()));
            (self.first_client.0)();
        }
    }

    /// Holds a request of a client without state until grace is over. False if that takes too long; then
    /// the request must not be executed.
    pub(crate) async fn after_grace(self: &Arc<Shared>, call: &Call) -> bool {
        if !self.state.delays_stateless() {
            return true;
        }
        // If no v4 client arrives, this starts the task that ends grace.
        self.start_tasks();
        self.state.after_grace(call).await
    }
}
