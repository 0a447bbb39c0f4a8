//! The service behind the port: it hands each call to its version ([`crate::dispatch`]), and holds what all
//! versions share.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::{nfs2, nfs3, nfs4, nqnfs};
use rpc::message::{AUTH_TOOWEAK, Refusal};
use rpc::service::{Answering, Asked, Outcome, Remember};
use rpc::{Call, Credential, Service};
use vfs::{Caller, Clock, Handle, Status, SystemClock};
use xdr::Encode;

use crate::caller::{self, Denied};
use crate::dispatch;
use crate::exports::pseudo::Pseudo;
use crate::exports::{Export, Exports};
use crate::handles::Handles;
use crate::mount::Mounts;
use crate::nqnfs::Nqnfs;
use crate::recalls;
use crate::state::{KnownClients, State, StateOptions};

/// Answers NFS v4, NFS v3, NFS v2, NQNFS and MOUNT v1 to v3 over a table of exports.
#[derive(Debug)]
pub struct Front {
    pub(crate) exports: Exports,
    pub(crate) handles: Handles,
    pub(crate) mounts: Mounts,
    pub(crate) cookies: crate::narrow::Cookies,
    pub(crate) pseudo: Pseudo,
    pub(crate) known: crate::nfs4::Knowledge,
    pub(crate) state: State,
    pub(crate) nqnfs: Nqnfs,
    counts: Counts,
}

/// Number of calls answered for each procedure, and for v4 the number of operations.
#[derive(Debug)]
pub struct Counts {
    nfs3: [AtomicU64; nfs3::Procedure::ALL.len()],
    nfs2: [AtomicU64; nfs2::Procedure::ALL.len()],
    nqnfs: [AtomicU64; nqnfs::Procedure::ALL.len()],
    /// Indexed by operation number. The last entry counts numbers that are no operation.
    nfs4: [AtomicU64; OPERATIONS],
}

/// The highest operation number plus one, and one more entry for numbers that are no operation.
const OPERATIONS: usize = nfs4::Operation::Removexattr as usize + 2;

