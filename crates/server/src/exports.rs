//! The exports, the clients that may use them, and their options, in the words of exports(5).

mod locations;
pub(crate) mod pseudo;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use siphasher::sip128::{Hasher128, SipHasher};
use std::hash::Hasher;
use vfs::FileSystem;

pub use locations::{Location, Locations};

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
    /// `refer`: the export is at these locations and not here. The server never looks at its local
    /// directory.
    pub refer: Locations,
    /// `replicas`: further locations of the export.
    pub replicas: Locations,
}

impl ExportOptions {
    /// Is this peer on the list, and does the export accept its port?
    pub fn admits(&self, peer: SocketAddr) -> bool {
        self.clients.admits(peer.ip()) && !(self.secure && peer.port() >= 1024)
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
            refer: Locations::default(),
            replicas: Locations::default(),
        }
    }
}

/// Addresses and networks: `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/32`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientList(Vec<Network>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    prefix: u8,
}

impl ClientList {
    /// Is this client in the list? The empty list contains all clients.
    pub fn admits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        self.0.is_empty() || self.0.iter().any(|network| network.contains(client))
    }

    /// As text, one per network.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(ToString::to_string)
    }
}

impl Network {
    fn contains(&self, client: IpAddr) -> bool {
        match (self.address, client) {
            (IpAddr::V4(network), IpAddr::V4(client)) => {
                let shift = 32 - u32::from(self.prefix);
                u32::from(network).checked_shr(shift) == u32::from(client).checked_shr(shift)
            }
            (IpAddr::V6(network), IpAddr::V6(client)) => {
                let shift = 128 - u32::from(self.prefix);
                u128::from(network).checked_shr(shift) == u128::from(client).checked_shr(shift)
            }
            _ => false,
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for ClientList {
    type Err = String;

    /// Parses addresses and networks separated by commas; `*` means all clients.
    fn from_str(text: &str) -> Result<ClientList, String> {
        if text.trim() == "*" {
            return Ok(ClientList::default());
        }
        text.split(',').map(|one| one.trim().parse()).collect::<Result<_, _>>().map(ClientList)
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Network, String> {
        let bad = || format!("`{text}` is no client address: give ADDRESS, ADDRESS/PREFIX or *");
        let (address, prefix) = match text.split_once('/') {
            None => (text, None),
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| bad())?)),
        };
        let address = address.parse::<IpAddr>().map_err(|_| bad())?;
        // IPv4 clients are compared as such, even if the socket reports an IPv4-mapped address.
        if let IpAddr::V6(mapped) = address
            && let Some(address) = mapped.to_ipv4_mapped()
        {
            let prefix = prefix.unwrap_or(128).saturating_sub(96);
            return Err(format!("`{text}` is no client address: write it as {address}/{prefix}"));
        }
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(longest);
        if prefix > longest { Err(bad()) } else { Ok(Network { address, prefix }) }
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
    /// stays.
    pub fn set_options(&self, options: ExportOptions) {
        let now = self.options();
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

    /// The exports that a peer may use.
    pub fn admitting(&self, peer: SocketAddr) -> Admitting {
        let mut words = vec![0; self.0.len().div_ceil(64)];
        for (at, _) in self.0.iter().enumerate().filter(|(_, export)| export.options().admits(peer)) {
            words[at / 64] |= 1 << (at % 64);
        }
        Admitting(words)
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

    #[test]
    fn client_lists_are_addresses_and_networks() {
        let list: ClientList = "192.0.2.0/24, 2001:db8::/32,10.0.0.1".parse().unwrap();
        for inside in ["192.0.2.255", "2001:db8:1::1", "10.0.0.1", "::ffff:192.0.2.1"] {
            assert!(list.admits(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["192.0.3.1", "2001:db9::1", "10.0.0.2"] {
            assert!(!list.admits(outside.parse().unwrap()), "{outside}");
        }
        assert!("*".parse::<ClientList>().unwrap().admits("1.2.3.4".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<ClientList>().unwrap().admits("1.2.3.4".parse().unwrap()));
        for bad in ["", "host", "1.2.3.4/33", "1.2.3.4/x", "10.0.0.1,", "*,10.0.0.1"] {
            assert!(bad.parse::<ClientList>().is_err(), "{bad}");
        }
        for (mapped, instead) in [("::ffff:10.0.0.0/104", "10.0.0.0/8"), ("::ffff:10.0.0.1", "10.0.0.1/32")] {
            assert!(mapped.parse::<ClientList>().unwrap_err().contains(instead), "{mapped}");
        }
    }
}
