//! Calls to the lock manager and the status monitor of a client host.
//!
//! Their ports are what the port mapper of the host says. The server calls only the address from which the
//! host called, and from the address that the host called: Linux takes GRANTED from no other.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use protocol::nlm::{CallerName, Lock as WireLock, LockArgs, Netobj, Res, Stat, TestArgs};
use protocol::portmap::{self, Mapping};
use protocol::rpcbind::{self, Rpcb, Text};
use protocol::{Call, nlm};
use rpc::{AuthSys, CallError, Credential, Link, LinkOptions, Outgoing, Patience, SourcePort, Transport};
use tokio::time::Instant;
use vfs::{Caller, LockRequest};
use xdr::{Decoder, Encode, Encoder, Message};

use super::waits::Answer;
use super::wire::Offset;
use super::{Called, Nlm};
use crate::uaddr;

/// How long a host may take to answer a call, or the question for a port.
const PATIENCE: Duration = Duration::from_secs(5);
/// The first retransmission timer over UDP, and how long a connection may be silent.
const TIMEO: Duration = Duration::from_secs(2);

/// Where to call a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// The address of the host.
    pub(super) address: IpAddr,
    /// Over TCP, else over UDP.
    pub(super) tcp: bool,
    /// The address that the host called, if known.
    pub(super) local: Option<IpAddr>,
}

/// A LOCK that waits: what another attempt and the GRANTED need.
#[derive(Clone, Debug)]
pub(super) struct Resend {
    pub(super) request: LockRequest,
    pub(super) caller: Caller,
    pub(super) route: Route,
    version: u32,
    /// The client used LOCK_MSG, so it gets GRANTED_MSG.
    is_message: bool,
    exclusive: bool,
    alock: WireLock<u64>,
}

impl Resend {
    /// Of this call. Its names are copied, so that they do not keep the buffer of the complete record.
    pub(super) fn new<N: Offset>(
        args: &LockArgs<N>,
        called: &Called<'_>,
        caller: &Caller,
        request: LockRequest,
    ) -> Resend {
        let WireLock { caller_name, fh, oh, svid, offset, length } = &args.alock;
        let own = |of: &Netobj| Netobj::new(Bytes::copy_from_slice(of)).unwrap_or_default();
        Resend {
            request,
            caller: caller.clone(),
            route: called.route,
            version: called.version,
            is_message: called.is_message,
            exclusive: args.exclusive,
            alock: WireLock {
                caller_name: CallerName::new(Bytes::copy_from_slice(caller_name)).unwrap_or_default(),
                fh: own(fh),
                oh: own(oh),
                svid: *svid,
                offset: offset.wide(),
                length: length.wide(),
            },
        }
    }

    /// The arguments of GRANTED, in the form of the version.
    fn arguments(&self, cookie: u64) -> Message {
        let cookie = Netobj::new(Bytes::copy_from_slice(&cookie.to_be_bytes())).unwrap_or_default();
        let (exclusive, alock) = (self.exclusive, self.alock.clone());
        if self.version == nlm::v4::VERSION {
            return encoded(&TestArgs { cookie, exclusive, alock });
        }
        let WireLock { caller_name, fh, oh, svid, offset, length } = alock;
        let (offset, length) = (u32::narrow(offset), u32::narrow(length));
        let alock = WireLock { caller_name, fh, oh, svid, offset, length };
        encoded(&TestArgs { cookie, exclusive, alock })
    }
}

/// A procedure of a program of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct To {
    pub(super) program: u32,
    pub(super) version: u32,
    pub(super) procedure: u32,
}

