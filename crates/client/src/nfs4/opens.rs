//! OPEN, OPEN_DOWNGRADE and CLOSE. For operations that piggyback on an OPEN, see [`super::delegating`] and
//! [`super::io`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use protocol::nfs4::{
    AccessArgs, ArgFattr, ArgOp, Attr, CloseArgs, Createhow, Creatverfattr, Limited, LockuArgs, NfsLockType,
    NfsSpaceLimit, OPEN4_SHARE_ACCESS_WANT_ANY_DELEG, OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
    OPEN4_SHARE_ACCESS_WANT_READ_DELEG, OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, Op, OpenArgs, OpenClaim,
    OpenDelegation, OpenDowngradeArgs, OpenOk, Openflag, Operation, Results, SHORT_OWNER_BYTES, StateOwner,
    Status as Wire, op,
};
use tokio::time::timeout_at;
use vfs::replay::{self, Made};
use vfs::{
    AccessMask, Caller, CreateHow, Error, FileType, Handle, Lease, LeaseId, LeaseKind, Node, OpenId,
    OpenRequest, Opened, Owner, Principal, Read, Result, SetAttributes, Share, Status, Want, Wcc,
    WccAttributes,
};

use super::attributes::{Around, DIRECTORY, REGULAR, getattr, getattr_all, is_confirmed, put};
use super::delegating::{NotCarriedOut, Piggybacking, WithLease};
use super::durable::record::Opening;
use super::execute::Plan;
use super::io::{OPEN_BYTES, Part};
use super::state::{Combinations, Delegation, Granted, Open, State, Used, latest};
use super::{Nfs4, Nfs4Client, convert, state};

/// The rights to ask for with an open, so that no later ACCESS is needed.
const RIGHTS: AccessMask =
    AccessMask::READ.union(AccessMask::MODIFY).union(AccessMask::EXTEND).union(AccessMask::EXECUTE);

/// A client that holds state for others can give some of it up when the origin has no capacity for more. So
/// its OPEN fails with `Resource` once the origin has said DELAY for this long. That is longer than a recall
/// at the origin delays any requester.
const DELAYS_MAX: Duration = Duration::from_secs(5);

/// Encodes an owner for the wire. The origin reports it to other clients in the reply to a denied LOCK. Not
/// all clients have space for a long owner, so a long owner goes by its hash.
pub(super) fn wire_owner(owner: &Owner) -> StateOwner {
    let is_short = owner.0.len() <= SHORT_OWNER_BYTES;
    let bytes = if is_short { owner.0.clone() } else { Bytes::copy_from_slice(&hashed(&owner.0)) };
    StateOwner { clientid: 0, owner: Limited::new(bytes).unwrap_or_default() }
}

fn hashed(bytes: &[u8]) -> [u8; 16] {
    use std::hash::{DefaultHasher, Hasher};
    let of = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(salt);
        hasher.write(bytes);
        hasher.finish().to_be_bytes()
    };
    let mut both = [0; 16];
    both[..8].copy_from_slice(&of(1));
    both[8..].copy_from_slice(&of(2));
    both
}

/// The arguments of an OPEN.
pub(super) fn open_args(
    owner: &Owner,
    (access, deny): (Share, Share),
    want: u32,
    openhow: Openflag,
    claim: OpenClaim,
) -> OpenArgs {
    OpenArgs {
        seqid: 0,
        share_access: u32::from(access.bits()) | want,
        share_deny: u32::from(deny.bits()),
        owner: wire_owner(owner),
        openhow,
        claim,
    }
}

impl Nfs4 {
    /// Runs work that changes our state at the origin to completion, even if the caller stops waiting. If
    /// nobody waits for the result, `undo` reverts it.
    pub(super) async fn to_the_end<T, F, U>(&self, caller: &Caller, work: F, undo: U) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
        U: FnOnce(Arc<Nfs4Client>, T) + Send + 'static,
    {
        let inner = self.inner.clone();
        let work = vfs::run_to_completion_or(work, |unheard| {
            if let Ok(unheard) = unheard {
                undo(inner, unheard);
            }
        });
        match caller.deadline {
            Some(deadline) => timeout_at(deadline, work).await.map_err(|_| Status::Delay)?,
            None => work.await,
        }
    }

