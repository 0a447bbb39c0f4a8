//! NFS v2 (RFC 1094) over a `vfs::FileSystem`: 32-bit sizes and cookies, synchronous writes, and attributes
//! in every reply.

mod convert;
mod make;
mod objects;

use std::sync::Arc;

use protocol::nfs2::{Procedure, Reply, call};
use rpc::message::Refusal;
use rpc::service::Outcome;
use vfs::Status;
use xdr::Encode;

use crate::narrow::{self, Cookies};
use crate::shared::{Request, Shared, arguments, reply};

/// Calls whose second execution would fail or destroy data. The server keeps their replies for
/// retransmissions.
pub(crate) fn must_not_repeat(procedure: u32) -> bool {
    use Procedure as P;
    matches!(
        Procedure::try_from(procedure),
        Ok(P::Setattr | P::Create | P::Remove | P::Rename | P::Link | P::Symlink | P::Mkdir | P::Rmdir)
    )
}

/// Calls that state from before a restart may conflict with: see `state::stateless`.
fn waits_for_grace(procedure: Procedure) -> bool {
    must_not_repeat(procedure as u32) || matches!(procedure, Procedure::Read | Procedure::Write)
}

/// Answers one call.
pub(crate) async fn answer(shared: &Arc<Shared>, cookies: &Cookies, call: rpc::Call) -> Outcome {
    let Ok(procedure) = Procedure::try_from(call.header.procedure) else {
        return Refusal::ProcedureUnavailable.into();
    };
    if waits_for_grace(procedure) && !shared.after_grace(&call).await {
        // v2 has no status for this case: the client sends the call again.
        return Outcome::Drop;
    }
    let request = &Request::new(shared, &call);
    match procedure {
        Procedure::Null | Procedure::Root | Procedure::Writecache => reply(&call, &()),
        Procedure::Getattr => serve::<call::Getattr, _>(&call, |args| objects::getattr(request, args)).await,
        Procedure::Setattr => serve::<call::Setattr, _>(&call, |args| objects::setattr(request, args)).await,
        Procedure::Lookup => serve::<call::Lookup, _>(&call, |args| objects::lookup(request, args)).await,
        Procedure::Readlink => {
            serve::<call::Readlink, _>(&call, |args| objects::readlink(request, args)).await
        }
        Procedure::Read => serve::<call::Read, _>(&call, |args| objects::read(request, args)).await,
        Procedure::Write => serve::<call::Write, _>(&call, |args| objects::write(request, args)).await,
        Procedure::Create => serve::<call::Create, _>(&call, |args| make::create(request, args)).await,
        Procedure::Remove => serve::<call::Remove, _>(&call, |args| make::remove(request, args)).await,
        Procedure::Rename => serve::<call::Rename, _>(&call, |args| make::rename(request, args)).await,
        Procedure::Link => serve::<call::Link, _>(&call, |args| make::link(request, args)).await,
        Procedure::Symlink => serve::<call::Symlink, _>(&call, |args| make::symlink(request, args)).await,
        Procedure::Mkdir => serve::<call::Mkdir, _>(&call, |args| make::mkdir(request, args)).await,
        Procedure::Rmdir => serve::<call::Rmdir, _>(&call, |args| make::rmdir(request, args)).await,
        Procedure::Readdir => {
            serve::<call::Readdir, _>(&call, |args| objects::readdir(request, cookies, args)).await
        }
        Procedure::Statfs => serve::<call::Statfs, _>(&call, |args| objects::statfs(request, args)).await,
    }
}

/// Decodes the arguments, runs the procedure, encodes its results.
async fn serve<C, T>(call: &rpc::Call, procedure: impl AsyncFnOnce(C::Args) -> vfs::Result<T>) -> Outcome
where
    C: protocol::Call<Results = Reply<T>>,
    T: Encode,
{
    let args = match arguments::<C::Args>(call) {
        Ok(args) => args,
        Err(refusal) => return refusal.into(),
    };
    let results: C::Results = match procedure(args).await {
        Ok(ok) => Reply::Ok(ok),
        // v2 has no status for this case: the client sends the call again.
        Err(error) if error.status == Status::Delay => return Outcome::Drop,
        Err(error) => {
            tracing::debug!(peer = %call.peer, procedure = C::NAME, status = %error.status, "failed");
            Reply::Fail(narrow::convert::stat(error.status), ())
        }
    };
    reply(call, &results)
}
