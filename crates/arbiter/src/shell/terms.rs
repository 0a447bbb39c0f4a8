//! Leases with a term, for holders without opens.
//!
//! The layer below grants leases only with opens. So a first lease costs one open there, which is closed
//! again; renewals need no call. A lease on a directory needs no open.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::sleep_until;
use vfs::{AccessMask, Caller, Handle, Lease, LeaseKind, OpenRequest, Owner, Result, Share, Status, Want};

use super::Shell;
use crate::leases::{Renewal, Termed};

impl Shell {
    /// See `Leases::lease`.
    pub(crate) async fn lease(
        self: &Arc<Shell>,
        caller: &Caller,
        handle: &Handle,
        kind: LeaseKind,
        term: Duration,
    ) -> Result<Option<Lease>> {
        let Some(holder) = caller.holder else { return Ok(None) };
        if !self.is_granting() || self.stateless.load(Ordering::Relaxed) || kind == LeaseKind::Timeout {
            return Ok(None);
        }
        let limit = self.patience_of(caller);
        loop {
            let renewal = self.with(|state, now| {
                let others = state.shares.others(handle, caller.holder);
                state.leases.renew(now, handle, &Termed { holder, kind, term, others })
            });
            match renewal {
                Renewal::Held(lease) => return Ok(Some(lease)),
                Renewal::Open => break,
                Renewal::Full(until) if until < limit => sleep_until(until).await,
                // A lease is optional: no requester waits for it longer than its patience.
                Renewal::NonCaching | Renewal::Full(_) => return Ok(None),
            }
        }
        // Runs to completion even if the requester goes away: the open must be closed.
        let (shell, caller, handle) = (self.clone(), caller.clone(), *handle);
        let leased = async move { shell.lease_with_open(&caller, &handle, kind, term).await };
        tokio::spawn(leased).await.unwrap_or_else(|_| Err(Status::ServerFault.into()))
    }

    async fn lease_with_open(
        self: Arc<Shell>,
        caller: &Caller,
        handle: &Handle,
        kind: LeaseKind,
        term: Duration,
    ) -> Result<Option<Lease>> {
        let access = if kind == LeaseKind::Write { Share::WRITE } else { Share::READ };
        let request = OpenRequest {
            handle: *handle,
            name: None,
            // A unique owner: opens of one owner are merged into one.
            owner: Owner(Bytes::copy_from_slice(&self.open_id().0.to_be_bytes())),
            access,
            deny: Share::empty(),
            create: None,
            want: Want::Any,
            reclaim: false,
            read_first: None,
            want_directory_lease: false,
        };
        match self.open(caller, &request, Some(term)).await {
            Ok(opened) => {
                if let Err(error) = self.close(caller, opened.id).await {
                    tracing::debug!(%error, "an open that brought a lease was not closed below");
                }
                Ok(opened.lease)
            }
            Err(error) if error.status == Status::Delay => Err(error),
            Err(error) if error.status == Status::IsDir && kind == LeaseKind::Read => {
                let rights = AccessMask::READ | AccessMask::LOOKUP;
                Ok(self.delegate(caller, handle, rights, Some(term)).await?.lease)
            }
            // A file that cannot be opened gets no lease; the operation itself reports the reason.
            Err(_) => Ok(None),
        }
    }
}
