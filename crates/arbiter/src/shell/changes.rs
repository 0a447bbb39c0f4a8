//! Changes on their way through: while one is, nothing is granted that it would break.
//!
//! An open whose answer overtakes a change would otherwise grant a lease that vouches for what the change is about to
//! end, and nobody would recall it. A change by name (REMOVE, RENAME, a CREATE that truncates) is of a file that only the
//! layer below will know; while no lease is out it goes on like that, and holds back grants for as long as it takes. While
//! any is out the name is looked up first, and nobody else changes what it leads to until the change has ended.
//!
//! A change of names is a change of the directory as well, and recalls the leases of others on it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::timeout_at;
use vfs::{Caller, CreateHow, Created, Handle, Name, Result, SetAttributes, Share, StateidBasis, Status};

use super::opens::may_be_there;
use super::{Shell, State};
use crate::leases::Use;
use crate::shares::Opening;

/// What names that are changed may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victims {
    /// Anything but directories: REMOVE, truncation.
    Files,
    /// Directories: RMDIR.
    Directories,
    /// Anything: RENAME.
    Any,
}

/// Whether a file may be changed.
type Admitted<'a> = dyn Fn(&State, &Handle) -> Result<(), Status> + Send + Sync + 'a;

/// A change that is under way until this is dropped.
#[must_use]
pub(crate) struct Change {
    shell: Arc<Shell>,
    files: Vec<Handle>,
    names: Vec<(Handle, Name)>,
    nameless: bool,
}

impl Change {
    fn new(shell: &Arc<Shell>) -> Change {
        Change { shell: shell.clone(), files: Vec::new(), names: Vec::new(), nameless: false }
    }

    /// Ends it. Gives how many changes that was to the state machine.
    pub(super) fn ends(self) -> u64 {
        self.files.len() as u64 + u64::from(self.nameless)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if self.files.is_empty() && self.names.is_empty() && !self.nameless {
            return;
        }
        self.shell.with(|state, now| {
            for file in &self.files {
                state.leases.end_change(now, file);
            }
            if self.nameless {
                state.leases.end_nameless_change();
            }
            for name in &self.names {
                state.names.remove(name);
            }
        });
        if !self.names.is_empty() {
            self.shell.names_freed.notify_waiters();
        }
    }
}

impl Shell {
    /// A change of a file, if `admitted` in the moment in which nothing is in its way. Gives what that gives.
    ///
    /// # Errors
    /// Those of `admitted`; `Delay`.
    pub(crate) async fn change<T>(
        self: &Arc<Shell>,
        caller: &Caller,
        handle: &Handle,
        admitted: impl FnOnce(&State) -> Result<T, Status>,
    ) -> Result<(Change, T)> {
        self.recovered(caller, Use::Change)?;
        let mut change = Change::new(self);
        if !self.is_granting() {
            let admitted = admitted(&self.state.lock())?;
            return Ok((change, admitted));
        }
        let enter = |state: &mut State, _| {
            let admitted = admitted(state)?;
            state.leases.begin_change(handle);
            change.files.push(*handle);
            Ok::<T, Status>(admitted)
        };
        let (admitted, _) = self.when_clear(caller, handle, Use::Change, enter).await?;
        let admitted = admitted?;
        Ok((change, admitted))
    }

    /// A WRITE, or whatever else changes data. Gives the ground on which it goes on below.
    ///
    /// # Errors
    /// `BadStateId`, `OpenMode`, `ShareDenied`, `Delay`.
    pub(crate) async fn admit_write(
        self: &Arc<Shell>,
        caller: &Caller,
        handle: &Handle,
        by: StateidBasis,
    ) -> Result<(Change, StateidBasis)> {
        let unheld = self.gauges.denying_opens.load(Ordering::Acquire) == 0 && !self.is_granting();
        if by == StateidBasis::Anonymous && unheld {
            self.recovered(caller, Use::Change)?;
            return Ok((Change::new(self), by));
        }
        self.change(caller, handle, |state| state.ground(caller, handle, by, Share::WRITE)).await
    }

    /// A change of attributes; `share` is what of the data changes with them. What the caller's own opens deny does not
    /// count: a SETATTR of a v4 client does not say here for which of them it comes.
    pub(crate) async fn admit_change(
        self: &Arc<Shell>,
        caller: &Caller,
        handle: &Handle,
        share: Share,
    ) -> Result<Change> {
        let admit = |state: &State| state.shares.admit(handle, share, caller.holder);
        self.change(caller, handle, admit).await.map(|(change, ())| change)
    }

    /// A change of names: of the directories that they are in, and of whatever they lead to, which is one of `victims`.
    /// Only if any lease on such is out does it cost a LOOKUP each.
    ///
    /// # Errors
    /// `Delay`; those of LOOKUP but `NoEnt`.
    pub(crate) async fn change_names(
        self: &Arc<Shell>,
        caller: &Caller,
        names: &[(&Handle, &Name)],
        victims: Victims,
    ) -> Result<(Change, Change)> {
        let directories: Vec<&Handle> = names.iter().map(|(directory, _)| *directory).collect();
        let directories = self.change_directories(caller, &directories).await?;
        Ok((directories, self.change_names_if(caller, names, victims, None).await?))
    }

    /// A change of names in directories, whatever becomes of what they lead to.
    ///
    /// # Errors
    /// `Delay`.
    pub(crate) async fn change_directories(
        self: &Arc<Shell>,
        caller: &Caller,
        directories: &[&Handle],
    ) -> Result<Change> {
        self.recovered(caller, Use::Change)?;
        let mut change = Change::new(self);
        if !self.is_granting() {
            return Ok(change);
        }
        for (at, directory) in directories.iter().enumerate() {
            if directories[..at].contains(directory) {
                continue;
            }
            let enter = |state: &mut State, _| {
                state.leases.begin_change(directory);
                change.files.push(**directory);
            };
            self.when_clear(caller, directory, Use::Change, enter).await?;
        }
        Ok(change)
    }

