//! What an origin of version 3 tells about its connection. The only state at the server is that of its lock
//! manager.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vfs::Handle;

use super::Nfs3;
use crate::counts::ProcedureCounts;
use crate::origin::{Follow, Holdings, Origin};
use crate::replica::Replica;
use crate::url::Url;

impl Origin for Nfs3 {
    fn url(&self) -> &Url {
        &self.url
    }

    fn version(&self) -> &'static str {
        "3"
    }

    fn server(&self) -> SocketAddr {
        self.server
    }

    /// The root handle from MOUNT.
    fn root_handle(&self) -> Handle {
        self.root
    }

    fn lease_time(&self) -> Option<Duration> {
        None
    }

    fn calls(&self) -> Vec<(&'static str, ProcedureCounts)> {
        let nfs = self.counts();
        let of_nfs = nfs.called().map(|(procedure, counts)| (procedure.name(), *counts));
        of_nfs.chain(self.locks.iter().flat_map(|locks| locks.calls())).collect()
    }

    fn nonsense_heard(&self) -> u64 {
        self.transport.nonsense.count()
    }

    fn held(&self) -> Holdings {
        let opens = self.locks.as_ref().map_or(0, |locks| locks.files());
        Holdings { opens, calls_in_flight: self.transport.calls_in_flight(), ..Holdings::default() }
    }

    fn has_opens(&self) -> bool {
        false
    }

    fn keep_record(&self, path: &Path) -> std::io::Result<()> {
        self.locks.as_ref().map_or(Ok(()), |locks| locks.keep_record(path))
    }

    fn replicate_record(&self, _: Arc<dyn Replica>) {}

    fn leave_nothing(&self) {
        if let Some(locks) = &self.locks {
            locks.leave_nothing();
        }
    }

    fn holds_for_others(&self) {}

    /// The protocol has none.
    fn follow_referrals(&self, _: Arc<Follow>) {}
}
