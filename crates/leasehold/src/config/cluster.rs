//! The cluster in the configuration file of a `proxy`: the table `[cluster]`, and a table `[[server]]` for
//! each virtual server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::etcd::{Endpoint, Etcd, Tls};
use parking_lot::Mutex;
use rpc::tls::{ClientFiles, Identity};
use serde::Deserialize;
use toml::Spanned;
use toml::de::DeTable;

use super::exports::shown;
use super::file::ConfigFile;
use super::{Place, Setting};
use crate::Failure;

/// The names of the tables.
pub const TABLES: [&str; 2] = ["cluster", "server"];
/// The keys of `[cluster]`, with their defaults.
pub const KEYS: [(&str, &str); 8] = [
    ("name", ""),
    ("member", "the name of the host"),
    ("endpoints", ""),
    ("tls_ca", ""),
    ("tls_certificate", ""),
    ("tls_key", ""),
    ("hook", ""),
    ("term", "6"),
];
/// The keys of a `[[server]]`. They have no defaults.
pub const SERVER_KEYS: [(&str, &str); 2] = [("address", ""), ("metrics", "")];
/// The most virtual servers.
const SERVERS_MAX: usize = 256;
/// The bounds of `term`, in seconds.
const TERM: std::ops::RangeInclusive<u32> = 3..=300;
/// The longest name of a cluster or a member.
const NAME_MAX: usize = 64;

#[derive(Debug, Deserialize)]
struct File {
    cluster: Option<Spanned<ClusterTable>>,
    #[serde(default)]
    server: Vec<Spanned<ServerTable>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [cluster] with a name and endpoints")]
struct ClusterTable {
    name: Spanned<String>,
    member: Option<Spanned<String>>,
    endpoints: Spanned<Vec<String>>,
    tls_ca: Option<Spanned<PathBuf>>,
    tls_certificate: Option<Spanned<PathBuf>>,
    tls_key: Option<Spanned<PathBuf>>,
    hook: Option<PathBuf>,
    #[serde(default = "term")]
    term: Spanned<u32>,
}

fn term() -> Spanned<u32> {
    Spanned::new(0..0, 6)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table below [[server]] with an address")]
struct ServerTable {
    address: Spanned<String>,
    metrics: Option<Spanned<String>>,
}

/// A cluster, and this member of it.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// The name of the cluster.
    pub name: String,
    /// The name of this member.
    pub member: String,
    /// The members of etcd.
    pub endpoints: Vec<Endpoint>,
    /// The files of TLS, if etcd is reached over it.
    pub tls: Option<ClientFiles>,
    /// The program that moves addresses.
    pub hook: Option<PathBuf>,
    /// How long a member may run servers after a beat.
    pub term: Duration,
    /// The virtual servers, in the order of their addresses.
    pub servers: Vec<ServerConfig>,
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The address that clients mount.
    pub address: SocketAddr,
    /// Where it has its metrics.
    pub metrics: Option<SocketAddr>,
}

impl ClusterConfig {
    /// The store in etcd.
    ///
    /// # Errors
    /// If a file of TLS cannot be used.
    pub fn store(&self) -> Result<Etcd, Failure> {
        let Some(files) = self.tls.clone() else { return Ok(Etcd::new(&self.endpoints)) };
        let read = files.config(&[]).map_err(|error| Failure(error.to_string()))?;
        let last = Mutex::new(read);
        let configure = move || {
            let mut last = last.lock();
            match files.config(&[]) {
                Ok(read) => *last = read,
                // Certificate and key are two files.
                Err(error) => tracing::warn!("etcd: the certificates read before stay: {error}"),
            }
            Ok(last.clone())
        };
        Ok(Etcd::with_tls(&self.endpoints, Tls::new(configure)))
    }

