//! The names of clients, and their addresses as the database of hosts has them.
//!
//! Names are looked up at the start, from time to time, and after a change of the options. A host or netgroup
//! that cannot be looked up keeps the addresses of before for [`KEPT`], so that a name server may be away for
//! a while. After that it stands for nobody. An attacker who can change the database gets in, as with
//! exports(5).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

/// How long a host or netgroup that cannot be looked up keeps its addresses.
pub const KEPT: Duration = Duration::from_secs(3600);
/// The most addresses of one name.
const ADDRESSES_MAX: usize = 16_384;
/// The most hosts of a netgroup.
const HOSTS_MAX: usize = 4096;
/// Hosts that are looked up at once: a name server that is away takes seconds for each.
const LOOK_UPS_MAX: usize = 16;
/// The longest name of a host, in bytes (RFC 1035, section 2.3.4), and of a netgroup.
const NAME_MAX_BYTES: usize = 253;

/// The hosts and netgroups of this machine, as nsswitch.conf(5) finds them. Each method may block for long.
pub trait HostDatabase: Send + Sync + 'static {
    /// The addresses of a host.
    ///
    /// # Errors
    /// If there is no such host, or if the database could not be asked.
    fn addresses_of(&self, host: &str) -> io::Result<Vec<IpAddr>>;

    /// The hosts of a netgroup, with those of the netgroups in it.
    ///
    /// # Errors
    /// If there is no such netgroup, or if the database could not be asked.
    fn hosts_of(&self, netgroup: &str) -> io::Result<Vec<String>>;
}

/// A name that stands for addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostName {
    /// The name of a host, in small letters.
    Host(String),
    /// The name of a netgroup.
    Netgroup(String),
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostName::Host(host) => f.write_str(host),
            HostName::Netgroup(netgroup) => write!(f, "@{netgroup}"),
        }
    }
}

impl FromStr for HostName {
    type Err = ();

    /// A host has labels of letters, digits, hyphens and underscores (RFC 1123, section 2.1). The last one is
    /// no number, so that an address that was mistyped is no name.
    fn from_str(text: &str) -> Result<HostName, ()> {
        let (name, is_netgroup) = text.strip_prefix('@').map_or((text, false), |name| (name, true));
        let is_word = |word: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            !word.is_empty() && !word.starts_with('-') && word.bytes().all(fits)
        };
        let labels = name.strip_suffix('.').unwrap_or(name);
        if name.len() > NAME_MAX_BYTES || !labels.split('.').all(is_word) {
            return Err(());
        }
        if is_netgroup {
            return Ok(HostName::Netgroup(name.to_owned()));
        }
        let last = labels.rsplit('.').next().unwrap_or_default();
        if last.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(());
        }
        Ok(HostName::Host(name.to_ascii_lowercase()))
    }
}

/// A name with its addresses. Clones share them.
#[derive(Clone, Debug)]
pub struct Named {
    name: HostName,
    found: Arc<ArcSwap<Found>>,
}

/// The outcome of the look-ups until now.
#[derive(Debug, Default)]
struct Found {
    /// Of all hosts, sorted.
    addresses: Vec<IpAddr>,
    /// The hosts that the name stands for, each with its addresses and the time when they were found.
    hosts: BTreeMap<String, (Vec<IpAddr>, Instant)>,
    /// When the netgroup was found.
    listed: Option<Instant>,
    /// The last look-up has failed, and that has been logged.
    failing: bool,
}

impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        self.name == other.name
    }
}

impl Eq for Named {}

impl Named {
    pub fn new(name: HostName) -> Named {
        Named { name, found: Arc::default() }
    }

    pub fn name(&self) -> &HostName {
        &self.name
    }

    /// Is this one of its addresses?
    pub fn contains(&self, client: IpAddr) -> bool {
        self.found.load().addresses.binary_search(&client).is_ok()
    }

    /// The hosts that it stands for. A netgroup that cannot be looked up has those of before.
    fn hosts(&self, database: &dyn HostDatabase, now: Instant) -> (Vec<String>, Option<io::Error>) {
        let netgroup = match &self.name {
            HostName::Host(host) => return (vec![host.clone()], None),
            HostName::Netgroup(netgroup) => netgroup,
        };
        let before = self.found.load();
        match database.hosts_of(netgroup) {
            Ok(mut hosts) => {
                if hosts.len() > HOSTS_MAX {
                    tracing::warn!(
                        "netgroup {netgroup} has more than {HOSTS_MAX} hosts: the others are not admitted"
                    );
                    hosts.truncate(HOSTS_MAX);
                }
                (hosts, None)
            }
            Err(error) => {
                let is_kept = before.listed.is_some_and(|at| now.saturating_duration_since(at) < KEPT);
                let hosts = if is_kept { before.hosts.keys().cloned().collect() } else { Vec::new() };
                (hosts, Some(error))
            }
        }
    }

    /// Takes what was found for its hosts. Returns whether its addresses have changed.
    fn take(
        &self,
        hosts: Vec<String>,
        mut failed: Option<io::Error>,
        answers: &Answers,
        now: Instant,
    ) -> bool {
        let before = self.found.load_full();
        let listed = if failed.is_none() { Some(now) } else { before.listed };
        let is_kept = |at: Instant| now.saturating_duration_since(at) < KEPT;
        let mut found = BTreeMap::new();
        for host in hosts {
            match answers.get(&host) {
                Some(Ok(addresses)) => drop(found.insert(host, (addresses.clone(), now))),
                Some(Err(error)) => {
                    match &self.name {
                        HostName::Host(_) => failed = Some(io::Error::new(error.kind(), error.to_string())),
                        HostName::Netgroup(_) => {
                            tracing::debug!(host, %error, "a host of a netgroup is not found");
                        }
                    }
                    let known = before.hosts.get(&host).filter(|(_, at)| is_kept(*at)).cloned();
                    found.extend(known.map(|known| (host, known)));
                }
                None => {}
            }
        }
        let mut addresses: Vec<IpAddr> =
            found.values().flat_map(|(addresses, _)| addresses).copied().collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(ADDRESSES_MAX);
        if let Some(error) = failed.as_ref().filter(|_| !before.failing) {
            self.tell(error, !addresses.is_empty());
        }
        let changed = addresses != before.addresses;
        self.found.store(Arc::new(Found { addresses, hosts: found, listed, failing: failed.is_some() }));
        changed
    }

