//! Changes in flight: while a change runs, no lease is granted that the change would break.
//!
//! The reply to an open may overtake a change. Otherwise the open would grant a lease on a state that the
//! change is about to end, and no recall would follow. For a change by name (REMOVE, RENAME, a truncating
//! CREATE) only the layer below knows the file. If no lease is held, such a change proceeds, and no lease
//! is granted while it runs. If any lease is held, the arbiter looks the name up first. Then no other
//! request may change the meaning of the name until the change has ended.
//!
//! A change of names also changes the directory, and recalls the leases of other clients on it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::timeout_at;
use vfs::{Caller, CreateHow, Created, Handle, Name, Result, SetAttributes, Share, StateidBasis, Status};

use super::opens::may_be_there;
use super::{Shell, State};
use crate::leases::Use;
use crate::shares::Opening;

/// The files that a changed name may lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victims {
    /// Anything but directories: REMOVE, truncation.
    Files,
    /// Directories: RMDIR.
    Directories,
    /// Anything: RENAME.
    Any,
}

/// Decides whether a file may be changed.
type Admitted<'a> = dyn Fn(&State, &Handle) -> Result<(), Status> + Send + Sync + 'a;

/// A change in flight, until this is dropped.
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

    /// Ends the change. Returns how many changes that is in the state machine.
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
    /// Admits a change of a file, if `admitted` agrees at the moment without conflicts. Returns its result.
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

    /// Admits a WRITE or another change of data. Returns the stateid basis for the layer below.
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
        self.change(caller, handle, |state| state.stateid_basis(caller, handle, by, Share::WRITE)).await
    }

    /// Admits a change of attributes; `share` is the access to data that it includes. Denials of the
    /// caller's own opens do not count: a SETATTR of a v4 client does not name its open here.
    pub(crate) async fn admit_change(
        self: &Arc<Shell>,
        caller: &Caller,
        handle: &Handle,
        share: Share,
    ) -> Result<Change> {
        let admit = |state: &State| state.shares.admit(handle, share, caller.holder);
        self.change(caller, handle, admit).await.map(|(change, ())| change)
    }

    /// Admits a change of names: of their directories, and of the files that the names lead to, which are
    /// among `victims`. It costs a LOOKUP for each name, but only if a lease on such files is held.
    ///
    /// # Errors
    /// `Delay`; those of LOOKUP except `NoEnt`.
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

    /// Admits a change of names in directories, without regard to the files that the names lead to.
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

    /// Admits a change of the data of the file under a name, if there is one: truncation. It costs a
    /// LOOKUP, but only if any lease is held or any open denies access.
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
        let denies = opening.is_some_and(|opening| !opening.shares.deny.is_empty());
        if !denying && !denies {
            return self.change_names_if(caller, &[name], Victims::Files, None).await;
        }
        let admitted = |state: &State, file: &Handle| match opening {
            Some(opening) => state.shares.check(file, opening),
            None => state.shares.admit(file, Share::WRITE, caller.holder),
        };
        self.change_names_if(caller, &[name], Victims::Files, Some(&admitted)).await
    }

    /// CREATE. If the name probably does not exist, the first attempt is a guarded create, which needs no
    /// check of an existing file.
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
            // Before the check of the gauges, so that no lease is granted between the check and the change.
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
            // From now on the files are known, so grants on other files are possible again.
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

    /// Is a lease held on any such file?
    fn may_be_leased(&self, victims: Victims) -> bool {
        let files = || self.gauges.file_leases.load(Ordering::Acquire) > 0;
        let directories = || self.gauges.directory_leases.load(Ordering::Acquire) > 0;
        match victims {
            Victims::Files => files(),
            Victims::Directories => directories(),
            Victims::Any => files() || directories(),
        }
    }

    /// Admits a LINK: a change of the directory, of the file, and of the file under the name.
    pub(crate) async fn change_link(
        self: &Arc<Shell>,
        caller: &Caller,
        file: &Handle,
        name: (&Handle, &Name),
    ) -> Result<(Change, Change)> {
        let mut named = self.change_directories(caller, &[name.0]).await?;
        if self.is_granting() {
            // Even if no lease is held: unlike other changes of names, this one does not prevent grants.
            self.reserve_names(caller, &[name], &mut named).await?;
        }
        Ok((named, self.admit_change(caller, file, Share::empty()).await?))
    }

    /// Waits until no other request changes these names, and reserves them until the change has ended.
    /// Otherwise a name could lead to another file than the one whose leases were recalled.
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
