//! Registers the server's port with the port mapper of this machine, if one runs, and removes the
//! registration.
//!
//! Nothing depends on it: a client with `port=` and `mountport=` asks no port mapper.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use protocol::portmap::{self, Mapping};
use protocol::{Call, mount, nfs2, nfs3, nqnfs};
use rpc::{CallError, Credential, Link, LinkOptions, Outgoing, Patience, SourcePort};
use tokio::time::Instant;
use xdr::{Encode, Encoder};

const PATIENCE: Duration = Duration::from_millis(500);

/// The programs and versions of [`Front`](crate::Front).
const PROGRAMS: [(u32, u32); 6] = [
    (nfs3::PROGRAM, nfs2::VERSION),
    (nfs3::PROGRAM, nfs3::VERSION),
    (nqnfs::PROGRAM, nqnfs::VERSION),
    (mount::v1::PROGRAM, 1),
    (mount::v1::PROGRAM, 2),
    (mount::v1::PROGRAM, 3),
];

/// A registration with the port mapper.
#[derive(Debug)]
pub struct Registration {
    link: Link,
}

impl Registration {
    /// Registers all programs at `port`, for TCP and, if `udp`, UDP. `None` if no port mapper answers.
    ///
    /// # Errors
    /// A line for the user, if the port mapper answers and refuses.
    pub async fn register(port: u16, udp: bool) -> Result<Option<Registration>, String> {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, portmap::PORT));
        if tokio::net::TcpStream::connect(server).await.is_err() {
            return Ok(None);
        }
        let options = LinkOptions { source: SourcePort::Reserved, ..LinkOptions::new(server) };
        let registration = Registration { link: Link::new(options) };
        for (program, version) in PROGRAMS {
            registration
                .call::<portmap::call::Unset>(mapping(program, version, 0, 0))
                .await
                .map_err(|error| refused(&error))?;
            let transports: &[u32] = if udp { &[portmap::TCP, portmap::UDP] } else { &[portmap::TCP] };
            for transport in transports {
                let mapping = mapping(program, version, *transport, port);
                if !registration.call::<portmap::call::Set>(mapping).await.map_err(|error| refused(&error))? {
                    return Err(format!(
                        "rpcbind refused to register program {program} version {version}: another server holds it; stop that one, or go on with `port=` and `mountport=` at the clients"
                    ));
                }
            }
        }
        Ok(Some(registration))
    }

    /// Removes the registration.
    pub async fn unregister(self) {
        for (program, version) in PROGRAMS {
            let _ = self.call::<portmap::call::Unset>(mapping(program, version, 0, 0)).await;
        }
    }

    async fn call<C: Call<Args = Mapping, Results = bool>>(&self, args: Mapping) -> Result<bool, CallError> {
        let mut encoder = Encoder::new();
        args.encode(&mut encoder);
        let outgoing = Outgoing {
            program: C::PROGRAM,
            version: C::VERSION,
            procedure: C::NUMBER,
            credential: Credential::None,
            arguments: encoder.finish(),
        };
        let answer = self.link.call(outgoing, Patience::Until(Instant::now() + PATIENCE)).await?;
        Ok(xdr::from_bytes(answer.results.rest())?)
    }
}

fn mapping(prog: u32, vers: u32, prot: u32, port: u16) -> Mapping {
    Mapping { prog, vers, prot, port: port.into() }
}

fn refused(error: &CallError) -> String {
    format!("rpcbind did not take the registration: {error}; clients need `port=` and `mountport=`")
}
