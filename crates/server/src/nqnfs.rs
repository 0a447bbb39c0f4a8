//! NQNFS (Macklem 1994), program 300105 version 1, over TCP and UDP: the procedures of v2 with 64-bit
//! sizes, and leases.
//!
//! The arbiter, below the file system's `lease`, decides which client holds which lease. This module adds
//! the wire:
//! - [`clients`]: the requesting client, and the route for calls to it;
//! - [`leases`]: the file system's lease for each promise to a client, found by client and file, as VACATED
//!   needs it;
//! - [`evict`]: EVICTED, repeated until the client returns the lease or the lease expires;
//! - [`revs`] and [`record`]: `modifyrev`, and the data that a restart needs;
//! - `vfs::Recovery`: after a restart the server accepts only writes.
//!
//! docs/reference/nqnfs.md lists the choices where the paper is open.

pub(crate) mod clients;
mod convert;
mod directory;
pub(crate) mod evict;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod granting;
pub(crate) mod leases;
mod make;
mod objects;
mod record;
mod revs;
#[cfg(any(test, feature = "fuzzing"))]
#[path = "nqnfs/tests/stage.rs"]
mod stage;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::nqnfs::{
    DATA_MAX, Granted, LeaseRequest, LeaseResult, Leased, Plain, Procedure, Reply, Stat, call,
};
use rpc::message::Refusal;
use rpc::service::Outcome;
use tokio::time::{Instant, sleep_until};
use vfs::{Caller, Clock, Handle, HolderId, Recovery, SystemClock};
use xdr::{Decode, Encode};

use crate::exports::Export;
use crate::narrow::Cookies;
use crate::shared::{Object, Request, Shared, arguments, reply};
use clients::Clients;
use leases::Leases;
use record::Record;
use revs::Revs;

/// The parameters of NQNFS.
#[derive(Clone, Debug)]
pub struct NqnfsOptions {
    /// An existing directory for the record that a restart needs. Without it every start counts as the
    /// first.
    pub directory: Option<PathBuf>,
    /// How long after the start leases of the previous incarnation may be valid: the longest term plus the
    /// clock skew.
    pub terms: Duration,
    /// How long after that, and after each write, another delayed write may arrive.
    pub write_slack: Duration,
    /// The time of day, which guards `modifyrev` against going back.
    pub clock: Arc<dyn ClockSource>,
}

/// A clock that can be printed for debugging.
pub trait ClockSource: Clock + std::fmt::Debug {}
impl<T: Clock + std::fmt::Debug> ClockSource for T {}

impl Default for NqnfsOptions {
    /// The paper's values, and no record.
    fn default() -> NqnfsOptions {
        NqnfsOptions {
            directory: None,
            terms: Duration::from_secs(63),
            write_slack: Duration::from_secs(5),
            clock: Arc::new(SystemClock),
        }
    }
}

/// The state of an NQNFS server.
#[derive(Debug)]
pub struct Nqnfs {
    pub(crate) clients: Mutex<Clients>,
    pub(crate) leases: Mutex<Leases>,
    revs: Mutex<Revs>,
    record: Record,
    recovery: Arc<Recovery>,
    clock: Arc<dyn ClockSource>,
    /// Serializes appends: each starts where the previous one ended.
    pub(crate) appends: tokio::sync::Mutex<()>,
    /// The xids of calls to clients.
    xids: AtomicU32,
    /// A task waits for the end of recovery.
    started: AtomicBool,
}

impl Nqnfs {
    /// The state after a start. If the previous incarnation granted leases, recovery begins.
    ///
    /// # Errors
    /// If the record cannot be read or written.
    pub fn open(options: &NqnfsOptions) -> io::Result<Nqnfs> {
        let now = nanos(&*options.clock);
        let (record, before) = Record::open(options.directory.as_deref())?;
        let recovery = if before.granted {
            tracing::info!(
                seconds = options.terms.as_secs(),
                "clients may hold NQNFS leases of an earlier incarnation: only writes are served"
            );
            Recovery::begin(Instant::now(), options.terms, options.write_slack)
        } else {
            Recovery::default()
        };
        Ok(Nqnfs {
            clients: Mutex::default(),
            leases: Mutex::default(),
            revs: Mutex::new(Revs::new(now, before.offset, before.reached)),
            record,
            recovery: Arc::new(recovery),
            clock: options.clock.clone(),
            appends: tokio::sync::Mutex::default(),
            xids: AtomicU32::new(now as u32),
            started: AtomicBool::new(false),
        })
    }

