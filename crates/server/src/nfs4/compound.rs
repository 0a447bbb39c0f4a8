//! One COMPOUND (RFC 8881, sections 2.6.3, 2.10 and 16.2): runs its operations in order up to the first
//! failure, and holds the data that they pass to each other.
//!
//! Results are encoded directly into the reply. The overall status is known at the end and is patched in.

mod capacity;
mod order;
mod scarcity;

use std::sync::Arc;

use protocol::nfs4::{
    ArgOp, BadArguments, Bitmap, CompoundHeader, CompoundResHeader, OPERATIONS_MAX, Operation, ResOp,
    Stateid, Status, Tag,
};
use rpc::message::Refusal;
use rpc::service::Outcome;
use rpc::{Call, Credential};
use vfs::{AccessMask, Caller, Freshness, HolderId, Share, StateidBasis};
use xdr::{Decode, Encode, Message};

use super::{Nfs4Front, attributes, convert, op};
use crate::caller::Denied;
use crate::exports::{Export, ExportId};
use crate::shared::{Object, Request, Shared};
use crate::state::clients::Principal;
use crate::state::maker::Maker;
use crate::state::stateids::FileKey;
use crate::state::{self, Slot};

/// The highest minor version served.
const MINOR_MAX: u32 = 2;
/// Bytes of an accepted RPC reply before its results.
const RPC_HEADER_BYTES: usize = 24;

pub(crate) use crate::state::current::{Current, File};
pub(super) use capacity::UNNEGOTIATED_BYTES as REPLY_BYTES_MAX;

/// The data that the operations of a compound share.
pub(crate) struct Compound<'c> {
    /// What version 4 keeps for itself.
    pub(crate) front: &'c Nfs4Front,
    /// What all versions share.
    pub(crate) shared: &'c Arc<Shared>,
    pub(crate) call: &'c Call,
    /// Minor version.
    pub(crate) minor: u32,
    /// The number of operations.
    pub(crate) operations: u32,
    /// The index of the current operation, from zero.
    pub(crate) position: u32,
    /// The current filehandle, with its state id.
    pub(crate) current: Option<Current>,
    /// The saved filehandle, with its state id.
    pub(crate) saved: Option<Current>,
    /// The slot that SEQUENCE found. It keeps the reply.
    pub(crate) slot: Option<Slot>,
    /// If this compound is a retry: the kept results, from the compound's status on. They are the answer.
    pub(crate) replay: Option<Message>,
    /// The index of the operation by which the client set the current filehandle. `None` if an operation
    /// found it.
    put_at: Option<u32>,
    /// A cache confirms what it knows with this compound ([`Compound::note_confirming`]).
    confirms: bool,
    /// The operation after the current one, if there is one.
    upcoming: Option<Operation>,
    holder: Option<HolderId>,
    /// The caller at the export used last. Most compounds use only one export.
    caller: Option<(ExportId, Caller)>,
    /// Bytes that further results may take.
    capacity: usize,
    /// An operation has changed names or attributes.
    has_changed: bool,
    /// The file that an OPEN of this compound has opened, and the caller's rights by the reply of the file
    /// system. Nothing has changed them here since.
    opened: Option<(FileKey, AccessMask)>,
}

