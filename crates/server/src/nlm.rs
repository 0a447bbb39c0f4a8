//! NLM, the lock manager of versions 2 and 3 (X/Open XNFS C702, chapters 9 to 11 and 14), with the status
//! monitor that it needs.
//!
//! [`locking`] has the procedures. They take the same locks of the file systems as version 4, so all clients
//! exclude each other. [`waits`] decides about requests that wait, [`hosts`] knows the client hosts, and
//! [`files`] what each has open. [`listing`] shows both. [`calling`] calls hosts back, in the [`places`] that
//! there are, and [`monitor`] tells and hears of restarts.
//! What outlives a restart is in `state::hosts`.
//!
//! A procedure `_MSG` has the same effect as its synchronous form. Its result is a call to the host.

mod calling;
mod files;
mod hosts;
mod listing;
mod locking;
pub(crate) mod monitor;
mod places;
mod waits;
mod wire;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::nlm::v4::Procedure;
use protocol::nlm::{
    CancelArgs, LockArgs, Notify, Res, ShareArgs, ShareRes, Stat, TestArgs, TestReply, TestRes, UnlockArgs,
    v1,
};
use protocol::portmap;
use rpc::message::Refusal;
use rpc::service::Outcome;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;
use vfs::{Caller, Handle, HolderId, Owner, Status};
use xdr::{Decode, Encode};

use crate::exports::{Export, ExportId};
use crate::shared::{Object, Request, Shared, arguments, reply};
use crate::state::hosts::HostName;
use crate::state::stateids::FileKey;
use calling::{Resend, Route, To};
use files::HostFile;
pub use listing::ListedHost;
use waits::{Answer, Stage, WaitKey, Waits};
use wire::Offset;

/// How long a call waits for the release of what its host held before a restart.
const GATE_MAX: Duration = Duration::from_secs(20);
/// A host that holds nothing is forgotten after this time without a call.
const IDLE: Duration = Duration::from_secs(10 * 60);
/// Interval of the search for idle hosts.
const SWEEP: Duration = Duration::from_secs(60);

/// The lock manager.
#[derive(Debug)]
pub(crate) struct Nlm {
    shared: Arc<Shared>,
    hosts: Mutex<hosts::Hosts>,
    waits: Mutex<Waits<Resend>>,
    files: files::Files,
    /// There is work for the table of waits.
    work: Arc<tokio::sync::Notify>,
    started: AtomicBool,
    places: places::Places,
    /// The address that the server listens on.
    listens: OnceLock<SocketAddr>,
    /// The port of the port mappers of hosts.
    mapper: AtomicU16,
}

/// A call, as the procedures see it.
struct Called<'c> {
    request: Request<'c>,
    route: Route,
    version: u32,
    is_message: bool,
}

impl<'c> Called<'c> {
    fn new(nlm: &'c Nlm, call: &'c rpc::Call, is_message: bool) -> Called<'c> {
        let local = call.connection.as_ref().map(|connection| connection.local().ip().to_canonical());
        let address = call.peer.ip().to_canonical();
        let route = Route { address, tcp: call.connection.is_some(), local };
        let request = Request::with_any_flavor(&nlm.shared, call);
        Called { request, route, version: call.header.version, is_message }
    }
}

/// Does the call take a lock, give one back, or answer a call of ours? All of these are urgent, so that an
/// UNLOCK or a CANCEL does not overtake its LOCK, and a reclaim is not late.
pub(crate) fn is_urgent(procedure: u32) -> bool {
    !matches!(Procedure::try_from(procedure), Ok(Procedure::Test | Procedure::TestMsg))
}

/// Answers one call of version 1, 3 or 4.
pub(crate) async fn answer(nlm: &Arc<Nlm>, call: rpc::Call) -> Outcome {
    let Ok(procedure) = Procedure::try_from(call.header.procedure) else {
        return Refusal::ProcedureUnavailable.into();
    };
    match call.header.version {
        v1::VERSION if procedure >= Procedure::Share => Refusal::ProcedureUnavailable.into(),
        protocol::nlm::v4::VERSION => of_version::<u64>(nlm, procedure, call).await,
        _ => of_version::<u32>(nlm, procedure, call).await,
    }
}