    /// The recovery, for the arbiters below: meanwhile they delay the clients of other protocols.
    pub fn recovery(&self) -> Arc<Recovery> {
        self.recovery.clone()
    }

    /// The xid of a call to a client in a datagram.
    pub(crate) fn xid(&self) -> u32 {
        self.xids.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a task, once, that waits for the end of recovery and records it.
    pub(crate) fn start(&self) {
        if self.started.load(Ordering::Relaxed) || self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        if self.recovery.ends().is_none() {
            return;
        }
        let (recovery, record) = (self.recovery.clone(), self.record.clone());
        tokio::spawn(async move {
            while let Some(end) = recovery.ends().filter(|_| recovery.is_on(Instant::now())) {
                sleep_until(end).await;
            }
            tracing::info!("NQNFS recovery is over");
            if let Err(error) = record.recovered().await {
                tracing::warn!(%error, "the record of NQNFS cannot be written: the next start waits for leases in vain");
            }
        });
    }

    /// The `modifyrev` of a file with this change attribute.
    ///
    /// # Errors
    /// `Delay` if the record cannot be written. The server gives out no `modifyrev` that could go back
    /// after a restart.
    pub(crate) async fn rev(&self, change: u64) -> Result<u64, vfs::Status> {
        let (rev, reserve) = {
            let mut revs = self.revs.lock();
            let rev = revs.of(nanos(&*self.clock), change);
            (rev, revs.to_be_stored())
        };
        if let Some((offset, reached)) = reserve {
            self.record.reach(offset, reached).await.map_err(|error| {
                tracing::error!(%error, "the record of NQNFS cannot be written");
                vfs::Status::Delay
            })?;
            self.revs.lock().stored(offset, reached);
        }
        Ok(rev)
    }
}

impl Default for Nqnfs {
    /// In memory alone.
    fn default() -> Nqnfs {
        let clock: Arc<dyn ClockSource> = Arc::new(SystemClock);
        Nqnfs {
            clients: Mutex::default(),
            leases: Mutex::default(),
            revs: Mutex::new(Revs::new(nanos(&*clock), 0, 0)),
            record: Record::volatile(),
            recovery: Arc::default(),
            clock,
            appends: tokio::sync::Mutex::default(),
            xids: AtomicU32::default(),
            started: AtomicBool::new(false),
        }
    }
}

fn nanos(clock: &dyn ClockSource) -> u64 {
    u64::try_from(clock.wall().as_nanos()).unwrap_or(0)
}

/// What NQNFS keeps for itself, over what all versions share.
#[derive(Debug)]
pub(crate) struct NqnfsFront {
    pub(crate) shared: Arc<Shared>,
    pub(crate) nqnfs: Nqnfs,
    cookies: Arc<Cookies>,
}

impl NqnfsFront {
    /// `cookies` are those of version 2 too.
    pub(crate) fn new(shared: Arc<Shared>, nqnfs: Nqnfs, cookies: Arc<Cookies>) -> NqnfsFront {
        NqnfsFront { shared, nqnfs, cookies }
    }
}

/// Calls whose second execution would fail or destroy data. The server keeps their replies for
/// retransmissions. A repeated VACATED would give up a lease that was granted in between. A repeated WRITE
/// would overwrite newer writes of others.
pub(crate) fn must_not_repeat(procedure: u32) -> bool {
    use Procedure as P;
    matches!(
        Procedure::try_from(procedure),
        Ok(P::Setattr
            | P::Create
            | P::Remove
            | P::Rename
            | P::Link
            | P::Symlink
            | P::Mkdir
            | P::Rmdir
            | P::Write
            | P::Vacated)
    )
}

/// The facts about a call that every procedure needs.
pub(crate) struct Asked<'c> {
    pub(crate) request: Request<'c>,
    pub(crate) front: &'c Arc<NqnfsFront>,
    pub(crate) holder: HolderId,
    /// When the call arrived. The client counts the lease term from an earlier moment.
    pub(crate) came: Instant,
}