impl<'c> Compound<'c> {
    fn new(front: &'c Nfs4Front, call: &'c Call, header: &CompoundHeader) -> Compound<'c> {
        Compound {
            front,
            shared: &front.shared,
            call,
            minor: header.minorversion,
            operations: header.operations,
            position: 0,
            current: None,
            saved: None,
            slot: None,
            replay: None,
            put_at: None,
            confirms: false,
            upcoming: None,
            holder: if header.minorversion == 0 { front.shared.state.peers.of(call.peer) } else { None },
            caller: None,
            capacity: capacity::UNNEGOTIATED_BYTES,
            has_changed: false,
            opened: None,
        }
    }

    /// Bytes of the request, including its RPC header.
    pub(crate) fn request_bytes(&self) -> usize {
        // xid, call, RPC version, program, version, procedure; the credential; an empty verifier.
        24 + capacity::encoded_len(&self.call.header.credential) + 8 + self.call.arguments.remaining()
    }

    /// Is the current operation the last one?
    pub(crate) fn is_last(&self) -> bool {
        self.position + 1 == self.operations
    }

    /// The holder for which this compound acts, if known.
    pub(crate) fn holder(&self) -> Option<HolderId> {
        self.holder
    }

    /// From now on the compound acts for this holder.
    pub(crate) fn set_holder(&mut self, holder: Option<HolderId>) {
        if self.minor == 0
            && holder != self.holder
            && let Some(holder) = holder
        {
            self.shared.state.peers.note(self.call.peer, holder);
        }
        self.holder = holder;
        if let Some((_, caller)) = &mut self.caller {
            caller.holder = holder;
        }
    }

    /// The current filehandle.
    pub(crate) fn file(&self) -> Result<&File, Status> {
        self.current.as_ref().map(|current| &current.file).ok_or(Status::NoFileHandle)
    }

    /// The saved filehandle.
    pub(crate) fn saved_file(&self) -> Result<&File, Status> {
        self.saved.as_ref().map(|saved| &saved.file).ok_or(Status::NoFileHandle)
    }

    /// The requester, as the maker of a record.
    pub(crate) fn maker(&self) -> Maker {
        Maker {
            principal: self.principal(),
            address: self.call.peer.ip().to_canonical(),
            admitting: self.shared.exports.admitting(
                self.call.peer,
                self.call.security(),
                matches!(self.call.header.credential, Credential::Proven(_)),
            ),
        }
    }

    /// The user that sent the compound.
    pub(crate) fn principal(&self) -> Principal {
        Principal::from(&self.call.header.credential)
    }

    /// Sets the current filehandle and forgets the current state id.
    pub(crate) fn set_file(&mut self, file: File) {
        self.current = Some(Current { file, stateid: None });
        self.put_at = None;
    }

    /// Notes that the client itself has set the current filehandle.
    pub(crate) fn note_put(&mut self) {
        self.put_at = Some(self.position);
        self.confirms = false;
    }

    /// Notes that the client has asked for reading alone, which marks the question of a cache. A LOOKUP that
    /// follows confirms the name and the object to which it leads, even if a lease of the directory vouches
    /// for the name.
    pub(crate) fn note_confirming(&mut self) {
        self.confirms = true;
    }

    /// Does the client confirm what it knows with a LOOKUP in this compound?
    pub(crate) fn is_confirming(&self) -> bool {
        self.confirms
    }

    /// Has the client set the current filehandle to a directory, and does an operation on its names come
    /// next?
    pub(crate) fn precedes_names(&self) -> bool {
        let names = [Operation::Lookup, Operation::Lookupp, Operation::Readdir];
        self.put_at.is_some() && self.upcoming.is_some_and(|upcoming| names.contains(&upcoming))
    }

    /// Is the next operation the question for the flavors of authentication? The client may put a
    /// filehandle for it with any flavor (RFC 8881, section 2.6.3.1.1).
    pub(crate) fn precedes_secinfo(&self) -> bool {
        matches!(self.upcoming, Some(Operation::Secinfo | Operation::SecinfoNoName))
    }

    /// Is the current operation the first one after the client set the filehandle?
    pub(crate) fn is_question(&self) -> bool {
        self.put_at.is_some_and(|at| at + 1 == self.position)
    }

    /// Notes what an OPEN has told about the caller's rights.
    pub(crate) fn note_opened(&mut self, file: FileKey, granted: Option<AccessMask>) {
        self.opened = granted.map(|granted| (file, granted));
    }

    /// The caller's rights on a file that this compound has opened.
    pub(crate) fn granted_at_open(&self, file: &FileKey) -> Option<AccessMask> {
        self.opened.as_ref().filter(|(opened, _)| opened == file).map(|(_, granted)| *granted)
    }

    /// Sets the current state id.
    pub(crate) fn set_stateid(&mut self, stateid: Stateid) {
        if let Some(current) = &mut self.current {
            current.stateid = Some(stateid);
        }
    }

    /// The state id of an argument. The special value is replaced by the current state id.
    pub(crate) fn stateid(&self, given: Stateid) -> Result<Stateid, Status> {
        resolved(self.minor, given, self.current.as_ref())
    }

    /// As [`Compound::stateid`], for the saved filehandle.
    pub(crate) fn saved_stateid(&self, given: Stateid) -> Result<Stateid, Status> {
        resolved(self.minor, given, self.saved.as_ref())
    }

    /// The current object with the caller. A directory above exports is none: `IsDir`.
    pub(crate) fn object(&mut self) -> Result<Object, Status> {
        let file = self.file()?.clone();
        self.object_of(file)
    }

    /// As [`Compound::object`], for an operation that changes something.
    pub(crate) fn writable(&mut self) -> Result<Object, Status> {
        let file = self.file()?.clone();
        self.writable_of(file)
    }

    /// The current object, for its extended attributes. Directories above exports have none.
    pub(crate) fn extended(&mut self) -> Result<Object, Status> {
        match self.file()? {
            File::Pseudo(_) => Err(Status::NotSupp),
            File::Object(..) | File::Absent(_) => self.object(),
        }
    }

    /// An object with the caller.
    pub(crate) fn object_of(&mut self, file: File) -> Result<Object, Status> {
        match file {
            File::Pseudo(_) => Err(Status::IsDir),
            File::Absent(_) => Err(Status::Moved),
            File::Object(export, handle) => {
                let caller = self.caller(&export)?;
                Ok(Object { export, handle, caller })
            }
        }
    }

    /// An object with the caller, for an operation that changes something.
    pub(crate) fn writable_of(&mut self, file: File) -> Result<Object, Status> {
        match &file {
            File::Pseudo(_) => Err(Status::Rofs),
            File::Object(export, _) if export.options().read_only => Err(Status::Rofs),
            File::Object(..) | File::Absent(_) => self.object_of(file),
        }
    }

    /// The caller at an export.
    pub(crate) fn caller(&mut self, export: &Export) -> Result<Caller, Status> {
        if let Some((id, caller)) = &self.caller
            && *id == export.id
        {
            return Ok(caller.clone());
        }
        let mut caller = Request::new(self.shared, self.call).caller(export).map_err(denied)?;
        caller.freshness = Freshness::Timeout;
        caller.holder = self.holder;
        self.caller = Some((export.id, caller.clone()));
        Ok(caller)
    }

    /// Resolves the state id of an I/O operation. From here on the object is used for the state's holder.
    pub(crate) async fn io_basis(
        &self,
        object: &mut Object,
        stateid: Stateid,
        share: Share,
    ) -> Result<StateidBasis, Status> {
        let io_basis = self.resolve_basis(object, stateid, share)?;
        if io_basis.holder.is_some() {
            object.caller.holder = io_basis.holder;
        }
        if io_basis.is_stranger {
            op::may_open(object, &object.handle, share, None).await?;
        }
        Ok(io_basis.by)
    }

    /// The attributes that an export's file system supports.
    pub(crate) async fn supported(&mut self, export: &Export) -> Result<Bitmap, Status> {
        let caller = self.caller(export)?;
        let known = export.known(&caller).await.map_err(convert::error)?;
        Ok(attributes::supported(self.minor, &known.limits))
    }

    /// Bytes that the result of the current operation may take.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// May the client see this export?
    pub(crate) fn sees(&self, export: &Export) -> bool {
        export.options().clients.admits(self.call.peer.ip())
    }

    /// The filehandle that a client gets for a file.
    pub(crate) fn wire_handle(&self, file: &File) -> Result<protocol::nfs4::Handle, Status> {
        match file {
            File::Absent(_) => return Err(Status::Moved),
            File::Pseudo(node) => self.shared.handles.pseudo(self.front.pseudo().id(*node)),
            File::Object(export, handle) => self.shared.handles.v4(export.id, handle),
        }
        .map_err(convert::status)
    }

    /// Runs one operation.
    async fn run(&mut self, next: Result<ArgOp, BadArguments>) -> ResOp {
        let args = match next {
            Ok(args) => args,
            Err(BadArguments { operation: Operation::Illegal, .. }) => return ResOp::Illegal(Status::BadXdr),
            Err(BadArguments { operation, .. }) => {
                let status = order::check(self, operation).err().unwrap_or(Status::BadXdr);
                return ResOp::failed(operation, status);
            }
        };
        let operation = args.operation();
        self.shared.counts.add_nfs4(operation);
        if let Err(status) =
            order::check(self, operation).and_then(|()| capacity::check(self.capacity, operation))
        {
            return ResOp::failed(operation, self.too_big(status));
        }
        let changes = super::changes_names(&args);
        let result = op::dispatch(self, args).await;
        if changes {
            self.has_changed |= result.status().is_ok();
            self.opened = None;
        }
        result
    }

    /// The status for a reply that is too big for the session, by the limit that it exceeds.
    fn too_big(&self, status: Status) -> Status {
        match (status, &self.slot) {
            (Status::RepTooBig, Some(slot)) if slot.cached_bytes_max.is_some() => Status::RepTooBigToCache,
            (Status::RepTooBig, None) if self.minor == 0 => Status::Resource,
            (status, _) => status,
        }
    }
}