async fn of_version<N: Offset + Encode + Decode>(
    nlm: &Arc<Nlm>,
    procedure: Procedure,
    call: rpc::Call,
) -> Outcome {
    use Procedure as P;
    match procedure {
        P::Null => reply(&call, &()),
        P::Test | P::Lock | P::Cancel | P::Unlock | P::NmLock => {
            let called = Called::new(nlm, &call, false);
            match execute::<N>(nlm, &called, procedure, &call).await {
                Ok(Results::Test(results)) => reply(&call, &results),
                Ok(Results::Other(results)) => reply(&call, &results),
                Err(refusal) => refusal.into(),
            }
        }
        P::TestMsg | P::LockMsg | P::CancelMsg | P::UnlockMsg => {
            let acknowledged = reply(&call, &());
            message::<N>(nlm, procedure, call);
            acknowledged
        }
        P::Share | P::Unshare => share::<N>(nlm, procedure, &call).await,
        P::GrantedRes => match arguments::<Res>(&call) {
            Ok(res) => {
                granted_res(nlm, call.peer.ip().to_canonical(), &res).await;
                reply(&call, &())
            }
            Err(refusal) => refusal.into(),
        },
        P::FreeAll => match arguments::<Notify>(&call) {
            Ok(Notify { name, state }) => {
                monitor::restarted(nlm, call.peer.ip().to_canonical(), &name, state).await;
                reply(&call, &())
            }
            Err(refusal) => refusal.into(),
        },
        // The server waits for no lock, and asks for none by messages.
        P::Granted | P::GrantedMsg | P::TestRes | P::LockRes | P::CancelRes | P::UnlockRes => {
            Refusal::ProcedureUnavailable.into()
        }
    }
}

/// The results of a procedure on locks.
enum Results<N> {
    Test(TestRes<N>),
    Other(Res),
}

/// Executes a procedure on locks, in its synchronous form or as a message.
async fn execute<N: Offset + Decode>(
    nlm: &Arc<Nlm>,
    called: &Called<'_>,
    procedure: Procedure,
    call: &rpc::Call,
) -> Result<Results<N>, Refusal> {
    use Procedure as P;
    let (cookie, done) = match procedure {
        P::Test | P::TestMsg => {
            let args: TestArgs<N> = arguments(call)?;
            let stat = locking::test(nlm, called, &args).await;
            let stat = stat.unwrap_or_else(|status| TestReply::Other(N::stat(wire::stat(status)).into()));
            return Ok(Results::Test(TestRes { cookie: args.cookie, stat }));
        }
        P::Cancel | P::CancelMsg => {
            let args: CancelArgs<N> = arguments(call)?;
            let done = locking::cancel(nlm, called, &args).await;
            (args.cookie, done)
        }
        P::Unlock | P::UnlockMsg => {
            let args: UnlockArgs<N> = arguments(call)?;
            let done = locking::unlock(nlm, called, &args).await;
            (args.cookie, done)
        }
        _ => {
            let args: LockArgs<N> = arguments(call)?;
            let done = locking::lock(nlm, called, &args).await;
            (args.cookie, done)
        }
    };
    Ok(Results::Other(Res { cookie, stat: stat_of::<N>(call, done) }))
}

fn stat_of<N: Offset>(call: &rpc::Call, done: Result<Stat, Status>) -> Stat {
    let stat = done.unwrap_or_else(|status| {
        tracing::debug!(peer = %call.peer, procedure = call.header.procedure, %status, "a lock call failed");
        wire::stat(status)
    });
    N::stat(stat)
}

/// Executes a `_MSG`, and calls the host with the result.
fn message<N: Offset + Encode + Decode>(nlm: &Arc<Nlm>, procedure: Procedure, call: rpc::Call) {
    let Some(place) = nlm.places.try_take(call.peer.ip().to_canonical()) else { return };
    let nlm = nlm.clone();
    tokio::spawn(async move {
        let called = Called::new(&nlm, &call, true);
        let results = match execute::<N>(&nlm, &called, procedure, &call).await {
            Ok(Results::Test(results)) => calling::encoded(&results),
            Ok(Results::Other(results)) => calling::encoded(&results),
            Err(_) => return,
        };
        // TEST_RES is 5 behind TEST_MSG, and so are the others.
        let procedure = procedure as u32 + (Procedure::TestRes as u32 - Procedure::TestMsg as u32);
        let to = To { program: protocol::nlm::v4::PROGRAM, version: called.version, procedure };
        if let Err(error) = calling::call_host(&nlm, called.route, to, results).await {
            tracing::debug!(peer = %call.peer, %error, "a host did not take the result of a message");
        }
        drop(place);
    });
}

