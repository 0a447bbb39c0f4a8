//! The operations, one file for each. The operations of pNFS, of copies between servers and of named
//! attributes are not supported.
#![allow(clippy::unused_async, reason = "all operations are answered in the same way")]

mod access;
mod allocate;
mod backchannel_ctl;
mod bind_conn_to_session;
mod clone;
mod close;
mod commit;
mod copy;
mod create;
mod create_session;
mod deallocate;
mod delegpurge;
mod delegreturn;
mod destroy_clientid;
mod destroy_session;
mod exchange_id;
mod free_stateid;
mod get_dir_delegation;
mod getattr;
mod getfh;
mod getxattr;
mod io_advise;
mod link;
mod listxattrs;
mod lock;
mod lockt;
mod locku;
mod lookup;
mod lookupp;
mod nverify;
mod open;
mod open_confirm;
mod open_downgrade;
mod putfh;
mod putpubfh;
mod putrootfh;
mod read;
mod read_plus;
mod readdir;
mod readlink;
mod reclaim_complete;
mod release_lockowner;
mod remove;
mod removexattr;
mod rename;
mod renew;
mod restorefh;
mod savefh;
mod secinfo;
mod secinfo_no_name;
mod seek;
mod sequence;
mod setattr;
mod setclientid;
mod setclientid_confirm;
mod setxattr;
mod test_stateid;
mod verify;
mod want_delegation;
mod write;

use protocol::nfs4::{ArgOp, ResOp, Status};

use super::compound::Compound;
pub(super) use open::may_open;

