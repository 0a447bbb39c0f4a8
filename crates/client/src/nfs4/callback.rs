//! The backchannel: requests of the origin to us (RFC 8881, section 20), on connections that we made.
//!
//! A recall is answered at once and passed up; the delegation is returned afterwards. A recall of an unknown
//! delegation may have overtaken the reply that grants it, so it waits for the OPENs in flight.

pub(crate) mod slots;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use protocol::nfs4::callback::{
    self, CbArgOp, CbCompoundHeader, CbCompoundRes, CbGetattrArgs, CbGetattrOk, CbNotifyLockArgs,
    CbOperation, CbRecallAnyArgs, CbRecallArgs, CbResOp, CbSequenceArgs, CbSequenceOk,
    RCA4_TYPE_MASK_DIR_DLG, RCA4_TYPE_MASK_RDATA_DLG, RCA4_TYPE_MASK_WDATA_DLG,
};
use protocol::nfs4::{Attr, BadArguments, Fattr, Sessionid, Status as Wire};
use rpc::message::Refusal;
use rpc::service::Answering;
use rpc::{Outcome, Remember, Service};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use vfs::grants::{GrantNumber, GrantsInFlight};
use vfs::{Callback, Callbacks, Handle, HolderId, LeaseKind, Owner, Query, Times, Timestamp};
use xdr::{Decode, Decoder, List};

use super::establish::{BACK_OPERATIONS_MAX, BACK_SLOTS, CB_PROGRAM};
use super::opens::wire_owner;
use super::{Nfs4Client, Phase, convert};
use slots::{BackSlots, Begun};

/// Callbacks that may wait for the layer above.
const UPWARD_MAX: usize = 256;
/// How long a recall waits for the OPENs in flight.
const OVERTAKEN: Duration = Duration::from_secs(5);
/// How long the layer above may take to report the attributes of a file that it has changed.
const ANSWER: Duration = Duration::from_secs(5);
/// Most denied locks that a client waits for.
const WAITING_MAX: usize = 4096;
/// Most recalls of unknown delegations whose return is in progress.
const STRAYS_MAX: usize = 64;

/// The state of the backchannel, and its link to the layer above.
#[derive(Debug)]
pub(crate) struct Back {
    inner: OnceLock<Weak<Nfs4Client>>,
    slots: Mutex<BackSlots>,
    /// The generation of the first link's connection on which callbacks arrive.
    bound: Mutex<Option<u64>>,
    upward: mpsc::Sender<Callback>,
    downward: Mutex<Option<Callbacks>>,
    taken: AtomicBool,
    /// OPENs in flight.
    opens: Mutex<GrantsInFlight>,
    opened: Notify,
    waiting: Mutex<HashMap<(Handle, Bytes), (HolderId, Owner)>>,
    owners: AtomicU64,
    /// Limits the recalls of unknown delegations.
    strays: Arc<Semaphore>,
}

/// An OPEN in flight.
pub(crate) struct InFlight<'a> {
    back: &'a Back,
    number: GrantNumber,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.back.opens.lock().end(self.number);
        self.back.opened.notify_waiters();
    }
}

impl Back {
    pub(crate) fn new() -> Arc<Back> {
        let (upward, downward) = mpsc::channel(UPWARD_MAX);
        Arc::new(Back {
            inner: OnceLock::new(),
            slots: Mutex::default(),
            bound: Mutex::default(),
            upward,
            downward: Mutex::new(Some(downward)),
            taken: AtomicBool::new(false),
            opens: Mutex::default(),
            opened: Notify::new(),
            waiting: Mutex::default(),
            owners: AtomicU64::new(0),
            strays: Arc::new(Semaphore::new(STRAYS_MAX)),
        })
    }

    pub(crate) fn belongs_to(&self, inner: Weak<Nfs4Client>) {
        // This is set only once: each mount has its own `Back`.
        let _ = self.inner.set(inner);
    }

    pub(crate) fn take_callbacks(&self) -> Option<Callbacks> {
        let callbacks = self.downward.lock().take();
        self.taken.store(true, Ordering::Relaxed);
        callbacks
    }