    /// Where the virtual server at this address has its metrics.
    pub fn metrics_of(&self, address: &str) -> Option<SocketAddr> {
        self.servers.iter().find(|server| server.address.to_string() == address)?.metrics
    }
}

/// Reads the cluster of the file at `path`; none if it has no table `[cluster]`.
///
/// # Errors
/// The first mistake, and if the file cannot be read.
pub fn load(path: &Path) -> Result<Option<ClusterConfig>, Failure> {
    read(&ConfigFile::load(path)?)
}

/// Reads the cluster of a file.
///
/// # Errors
/// The first mistake.
pub fn read(file: &ConfigFile) -> Result<Option<ClusterConfig>, Failure> {
    let table = file.table()?;
    if !TABLES.iter().any(|name| table.contains_key(*name)) {
        return Ok(None);
    }
    let found: File = toml::from_str(file.text()).map_err(|error| file.not_toml(&error))?;
    let Some(cluster) = found.cluster else {
        return Err(file
            .lacks("it has a [[server]] and no [cluster]: add a table [cluster] with a name and endpoints"));
    };
    let at = cluster.span().start;
    if !super::origins::has_tables(file)? {
        return Err(file.wrong(at, "a cluster needs its origins below [[origin]]"));
    }
    if !table.contains_key("handle_key") {
        return Err(file
            .wrong(at, "a cluster needs `handle_key`: a file of 16 secret bytes, the same for all members"));
    }
    let cluster = cluster.into_inner();
    let member = match cluster.member {
        Some(member) => member,
        None => Spanned::new(at..at, host_name()),
    };
    let endpoints = endpoints(file, &cluster.endpoints)?;
    let term = *cluster.term.get_ref();
    if !TERM.contains(&term) {
        let (least, most) = (TERM.start(), TERM.end());
        return Err(
            file.wrong(cluster.term.span().start, format_args!("`term` is {least} to {most} seconds"))
        );
    }
    Ok(Some(ClusterConfig {
        name: name(file, "name", &cluster.name)?,
        member: name(file, "member", &member)?,
        tls: tls(file, &endpoints, [cluster.tls_ca, cluster.tls_certificate, cluster.tls_key])?,
        endpoints,
        hook: cluster.hook,
        term: Duration::from_secs(term.into()),
        servers: servers(file, at, found.server)?,
    }))
}

fn name(file: &ConfigFile, key: &str, text: &Spanned<String>) -> Result<String, Failure> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let value = text.get_ref();
    if (1..=NAME_MAX).contains(&value.len()) && value.chars().all(plain) {
        return Ok(value.clone());
    }
    let why = format_args!("`{key}` is `{value}`; it has 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`");
    Err(file.wrong(text.span().start, why))
}

fn endpoints(file: &ConfigFile, texts: &Spanned<Vec<String>>) -> Result<Vec<Endpoint>, Failure> {
    let wrong = |why: String| file.wrong(texts.span().start, why);
    if texts.get_ref().is_empty() {
        return Err(wrong(
            "`endpoints` names no member of etcd: write for instance 'http://127.0.0.1:2379'".into(),
        ));
    }
    let parse = |text: &String| text.parse::<Endpoint>().map_err(|error| wrong(format!("{error}")));
    let found: Vec<Endpoint> = texts.get_ref().iter().map(parse).collect::<Result<_, _>>()?;
    if found.iter().any(Endpoint::is_secure) && !found.iter().all(Endpoint::is_secure) {
        return Err(wrong("some `endpoints` have https:// and some http://: write all of them alike".into()));
    }
    Ok(found)
}

