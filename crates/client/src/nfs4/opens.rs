//! OPEN, OPEN_DOWNGRADE and CLOSE. For operations that piggyback on an OPEN, see [`super::delegating`] and
//! [`super::io`].

use std::sync::Arc;

use bytes::Bytes;
use protocol::nfs4::{
    ArgFattr, ArgOp, Attr, CloseArgs, Createhow, Creatverfattr, Limited, LockuArgs, NfsLockType,
    OPEN4_SHARE_ACCESS_WANT_ANY_DELEG, OPEN4_SHARE_ACCESS_WANT_NO_DELEG, OPEN4_SHARE_ACCESS_WANT_READ_DELEG,
    OPEN4_SHARE_ACCESS_WANT_WRITE_DELEG, Op, OpenArgs, OpenClaim, OpenDowngradeArgs, Openflag, Operation,
    SHORT_OWNER_BYTES, StateOwner, Status as Wire, op,
};
use tokio::time::timeout_at;
use vfs::replay::{self, Made};
use vfs::{
    Caller, Combinations, CreateHow, FileType, Handle, LeaseId, Node, OpenId, OpenRequest, Opened, Owner,
    Read, Result, SetAttributes, Share, Shares, Status, Want,
};

use super::attributes::put;
use super::delegating::{NotCarriedOut, Piggybacking, WithLease};
use super::execute::Plan;
use super::opening::Piggyback;
use super::state::{Open, State, Used, latest};
use super::{Nfs4, Nfs4Client, convert};

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
    shares: Shares,
    want: u32,
    openhow: Openflag,
    claim: OpenClaim,
) -> OpenArgs {
    OpenArgs {
        seqid: 0,
        share_access: u32::from(shares.access.bits()) | want,
        share_deny: u32::from(shares.deny.bits()),
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
    pub(super) fn want(&self, want: Want) -> u32 {
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

    /// Closes an open that no caller waited for.
    pub(super) fn forget(&self, opened: &Opened) {
        self.let_go(opened.id, opened.lease.map(|lease| lease.id));
    }

    /// Closes an open and returns its delegation, in the background.
    pub(super) fn let_go(&self, id: OpenId, lease: Option<LeaseId>) {
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
            Ok((vec![put(&open.handle())?, op::OpenDowngrade::with(args)], Used::Open(id)))
        };
        // Record the narrower open before the origin has it: the next incarnation must not rely on more than
        // the origin grants.
        let before = self.narrow(id, Shares { access, deny });
        let mut results = self.run(caller, Plan::stateful(Operation::OpenDowngrade), build).await?.results;
        let narrowed = match self.take::<op::Putfh>(&mut results) {
            Ok(()) => self.take::<op::OpenDowngrade>(&mut results),
            Err(failed) => Err(failed),
        };
        if let Some(open) = self.state.lock().open_mut(id) {
            match (&narrowed, before) {
                (Ok(ok), _) => open.stateid = Some(ok.open_stateid),
                (Err(_), Some(before)) => (open.shares, open.had) = before,
                (Err(_), None) => {}
            }
        }
        narrowed.map(|_| ())
    }

    /// Narrows an open to these shares. Returns its shares and combinations before.
    fn narrow(&self, id: OpenId, to: Shares) -> Option<(Shares, Combinations)> {
        let mut state = self.state.lock();
        let open = state.open_mut(id)?;
        let before = (open.shares, open.had);
        open.shares = to;
        open.had.narrow(to);
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
                let mut operations = vec![put(&open.handle())?];
                if unlocked {
                    operations.extend(open.locks().values().take(20).map(|locks| unlock_all(locks.stateid)));
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
