//! Mounts the export of a URL without MOUNT: walks the path from the server's root.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::nfs4::{
    ArgOp, Attr, Bitmap, Component, CompoundError, Fattr, LookupArgs, Op, Operation, PutfhArgs,
    Status as Wire, call, op,
};
use rpc::message::Refusal;
use rpc::{Link, LinkOptions, Patience, ReplyCache};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use vfs::{Handle, Principal};

use super::attributes::getattr;
use super::callback::Back;
use super::channel::Channel;
use super::durable::{Incarnation, RecordedState};
use super::establish::{Client, Identity, NotMade};
use super::session::Session;
use super::{Export, Idmap, Nfs4, Nfs4Client, Phase, convert, keeper, moved, system};
use crate::callers::Callers;
use crate::connect::{ConnectError, link_options, way_to};
use crate::links::Links;
use crate::nonsense::{Fsids, Nonsense, Types};
use crate::portmapper::{AskError, ask};
use crate::url::{Proto, Url};

/// How long mounting may take once the server has answered at all. A server in its grace period grants no new
/// opens, but it can be mounted.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long resuming the state of an earlier incarnation may take.
const RESUMING: Duration = Duration::from_secs(60);
const NFS_PORT: u16 = 2049;
/// Our largest transfer.
const TRANSFER_MAX: u32 = 1 << 20;
/// Space around the data of the largest READ and WRITE: headers, other operations, attributes.
const AROUND_BYTES: u32 = 8 << 10;

/// Mounts with the highest minor version that the URL allows and the server supports.
pub(super) async fn connect(url: &Url, incarnation: Incarnation) -> Result<Nfs4, ConnectError> {
    let unresolved = |source| ConnectError::Resolve { host: url.host.clone(), source };
    let addresses = tokio::net::lookup_host((url.host.as_str(), 0)).await.map_err(unresolved)?;
    let mut result = Err(unresolved(io::ErrorKind::NotFound.into()));
    let port = url.options.port.or(url.port).unwrap_or(NFS_PORT);
    for address in addresses {
        let server = SocketAddr::new(address.ip(), port);
        result = connect_to(url, server, &incarnation).await;
        if !matches!(result, Err(ConnectError::Nfs4 { .. })) {
            return result;
        }
    }
    result
}

async fn connect_to(url: &Url, server: SocketAddr, incarnation: &Incarnation) -> Result<Nfs4, ConnectError> {
    let way = way_to(url, server, Proto::Tcp)?;
    ask::<call::Null>(way, &(), PATIENCE).await.map_err(|source| match source {
        AskError::Refused(Refusal::ProgramMismatch { .. } | Refusal::ProgramUnavailable) => {
            ConnectError::Version { server, wanted: wanted(url) }
        }
        source => ConnectError::unanswered(server, source, |source| ConnectError::Nfs4 { server, source }),
    })?;
    for &minor in url.options.vers.minors() {
        match Box::pin(mount(url, server, incarnation, minor)).await {
            Err(ConnectError::Version { .. }) => {}
            decided => return decided,
        }
    }
    Err(ConnectError::Version { server, wanted: wanted(url) })
}

fn wanted(url: &Url) -> &'static str {
    match url.options.vers.minors() {
        [1] => "4.1",
        [2] => "4.2",
        _ => "4.1 nor 4.2",
    }
}

async fn mount(
    url: &Url,
    server: SocketAddr,
    incarnation: &Incarnation,
    minor: u32,
) -> Result<Nfs4, ConnectError> {
    let silent = || ConnectError::Nfs4 { server, source: AskError::NoAnswer };
    let nowhere = Handle::new(&[]).ok_or_else(silent)?;
    let link = link_options(url, server, (protocol::nfs4::PROGRAM, protocol::nfs4::VERSION))?;
    let callers = Callers::of(url)?;
    let inner = build(url, link, callers, incarnation.identity.clone(), minor, nowhere);
    inner.channel.prepare(url, Patience::Until(Instant::now() + PATIENCE)).await?;
    let refused = |error: NotMade| match error {
        NotMade::Status(Wire::MinorVersMismatch) => ConnectError::Version { server, wanted: wanted(url) },
        NotMade::Status(status) => ConnectError::Refused4 { server, export: url.export_text(), status },
        NotMade::Denied => ConnectError::Refused4 { server, export: url.export_text(), status: Wire::Access },
        NotMade::NoAnswer => silent(),
    };
    let mounting = async {
        let session = establish(&inner).await.map_err(refused)?;
        let root = match walk(&inner, url, &session).await {
            Err(NotMade::Status(Wire::Moved)) => {
                return Err(moved::error(&inner, &names(url), &session).await);
            }
            walked => walked.map_err(refused)?,
        };
        Ok((session, root))
    };
    let (session, (root, limits)) = timeout(PATIENCE, mounting).await.map_err(|_| silent())??;
    if let Some(past) = &incarnation.past {
        let resuming = inner.resume(&session, past);
        timeout(RESUMING, resuming).await.map_err(|_| silent())?.map_err(refused)?;
    }
    let complete = inner.reclaim_complete(&session);
    timeout(PATIENCE, complete).await.map_err(|_| silent())?.map_err(refused)?;
    let handle = convert::from_wire(&root)
        .ok_or_else(|| ConnectError::Nonsense { server, export: url.export_text() })?;
    // The cell is empty until here.
    let _ = inner.export.set(export(url, &session, handle, &limits));
    inner.phase.send_replace(Phase::Ready(session));
    let tasks = keeper::start(&inner);
    Ok(Nfs4 { inner, tasks })
}

