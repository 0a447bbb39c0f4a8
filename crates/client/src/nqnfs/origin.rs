//! What an origin of NQNFS tells about its connection. Leases have terms and end by themselves, so there is
//! nothing to record for the next incarnation, and the end of a process returns all leases.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vfs::Handle;

use super::Nqnfs;
use crate::counts::ProcedureCounts;
use crate::origin::{Follow, Holdings, Origin};
use crate::replica::Replica;
use crate::url::Url;

impl Origin for Nqnfs {
    fn url(&self) -> &Url {
        &self.url
    }

    fn version(&self) -> &'static str {
        "nqnfs"
    }

    fn server(&self) -> SocketAddr {
        self.inner.server
    }

    /// The root handle from MOUNT.
    fn root_handle(&self) -> Handle {
        self.inner.root
    }

    fn lease_time(&self) -> Option<Duration> {
        None
    }

    fn calls(&self) -> Vec<(&'static str, ProcedureCounts)> {
        self.counts().called().map(|(procedure, counts)| (procedure.name(), *counts)).collect()
    }

    fn nonsense_heard(&self) -> u64 {
        self.inner.nonsense.count()
    }

    /// The server knows of no opens.
    fn held(&self) -> Holdings {
        let leases = self.inner.leases.lock().held_at_server();
        Holdings { opens: 0, leases, calls_in_flight: self.inner.link.calls_in_flight() }
    }

    /// An open is a LOOKUP and an ACCESS that asks for the lease.
    fn has_opens(&self) -> bool {
        true
    }

    fn keep_record(&self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }

    fn replicate_record(&self, _: Arc<dyn Replica>) {}

    fn leave_nothing(&self) {}

    /// The server bounds leases and not opens, and an open without a lease succeeds.
    fn holds_for_others(&self) {}

    /// The protocol has none.
    fn follow_referrals(&self, _: Arc<Follow>) {}
}
