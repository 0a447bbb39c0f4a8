//! Who of our clients holds what: a `vfs::FileSystem` over another, under every front.
//!
//! The arbiter is where an operation meets what other clients hold. The check for a conflict, the recall that settles
//! it, the grant, and the operation itself are one transition here; fronts never reach below. What is held is kept by
//! pure state machines, and the asynchronous trait is their shell:
//! - [`shares`]: opens and what they deny to others;
//! - [`locks`]: byte-range locks, and who waits for one;
//! - [`leases`]: what was granted to whom under which lease of the layer below, recalls and revocation.
//!
//! v2 and v3 clients hold nothing; they are anonymous, and what the others hold is recalled for them or held against
//! them like for anybody else. Over a layer that has no opens of its own nothing is granted, and shares and locks are
//! ours alone.

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
pub use options::{Delegations, Options};

use shell::{Shell, Tasks};

/// See the module.
pub struct Arbiter {
    shell: Arc<Shell>,
    /// What goes on without being asked; ends with the arbiter.
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

    /// What is held now, in numbers.
    pub fn held(&self) -> Holdings {
        self.shell.held()
    }

    /// Leases that are out, behind `behind` in the order of their names, at most `limit`.
    pub fn leases(&self, behind: Option<LeaseId>, limit: usize) -> Vec<HeldLease> {
        self.shell.leases(behind, limit)
    }
}