    pub(super) async fn open_file(&self, caller: &Caller, request: &OpenRequest) -> Result<Opened> {
        let inner = self.inner.clone();
        let (asker, wanted) = (caller.clone(), request.clone());
        let work = async move { Ok(inner.open_once(&asker, &wanted).await) };
        let undo = |inner: Arc<Nfs4Client>, (opened, _): (Result<Opened>, bool)| {
            if let Ok(opened) = opened {
                inner.forget(&opened);
            }
        };
        match self.to_the_end(caller, work, undo).await? {
            (Err(failed), true) => self.open_made(caller, request, failed).await,
            (result, _) => result,
        }
    }

    /// Opens a file. If the open creates nothing, its compound also has the READ and the request for a
    /// delegation of the directory that `request` wants.
    pub(super) async fn open_file_with_piggyback(
        &self,
        caller: &Caller,
        request: &OpenRequest,
    ) -> Result<Opened> {
        let part = request.read_first;
        let delegate = request.want_directory_lease && request.name.is_some();
        if request.create.is_some() || (part.is_none() && !delegate) {
            return self.open_file(caller, request).await;
        }
        let inner = self.inner.clone();
        let (asker, wanted) = (caller.clone(), request.clone());
        let work = async move {
            let piggybacking =
                if delegate { inner.piggybacking(&wanted.handle) } else { Piggybacking::Never };
            match inner.open_with(&asker, &wanted, Piggyback { piggybacking, part }).await {
                Ok(came) => Ok((WithLease { result: came.result, lease: came.lease }, came.read)),
                Err(NotCarriedOut) => Ok((WithLease::alone(inner.open_once(&asker, &wanted).await.0), None)),
            }
        };
        let undo = |inner: Arc<Nfs4Client>, (unheard, _): (WithLease<Opened>, Option<Read>)| {
            unheard.lease.into_iter().for_each(|(lease, _)| inner.return_soon(lease.id));
            unheard.result.iter().for_each(|opened| inner.forget(opened));
        };
        let (opened, read) = self.to_the_end(caller, work, undo).await?;
        opened.into_result().map(|opened| Opened { read: read.map(Box::new), ..opened })
    }

    /// The name exists already. Finds out whether we created it with a call whose answer was lost.
    async fn open_made(&self, caller: &Caller, request: &OpenRequest, failed: vfs::Error) -> Result<Opened> {
        let (Some(name), Some((CreateHow::Guarded, set))) = (&request.name, &request.create) else {
            return Err(failed);
        };
        let made = Made::Node { file_type: FileType::Regular, set };
        let created = replay::made(self, caller, &request.handle, name, failed, made).await?;
        let by_handle =
            OpenRequest { handle: created.node.handle, name: None, create: None, ..request.clone() };
        let opened = Box::pin(self.open_file(caller, &by_handle)).await?;
        Ok(Opened { directory: created.directory, created: true, ..opened })
    }

    pub(super) async fn downgrade_open(
        &self,
        caller: &Caller,
        id: OpenId,
        access: Share,
        deny: Share,
    ) -> Result<()> {
        let (inner, asker) = (self.inner.clone(), caller.clone());
        let work = async move { inner.downgrade(&asker, id, access, deny).await };
        self.to_the_end(caller, work, |_, ()| {}).await
    }

    pub(super) async fn close_open(&self, caller: &Caller, id: OpenId) -> Result<()> {
        // From here on the id is invalid, and an OPEN that is answered later is another open.
        let open = self.inner.state.lock().close(id).ok_or(Status::BadStateId)?;
        let (inner, asker) = (self.inner.clone(), caller.clone());
        self.to_the_end(caller, async move { inner.close(&asker, id, open).await }, |_, ()| {}).await
    }
}

impl Nfs4Client {
    /// The delegation to ask for: none if the layer above does not listen for recalls.
    fn want(&self, want: Want) -> u32 {
        match want {
            _ if !self.back.listening() => OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
            Want::Any => OPEN4_SHARE_ACCESS_WANT_ANY_DELEG,
            Want::None => OPEN4_SHARE_ACCESS_WANT_NO_DELEG,
            Want::Read => OPEN4_SHARE_ACCESS_WANT_READ_DELEG,
            Want::Write => OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG,
        }
    }

