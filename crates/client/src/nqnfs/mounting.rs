//! Mounts the export of a URL: MOUNT version 1, for handles of 32 bytes, and one link, on which the server
//! may call back.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use protocol::nqnfs::{self, call};
use protocol::{Reply, mount};
use rpc::{Link, ReplyCache};
use tokio::sync::{Notify, mpsc};
use vfs::{Clock, Handle, SystemClock};
use xdr::Opaque;

use super::calls::{Back, keep};
use super::leases::{Leases, Margin};
use super::{Nqnfs, NqnfsClient, plain};
use crate::connect::{ConnectError, link_options, way_to};
use crate::counts::Counting;
use crate::nonsense::Nonsense;
use crate::portmapper::{AskError, ask};
use crate::pulse::Pulse;
use crate::transport::machine_name;
use crate::url::{Proto, Url};

/// How long MOUNT, and the first call, may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
const PORT: u16 = 2049;
/// Callbacks that may wait for the layer above.
const UPWARD_MAX: usize = 1024;
/// The largest transfers over TCP and UDP.
const TRANSFER_MAX: [u32; 2] = [1 << 20, 32 << 10];

/// Distinguishes the mounts of one process.
static MOUNTS: AtomicU64 = AtomicU64::new(0);

/// See [`Nqnfs::connect`].
pub(super) async fn connect(url: &Url) -> Result<Nqnfs, ConnectError> {
    let unresolved = |source| ConnectError::Resolve { host: url.host.clone(), source };
    let mut addresses = tokio::net::lookup_host((url.host.as_str(), 0)).await.map_err(unresolved)?;
    let address = addresses.next().ok_or_else(|| unresolved(std::io::ErrorKind::NotFound.into()))?;
    let server = SocketAddr::new(address.ip(), url.options.port.or(url.port).unwrap_or(PORT));
    let root = mount_root(url, server).await?;
    let transfer_max = transfer_max(url, server, &root).await?;
    let options = link_options(url, server, (nqnfs::PROGRAM, nqnfs::VERSION))?;
    let back = Arc::new(Back::default());
    let (up, callbacks) = mpsc::channel(UPWARD_MAX);
    let link = Link::with_service(options, back.clone(), ReplyCache::volatile());
    let inner = Arc::new(NqnfsClient {
        server,
        root: Handle::new(&root).unwrap_or_else(|| unreachable!("32 bytes are a handle")),
        link,
        machine: own_name(),
        soft: url.options.patience(),
        transfer_max,
        counting: Counting::default(),
        nonsense: Nonsense::new(server),
        pulse: Pulse::default(),
        leases: Mutex::new(Leases::new(Margin::default())),
        seen: Mutex::default(),
        up,
        listening: AtomicBool::new(false),
        next_open: AtomicU64::new(1),
        changed: Notify::new(),
        vacated: Notify::new(),
    });
    back.lead_to(&inner);
    let keeper = tokio::spawn(keep(Arc::downgrade(&inner)));
    Ok(Nqnfs { url: url.clone(), inner, callbacks: Mutex::new(Some(callbacks)), keeper })
}

/// The name by which the server distinguishes this client from others on this host. Two mounts are two
/// clients. So are two mounts one after the other, because the last messages of the first may arrive late. In
/// a container, both may have the same process id.
fn own_name() -> Opaque<255> {
    let host = machine_name();
    let (process, mount) = (std::process::id(), MOUNTS.fetch_add(1, Ordering::Relaxed));
    let mut name = host[..host.len().min(200)].to_vec();
    let started = SystemClock.wall().as_nanos();
    name.extend(format!("/nqnfs-{process}-{mount}-{started:x}").into_bytes());
    Opaque::new(name).unwrap_or_default()
}

async fn mount_root(url: &Url, server: SocketAddr) -> Result<nqnfs::Handle, ConnectError> {
    let proto = url.options.mountproto.unwrap_or(url.options.proto);
    let at = SocketAddr::new(server.ip(), url.options.mountport.unwrap_or(server.port()));
    let way = way_to(url, at, proto)?;
    let path = mount::Dirpath::new(url.export.clone()).unwrap_or_default();
    match ask::<mount::v1::call::Mnt>(way, &path, PATIENCE).await {
        Err(source) => {
            Err(ConnectError::unanswered(at, source, |source| ConnectError::Mount { server: at, source }))
        }
        Ok(Reply::Fail(status, ())) => {
            Err(ConnectError::Refused { server: at, export: url.export_text(), status })
        }
        Ok(Reply::Ok(root)) => Ok(root),
    }
}

/// The transfer size of STATFS, within the options and the limit of the transport.
async fn transfer_max(url: &Url, server: SocketAddr, root: &nqnfs::Handle) -> Result<u32, ConnectError> {
    let options = &url.options;
    let way = way_to(url, server, options.proto)?;
    let most = TRANSFER_MAX[usize::from(options.proto == Proto::Udp)];
    let wanted = options.rsize.unwrap_or(most).min(options.wsize.unwrap_or(most)).min(most);
    match ask::<call::Statfs>(way, &plain(*root), PATIENCE).await {
        Ok(Reply::Ok(granted)) => Ok(granted.results.tsize.clamp(1024, wanted.max(1024))),
        // The server is there but busy: use the size that every server supports.
        Ok(Reply::Fail(..)) => Ok(wanted.min(protocol::nfs2::DATA_MAX)),
        Err(AskError::Refused(_)) => Err(ConnectError::Version { server, wanted: "nqnfs" }),
        Err(source) => {
            Err(ConnectError::unanswered(server, source, |source| ConnectError::Nqnfs { server, source }))
        }
    }
}
