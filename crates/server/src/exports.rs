//! The exports, the clients that may use them, and their options, in the words of exports(5).

mod clients;
mod hosts;
mod locations;
pub(crate) mod pseudo;
mod ranges;
mod sec;
mod xprtsec;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use rpc::TransportSecurity;
use siphasher::sip128::{Hasher128, SipHasher};
use std::hash::Hasher;
use vfs::FileSystem;

pub use clients::ClientList;
pub use hosts::HostDatabase;
pub use locations::{Location, Locations};
pub use sec::{Flavor, Sec};
pub use xprtsec::XprtSec;

/// The durable id of an export in handles. It is derived from the export's identity and not from its
/// position in a table. So another proxy of the same origin computes the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExportId(pub u32);

impl ExportId {
    /// The id for `identity`: `nfs://origin/export` for a proxy, or the path of a local directory.
    pub fn of(identity: &str) -> ExportId {
        let mut hasher = SipHasher::new();
        hasher.write(identity.as_bytes());
        ExportId(hasher.finish128().h1 as u32)
    }
}

/// The users of a client that are mapped to the anonymous user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Squash {
    /// `root_squash`: user and group 0.
    #[default]
    Root,
    /// `no_root_squash`: no user.
    None,
    /// `all_squash`: all users.
    All,
}

/// Options of an export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// `ro`
    pub read_only: bool,
    /// `root_squash`, `no_root_squash`, `all_squash`
    pub squash: Squash,
    /// `anonuid`
    pub anonuid: u32,
    /// `anongid`
    pub anongid: u32,
    /// `secure`: accept only source ports below 1024.
    pub secure: bool,
    /// The clients that may use the export; all, if empty.
    pub clients: ClientList,
    /// `xprtsec`: the kinds of connections over which they may use it.
    pub xprtsec: XprtSec,
    /// `sec`: the flavors of authentication that they may use it with.
    pub sec: Sec,
    /// `refer`: the export is at these locations and not here. The server never looks at its local
    /// directory.
    pub refer: Locations,
    /// `replicas`: further locations of the export.
    pub replicas: Locations,
}

impl ExportOptions {
    /// Is this peer on the list, and does the export accept its port and the security of its connection?
    /// A port does not matter for a user who can prove who it is. That is known with a call, so the port of
    /// a call that proves nothing is checked again by [`ExportOptions::takes`].
    pub fn admits(&self, peer: SocketAddr, security: TransportSecurity) -> bool {
        self.shows(peer.ip(), security) && (self.accepts_port(peer) || self.sec.has_kerberos())
    }

    /// As [`ExportOptions::admits`], for a call that has a proven user or not.
    pub fn takes(&self, peer: SocketAddr, security: TransportSecurity, is_proven: bool) -> bool {
        self.shows(peer.ip(), security) && (is_proven || self.accepts_port(peer))
    }

    /// Is the port one that only root can have, or does that not matter?
    pub fn accepts_port(&self, peer: SocketAddr) -> bool {
        !self.secure || peer.port() < 1024
    }

    /// As [`ExportOptions::admits`], for a peer that asks for names alone, from any port.
    pub fn shows(&self, peer: IpAddr, security: TransportSecurity) -> bool {
        self.clients.admits(peer) && self.xprtsec.allows(security)
    }
}

impl Default for ExportOptions {
    /// As exports(5): `root_squash`, `secure`, anonymous user 65534; writable, for all clients.
    fn default() -> ExportOptions {
        ExportOptions {
            read_only: false,
            squash: Squash::Root,
            anonuid: 65534,
            anongid: 65534,
            secure: true,
            clients: ClientList::default(),
            xprtsec: XprtSec::default(),
            sec: Sec::default(),
            refer: Locations::default(),
            replicas: Locations::default(),
        }
    }
}

/// One export.
pub struct Export {
    /// Its id in handles.
    pub id: ExportId,
    /// The path that clients mount.
    pub path: String,
    /// The file system behind it.
    pub fs: Arc<dyn FileSystem>,
    options: ArcSwap<ExportOptions>,
}

impl Export {
    /// An export.
    pub fn new(id: ExportId, path: String, fs: Arc<dyn FileSystem>, options: ExportOptions) -> Export {
        Export { id, path, fs, options: ArcSwap::from_pointee(options) }
    }

    /// Its options now.
    pub fn options(&self) -> Guard<Arc<ExportOptions>> {
        self.options.load()
    }

