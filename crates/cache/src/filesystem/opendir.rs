//! opendir(3) on a mount, if it needs a call.
//!
//! An open of a directory must see what other clients changed before it. Under a lease it costs nothing.
//! Without one the origin is asked at each open, and no guess changes that. A program that goes through a
//! tree then needs the attributes of the directory, its names, and often the attributes of the files in it.
//! That would be three round trips, one after the other. One READDIR brings all of them.
//!
//! So the open sends the READDIR instead of a GETATTR if no names of the directory are known. If they are, it
//! does so if the program has asked for the attributes of files in another directory.
//!
//! Only walks ([`crate::walk`]) do that. An open that nothing is known about costs a GETATTR.
//!
//! The READDIR has the freshness of an open. A guess has not, so one that is on its way answers no open: an
//! origin that is a proxy may answer it from its attribute timeouts. The origin may delay a READDIR for the
//! sake of one file, so the open waits for [`LISTING_PATIENCE`], and sends a GETATTR then.

use std::sync::Arc;

use tokio::time::{Instant, timeout};
use vfs::{AccessMask, Attributes, Caller, ReadDir};

use super::directory::Purpose;
use crate::core::Core;
use crate::prefetch::LISTING_PATIENCE;
use crate::table::Object;
use crate::walk::Action;

impl Core {
    /// Does a mount open a directory? Other clients send such a GETATTR on the way to a file, too.
    pub(super) fn enters(&self, caller: &Caller, object: &Arc<Object>) -> bool {
        self.prefetch.is_some()
            && caller.holder.is_some()
            && self.policy.is_open(caller)
            && self.with(object, |state| state.attributes().is_some_and(Attributes::is_dir))
    }

    /// A mount opens a directory, at the event `arrived`. Its attributes are not known to be current. If the
    /// directory is listed now, waits for the lease that comes with it. Returns `None` if a GETATTR is
    /// needed.
    pub(super) async fn enter(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        arrived: u64,
    ) -> Option<Attributes> {
        if self.with(directory, |state| std::mem::take(&mut state.guessed)) {
            self.counters.guesses_used.bump();
        }
        if !self.may_bring_lease(directory) || self.was_refused(directory) {
            return self.enter_by_listing(caller, directory, arrived).await;
        }
        self.step(caller, directory, || Action::Entered);
        if !self.wait_for_guess(&directory.handle).await {
            return None;
        }
        let attributes = self.with(directory, |state| state.believed(true).copied())?;
        self.use_guess(caller, directory, || Action::Entered);
        Some(attributes)
    }

    /// The same without a lease: lists the directory, if the reader of a walk will probably do that.
    async fn enter_by_listing(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        arrived: u64,
    ) -> Option<Attributes> {
        let prefetch = self.prefetch.as_ref()?;
        self.step(caller, directory, || Action::Asked);
        let part = self.whole_listing(directory);
        let names = ReadDir { names_suffice: true, ..part };
        let named = self.known_part(caller, directory, &names, true).is_some();
        let refused =
            self.with(directory, |state| self.may(state, &caller.principal, AccessMask::READ) == Some(false));
        let now = Instant::now();
        if refused || !prefetch.walks().is_listed_at_open(caller, &directory.handle, named, now) {
            return None;
        }
        // If it is listed now, that READDIR may have been sent before this open.
        let _asking = prefetch.listings().try_begin(directory.handle)?;
        let rights = async {
            if self.look_right(caller, directory).is_none() {
                let _ = self.ask_access(caller, directory).await;
            }
        };
        let listing = self.open_by_listing(caller, directory, part, arrived);
        let opened = timeout(LISTING_PATIENCE, async { tokio::join!(listing, rights).0 }).await;
        if opened.is_err() {
            // Another time it would take as long.
            prefetch.walks().avoid_at_open(&directory.handle);
        }
        opened.ok().flatten()
    }

    /// Sends the READDIR that opens a directory. Those that wait for its attributes share the reply, if they
    /// came before it was sent.
    async fn open_by_listing(
        &self,
        caller: &Caller,
        directory: &Arc<Object>,
        part: ReadDir,
        arrived: u64,
    ) -> Option<Attributes> {
        let mut latest = directory.revalidation.lock().await;
        if latest.as_ref().is_some_and(|(sent, _)| *sent > arrived) {
            return None;
        }
        let asked = self.policy.event();
        self.counters.revalidations.bump();
        let listing = self.run_readdir(caller, directory, part, Purpose::Reader).await.ok()?;
        if !listing.eof
            && let Some(prefetch) = &self.prefetch
        {
            prefetch.walks().avoid_at_open(&directory.handle);
        }
        let told = listing.directory?;
        // A later state may be known, which is as good an answer.
        let attributes = self.with(directory, |state| {
            let later = state.is_known_since(asked);
            state.attributes().copied().filter(|_| later).unwrap_or(told)
        });
        *latest = Some((asked, Ok(attributes)));
        Some(attributes)
    }
}
