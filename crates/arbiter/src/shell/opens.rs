//! Opens: first at the layer below, then checked against what other clients hold, then granted.
//!
//! The layer below knows which file a name leads to, so its reply comes first. Then one atomic step checks
//! shares and leases of others, enters the open, and grants a lease. Until then no client knows of the
//! open; if it is denied, it is closed at the layer below. An open that truncates is also a change, and is
//! admitted as a change first.
//!
//! Each open at the layer below has its own owner, so that replies and closes of one client owner may
//! cross. A layer that checked share reservations between these opens would apply a client's denial to the
//! same client's next open. The present layers of that kind merge all opens of the arbiter into one.

mod stateless;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use vfs::{
    Caller, CreateHow, Handle, Lease, Name, OpenId, OpenRequest, Opened, Owner, Result, Share, Shares,
    Status, Want,
};

use super::changes::Change;
use super::{Shell, State, detach};
use crate::leases::{GrantInFlight, Use, Wanted};
use crate::shares::Opening;

/// How often an open starts again because its file has lost its last name meanwhile.
const OPENS_MAX: usize = 16;

/// An open at the layer below. An extended open of a client has several there: each had its own permission
/// check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Below {
    id: OpenId,
    shares: Shares,
}

/// An open that was not entered yet. Dropping it undoes the open.
pub(super) struct UnderWay {
    shell: Arc<Shell>,
    caller: Caller,
    grant: Option<GrantInFlight>,
    handle: Option<Handle>,
    below: Option<Below>,
}

impl UnderWay {
    pub(super) fn new(shell: &Arc<Shell>, caller: &Caller, grant: GrantInFlight) -> UnderWay {
        let (shell, caller) = (shell.clone(), caller.clone());
        UnderWay { shell, caller, grant: Some(grant), handle: None, below: None }
    }

    /// The layer below has answered, with this file.
    pub(super) fn ended(&mut self, handle: &Handle) {
        (self.grant, self.handle) = (None, Some(*handle));
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.grant.is_some() || self.handle.is_some() {
            self.shell.with(|state, now| {
                if let Some(grant) = self.grant.take() {
                    state.leases.end_open(grant);
                }
                if let Some(handle) = &self.handle {
                    state.let_go(now, handle);
                }
            });
        }
        if let Some(below) = self.below.take() {
            let (shell, caller) = (self.shell.clone(), self.caller.clone());
            detach(async move { shell.close_below(&caller, &[below.id]).await.unwrap_or_default() });
        }
    }
}

/// The result of entering an open.
struct Entered {
    id: OpenId,
    /// The open is new, not an extension of an existing one.
    new: bool,
    /// The open below has access or a denial that the earlier ones lack.
    useful: bool,
    lease: Option<Lease>,
    /// The attributes may be older than a change that has ended.
    outdated: bool,
}

/// An open that was entered but not reported to the requester. Dropping it undoes the open.
struct Unsaid<'a> {
    shell: &'a Arc<Shell>,
    caller: &'a Caller,
    entered: Option<Entered>,
}

impl Unsaid<'_> {
    fn said(mut self) {
        self.entered = None;
    }
}

impl Drop for Unsaid<'_> {
    fn drop(&mut self) {
        let Some(entered) = self.entered.take() else { return };
        if let Some(lease) = entered.lease {
            self.shell.returned(lease.id);
        }
        if entered.new {
            let (shell, caller) = (self.shell.clone(), self.caller.clone());
            detach(async move { shell.close(&caller, entered.id).await.unwrap_or_default() });
        }
    }
}

impl Shell {
    /// OPEN. If `term` is given, a lease that is granted with it ends by itself after that time.
    ///
    /// While the open waits for a lease, the holder may rename another file over the name. The holder then
    /// drops its unsent data of the replaced file with the last link. So the open starts again with the
    /// file that the name leads to now.
    pub(crate) async fn open(
        self: &Arc<Shell>,
        caller: &Caller,
        request: &OpenRequest,
        term: Option<Duration>,
    ) -> Result<Opened> {
        for _ in 1..OPENS_MAX {
            if let Some(opened) = self.open_if_named(caller, request, term).await? {
                return Ok(opened);
            }
        }
        // A name whose file is replaced each time counts as removed.
        self.open_if_named(caller, request, term).await?.ok_or(Status::NoEnt.into())
    }