/// The status of a caller that an export denies.
fn denied(denied: Denied) -> Status {
    match denied {
        Denied::Security | Denied::Flavor => Status::WrongSec,
        Denied::Client => Status::Access,
    }
}

fn resolved(minor: u32, given: Stateid, current: Option<&Current>) -> Result<Stateid, Status> {
    if minor == 0 || given != Stateid::CURRENT {
        return Ok(given);
    }
    current.and_then(|current| current.stateid).ok_or(Status::BadStateid)
}

/// Answers one call of COMPOUND.
pub(super) async fn answer(front: &Nfs4Front, call: &Call) -> Outcome {
    let mut decoder = call.arguments.clone();
    let Ok(mut header) = CompoundHeader::decode(&mut decoder) else {
        return Refusal::GarbageArguments.into();
    };
    let mut compound = Compound::new(front, call, &header);
    let mut status = admitted(&header);
    let mut encoder = call.reply();
    let status_at = encoder.len();
    CompoundResHeader { status: Ok(()), tag: header.tag.clone(), results: 0 }.encode(&mut encoder);
    let results_at = encoder.len() - 4;
    compound.capacity -= encoder.len();
    while status.is_ok()
        && let Some(next) = header.next(&mut decoder)
    {
        compound.upcoming = decoder.clone().u32().ok().and_then(Operation::from_number);
        let result = compound.run(next).await;
        if let Some(replay) = compound.replay.take() {
            return replayed(call, &header.tag, &replay);
        }
        if compound.position == 0 {
            compound.capacity = capacity::negotiated(compound.slot.as_ref()).saturating_sub(encoder.len());
        }
        let before = encoder.len();
        status = capacity::encode(&compound, &result, &mut encoder);
        compound.capacity = compound.capacity.saturating_sub(encoder.len() - before);
        compound.position += 1;
    }
    encoder.patch(status_at, status.err().map_or(0, u32::from));
    encoder.patch(results_at, compound.position);
    let message = encoder.finish();
    if let Err(status) = status {
        tracing::debug!(peer = %call.peer, minor = compound.minor, position = compound.position, %status, "failed");
    }
    if let Some(slot) = compound.slot.take() {
        slot.complete(&body(&message));
    }
    // Without its SEQUENCE, nothing of a call is executed.
    let sequence_failed = compound.minor > 0 && compound.position == 1;
    let is_put_off = status.is_err_and(|status| sequence_failed || puts_off(status));
    if is_put_off && !compound.has_changed { Outcome::PutOff(message) } else { Outcome::Reply(message) }
}

