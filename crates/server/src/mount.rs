//! MOUNT: maps paths to the first handles (RFC 1813, appendix I; versions 1 and 2: RFC 1094, appendix A).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::mount::{self, Dirpath, Exportnode, MountOk, Mountbody, Stat};
use rpc::message::{AUTH_TOOWEAK, Refusal};
use rpc::service::Outcome;
use vfs::{Handle, Name, Status};
use xdr::{LinkedList, List};

use crate::caller::Denied;
use crate::exports::{Export, Exports, Flavor};
use crate::handles::Handles;
use crate::shared::{Request, Shared, arguments, reply};

/// The mounts that clients have reported. Only DUMP uses them.
#[derive(Debug, Default)]
pub(crate) struct Mounts(Mutex<BTreeSet<(IpAddr, Vec<u8>)>>);

/// How long a client waits for an export whose file system is not there yet.
const AWAITED_MAX: Duration = Duration::from_secs(5);
/// The limit of remembered mounts.
const MOUNTS_MAX: usize = 1024;

impl Mounts {
    fn add(&self, client: IpAddr, path: &[u8]) {
        let mut mounts = self.0.lock();
        if mounts.len() < MOUNTS_MAX {
            mounts.insert((client, path.to_vec()));
        }
    }

    fn list(&self) -> Vec<Mountbody> {
        let body = |(client, path): &(IpAddr, Vec<u8>)| {
            let hostname = mount::Name::new(client.to_string())?;
            Some(Mountbody { hostname, directory: Dirpath::new(path.clone())? })
        };
        self.0.lock().iter().filter_map(body).collect()
    }
}

/// Answers one call of version 1, 2 or 3. Version 2 is version 1 with one unused procedure.
pub(crate) async fn answer(shared: &Shared, mounts: &Mounts, call: rpc::Call) -> Outcome {
    let Ok(procedure) = mount::v3::Procedure::try_from(call.header.procedure) else {
        return Refusal::ProcedureUnavailable.into();
    };
    let request = Request::with_any_flavor(shared, &call);
    let client = request.identity.peer.ip().to_canonical();
    match procedure {
        mount::v3::Procedure::Null => reply(&call, &()),
        mount::v3::Procedure::Mnt => {
            let path: Dirpath = match arguments(&call) {
                Ok(path) => path,
                Err(refusal) => return refusal.into(),
            };
            let root = match walk(&request, &path).await {
                // MOUNT has no status for this case: the client sends the call again.
                Err(error) if error.status == Status::Delay => return Outcome::Drop,
                other => other.map_err(|error| stat(error.status)),
            };
            if root.is_ok() {
                mounts.add(client, &path);
            }
            if call.header.version == mount::v3::VERSION {
                reply(&call, &mnt3(&shared.handles, root))
            } else {
                reply(&call, &mnt1(&shared.handles, root))
            }
        }
        mount::v3::Procedure::Dump => reply(&call, &dump(mounts)),
        mount::v3::Procedure::Umnt => match arguments::<Dirpath>(&call) {
            Ok(path) => {
                mounts.0.lock().remove(&(client, path.to_vec()));
                reply(&call, &())
            }
            Err(refusal) => refusal.into(),
        },
        mount::v3::Procedure::Umntall => {
            mounts.0.lock().retain(|(who, _)| *who != client);
            reply(&call, &())
        }
        mount::v3::Procedure::Export => reply(&call, &exports(&shared.exports)),
    }
}

/// Answers a peer that no export admits. `showmount` runs from any port, so EXPORT and DUMP check the
/// address and the security of the connection alone, as on other servers.
pub(crate) fn turn_away(shared: &Shared, mounts: &Mounts, call: &rpc::Call) -> Outcome {
    use mount::v3::Procedure as P;
    let is_listed = || shared.exports.any(|export| export.options().shows(call.peer.ip(), call.security()));
    match P::try_from(call.header.procedure) {
        Ok(P::Null) => reply(call, &()),
        // Every path gets the same answer, without being looked up.
        Ok(P::Mnt) if call.header.version == mount::v3::VERSION => {
            reply(call, &mnt3(&shared.handles, Err(Stat::Acces)))
        }
        Ok(P::Mnt) => reply(call, &mnt1(&shared.handles, Err(Stat::Acces))),
        Ok(P::Export) if is_listed() => reply(call, &exports(&shared.exports)),
        Ok(P::Dump) if is_listed() => reply(call, &dump(mounts)),
        _ => Refusal::Auth(AUTH_TOOWEAK).into(),
    }
}

type Root = (Arc<Export>, Handle);

fn mnt3(handles: &Handles, root: Result<Root, Stat>) -> mount::v3::MntRes {
    let ok = root.and_then(|(export, handle)| {
        let fhandle = handles.v3(export.id, &handle).map_err(stat)?;
        let flavors: Vec<u32> = export.options().sec.iter().map(Flavor::number).collect();
        let auth_flavors = List::new(flavors).ok_or(Stat::ServerFault)?;
        Ok(MountOk { fhandle, auth_flavors })
    });
    match ok {
        Ok(ok) => protocol::Reply::Ok(ok),
        Err(stat) => protocol::Reply::Fail(stat, ()),
    }
}

fn mnt1(handles: &Handles, root: Result<Root, Stat>) -> mount::v1::MntRes {
    match root.and_then(|(export, handle)| handles.v2(export.id, &handle).map_err(stat)) {
        Ok(handle) => protocol::Reply::Ok(handle),
        Err(stat) => protocol::Reply::Fail(stat, ()),
    }
}

/// Resolves the path of a mount request: an export, or a directory below one.
async fn walk(request: &Request<'_>, path: &[u8]) -> vfs::Result<Root> {
    let (export, below) = request.shared.exports.by_path(path).ok_or(Status::NoEnt)?;
    let caller = request.caller(&export).map_err(|denied| match denied {
        Denied::Client | Denied::Security | Denied::Flavor => Status::Access,
    })?;
    // Only v4 can tell a client where the export is.
    if export.is_absent_for_older() {
        return Err(Status::NoEnt.into());
    }
    // MOUNT has no status for "come back later", and its clients ask again only after ten seconds.
    export.comes(AWAITED_MAX).await;
    let mut node = export.fs().root(&caller).await?;
    for name in below.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        // No honest client mounts a path with `..`, and `Name` does not allow it.
        let name = Name::new(name)?;
        node = export.fs().lookup(&caller, &node.handle, &name, vfs::Want::None).await?.node;
    }
    Ok((export, node.handle))
}

fn dump(mounts: &Mounts) -> LinkedList<Mountbody, { mount::LIST_MAX }> {
    LinkedList::new(mounts.list()).unwrap_or_default()
}

fn exports(exports: &Exports) -> mount::Exports {
    let node = |export: Arc<Export>| {
        let groups = export.options().clients.names().filter_map(mount::Name::new).collect();
        Some(Exportnode { dir: Dirpath::new(export.path.clone())?, groups: LinkedList::new(groups)? })
    };
    LinkedList::new(exports.iter().filter(|export| !export.is_absent_for_older()).filter_map(node).collect())
        .unwrap_or_default()
}

/// `mountstat3` of an error.
fn stat(status: Status) -> Stat {
    match status {
        Status::Perm => Stat::Perm,
        Status::NoEnt => Stat::NoEnt,
        Status::Access => Stat::Acces,
        Status::NotDir => Stat::NotDir,
        Status::Inval => Stat::Inval,
        Status::NameTooLong => Stat::NameTooLong,
        Status::NotSupp => Stat::NotSupp,
        Status::ServerFault => Stat::ServerFault,
        _ => Stat::Io,
    }
}
