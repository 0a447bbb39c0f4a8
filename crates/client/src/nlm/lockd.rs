//! The origin's lock manager on the wire: NLM 4 over TCP.
//!
//! The port of a lock manager is usually known to the port mapper alone, and may be another one after a
//! restart. Leasehold's own servers also answer on the NFS port. So a call that is not answered looks for the
//! port again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use protocol::Call;
use protocol::nlm::{CallerName, Holder, Lock as WireLock, LockArgs, Netobj, Stat, TestArgs, TestReply};
use protocol::nlm::{UnlockArgs, v4};
use rpc::message::Refusal;
use rpc::tls::Connector;
use rpc::{CallError, Link, LinkOptions, Outgoing, Patience, Transport};
use tokio::time::{Instant, sleep};
use vfs::locks::LockRange;
use vfs::{Handle, LockKind, Principal, Result, Status};
use xdr::{Encode, Encoder, Opaque};

use crate::counts::Counting;
use crate::nonsense::Nonsense;
use crate::portmapper::{AskError, Way, ask, port_of};
use crate::transport::{credential, machine_name};

/// How long a call waits for its answer before the port is looked up again.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The pause after a refusal: a server that is starting may not have its lock manager yet.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// Refusals in a row that end a call.
const REFUSALS_MAX: u32 = 5;

/// Where to look for the lock manager.
#[derive(Clone, Debug)]
pub(crate) struct Whereabouts {
    /// The address of NFS.
    pub(crate) nfs: SocketAddr,
    /// The user gave the port of NFS: there may be no port mapper.
    pub(crate) port_given: bool,
    pub(crate) portmapper: SocketAddr,
    pub(crate) source: rpc::SourcePort,
    pub(crate) tls: Option<Arc<Connector>>,
}

impl Whereabouts {
    /// The address of the lock manager, if the server has one.
    async fn find(&self) -> Option<SocketAddr> {
        let answers = async |server: SocketAddr| {
            let tls = self.tls.clone();
            let way = Way { server, transport: Transport::Tcp, source: self.source, tls };
            ask::<v4::call::Null>(way, &(), ATTEMPT).await
        };
        if self.port_given && answers(self.nfs).await.is_ok() {
            return Some(self.nfs);
        }
        let Some(port) = port_of::<v4::call::Null>(self.portmapper, Transport::Tcp).await else {
            return (!self.port_given && answers(self.nfs).await.is_ok()).then_some(self.nfs);
        };
        let server = SocketAddr::new(self.nfs.ip(), port);
        // The lock managers of most servers have no TLS.
        if self.tls.is_some()
            && let Err(AskError::Tls(error)) = answers(server).await
        {
            tracing::warn!(
                "no lock over version 3 is the server's, as with nolock: no TLS with {server}: {error}"
            );
            return None;
        }
        Some(server)
    }
}

/// A connection to the lock manager. A server that restarts loses its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Connection {
    link: u64,
    generation: u64,
}

impl Connection {
    /// The connection of an earlier process: it differs from all of this one.
    pub(super) const BEFORE: Connection = Connection { link: u64::MAX, generation: 0 };
}

/// Bytes of a file, and the owner that locks them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) handle: &'a Handle,
    /// The owner's number.
    pub(super) svid: u32,
    pub(super) range: LockRange,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lockd {
    whereabouts: Whereabouts,
    link: Mutex<(Arc<Link>, u64)>,
    options: LinkOptions,
    host: Opaque<255>,
    cookies: AtomicU64,
    pub(super) counting: Counting<v4::Procedure>,
    nonsense: Nonsense,
}

impl Lockd {
    /// Looks for the lock manager. `None` if the server has none. `options` are those of the links to NFS.
    pub(super) async fn find(whereabouts: Whereabouts, options: LinkOptions) -> Option<Lockd> {
        let server = whereabouts.find().await?;
        let options = LinkOptions { server, transport: Transport::Tcp, ..options };
        Some(Lockd {
            whereabouts,
            link: Mutex::new((Arc::new(Link::new(options.clone())), 0)),
            options,
            host: machine_name(),
            cookies: AtomicU64::new(0),
            counting: Counting::default(),
            nonsense: Nonsense::new(server),
        })
    }

    /// The address of NFS, by which the user knows the server.
    pub(super) fn server(&self) -> SocketAddr {
        self.whereabouts.nfs
    }

    /// The latest connection. `None` before the first one.
    pub(super) fn connection(&self) -> Option<Connection> {
        let link = self.link.lock();
        let generation = link.0.connected().generation;
        (generation > 0).then_some(Connection { link: link.1, generation })
    }

    /// Returns when the connection ends, or at once if there is none.
    pub(super) async fn disconnected(&self) {
        let mut connected = self.link.lock().0.watch();
        // An error means that the link is gone, and with it the connection.
        let _ = connected.wait_for(|connected| !connected.up).await;
    }

    /// Checks that the server answers.
    pub(super) async fn probe(&self) -> Result<()> {
        self.call::<v4::call::Null>(&Principal::Machine, &()).await
    }

    /// LOCK, without waiting.
    pub(super) async fn lock(&self, principal: &Principal, place: Place<'_>, reclaim: bool) -> Result<Stat> {
        let args = LockArgs {
            cookie: self.cookie(),
            block: false,
            exclusive: place.range.kind == LockKind::Exclusive,
            alock: self.wire(place)?,
            reclaim,
            state: 0,
        };
        Ok(self.call::<v4::call::Lock>(principal, &args).await?.stat)
    }

    /// UNLOCK.
    pub(super) async fn unlock(&self, principal: &Principal, place: Place<'_>) -> Result<Stat> {
        let args = UnlockArgs { cookie: self.cookie(), alock: self.wire(place)? };
        Ok(self.call::<v4::call::Unlock>(principal, &args).await?.stat)
    }

