//! Leases on directories: GET_DIR_DELEGATION, and the directory leases of NQNFS.
//!
//! They are read leases, like those on files. The lease of the layer below comes with ACCESS instead of an
//! open. Since no client opens a directory, the lease from below is returned as soon as the last client has
//! returned its lease.

use std::sync::Arc;
use std::time::Duration;

use vfs::{AccessMask, Attributes, Caller, Delegated, Handle, Lease, LeaseId, Result, Share, Want};

use super::Shell;
use super::opens::UnderWay;
use crate::leases::{GrantInFlight, Use, Wanted};
use crate::shares::Others;

/// A lease that was granted but not handed out. Dropping it returns the lease.
struct Ungiven<'a> {
    shell: &'a Arc<Shell>,
    lease: Option<LeaseId>,
}

impl Drop for Ungiven<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease {
            self.shell.returned(lease);
        }
    }
}

impl Shell {
    /// See `Leases::delegate`. If `term` is given, the lease ends by itself after that time.
    pub(crate) async fn delegate(
        self: &Arc<Shell>,
        caller: &Caller,
        directory: &Handle,
        asked: AccessMask,
        term: Option<Duration>,
    ) -> Result<Delegated> {
        self.recovered(caller, Use::Read)?;
        // A front that takes no callbacks could not return a lease.
        if !self.is_granting() || self.up.is_closed() || caller.holder.is_none() {
            return Ok(Delegated {
                accessed: self.below.access(caller, directory, asked).await?,
                lease: None,
            });
        }
        let grant = self.with(|state, _| state.leases.begin_open());
        let mut under_way = UnderWay::new(self, caller, grant);
        let mut delegated = self.below.delegate(caller, directory, asked).await?;
        self.with(|state, _| {
            state.leases.granted_below(directory, delegated.lease.take());
            state.leases.end_open(grant);
        });
        under_way.ended(directory);
        let Some(attributes) = delegated.accessed.attributes.filter(Attributes::is_dir) else {
            return Ok(delegated);
        };
        let Some((lease, outdated)) = self.grant_directory(caller, directory, attributes.change, grant, term)
        else {
            return Ok(delegated);
        };
        delegated.lease = Some(lease);
        if outdated {
            self.look_again(caller, directory, &mut delegated).await;
        }
        Ok(delegated)
    }

    /// A lease on a directory, if the rules permit and recommend it. True if the attributes may be older
    /// than a change.
    fn grant_directory(
        self: &Arc<Shell>,
        caller: &Caller,
        directory: &Handle,
        change: u64,
        grant: GrantInFlight,
        term: Option<Duration>,
    ) -> Option<(Lease, bool)> {
        self.with(|state, now| {
            let wanted = Wanted {
                holder: caller.holder,
                access: Share::READ,
                want: Want::Read,
                others: Others::default(),
                change,
                directory: true,
                term,
            };
            state.leases.touch(now, directory, caller.holder);
            let lease = state.leases.grant(now, directory, &wanted)?;
            Some((lease, state.leases.changed_since(grant)))
        })
    }

    /// Reads the attributes of the directory again under the lease. If that fails, there is no lease.
    async fn look_again(self: &Arc<Shell>, caller: &Caller, directory: &Handle, delegated: &mut Delegated) {
        let Some(lease) = delegated.lease.take() else { return };
        let mut ungiven = Ungiven { shell: self, lease: Some(lease.id) };
        let Ok(attributes) = self.below.getattr(caller, directory).await else { return };
        self.with(|state, _| state.leases.vouch(lease.id, attributes.change));
        ungiven.lease = None;
        delegated.lease = Some(Lease { change: attributes.change, ..lease });
        delegated.accessed.attributes = Some(attributes);
    }
}