impl Default for Counts {
    fn default() -> Counts {
        Counts {
            nfs3: std::array::from_fn(|_| AtomicU64::new(0)),
            nfs2: std::array::from_fn(|_| AtomicU64::new(0)),
            nqnfs: std::array::from_fn(|_| AtomicU64::new(0)),
            nfs4: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Counts {
    /// Calls of an NFSv3 procedure.
    pub fn nfs3(&self, procedure: nfs3::Procedure) -> u64 {
        self.nfs3[procedure as usize].load(Ordering::Relaxed)
    }

    /// Calls of an NFSv2 procedure.
    pub fn nfs2(&self, procedure: nfs2::Procedure) -> u64 {
        self.nfs2[procedure as usize].load(Ordering::Relaxed)
    }

    /// Calls of an NQNFS procedure.
    pub fn nqnfs(&self, procedure: nqnfs::Procedure) -> u64 {
        self.nqnfs[procedure as usize].load(Ordering::Relaxed)
    }

    /// Operations of NFSv4, over all minor versions.
    pub fn nfs4(&self, operation: nfs4::Operation) -> u64 {
        self.nfs4[(operation as usize).min(OPERATIONS - 1)].load(Ordering::Relaxed)
    }

    pub(crate) fn add_nfs4(&self, operation: nfs4::Operation) {
        self.nfs4[(operation as usize).min(OPERATIONS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Every counter that is not zero: version (1 is NQNFS), name, count.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &'static str, u64)> {
        let v3 = nfs3::Procedure::ALL.iter().map(|procedure| (3, procedure.name(), self.nfs3(*procedure)));
        let v2 = nfs2::Procedure::ALL.iter().map(|procedure| (2, procedure.name(), self.nfs2(*procedure)));
        let v4 = nfs4::Operation::ALL.iter().map(|operation| (4, operation.name(), self.nfs4(*operation)));
        let nq = nqnfs::Procedure::ALL.iter().map(|procedure| (1, procedure.name(), self.nqnfs(*procedure)));
        v4.chain(v3).chain(v2).chain(nq).filter(|(_, _, count)| *count > 0)
    }

    pub(crate) fn add_nfs3(&self, procedure: u32) {
        add(&self.nfs3, procedure);
    }

    pub(crate) fn add_nfs2(&self, procedure: u32) {
        add(&self.nfs2, procedure);
    }

    pub(crate) fn add_nqnfs(&self, procedure: u32) {
        add(&self.nqnfs, procedure);
    }
}

/// Counts a call. A number that is no procedure counts nowhere.
fn add(counts: &[AtomicU64], procedure: u32) {
    if let Some(count) = counts.get(procedure as usize) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Front {
    /// A front over `exports` that makes and reads handles with `handles`. The state of v4 clients is kept
    /// in memory only.
    pub fn new(exports: Exports, handles: Handles) -> Arc<Front> {
        Front::over(exports, handles, State::default(), Nqnfs::default())
    }

    /// As [`Front::new`], with the state of v4 clients configured by `options`. If `options` names a
    /// directory, clients can reclaim their state from a later front that uses the same directory.
    ///
    /// # Errors
    /// If the record of clients cannot be read or written.
    pub fn with_state(
        exports: Exports,
        handles: Handles,
        options: &StateOptions,
    ) -> std::io::Result<Arc<Front>> {
        Front::with_leases(exports, handles, options, Nqnfs::default())
    }

    /// As [`Front::with_state`], with the NQNFS record that the previous incarnation left.
    ///
    /// # Errors
    /// As of [`Front::with_state`].
    pub fn with_leases(
        exports: Exports,
        handles: Handles,
        options: &StateOptions,
        nqnfs: Nqnfs,
    ) -> std::io::Result<Arc<Front>> {
        Ok(Front::over(exports, handles, State::open(options)?, nqnfs))
    }

    fn over(exports: Exports, handles: Handles, state: State, nqnfs: Nqnfs) -> Arc<Front> {
        Arc::new(Front {
            pseudo: Pseudo::new(&exports, SystemClock.wall()),
            known: crate::nfs4::Knowledge::default(),
            state,
            nqnfs,
            exports,
            handles,
            mounts: Mounts::default(),
            cookies: crate::narrow::Cookies::default(),
            counts: Counts::default(),
        })
    }

    /// Must be called before the first call is answered. If no client may reclaim state from before a
    /// restart, this tells the file systems to drop the state they keep for reclaiming.
    pub async fn begin(&self) {
        if !self.state.in_grace() {
            self.end_reclaim().await;
        }
    }

    /// Starts the background tasks when the first client appears that may hold state: callbacks, and the
    /// expiry of leases and of grace.
    pub(crate) fn start_tasks(self: &Arc<Front>) {
        if State::start(self) {
            recalls::start(self);
        }
    }

    /// Calls answered so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The number of version 4 clients.
    pub fn clients(&self) -> KnownClients {
        self.state.clients()
    }

    /// The exports.
    pub fn exports(&self) -> &Exports {
        &self.exports
    }
}

impl Service for Front {
    fn call(self: Arc<Self>, call: Call) -> Answering {
        Nqnfs::start(&self);
        match dispatch::taking(&call) {
            Ok(entry) => {
                (entry.count)(&self.counts, call.header.procedure);
                (entry.answer)(self, call)
            }
            Err(refusal) => Box::pin(std::future::ready(refusal.into())),
        }
    }

    /// A peer that no export admits creates no state and learns nothing about the exports.
    fn admits(&self, peer: SocketAddr) -> bool {
        self.exports.iter().any(|export| export.options.admits(peer))
    }

    fn turn_away(&self, call: &Call) -> Outcome {
        match dispatch::find(call.header.program, call.header.version) {
            Some(entry) => (entry.turn_away)(self, call),
            None => Refusal::Auth(AUTH_TOOWEAK).into(),
        }
    }

    fn reply_bytes(&self, asked: &Asked) -> usize {
        dispatch::find(asked.program, asked.version).map_or(0, |entry| (entry.reply_bytes)(asked))
    }

    fn remember(&self, call: &Call) -> Remember {
        let entry = dispatch::find(call.header.program, call.header.version);
        entry.map_or(Remember::No, |entry| (entry.remember)(call))
    }
}

/// The facts about a call that every procedure needs.
pub(crate) struct Request<'c> {
    pub(crate) front: &'c Front,
    pub(crate) peer: SocketAddr,
    pub(crate) credential: &'c Credential,
    pub(crate) resent: bool,
    /// The call came in a datagram, so the reply must fit in a datagram.
    pub(crate) datagram: bool,
}

/// An object that a request names, and the caller that the request runs as.
pub(crate) struct Object {
    pub(crate) export: Arc<Export>,
    pub(crate) handle: Handle,
    pub(crate) caller: Caller,
}

impl<'c> Request<'c> {
    pub(crate) fn new(front: &'c Front, call: &'c Call) -> Request<'c> {
        Request {
            front,
            peer: call.peer,
            credential: &call.header.credential,
            resent: call.resent,
            datagram: call.connection.is_none(),
        }
    }

    /// Resolves a client's handle, if the client may use its export.
    pub(crate) fn object(&self, wire: &[u8]) -> Result<Object, Status> {
        let (id, handle) = self.front.handles.read(wire)?;
        let export = self.front.exports.by_id(id).ok_or(Status::Stale)?;
        // Only v4 can tell a client where the export is.
        if export.is_absent() {
            return Err(Status::Stale);
        }
        let caller = self.caller(export).map_err(|_| Status::Access)?;
        Ok(Object { export: export.clone(), handle, caller })
    }

    /// As [`Request::object`], for an operation that changes something.
    pub(crate) fn writable(&self, wire: &[u8]) -> Result<Object, Status> {
        let object = self.object(wire)?;
        if object.export.options.read_only { Err(Status::Rofs) } else { Ok(object) }
    }

    pub(crate) fn caller(&self, export: &Export) -> Result<Caller, Denied> {
        caller::caller(export, self.peer, self.credential, self.resent)
    }
}

/// A successful reply with these results.
pub(crate) fn reply<T: Encode>(call: &Call, results: &T) -> Outcome {
    let mut encoder = call.reply();
    results.encode(&mut encoder);
    Outcome::Reply(encoder.finish())
}

/// The arguments of a call. Bytes left over make the arguments garbage.
pub(crate) fn arguments<T: xdr::Decode>(call: &Call) -> Result<T, Refusal> {
    let mut decoder = call.arguments.clone();
    let value = T::decode(&mut decoder).map_err(|_| Refusal::GarbageArguments)?;
    decoder.finish().map_err(|_| Refusal::GarbageArguments)?;
    Ok(value)
}