    /// One attempt of an open. `None` if the file has lost its last name while the open waited for a lease
    /// on it.
    async fn open_if_named(
        self: &Arc<Shell>,
        caller: &Caller,
        request: &OpenRequest,
        term: Option<Duration>,
    ) -> Result<Option<Opened>> {
        let opening =
            Opening { holder: caller.holder, owner: request.owner.clone(), shares: request.shares() };
        if request.name.is_none() {
            self.state.lock().shares.check(&request.handle, &opening)?;
        }
        if self.is_probably_new(caller, request)
            && let Some(made) = self.make_new(caller, request, term).await
        {
            return made.map(Some);
        }
        let changes = self.changes_of(caller, request, &opening).await?;
        let mut grant = self.with(|state, _| state.leases.begin_open());
        let mut under_way = UnderWay::new(self, caller, grant);
        let mut opened = self.open_below(caller, request, &mut under_way).await?;
        self.with(|state, _| {
            state.leases.granted_below(&opened.handle, opened.lease.take());
            state.leases.end_open(grant);
        });
        under_way.ended(&opened.handle);
        // The attributes include this open's own changes.
        grant.allow(changes.into_iter().flatten().map(Change::ends).sum());
        let (entered, waited) =
            self.enter(caller, request, (opening, term), &opened, &under_way, grant).await?;
        under_way.handle = None;
        if entered.useful {
            under_way.below = None;
        }
        (opened.id, opened.lease) = (entered.id, entered.lease);
        if waited || (entered.outdated && entered.lease.is_some()) {
            let unsaid = Unsaid { shell: self, caller, entered: Some(entered) };
            self.read_anew(caller, &mut opened).await;
            if waited && is_by_name(request) && opened.attributes.nlink == 0 {
                return Ok(None);
            }
            unsaid.said();
        }
        Ok(Some(opened))
    }

    /// One atomic step: no conflict exists, the open is entered, and a lease is granted with it.
    async fn enter(
        self: &Arc<Shell>,
        caller: &Caller,
        request: &OpenRequest,
        (opening, term): (Opening, Option<Duration>),
        opened: &Opened,
        under_way: &UnderWay,
        grant: GrantInFlight,
    ) -> Result<(Entered, bool)> {
        let changes = opening.shares.access.contains(Share::WRITE) || !opening.shares.deny.is_empty();
        let usage = if changes { Use::Change } else { Use::Read };
        let (handle, fresh) = (opened.handle, self.open_id());
        // A front that takes no callbacks could not return a lease.
        let (below, granting) = (under_way.below, self.is_granting() && !self.up.is_closed());
        let enter = |state: &mut State, now: Instant| {
            let access = opening.shares.access;
            let id = state.shares.open(&handle, fresh, opening)?;
            let new = id == fresh;
            let useful = below.is_some_and(|below| state.add_below(id, below));
            if !granting {
                return Ok(Entered { id, new, useful, lease: None, outdated: false });
            }
            let others = state.shares.others(&handle, caller.holder);
            let change = opened.attributes.change;
            let (holder, want, directory) = (caller.holder, request.want, false);
            let wanted = Wanted { holder, access, want, others, change, directory, term };
            state.leases.touch(now, &handle, caller.holder);
            let lease = state.leases.grant(now, &handle, &wanted);
            let outdated = state.leases.changed_since(grant);
            Ok::<Entered, Status>(Entered { id, new, useful, lease, outdated })
        };
        let (entered, waited) = if request.reclaim {
            self.when_others_allow(caller, &handle, usage, enter).await?
        } else {
            self.when_clear(caller, &handle, usage, enter).await?
        };
        Ok((entered?, waited))
    }

    /// Reads the attributes again after the open was entered. If that fails, the lease is returned.
    async fn read_anew(self: &Arc<Shell>, caller: &Caller, opened: &mut Opened) {
        match self.below.getattr(caller, &opened.handle).await {
            Ok(attributes) => {
                opened.attributes = attributes;
                if let Some(lease) = &mut opened.lease {
                    lease.change = attributes.change;
                    self.with(|state, _| state.leases.vouch(lease.id, attributes.change));
                }
            }
            Err(_) => {
                if let Some(lease) = opened.lease.take() {
                    self.returned(lease.id);
                }
            }
        }
    }

