//! What an origin of version 3 tells about its connection. The protocol keeps no state at the server: no
//! opens, no leases, nothing to record or to give back.

use std::net::SocketAddr;
use std::path::Path;

use vfs::Handle;

use super::Nfs3;
use crate::counts::ProcedureCounts;
use crate::origin::{Holdings, Origin};
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

    fn calls(&self) -> Vec<(&'static str, ProcedureCounts)> {
        self.counts().called().map(|(procedure, counts)| (procedure.name(), *counts)).collect()
    }

    fn nonsense_heard(&self) -> u64 {
        self.transport.nonsense.count()
    }

    fn held(&self) -> Holdings {
        Holdings { calls_in_flight: self.transport.calls_in_flight(), ..Holdings::default() }
    }

    fn has_opens(&self) -> bool {
        false
    }

    fn keep_record(&self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }

    fn leave_nothing(&self) {}

    fn holds_for_others(&self) {}
}
