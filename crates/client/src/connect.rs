//! Mounts the export of a URL: resolves names and ports, sends MOUNT and FSINFO, and makes the connections.
//!
//! Ports follow nfs(5): a given port is used, and the port mapper is asked for the others. Leasehold's own
//! servers answer MOUNT on the NFS port and need no port mapper. So the client also tries that port for
//! MOUNT: first if it was given, otherwise last.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use protocol::{Reply, mount, nfs3, nfs4};
use rpc::message::Refusal;
use rpc::rpcsec_gss::Protection;
use rpc::tls::Connector;
use rpc::{Link, LinkOptions, NoContext, Patience, SourcePort, TlsLink};
use tokio::time::Instant;
use vfs::Handle;

use crate::callers::Callers;
use crate::convert;
use crate::links::Links;
use crate::nonsense::Nonsense;
use crate::portmapper::{AskError, Way, ask, port_of};
use crate::pulse::Pulse;
use crate::transport::Transport;
use crate::url::{Options, Proto, Url, UrlError};

/// How long MOUNT, and the first call of NFS, may take.
const PATIENCE: Duration = Duration::from_secs(10);
const NFS_PORT: u16 = 2049;
/// The largest transfer over TCP.
const TCP_TRANSFER_MAX: u32 = 1 << 20;
/// The largest transfer over UDP. It is the same as Linux's, so that a datagram has not too many fragments.
const UDP_TRANSFER_MAX: u32 = 32 << 10;
/// The transfer size for servers that announce a size of zero.
const TRANSFER_DEFAULT: u32 = 4096;

/// Why an export cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The name of the server has no address.
    #[error("cannot find the server `{host}`: {source}; check the name, or give an address")]
    Resolve {
        /// The host as written in the URL.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// Options contradict each other.
    #[error(transparent)]
    Options(#[from] UrlError),
    /// There is no TLS with the server, and the options ask for it.
    #[error("no TLS with {server}: {source}")]
    Tls {
        /// The server.
        server: SocketAddr,
        /// The cause.
        source: Arc<rpc::tls::Error>,
    },
    /// There is no Kerberos with the server, and the options ask for it.
    #[error("no Kerberos with {host}: {why}")]
    Kerberos {
        /// The host as written in the URL.
        host: String,
        /// The cause.
        why: NoContext,
    },
    /// No server answers NFS.
    #[error(
        "{server} does not answer NFS version 3: {source}; check that the server runs, or give its port as nfs://HOST:PORT/…"
    )]
    Nfs {
        /// The address that was tried.
        server: SocketAddr,
        /// The cause.
        source: AskError,
    },
    /// No server answers MOUNT.
    #[error(
        "{server} does not answer MOUNT version 3: {source}; give its port as mountport=PORT, or start rpcbind there"
    )]
    Mount {
        /// The address that was tried last.
        server: SocketAddr,
        /// The cause.
        source: AskError,
    },
    /// MOUNT answers and refuses the export.
    #[error("{server} does not let us mount {export}: {}", refusal(*.status))]
    Refused {
        /// The server.
        server: SocketAddr,
        /// The export.
        export: String,
        /// The status of MOUNT.
        status: mount::Stat,
    },
    /// The export does not allow the flavor of authentication.
    #[error("{server} offers {export} only with {}", offered(.flavors))]
    Flavor {
        /// The server.
        server: SocketAddr,
        /// The export.
        export: String,
        /// The RPC flavors that it allows.
        flavors: Vec<u32>,
    },
    /// MOUNT returned a root handle, and NFS rejects it.
    #[error(
        "{server} gave a root for {export} and then said {status:?} to it: try again, or look at the server's log"
    )]
    Root {
        /// The server.
        server: SocketAddr,
        /// The export.
        export: String,
        /// The status of FSINFO.
        status: nfs3::Status,
    },
    /// No server answers NFS version 4.
    #[error(
        "{server} does not answer NFS version 4: {source}; check that the server runs, or give its port as nfs://HOST:PORT/…"
    )]
    Nfs4 {
        /// The address that was tried.
        server: SocketAddr,
        /// The cause.
        source: AskError,
    },
    /// No server answers NQNFS.
    #[error(
        "{server} does not answer NQNFS: {source}; check that the server runs, or give its port as nfs://HOST:PORT/…"
    )]
    Nqnfs {
        /// The address that was tried.
        server: SocketAddr,
        /// The cause.
        source: AskError,
    },
    /// The server answers, but does not support the version.
    #[error("{server} does not speak NFS version {wanted}; give another one as vers=3, vers=4.1 or vers=4.2")]
    Version {
        /// The server.
        server: SocketAddr,
        /// The version that was asked for.
        wanted: &'static str,
    },
    /// NFS version 4 answers and refuses the export.
    #[error("{server} does not let us mount {export}: {}", refusal4(*.status))]
    Refused4 {
        /// The server.
        server: SocketAddr,
        /// The export.
        export: String,
        /// The status.
        status: nfs4::Status,
    },
    /// The export is on another server, or elsewhere on this one.
    #[error("{export} is not on {server}, which refers us elsewhere: {}", way(.locations))]
    Moved {
        /// The server.
        server: SocketAddr,
        /// The export.
        export: String,
        /// The locations that the server names, as URLs. Empty if it names none.
        locations: Vec<String>,
    },
    /// The server returned an empty root handle.
    #[error("{server} gave an empty handle for {export}: that is not an NFS server")]
    Nonsense {
        /// The server.
        server: SocketAddr,
        /// The export.
        export: String,
    },
}

