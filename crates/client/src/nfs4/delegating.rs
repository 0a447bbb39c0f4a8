//! Delegations of directories: GET_DIR_DELEGATION (RFC 8881, section 18.39), without notifications, asked for along with
//! what is sent anyway: the ACCESS that a directory's first use makes, or a LOOKUP, OPEN or READDIR in it.
//!
//! ACCESS comes first in the compound, so that its answer is had whatever the server makes of the rest, and the
//! attributes that count come last: they are those under the delegation. A LOOKUP or OPEN of a name that is not there
//! ends its compound, so that the delegation is asked for in front of it ([`Piggybacking::First`]), of a server that is known to
//! know the operation; of another one behind it ([`Piggybacking::Last`]), where nothing is lost if it does not. There is nothing
//! to reclaim of a delegation (section 10.9.5): after a restart of the server it is no more.

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

/// So many refusals in a row, of different directories or of one after a pause, are chance.
const REFUSALS_MAX: u32 = 16;
/// A directory that was refused is not asked for so long, and then twice as long each time; and so are all of them after too
/// many refusals.
const PAUSE_MIN: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(900);
/// So many directories that were refused are remembered.
const REFUSED_MAX: usize = 512;

/// Is it worth asking? A server that does not know the operation is not asked again, one that has none to give is asked
/// less and less often, and so it is for a directory that has none to give of, because others change it, say.
#[derive(Debug, Default)]
pub(super) struct DelegationBackoff(Mutex<Refusals>);

#[derive(Debug, Default)]
struct Refusals {
    /// The server knows the operation, or does not; none if it has not been asked.
    known: Option<bool>,
    in_a_row: u32,
    all: Pause,
    directories: HashMap<Handle, Pause>,
}

/// When to ask again.
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

/// When in the compound of another operation a delegation is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piggybacking {
    /// Before it.
    First,
    /// Behind it.
    Last,
    /// Not at all.
    Never,
}

impl Piggybacking {
    /// What comes between the directory's PUTFH and the GETATTR that is there anyway.
    pub(super) fn first(self) -> Option<ArgOp> {
        (self == Piggybacking::First).then(get_dir_delegation)
    }

    /// What comes last, the directory being the current object.
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

/// A delegation that was given, with the directory's attributes still to come.
type Promised = Option<LeaseId>;

/// What a compound that begins with a directory's attributes has brought up to there.
pub(super) struct Begun {
    /// Behind them.
    pub(super) results: Results,
    pub(super) above: Result<Attributes>,
    /// What came of [`Piggybacking::first`].
    pub(super) lease: Option<(Lease, Attributes)>,
}

/// No notifications: what changes is recalled.
fn get_dir_delegation() -> ArgOp {
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

/// GET_DIR_DELEGATION has failed, and nothing behind it was done.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotCarriedOut;

/// What was done with [`Piggybacking::Never`], where there is nothing that can have kept it from being carried out.
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

    /// Does to its end what may bring a delegation of a directory along.
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
    /// When to ask for a delegation along with an operation in a directory.
    pub(super) fn piggybacking(&self, directory: &Handle) -> Piggybacking {
        match self.may_be_delegated(directory) {
            false => Piggybacking::Never,
            true if self.backoff.are_known() => Piggybacking::First,
            true => Piggybacking::Last,
        }
    }

    /// Sends a compound that asks for a directory's attributes, and then for `rest`, which changes nothing. The inner error is that
    /// of a compound that did not come as far as the directory.
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

    /// What came of [`Piggybacking::first`]. An error if the compound ended there, and the operation is to be sent without it.
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

    /// What came of [`Piggybacking::last`], if all before it was carried out, as it must have been.
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

    /// The delegation that was promised, with the attributes under it. Without those it goes back.
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
        // A recall may come before the answer.
        let _in_flight = self.back.opening();
        let known = self.backoff.are_known();
        let build = |_: &State| {
            let access = op::Access::with(AccessArgs { access: asked.bits() });
            let mut operations = vec![put(directory)?, access];
            // Of a server that may not know what comes next, and says nothing behind it.
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
                    // Nothing is behind what failed.
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

    /// What the server makes of it.
    fn if_worth_asking(
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

    /// Enters a delegation. One that nobody would hear of the recall of goes back.
    fn hold_directory(&self, caller: &Caller, directory: &Handle, given: &DirDelegation) -> Option<LeaseId> {
        let delegation = Delegation {
            handle: *directory,
            kind: LeaseKind::Read,
            directory: true,
            stateid: given.stateid,
            principal: caller.principal.clone(),
            recalled: false,
            change: None,
        };
        let (id, new) = self.state.lock().delegated(delegation)?;
        if !self.back.listening() {
            self.return_soon(id);
            return None;
        }
        new.then_some(id)
    }

    /// The server has restarted, and gives back no delegations of directories.
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
        // Those that are forgotten first are those that may be asked first.
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
