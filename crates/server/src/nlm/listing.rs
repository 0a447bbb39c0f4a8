//! Lists the hosts and what they hold, for an administrator, and takes it from one that is gone.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use vfs::{HolderId, Owner};

use super::Nlm;
use super::wire;
use crate::state::{Held, ListedState};

/// A host that locks through NLM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedHost {
    /// Names it towards the layers below, and for an administrator.
    pub holder: HolderId,
    /// Its `caller_name`, any bytes.
    pub name: Bytes,
    /// The address of its calls.
    pub address: IpAddr,
    /// Time since its last call.
    pub silent: Duration,
    /// Files on which it holds a lock or a share, or waits for one.
    pub files: usize,
}

impl Nlm {
    /// The hosts, by address and name.
    pub(crate) fn list(&self) -> Vec<ListedHost> {
        let now = Instant::now();
        let hosts = self.hosts.lock();
        let listed = hosts.iter().map(|(name, host)| ListedHost {
            holder: host.holder,
            name: name.name.clone(),
            address: name.address,
            silent: now.saturating_duration_since(host.used),
            files: self.files.count(host.holder),
        });
        listed.collect()
    }

    /// The locks and shares of a host. Files on which a request is in progress are left out.
    pub(crate) fn list_states(&self, holder: HolderId) -> Vec<ListedState> {
        let mut listed = Vec::new();
        for (file, held) in self.files.of(holder) {
            if let Ok(held) = held.try_lock() {
                let state = |held| ListedState { export: file.export, handle: file.handle, held };
                let owner = |owner: &Owner| Bytes::copy_from_slice(wire::client_owner(owner));
                listed.extend(held.owners.keys().map(|of| state(Held::Locks { owner: owner(of) })));
                let shares = held.shares.values();
                listed
                    .extend(shares.map(|share| state(Held::Open { access: share.access, deny: share.deny })));
            }
            self.files.settle(holder, file, held);
        }
        listed
    }

    /// Takes everything from a host, as if it had restarted.
    pub(crate) async fn revoke(self: &Arc<Nlm>, holder: HolderId) {
        let closed = self.hosts.lock().close(holder);
        match closed {
            // The task ends in any case.
            Some(closed) => drop(self.release_behind(holder, closed).await),
            // The host has not called since the restart, or is forgotten.
            None => self.release(holder).await,
        }
    }
}
