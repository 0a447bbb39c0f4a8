//! One call, as every version of NFS sees it: its peer and credential, the objects that its handles name, its
//! arguments and its reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rpc::Call;
use rpc::message::Refusal;
use rpc::service::Outcome;
use vfs::{Caller, Handle, Status, Used};
use xdr::Encode;

use super::Shared;
use crate::caller::{self, Denied, Identity};
use crate::exports::{Export, FsidSalt};
use crate::state::stateids::FileKey;

/// The facts about a call that every procedure needs.
pub(crate) struct Request<'c> {
    pub(crate) shared: &'c Shared,
    pub(crate) identity: Identity<'c>,
    pub(crate) resent: bool,
    /// The call came in a datagram, so the reply must fit in a datagram.
    pub(crate) datagram: bool,
    /// That of the export that was used last, for the attributes of a failure.
    fsid_salt: AtomicU64,
}

/// An object that a request names, and the caller that the request runs as.
pub(crate) struct Object {
    pub(crate) export: Arc<Export>,
    pub(crate) handle: Handle,
    pub(crate) caller: Caller,
}

impl Object {
    /// The object, as the tables of state name it.
    pub(crate) fn file_key(&self) -> FileKey {
        FileKey { export: self.export.id, handle: self.handle }
    }
}

impl Shared {
    /// A READ of a file has brought so many bytes.
    pub(crate) fn count_read(&self, object: &Object, bytes: usize) {
        self.count_use(object, Used::read(bytes));
    }

    /// A WRITE to a file has written so many bytes.
    pub(crate) fn count_written(&self, object: &Object, bytes: usize) {
        self.count_use(object, Used::written(bytes));
    }

    fn count_use(&self, object: &Object, used: Used) {
        self.usage.file((object.export.id, object.handle), object.caller.client, used);
    }
}

impl<'c> Request<'c> {
    pub(crate) fn new(shared: &'c Shared, call: &'c Call) -> Request<'c> {
        Request {
            shared,
            identity: Identity {
                peer: call.peer,
                security: call.security(),
                credential: &call.header.credential,
                groups: call.groups.as_deref(),
                any_flavor: false,
            },
            resent: call.resent,
            datagram: call.connection.is_none(),
            fsid_salt: AtomicU64::new(0),
        }
    }

    /// As [`Request::new`], for MOUNT or the lock manager: `sec` of an export does not count.
    pub(crate) fn with_any_flavor(shared: &'c Shared, call: &'c Call) -> Request<'c> {
        let mut request = Request::new(shared, call);
        request.identity.any_flavor = true;
        request
    }

    /// Resolves a client's handle, if the client may use its export.
    pub(crate) fn object(&self, wire: &[u8]) -> Result<Object, Status> {
        let (export, handle) = self.resolve(wire)?;
        let caller = self.caller(&export).map_err(|_| Status::Access)?;
        Ok(Object { export, handle, caller })
    }

    /// As [`Request::object`], for a procedure that describes the root of an export to a client that mounts
    /// it. A client asks for that with AUTH_SYS or without a user, whatever flavor it uses afterwards. So
    /// `sec` does not count for the root (RFC 2623, section 2.3.2), as with the kernel's server.
    pub(crate) async fn described(&self, wire: &[u8]) -> vfs::Result<Object> {
        let (export, handle) = self.resolve(wire)?;
        let caller = match self.caller(&export) {
            Ok(caller) => caller,
            Err(Denied::Flavor) => {
                let identity = Identity { any_flavor: true, ..self.identity };
                let caller = caller::caller(&export, identity, self.resent).map_err(|_| Status::Access)?;
                let root = export.fs().root(&caller).await?;
                if root.handle != handle {
                    return Err(Status::Access.into());
                }
                caller
            }
            Err(_) => return Err(Status::Access.into()),
        };
        Ok(Object { export, handle, caller })
    }

    fn resolve(&self, wire: &[u8]) -> Result<(Arc<Export>, Handle), Status> {
        let (id, handle) = self.shared.handles.read(wire)?;
        let export = self.shared.exports.by_id(id).ok_or(Status::Stale)?;
        if export.is_absent_for_older() {
            // Only v4 can tell a client where the export is.
            Err(Status::Stale)
        } else if export.is_awaited() {
            export.ask();
            Err(Status::Delay)
        } else {
            self.fsid_salt.store(export.fsid_salt.0, Ordering::Relaxed);
            Ok((export, handle))
        }
    }

    /// The salt of the export that was used last.
    pub(crate) fn fsid_salt(&self) -> FsidSalt {
        FsidSalt(self.fsid_salt.load(Ordering::Relaxed))
    }

    /// As [`Request::object`], for an operation that changes something.
    pub(crate) fn writable(&self, wire: &[u8]) -> Result<Object, Status> {
        let object = self.object(wire)?;
        if object.export.options().read_only { Err(Status::Rofs) } else { Ok(object) }
    }

    pub(crate) fn caller(&self, export: &Export) -> Result<Caller, Denied> {
        caller::caller(export, self.identity, self.resent)
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