/// The files of TLS, if the endpoints are reached over it.
fn tls(
    file: &ConfigFile,
    endpoints: &[Endpoint],
    [ca, certificate, key]: [Option<Spanned<PathBuf>>; 3],
) -> Result<Option<ClientFiles>, Failure> {
    let given = [("tls_ca", &ca), ("tls_certificate", &certificate), ("tls_key", &key)];
    let given = given.iter().find_map(|(name, given)| Some((name, given.as_ref()?.span().start)));
    if !endpoints.iter().any(Endpoint::is_secure) {
        return match given {
            Some((name, at)) => Err(file.wrong(at, format_args!("`{name}` is for endpoints with https://"))),
            None => Ok(None),
        };
    }
    let identity = match (certificate, key) {
        (None, Some(key)) => {
            return Err(file.wrong(key.span().start, "`tls_key` needs `tls_certificate`"));
        }
        (None, None) => None,
        (Some(certificate), key) => {
            let certificate = certificate.into_inner();
            let key = key.map_or_else(|| certificate.clone(), Spanned::into_inner);
            Some(Identity { certificate, key })
        }
    };
    Ok(Some(ClientFiles { ca: ca.map(Spanned::into_inner), identity }))
}

fn servers(
    file: &ConfigFile,
    at: usize,
    tables: Vec<Spanned<ServerTable>>,
) -> Result<Vec<ServerConfig>, Failure> {
    if !(1..=SERVERS_MAX).contains(&tables.len()) {
        let why = format_args!("a cluster has 1 to {SERVERS_MAX} tables [[server]], each with an address");
        return Err(file.wrong(at, why));
    }
    let mut servers: Vec<ServerConfig> = Vec::new();
    for table in tables {
        let ServerTable { address, metrics } = table.into_inner();
        let parse = |text: &Spanned<String>, key: &str| {
            let value = text.get_ref();
            value.parse::<SocketAddr>().map_err(|_| {
                let why = format_args!("`{key}` is `{value}`; write an address and a port, as 10.0.0.5:2049");
                file.wrong(text.span().start, why)
            })
        };
        let server = ServerConfig {
            address: parse(&address, "address")?,
            metrics: metrics.as_ref().map(|text| parse(text, "metrics")).transpose()?,
        };
        let at = address.span().start;
        if server.address.ip().is_unspecified() || server.address.port() == 0 {
            return Err(file.wrong(at, "`address` must be one that clients can mount"));
        }
        if servers.iter().any(|other| other.address == server.address) {
            return Err(file.wrong(at, format_args!("{} is there twice", server.address)));
        }
        servers.push(server);
    }
    servers.sort_by_key(|server| server.address);
    Ok(servers)
}

/// The settings of the tables `[cluster]` and `[[server]]`: `cluster KEY`, `server ADDRESS KEY`. The file has
/// been checked.
///
/// # Errors
/// If the file is not TOML.
pub fn settings(file: &ConfigFile) -> Result<Vec<Setting>, Failure> {
    let table = file.table()?;
    let mut settings = Vec::new();
    if let Some(cluster) = table.get("cluster").and_then(|value| value.get_ref().as_table()) {
        settings.extend(settings_of(file, "cluster", cluster, &KEYS));
    }
    let servers = table.get("server").and_then(|value| value.get_ref().as_array());
    for server in servers.into_iter().flatten().filter_map(|server| server.get_ref().as_table()) {
        let address = server.get("address").map(|address| shown(address.get_ref())).unwrap_or_default();
        settings.extend(settings_of(file, &format!("server {address}"), server, &SERVER_KEYS));
    }
    Ok(settings)
}

fn settings_of(file: &ConfigFile, name: &str, table: &DeTable, keys: &[(&str, &str)]) -> Vec<Setting> {
    let setting = |(key, default): &(&str, &str)| {
        let default = if *key == "member" { host_name() } else { (*default).to_owned() };
        let given = table.get_key_value(*key);
        let value = given.map_or(default, |(_, value)| shown(value.get_ref()));
        let from = given.map_or(Place::Default, |(key, _)| Place::Line(file.line(key.span().start)));
        Setting { key: format!("{name} {key}"), value: (!value.is_empty()).then_some(value), from }
    };
    keys.iter().map(setting).collect()
}