    /// The `createhow4` of a request. An exclusive create carries only the attributes that the origin can set
    /// with it.
    pub(super) fn create_how(&self, how: CreateHow, set: &SetAttributes) -> Createhow {
        match how {
            CreateHow::Unchecked => Createhow::Unchecked(convert::arg(set)),
            CreateHow::Guarded => Createhow::Guarded(convert::arg(set)),
            CreateHow::Exclusive(verf) => {
                let mut attrs = convert::to_set(set);
                attrs.retain(self.export().exclusive);
                Createhow::Exclusive41(Creatverfattr { verf, attrs: ArgFattr::from(attrs) })
            }
        }
    }

    /// The attributes that an exclusive create could not set. Times that the caller does not set stay as they
    /// are: they may hold the create's verifier, which identifies the file if the create is sent again.
    pub(super) fn left_to_set(&self, how: CreateHow, set: &SetAttributes) -> Option<SetAttributes> {
        if !matches!(how, CreateHow::Exclusive(_)) {
            return None;
        }
        let exclusive = self.export().exclusive;
        let unset = |attr: Attr| !exclusive.contains(attr);
        let left = SetAttributes {
            mode: set.mode.filter(|_| unset(Attr::Mode)),
            uid: set.uid.filter(|_| unset(Attr::Owner)),
            gid: set.gid.filter(|_| unset(Attr::OwnerGroup)),
            size: set.size.filter(|size| *size > 0 && unset(Attr::Size)),
            atime: set.atime.filter(|_| unset(Attr::TimeAccessSet)),
            mtime: set.mtime.filter(|_| unset(Attr::TimeModifySet)),
        };
        (left != SetAttributes::default()).then_some(left)
    }

    /// Sends one OPEN. The flag is true if a failure may be due to an earlier execution of the same OPEN.
    async fn open_once(&self, caller: &Caller, request: &OpenRequest) -> (Result<Opened>, bool) {
        let opening = self.open_with(caller, request, Piggyback::NOTHING).await;
        opening.map_or((Err(Status::ServerFault.into()), false), |opening| (opening.result, opening.again))
    }

    /// Sends one OPEN, with the operations that piggyback on it.
    async fn open_with(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        with_piggyback: Piggyback,
    ) -> std::result::Result<Came, NotCarriedOut> {
        let in_flight = self.back.opening();
        let opening = self.state.lock().opening(Opening {
            handle: request.handle,
            name: request.name.clone(),
            owner: request.owner.clone(),
            principal: caller.principal.clone(),
        });
        let want = self.want(request.want);
        let with_piggyback = with_piggyback.with(|part| self.may_piggyback(part));
        let build = |_: &State| Ok((self.open_operations(request, want, with_piggyback)?, Used::Nothing));
        let plan = Plan::stateful(Operation::Open);
        let plan = with_piggyback.part.map_or(plan, |(_, count)| plan.answered_with(OPEN_BYTES + count));
        let for_another = caller.holder.is_some() && self.holds_for_others.load(Ordering::Relaxed);
        let plan = if for_another { plan.told_of_delays(DELAYS_MAX) } else { plan };
        let ran = match self.run(caller, plan, build).await {
            Ok(ran) => ran,
            Err(failed) => {
                if failed.status == Status::Resource {
                    // The origin has said that it did nothing.
                    self.state.lock().opening_ended(opening);
                }
                return Ok(Came { result: Err(failed), lease: None, read: None, again: false });
            }
        };
        let again = ran.again;
        let mut results = ran.results;
        let opened = self.opened(caller, request, &mut results, with_piggyback);
        self.state.lock().opening_ended(opening);
        let WithLease { result, lease } = opened?;
        let complete = result.as_ref().is_ok_and(|half| half.complete);
        let last = || {
            if complete {
                self.take_last(caller, &request.handle, with_piggyback.piggybacking, &mut results)
            } else {
                None
            }
        };
        let lease = lease.or_else(last);
        let known = result.as_ref().ok().and_then(|half| half.attributes);
        let read = with_piggyback
            .part
            .zip(known)
            .and_then(|(part, attributes)| self.take_piggybacked_read(&mut results, part, attributes));
        drop(in_flight);
        let result = match result {
            Ok(half) => self.complete(caller, request, half).await,
            Err(failed) => Err(failed),
        };
        Ok(Came { result, lease, read, again })
    }