    /// From the next call on, these options are in force. Where the export is, with `refer` and `replicas`,
    /// stays. Names of clients must have been looked up ([`ClientList::look_up`]).
    pub fn set_options(&self, mut options: ExportOptions) {
        let now = self.options();
        options.clients.take_addresses_of(&now.clients);
        let (refer, replicas) = (now.refer.clone(), now.replicas.clone());
        self.options.store(Arc::new(ExportOptions { refer, replicas, ..options }));
    }

    /// Is the export on another server (RFC 8881, section 11.2)?
    pub fn is_absent(&self) -> bool {
        !self.options().refer.is_empty()
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Export({})", self.path)
    }
}

/// The exports that admit a peer: one bit for each position in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admitting(Vec<u64>);

impl Admitting {
    /// For a table of at most 64 exports.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn of(bits: u64) -> Admitting {
        Admitting(vec![bits])
    }

    /// Is the set empty?
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Does the set contain every export of the other set?
    pub fn covers(&self, other: &Admitting) -> bool {
        other.0.iter().enumerate().all(|(at, word)| word & !self.0.get(at).copied().unwrap_or(0) == 0)
    }
}

/// All exports of a server.
#[derive(Debug, Default)]
pub struct Exports(Vec<Arc<Export>>);

/// Why a table of exports is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportsError {
    /// A path that clients could not name.
    #[error("export path `{0}` must be absolute, for instance /srv")]
    Relative(String),
    /// The same path twice.
    #[error("`{0}` is exported twice: give one of the two another path")]
    Twice(String),
    /// Two exports with the same id in handles.
    #[error("`{0}` and `{1}` get the same export id by chance: change one of the paths")]
    SameId(String, String),
}

impl Exports {
    /// Checks and keeps the exports.
    pub fn new(exports: Vec<Export>) -> Result<Exports, ExportsError> {
        for (index, export) in exports.iter().enumerate() {
            if !export.path.starts_with('/') {
                return Err(ExportsError::Relative(export.path.clone()));
            }
            for other in &exports[..index] {
                if other.path == export.path {
                    return Err(ExportsError::Twice(export.path.clone()));
                }
                if other.id == export.id {
                    return Err(ExportsError::SameId(other.path.clone(), export.path.clone()));
                }
            }
        }
        Ok(Exports(exports.into_iter().map(Arc::new).collect()))
    }

    /// The export that a handle names.
    pub fn by_id(&self, id: ExportId) -> Option<&Arc<Export>> {
        self.0.iter().find(|export| export.id == id)
    }

    /// The export that contains a path, and the rest of the path below it.
    pub fn by_path<'p>(&self, path: &'p [u8]) -> Option<(&Arc<Export>, &'p [u8])> {
        let below = |export: &Export| -> Option<&'p [u8]> {
            let rest = path.strip_prefix(export.path.trim_end_matches('/').as_bytes())?;
            (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)
        };
        let candidates = self.0.iter().filter_map(|export| below(export).map(|rest| (export, rest)));
        candidates.min_by_key(|(_, rest)| rest.len())
    }

    /// May this host get anything in plain text?
    pub fn shows_plainly(&self, host: IpAddr) -> bool {
        self.0.iter().any(|export| export.options().shows(host, TransportSecurity::None))
    }

    /// The exports that a peer may use over a connection of this security, for a proven user or another one.
    pub fn admitting(&self, peer: SocketAddr, security: TransportSecurity, is_proven: bool) -> Admitting {
        let mut words = vec![0; self.0.len().div_ceil(64)];
        let admits = |export: &Export| export.options().takes(peer, security, is_proven);
        for (at, _) in self.0.iter().enumerate().filter(|(_, export)| admits(export)) {
            words[at / 64] |= 1 << (at % 64);
        }
        Admitting(words)
    }

    /// Looks the names of clients up, which may block for long. Returns whether any of them has other
    /// addresses than before.
    pub fn look_up_clients(&self, database: &dyn HostDatabase) -> bool {
        let names = |export: &Arc<Export>| export.options().clients.named().to_vec();
        let names: Vec<_> = self.0.iter().flat_map(names).collect();
        hosts::look_up(&names, database, Instant::now())
    }

    /// All exports.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Export>> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_covers_what_is_in_it() {
        let of = |words: &[u64]| Admitting(words.to_vec());
        assert!(of(&[]).is_empty() && of(&[0, 0]).is_empty() && !of(&[0, 1]).is_empty());
        assert!(of(&[3, 1]).covers(&of(&[1, 1])) && of(&[1]).covers(&of(&[1, 0])));
        assert!(!of(&[1, 1]).covers(&of(&[3, 1])) && !of(&[3]).covers(&of(&[3, 1])));
    }
}