/// Tells the user what to do about a referral.
pub(crate) fn way(locations: &[String]) -> String {
    match locations {
        [] => "it does not say where; ask who runs it".to_owned(),
        locations => format!("use {}", locations.join(" or ")),
    }
}

/// Tells the user what to do about a server that denies access.
const DENIED: &str = "permission denied; add this machine to the export's clients there, and `insecure` if we do not call from a port below 1024 (who is not root cannot). If it requires TLS, use xprtsec=tls or mtls";

fn refusal(status: mount::Stat) -> String {
    match status {
        mount::Stat::NoEnt => "there is no such export; `showmount -e HOST` lists them".to_owned(),
        mount::Stat::Perm | mount::Stat::Acces => DENIED.to_owned(),
        mount::Stat::NotDir => "it is not a directory".to_owned(),
        other => format!("{other:?}; look at the server's log"),
    }
}

fn refusal4(status: nfs4::Status) -> String {
    match status {
        nfs4::Status::NoEnt => {
            "there is no such path; look what it exports (`showmount -e HOST`), and whether the path begins at its fsid=0 or Pseudo"
                .to_owned()
        }
        nfs4::Status::Perm | nfs4::Status::Access => DENIED.to_owned(),
        nfs4::Status::WrongSec => {
            "it wants other authentication, or a secure connection; use sec=krb5, krb5i or krb5p, or xprtsec=tls or mtls"
                .to_owned()
        }
        nfs4::Status::NotDir | nfs4::Status::Symlink => {
            "the path leads through something that is not a directory".to_owned()
        }
        other => format!("{other}; look at the server's log"),
    }
}

/// The flavors that MOUNT names, and the way out.
fn offered(flavors: &[u32]) -> String {
    let word = |flavor: &u32| match *flavor {
        rpc::auth::AUTH_NONE => "none".to_owned(),
        rpc::auth::AUTH_SYS => "sys".to_owned(),
        other => {
            let kerberos = Protection::ALL.into_iter().find(|known| known.pseudo_flavor() == other);
            kerberos.map_or_else(|| other.to_string(), |known| known.to_string())
        }
    };
    let words: Vec<String> = flavors.iter().map(word).collect();
    format!("sec={}; use one of them, or allow ours there", words.join(":"))
}

impl ConnectError {
    /// The error for a server that has not answered: of TLS, or else this one.
    pub(crate) fn unanswered(
        server: SocketAddr,
        source: AskError,
        otherwise: impl FnOnce(AskError) -> ConnectError,
    ) -> ConnectError {
        match source {
            AskError::Tls(source) => ConnectError::Tls { server, source },
            source => otherwise(source),
        }
    }