fn build(
    url: &Url,
    mut options: LinkOptions,
    callers: Callers,
    identity: Identity,
    minor: u32,
    nowhere: Handle,
) -> Arc<Nfs4Client> {
    let (back, server) = (Back::new(), options.server);
    options.transport = rpc::Transport::Tcp;
    let link = || Link::with_service(options.clone(), back.clone(), ReplyCache::volatile());
    let links = Links::new(&url.options, options.transport, link);
    let inner = Arc::new_cyclic(|weak| Nfs4Client {
        url: url.clone(),
        server,
        minor,
        identity,
        channel: Channel::new(links, callers, url.options.patience(), Nonsense::new(server)),
        client: Mutex::new(Client::default()),
        phase: watch::Sender::new(Phase::Recovering),
        state: RecordedState::default(),
        back: back.clone(),
        renewed: Mutex::new(Instant::now()),
        flags: AtomicU32::new(0),
        upkeep: Notify::new(),
        export: OnceLock::new(),
        types: Types::default(),
        fsids: Fsids::default(),
        ids: Idmap::default(),
        missing: AtomicU16::new(0),
        backoff: super::delegating::DelegationBackoff::default(),
        strays: AtomicBool::new(false),
        piggybacked_reads: AtomicBool::new(true),
        leaves_nothing: AtomicBool::new(false),
        holds_for_others: AtomicBool::new(false),
        told_renewed: Mutex::default(),
        told_moved: Mutex::default(),
        follow: OnceLock::new(),
        nowhere,
        weak: weak.clone(),
    });
    back.belongs_to(Arc::downgrade(&inner));
    inner
}

/// Makes the first session.
async fn establish(inner: &Nfs4Client) -> Result<Arc<Session>, NotMade> {
    loop {
        let client = inner.exchange_id(None).await?;
        match inner.create_session(&client, None).await {
            Ok(session) => {
                let sequence = client.sequence.wrapping_add(1);
                *inner.client.lock() = Client { sequence, ..client };
                return Ok(Arc::new(session));
            }
            // The server has restarted in between, or is not ready yet.
            Err(NotMade::Status(Wire::StaleClientid | Wire::Delay)) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The names of an export's path.
fn names(url: &Url) -> Vec<Component> {
    let names = url.export.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.filter_map(|name| Component::new(name.to_vec())).collect()
}

/// Walks to the root of the export, with as many LOOKUPs at once as the session allows.
async fn walk(
    inner: &Nfs4Client,
    url: &Url,
    session: &Arc<Session>,
) -> Result<(protocol::nfs4::Handle, Fattr), NotMade> {
    let at_once = (session.fore.maxoperations as usize).clamp(8, protocol::nfs4::OPERATIONS_MAX) - 4;
    let names = names(url);
    let mut parts: Vec<&[Component]> = names.chunks(at_once).collect();
    if parts.is_empty() {
        parts.push(&[]);
    }
    let mut asked = system::LIMITS | system::LIMITS_1;
    if inner.minor >= 2 {
        asked = asked | system::LIMITS_2;
    }
    let mut start = op::Putrootfh::with(());
    let mut last = Err(NotMade::NoAnswer);
    for part in parts {
        let mut operations: Vec<ArgOp> = vec![start];
        let lookup = |name: &Component| op::Lookup::with(LookupArgs { objname: name.clone() });
        operations.extend(part.iter().map(lookup));
        operations.extend([op::Getfh::with(()), getattr(asked)]);
        let mut results = inner.within(session, &Principal::Machine, Operation::Lookup, operations).await?;
        match results.next_result().map(|result| (result.operation(), result.status())) {
            Some((_, Err(status))) => return Err(NotMade::Status(status)),
            Some((Operation::Putrootfh | Operation::Putfh, Ok(()))) => {}
            _ => return Err(NotMade::NoAnswer),
        }
        for _ in part {
            results.take::<op::Lookup>()?;
        }
        let object = results.take::<op::Getfh>()?.object;
        let limits = match results.take::<op::Getattr>() {
            Ok(ok) => *ok.obj_attributes,
            Err(CompoundError::Failed { .. }) => Fattr::default(),
            Err(error) => return Err(error.into()),
        };
        start = op::Putfh::with(PutfhArgs { object });
        last = Ok((object, limits));
    }
    last
}

fn export(url: &Url, session: &Session, root: Handle, limits: &Fattr) -> Export {
    let transfer = |message: u32, server: Option<u64>, wanted: Option<u32>| {
        let room = message.saturating_sub(AROUND_BYTES).max(4096) & !4095;
        let server =
            server.filter(|most| *most > 0).map_or(u32::MAX, |most| most.try_into().unwrap_or(u32::MAX));
        room.min(server).min(wanted.unwrap_or(TRANSFER_MAX)).min(TRANSFER_MAX)
    };
    // If the server does not say, assume what every server can set in an exclusive create.
    let usual = Bitmap::of(&[Attr::Mode, Attr::Owner, Attr::OwnerGroup]);
    Export {
        root,
        lease_time: Duration::from_secs(limits.lease_time.unwrap_or(90).clamp(1, 3600).into()),
        supported: limits.supported_attrs.unwrap_or_default(),
        exclusive: limits.suppattr_exclcreat.unwrap_or(usual),
        read_max: transfer(session.fore.maxresponsesize, limits.maxread, url.options.rsize),
        write_max: transfer(session.fore.maxrequestsize, limits.maxwrite, url.options.wsize),
    }
}