    /// Does the layer above listen?
    pub(crate) fn listening(&self) -> bool {
        self.taken.load(Ordering::Relaxed) && !self.upward.is_closed()
    }

    /// Passes a callback to the layer above. If that layer is behind, the callback waits in a task. So a
    /// caller must pass each delegation or denied lock only once, which bounds the number of waiting
    /// callbacks.
    pub(crate) fn tell(&self, callback: Callback) {
        if !self.listening() {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(callback)) = self.upward.try_send(callback) {
            let upward = self.upward.clone();
            tokio::spawn(async move {
                let _ = upward.send(callback).await;
            });
        }
    }

    /// Notes a new session, and the connection of the first link on which its callbacks arrive.
    pub(crate) fn started(&self, session: Sessionid, connection: Option<u64>) {
        self.slots.lock().start(session);
        *self.bound.lock() = connection;
    }

    /// Notes that the callbacks of this session now arrive on another connection.
    pub(crate) fn bound(&self, session: Sessionid, connection: u64) {
        if self.slots.lock().is(&session) {
            *self.bound.lock() = Some(connection);
        }
    }

    /// The connection on which callbacks arrive.
    pub(crate) fn connection(&self) -> Option<u64> {
        *self.bound.lock()
    }

    /// Notes that an OPEN begins.
    pub(crate) fn opening(&self) -> InFlight<'_> {
        InFlight { back: self, number: self.opens.lock().begin() }
    }

    /// Waits for the OPENs in flight now, if any.
    async fn after_opens(&self) {
        let now = self.opens.lock().mark();
        loop {
            let changed = self.opened.notified();
            if self.opens.lock().have_ended(now) {
                return;
            }
            changed.await;
        }
    }

    /// Notes that a client waits for a lock.
    pub(crate) fn waits(&self, handle: Option<Handle>, holder: HolderId, owner: &Owner) {
        let mut waiting = self.waiting.lock();
        if let Some(handle) = handle
            && waiting.len() < WAITING_MAX
        {
            waiting.insert((handle, wire_owner(owner).owner.into_bytes()), (holder, owner.clone()));
        }
    }

    /// Notes that a lock was granted, or is not wanted any more.
    pub(crate) fn waits_no_more(&self, handle: Handle, owner: &Owner) {
        self.waiting.lock().remove(&(handle, wire_owner(owner).owner.into_bytes()));
    }

    /// An owner that is used only once.
    pub(crate) fn passing_owner(&self) -> Owner {
        let number = self.owners.fetch_add(1, Ordering::Relaxed);
        Owner(Bytes::from(format!("passing {number}")))
    }

    async fn answer(&self, inner: &Arc<Nfs4Client>, mut arguments: Decoder) -> Result<Bytes, xdr::Error> {
        let mut header = CbCompoundHeader::decode(&mut arguments)?;
        let refused = |status| {
            let resarray = List::default();
            xdr::to_bytes(&CbCompoundRes { status: Err(status), tag: header.tag.clone(), resarray })
        };
        let encoded = |encoded: std::io::Result<Bytes>| encoded.unwrap_or_default();
        if header.minorversion != inner.minor {
            return Ok(encoded(refused(Wire::MinorVersMismatch)));
        }
        let (tag, operations) = (header.tag.clone(), header.operations);
        let reply = |results: Vec<CbResOp>| {
            let status = results.last().map_or(Ok(()), CbResOp::status);
            let resarray = List::new(results).unwrap_or_default();
            encoded(xdr::to_bytes(&CbCompoundRes { status, tag: tag.clone(), resarray }))
        };
        let sequence = match header.next(&mut arguments) {
            None => return Ok(reply(Vec::new())),
            Some(Ok(CbArgOp::Sequence(sequence))) => sequence,
            Some(Ok(other)) => {
                return Ok(reply(vec![CbResOp::failed(other.operation(), Wire::OpNotInSession)]));
            }
            Some(Err(bad)) => return Ok(reply(vec![CbResOp::failed(bad.operation, Wire::BadXdr)])),
        };
        let begun = if operations > BACK_OPERATIONS_MAX {
            Begun::Refused(Wire::TooManyOps)
        } else {
            self.slots.lock().begin(&sequence, digest(&arguments.rest()))
        };
        let turn = match begun {
            Begun::New(turn) => turn,
            Begun::Again(reply) => return Ok(reply),
            Begun::Refused(status) => {
                return Ok(reply(vec![CbResOp::failed(CbOperation::Sequence, status)]));
            }
        };
        let mut results = vec![CbResOp::Sequence(Ok(sequenced(&sequence)))];
        while results.last().is_some_and(|last| last.status().is_ok())
            && let Some(next) = header.next(&mut arguments)
        {
            results.push(self.operation(inner, next).await);
        }
        let answer = reply(results);
        self.slots.lock().end(turn, answer.clone());
        Ok(answer)
    }

    async fn operation(
        &self,
        inner: &Arc<Nfs4Client>,
        asked: Result<CbArgOp, BadArguments<CbOperation>>,
    ) -> CbResOp {
        match asked {
            Err(bad) => CbResOp::failed(bad.operation, Wire::BadXdr),
            Ok(CbArgOp::Recall(args)) => CbResOp::Recall(self.recall(inner, &args).await),
            Ok(CbArgOp::Getattr(args)) => CbResOp::Getattr(self.getattr(inner, &args).await),
            Ok(CbArgOp::RecallAny(args)) => CbResOp::RecallAny(self.recall_any(args)),
            Ok(CbArgOp::RecallableObjAvail(_)) => CbResOp::RecallableObjAvail(Ok(())),
            Ok(CbArgOp::RecallSlot(args)) => {
                if let Phase::Ready(session) = &*inner.phase.borrow() {
                    session.limit(args.target_highest_slotid);
                }
                CbResOp::RecallSlot(Ok(()))
            }
            Ok(CbArgOp::NotifyLock(args)) => {
                self.notify_lock(&args);
                CbResOp::NotifyLock(Ok(()))
            }
            Ok(CbArgOp::Sequence(_)) => CbResOp::failed(CbOperation::Sequence, Wire::SequencePos),
            Ok(CbArgOp::Illegal(_)) => CbResOp::Illegal(Wire::OpIllegal),
            Ok(other) => CbResOp::failed(other.operation(), Wire::NotSupp),
        }
    }

    async fn recall(&self, inner: &Arc<Nfs4Client>, args: &CbRecallArgs) -> Result<(), Wire> {
        let handle = convert::from_wire(&args.fh).ok_or(Wire::BadHandle)?;
        let named = || inner.state.lock().lease_named(&args.stateid, &handle);
        // It is being returned already.
        if inner.state.lock().was_given_up(&args.stateid) {
            return Ok(());
        }
        let mut lease = named();
        if lease.is_none() {
            timeout(OVERTAKEN, self.after_opens()).await.map_err(|_| Wire::Delay)?;
            lease = named();
        }
        match lease {
            Some(lease) => inner.recall(lease),
            // An earlier incarnation ended before it heard of this grant, or the answer to the grant was
            // lost.
            None if inner.strays.load(Ordering::Relaxed) => {
                let permit = self.strays.clone().try_acquire_owned().map_err(|_| Wire::Delay)?;
                inner.return_stray(handle, args.stateid, permit);
            }
            None => return Err(Wire::BadStateid),
        }
        Ok(())
    }

    async fn getattr(&self, inner: &Arc<Nfs4Client>, args: &CbGetattrArgs) -> Result<CbGetattrOk, Wire> {
        let handle = convert::from_wire(&args.fh).ok_or(Wire::BadHandle)?;
        let held = inner.state.lock().lease_of(&handle).map(|(id, held)| (id, held.kind, held.change));
        let (id, change) = match held {
            Some((id, LeaseKind::Write, Some(change))) if self.listening() => (id, change),
            _ => return Err(Wire::BadHandle),
        };
        let asked = |attr: Attr| args.attr_request.contains(attr);
        let times = asked(Attr::TimeModify) && asked(Attr::TimeMetadata);
        let (answer, answered) = oneshot::channel();
        let deadline = Instant::now() + ANSWER;
        let query = Callback::Getattr(Query { id, handle, change, times, answer, deadline });
        let asked_above = timeout_at(deadline, self.upward.send(query)).await.map_err(|_| Wire::Delay)?;
        asked_above.map_err(|_| Wire::BadHandle)?;
        // If the layer above cannot say, it drops the query. This failure makes the server recall the
        // delegation instead.
        let answered = timeout_at(deadline, answered).await.map_err(|_| Wire::Delay)?;
        let held = answered.map_err(|_| Wire::BadHandle)?;
        let time = |attr: Attr, of: fn(Times) -> Timestamp| {
            held.times.filter(|_| asked(attr)).map(|times| convert::nfstime(of(times)))
        };
        let obj_attributes = Box::new(Fattr {
            change: asked(Attr::Change).then_some(change.wrapping_add(u64::from(held.modified))),
            size: asked(Attr::Size).then_some(held.size),
            time_access: time(Attr::TimeAccess, |times| times.atime),
            time_metadata: time(Attr::TimeMetadata, |times| times.ctime),
            time_modify: time(Attr::TimeModify, |times| times.mtime),
            ..Fattr::default()
        });
        Ok(CbGetattrOk { obj_attributes })
    }

    /// Passes CB_RECALL_ANY up. If the layer above is behind, the answer is DELAY and nothing waits: the
    /// origin asks again.
    fn recall_any(&self, args: CbRecallAnyArgs) -> Result<(), Wire> {
        let meant = [RCA4_TYPE_MASK_RDATA_DLG, RCA4_TYPE_MASK_WDATA_DLG, RCA4_TYPE_MASK_DIR_DLG];
        if !meant.iter().any(|number| args.type_mask.contains_bit(*number)) || !self.listening() {
            return Ok(());
        }
        let asked = Callback::RecallAny { holder: None, keep: args.objects_to_keep };
        self.upward.try_send(asked).map_err(|_| Wire::Delay)
    }

    fn notify_lock(&self, args: &CbNotifyLockArgs) {
        let Some(handle) = convert::from_wire(&args.fh) else { return };
        let key = (handle, args.lock_owner.owner.clone().into_bytes());
        if let Some((holder, owner)) = self.waiting.lock().remove(&key) {
            self.tell(Callback::NotifyLock { holder, owner, handle });
        }
    }
}