impl Asked<'_> {
    /// Resolves a client's handle. The object's caller acts for that client.
    pub(crate) fn object(&self, wire: &[u8]) -> Result<Object, vfs::Status> {
        self.request.object(wire).map(|object| self.named(object))
    }

    /// As [`Asked::object`], for an operation that changes something.
    pub(crate) fn writable(&self, wire: &[u8]) -> Result<Object, vfs::Status> {
        self.request.writable(wire).map(|object| self.named(object))
    }

    fn named(&self, mut object: Object) -> Object {
        object.caller.holder = Some(self.holder);
        object
    }
}

/// An estimate of the memory that a reply takes up, in bytes.
pub(crate) fn reply_bytes(asked: &rpc::service::Asked) -> usize {
    if !matches!(Procedure::try_from(asked.procedure), Ok(Procedure::Read)) {
        return 0;
    }
    // The last argument is the requested number of bytes.
    let count = asked.arguments.rest().last_chunk::<4>().copied().map_or(0, u32::from_be_bytes);
    count.min(DATA_MAX) as usize
}

/// Is it a call that renews a lease or gives it back, or none that does anything? A WRITE is urgent too,
/// because its lease may not end before it arrives.
pub(crate) fn is_urgent(procedure: u32) -> bool {
    use Procedure as P;
    let urgent = |it: P| matches!(it, P::Null | P::Vacated | P::Evicted | P::Getlease | P::Write);
    Procedure::try_from(procedure).map_or(true, urgent)
}

/// Answers one call.
pub(crate) async fn answer(front: &Arc<NqnfsFront>, call: rpc::Call) -> Outcome {
    let Ok(procedure) = Procedure::try_from(call.header.procedure) else {
        return Refusal::ProcedureUnavailable.into();
    };
    // From now on leases can be recalled, so the file systems grant them.
    front.shared.start_tasks();
    let holder = front.nqnfs.clients.lock().heard(&call);
    let asked = &Asked { request: Request::new(&front.shared, &call), front, holder, came: Instant::now() };
    match procedure {
        Procedure::Null | Procedure::Root | Procedure::Writecache => reply(&call, &()),
        Procedure::Getattr => serve::<call::Getattr, _, _>(&call, asked, objects::getattr).await,
        Procedure::Setattr => serve::<call::Setattr, _, _>(&call, asked, objects::setattr).await,
        Procedure::Lookup => serve::<call::Lookup, _, _>(&call, asked, objects::lookup).await,
        Procedure::Readlink => serve::<call::Readlink, _, _>(&call, asked, objects::readlink).await,
        Procedure::Read => serve::<call::Read, _, _>(&call, asked, objects::read).await,
        Procedure::Write => serve::<call::Write, _, _>(&call, asked, objects::write).await,
        Procedure::Create => serve::<call::Create, _, _>(&call, asked, make::create).await,
        Procedure::Remove => serve::<call::Remove, _, _>(&call, asked, make::remove).await,
        Procedure::Rename => serve::<call::Rename, _, _>(&call, asked, make::rename).await,
        Procedure::Link => serve::<call::Link, _, _>(&call, asked, make::link).await,
        Procedure::Symlink => serve::<call::Symlink, _, _>(&call, asked, make::symlink).await,
        Procedure::Mkdir => serve::<call::Mkdir, _, _>(&call, asked, make::mkdir).await,
        Procedure::Rmdir => serve::<call::Rmdir, _, _>(&call, asked, make::rmdir).await,
        Procedure::Readdir => serve::<call::Readdir, _, _>(&call, asked, directory::readdir).await,
        Procedure::Readdirlook => {
            serve::<call::Readdirlook, _, _>(&call, asked, directory::readdirlook).await
        }
        Procedure::Statfs => serve::<call::Statfs, _, _>(&call, asked, objects::statfs).await,
        Procedure::Access => serve::<call::Access, _, _>(&call, asked, objects::access).await,
        Procedure::Getlease => getlease(&call, asked).await,
        Procedure::Vacated => vacated(&call, asked).await,
        // Only the server sends EVICTED.
        Procedure::Evicted => Refusal::ProcedureUnavailable.into(),
    }
}

