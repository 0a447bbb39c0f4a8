//! The audit log of `serve` and `proxy`: see the crate `audit`.

use std::path::Path;
use std::sync::Arc;

use audit::{Audit, Audited, Destination, Export, Scope};
use vfs::FileSystem;

use crate::Failure;
use crate::cli::{AuditScope, Auditing};
use crate::holders::Place;
use crate::mount::log::notice;

/// The name that stands for the log of messages.
const JOURNAL: &str = "journal";

/// The log, if there is to be one.
#[derive(Clone, Debug)]
pub struct AuditLog(Option<Arc<Audit>>);

impl AuditLog {
    /// Opens the log.
    ///
    /// # Errors
    /// If its file cannot be written.
    pub fn open(wanted: &Auditing) -> Result<AuditLog, Failure> {
        let Some(path) = &wanted.audit else { return Ok(AuditLog(None)) };
        let destination = if path == Path::new(JOURNAL) {
            Destination::Lines(Box::new(|line| notice(&format!("audit {line}"))))
        } else {
            Destination::File(std::path::absolute(path).unwrap_or_else(|_| path.clone()).into())
        };
        let scope = match wanted.audit_scope {
            AuditScope::Changes => Scope::Changes,
            AuditScope::All => Scope::All,
        };
        let opened = Audit::open(destination, scope).map_err(|error| {
            let path = path.display();
            Failure(format!(
                "cannot write the audit log {path}: {error}; name a file that this user may write"
            ))
        });
        opened.map(|audit| AuditLog(Some(audit)))
    }

    /// The file system of an export, with a record of its operations. `place` finds the paths of its files.
    pub fn over(&self, fs: Arc<dyn FileSystem>, path: &str, place: &Arc<Place>) -> Arc<dyn FileSystem> {
        let Some(audit) = &self.0 else { return fs };
        let export = Export { path: path.to_owned(), find: place.clone() };
        Arc::new(Audited::new(fs, audit.clone(), export))
    }

    /// The file may have been renamed, as logrotate(8) does.
    pub fn reopen(&self) {
        self.0.iter().for_each(|audit| audit.reopen());
    }

    /// Waits until all records are written.
    pub async fn finish(&self) {
        if let Some(audit) = &self.0 {
            audit.flush().await;
        }
    }
}
