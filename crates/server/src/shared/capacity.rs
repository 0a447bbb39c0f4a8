//! Frees capacity by dropping clients: [`crate::state::capacity`] says which.

use super::Shared;
use crate::exports::ExportId;
use crate::state::{Below, Scarce};

impl Shared {
    /// Is there capacity in the tables for one more? If not, this drops courtesy clients and idle clients
    /// until there is.
    pub(crate) async fn capacity_for(&self, what: Scarce) -> bool {
        loop {
            let dispensable = {
                let tables = self.state.tables();
                if tables.has(what) {
                    return true;
                }
                tables.dispensable(what)
            };
            let Some(client) = dispensable else { return false };
            tracing::info!(
                ?what,
                "a client whose lease has expired, or that holds nothing, is removed to free capacity"
            );
            self.expire(client).await;
        }
    }

    /// Drops a courtesy client after a file system ran out of capacity, unless another task has dropped one
    /// meanwhile. `made` is the value of [`Capacity::made`] from before the attempt. False if no courtesy
    /// client uses any of the resource.
    ///
    /// [`Capacity::made`]: crate::state::Capacity::made
    pub(crate) async fn capacity_below(&self, export: ExportId, what: Below, made: u64) -> bool {
        let capacity = &self.state.capacity;
        let _turn = capacity.turn().await;
        if capacity.made() != made {
            return true;
        }
        let courtesy = self.state.tables().dispensable_below(export, what);
        let Some(client) = courtesy else { return false };
        tracing::info!(?what, "a client whose lease has expired is removed to free capacity");
        self.expire(client).await;
        capacity.note_made();
        true
    }
}