/// Calls GRANTED, and returns the client's answer. If the client locks by messages, the answer to
/// GRANTED_MSG comes as a call, and this is silent.
pub(super) async fn granted(nlm: &Nlm, number: u64, resend: &Resend) -> Answer {
    let procedure =
        if resend.is_message { nlm::v4::Procedure::GrantedMsg } else { nlm::v4::Procedure::Granted };
    let to = To { program: nlm::v4::PROGRAM, version: resend.version, procedure: procedure as u32 };
    let results = call_host(nlm, resend.route, to, resend.arguments(number)).await;
    let results = match results {
        Ok(results) if !resend.is_message => results,
        Ok(_) => return Answer::Silent,
        Err(error) => {
            tracing::debug!(host = %resend.route.address, %error, "a host did not take GRANTED");
            return Answer::Silent;
        }
    };
    xdr::from_bytes::<Res>(results.rest()).map_or(Answer::Silent, |res| answer(res.stat))
}

/// The answer in the result of a GRANTED, or in GRANTED_RES. A client in its own grace period is asked again.
pub(super) fn answer(stat: Stat) -> Answer {
    match stat {
        Stat::Granted => Answer::Accepted,
        Stat::DeniedGracePeriod => Answer::Silent,
        _ => Answer::Refused,
    }
}

/// Calls a program of a host, wherever its port mapper says that it is.
///
/// # Errors
/// As of [`Link::call`]. `Closed` if the host does not have the program. Or if it may use no export in plain
/// text: then a call in plain text must not name a file to it. Such a client asks again for its lock.
pub(super) async fn call_host(
    nlm: &Nlm,
    route: Route,
    to: To,
    arguments: Message,
) -> Result<Decoder, CallError> {
    if to.program == protocol::nlm::v4::PROGRAM && !nlm.shared.exports.shows_plainly(route.address) {
        return Err(CallError::Closed);
    }
    let port = port(nlm, route, to).await?.ok_or(CallError::Closed)?;
    call(nlm, route, port, to, arguments).await
}

/// The port of a program of a host; `None` if its port mapper does not know it.
async fn port(nlm: &Nlm, route: Route, to: To) -> Result<Option<u16>, CallError> {
    let To { program: prog, version: vers, .. } = to;
    let mapper = nlm.mapper_port();
    if route.address.is_ipv4() {
        let prot = if route.tcp { portmap::TCP } else { portmap::UDP };
        let mapping = Mapping { prog, vers, prot, port: 0 };
        let getport = of::<portmap::call::Getport>();
        let results = call(nlm, route, mapper, getport, encoded(&mapping)).await?;
        let port: u32 = xdr::from_bytes(results.rest())?;
        return Ok(u16::try_from(port).ok().filter(|port| *port != 0));
    }
    let netid = if route.tcp { "tcp6" } else { "udp6" };
    let netid = Text::new(netid.as_bytes()).unwrap_or_default();
    let rpcb = Rpcb { prog, vers, netid, ..Rpcb::default() };
    let getaddr = of::<rpcbind::v4::call::Getaddr>();
    let results = call(nlm, route, mapper, getaddr, encoded(&rpcb)).await?;
    let address: Text = xdr::from_bytes(results.rest())?;
    Ok(uaddr::parse(&address).map(|address| address.port()))
}

fn of<C: Call>() -> To {
    To { program: C::PROGRAM, version: C::VERSION, procedure: C::NUMBER }
}

async fn call(nlm: &Nlm, route: Route, port: u16, to: To, arguments: Message) -> Result<Decoder, CallError> {
    let options = LinkOptions {
        transport: if route.tcp { Transport::Tcp } else { Transport::Udp },
        source: SourcePort::Reserved,
        local: route.local.or_else(|| nlm.local_address()),
        timeo: TIMEO,
        ..LinkOptions::new(SocketAddr::new(route.address, port))
    };
    let To { program, version, procedure } = to;
    let credential = Credential::Sys(AuthSys::default());
    let link = Link::new(options);
    let outgoing = Outgoing { program, version, procedure, credential, arguments };
    link.call(outgoing, Patience::Until(Instant::now() + PATIENCE)).await.map(|answer| answer.results)
}

/// The bytes of arguments.
pub(super) fn encoded(value: &impl Encode) -> Message {
    let mut encoder = Encoder::new();
    value.encode(&mut encoder);
    encoder.finish()
}