/// Executes one operation. The larger futures are boxed, because the future of every call is as large as
/// its largest part.
pub(super) async fn dispatch(compound: &mut Compound<'_>, args: ArgOp) -> ResOp {
    match args {
        ArgOp::Access(args) => ResOp::Access(access::answer(compound, args).await),
        ArgOp::Close(args) => ResOp::Close(close::answer(compound, args).await),
        ArgOp::Commit(args) => ResOp::Commit(commit::answer(compound, args).await),
        ArgOp::Create(args) => ResOp::Create(Box::pin(create::answer(compound, args)).await),
        ArgOp::Delegpurge(args) => ResOp::Delegpurge(delegpurge::answer(compound, args).await),
        ArgOp::Delegreturn(args) => ResOp::Delegreturn(Box::pin(delegreturn::answer(compound, args)).await),
        ArgOp::Getattr(args) => ResOp::Getattr(getattr::answer(compound, args).await),
        ArgOp::Getfh(args) => ResOp::Getfh(getfh::answer(compound, args).await),
        ArgOp::Link(args) => ResOp::Link(Box::pin(link::answer(compound, args)).await),
        ArgOp::Lock(args) => ResOp::Lock(Box::pin(lock::answer(compound, args)).await),
        ArgOp::Lockt(args) => ResOp::Lockt(lockt::answer(compound, args).await),
        ArgOp::Locku(args) => ResOp::Locku(locku::answer(compound, args).await),
        ArgOp::Lookup(args) => ResOp::Lookup(lookup::answer(compound, args).await),
        ArgOp::Lookupp(args) => ResOp::Lookupp(Box::pin(lookupp::answer(compound, args)).await),
        ArgOp::Nverify(args) => ResOp::Nverify(Box::pin(nverify::answer(compound, args)).await),
        ArgOp::Open(args) => ResOp::Open(Box::pin(open::answer(compound, args)).await),
        ArgOp::OpenConfirm(args) => ResOp::OpenConfirm(open_confirm::answer(compound, args).await),
        ArgOp::OpenDowngrade(args) => {
            ResOp::OpenDowngrade(Box::pin(open_downgrade::answer(compound, args)).await)
        }
        ArgOp::Putfh(args) => ResOp::Putfh(putfh::answer(compound, args).await),
        ArgOp::Putpubfh(args) => ResOp::Putpubfh(putpubfh::answer(compound, args).await),
        ArgOp::Putrootfh(args) => ResOp::Putrootfh(putrootfh::answer(compound, args).await),
        ArgOp::Read(args) => ResOp::Read(read::answer(compound, args).await),
        ArgOp::Readdir(args) => ResOp::Readdir(Box::pin(readdir::answer(compound, args)).await),
        ArgOp::Readlink(args) => ResOp::Readlink(readlink::answer(compound, args).await),
        ArgOp::Remove(args) => ResOp::Remove(remove::answer(compound, args).await),
        ArgOp::Rename(args) => ResOp::Rename(Box::pin(rename::answer(compound, args)).await),
        ArgOp::Renew(args) => ResOp::Renew(renew::answer(compound, args).await),
        ArgOp::Restorefh(args) => ResOp::Restorefh(restorefh::answer(compound, args).await),
        ArgOp::Savefh(args) => ResOp::Savefh(savefh::answer(compound, args).await),
        ArgOp::Secinfo(args) => ResOp::Secinfo(Box::pin(secinfo::answer(compound, args)).await),
        ArgOp::Setattr(args) => ResOp::Setattr(setattr::answer(compound, args).await),
        ArgOp::Setclientid(args) => ResOp::Setclientid(Box::pin(setclientid::answer(compound, args)).await),
        ArgOp::SetclientidConfirm(args) => {
            ResOp::SetclientidConfirm(Box::pin(setclientid_confirm::answer(compound, args)).await)
        }
        ArgOp::Verify(args) => ResOp::Verify(Box::pin(verify::answer(compound, args)).await),
        ArgOp::Write(args) => ResOp::Write(write::answer(compound, args).await),
        ArgOp::ReleaseLockowner(args) => {
            ResOp::ReleaseLockowner(release_lockowner::answer(compound, args).await)
        }
        ArgOp::BackchannelCtl(args) => ResOp::BackchannelCtl(backchannel_ctl::answer(compound, args).await),
        ArgOp::BindConnToSession(args) => {
            ResOp::BindConnToSession(bind_conn_to_session::answer(compound, args).await)
        }
        ArgOp::ExchangeId(args) => ResOp::ExchangeId(Box::pin(exchange_id::answer(compound, args)).await),
        ArgOp::CreateSession(args) => {
            ResOp::CreateSession(Box::pin(create_session::answer(compound, args)).await)
        }
        ArgOp::DestroySession(args) => {
            ResOp::DestroySession(Box::pin(destroy_session::answer(compound, args)).await)
        }
        ArgOp::FreeStateid(args) => ResOp::FreeStateid(free_stateid::answer(compound, args).await),
        ArgOp::GetDirDelegation(args) => {
            ResOp::GetDirDelegation(Box::pin(get_dir_delegation::answer(compound, args)).await)
        }
        ArgOp::SecinfoNoName(args) => {
            ResOp::SecinfoNoName(Box::pin(secinfo_no_name::answer(compound, args)).await)
        }
        ArgOp::Sequence(args) => ResOp::Sequence(sequence::answer(compound, args).await),
        ArgOp::TestStateid(args) => ResOp::TestStateid(test_stateid::answer(compound, args).await),
        ArgOp::WantDelegation(args) => {
            ResOp::WantDelegation(Box::pin(want_delegation::answer(compound, args)).await)
        }
        ArgOp::DestroyClientid(args) => {
            ResOp::DestroyClientid(Box::pin(destroy_clientid::answer(compound, args)).await)
        }
        ArgOp::ReclaimComplete(args) => {
            ResOp::ReclaimComplete(reclaim_complete::answer(compound, args).await)
        }
        ArgOp::Allocate(args) => ResOp::Allocate(allocate::answer(compound, args).await),
        ArgOp::Copy(args) => ResOp::Copy(Box::pin(copy::answer(compound, args)).await),
        ArgOp::Deallocate(args) => ResOp::Deallocate(deallocate::answer(compound, args).await),
        ArgOp::IoAdvise(args) => ResOp::IoAdvise(io_advise::answer(compound, args).await),
        ArgOp::ReadPlus(args) => ResOp::ReadPlus(Box::pin(read_plus::answer(compound, args)).await),
        ArgOp::Seek(args) => ResOp::Seek(seek::answer(compound, args).await),
        ArgOp::Clone(args) => ResOp::Clone(Box::pin(clone::answer(compound, args)).await),
        ArgOp::Getxattr(args) => ResOp::Getxattr(Box::pin(getxattr::answer(compound, args)).await),
        ArgOp::Setxattr(args) => ResOp::Setxattr(Box::pin(setxattr::answer(compound, args)).await),
        ArgOp::Listxattrs(args) => ResOp::Listxattrs(Box::pin(listxattrs::answer(compound, args)).await),
        ArgOp::Removexattr(args) => ResOp::Removexattr(Box::pin(removexattr::answer(compound, args)).await),
        ArgOp::Illegal(_) => ResOp::Illegal(Status::OpIllegal),
        ArgOp::Openattr(_)
        | ArgOp::Getdeviceinfo(_)
        | ArgOp::Getdevicelist(_)
        | ArgOp::Layoutcommit(_)
        | ArgOp::Layoutget(_)
        | ArgOp::Layoutreturn(_)
        | ArgOp::SetSsv(_)
        | ArgOp::CopyNotify(_)
        | ArgOp::Layouterror(_)
        | ArgOp::Layoutstats(_)
        | ArgOp::OffloadCancel(_)
        | ArgOp::OffloadStatus(_)
        | ArgOp::WriteSame(_) => ResOp::failed(args.operation(), Status::NotSupp),
    }
}