async fn share<N: Offset>(nlm: &Arc<Nlm>, procedure: Procedure, call: &rpc::Call) -> Outcome {
    let args: ShareArgs = match arguments(call) {
        Ok(args) => args,
        Err(refusal) => return refusal.into(),
    };
    let called = Called::new(nlm, call, false);
    let done = match procedure {
        Procedure::Share => locking::share(nlm, &called, &args).await,
        _ => locking::unshare(nlm, &called, &args).await,
    };
    reply(call, &ShareRes { cookie: args.cookie, stat: stat_of::<N>(call, done), sequence: 0 })
}

/// GRANTED_RES: the answer to a GRANTED_MSG, found by its cookie. Only the host that got it may answer.
async fn granted_res(nlm: &Arc<Nlm>, address: IpAddr, res: &Res) {
    let Some(number) = res.cookie.first_chunk::<8>().map(|cookie| u64::from_be_bytes(*cookie)) else {
        return;
    };
    let found = nlm.waits.lock().get(number).map(|(key, stage, resend)| (key.clone(), stage, resend));
    let Some((key, Stage::Granted, resend)) = found else { return };
    let answer = calling::answer(res.stat);
    // A client in its grace period is called again in any case.
    if resend.route.address == address && answer != Answer::Silent {
        nlm.answered(number, &key, &resend, answer).await;
    }
}

impl Nlm {
    pub(crate) fn new(shared: Arc<Shared>) -> Nlm {
        Nlm {
            shared,
            hosts: Mutex::default(),
            waits: Mutex::default(),
            files: files::Files::default(),
            work: Arc::default(),
            started: AtomicBool::new(false),
            places: places::Places::default(),
            listens: OnceLock::new(),
            mapper: AtomicU16::new(portmap::PORT),
        }
    }

    /// The server listens on this address. Tells the hosts that held locks before the restart.
    pub(crate) fn listening(self: &Arc<Nlm>, address: SocketAddr) {
        if self.listens.set(address).is_ok() && self.shared.state.do_hosts_reclaim() {
            monitor::notify_all(self);
        }
    }

    /// Ask the port mappers of hosts at this port.
    pub(crate) fn set_mapper_port(&self, port: u16) {
        self.mapper.store(port, Ordering::Relaxed);
    }

    fn mapper_port(&self) -> u16 {
        self.mapper.load(Ordering::Relaxed)
    }

    /// The address to call hosts from, if the server listens on one alone.
    fn local_address(&self) -> Option<IpAddr> {
        self.listens.get().map(SocketAddr::ip).filter(|address| !address.is_unspecified())
    }

    /// A lock that an owner waits for may be free. True if the owner waits here.
    pub(crate) fn notify_lock(
        &self,
        export: ExportId,
        holder: HolderId,
        owner: &Owner,
        handle: Handle,
    ) -> bool {
        let file = FileKey { export, handle };
        let waits = self.waits.lock().notified(Instant::now(), holder, &file, owner);
        if waits {
            self.work.notify_one();
        }
        waits || self.is_host(holder)
    }

    /// Hosts, locked files, and requests that wait.
    pub(crate) fn held(&self) -> (usize, usize, usize) {
        let (hosts, waits) = (self.hosts.lock().len(), self.waits.lock().len());
        (hosts, self.files.len(), waits)
    }

    fn is_host(&self, holder: HolderId) -> bool {
        self.hosts.lock().has(holder)
    }

    /// Does the host hold nothing, and wait for nothing?
    fn is_idle(&self, holder: HolderId) -> bool {
        !self.files.any_of(holder) && !self.waits.lock().has(holder)
    }

    /// The host of a call. If it has restarted, what it held is released first.
    async fn host(
        self: &Arc<Nlm>,
        called: &Called<'_>,
        name: &[u8],
        state: u32,
    ) -> Result<(HostName, HolderId), Status> {
        self.start();
        let name = bytes::Bytes::copy_from_slice(name);
        let host = HostName { address: called.route.address, name };
        let fresh = self.shared.state.holder_of_host(&host);
        let is_idle = |holder| self.is_idle(holder);
        let noted = self.hosts.lock().note((&host, called.route, state), Instant::now(), || fresh, is_idle);
        let noted = noted.map_err(|_| Status::Resource)?;
        if let Some(closed) = noted.restarted {
            tracing::info!(host = %host.address, state, "a host has restarted: its locks are released");
            self.release_behind(noted.holder, closed);
        }
        // The release may wait for an origin that is away. The client asks again.
        let passed = tokio::time::timeout(GATE_MAX, noted.gate.pass()).await;
        passed.map_err(|_| Status::Delay)?;
        Ok((host, noted.holder))
    }