    /// The operations of an OPEN. GETATTR of the directory follows the OPEN, which may have changed the
    /// directory. With a READ, the GETATTR comes before the OPEN, so that the file stays the current
    /// filehandle; such an OPEN creates nothing.
    fn open_operations(
        &self,
        request: &OpenRequest,
        want: u32,
        with_piggyback: Piggyback,
    ) -> Result<Vec<ArgOp>> {
        let share = (request.access, request.deny);
        let rights = op::Access::with(AccessArgs { access: RIGHTS.bits() });
        let Some(name) = &request.name else {
            let open = open_args(&request.owner, share, want, Openflag::Nocreate, OpenClaim::Fh);
            let mut operations = vec![put(&request.handle)?, op::Open::with(open), rights, getattr_all()];
            operations.extend(with_piggyback.part.map(Nfs4Client::piggyback_read));
            return Ok(operations);
        };
        let openhow = match &request.create {
            None => Openflag::Nocreate,
            Some((how, set)) => Openflag::Create(self.create_how(*how, set)),
        };
        let claim = OpenClaim::Null(convert::component(name));
        let mut operations = vec![put(&request.handle)?];
        operations.extend(with_piggyback.piggybacking.first());
        operations.push(if with_piggyback.is_seen_first() {
            getattr_all()
        } else {
            getattr(convert::BEFORE)
        });
        operations.extend(with_piggyback.part.is_none().then(|| op::Savefh::with(())));
        operations.extend([
            op::Open::with(open_args(&request.owner, share, want, openhow, claim)),
            op::Getfh::with(()),
            rights,
            getattr_all(),
        ]);
        match with_piggyback.part {
            Some(part) => operations.push(Nfs4Client::piggyback_read(part)),
            None => operations.extend([op::Restorefh::with(()), getattr_all()]),
        }
        operations.extend(with_piggyback.piggybacking.last());
        Ok(operations)
    }

    /// Enters the results of an OPEN, up to [`Piggybacking::last`].
    fn opened(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        results: &mut Results,
        with_piggyback: Piggyback,
    ) -> std::result::Result<WithLease<Half>, NotCarriedOut> {
        if let Err(failed) = self.take::<op::Putfh>(results) {
            return Ok(WithLease::alone(Err(failed)));
        }
        if request.name.is_none() || !with_piggyback.is_seen_first() {
            let before = match &request.name {
                Some(_) => self.take_before(results),
                None => Ok(None),
            };
            let seen = before.map(|before| Above { before, all: None });
            let half =
                seen.and_then(|above| self.opened_file(caller, request, results, (above, with_piggyback)));
            return Ok(WithLease::alone(half));
        }
        let promised = self.take_first(caller, &request.handle, with_piggyback.piggybacking, results)?;
        // The handle may not name a directory. That is the caller's mistake, and not nonsense from the
        // origin.
        let above = self.take_attributes(results, &request.handle, None).and_then(|above| {
            if above.is_dir() { Ok(above) } else { Err(Error::from(Status::NotDir).with(Some(above))) }
        });
        let lease = self.vouched(promised, above.as_ref().ok().copied());
        let result = above.and_then(|above| {
            let seen = Above { before: Some(above.wcc()), all: Some(above) };
            let half = self.opened_file(caller, request, results, (seen, with_piggyback));
            let old = |failed: &Error| failed.status == Status::NoEnt && lease.is_none();
            half.map_err(|failed| match failed.attributes {
                // A proxy may answer the operations before the OPEN from its cache, while this NOENT is
                // newer. So NOENT gets these attributes only with a delegation.
                None if !old(&failed) => failed.with(Some(above)),
                _ => failed,
            })
        });
        Ok(WithLease { result, lease })
    }