    /// A change of the data that a name leads to, if it leads to any: truncation. Only if any lease is out, or any open
    /// denies something, does it cost a LOOKUP.
    ///
    /// # Errors
    /// `ShareDenied`; those of [`Shell::change_names`].
    pub(crate) async fn change_data(
        self: &Arc<Shell>,
        caller: &Caller,
        name: (&Handle, &Name),
        opening: Option<&Opening>,
    ) -> Result<Change> {
        let denying = self.gauges.denying_opens.load(Ordering::Acquire) > 0;
        let denies = opening.is_some_and(|opening| !opening.deny.is_empty());
        if !denying && !denies {
            return self.change_names_if(caller, &[name], Victims::Files, None).await;
        }
        let admitted = |state: &State, file: &Handle| match opening {
            Some(opening) => state.shares.check(file, opening),
            None => state.shares.admit(file, Share::WRITE, caller.holder),
        };
        self.change_names_if(caller, &[name], Victims::Files, Some(&admitted)).await
    }

    /// CREATE: of a name that is probably not there so that it fails if it is, which needs no look at what that would be.
    pub(crate) async fn create(
        self: &Arc<Shell>,
        caller: &Caller,
        (directory, name): (&Handle, &Name),
        how: CreateHow,
        set: &SetAttributes,
    ) -> Result<Created> {
        let _change = self.change_directories(caller, &[directory]).await?;
        let truncates = how == CreateHow::Unchecked && set.size.is_some();
        if truncates && self.may_guard(caller, directory, name) {
            match self.below.create(caller, directory, name, CreateHow::Guarded, set).await {
                Err(error) if may_be_there(error.status) => {}
                made => return made,
            }
        }
        let _truncation =
            if truncates { Some(self.change_data(caller, (directory, name), None).await?) } else { None };
        let mut created = self.below.create(caller, directory, name, how, set).await?;
        created.node.attributes = self.trusted(caller, &created.node.handle, created.node.attributes);
        Ok(created)
    }

    async fn change_names_if(
        self: &Arc<Shell>,
        caller: &Caller,
        names: &[(&Handle, &Name)],
        victims: Victims,
        admitted: Option<&Admitted<'_>>,
    ) -> Result<Change> {
        self.recovered(caller, Use::Change)?;
        let mut change = Change::new(self);
        if self.is_granting() {
            // First of all, so that what is not out now will not be when the change comes.
            self.with(|state, _| state.leases.begin_nameless_change());
            change.nameless = true;
        }
        if !self.may_be_leased(victims) && admitted.is_none() {
            return Ok(change);
        }
        self.reserve_names(caller, names, &mut change).await?;
        let mut files: Vec<Handle> = Vec::with_capacity(names.len());
        for (directory, name) in names {
            match self.below.lookup(caller, directory, name, vfs::Want::None).await {
                Ok(looked) => files.push(looked.node.handle),
                Err(error) if error.status == Status::NoEnt => {}
                Err(error) => return Err(error),
            }
        }
        if files.len() == names.len() && std::mem::take(&mut change.nameless) {
            // From here on the files are known, and no others need to suffer.
            self.with(|state, _| state.leases.end_nameless_change());
        }
        for file in files {
            let enter = |state: &mut State, _| {
                if let Some(admitted) = admitted {
                    admitted(state, &file)?;
                }
                state.leases.begin_change(&file);
                change.files.push(file);
                Ok::<(), Status>(())
            };
            self.when_clear(caller, &file, Use::Change, enter).await?.0?;
        }
        Ok(change)
    }

    /// Is any lease out on such files?
    fn may_be_leased(&self, victims: Victims) -> bool {
        let files = || self.gauges.file_leases.load(Ordering::Acquire) > 0;
        let directories = || self.gauges.directory_leases.load(Ordering::Acquire) > 0;
        match victims {
            Victims::Files => files(),
            Victims::Directories => directories(),
            Victims::Any => files() || directories(),
        }
    }

    /// A LINK: a change of the directory, of the file, and of what the name leads to.
    pub(crate) async fn change_link(
        self: &Arc<Shell>,
        caller: &Caller,
        file: &Handle,
        name: (&Handle, &Name),
    ) -> Result<(Change, Change)> {
        let mut named = self.change_directories(caller, &[name.0]).await?;
        if self.is_granting() {
            // Even if no lease is out: unlike other changes of names this one does not keep any from being granted.
            self.reserve_names(caller, &[name], &mut named).await?;
        }
        Ok((named, self.admit_change(caller, file, Share::empty()).await?))
    }

    /// Waits until nobody else changes what these names lead to, and lets nobody until the change has ended: otherwise a
    /// name could lead to another file than the one whose leases were recalled.
    async fn reserve_names(
        self: &Arc<Shell>,
        caller: &Caller,
        names: &[(&Handle, &Name)],
        change: &mut Change,
    ) -> Result<()> {
        let wanted: Vec<(Handle, Name)> =
            names.iter().map(|(directory, name)| (**directory, (*name).clone())).collect();
        let limit = self.patience_of(caller);
        loop {
            let freed = self.names_freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            let reserved = self.with(|state, _| {
                let free = !wanted.iter().any(|name| state.names.contains(name));
                if free {
                    state.names.extend(wanted.iter().cloned());
                }
                free
            });
            if reserved {
                change.names = wanted;
                return Ok(());
            }
            timeout_at(limit, freed).await.map_err(|_| Status::Delay)?;
        }
    }
}