/// The results of a procedure, with the lease that the client requested in the same call.
pub(crate) type Done<T> = vfs::Result<(LeaseResult, T)>;

/// Decodes the arguments, runs the procedure, encodes its results.
async fn serve<C, A, T>(
    call: &rpc::Call,
    asked: &Asked<'_>,
    procedure: impl AsyncFnOnce(&Asked<'_>, LeaseRequest, A) -> Done<T>,
) -> Outcome
where
    C: protocol::Call<Args = Leased<A>, Results = Reply<T>>,
    A: Decode + Encode,
    T: Encode,
{
    let Leased { lease, args } = match arguments::<C::Args>(call) {
        Ok(leased) => leased,
        Err(refusal) => return refusal.into(),
    };
    if let Some(status) = not_now(call, asked, C::NUMBER == Procedure::Write as u32) {
        return reply(call, &C::Results::Fail(status, ()));
    }
    let results: C::Results = match procedure(asked, lease, args).await {
        Ok((lease, results)) => Reply::Ok(Granted { lease, results }),
        Err(error) => {
            tracing::debug!(peer = %call.peer, procedure = C::NAME, status = %error.status, "failed");
            Reply::Fail(convert::stat(error.status), ())
        }
    };
    reply(call, &results)
}

/// The status if the call cannot be executed now, or never for this caller.
fn not_now(call: &rpc::Call, asked: &Asked<'_>, is_write: bool) -> Option<Stat> {
    if matches!(
        call.header.credential,
        rpc::Credential::Gss(_) | rpc::Credential::Tls | rpc::Credential::Other(_)
    ) {
        return Some(Stat::Autherr);
    }
    // While leases of the previous incarnation may be valid, only writes under those leases are accepted.
    // After that, v4 clients may reclaim first.
    let recovering = asked.front.nqnfs.recovery.is_on(Instant::now());
    let waits = if recovering { !is_write } else { asked.front.shared.state.in_grace() };
    waits.then_some(Stat::Trylater)
}

async fn getlease(call: &rpc::Call, asked: &Asked<'_>) -> Outcome {
    let args = match arguments::<protocol::nqnfs::GetleaseArgs>(call) {
        Ok(args) => args,
        Err(refusal) => return refusal.into(),
    };
    if let Some(status) = not_now(call, asked, false) {
        return reply(call, &Plain::<protocol::nqnfs::GetleaseOk>::Fail(status, ()));
    }
    let results = match granting::getlease(asked, args).await {
        Ok(ok) => Plain::Ok(ok),
        Err(error) => Plain::Fail(convert::stat(error.status), ()),
    };
    reply(call, &results)
}

/// VACATED: the client has flushed its writes and no longer uses the lease.
async fn vacated(call: &rpc::Call, asked: &Asked<'_>) -> Outcome {
    let wire = match arguments::<protocol::nqnfs::Handle>(call) {
        Ok(wire) => wire,
        Err(refusal) => return refusal.into(),
    };
    let front = asked.front;
    if wire == protocol::nqnfs::EVERYTHING {
        let all = front.nqnfs.leases.lock().vacate_all(asked.holder);
        for (id, lease) in all {
            let Some(export) = front.shared.exports.by_id(id) else { continue };
            let Ok(caller) = asked.request.caller(&export) else { continue };
            take_back(&export, &Caller { holder: Some(asked.holder), ..caller }, lease).await;
        }
    } else if let Ok(object) = asked.object(&wire) {
        let lease = front.nqnfs.leases.lock().vacate(object.export.id, &object.handle, asked.holder);
        if let Some(lease) = lease {
            take_back(&object.export, &object.caller, lease).await;
        }
    }
    reply(call, &())
}

async fn take_back(export: &Export, caller: &Caller, lease: vfs::LeaseId) {
    if let Err(error) = export.fs().returned(caller, lease).await {
        tracing::debug!(%error, "a vacated lease was not taken back");
    }
}

/// The wire handle of a file.
pub(crate) fn wire_handle(
    front: &NqnfsFront,
    object: &Object,
    handle: &Handle,
) -> Result<protocol::nqnfs::Handle, vfs::Status> {
    front.shared.handles.v2(object.export.id, handle)
}

#[cfg(test)]
mod tests;