/// The host's name, up to its first dot.
fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &str = "handle_key = '/k'\n[[origin]]\nurl = 'nfs://a/x'\n";

    fn read_text(text: &str) -> Result<Option<ClusterConfig>, String> {
        read(&ConfigFile::of("p.toml", text)).map_err(|failure| failure.0)
    }

    #[test]
    fn a_cluster_has_its_servers_in_order() {
        assert!(read_text(ORIGIN).unwrap().is_none());
        let text = format!(
            "{ORIGIN}[cluster]\nname = 'site'\nmember = 'a'\nendpoints = ['http://e1:2379', 'http://e2']\n\
             [[server]]\naddress = '10.0.0.6:2049'\n[[server]]\naddress = '10.0.0.5:2049'\nmetrics = '127.0.0.1:9000'\n"
        );
        let cluster = read_text(&text).unwrap().unwrap();
        assert_eq!((cluster.name.as_str(), cluster.member.as_str()), ("site", "a"));
        assert_eq!((cluster.endpoints.len(), cluster.term), (2, Duration::from_secs(6)));
        let settings = settings(&ConfigFile::of("p.toml", &text)).unwrap();
        let of = |key: &str| settings.iter().find(|setting| setting.key == key).unwrap();
        assert_eq!(of("cluster member").value.as_deref(), Some("a"));
        assert_eq!(
            (of("cluster term").value.as_deref(), &of("cluster term").from),
            (Some("6"), &Place::Default)
        );
        let metrics = of("server 10.0.0.5:2049 metrics");
        assert_eq!((metrics.value.as_deref(), &metrics.from), (Some("127.0.0.1:9000"), &Place::Line(12)));
        let addresses: Vec<String> =
            cluster.servers.iter().map(|server| server.address.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.5:2049", "10.0.0.6:2049"]);
        assert_eq!(cluster.metrics_of("10.0.0.5:2049"), Some("127.0.0.1:9000".parse().unwrap()));
        assert_eq!(cluster.metrics_of("10.0.0.6:2049"), None);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let whole =
            |cluster: &str, server: &str| format!("{ORIGIN}[cluster]\n{cluster}\n[[server]]\n{server}\n");
        let right = "name = 'site'\nmember = 'a'\nendpoints = ['http://e1:2379']";
        for (text, wanted) in [
            ("[[server]]\naddress = '10.0.0.5:2049'\n".to_owned(), "it has a [[server]] and no [cluster]"),
            (format!("handle_key = '/k'\n[cluster]\n{right}\n"), "needs its origins below [[origin]]"),
            (whole(right, "address = '0.0.0.0:2049'"), "p.toml:9:11: `address` must be one"),
            (whole(right, "address = 'host'"), "p.toml:9:11: `address` is `host`"),
            (
                whole(&right.replace("'site'", "'a/b'"), "address = '1.2.3.4:1'"),
                "p.toml:5:8: `name` is `a/b`",
            ),
            (whole(&right.replace("http:", "ftp:"), "address = '1.2.3.4:1'"), "p.toml:7:13: "),
            (
                whole(&right.replace("['", "['https://e0', '"), "address = '1.2.3.4:1'"),
                "some `endpoints` have https:// and some http://",
            ),
            (
                whole(&format!("{right}\ntls_ca = '/ca'"), "address = '1.2.3.4:1'"),
                "p.toml:8:10: `tls_ca` is for endpoints with https://",
            ),
            (
                whole(
                    &format!("{}\ntls_key = '/k'", right.replace("http:", "https:")),
                    "address = '1.2.3.4:1'",
                ),
                "p.toml:8:11: `tls_key` needs `tls_certificate`",
            ),
            (whole(&format!("{right}\nterm = 1"), "address = '1.2.3.4:1'"), "`term` is 3 to 300 seconds"),
            (format!("{ORIGIN}[cluster]\n{right}\n"), "1 to 256 tables [[server]]"),
            (whole(right, "address = '1.2.3.4:1'\nweight = 3"), "unknown field `weight`"),
            (whole(right, "address = '1.2.3.4:1'").replace("handle_key = '/k'\n", ""), "needs `handle_key`"),
        ] {
            let told = read_text(&text).unwrap_err();
            assert!(told.contains(wanted), "{text}: {told}");
        }
    }
}
