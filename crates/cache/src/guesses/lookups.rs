//! LOOKUPs that are answered from an OPEN. See [`crate::opened_names`].

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::timeout;
use vfs::{Caller, Freshness, Looked, Name, Node, OpenRequest, Owner, Result, Share, Status};

use crate::core::Core;
use crate::prefetch::LISTING_PATIENCE;
use crate::table::Object;
use crate::upstream::piggyback::Brought;

impl Core {
    /// A file of this name is opened for reading.
    pub(super) fn note_opened_name(&self, name: &Name) {
        if let Some(prefetch) = &self.prefetch {
            prefetch.opened_names().opened(name);
        }
    }

    /// A LOOKUP has found something under this name.
    pub fn note_looked_name(&self, name: &Name) {
        if let Some(prefetch) = &self.prefetch {
            prefetch.opened_names().looked(name);
        }
    }

    /// A name is looked up that is not known. If the program will probably open the file, opens it now, and
    /// answers from that. `None` if a LOOKUP is needed.
    pub fn look_up_by_open<'a>(
        &'a self,
        caller: &'a Caller,
        directory: &'a Arc<Object>,
        name: &'a Name,
    ) -> Pin<Box<dyn Future<Output = Option<Result<Looked>>> + Send + 'a>> {
        // An OPEN may look names up itself.
        Box::pin(self.open_to_look(caller, directory, name))
    }

    async fn open_to_look(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        name: &Name,
    ) -> Option<Result<Looked>> {
        let prefetch = self.prefetch.as_ref()?;
        let leases = self.has_state() == Some(true) && !self.leases_alone();
        let silent = self.link.outage().is_silent() || self.is_away();
        if !leases || silent || self.policy.is_open(caller) || !prefetch.opened_names().is_likely(name) {
            return None;
        }
        if !prefetch.walks().are_leases_given() || !self.may_store() {
            return None;
        }
        let caller = Caller { holder: None, ..caller.clone() }.with_freshness(Freshness::Timeout);
        let owner = Owner(Bytes::new());
        let request = OpenRequest::new(directory.handle, Some(name.clone()), owner, Share::READ);
        let request = Core::open_below(&request);
        let range = self.piggyback_on_open(&request);
        self.counters.guesses.bump();
        let opening = self.open_with_piggyback(&caller, request, None, range);
        let mut granted = match timeout(LISTING_PATIENCE, opening).await.ok()? {
            Ok(granted) => granted,
            Err(error) => return (error.status == Status::NoEnt).then_some(Err(error)),
        };
        self.note_looked_name(name);
        let brought = granted.brought.take();
        self.counters.guessed_bytes.add(brought.as_ref().map_or(0, Brought::len));
        if let Some(brought) = brought {
            // The reader is answered from the bytes as they came.
            tokio::spawn(brought.store_unasked());
        }
        self.with(&granted.object, |state| state.guessed = state.held.lease.is_some());
        let node = Node { handle: granted.opened.handle, attributes: Some(granted.opened.attributes) };
        Some(Ok(Looked { node, directory: granted.opened.directory.after, directory_lease: None }))
    }
}
