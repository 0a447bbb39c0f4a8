//! Registers the server's port with the port mapper of this machine, if one runs, and removes the
//! registration. Where none runs, [`crate::portmapper`] takes its place.
//!
//! A client with `port=` and `mountport=` asks no port mapper for NFS and MOUNT. For the lock manager and the
//! status monitor, clients have no such option.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use protocol::portmap::{self, Mapping, TCP, UDP};
use protocol::{Call, mount, nfs2, nfs3, nlm, nqnfs, nsm};
use rpc::{CallError, Credential, Link, LinkOptions, Outgoing, Patience, SourcePort};
use tokio::time::Instant;
use xdr::{Encode, Encoder, Message};

const PATIENCE: Duration = Duration::from_millis(500);

/// The programs and versions of [`Front`](crate::Front) for files.
const FILES: [(u32, u32); 6] = [
    (nfs3::PROGRAM, nfs2::VERSION),
    (nfs3::PROGRAM, nfs3::VERSION),
    (nqnfs::PROGRAM, nqnfs::VERSION),
    (mount::v1::PROGRAM, 1),
    (mount::v1::PROGRAM, 2),
    (mount::v1::PROGRAM, 3),
];

/// The programs and versions for locks. The kernel of this machine has them too, if it is an NFS client or
/// server.
const LOCKS: [(u32, u32); 4] = [
    (nlm::v1::PROGRAM, nlm::v1::VERSION),
    (nlm::v3::PROGRAM, nlm::v3::VERSION),
    (nlm::v4::PROGRAM, nlm::v4::VERSION),
    (nsm::PROGRAM, nsm::VERSION),
];

/// All programs and versions.
pub(crate) fn programs() -> impl Iterator<Item = (u32, u32)> {
    FILES.into_iter().chain(LOCKS)
}

/// A registration with the port mapper.
#[derive(Debug)]
pub struct Registration {
    link: Link,
    programs: Vec<(u32, u32)>,
    others: bool,
}

impl Registration {
    /// Registers all programs at `port`, for TCP and, if `udp`, UDP. `None` if no port mapper answers. The
    /// lock manager and the status monitor of another server stay registered.
    ///
    /// # Errors
    /// A line for the user, if the port mapper answers and refuses.
    pub async fn register(port: u16, udp: bool) -> Result<Option<Registration>, String> {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, portmap::PORT));
        if tokio::net::TcpStream::connect(server).await.is_err() {
            return Ok(None);
        }
        let options = LinkOptions { source: SourcePort::Reserved, ..LinkOptions::new(server) };
        let mut registration = Registration { link: Link::new(options), programs: Vec::new(), others: false };
        for (program, version) in programs() {
            let is_for_locks = LOCKS.contains(&(program, version));
            if is_for_locks && registration.belongs_to_another(program, version, port).await {
                registration.others = true;
                continue;
            }
            registration.enter(program, version, port, udp).await?;
            registration.programs.push((program, version));
        }
        Ok(Some(registration))
    }

    /// Does another lock manager or status monitor of this machine stay registered? Then hosts cannot lock
    /// here, or cannot tell of their restarts.
    pub fn has_others(&self) -> bool {
        self.others
    }

    /// Removes the registration.
    pub async fn unregister(self) {
        for (program, version) in &self.programs {
            let _ = self.set::<portmap::call::Unset>(mapping(*program, *version, 0, 0)).await;
        }
    }

    async fn enter(&self, program: u32, version: u32, port: u16, udp: bool) -> Result<(), String> {
        let unset = mapping(program, version, 0, 0);
        self.set::<portmap::call::Unset>(unset).await.map_err(|error| refused(&error))?;
        let transports: &[u32] = if udp { &[TCP, UDP] } else { &[TCP] };
        for transport in transports {
            let mapping = mapping(program, version, *transport, port);
            if !self.set::<portmap::call::Set>(mapping).await.map_err(|error| refused(&error))? {
                return Err(format!(
                    "rpcbind refused to register program {program} version {version}: another server holds it; stop that one, or go on with `port=` and `mountport=` at the clients"
                ));
            }
        }
        Ok(())
    }

    /// Does a program that answers have this version registered at another port?
    async fn belongs_to_another(&self, program: u32, version: u32, port: u16) -> bool {
        for transport in [TCP, UDP] {
            let Ok(there) = self.port(mapping(program, version, transport, 0)).await else { continue };
            if there == 0 || there == port {
                continue;
            }
            let transport = if transport == TCP { rpc::Transport::Tcp } else { rpc::Transport::Udp };
            let server = SocketAddr::from((Ipv4Addr::LOCALHOST, there));
            let link = Link::new(LinkOptions { transport, ..LinkOptions::new(server) });
            let null = (program, version, 0);
            if call(&link, null, Message::default()).await.is_ok() {
                return true;
            }
        }
        false
    }

    async fn port(&self, args: Mapping) -> Result<u16, CallError> {
        let getport = (portmap::PROGRAM, portmap::VERSION, portmap::Procedure::Getport as u32);
        let port: u32 = xdr::from_bytes(call(&self.link, getport, encoded(args)).await?)?;
        Ok(u16::try_from(port).unwrap_or_default())
    }

    async fn set<C: Call<Args = Mapping, Results = bool>>(&self, args: Mapping) -> Result<bool, CallError> {
        let procedure = (C::PROGRAM, C::VERSION, C::NUMBER);
        Ok(xdr::from_bytes(call(&self.link, procedure, encoded(args)).await?)?)
    }
}

/// Calls a procedure of a program and version.
async fn call(
    link: &Link,
    (program, version, procedure): (u32, u32, u32),
    arguments: Message,
) -> Result<bytes::Bytes, CallError> {
    let credential = Credential::None;
    let outgoing = Outgoing { program, version, procedure, credential, arguments };
    let answer = link.call(outgoing, Patience::Until(Instant::now() + PATIENCE)).await?;
    Ok(answer.results.rest())
}

fn encoded(args: Mapping) -> Message {
    let mut encoder = Encoder::new();
    args.encode(&mut encoder);
    encoder.finish()
}

fn mapping(prog: u32, vers: u32, prot: u32, port: u16) -> Mapping {
    Mapping { prog, vers, prot, port: port.into() }
}

fn refused(error: &CallError) -> String {
    format!("rpcbind did not take the registration: {error}; clients need `port=` and `mountport=`")
}