    /// Releases all that a host holds, behind its gate. It goes on even if the call that caused it ends.
    fn release_behind(
        self: &Arc<Nlm>,
        holder: HolderId,
        closed: hosts::Closed,
    ) -> tokio::task::JoinHandle<()> {
        let nlm = self.clone();
        tokio::spawn(async move {
            nlm.release(holder).await;
            drop(closed);
        })
    }

    /// Releases all that a host holds. Its gate is closed meanwhile, so it gets nothing new.
    async fn release(&self, holder: HolderId) {
        self.waits.lock().take_host(holder);
        for (key, held) in self.files.of(holder) {
            let export = self.shared.exports.by_id(key.export);
            self.release_file(export.as_deref(), (holder, key), held).await;
        }
    }

    /// Releases all that hosts hold of an export that is not in the table any more.
    pub(crate) async fn release_export(&self, export: &Export) {
        self.waits.lock().take_export(export.id);
        for (holder, key, held) in self.files.of_export(export.id) {
            self.release_file(Some(export), (holder, key), held).await;
        }
    }

    /// Releases what a host holds on a file.
    async fn release_file(
        &self,
        export: Option<&Export>,
        (holder, key): (HolderId, FileKey),
        held: Arc<AsyncMutex<HostFile>>,
    ) {
        let mut file = held.lock().await;
        let caller = Caller { holder: Some(holder), ..Caller::machine() };
        for open in file.take_all() {
            let Some(export) = export else { continue };
            if let Err(error) = export.fs().close(&caller, open).await {
                tracing::debug!(status = %error.status, "an open was gone before it was closed");
            }
        }
        drop(file);
        self.files.settle(holder, key, held);
    }

    /// The file of a request that waits.
    fn object_of(&self, key: &WaitKey, resend: &Resend) -> Option<Object> {
        let export = self.shared.exports.by_id(key.file.export)?;
        Some(Object { export, handle: key.file.handle, caller: resend.caller.clone() })
    }

    async fn answered(self: &Arc<Nlm>, number: u64, key: &WaitKey, resend: &Resend, answer: Answer) {
        if answer == Answer::Silent {
            self.waits.lock().answered(Instant::now(), number, answer);
        } else {
            locking::answered(self, number, key, resend, answer).await;
        }
    }

    /// Starts the tasks with the first call: those of all clients with state, and that of the waits.
    fn start(self: &Arc<Nlm>) {
        if !self.started.swap(true, Ordering::Relaxed) {
            self.shared.start_tasks();
            tokio::spawn(run(Arc::downgrade(self), self.work.clone()));
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Does the work that is due for one request.
    async fn work(self: Arc<Nlm>, number: u64) {
        let found = self.waits.lock().get(number).map(|(key, stage, resend)| (key.clone(), stage, resend));
        match found {
            Some((key, Stage::Waiting, resend)) => locking::attempt(&self, number, &key, &resend).await,
            Some((key, Stage::Granted, resend)) => {
                let _place = self.places.take(resend.route.address).await;
                let answer = calling::granted(&self, number, &resend).await;
                self.answered(number, &key, &resend, answer).await;
            }
            None => {}
        }
        self.work.notify_one();
    }

    /// Forgets hosts that hold nothing and have not called for a while. Those in the record go from there.
    async fn sweep(&self) {
        let Some(since) = Instant::now().checked_sub(IDLE) else { return };
        self.hosts.lock().forget_unused(since, |holder| self.is_idle(holder));
        if self.shared.state.do_hosts_reclaim() {
            return;
        }
        let recorded: Vec<_> = {
            let tables = self.shared.state.tables();
            tables.hosts.iter().map(|(host, holder)| (host.clone(), holder)).collect()
        };
        for (host, holder) in recorded {
            let is_gone = || !self.is_host(holder);
            if is_gone() {
                self.shared.state.forget_host(&host, is_gone).await;
            }
        }
    }
}

/// Works through the waits as they become due.
async fn run(nlm: Weak<Nlm>, work: Arc<tokio::sync::Notify>) {
    loop {
        let now = Instant::now();
        let next = {
            let Some(nlm) = nlm.upgrade() else { return };
            let mut waits = nlm.waits.lock();
            while let Some(number) = waits.due(now) {
                tokio::spawn(nlm.clone().work(number));
            }
            // Now and then it looks whether the lock manager is still there.
            waits.next_due().map_or(now + SWEEP, |due| due.min(now + SWEEP))
        };
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = work.notified() => {}
        }
    }
}

/// Sweeps now and then. It waits for the disk, so it has a task of its own.
async fn sweep(nlm: Weak<Nlm>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(nlm) = nlm.upgrade() else { return };
        nlm.sweep().await;
    }
}