/// Distinguishes callbacks that come under the same sequence id.
fn digest(operations: &Bytes) -> u64 {
    let mut hasher = DefaultHasher::new();
    operations.hash(&mut hasher);
    hasher.finish()
}

fn sequenced(args: &CbSequenceArgs) -> CbSequenceOk {
    CbSequenceOk {
        sessionid: args.sessionid,
        sequenceid: args.sequenceid,
        slotid: args.slotid,
        highest_slotid: BACK_SLOTS - 1,
        target_highest_slotid: BACK_SLOTS - 1,
    }
}

impl Service for Back {
    fn call(self: Arc<Self>, call: rpc::Call) -> Answering {
        let refuse = |refusal| -> Answering { Box::pin(std::future::ready(Outcome::Refuse(refusal))) };
        let header = &call.header;
        if header.program != CB_PROGRAM {
            return refuse(Refusal::ProgramUnavailable);
        }
        if ![callback::VERSION, callback::VERSION_4].contains(&header.version) {
            let (low, high) = (callback::VERSION, callback::VERSION_4);
            return refuse(Refusal::ProgramMismatch { low, high });
        }
        match header.procedure {
            callback::NULL => Box::pin(std::future::ready(Outcome::Reply(call.reply().finish()))),
            callback::COMPOUND => Box::pin(async move {
                let Some(inner) = self.inner.get().and_then(Weak::upgrade) else {
                    return Outcome::Refuse(Refusal::ProgramUnavailable);
                };
                match self.answer(&inner, call.arguments.clone()).await {
                    Ok(bytes) => {
                        let mut encoder = call.reply();
                        encoder.raw(&bytes);
                        Outcome::Reply(encoder.finish())
                    }
                    Err(_) => Outcome::Refuse(Refusal::GarbageArguments),
                }
            }),
            _ => refuse(Refusal::ProcedureUnavailable),
        }
    }

    /// The slot table already keeps replies for resent callbacks.
    fn remember(&self, _: &rpc::Call) -> Remember {
        Remember::No
    }
}
