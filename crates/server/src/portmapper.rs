//! A port mapper for machines where no rpcbind runs (RFC 1833): versions 2, 3 and 4.
//!
//! Linux clients of versions 2 and 3 look up the lock manager and the status monitor there: nfs(5) has no
//! option for their ports. The mapper knows the programs of this server, and what other programs of this
//! machine register over the loopback interface. Peers whose address is on the list of an export may ask
//! from any port, as their kernels do. Nobody can make calls through it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use protocol::portmap::{self, Mapping, TCP, UDP};
use protocol::rpcbind::{self, Rpcb, Text};
use rpc::message::Refusal;
use rpc::service::{Answering, Outcome, Remember};
use rpc::{Call, ReplyCache, Server, ServerOptions, Service, TransportSecurity};
use xdr::LinkedList;

use crate::front::Front;
use crate::rpcbind::programs;
use crate::shared::{arguments, reply};
use crate::uaddr;

/// Limit of registrations.
const ENTRIES_MAX: usize = 1024;

/// Program, version and transport ([`TCP`] or [`UDP`]).
type Key = (u32, u32, u32);

/// The registrations: a pure table.
#[derive(Debug, Default)]
struct Registrations {
    ports: BTreeMap<Key, u16>,
    /// The programs of this server, with their versions: nobody else may add a transport to them, or remove
    /// one.
    own: Vec<(u32, u32)>,
}

impl Registrations {
    fn with(own: impl Iterator<Item = (Key, u16)>) -> Registrations {
        let ports: BTreeMap<Key, u16> = own.collect();
        Registrations { own: ports.keys().map(|(program, version, _)| (*program, *version)).collect(), ports }
    }

    fn get(&self, key: Key) -> Option<u16> {
        self.ports.get(&key).copied()
    }

    /// The port of another version of the program over the same transport, if this one is not registered.
    fn any_version(&self, (program, version, transport): Key) -> Option<u16> {
        let of_program = self.ports.range((program, 0, 0)..=(program, u32::MAX, u32::MAX));
        let same = of_program.filter(|((_, _, over), _)| *over == transport);
        self.get((program, version, transport)).or_else(|| same.map(|(_, port)| *port).next())
    }

    fn set(&mut self, key: Key, port: u32) -> bool {
        let port = u16::try_from(port).ok().filter(|port| *port != 0);
        let is_free = !self.ports.contains_key(&key) && self.ports.len() < ENTRIES_MAX;
        let is_others = !self.own.contains(&(key.0, key.1));
        let (Some(port), true, TCP | UDP) = (port, is_free && is_others, key.2) else { return false };
        self.ports.insert(key, port);
        true
    }

    /// Removes a version of a program, over one transport or over all.
    fn unset(&mut self, program: u32, version: u32, transport: Option<u32>) -> bool {
        if self.own.contains(&(program, version)) {
            return false;
        }
        let before = self.ports.len();
        let is_meant =
            |key: &Key| (key.0, key.1) == (program, version) && transport.is_none_or(|over| over == key.2);
        self.ports.retain(|key, _| !is_meant(key));
        self.ports.len() != before
    }
}

