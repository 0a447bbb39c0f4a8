//! The hosts that lock through NLM, in the durable record of [`super::records`].
//!
//! A host is on the disk before it gets its first lock. Its table ([`super::hosts`]) changes first, and the
//! record follows in turn: so the record never lacks a host that the table calls durable.

use vfs::{HolderId, Status};

use super::State;
use super::grace::Claim;
use super::hosts::{Entered, HostName};
use super::records::Before;

impl State {
    /// A holder for a host that locks through NLM: the recorded one, or a new one.
    pub(crate) fn holder_of_host(&self, host: &HostName) -> HolderId {
        let mut tables = self.tables();
        let known = tables.hosts.holder(host);
        known.unwrap_or_else(|| tables.clients.next_holder())
    }

    /// May the host take or reclaim a lock? If so, the host is in the durable record from now on.
    ///
    /// # Errors
    /// `Grace`, `NoGrace`, `ReclaimBad`; `Delay` if the record cannot be written; `Resource` if it is full.
    pub(crate) async fn claim_for_host(
        &self,
        host: &HostName,
        holder: HolderId,
        claim: Claim,
    ) -> Result<(), Status> {
        let enter = || {
            let mut tables = self.tables();
            tables.hosts.admit(host, tables.grace.is_on(), claim)?;
            tables.hosts.enter(host, holder)
        };
        if enter()? == Entered::Durable {
            return Ok(());
        }
        let _turn = self.host_turn.lock().await;
        // Another call of the host may have written it, or may have failed to.
        if enter()? == Entered::Durable {
            return Ok(());
        }
        let (name, before) = (host.record(), Before::host(holder));
        let written = self.write_records(move |records| records.add(&name, before)).await;
        let mut tables = self.tables();
        match written {
            Ok(()) => {
                tables.hosts.written(host);
                Ok(())
            }
            Err(error) => {
                tracing::error!(%error, "the record of hosts that lock cannot be written");
                tables.hosts.remove(host);
                Err(Status::Delay)
            }
        }
    }

    /// Removes a host from the durable record, if it `is_gone` still.
    pub(crate) async fn forget_host(&self, host: &HostName, is_gone: impl Fn() -> bool) {
        {
            let mut tables = self.tables();
            if is_gone() {
                tables.hosts.remove(host);
            }
        }
        self.unrecord_host(host).await;
    }

    /// Ends the grace period of hosts, after the file systems have dropped the state that was not reclaimed.
    pub(crate) async fn end_lock_grace(&self) {
        let gone = self.tables().hosts.end();
        for host in gone {
            self.unrecord_host(&host).await;
        }
        tracing::info!("grace period of locks is over");
    }

    /// Removes a host from the disk, unless it has come back to the table.
    async fn unrecord_host(&self, host: &HostName) {
        let _turn = self.host_turn.lock().await;
        if self.tables().hosts.holder(host).is_some() {
            return;
        }
        if let Err(error) = self.unrecord(host.record()).await {
            tracing::error!(%error, "the record of hosts that lock cannot be written");
        }
    }

    /// The state number of our status monitor: odd, and another one in each incarnation.
    pub(crate) fn monitor_state(&self) -> u32 {
        (self.epoch << 1 | 1) & (i32::MAX as u32)
    }
}