    /// Enters the results of OPEN and what follows it. The file's attributes are `None` if the compound did
    /// not return them.
    fn opened_file(
        &self,
        caller: &Caller,
        request: &OpenRequest,
        results: &mut Results,
        (above, with_piggyback): (Above, Piggyback),
    ) -> Result<Half> {
        if request.name.is_some() && with_piggyback.part.is_none() {
            self.take::<op::Savefh>(results)?;
        }
        // Servers say SERVERFAULT if they have no capacity for one more open file (ENFILE). They do not say
        // that waiting may help.
        let full = |failed: Error| match failed.status {
            Status::ServerFault => Status::Resource.into(),
            _ => failed,
        };
        let ok = self.take::<op::Open>(results).map_err(full)?;
        let handle = match request.name {
            Some(_) => self.take_handle(results)?,
            None => request.handle,
        };
        let granted = Granted {
            handle,
            owner: request.owner.clone(),
            access: request.access,
            deny: request.deny,
            principal: caller.principal.clone(),
            stateid: ok.stateid,
        };
        let id = self.state.lock().opened(granted);
        let lease = self.delegated(&handle, &caller.principal, &ok.delegation, request.want);
        let half = self.rest_of_open(request, results, (id, handle, lease), (above, with_piggyback, &ok));
        match half {
            Ok(half) => Ok(half),
            Err(failed) => {
                self.let_go(id, lease.map(|lease| lease.id));
                Err(failed)
            }
        }
    }

    fn rest_of_open(
        &self,
        request: &OpenRequest,
        results: &mut Results,
        (id, handle, lease): (OpenId, Handle, Option<Given>),
        (above, with_piggyback, ok): (Above, Piggyback, &OpenOk),
    ) -> Result<Half> {
        let rights = results.take::<op::Access>().ok();
        let granted = rights.map(|rights| AccessMask::from_bits_truncate(rights.access) & RIGHTS);
        let attributes = match granted {
            Some(_) => self.attributes_after(results, &handle, REGULAR)?,
            None => None,
        };
        let mut directory = Wcc::default();
        if with_piggyback.part.is_some() {
            directory = Wcc::seen(above.all);
        } else if request.name.is_some() && attributes.is_some() && results.take::<op::Restorefh>().is_ok() {
            let after = self.attributes_after(results, &request.handle, DIRECTORY)?;
            directory = Around { before: above.before, cinfo: ok.cinfo }.with(after);
        }
        let created = match &request.create {
            None => false,
            Some((CreateHow::Unchecked, _)) => ok.cinfo.before != ok.cinfo.after,
            Some(_) => true,
        };
        let complete = directory.after.is_some();
        if !created && !is_confirmed(ok.cinfo, directory.after.as_ref()) {
            directory = Wcc::default();
        }
        Ok(Half { id, handle, attributes, lease, directory, created, granted, complete })
    }

    /// Completes an open before the caller gets it: sets the attributes that the create could not set, and
    /// fetches those that the compound did not return.
    async fn complete(&self, caller: &Caller, request: &OpenRequest, half: Half) -> Result<Opened> {
        let mut attributes = half.attributes;
        let left = request.create.as_ref().and_then(|(how, set)| self.left_to_set(*how, set));
        let finished = async {
            if let Some(left) = left {
                attributes = self.set_attributes(caller, &half.handle, &left, None).await.0?.after;
            }
            match attributes {
                Some(attributes) => Ok(attributes),
                None => self.get_attributes(caller, &half.handle).await,
            }
        };
        let attributes = match finished.await {
            Ok(attributes) => attributes,
            Err(failed) => {
                self.let_go(half.id, half.lease.map(|lease| lease.id));
                return Err(failed);
            }
        };
        let lease: Option<Lease> = half.lease.map(|given| given.lease(&attributes));
        if let Some(Lease { id, .. }) = lease {
            // Use the change attribute that came with the grant: setting an attribute afterwards has changed
            // it.
            let change = half.attributes.unwrap_or(attributes).change;
            self.state.lock().granted_at(id, change);
        }
        Ok(Opened {
            id: half.id,
            handle: half.handle,
            attributes,
            lease,
            directory: half.directory,
            created: half.created,
            granted: half.granted,
            directory_lease: None,
            read: None,
        })
    }

