//! One OPEN: the operations of its compound, and the results that become an open and a lease.

use std::sync::atomic::Ordering;
use std::time::Duration;

use protocol::nfs4::{
    AccessArgs, ArgOp, NfsSpaceLimit, Op, OpenClaim, OpenDelegation, OpenOk, Openflag, Operation, Results, op,
};
use vfs::{
    AccessMask, Caller, CreateHow, Error, Handle, Lease, LeaseId, LeaseKind, OpenId, OpenRequest, Opened,
    Principal, Read, Result, Status, Want, Wcc, WccAttributes,
};

use super::attributes::{Around, DIRECTORY, REGULAR, getattr, getattr_all, is_confirmed, put};
use super::delegating::{NotCarriedOut, Piggybacking, WithLease};
use super::durable::record::Opening;
use super::execute::Plan;
use super::io::{OPEN_BYTES, Part};
use super::opens::open_args;
use super::state::{Delegation, Granted, State, Used};
use super::{Nfs4Client, convert, state};

/// The rights to ask for with an open, so that no later ACCESS is needed.
const RIGHTS: AccessMask =
    AccessMask::READ.union(AccessMask::MODIFY).union(AccessMask::EXTEND).union(AccessMask::EXECUTE);

/// A client that holds state for others can give some of it up when the origin has no capacity for more. So
/// its OPEN fails with `Resource` once the origin has said DELAY for this long. That is longer than a recall
/// at the origin delays any requester.
const DELAYS_MAX: Duration = Duration::from_secs(5);

impl Nfs4Client {
    /// Sends one OPEN. The flag is true if a failure may be due to an earlier execution of the same OPEN.
    pub(super) async fn open_once(&self, caller: &Caller, request: &OpenRequest) -> (Result<Opened>, bool) {
        let opening = self.open_with(caller, request, Piggyback::NOTHING).await;
        opening.map_or((Err(Status::ServerFault.into()), false), |opening| (opening.result, opening.again))
    }

    /// Sends one OPEN, with the operations that piggyback on it.
    pub(super) async fn open_with(
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
        let shares = request.shares();
        let rights = op::Access::with(AccessArgs { access: RIGHTS.bits() });
        let Some(name) = &request.name else {
            let open = open_args(&request.owner, shares, want, Openflag::Nocreate, OpenClaim::Fh);
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
            op::Open::with(open_args(&request.owner, shares, want, openhow, claim)),
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
            shares: request.shares(),
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
        // The rights were told before these attributes are set.
        let granted = half.granted.filter(|_| left.is_none());
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
            granted,
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
        let (handle, principal) = (handle.into(), principal.clone());
        let (directory, recalled, change) = (false, false, None);
        let delegation = Delegation { handle, kind, directory, stateid, principal, recalled, change };
        let (id, new) = self.enter(delegation)?;
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
}

impl Nfs4Client {
    /// Enters a delegation in the state. If the file has another one, the origin has ended that, or this
    /// reply is late. The other one is given up: the layer above hears of it, and the origin gets it back.
    /// `None` if this delegation was given up meanwhile.
    pub(super) fn enter(&self, delegation: Delegation) -> Option<(LeaseId, bool)> {
        let handle = delegation.handle.handle();
        let replaced = {
            let state = self.state.lock();
            if state.was_given_up(&delegation.stateid) {
                return None;
            }
            let other = |held: &Delegation| held.stateid.other != delegation.stateid.other;
            state.lease_of(&handle).filter(|(_, held)| other(held)).map(|(id, _)| id)
        };
        if let Some(id) = replaced {
            self.revoked(id, true);
        }
        self.state.lock().delegated(delegation)
    }
}

/// The operations that piggyback on an OPEN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piggyback {
    pub(super) piggybacking: Piggybacking,
    pub(super) part: Option<Part>,
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
pub(super) struct Came {
    pub(super) result: Result<Opened>,
    pub(super) lease: Option<(Lease, vfs::Attributes)>,
    pub(super) read: Option<Read>,
    /// A failure may be due to an earlier execution of the same OPEN.
    pub(super) again: bool,
}