    /// Admits the changes that an open may make before it is entered: of the directory, and of the file.
    async fn changes_of(
        self: &Arc<Shell>,
        caller: &Caller,
        request: &OpenRequest,
        opening: &Opening,
    ) -> Result<[Option<Change>; 2]> {
        let (Some(name), Some((how, set))) = (&request.name, &request.create) else {
            return Ok([None, None]);
        };
        let directory = self.change_directories(caller, &[&request.handle]).await?;
        let truncates = *how == CreateHow::Unchecked && set.size.is_some();
        let file = if truncates {
            Some(self.change_data(caller, (&request.handle, name), Some(opening)).await?)
        } else {
            None
        };
        Ok([Some(directory), file])
    }

    /// Is it an open that would truncate an existing file, but the name probably does not exist?
    fn is_probably_new(&self, caller: &Caller, request: &OpenRequest) -> bool {
        let (Some(name), Some((CreateHow::Unchecked, set))) = (&request.name, &request.create) else {
            return false;
        };
        set.size.is_some() && self.may_guard(caller, &request.handle, name)
    }

    /// May a guarded create be tried? It fails if the name exists, so it needs no check of an existing
    /// file. But a resent request might find the file that it created itself.
    pub(crate) fn may_guard(&self, caller: &Caller, directory: &Handle, name: &Name) -> bool {
        !caller.resent && self.below.is_remembered(directory, name) == Some(false)
    }

    /// The open as a guarded create. `None` if the name may exist.
    async fn make_new(
        self: &Arc<Shell>,
        caller: &Caller,
        request: &OpenRequest,
        term: Option<Duration>,
    ) -> Option<Result<Opened>> {
        let create = request.create.as_ref().map(|(_, set)| (CreateHow::Guarded, *set));
        let guarded = OpenRequest { create, ..request.clone() };
        match Box::pin(self.open(caller, &guarded, term)).await {
            Err(error) if may_be_there(error.status) => None,
            made => Some(made),
        }
    }

    async fn open_below(
        self: &Arc<Shell>,
        caller: &Caller,
        request: &OpenRequest,
        under_way: &mut UnderWay,
    ) -> Result<Opened> {
        if self.stateless.load(Ordering::Relaxed) {
            return self.open_stateless(caller, request).await;
        }
        let useful = self.is_granting() && caller.holder.is_some() && request.want != Want::None;
        let passed = OpenRequest {
            owner: Owner(Bytes::copy_from_slice(&self.open_id().0.to_be_bytes())),
            want: if useful { Want::Any } else { Want::None },
            ..request.clone()
        };
        match self.below.open(caller, &passed).await {
            Ok(opened) => {
                under_way.below = Some(Below { id: opened.id, shares: request.shares() });
                Ok(opened)
            }
            Err(error) if error.status == Status::NotSupp => {
                self.stateless.store(true, Ordering::Relaxed);
                self.open_stateless(caller, request).await
            }
            Err(error) => Err(error),
        }
    }

    /// Reduces the share of an open, and that of its opens at the layer below where possible.
    pub(crate) async fn downgrade(
        self: &Arc<Shell>,
        caller: &Caller,
        open: OpenId,
        access: Share,
        deny: Share,
    ) -> Result<()> {
        let shares = Shares { access, deny };
        let (below, locked) = self.with(|state, _| {
            state.shares.downgrade(open, shares)?;
            let handle = state.shares.of(open).map(|(handle, _)| *handle);
            let locked = handle.is_some_and(|handle| state.locks.any_through(&handle, open));
            Ok::<_, Status>((state.below.get(&open).cloned().unwrap_or_default(), locked))
        })?;
        for part in below {
            let narrower = Below { shares: part.shares.intersection(shares), ..part };
            let Shares { access, deny } = narrower.shares;
            if access.is_empty() || self.state.lock().does_for(open, &narrower) {
                // Closing it would release locks taken through it; a larger share than needed does no harm.
                if !locked {
                    self.with(|state, _| state.forget_below(open, part.id));
                    self.close_below(caller, &[part.id]).await?;
                }
            } else if narrower.shares != part.shares
                && self.below.downgrade(caller, part.id, access, deny).await.is_ok()
            {
                self.with(|state, _| state.replace_below(open, narrower));
            }
        }
        Ok(())
    }

