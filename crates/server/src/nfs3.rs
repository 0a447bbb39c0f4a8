//! NFS v3 (RFC 1813) over a `vfs::FileSystem`. One file for each group of procedures that the RFC describes
//! together.

mod convert;
mod directory;
mod filesystem;
mod io;
mod make;
mod objects;

use std::sync::Arc;

use protocol::nfs3::{Procedure, Reply, call};
use rpc::message::Refusal;
use rpc::service::{Asked, Outcome};
use vfs::Name;

use xdr::Encode;

use crate::shared::{Request, Shared, arguments, reply};
use convert::Failure;

/// The largest READ and WRITE over TCP, in bytes.
const TRANSFER_MAX_BYTES: u32 = 1 << 20;
/// The same in a datagram: the most that fits with the headers.
const DATAGRAM_TRANSFER_MAX_BYTES: u32 = 32 << 10;

/// Calls whose second execution would fail or destroy data. The server keeps their replies for
/// retransmissions.
pub(crate) fn must_not_repeat(procedure: u32) -> bool {
    use Procedure as P;
    matches!(
        Procedure::try_from(procedure),
        Ok(P::Setattr
            | P::Create
            | P::Mkdir
            | P::Symlink
            | P::Mknod
            | P::Remove
            | P::Rmdir
            | P::Rename
            | P::Link)
    )
}

/// An estimate of the memory that a reply takes up, in bytes.
pub(crate) fn reply_bytes(asked: &Asked) -> usize {
    use Procedure as P;
    let Ok(P::Read | P::Readdir | P::Readdirplus) = P::try_from(asked.procedure) else { return 0 };
    // For all three, the last argument is the requested number of bytes.
    let count = asked.arguments.rest().last_chunk::<4>().copied().map_or(0, u32::from_be_bytes);
    count.min(TRANSFER_MAX_BYTES) as usize
}

/// Calls that state from before a restart may conflict with: see `state::stateless`.
fn waits_for_grace(procedure: u32) -> bool {
    must_not_repeat(procedure)
        || matches!(Procedure::try_from(procedure), Ok(Procedure::Read | Procedure::Write))
}

/// Answers one call.
pub(crate) async fn answer(shared: &Arc<Shared>, call: rpc::Call) -> Outcome {
    let Ok(procedure) = Procedure::try_from(call.header.procedure) else {
        return Refusal::ProcedureUnavailable.into();
    };
    let request = &Request::new(shared, &call);
    match procedure {
        Procedure::Null => reply(&call, &()),
        Procedure::Getattr => {
            serve::<call::Getattr, _, _>((shared, request), &call, |args| objects::getattr(request, args))
                .await
        }
        Procedure::Setattr => {
            serve::<call::Setattr, _, _>((shared, request), &call, |args| objects::setattr(request, args))
                .await
        }
        Procedure::Lookup => {
            serve::<call::Lookup, _, _>((shared, request), &call, |args| objects::lookup(request, args)).await
        }
        Procedure::Access => {
            serve::<call::Access, _, _>((shared, request), &call, |args| objects::access(request, args)).await
        }
        Procedure::Readlink => {
            serve::<call::Readlink, _, _>((shared, request), &call, |args| objects::readlink(request, args))
                .await
        }
        Procedure::Read => {
            serve::<call::Read, _, _>((shared, request), &call, |args| io::read(request, args)).await
        }
        Procedure::Write => {
            serve::<call::Write, _, _>((shared, request), &call, |args| io::write(request, args)).await
        }
        Procedure::Commit => {
            serve::<call::Commit, _, _>((shared, request), &call, |args| io::commit(request, args)).await
        }
        Procedure::Create => {
            serve::<call::Create, _, _>((shared, request), &call, |args| make::create(request, args)).await
        }
        Procedure::Mkdir => {
            serve::<call::Mkdir, _, _>((shared, request), &call, |args| make::mkdir(request, args)).await
        }
        Procedure::Symlink => {
            serve::<call::Symlink, _, _>((shared, request), &call, |args| make::symlink(request, args)).await
        }
        Procedure::Mknod => {
            serve::<call::Mknod, _, _>((shared, request), &call, |args| make::mknod(request, args)).await
        }
        Procedure::Link => {
            serve::<call::Link, _, _>((shared, request), &call, |args| make::link(request, args)).await
        }
        Procedure::Remove => {
            serve::<call::Remove, _, _>((shared, request), &call, |args| make::remove(request, args)).await
        }
        Procedure::Rmdir => {
            serve::<call::Rmdir, _, _>((shared, request), &call, |args| make::rmdir(request, args)).await
        }
        Procedure::Rename => {
            serve::<call::Rename, _, _>((shared, request), &call, |args| make::rename(request, args)).await
        }
        Procedure::Readdir => {
            serve::<call::Readdir, _, _>((shared, request), &call, |args| directory::readdir(request, args))
                .await
        }
        Procedure::Readdirplus => {
            serve::<call::Readdirplus, _, _>((shared, request), &call, |args| {
                directory::readdirplus(request, args)
            })
            .await
        }
        Procedure::Fsstat => {
            serve::<call::Fsstat, _, _>((shared, request), &call, |args| filesystem::fsstat(request, args))
                .await
        }
        Procedure::Fsinfo => {
            serve::<call::Fsinfo, _, _>((shared, request), &call, |args| filesystem::fsinfo(request, args))
                .await
        }
        Procedure::Pathconf => {
            serve::<call::Pathconf, _, _>((shared, request), &call, |args| {
                filesystem::pathconf(request, args)
            })
            .await
        }
    }
}

/// Decodes the arguments, runs the procedure unless grace forbids it, and encodes its results.
async fn serve<C, T, F>(
    (shared, request): (&Arc<Shared>, &Request<'_>),
    call: &rpc::Call,
    procedure: impl AsyncFnOnce(C::Args) -> vfs::Result<T>,
) -> Outcome
where
    C: protocol::Call<Results = Reply<T, F>>,
    T: Encode,
    F: Failure + Encode,
{
    let args = match arguments::<C::Args>(call) {
        Ok(args) => args,
        Err(refusal) => return refusal.into(),
    };
    let may_run = !waits_for_grace(C::NUMBER) || shared.after_grace(call).await;
    let done = if may_run { procedure(args).await } else { Err(vfs::Status::Grace.into()) };
    let results: C::Results = match done {
        Ok(ok) => Reply::Ok(ok),
        // The first transmission may have taken effect, and only this xid identifies the repetition. After
        // JUKEBOX the client would use another xid.
        Err(error) if call.resent && is_for_later(error.status) => return Outcome::Drop,
        Err(error) => {
            tracing::debug!(peer = %call.peer, procedure = C::NAME, status = %error.status, "failed");
            Reply::Fail(
                convert::status(error.status),
                F::with(error.attributes.as_deref(), request.fsid_salt()),
            )
        }
    };
    reply(call, &results)
}

/// Is this a status that v3 reports as JUKEBOX?
fn is_for_later(status: vfs::Status) -> bool {
    matches!(status, vfs::Status::Delay | vfs::Status::Grace | vfs::Status::Resource)
}

/// A wire name for an operation that creates, removes or renames. `.` and `..` fail with `walks`.
fn new_name(name: &[u8], walks: vfs::Status) -> vfs::Result<Name> {
    match name {
        b"." | b".." => Err(walks.into()),
        other => Name::new(other),
    }
}
