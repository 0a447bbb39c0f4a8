//! The arbiter decides conflicts between clients: a `vfs::FileSystem` over another one, below every front.
//!
//! For each operation the arbiter checks what other clients hold. The check for a conflict, the recall that
//! resolves it, the grant, and the operation itself are one transition here. A front never calls the layer
//! below. Pure state machines keep what is held, and the asynchronous trait is the shell around them:
//! - [`shares`]: opens and the access that they deny to others;
//! - [`locks`]: byte-range locks and their waiters;
//! - [`leases`]: the leases of clients, the leases of the layer below that they depend on, recalls and
//!   revocation.
//!
//! NFSv2 and NFSv3 clients hold nothing; they are anonymous. The arbiter recalls the leases of other
//! clients for them, and checks share reservations against them as against any client. Over a layer without
//! opens, the arbiter grants no leases, and shares and locks exist only here.

mod filesystem;
pub mod held;
pub mod leases;
pub mod locks;
pub mod options;
pub mod shares;
mod shell;

use std::sync::Arc;

use vfs::{FileSystem, LeaseId};

pub use held::{HeldLease, Holdings};
pub use leases::recall_time;
pub use options::{Delegations, Options};

use shell::{Shell, Tasks};

/// The arbiter over another file system. See the module.
pub struct Arbiter {
    shell: Arc<Shell>,
    /// Background tasks; they end with the arbiter.
    tasks: Tasks,
}

impl Arbiter {
    /// An arbiter over `below`, with nothing held and default options.
    pub fn new(below: Arc<dyn FileSystem>) -> Arbiter {
        Arbiter::with_options(below, Options::default())
    }

    /// An arbiter over `below`, with nothing held. It takes the callbacks of `below`.
    pub fn with_options(below: Arc<dyn FileSystem>, options: Options) -> Arbiter {
        let shell = Arc::new(Shell::new(below, options));
        let tasks = Tasks::default();
        tasks.start(&shell);
        Arbiter { shell, tasks }
    }

    /// Numbers of what is held now.
    pub fn held(&self) -> Holdings {
        self.shell.held()
    }

    /// The leases that are held, in the order of their ids, after `behind`, at most `limit`.
    pub fn leases(&self, behind: Option<LeaseId>, limit: usize) -> Vec<HeldLease> {
        self.shell.leases(behind, limit)
    }
}
