//! A mounted export, for the preparation and the cleanup of a measurement.

use std::net::SocketAddr;
use std::time::Duration;

use client::Proto;
use client::url::Url;
use protocol::{Call, Reply, mount, nfs3};
use rpc::{AuthSys, CallError, Credential, Link, LinkOptions, Outgoing, Patience, SourcePort};
use xdr::{Decode, Encode, Encoder, Opaque};

use super::{Error, Target};

/// How long a call of the preparation or cleanup may take.
const PATIENCE: Duration = Duration::from_secs(30);
const NFS_PORT: u16 = 2049;

/// A mounted export; see the module.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) source: SourcePort,
    pub(super) root: nfs3::Handle,
    /// The most bytes in a READ and in a WRITE.
    pub(super) transfer_max: u32,
    link: Link,
}

impl Server {
    /// Gets the root handle from MOUNT, on `mountport` or else on the NFS port.
    pub(super) async fn mount(target: &Target) -> Result<Server, Error> {
        let url = &target.url;
        if url.options.proto == Proto::Udp {
            return Err(Error::Udp { server: target.name.clone() });
        }
        let address = resolve(url).await?;
        let source = if url.options.resvport { SourcePort::Reserved } else { SourcePort::Any };
        let mount_address = SocketAddr::new(address.ip(), url.options.mountport.unwrap_or(address.port()));
        let export = mount::Dirpath::new(url.export.clone()).unwrap_or_default();
        let mounting = call_once::<mount::v3::call::Mnt>(&link(mount_address, source), &export).await;
        let failed = |procedure| move |source| Error::Call { server: mount_address, procedure, source };
        let root = match mounting.map_err(failed("MNT"))? {
            Reply::Ok(ok) => ok.fhandle,
            Reply::Fail(status, ()) => {
                return Err(Error::Mount { server: mount_address, export: url.export_text(), status });
            }
        };
        let mut server = Server { address, source, root, transfer_max: 0, link: link(address, source) };
        let info = server.call::<nfs3::call::Fsinfo>(&nfs3::FsArgs { object: root }).await?;
        let info = server.ok(info, "FSINFO", "/")?;
        server.transfer_max = info.rtmax.min(info.wtmax);
        Ok(server)
    }

    /// Makes a call and returns its results, whatever the status.
    pub(super) async fn call<C: Call>(&self, args: &C::Args) -> Result<C::Results, Error> {
        let failed = |source| Error::Call { server: self.address, procedure: C::NAME, source };
        call_once::<C>(&self.link, args).await.map_err(failed)
    }

    /// Converts a reply with an error status to `Error`.
    pub(super) fn ok<T, F>(
        &self,
        reply: nfs3::Reply<T, F>,
        procedure: &'static str,
        name: &str,
    ) -> Result<T, Error> {
        let refused =
            |(status, _)| Error::Status { server: self.address, procedure, name: name.to_owned(), status };
        reply.into_result().map_err(refused)
    }

    /// Looks up a name.
    pub(super) async fn lookup(&self, dir: nfs3::Handle, name: &str) -> Result<nfs3::Handle, Error> {
        let what = nfs3::DirOpArgs { dir, name: filename(name) };
        let reply = self.call::<nfs3::call::Lookup>(&nfs3::LookupArgs { what }).await?;
        Ok(self.ok(reply, "LOOKUP", name)?.object)
    }
}

async fn resolve(url: &Url) -> Result<SocketAddr, Error> {
    let port = url.options.port.or(url.port).unwrap_or(NFS_PORT);
    let unresolved = |source| Error::Resolve { host: url.host.clone(), source };
    let mut addresses = tokio::net::lookup_host((url.host.as_str(), port)).await.map_err(unresolved)?;
    addresses.next().ok_or_else(|| unresolved(std::io::ErrorKind::NotFound.into()))
}

fn link(server: SocketAddr, source: SourcePort) -> Link {
    Link::new(LinkOptions { source, ..LinkOptions::new(server) })
}

async fn call_once<C: Call>(link: &Link, args: &C::Args) -> Result<C::Results, CallError> {
    let mut encoder = Encoder::new();
    args.encode(&mut encoder);
    let outgoing = Outgoing {
        program: C::PROGRAM,
        version: C::VERSION,
        procedure: C::NUMBER,
        credential: root_credential(),
        arguments: encoder.finish(),
    };
    let mut answer = link.call(outgoing, Patience::Until(tokio::time::Instant::now() + PATIENCE)).await?;
    Ok(C::Results::decode(&mut answer.results)?)
}

/// An AUTH_SYS credential for root.
pub(super) fn root_credential() -> Credential {
    let machine = Opaque::new(&b"bench"[..]).unwrap_or_default();
    Credential::Sys(AuthSys { machine, ..AuthSys::default() })
}

/// A file name of this benchmark, which is always short enough.
pub(super) fn filename(name: &str) -> nfs3::Filename {
    nfs3::Filename::new(name.to_owned()).unwrap_or_default()
}