    /// Ends an open, and releases the locks taken through it.
    pub(crate) async fn close(self: &Arc<Shell>, caller: &Caller, open: OpenId) -> Result<()> {
        let below = self.with(|state, now| {
            let handle = state.shares.close(open)?;
            let notices = state.locks.close(now, &handle, open);
            self.notify(state, notices);
            state.let_go(now, &handle);
            Ok::<_, Status>(state.below.remove(&open).unwrap_or_default())
        })?;
        if below.is_empty() {
            return Ok(());
        }
        // The open is gone here, so the close below must run to completion even if the requester goes away.
        let (shell, caller) = (self.clone(), caller.clone());
        let close = async move {
            let below: Vec<OpenId> = below.iter().map(|below| below.id).collect();
            shell.close_below(&caller, &below).await
        };
        tokio::spawn(close).await.unwrap_or_else(|_| Err(Status::ServerFault.into()))
    }

    async fn close_below(&self, caller: &Caller, opens: &[OpenId]) -> Result<()> {
        let mut result = Ok(());
        for open in opens {
            match self.below.close(caller, *open).await {
                Err(error) if error.status != Status::BadStateId => result = Err(error),
                _ => {}
            }
        }
        self.capacity.is_more();
        result
    }

    pub(super) fn open_id(&self) -> OpenId {
        OpenId(self.next_open.fetch_add(1, Ordering::Relaxed))
    }
}

/// After this failure of a guarded create, may the name exist? Some servers check the rights to the
/// directory first.
pub(crate) fn may_be_there(status: Status) -> bool {
    matches!(status, Status::Exist | Status::Access | Status::Perm | Status::Rofs)
}

impl State {
    /// The open at the layer below that an open of a client reads or writes through.
    pub(super) fn below_of(&self, open: OpenId, share: Share) -> Option<OpenId> {
        let below = self.below.get(&open)?;
        below.iter().find(|below| below.shares.access.contains(share)).or(below.first()).map(|below| below.id)
    }

    /// All opens at the layer below that belong to an open of a client.
    pub(super) fn all_below_of(&self, open: OpenId) -> Vec<OpenId> {
        self.below.get(&open).into_iter().flatten().map(|below| below.id).collect()
    }

    /// If the file has no opens any more, the lease from below may be useless.
    fn let_go(&mut self, now: Instant, handle: &Handle) {
        if !self.shares.is_open(handle) {
            self.leases.closed(now, handle);
        }
    }

    /// Adds an open at the layer below to one of a client, unless an existing one covers it. So their
    /// number is bounded by the combinations of shares, however often a client opens a file.
    fn add_below(&mut self, open: OpenId, below: Below) -> bool {
        let useful = !self.does_for(open, &below);
        if useful {
            self.below.entry(open).or_default().push(below);
        }
        useful
    }

    /// Does another open at the layer below cover this one?
    fn does_for(&self, open: OpenId, below: &Below) -> bool {
        let others = self.below.get(&open).into_iter().flatten().filter(|part| part.id != below.id);
        others.into_iter().any(|part| part.shares.contains(below.shares))
    }

    fn forget_below(&mut self, open: OpenId, below: OpenId) {
        if let Some(parts) = self.below.get_mut(&open) {
            parts.retain(|part| part.id != below);
        }
    }

    fn replace_below(&mut self, open: OpenId, below: Below) {
        if let Some(part) =
            self.below.get_mut(&open).and_then(|parts| parts.iter_mut().find(|part| part.id == below.id))
        {
            *part = below;
        }
    }
}

/// Is it an open by name that may be repeated?
fn is_by_name(request: &OpenRequest) -> bool {
    let again = |how: &CreateHow| *how == CreateHow::Unchecked;
    request.name.is_some() && !request.reclaim && request.create.as_ref().is_none_or(|(how, _)| again(how))
}