    fn tell(&self, error: &io::Error, kept: bool) {
        let name = &self.name;
        tracing::warn!(
            "cannot look up the client {name}: {error}; {}; see that `getent {}` finds it",
            if kept { "its last addresses stay for an hour" } else { "it is not admitted" },
            match name {
                HostName::Host(host) => format!("ahosts {host}"),
                HostName::Netgroup(netgroup) => format!("netgroup {netgroup}"),
            }
        );
    }
}

/// The addresses of hosts, or why they are not known.
type Answers = HashMap<String, io::Result<Vec<IpAddr>>>;

/// Looks names up. Returns whether any of them has other addresses than before.
pub fn look_up(names: &[Named], database: &dyn HostDatabase, now: Instant) -> bool {
    let lists: Vec<_> = names.iter().map(|named| named.hosts(database, now)).collect();
    let hosts: BTreeSet<&String> = lists.iter().flat_map(|(hosts, _)| hosts).collect();
    let answers = ask(&hosts.into_iter().collect::<Vec<_>>(), database);
    let mut changed = false;
    for (named, (hosts, failed)) in names.iter().zip(lists) {
        changed |= named.take(hosts, failed, &answers, now);
    }
    changed
}

/// Asks for the addresses of all hosts, [`LOOK_UPS_MAX`] at once.
fn ask(hosts: &[&String], database: &dyn HostDatabase) -> Answers {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut answers = Vec::new();
        while let Some(host) = hosts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let addresses = database.addresses_of(host);
            let canonical = |addresses: Vec<IpAddr>| addresses.iter().map(IpAddr::to_canonical).collect();
            answers.push(((*host).clone(), addresses.map(canonical)));
        }
        answers
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..hosts.len().min(LOOK_UPS_MAX)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use parking_lot::Mutex;

    use super::*;

    /// A database that a test changes.
    #[derive(Default)]
    struct Scripted {
        hosts: Mutex<HashMap<String, Vec<IpAddr>>>,
        netgroups: Mutex<HashMap<String, Vec<String>>>,
    }

    impl HostDatabase for Scripted {
        fn addresses_of(&self, host: &str) -> io::Result<Vec<IpAddr>> {
            self.hosts.lock().get(host).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn hosts_of(&self, netgroup: &str) -> io::Result<Vec<String>> {
            self.netgroups.lock().get(netgroup).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_follows_its_addresses_and_keeps_them_while_the_database_is_away() {
        let (database, begin) = (Scripted::default(), Instant::now());
        let named = Named::new("render01".parse().unwrap());
        let look_up = |now| look_up(std::slice::from_ref(&named), &database, now);
        assert!(!look_up(begin), "nobody before and after");
        assert!(!named.contains(address("10.0.0.1")));
        let set = |addresses: &[&str]| {
            let addresses = addresses.iter().map(|text| address(text)).collect();
            database.hosts.lock().insert("render01".to_owned(), addresses);
        };
        set(&["10.0.0.2", "::ffff:10.0.0.1", "2001:db8::1"]);
        assert!(look_up(begin));
        for inside in ["10.0.0.1", "10.0.0.2", "2001:db8::1"] {
            assert!(named.contains(address(inside)), "{inside}");
        }
        assert!(!look_up(begin));
        set(&["10.0.0.3"]);
        assert!(look_up(begin) && !named.contains(address("10.0.0.1")));
        database.hosts.lock().clear();
        assert!(!look_up(begin + KEPT / 2), "the database may be away");
        assert!(named.contains(address("10.0.0.3")));
        assert!(look_up(begin + KEPT), "it is gone");
        assert!(!named.contains(address("10.0.0.3")));
    }

    #[test]
    fn a_netgroup_has_the_addresses_of_its_hosts() {
        let database = Scripted::default();
        let named = Named::new("@farm".parse().unwrap());
        let begin = Instant::now();
        let look_up = |now| look_up(std::slice::from_ref(&named), &database, now);
        let hosts = ["a", "absent", "b"].map(str::to_owned).to_vec();
        database.netgroups.lock().insert("farm".to_owned(), hosts);
        for (host, of) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
            database.hosts.lock().insert(host.to_owned(), vec![address(of)]);
        }
        assert!(look_up(begin));
        assert!(named.contains(address("10.0.0.1")) && named.contains(address("10.0.0.2")));
        assert!(!named.contains(address("10.0.0.3")));
        // One host cannot be looked up, then none, then the netgroup neither.
        database.hosts.lock().remove("a");
        assert!(!look_up(begin + KEPT / 4));
        database.hosts.lock().clear();
        assert!(!look_up(begin + KEPT / 2));
        database.netgroups.lock().clear();
        assert!(!look_up(begin + KEPT / 2));
        assert!(look_up(begin + KEPT), "one was last found at the begin, the other later");
        assert!(!named.contains(address("10.0.0.1")) && named.contains(address("10.0.0.2")));
        assert!(look_up(begin + KEPT * 5 / 4));
        assert!(!named.contains(address("10.0.0.2")));
    }
}