    /// Is version 4 not available here, while version 3 may be? The server may not support version 4, may
    /// have the export elsewhere in its name space (`fsid=0`), or may not answer on its port.
    pub(crate) fn leaves_v3(&self) -> bool {
        let path = |status: &nfs4::Status| matches!(status, nfs4::Status::NoEnt | nfs4::Status::NotDir);
        match self {
            ConnectError::Version { .. } | ConnectError::Nfs4 { .. } => true,
            ConnectError::Refused4 { status, .. } => path(status),
            _ => false,
        }
    }

    /// No server answered, or no KDC; one may answer later.
    pub fn is_no_answer(&self) -> bool {
        match self {
            ConnectError::Nfs { .. }
            | ConnectError::Mount { .. }
            | ConnectError::Nfs4 { .. }
            | ConnectError::Nqnfs { .. } => true,
            ConnectError::Kerberos { why, .. } => why.is_no_answer(),
            _ => false,
        }
    }
}

/// A mounted export.
pub(crate) struct Mounted {
    pub(crate) transport: Transport,
    pub(crate) server: SocketAddr,
    pub(crate) root: Handle,
    pub(crate) sizes: Sizes,
}

/// The largest transfers that both sides support, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) read: u32,
    pub(crate) write: u32,
    pub(crate) readdir: u32,
}

/// Mounts the export. `portmapper` is the port of port mappers.
pub(crate) async fn connect(url: &Url, portmapper: u16) -> Result<Mounted, ConnectError> {
    let unresolved = |source| ConnectError::Resolve { host: url.host.clone(), source };
    let addresses = tokio::net::lookup_host((url.host.as_str(), 0)).await.map_err(unresolved)?;
    let mut result = Err(unresolved(io::ErrorKind::NotFound.into()));
    for address in addresses {
        result = connect_to(url, address.ip(), portmapper).await;
        // Another address of the host can help only if no server answers on this one.
        if !matches!(result, Err(ConnectError::Nfs { .. } | ConnectError::Mount { .. })) {
            return result;
        }
    }
    result
}

async fn connect_to(url: &Url, address: IpAddr, portmapper: u16) -> Result<Mounted, ConnectError> {
    let options = &url.options;
    let given = options.port.or(url.port);
    let portmapper = SocketAddr::new(address, portmapper);
    let port = match given {
        Some(port) => port,
        None => port_of::<nfs3::call::Null>(portmapper, options.proto.into()).await.unwrap_or(NFS_PORT),
    };
    let server = SocketAddr::new(address, port);
    let handle = mount_root(url, server, given.is_some(), portmapper).await?;
    let export = url.export_text();
    let root = convert::from_wire(&handle).ok_or(ConnectError::Nonsense { server, export })?;
    let program = (nfs3::PROGRAM, nfs3::VERSION);
    let link = link_options(url, server, program)?;
    let links = Links::new(options, link.transport, || Link::new(link.clone()));
    let callers = Callers::of(url)?;
    let patience = Patience::Until(Instant::now() + PATIENCE);
    callers.prepare(url, (links.first(), &Pulse::default()), program, patience).await?;
    let sizes = sizes(url, server, (&callers, links.first()), handle).await?;
    let transport = Transport::new(links, callers, options.patience(), Nonsense::new(server));
    Ok(Mounted { transport, server, root, sizes })
}

/// Asks MOUNT for the root handle, on each port where it may answer.
async fn mount_root(
    url: &Url,
    server: SocketAddr,
    port_given: bool,
    portmapper: SocketAddr,
) -> Result<nfs3::Handle, ConnectError> {
    let proto = url.options.mountproto.unwrap_or(url.options.proto);
    let looked_up = port_of::<mount::v3::call::Null>(portmapper, proto.into());
    let ports = match (url.options.mountport, port_given) {
        (Some(port), _) => vec![port],
        (None, true) => match ask_mount(url, server, proto).await {
            Err(ConnectError::Mount { .. }) => looked_up.await.into_iter().collect(),
            decided => return decided,
        },
        (None, false) => looked_up.await.into_iter().chain([server.port()]).collect(),
    };
    let mut result =
        Err(ConnectError::Mount { server, source: AskError::Refused(Refusal::ProgramUnavailable) });
    for port in ports {
        result = ask_mount(url, SocketAddr::new(server.ip(), port), proto).await;
        if !matches!(result, Err(ConnectError::Mount { .. })) {
            break;
        }
    }
    result
}