/// Does the client make a call again for which it gets this status?
fn puts_off(status: Status) -> bool {
    matches!(status, Status::Grace | Status::Delay)
}

/// Checks whether the compound may start at all.
fn admitted(header: &CompoundHeader) -> Result<(), Status> {
    if header.minorversion > MINOR_MAX {
        return Err(Status::MinorVersMismatch);
    }
    if !is_utf8(&header.tag) {
        return Err(Status::Inval);
    }
    // A session has its own limit, which SEQUENCE checks.
    if header.minorversion == 0 && header.operations as usize > OPERATIONS_MAX {
        return Err(Status::Resource);
    }
    Ok(())
}

fn is_utf8(tag: &Tag) -> bool {
    std::str::from_utf8(tag).is_ok()
}

/// The results of a reply, from the compound's status on.
fn body(reply: &Message) -> Message {
    Message { first: reply.first.slice(RPC_HEADER_BYTES..), more: reply.more.clone() }
}

/// The kept reply, with this call's xid and tag.
fn replayed(call: &Call, tag: &Tag, kept: &Message) -> Outcome {
    let mut encoder = call.reply();
    state::retagged(kept, tag, &mut encoder);
    let status = kept.first.first_chunk().map(|status| u32::from_be_bytes(*status));
    let puts_off = status.map(Status::from).is_some_and(puts_off);
    let message = encoder.finish();
    if puts_off { Outcome::PutOff(message) } else { Outcome::Reply(message) }
}