    /// Enters a delegation. Returns it to the origin if the caller wants none.
    pub(super) fn delegated(
        &self,
        handle: &Handle,
        principal: &Principal,
        came: &OpenDelegation,
        want: Want,
    ) -> Option<Given> {
        let (stateid, kind, recall) = match came {
            OpenDelegation::Read(read) | OpenDelegation::ReadAttrsDeleg(read) => {
                (read.stateid, LeaseKind::Read, read.recall)
            }
            OpenDelegation::Write(write) | OpenDelegation::WriteAttrsDeleg(write) => {
                (write.stateid, LeaseKind::Write, write.recall)
            }
            OpenDelegation::None | OpenDelegation::NoneExt(_) => return None,
        };
        let (handle, principal) = (*handle, principal.clone());
        let (directory, recalled, change) = (false, false, None);
        let delegation = Delegation { handle, kind, directory, stateid, principal, recalled, change };
        let (id, new) = self.state.lock().delegated(delegation)?;
        if new && (want == Want::None || !self.back.listening()) {
            self.return_soon(id);
            return None;
        }
        if recall {
            self.recall(id);
        }
        let kind = self.state.lock().lease(id).map_or(kind, |held| held.kind);
        let space = match came {
            OpenDelegation::Write(write) | OpenDelegation::WriteAttrsDeleg(write) => Some(write.space_limit),
            _ => None,
        };
        new.then_some(Given { id, kind, space })
    }

    /// Closes an open that no caller waited for.
    fn forget(&self, opened: &Opened) {
        self.let_go(opened.id, opened.lease.map(|lease| lease.id));
    }

    /// Closes an open and returns its delegation, in the background.
    fn let_go(&self, id: OpenId, lease: Option<LeaseId>) {
        if let Some(lease) = lease {
            self.return_soon(lease);
        }
        let Some(inner) = self.myself() else { return };
        if let Some(open) = self.state.lock().close(id) {
            tokio::spawn(async move {
                let _ = inner.close(&Caller::machine(), id, open).await;
            });
        }
    }

    async fn downgrade(&self, caller: &Caller, id: OpenId, access: Share, deny: Share) -> Result<()> {
        let build = |state: &State| {
            let open = state.open(id).ok_or(Status::BadStateId)?;
            let open_stateid = latest(open.stateid.ok_or(Status::BadStateId)?);
            let args = OpenDowngradeArgs {
                open_stateid,
                seqid: 0,
                share_access: access.bits().into(),
                share_deny: deny.bits().into(),
            };
            Ok((vec![put(&open.handle)?, op::OpenDowngrade::with(args)], Used::Open(id)))
        };
        // Record the narrower open before the origin has it: the next incarnation must not rely on more than
        // the origin grants.
        let before = self.narrow(id, access, deny);
        let mut results = self.run(caller, Plan::stateful(Operation::OpenDowngrade), build).await?.results;
        let narrowed = match self.take::<op::Putfh>(&mut results) {
            Ok(()) => self.take::<op::OpenDowngrade>(&mut results),
            Err(failed) => Err(failed),
        };
        if let Some(open) = self.state.lock().open_mut(id) {
            match (&narrowed, before) {
                (Ok(ok), _) => open.stateid = Some(ok.open_stateid),
                (Err(_), Some(before)) => (open.access, open.deny, open.had) = before,
                (Err(_), None) => {}
            }
        }
        narrowed.map(|_| ())
    }

    /// Narrows an open to these shares. Returns its shares and combinations before.
    fn narrow(&self, id: OpenId, access: Share, deny: Share) -> Option<(Share, Share, Combinations)> {
        let mut state = self.state.lock();
        let open = state.open_mut(id)?;
        let before = (open.access, open.deny, open.had);
        (open.access, open.deny) = (access, deny);
        open.had.narrow(access, deny);
        Some(before)
    }

    /// Closes an open that is already removed from the table. If the origin does not have it, it counts as
    /// closed.
    pub(super) async fn close(&self, caller: &Caller, id: OpenId, open: Open) -> Result<()> {
        let result = self.close_at_origin(caller, open).await;
        if result.is_ok() {
            self.state.lock().closed(id);
        }
        result
    }

    async fn close_at_origin(&self, caller: &Caller, open: Open) -> Result<()> {
        let Some(open_stateid) = open.stateid else { return Ok(()) };
        for unlocked in [false, true] {
            let build = |_: &State| {
                let mut operations = vec![put(&open.handle)?];
                if unlocked {
                    operations.extend(open.locks.values().take(20).map(|locks| unlock_all(locks.stateid)));
                }
                // Send the seqid: if another OPEN came in between, this CLOSE must not close it.
                operations.push(op::Close::with(CloseArgs { seqid: 0, open_stateid }));
                Ok((operations, Used::Nothing))
            };
            let ran = self.run(caller, Plan::stateful(Operation::Close).urgent(), build).await?;
            match ran.results.status() {
                Ok(()) => return Ok(()),
                Err(status) if convert::lost_state(status) => return Ok(()),
                Err(Wire::LocksHeld) if !unlocked => {}
                Err(status) => return Err(convert::status(status).into()),
            }
        }
        Err(Status::LocksHeld.into())
    }
}

