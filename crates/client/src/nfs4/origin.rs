//! What an origin of version 4 tells about its connection, and what the process above tells it about the next
//! incarnation and about its own clients.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vfs::Handle;

use super::Nfs4;
use super::moved::Following;
use crate::counts::ProcedureCounts;
use crate::origin::{Follow, Holdings, Origin};
use crate::replica::Replica;
use crate::url::Url;

impl Origin for Nfs4 {
    fn url(&self) -> &Url {
        &self.inner.url
    }

    fn version(&self) -> &'static str {
        if self.minor() == 1 { "4.1" } else { "4.2" }
    }

    fn server(&self) -> SocketAddr {
        self.inner.server
    }

    fn root_handle(&self) -> Handle {
        self.inner.export().root
    }

    fn lease_time(&self) -> Option<Duration> {
        Some(self.inner.export().lease_time)
    }

    fn calls(&self) -> Vec<(&'static str, ProcedureCounts)> {
        self.counts().called().map(|(operation, counts)| (operation.name(), *counts)).collect()
    }

    fn nonsense_heard(&self) -> u64 {
        self.inner.channel.nonsense.count()
    }

    fn held(&self) -> Holdings {
        let (opens, leases) = self.inner.state.lock().counts();
        Holdings { opens, leases, calls_in_flight: self.inner.channel.calls_in_flight() }
    }

    fn has_opens(&self) -> bool {
        true
    }

    fn keep_record(&self, path: &Path) -> std::io::Result<()> {
        self.inner.keep_record(path)
    }

    fn replicate_record(&self, replica: Arc<dyn Replica>) {
        self.inner.channel.replicate(replica);
    }

    fn leave_nothing(&self) {
        self.inner.leaves_nothing.store(true, Ordering::Relaxed);
    }

    /// If the server says DELAY to an OPEN for 5 s, the OPEN then fails with `Resource`.
    fn holds_for_others(&self) {
        self.inner.holds_for_others.store(true, Ordering::Relaxed);
    }

    fn follow_referrals(&self, follow: Arc<Follow>) {
        self.inner.follow.get_or_init(|| Following::new(follow));
    }
}
