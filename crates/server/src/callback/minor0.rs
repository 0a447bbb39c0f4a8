//! Callbacks to clients of minor version 0 (RFC 7530, sections 15 and 16.33). The server opens connections
//! to the address that the client gave.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use protocol::nfs4::callback::{self, CbArgOp, CbCompoundArgs, CbCompoundRes, CbResOp};
use protocol::nfs4::{Clientid, Netaddr, Results, Tag};
use rpc::{AuthSys, Credential, Link, LinkOptions, Outgoing, Patience};
use tokio::time::Instant;
use xdr::{Decode, Encode, Encoder, List, Message};

use super::{Unreachable, Ways};
use crate::state::clients;

/// How long a client may take to answer CB_NULL.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait on one connection before opening another.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The route to one client.
#[derive(Debug)]
pub(super) struct Way {
    link: Link,
    program: u32,
    ident: u32,
    up: AtomicBool,
}

impl Way {
    /// Did the last call reach the client?
    pub(super) fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    async fn send(
        &self,
        procedure: u32,
        arguments: Message,
        deadline: Instant,
    ) -> Result<xdr::Decoder, Unreachable> {
        let call = Outgoing {
            program: self.program,
            version: callback::VERSION,
            procedure,
            credential: Credential::Sys(AuthSys::default()),
            arguments,
        };
        let answer = self.link.call(call, Patience::Until(deadline)).await;
        self.up.store(answer.is_ok(), Ordering::Relaxed);
        match answer {
            Ok(answer) => Ok(answer.results),
            Err(error) => {
                tracing::debug!(client = %self.link.server(), %error, "a callback failed");
                Err(Unreachable)
            }
        }
    }
}

/// Tests whether a client can be called back at the address that it gave.
pub(super) fn probe(ways: &Ways, client: Clientid, peer: SocketAddr) {
    let Some(address) = address(ways, client) else { return };
    let Some(server) = universal(&address.location, peer) else {
        tracing::debug!(%peer, "a client that gives no address to call it back at");
        ways.minor0.lock().remove(&client);
        return;
    };
    let options = LinkOptions { timeo: ANSWER_TIMEOUT, ..LinkOptions::new(server) };
    let way = Arc::new(Way {
        link: Link::new(options),
        program: address.program,
        ident: address.ident,
        up: AtomicBool::new(false),
    });
    ways.minor0.lock().insert(client, way.clone());
    tokio::spawn(async move {
        way.send(callback::NULL, Message::default(), Instant::now() + PROBE_TIMEOUT).await
    });
}

fn address(ways: &Ways, client: Clientid) -> Option<clients::CallbackAddress> {
    match &ways.state.tables().clients.confirmed(client)?.way {
        clients::Way::Minor0 { callback, .. } => Some(callback.clone()),
        clients::Way::Sessions { .. } => None,
    }
}

/// Calls a client back.
pub(super) async fn call(
    ways: &Ways,
    client: Clientid,
    operation: CbArgOp,
    deadline: Instant,
) -> Result<Results<CbResOp>, Unreachable> {
    let way = ways.minor0.lock().get(&client).cloned().ok_or(Unreachable)?;
    let args = CbCompoundArgs {
        tag: Tag::default(),
        minorversion: 0,
        callback_ident: way.ident,
        argarray: List::new(vec![operation]).ok_or(Unreachable)?,
    };
    let mut encoder = Encoder::new();
    args.encode(&mut encoder);
    let mut results = way.send(callback::COMPOUND, encoder.finish(), deadline).await?;
    Ok(CbCompoundRes::decode(&mut results).map_err(|_| Unreachable)?.into_results())
}

/// Parses a universal address (RFC 5665): `192.0.2.1.8.1`, `2001:db8::1.8.1`. The server calls back only
/// the client itself, so it takes the port from the text and the address from the client's connection.
fn universal(netaddr: &Netaddr, peer: SocketAddr) -> Option<SocketAddr> {
    let text = std::str::from_utf8(&netaddr.addr).ok()?;
    if !matches!(&netaddr.netid[..], b"tcp" | b"tcp6") {
        return None;
    }
    let (rest, low) = text.rsplit_once('.')?;
    let (address, high) = rest.rsplit_once('.')?;
    let port = u16::from(high.parse::<u8>().ok()?) << 8 | u16::from(low.parse::<u8>().ok()?);
    let _: IpAddr = address.parse().ok()?;
    (port != 0).then(|| SocketAddr::new(peer.ip().to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use xdr::Opaque;

    #[test]
    fn a_universal_address_has_its_port_in_two_parts() {
        let peer: SocketAddr = "192.0.2.7:700".parse().unwrap();
        let parse = |netid: &'static [u8], addr: &'static [u8]| {
            let netaddr = Netaddr { netid: Opaque::new(netid).unwrap(), addr: Opaque::new(addr).unwrap() };
            universal(&netaddr, peer).map(|address| address.to_string())
        };
        assert_eq!(parse(b"tcp", b"192.0.2.7.8.1").as_deref(), Some("192.0.2.7:2049"));
        assert_eq!(parse(b"tcp", b"198.51.100.1.8.1").as_deref(), Some("192.0.2.7:2049"));
        assert_eq!(parse(b"tcp6", b"2001:db8::1.255.255").as_deref(), Some("192.0.2.7:65535"));
        for (netid, addr) in [
            (&b"udp"[..], &b"192.0.2.7.8.1"[..]),
            (b"tcp", b"0.0.0.0.0.0"),
            (b"tcp", b"192.0.2.7"),
            (b"tcp", b"192.0.2.7.8.256"),
            (b"tcp", b"host.8.1"),
            (b"tcp", b"\xff\xff"),
            (b"", b""),
        ] {
            assert_eq!(parse(netid, addr), None);
        }
    }
}
