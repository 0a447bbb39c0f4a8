//! Directory delegations: GET_DIR_DELEGATION (RFC 8881, section 18.39), without notifications. The request
//! piggybacks on a compound that is sent anyway: the ACCESS of a directory's first use, or a LOOKUP, OPEN or
//! READDIR in it.
//!
//! ACCESS comes first in its compound, so that its answer arrives whatever the server makes of the rest. The
//! attributes that count come last, because those are covered by the delegation. A LOOKUP or OPEN of a
//! missing name ends its compound. So a server that is known to support the operation is asked before it
//! ([`Piggybacking::First`]). Any other server is asked after it ([`Piggybacking::Last`]), where a failure
//! loses nothing. A directory delegation cannot be reclaimed (section 10.9.5): after a restart of the server
//! it is gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::nfs4::{
    AccessArgs, ArgOp, Bitmap, DirDelegation, GetDirDelegationArgs, GetDirDelegationOk, Nfstime, Op,
    Operation, Results, Status as Wire, op,
};
use tokio::time::Instant;
use vfs::{
    AccessMask, Accessed, Attributes, BringsDirectoryLease, Caller, Delegated, DirectoryLease, Handle, Lease,
    LeaseId, LeaseKind, Result, Status,
};

use super::attributes::{DIRECTORY, confirming, getattr_all, put};
use super::execute::Plan;
use super::state::{Delegation, State, Used, lease};
use super::{Nfs4, Nfs4Client};

/// Fewer refusals in a row than this are chance, if they are of different directories, or of one after a
/// pause.
const REFUSALS_MAX: u32 = 16;
/// After a refusal, the directory is not asked for during this pause, whose length doubles each time. After
/// too many refusals, this holds for all directories.
const PAUSE_MIN: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(900);
/// Most refused directories in the table.
const REFUSED_MAX: usize = 512;

/// The delegation backoff. A server that does not support the operation is not asked again. If the server
/// refuses, it is asked less and less often. The same holds for a single directory that the server refuses,
/// for example because other clients change it.
#[derive(Debug, Default)]
pub(super) struct DelegationBackoff(Mutex<Refusals>);

#[derive(Debug, Default)]
struct Refusals {
    /// Whether the server supports the operation; `None` if it has not been asked.
    known: Option<bool>,
    in_a_row: u32,
    all: Pause,
    directories: HashMap<Handle, Pause>,
}

/// The pause before the next request.
#[derive(Clone, Copy, Debug, Default)]
struct Pause {
    length: Duration,
    over: Option<Instant>,
}

impl Pause {
    fn is_over(&self, now: Instant) -> bool {
        self.over.is_none_or(|over| over <= now)
    }

    fn begin(&mut self, now: Instant) {
        self.length = (self.length * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.over = Some(now + self.length);
    }
}

impl DelegationBackoff {
    fn are_good(&self, now: Instant, directory: &Handle) -> bool {
        let refusals = self.0.lock();
        let refused = refusals.directories.get(directory).is_some_and(|pause| !pause.is_over(now));
        refusals.known != Some(false) && refusals.all.is_over(now) && !refused
    }

    /// Does the server support the operation, and has it not refused too often lately?
    pub(super) fn are_worth_asking(&self) -> bool {
        let refusals = self.0.lock();
        refusals.known == Some(true) && refusals.all.is_over(Instant::now())
    }

    fn are_known(&self) -> bool {
        self.0.lock().known == Some(true)
    }

    fn given(&self, directory: &Handle) {
        let mut refusals = self.0.lock();
        refusals.known = Some(true);
        (refusals.in_a_row, refusals.all) = (0, Pause::default());
        refusals.directories.remove(directory);
    }

    fn refused(&self, now: Instant, directory: &Handle) {
        let mut refusals = self.0.lock();
        refusals.known = Some(true);
        if refusals.directories.len() >= REFUSED_MAX && !refusals.directories.contains_key(directory) {
            let next = refusals.directories.iter().min_by_key(|(_, pause)| pause.over).map(|(it, _)| *it);
            next.map(|it| refusals.directories.remove(&it));
        }
        refusals.directories.entry(*directory).or_default().begin(now);
        refusals.in_a_row += 1;
        if refusals.in_a_row >= REFUSALS_MAX {
            refusals.all.begin(now);
        }
    }

    fn unknown(&self) {
        self.0.lock().known = Some(false);
    }
}

/// The place of the delegation request in the compound of another operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piggybacking {
    /// Before the operation.
    First,
    /// After the operation.
    Last,
    /// Not at all.
    Never,
}

impl Piggybacking {
    /// The operation between the directory's PUTFH and the GETATTR that is there anyway.
    pub(super) fn first(self) -> Option<ArgOp> {
        (self == Piggybacking::First).then(get_dir_delegation)
    }