    /// TEST: the lock that conflicts, if there is one.
    pub(super) async fn test(
        &self,
        principal: &Principal,
        place: Place<'_>,
    ) -> Result<std::result::Result<Holder<u64>, Stat>> {
        let exclusive = place.range.kind == LockKind::Exclusive;
        let args = TestArgs { cookie: self.cookie(), exclusive, alock: self.wire(place)? };
        Ok(match self.call::<v4::call::Test>(principal, &args).await?.stat {
            TestReply::Denied(holder) => Ok(holder),
            TestReply::Other(stat) => Err(Stat::from(stat)),
        })
    }

    fn cookie(&self) -> Netobj {
        let cookie = self.cookies.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        Netobj::new(cookie.to_vec()).unwrap_or_default()
    }

    fn wire(&self, place: Place<'_>) -> Result<WireLock<u64>> {
        let fh = Netobj::new(place.handle.as_bytes().to_vec()).ok_or(Status::BadHandle)?;
        let oh = Netobj::new(place.svid.to_be_bytes().to_vec()).unwrap_or_default();
        let (offset, length) = wire_range(place.range);
        let caller_name = CallerName::new(self.host.to_vec()).unwrap_or_default();
        Ok(WireLock { caller_name, fh, oh, svid: place.svid, offset, length })
    }

    /// Makes a call, and repeats it until it is answered: all procedures may be executed twice.
    async fn call<C: Call>(&self, principal: &Principal, args: &C::Args) -> Result<C::Results> {
        let mut encoder = Encoder::with_capacity(256);
        args.encode(&mut encoder);
        let arguments = encoder.finish();
        let sys = rpc::Credential::Sys(credential(principal, self.host.clone()));
        let mut refusals = 0;
        loop {
            let outgoing = Outgoing {
                program: C::PROGRAM,
                version: C::VERSION,
                procedure: C::NUMBER,
                credential: sys.clone(),
                arguments: arguments.clone(),
            };
            let link = self.link.lock().0.clone();
            let started = Instant::now();
            self.counting.called(C::NUMBER, arguments.len());
            match link.call(outgoing, Patience::Until(started + ATTEMPT)).await {
                Ok(mut answer) => {
                    let bytes = answer.results.remaining();
                    self.counting.answered(C::NUMBER, bytes, started.elapsed(), answer.retransmitted);
                    let decoded = <C::Results as xdr::Decode>::decode(&mut answer.results);
                    return decoded.map_err(|error| self.nonsense.heard(C::NAME, error));
                }
                Err(error) => {
                    self.counting.failed(C::NUMBER);
                    match error {
                        CallError::TimedOut | CallError::Closed | CallError::Context(_) => {}
                        CallError::Refused(Refusal::Auth(_)) => return Err(Status::Access.into()),
                        CallError::Refused(_) if refusals < REFUSALS_MAX => {
                            refusals += 1;
                            sleep(REFUSED_PAUSE).await;
                        }
                        CallError::Refused(_) | CallError::Malformed(_) | CallError::TooLarge(_) => {
                            return Err(self.nonsense.heard(C::NAME, error));
                        }
                    }
                    self.look_again(&link).await;
                }
            }
        }
    }

    /// Looks up the port, and connects there from now on if it is another one.
    async fn look_again(&self, tried: &Arc<Link>) {
        let Some(server) = self.whereabouts.find().await else { return };
        let mut link = self.link.lock();
        if Arc::ptr_eq(&link.0, tried) && server != tried.server() {
            *link = (Arc::new(Link::new(LinkOptions { server, ..self.options.clone() })), link.1 + 1);
        }
    }
}

/// The largest offset of a file.
const OFFSET_MAX: u64 = i64::MAX as u64;

/// Offset and length of a range on the wire. A length of zero means to the end of the file.
fn wire_range(range: LockRange) -> (u64, u64) {
    let length = if range.end > OFFSET_MAX { 0 } else { range.end - range.start };
    (range.start, length)
}

/// The range of a conflicting lock.
pub(super) fn range_of(holder: &Holder<u64>) -> LockRange {
    let kind = if holder.exclusive { LockKind::Exclusive } else { LockKind::Shared };
    let end = match holder.length {
        0 => u64::MAX,
        length => holder.offset.saturating_add(length),
    };
    LockRange { start: holder.offset, end, kind }
}

/// The status of an operation that the lock manager refuses.
pub(super) fn status(stat: Stat) -> Status {
    match stat {
        Stat::Granted | Stat::Denied | Stat::Blocked | Stat::Deadlck => Status::Denied,
        Stat::DeniedNolocks => Status::Resource,
        Stat::DeniedGracePeriod => Status::Grace,
        Stat::Rofs => Status::Rofs,
        Stat::StaleFh => Status::Stale,
        Stat::Fbig => Status::FBig,
        Stat::Failed | Stat::Other(_) => Status::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_to_the_end_has_no_length_on_the_wire() {
        let range = |start, end| LockRange { start, end, kind: LockKind::Shared };
        assert_eq!(wire_range(range(5, u64::MAX)), (5, 0));
        assert_eq!(wire_range(range(5, OFFSET_MAX + 1)), (5, 0));
        assert_eq!(wire_range(range(5, 9)), (5, 4));
        let holder =
            |offset, length| Holder { exclusive: false, svid: 1, oh: Netobj::default(), offset, length };
        assert_eq!(range_of(&holder(5, 0)), range(5, u64::MAX));
        assert_eq!(range_of(&holder(5, 4)), range(5, 9));
        assert_eq!(range_of(&holder(5, u64::MAX)), range(5, u64::MAX));
    }
}