/// A running port mapper. Dropping it stops it.
#[derive(Debug)]
pub struct Portmapper(#[expect(dead_code, reason = "it runs as long as it is held")] Server);

/// Answers the calls.
struct Mapper {
    front: Arc<Front>,
    /// The address that the server listens on.
    serves: SocketAddr,
    registrations: Mutex<Registrations>,
}

impl Portmapper {
    /// Starts a port mapper at `listen` for a server of `front` that listens at `serves`, over TCP and, with
    /// `udp`, over UDP. The mapper itself always has both.
    ///
    /// # Errors
    /// The error of `bind`: `AddrInUse`, or `PermissionDenied` without the right to use ports below 1024.
    pub async fn start(
        front: Arc<Front>,
        serves: SocketAddr,
        udp: bool,
        listen: SocketAddr,
    ) -> std::io::Result<Portmapper> {
        let transports: &[u32] = if udp { &[TCP, UDP] } else { &[TCP] };
        let of_server = programs().flat_map(|(program, version)| {
            transports.iter().map(move |transport| ((program, version, *transport), serves.port()))
        });
        // Callers look up the mapper itself, too.
        let versions = [portmap::VERSION, rpcbind::v3::VERSION, rpcbind::v4::VERSION];
        let of_mapper = versions.into_iter().flat_map(|version| {
            [TCP, UDP].map(|transport| ((portmap::PROGRAM, version, transport), listen.port()))
        });
        let registrations = Mutex::new(Registrations::with(of_server.chain(of_mapper)));
        let mapper = Arc::new(Mapper { front, serves, registrations });
        // Questions and answers are small, so the mapper needs few of the server's descriptors.
        let options = ServerOptions { connections_max: 64, ..ServerOptions::new(listen) };
        Server::start(options, mapper, ReplyCache::volatile()).await.map(Portmapper)
    }
}

impl Service for Mapper {
    /// A listed address may ask from any port.
    fn admits(&self, peer: SocketAddr, _: TransportSecurity) -> bool {
        let is_listed = |address| self.front.exports().any(|export| export.options().clients.admits(address));
        peer.ip().to_canonical().is_loopback() || is_listed(peer.ip())
    }

    fn call(self: Arc<Self>, call: Call) -> Answering {
        let outcome = match (call.header.program, call.header.version) {
            (portmap::PROGRAM, portmap::VERSION) => self.version_2(&call),
            (portmap::PROGRAM, rpcbind::v3::VERSION | rpcbind::v4::VERSION) => self.version_4(&call),
            (portmap::PROGRAM, _) => Refusal::ProgramMismatch { low: 2, high: 4 }.into(),
            _ => Refusal::ProgramUnavailable.into(),
        };
        Box::pin(std::future::ready(outcome))
    }

    fn remember(&self, _: &Call) -> Remember {
        Remember::No
    }
}

impl Mapper {
    fn version_2(&self, call: &Call) -> Outcome {
        use portmap::Procedure as P;
        let Ok(procedure) = P::try_from(call.header.procedure) else {
            return Refusal::ProcedureUnavailable.into();
        };
        let mut registrations = self.registrations.lock();
        let mapping = match procedure {
            P::Null => return reply(call, &()),
            P::Dump if is_too_cheap(call) => return Refusal::ProcedureUnavailable.into(),
            P::Dump => {
                let mapping = |((prog, vers, prot), port): (&Key, &u16)| Mapping {
                    prog: *prog,
                    vers: *vers,
                    prot: *prot,
                    port: (*port).into(),
                };
                let all = registrations.ports.iter().map(mapping).collect();
                return reply(call, &LinkedList::<_, { portmap::LIST_MAX }>::new(all).unwrap_or_default());
            }
            P::Set | P::Unset | P::Getport => match arguments::<Mapping>(call) {
                Ok(mapping) => mapping,
                Err(refusal) => return refusal.into(),
            },
        };
        let Mapping { prog, vers, prot, port } = mapping;
        match procedure {
            P::Set => reply(call, &(may_set(call) && registrations.set((prog, vers, prot), port))),
            P::Unset => reply(call, &(may_set(call) && registrations.unset(prog, vers, None))),
            _ => reply(call, &registrations.any_version((prog, vers, prot)).map_or(0, u32::from)),
        }
    }

    fn version_4(&self, call: &Call) -> Outcome {
        use rpcbind::v4::Procedure as P;
        let procedure = P::try_from(call.header.procedure);
        let mut registrations = self.registrations.lock();
        match procedure {
            Ok(P::Null) => reply(call, &()),
            Ok(P::Gettime) => reply(call, &(UNIX_EPOCH.elapsed().unwrap_or_default().as_secs() as u32)),
            Ok(P::Dump) if is_too_cheap(call) => Refusal::ProcedureUnavailable.into(),
            Ok(P::Dump) => {
                let rpcb = |(key, port): (&Key, &u16)| self.entry(*key, *port);
                let all = registrations.ports.iter().flat_map(rpcb).collect();
                reply(call, &rpcbind::Rpcblist::new(all).unwrap_or_default())
            }
            Ok(P::Set | P::Unset | P::Getaddr | P::Getversaddr) => {
                let Rpcb { prog, vers, netid, addr, .. } = match arguments::<Rpcb>(call) {
                    Ok(rpcb) => rpcb,
                    Err(refusal) => return refusal.into(),
                };
                let transport = transport(&netid);
                match (procedure, transport) {
                    (Ok(P::Set), Some(transport)) => {
                        let port = uaddr::parse(&addr).map_or(0, |address| address.port().into());
                        reply(call, &(may_set(call) && registrations.set((prog, vers, transport), port)))
                    }
                    (Ok(P::Unset), _) => {
                        reply(call, &(may_set(call) && registrations.unset(prog, vers, transport)))
                    }
                    (Ok(P::Getversaddr), Some(transport)) => {
                        reply(call, &self.address(call, &netid, registrations.get((prog, vers, transport))))
                    }
                    (Ok(P::Getaddr), Some(transport)) => {
                        let port = registrations.any_version((prog, vers, transport));
                        reply(call, &self.address(call, &netid, port))
                    }
                    (Ok(P::Set), None) => reply(call, &false),
                    _ => reply(call, &Text::default()),
                }
            }
            Err(_) => Refusal::ProcedureUnavailable.into(),
        }
    }

    /// The universal address of a port, at the address that the caller has called; empty if there is none.
    fn address(&self, call: &Call, netid: &[u8], port: Option<u16>) -> Text {
        let Some(port) = port else { return Text::default() };
        let called = call.connection.as_ref().map(|connection| connection.local().ip().to_canonical());
        let address = called.unwrap_or(self.serves.ip());
        // An address of the other family would be of no use to the caller.
        let address = if is_of(netid, address) { address } else { unspecified(netid) };
        Text::new(uaddr::format(SocketAddr::new(address, port)).into_bytes()).unwrap_or_default()
    }

    /// The entries of a registration in a list: one for each family that the server listens on.
    fn entry(&self, (prog, vers, prot): Key, port: u16) -> Vec<Rpcb> {
        let netids: &[&str] = match (prot == TCP, self.serves.is_ipv4()) {
            (true, true) => &["tcp"],
            (true, false) => &["tcp6", "tcp"],
            (false, true) => &["udp"],
            (false, false) => &["udp6", "udp"],
        };
        let rpcb = |netid: &&str| {
            let addr = uaddr::format(SocketAddr::new(unspecified(netid.as_bytes()), port));
            let text = |text: &str| Text::new(text.as_bytes().to_vec()).unwrap_or_default();
            Rpcb { prog, vers, netid: text(netid), addr: text(&addr), owner: text("superuser") }
        };
        netids.iter().map(rpcb).collect()
    }
}

fn is_local(call: &Call) -> bool {
    call.peer.ip().to_canonical().is_loopback()
}

/// SET and UNSET are for the system's programs on this machine: an ordinary user must not stand in for one.
fn may_set(call: &Call) -> bool {
    is_local(call) && call.peer.port() < 1024
}

/// A datagram may have a forged source, and a list is much larger than the question.
fn is_too_cheap(call: &Call) -> bool {
    call.connection.is_none() && !is_local(call)
}

fn transport(netid: &[u8]) -> Option<u32> {
    match netid {
        b"tcp" | b"tcp6" => Some(TCP),
        b"udp" | b"udp6" => Some(UDP),
        _ => None,
    }
}

fn is_of(netid: &[u8], address: IpAddr) -> bool {
    netid.ends_with(b"6") == address.is_ipv6()
}

fn unspecified(netid: &[u8]) -> IpAddr {
    if netid.ends_with(b"6") { Ipv6Addr::UNSPECIFIED.into() } else { std::net::Ipv4Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Export, ExportOptions, Exports, HandleKey, Handles, exports::ExportId};
    use rpc::Credential;
    use rpc::message::CallHeader;
    use xdr::Decoder;

    #[test]
    fn programs_of_the_server_stay_and_others_come_and_go() {
        let own = [((100_021, 4, TCP), 2049), ((100_021, 4, UDP), 2049), ((100_003, 4, TCP), 2049)];
        let mut table = Registrations::with(own.into_iter());
        assert_eq!(table.get((100_021, 4, UDP)), Some(2049));
        assert!(!table.set((100_003, 4, UDP), 7), "another transport of the server's program");
        assert!(!table.set((100_021, 4, TCP), 7) && !table.unset(100_021, 4, None));
        assert!(table.set((100_007, 2, UDP), 700) && !table.set((100_007, 2, UDP), 701));
        assert!(!table.set((100_007, 2, 9), 700) && !table.set((100_007, 3, TCP), 0));
        assert!(!table.set((100_007, 3, TCP), 1 << 16));
        assert!(!table.unset(100_007, 2, Some(TCP)) && table.unset(100_007, 2, Some(UDP)));
        assert_eq!(table.get((100_007, 2, UDP)), None);
    }

    #[test]
    fn another_version_tells_where_the_program_is() {
        let table = Registrations::with([((100_021, 4, TCP), 2049)].into_iter());
        assert_eq!(table.any_version((100_021, 1, TCP)), Some(2049));
        assert_eq!(table.any_version((100_021, 1, UDP)), None);
        assert_eq!(table.any_version((100_022, 1, TCP)), None);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = Registrations::default();
        for version in 0..2 * ENTRIES_MAX as u32 {
            assert_eq!(table.set((7, version, TCP), 1), version < ENTRIES_MAX as u32);
        }
    }

    /// A call in a datagram.
    fn call<C: protocol::Call>(peer: &str, args: &C::Args) -> Call {
        let header = CallHeader {
            xid: 1,
            program: C::PROGRAM,
            version: C::VERSION,
            procedure: C::NUMBER,
            credential: Credential::None,
        };
        let arguments = Decoder::new(xdr::to_bytes(args).unwrap());
        let peer = peer.parse().unwrap();
        Call { header, arguments, peer, connection: None, datagrams: None, resent: false, groups: None }
    }

    fn mapper() -> Arc<Mapper> {
        let options = ExportOptions { clients: "10.0.0.0/8".parse().unwrap(), ..ExportOptions::default() };
        let fs = Arc::new(memory::Memory::new(memory::Options::default()));
        let export = Export::new(ExportId(1), "/".into(), fs, options);
        let state = tempfile::tempdir().unwrap();
        let handles = Handles::open(HandleKey::new([1; 16]), state.path()).unwrap();
        let front = Front::new(Exports::new(vec![export]).unwrap(), handles);
        let registrations = Mutex::new(Registrations::with([((100_021, 4, TCP), 2049)].into_iter()));
        Arc::new(Mapper { front, serves: "10.1.2.3:2049".parse().unwrap(), registrations })
    }

    /// The results of a call. `None` if it was refused.
    async fn results<C: protocol::Call>(
        mapper: &Arc<Mapper>,
        peer: &str,
        args: C::Args,
    ) -> Option<C::Results> {
        match mapper.clone().call(call::<C>(peer, &args)).await {
            Outcome::Reply(message) => {
                // Behind the header of a successful reply.
                Some(xdr::from_bytes(message.to_bytes().unwrap().slice(24..)).unwrap())
            }
            Outcome::PutOff(_) | Outcome::Refuse(_) | Outcome::Drop => None,
        }
    }

    #[tokio::test]
    async fn another_machine_may_ask_and_change_nothing() {
        use portmap::call::{Dump, Getport, Set, Unset};
        const HERE: &str = "127.0.0.1:700";
        const THERE: &str = "10.0.0.7:4000";
        let mapper = mapper();
        let admits = |peer: SocketAddr| mapper.admits(peer, TransportSecurity::None);
        assert!(admits(THERE.parse().unwrap()) && admits(HERE.parse().unwrap()));
        assert!(!admits("192.0.2.1:700".parse().unwrap()));
        let lockd = Mapping { prog: 100_021, vers: 4, prot: TCP, port: 0 };
        let other = Mapping { prog: 7, vers: 1, prot: UDP, port: 700 };
        let of_a_user = results::<Set>(&mapper, "127.0.0.1:4000", other).await;
        assert_eq!(of_a_user, Some(false), "any user of this machine");
        assert_eq!(results::<Getport>(&mapper, THERE, lockd).await, Some(2049));
        assert_eq!(results::<Set>(&mapper, THERE, other).await, Some(false));
        assert_eq!(results::<Dump>(&mapper, THERE, ()).await, None, "a list would go to a forged address");
        assert_eq!(results::<Set>(&mapper, HERE, other).await, Some(true));
        assert_eq!(results::<Unset>(&mapper, THERE, other).await, Some(false));
        assert_eq!(results::<Getport>(&mapper, THERE, other).await, Some(700));
        assert_eq!(results::<Dump>(&mapper, HERE, ()).await.map(|all| all.len()), Some(2));
        assert_eq!(results::<Unset>(&mapper, HERE, lockd).await, Some(false), "the server's own");
        assert_eq!(results::<Unset>(&mapper, HERE, other).await, Some(true));
    }

    #[tokio::test]
    async fn versions_3_and_4_tell_universal_addresses() {
        use rpcbind::v4::call::{Getaddr, Getversaddr, Set, Unset};
        const HERE: &str = "127.0.0.1:700";
        let mapper = mapper();
        let text = |text: &'static str| Text::new(text.as_bytes()).unwrap();
        let of = |vers, netid| Rpcb { prog: 100_021, vers, netid: text(netid), ..Rpcb::default() };
        assert_eq!(results::<Getaddr>(&mapper, HERE, of(4, "tcp")).await, Some(text("10.1.2.3.8.1")));
        assert_eq!(results::<Getaddr>(&mapper, HERE, of(1, "tcp")).await, Some(text("10.1.2.3.8.1")));
        assert_eq!(results::<Getversaddr>(&mapper, HERE, of(1, "tcp")).await, Some(text("")));
        assert_eq!(results::<Getaddr>(&mapper, HERE, of(4, "udp")).await, Some(text("")));
        assert_eq!(results::<Getaddr>(&mapper, HERE, of(4, "sctp")).await, Some(text("")));
        let mine = Rpcb { addr: text("0.0.0.0.2.188"), prog: 7, ..of(1, "udp") };
        assert_eq!(results::<Set>(&mapper, HERE, mine.clone()).await, Some(true));
        assert_eq!(
            results::<rpcbind::v3::call::Getaddr>(&mapper, HERE, mine.clone()).await,
            Some(text("10.1.2.3.2.188"))
        );
        assert_eq!(results::<Unset>(&mapper, HERE, Rpcb { netid: text(""), ..mine }).await, Some(true));
    }
}