    /// The last operations, with the directory as the current filehandle.
    pub(super) fn last(self) -> impl Iterator<Item = ArgOp> {
        let asked = (self == Piggybacking::Last).then(|| [get_dir_delegation(), getattr_all()]);
        asked.into_iter().flatten()
    }
}

/// The result of an operation in a directory, and the lease on the directory that came with it.
#[derive(Clone, Debug)]
pub(super) struct WithLease<T> {
    /// The result of the operation itself.
    pub(super) result: Result<T>,
    /// The lease, and the directory's attributes under it. Attributes in the result may be older.
    pub(super) lease: Option<(Lease, Attributes)>,
}

impl<T> WithLease<T> {
    /// A result without a lease.
    pub(super) fn alone(result: Result<T>) -> WithLease<T> {
        WithLease { result, lease: None }
    }

    /// As the layer above takes it.
    pub(super) fn into_result(self) -> Result<T>
    where
        T: BringsDirectoryLease,
    {
        T::attach(self.result, self.lease.map(|(lease, attributes)| DirectoryLease { lease, attributes }))
    }
}

/// A delegation that was granted, with the directory's attributes still to come.
type Promised = Option<LeaseId>;

/// The first results of a compound that begins with a directory's attributes.
pub(super) struct Begun {
    /// The results after the attributes.
    pub(super) results: Results,
    pub(super) above: Result<Attributes>,
    /// The result of [`Piggybacking::first`].
    pub(super) lease: Option<(Lease, Attributes)>,
}

/// Asks for no notifications, so every change leads to a recall.
pub(super) fn get_dir_delegation() -> ArgOp {
    let never = Nfstime { seconds: 0, nseconds: 0 };
    op::GetDirDelegation::with(GetDirDelegationArgs {
        signal_deleg_avail: false,
        notification_types: Bitmap::EMPTY,
        child_attr_delay: never,
        dir_attr_delay: never,
        child_attributes: Bitmap::EMPTY,
        dir_attributes: Bitmap::EMPTY,
    })
}

/// GET_DIR_DELEGATION failed, and nothing after it was executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotCarriedOut;

/// The result of an operation with [`Piggybacking::Never`], which nothing can have kept from being executed.
pub(super) fn plain<T>(done: std::result::Result<WithLease<T>, NotCarriedOut>) -> Result<T> {
    done.unwrap_or_else(|NotCarriedOut| WithLease::alone(Err(Status::ServerFault.into()))).result
}

impl Nfs4 {
    pub(super) async fn delegate_directory(
        &self,
        caller: &Caller,
        directory: &Handle,
        asked: AccessMask,
    ) -> Result<Delegated> {
        if !self.inner.may_be_delegated(directory) {
            let accessed = self.inner.ask_access(caller, directory, asked).await?;
            return Ok(Delegated { accessed, lease: None });
        }
        let (inner, asker, above) = (self.inner.clone(), caller.clone(), *directory);
        let work = async move { inner.delegate_once(&asker, &above, asked).await };
        let undo = |inner: Arc<Nfs4Client>, unheard: Delegated| {
            if let Some(lease) = unheard.lease {
                inner.return_soon(lease.id);
            }
        };
        self.to_the_end(caller, work, undo).await
    }

    /// Runs work that may bring a delegation of a directory to completion.
    pub(super) async fn with_piggyback<T, F>(&self, caller: &Caller, work: F) -> WithLease<T>
    where
        T: Send + 'static,
        F: Future<Output = WithLease<T>> + Send + 'static,
    {
        let undo = |inner: Arc<Nfs4Client>, unheard: WithLease<T>| {
            if let Some((lease, _)) = unheard.lease {
                inner.return_soon(lease.id);
            }
        };
        let heard = self.to_the_end(caller, async move { Ok(work.await) }, undo).await;
        heard.unwrap_or_else(|error| WithLease::alone(Err(error)))
    }
}

impl Nfs4Client {
    /// The place for the delegation request in an operation in a directory.
    pub(super) fn piggybacking(&self, directory: &Handle) -> Piggybacking {
        match self.may_be_delegated(directory) {
            false => Piggybacking::Never,
            true if self.backoff.are_known() => Piggybacking::First,
            true => Piggybacking::Last,
        }
    }