async fn ask_mount(url: &Url, server: SocketAddr, proto: Proto) -> Result<nfs3::Handle, ConnectError> {
    let way = way_to(url, server, proto)?;
    // The URL's parser has checked the length of the path.
    let path = mount::Dirpath::new(url.export.clone()).unwrap_or_default();
    let export = url.export_text();
    match ask::<mount::v3::call::Mnt>(way, &path, PATIENCE).await {
        Err(source) => {
            Err(ConnectError::unanswered(server, source, |source| ConnectError::Mount { server, source }))
        }
        Ok(Reply::Fail(status, ())) => Err(ConnectError::Refused { server, export, status }),
        Ok(Reply::Ok(ok)) => {
            let flavors = ok.auth_flavors.into_vec();
            let accepted = |flavor: &u32| match url.options.sec {
                None => [rpc::auth::AUTH_NONE, rpc::auth::AUTH_SYS].contains(flavor),
                Some(protection) => *flavor == protection.pseudo_flavor(),
            };
            if flavors.is_empty() || flavors.iter().any(accepted) {
                return Ok(ok.fhandle);
            }
            Err(ConnectError::Flavor { server, export, flavors })
        }
    }
}

async fn sizes(
    url: &Url,
    server: SocketAddr,
    (callers, link): (&Callers, &Link),
    root: nfs3::Handle,
) -> Result<Sizes, ConnectError> {
    let options = &url.options;
    let way = way_to(url, server, options.proto)?;
    let args = nfs3::FsArgs { object: root };
    let info = match options.sec {
        None => ask::<nfs3::call::Fsinfo>(way, &args, PATIENCE).await,
        Some(_) => callers.ask::<nfs3::call::Fsinfo>(link, &args, PATIENCE).await,
    };
    let info = match info {
        Ok(Reply::Ok(info)) => info,
        Ok(Reply::Fail(status, _)) => {
            return Err(ConnectError::Root { server, export: url.export_text(), status });
        }
        Err(source) => {
            let otherwise = |source| ConnectError::Nfs { server, source };
            return Err(ConnectError::unanswered(server, source, otherwise));
        }
    };
    let most = match options.proto {
        Proto::Tcp => TCP_TRANSFER_MAX,
        Proto::Udp => UDP_TRANSFER_MAX,
    };
    let of = |server_max: u32, wanted: Option<u32>| {
        let server_max = if server_max == 0 { TRANSFER_DEFAULT } else { server_max };
        server_max.min(wanted.unwrap_or(most)).min(most)
    };
    Ok(Sizes { read: of(info.rtmax, options.rsize), write: of(info.wtmax, options.wsize), readdir: most })
}

/// The options of links to a server. `program` with its version is asked for TLS.
///
/// # Errors
/// If options of the URL contradict each other.
pub(crate) fn link_options(
    url: &Url,
    server: SocketAddr,
    program: (u32, u32),
) -> Result<LinkOptions, UrlError> {
    let (options, mut link) = (&url.options, LinkOptions::new(server));
    link.tls = connector(url)?.map(|connector| TlsLink { connector, probe: program });
    link.transport = options.proto.into();
    link.source = source(options);
    link.timeo = options.timeo();
    Ok(link)
}

/// The way to a single answer of a server.
///
/// # Errors
/// If options of the URL contradict each other.
pub(crate) fn way_to(url: &Url, server: SocketAddr, proto: Proto) -> Result<Way, UrlError> {
    Ok(Way { server, transport: proto.into(), source: source(&url.options), tls: connector(url)? })
}

/// Verifies the host of the URL.
pub(crate) fn connector(url: &Url) -> Result<Option<Arc<Connector>>, UrlError> {
    Ok(url.options.tls_files()?.map(|files| Connector::new(&url.host, files)))
}

pub(crate) fn source(options: &Options) -> SourcePort {
    if options.resvport { SourcePort::Reserved } else { SourcePort::Any }
}

impl From<Proto> for rpc::Transport {
    fn from(proto: Proto) -> rpc::Transport {
        match proto {
            Proto::Tcp => rpc::Transport::Tcp,
            Proto::Udp => rpc::Transport::Udp,
        }
    }
}