/// A LOCKU of all bytes of the file.
fn unlock_all(stateid: protocol::nfs4::Stateid) -> ArgOp {
    op::Locku::with(LockuArgs {
        locktype: NfsLockType::Write,
        seqid: 0,
        lock_stateid: latest(stateid),
        offset: 0,
        length: u64::MAX,
    })
}

/// The operations that piggyback on an OPEN.
#[derive(Clone, Copy, Debug)]
struct Piggyback {
    piggybacking: Piggybacking,
    part: Option<Part>,
}

impl Piggyback {
    const NOTHING: Piggyback = Piggyback { piggybacking: Piggybacking::Never, part: None };

    /// Limits the READ to the part that may piggyback. If a delegation is asked for last, there is no READ,
    /// because a READ must stand last.
    fn with(self, may_piggyback: impl FnOnce(Part) -> Option<Part>) -> Piggyback {
        let part = self.part.filter(|_| self.piggybacking != Piggybacking::Last).and_then(may_piggyback);
        Piggyback { part, ..self }
    }

    /// Does the compound ask for all attributes of the directory before the OPEN?
    fn is_seen_first(self) -> bool {
        self.piggybacking == Piggybacking::First || self.part.is_some()
    }
}

/// The attributes of the directory before the OPEN.
#[derive(Clone, Copy, Debug)]
struct Above {
    before: Option<WccAttributes>,
    /// All attributes, if the compound asked for them.
    all: Option<vfs::Attributes>,
}

/// A delegation that came with an OPEN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) id: LeaseId,
    kind: LeaseKind,
    /// The space that the origin promises with a write delegation.
    space: Option<NfsSpaceLimit>,
}

impl Given {
    /// The lease for the layer above. A promise in blocks counts from the current size, because it covers
    /// data written from now on.
    fn lease(&self, attributes: &vfs::Attributes) -> Lease {
        let space_limit = match self.space {
            None => Lease::NO_SPACE_LIMIT,
            Some(NfsSpaceLimit::Size(size)) => size,
            Some(NfsSpaceLimit::Blocks { num_blocks, bytes_per_block }) => {
                attributes.size.saturating_add(u64::from(num_blocks) * u64::from(bytes_per_block))
            }
        };
        Lease { space_limit, ..state::lease(self.id, self.kind, attributes.change) }
    }
}

/// An open that is not completed yet.
struct Half {
    id: OpenId,
    handle: Handle,
    attributes: Option<vfs::Attributes>,
    lease: Option<Given>,
    directory: Wcc,
    created: bool,
    granted: Option<AccessMask>,
    /// Every operation of the compound was executed.
    complete: bool,
}

/// The result of an OPEN.
struct Came {
    result: Result<Opened>,
    lease: Option<(Lease, vfs::Attributes)>,
    read: Option<Read>,
    /// A failure may be due to an earlier execution of the same OPEN.
    again: bool,
}

/// Makes a node of a file.
pub(super) fn node(handle: Handle, attributes: vfs::Attributes) -> Node {
    Node { handle, attributes: Some(attributes) }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::nfs4::SHORT_OWNER_BYTES;
    use vfs::Owner;

    use super::wire_owner;

    #[test]
    fn an_owner_on_the_wire_is_one_that_every_client_can_be_told_of() {
        let owner = |length: usize| wire_owner(&Owner(Bytes::from(vec![7; length]))).owner;
        assert_eq!(owner(SHORT_OWNER_BYTES)[..], [7; SHORT_OWNER_BYTES]);
        let long = [SHORT_OWNER_BYTES + 1, 29, 1024].map(owner);
        assert!(long.iter().all(|owner| !owner.is_empty() && owner.len() <= SHORT_OWNER_BYTES), "{long:?}");
        assert!(long[0] != long[1] && long[1] != long[2], "{long:?}");
    }
}