    /// Sends a compound that asks for a directory's attributes and then runs `rest`, which changes nothing.
    /// The inner error is that of a compound that failed before the directory.
    pub(super) async fn begin_in(
        &self,
        caller: &Caller,
        directory: &Handle,
        main: Operation,
        piggybacking: Piggybacking,
        rest: &[ArgOp],
    ) -> std::result::Result<Result<Begun>, NotCarriedOut> {
        let plan =
            if piggybacking == Piggybacking::Never { Plan::reading(main) } else { Plan::stateful(main) };
        let build = |_: &State| {
            let mut operations = vec![put(directory)?];
            operations.extend(confirming(caller));
            operations.extend(piggybacking.first());
            operations.push(getattr_all());
            operations.extend_from_slice(rest);
            Ok((operations, Used::Nothing))
        };
        let sent = async {
            let mut results = self.run(caller, plan, build).await?.results;
            self.take::<op::Putfh>(&mut results)?;
            self.take_confirming(caller, &mut results)?;
            Ok(results)
        };
        let mut results = match sent.await {
            Ok(results) => results,
            Err(failed) => return Ok(Err(failed)),
        };
        let promised = self.take_first(caller, directory, piggybacking, &mut results)?;
        let above = self.take_attributes(&mut results, directory, None);
        let lease = self.vouched(promised, above.as_ref().ok().copied());
        Ok(Ok(Begun { results, above, lease }))
    }

    /// Takes the result of [`Piggybacking::first`]. If the compound ended there, returns an error, and the
    /// operation must be sent without it.
    pub(super) fn take_first(
        &self,
        caller: &Caller,
        directory: &Handle,
        piggybacking: Piggybacking,
        results: &mut Results,
    ) -> std::result::Result<Promised, NotCarriedOut> {
        if piggybacking != Piggybacking::First {
            return Ok(None);
        }
        let given = results.take::<op::GetDirDelegation>();
        let went_on = given.is_ok();
        let promised = self
            .if_worth_asking(directory, given)
            .and_then(|given| self.hold_directory(caller, directory, &given));
        if went_on { Ok(promised) } else { Err(NotCarriedOut) }
    }

    /// Takes the result of [`Piggybacking::last`]. Everything before it must have been executed.
    pub(super) fn take_last(
        &self,
        caller: &Caller,
        directory: &Handle,
        piggybacking: Piggybacking,
        results: &mut Results,
    ) -> Option<(Lease, Attributes)> {
        if piggybacking != Piggybacking::Last {
            return None;
        }
        let given = self.if_worth_asking(directory, results.take::<op::GetDirDelegation>())?;
        let promised = self.hold_directory(caller, directory, &given)?;
        let attributes = self.attributes_after(results, directory, DIRECTORY);
        self.vouched(Some(promised), attributes.ok().flatten())
    }

    /// The promised delegation with the attributes under it. Without attributes, the delegation goes back.
    pub(super) fn vouched(
        &self,
        promised: Promised,
        attributes: Option<Attributes>,
    ) -> Option<(Lease, Attributes)> {
        let id = promised?;
        let Some(attributes) = attributes.filter(Attributes::is_dir) else {
            self.return_soon(id);
            return None;
        };
        Some((lease(id, LeaseKind::Read, attributes.change), attributes))
    }

    fn may_be_delegated(&self, directory: &Handle) -> bool {
        self.back.listening()
            && self.backoff.are_good(Instant::now(), directory)
            && self.state.lock().lease_of(directory).is_none()
    }

    async fn delegate_once(
        &self,
        caller: &Caller,
        directory: &Handle,
        asked: AccessMask,
    ) -> Result<Delegated> {
        // A recall may arrive before the answer.
        let _in_flight = self.back.opening();
        let known = self.backoff.are_known();
        let build = |_: &State| {
            let access = op::Access::with(AccessArgs { access: asked.bits() });
            let mut operations = vec![put(directory)?, access];
            // The server may not support the next operation, and then returns nothing after it.
            operations.extend((!known).then(getattr_all));
            operations.extend([get_dir_delegation(), getattr_all()]);
            Ok((operations, Used::Nothing))
        };
        let mut results = self.run(caller, Plan::stateful(Operation::Access), build).await?.results;
        self.take::<op::Putfh>(&mut results)?;
        let granted = AccessMask::from_bits_truncate(self.take::<op::Access>(&mut results)?.access) & asked;
        let before = if known { None } else { Some(self.take_attributes(&mut results, directory, None)?) };
        let given = results.take::<op::GetDirDelegation>();
        let went_on = given.is_ok();
        let held = self
            .if_worth_asking(directory, given)
            .and_then(|given| self.hold_directory(caller, directory, &given));
        let after = if went_on { Some(self.take_attributes(&mut results, directory, None)) } else { None };
        match (after, before) {
            (Some(Ok(attributes)), _) => Ok(self.under(held, granted, attributes)),
            (after, before) => {
                if let Some(id) = held {
                    self.return_soon(id);
                }
                match (before, after) {
                    (Some(attributes), _) => Ok(self.under(None, granted, attributes)),
                    (None, Some(Err(failed))) => Err(failed),
                    // Nothing follows the failed operation.
                    (None, _) => {
                        let accessed = self.ask_access(caller, directory, asked).await?;
                        Ok(Delegated { accessed, lease: None })
                    }
                }
            }
        }
    }

