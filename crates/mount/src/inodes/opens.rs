//! The opens of a file over all of its nodes, and the silly name that it has after its removal.
//!
//! A file that has left passthrough has two nodes, and programs may have it open by both. Its silly name
//! lasts until the last open of either is closed. Therefore the nodes of a file share one [`Opens`].

use parking_lot::Mutex;
use vfs::{Caller, Handle, Name};

/// The opens of a file. Lock order: the state of a node first, then this.
#[derive(Debug, Default)]
pub struct Opens(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of opens. An open in flight counts, even if it fails later.
    count: u32,
    /// Set if the file was removed while it was open: its silly name, until the last close.
    silly: Option<Box<Silly>>,
    /// Set if the silly name was removed too: the place where the file was before. If the file has another
    /// link, a lookup of that link finds it.
    gone: Option<Box<(u64, Name)>>,
}

/// A name that a removed file has until it is closed.
#[derive(Clone, Debug)]
pub struct Silly {
    /// The directory with that name.
    pub directory: Handle,
    /// `.nfs…`
    pub name: Name,
    /// The name that was removed.
    pub of: (u64, Name),
    /// The credential of the process that removed it.
    pub caller: Caller,
}

impl Opens {
    /// Counts an open, or an open in flight.
    pub fn begin(&self) {
        self.0.lock().count += 1;
    }

    /// Undoes the count of [`Opens::begin`]. At the last one, returns the silly name, which is to be
    /// removed now.
    #[must_use]
    pub fn end(&self) -> Option<Silly> {
        let mut state = self.0.lock();
        debug_assert!(state.count > 0, "an open ends that was not counted");
        state.count = state.count.saturating_sub(1);
        state.take_silly()
    }

    /// Would a removal of the file's name take it from its opens?
    pub fn need_silly(&self) -> bool {
        let state = self.0.lock();
        state.count > 0 && state.silly.is_none()
    }

    /// Records the silly name that the file has got. Returns it if the last open has ended meanwhile; then
    /// it is to be removed now.
    #[must_use]
    pub fn give_silly(&self, silly: Silly) -> Option<Silly> {
        let mut state = self.0.lock();
        state.silly = Some(Box::new(silly));
        state.take_silly()
    }

    /// Does the file have a silly name?
    pub fn have_silly(&self) -> bool {
        self.0.lock().silly.is_some()
    }

    /// The same, after the file was seen with this number of links. With more than one, the file is not
    /// gone.
    pub fn have_silly_of(&self, links: u32) -> bool {
        let mut state = self.0.lock();
        state.gone.take_if(|_| links > 1);
        state.silly.is_some()
    }

    /// Where the file was, if it was removed and closed.
    pub fn gone(&self) -> Option<(u64, Name)> {
        self.0.lock().gone.as_deref().cloned()
    }

    /// Takes the silly name at the end of the mount.
    pub fn abandon(&self) -> Option<Silly> {
        self.0.lock().silly.take().map(|silly| *silly)
    }
}

impl State {
    fn take_silly(&mut self) -> Option<Silly> {
        let silly = if self.count > 0 { None } else { self.silly.take() };
        if let Some(silly) = &silly {
            self.gone = Some(Box::new(silly.of.clone()));
        }
        silly.map(|silly| *silly)
    }
}
