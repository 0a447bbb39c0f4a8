//! Releases the state of removed clients: replaced by a new incarnation, destroyed, or past their courtesy
//! time.

use std::sync::Weak;
use std::time::Duration;

use futures_util::future::join_all;
use protocol::nfs4::Clientid;
use tokio::time::Instant;
use vfs::{Caller, HolderId, Name, Status};

use super::{Object, Shared};
use crate::exports::Export;
use crate::state::Due;
use crate::state::clients::Gone;
use crate::state::stateids::{FileKey, HeldState, Kind, Standing};

/// The server itself, acting for a client.
fn on_behalf(holder: HolderId) -> Caller {
    Caller { holder: Some(holder), ..Caller::machine() }
}

impl Shared {
    /// Ends grace. State that no client has reclaimed is dropped before another client can take it.
    ///
    /// While hosts that lock through NLM still reclaim, the file systems keep the state from before.
    pub(crate) async fn end_grace(&self) {
        if !self.state.do_hosts_reclaim() {
            self.end_reclaim().await;
        }
        self.state.end_grace().await;
    }

    /// Ends the grace period of hosts that lock through NLM. That of version 4 is over.
    async fn end_lock_grace(&self) {
        self.end_reclaim().await;
        self.state.end_lock_grace().await;
    }

    /// Tells the file systems that clients no longer reclaim the state of earlier incarnations.
    pub(crate) async fn end_reclaim(&self) {
        let exports: Vec<_> = self.exports.iter().collect();
        // An origin that does not answer must not delay the others.
        join_all(exports.iter().map(|export| export.fs().end_reclaim())).await;
    }

    /// Gives back all state of a client whose record is already removed.
    pub(crate) async fn release(&self, gone: Gone) {
        let held = {
            let mut tables = self.state.tables();
            tables.sessions.destroy_all(gone.id);
            tables.owners.remove_all(gone.id);
            tables.stateids.remove_all(gone.id)
        };
        self.callbacks.forget(gone.id);
        for held in held {
            self.give_back(&held).await;
        }
        if let Some(name) = gone.recorded
            && let Err(error) = self.state.unrecord(name).await
        {
            tracing::error!(%error, "the record of NFSv4 clients cannot be written");
        }
    }

    /// Gives back one state that is already out of the tables. Locks go with their open.
    pub(crate) async fn give_back(&self, held: &HeldState) {
        if let Some(export) = self.exports.by_id(held.export) {
            Shared::give_back_to(&export, held).await;
        }
    }

    /// As [`Shared::give_back`], for a state of this export.
    async fn give_back_to(export: &Export, held: &HeldState) {
        let caller = on_behalf(held.holder);
        let given_back = match &held.kind {
            Kind::Open { open, .. } => export.fs().close(&caller, *open).await,
            Kind::Delegation { standing: Standing::Revoked, .. } | Kind::Lock { .. } => Ok(()),
            Kind::Delegation { lease, .. } => export.fs().returned(&caller, *lease).await,
        };
        if let Err(error) = given_back {
            tracing::debug!(status = %error.status, "state was gone before it was given back");
        }
    }

    /// Gives back all states of an export that is not in the table any more.
    pub(crate) async fn release_export(&self, export: &Export) {
        let held = self.state.tables().stateids.remove_of_export(export.id);
        for held in held {
            Shared::give_back_to(export, &held).await;
        }
    }

    /// Removes the record of a client and all its state.
    pub(crate) async fn expire(&self, client: Clientid) {
        let gone = self.state.tables().clients.remove(client);
        if let Some(gone) = gone {
            tracing::info!(client = format_args!("{client:016x}"), "client expired");
            self.release(gone).await;
        }
    }

    /// A request conflicts with state of this file: courtesy clients among its holders lose all their
    /// state. True if there was one.
    pub(crate) async fn expire_courtesy(&self, file: &FileKey) -> bool {
        let courtesy: Vec<Clientid> = {
            let (tables, now) = (self.state.tables(), Instant::now());
            let holders = tables.stateids.of_file(file).map(|held| held.client);
            holders.filter(|client| tables.clients.is_courtesy(*client, now)).collect()
        };
        for client in &courtesy {
            self.expire(*client).await;
        }
        !courtesy.is_empty()
    }

    /// As [`Shared::expire_courtesy`], for the object itself or for the target of a name in it.
    pub(crate) async fn expire_courtesy_at(&self, object: &Object, name: Option<&Name>) -> bool {
        let Object { export, handle, caller } = object;
        let handle = match name {
            None => *handle,
            Some(name) => match export.fs().lookup(caller, handle, name, vfs::Want::None).await {
                Ok(looked) => looked.node.handle,
                Err(_) => return false,
            },
        };
        self.expire_courtesy(&FileKey { export: export.id, handle }).await
    }

    /// Runs `job`, which opens of this object, or of the target of a name in it, may deny. If an open of a
    /// courtesy client denies the job, the client is expired and the job runs once more.
    pub(crate) async fn past_courtesy<T, F>(
        &self,
        object: &Object,
        name: Option<&Name>,
        job: impl Fn() -> F,
    ) -> vfs::Result<T>
    where
        F: Future<Output = vfs::Result<T>>,
    {
        match job().await {
            Err(error)
                if error.status == Status::ShareDenied
                    && Box::pin(self.expire_courtesy_at(object, name)).await =>
            {
                job().await
            }
            done => done,
        }
    }

    /// Expires the holder if it is a courtesy client. True if it was one.
    pub(crate) async fn expire_if_courtesy(&self, holder: HolderId) -> bool {
        let courtesy = {
            let (tables, now) = (self.state.tables(), Instant::now());
            let client = tables.clients.holder(holder).map(|client| client.id);
            client.filter(|client| tables.clients.is_courtesy(*client, now))
        };
        match courtesy {
            Some(client) => {
                self.expire(client).await;
                true
            }
            None => false,
        }
    }
}

/// Periodically ends grace, expires clients whose courtesy time is over, and forgets idle owners.
pub(super) async fn keep_house(shared: Weak<Shared>, lease: Duration) {
    let pause = (lease / 8).clamp(Duration::from_millis(20), Duration::from_secs(10));
    loop {
        tokio::time::sleep(pause).await;
        let Some(shared) = shared.upgrade() else { return };
        let Due { grace_ends, lock_grace_ends, overdue } = shared.state.due(Instant::now());
        if grace_ends {
            shared.end_grace().await;
        }
        if lock_grace_ends {
            shared.end_lock_grace().await;
        }
        for client in overdue {
            shared.expire(client).await;
        }
    }
}
