//! Nodes that have dropped their lease because they were retired, while the kernel is being told.
//!
//! A retired node does not return its lease: the node of the next lookup gets the same one. A recall then
//! finds that node, or none. The lease may not go back before the kernel has dropped what it cached under
//! it, at the retired node too.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;
use vfs::{Handle, Name};

use crate::front::Front;
use crate::inodes::Inode;

/// The parts that the kernel must drop: a node's attributes, and names by directory.
#[derive(Debug)]
struct Dropped {
    node: u64,
    names: Vec<(u64, Name)>,
}

/// The parts that the kernel is dropping now, by file.
#[derive(Debug, Default)]
pub(super) struct Parting(Mutex<HashMap<Handle, Vec<Arc<Dropped>>>>);

impl Parting {
    fn begin(&self, of: &Handle, dropped: Dropped) -> Arc<Dropped> {
        let dropped = Arc::new(dropped);
        self.0.lock().entry(*of).or_default().push(dropped.clone());
        dropped
    }

    fn of(&self, handle: &Handle) -> Vec<Arc<Dropped>> {
        self.0.lock().get(handle).cloned().unwrap_or_default()
    }

    fn end(&self, of: &Handle, dropped: &Arc<Dropped>) {
        let mut parting = self.0.lock();
        let Some(nodes) = parting.get_mut(of) else { return };
        nodes.retain(|other| !Arc::ptr_eq(other, dropped));
        if nodes.is_empty() {
            parting.remove(of);
        }
    }
}

impl Front {
    /// Drops the lease of a retired node and invalidates what the kernel cached under it.
    pub(super) fn part(&self, inode: &Inode) {
        let handle = inode.handle();
        let dropped = {
            let mut state = inode.state.lock();
            if state.lease.take().is_none() {
                return;
            }
            let names = state.names.clone().into_vec();
            // Under the same lock: a recall that finds no lease here finds this.
            self.recalls.parting.begin(&handle, Dropped { node: inode.number, names })
        };
        let gone = self.notifier.gone(dropped.node, dropped.names.clone());
        let parting = self.recalls.parting.clone();
        tokio::spawn(async move {
            gone.await;
            parting.end(&handle, &dropped);
        });
    }

    /// Waits until the kernel has dropped what it cached at retired nodes of the file, with a bound.
    pub(super) async fn parted(&self, of: &Handle) {
        let parting = self.recalls.parting.of(of);
        let told = parting.iter().map(async |dropped| {
            self.notifier.attributes_of_any(dropped.node).await;
            self.notifier.names(dropped.names.clone()).await;
        });
        join_all(told).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_retired_node_is_known_until_the_kernel_has_heard() {
        let parting = Parting::default();
        let (file, other) = (Handle::new(b"file").unwrap(), Handle::new(b"other").unwrap());
        let nodes = |of: &Handle| parting.of(of).iter().map(|dropped| dropped.node).collect::<Vec<_>>();
        let [one, two] = [1, 2].map(|node| parting.begin(&file, Dropped { node, names: Vec::new() }));
        assert_eq!((nodes(&file), nodes(&other)), (vec![1, 2], vec![]));
        parting.end(&file, &one);
        assert_eq!(nodes(&file), [2]);
        parting.end(&file, &two);
        assert!(parting.0.lock().is_empty());
    }
}