    fn under(&self, held: Option<LeaseId>, granted: AccessMask, attributes: Attributes) -> Delegated {
        if !attributes.is_dir()
            && let Some(id) = held
        {
            self.return_soon(id);
        }
        let held = held.filter(|_| attributes.is_dir());
        let accessed = Accessed { granted, attributes: Some(attributes) };
        Delegated { accessed, lease: held.map(|id| lease(id, LeaseKind::Read, attributes.change)) }
    }

    /// Updates the backoff with the server's answer.
    pub(super) fn if_worth_asking(
        &self,
        directory: &Handle,
        result: std::result::Result<GetDirDelegationOk, protocol::nfs4::CompoundError>,
    ) -> Option<DirDelegation> {
        match result {
            Ok(GetDirDelegationOk::Ok(given)) => {
                self.backoff.given(directory);
                return Some(given);
            }
            Err(error) if matches!(error.status(), Some(Wire::NotSupp | Wire::OpIllegal)) => {
                self.backoff.unknown();
            }
            Ok(GetDirDelegationOk::Unavail { .. }) | Err(_) => {
                self.backoff.refused(Instant::now(), directory);
            }
        }
        None
    }

    /// Enters a delegation. If no layer listens for its recall, it goes back.
    pub(super) fn hold_directory(
        &self,
        caller: &Caller,
        directory: &Handle,
        given: &DirDelegation,
    ) -> Option<LeaseId> {
        let delegation = Delegation {
            handle: directory.into(),
            kind: LeaseKind::Read,
            directory: true,
            stateid: given.stateid,
            principal: caller.principal.clone(),
            recalled: false,
            change: None,
        };
        let (id, new) = self.enter(delegation)?;
        if !self.back.listening() {
            self.return_soon(id);
            return None;
        }
        new.then_some(id)
    }

    /// Ends all directory delegations after a restart of the server, which does not return them.
    pub(super) fn lose_directories(&self) {
        let lost: Vec<LeaseId> = {
            let state = self.state.lock();
            state.leases().filter(|(_, held)| held.directory).map(|(id, _)| id).collect()
        };
        for id in lost {
            self.revoked(id, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(number: u32) -> Handle {
        Handle::new(&number.to_be_bytes()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_none_is_asked_less_and_less_often() {
        let backoff = DelegationBackoff::default();
        let new = directory(1000);
        assert!(backoff.are_good(Instant::now(), &new) && !backoff.are_known());
        for number in 1..REFUSALS_MAX {
            backoff.refused(Instant::now(), &directory(number));
            assert!(backoff.are_good(Instant::now(), &new) && backoff.are_known());
        }
        for (number, pause) in [PAUSE_MIN, PAUSE_MIN * 2, PAUSE_MIN * 4].into_iter().enumerate() {
            backoff.refused(Instant::now(), &directory(100 + number as u32));
            tokio::time::advance(pause.saturating_sub(Duration::from_secs(1))).await;
            assert!(!backoff.are_good(Instant::now(), &new));
            tokio::time::advance(Duration::from_secs(1)).await;
            assert!(backoff.are_good(Instant::now(), &new));
        }
        backoff.given(&new);
        backoff.refused(Instant::now(), &directory(200));
        assert!(backoff.are_good(Instant::now(), &new), "it is chance again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_has_none_is_no_reason_not_to_ask_of_others() {
        let backoff = DelegationBackoff::default();
        let (restless, other) = (directory(1), directory(2));
        for pause in [PAUSE_MIN, PAUSE_MIN * 2, PAUSE_MIN * 4] {
            backoff.refused(Instant::now(), &restless);
            assert!(!backoff.are_good(Instant::now(), &restless));
            assert!(backoff.are_good(Instant::now(), &other));
            tokio::time::advance(pause).await;
            assert!(backoff.are_good(Instant::now(), &restless));
        }
        backoff.given(&restless);
        backoff.refused(Instant::now(), &restless);
        tokio::time::advance(PAUSE_MIN).await;
        assert!(backoff.are_good(Instant::now(), &restless), "from the beginning");
        // The table first drops those that may be asked for first.
        for number in 0..2 * REFUSED_MAX as u32 {
            backoff.refused(Instant::now(), &directory(10 + number));
        }
        assert_eq!(backoff.0.lock().directories.len(), REFUSED_MAX);
    }

    #[test]
    fn a_server_that_does_not_know_it_is_not_asked_again() {
        let backoff = DelegationBackoff::default();
        backoff.unknown();
        assert!(!backoff.are_good(Instant::now() + Duration::from_secs(1 << 20), &directory(1)));
    }
}
