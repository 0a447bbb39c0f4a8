//! The origins in the configuration file of a `proxy` with several of them: one table each.
//!
//! A table has the address of the origin and its place in the name space, its share of the cache, and the
//! keys of exports(5). A key of exports(5) that it does not have is that of the whole file.

use std::net::SocketAddr;
use std::path::Path;

use clap::ValueEnum;
use client::Url;
use serde::Deserialize;
use server::{ClientList, ExportOptions, Locations, Sec, Squash, XprtSec};
use toml::Spanned;

use super::exports::shown;
use super::file::ConfigFile;
use super::{Place, Setting};
use crate::Failure;
use crate::cli::cache::OfflineAnswer;
use crate::cli::writing::FsyncAnswer;

/// The table of an origin. A proxy of one origin has a string with this name.
pub const TABLE: &str = "origin";
/// The most origins of a proxy.
pub const ORIGINS_MAX: usize = 64;
/// The largest `cache_share`.
const SHARE_MAX: u32 = 1000;

/// The keys of an origin that are of this file alone, with their defaults.
const OWN_KEYS: [(&str, &str); 7] = [
    ("url", ""),
    ("path", ""),
    ("cache_share", "1"),
    ("offline", ""),
    ("sync", ""),
    ("fsync", ""),
    ("server", ""),
];
/// The keys of an origin whose default is the value of the whole file.
const SHARED_KEYS: [&str; 9] =
    ["ro", "root_squash", "all_squash", "anonuid", "anongid", "secure", "clients", "xprtsec", "sec"];

/// The keys of an origin, with their defaults; none is that of the whole file.
pub fn keys() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    let shared = SHARED_KEYS.into_iter().map(|key| (key, None));
    OWN_KEYS.into_iter().map(|(key, default)| (key, Some(default))).chain(shared)
}

/// The part of a file that lists origins.
#[derive(Debug, Deserialize)]
struct Origins {
    #[serde(rename = "origin")]
    origins: Vec<Spanned<OriginTable>>,
}

/// One table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table below [[origin]] with a url")]
struct OriginTable {
    url: Spanned<String>,
    path: Option<String>,
    #[serde(default = "one")]
    cache_share: Spanned<u32>,
    offline: Option<Spanned<String>>,
    sync: Option<bool>,
    fsync: Option<Spanned<String>>,
    server: Option<Spanned<String>>,
    ro: Option<bool>,
    root_squash: Option<bool>,
    all_squash: Option<bool>,
    anonuid: Option<u32>,
    anongid: Option<u32>,
    secure: Option<bool>,
    clients: Option<Vec<String>>,
    xprtsec: Option<String>,
    sec: Option<String>,
}

fn one() -> Spanned<u32> {
    Spanned::new(0..0, 1)
}

/// One origin.
#[derive(Clone, Debug)]
pub struct OriginConfig {
    /// Where it is.
    pub url: Url,
    /// The path that clients mount.
    pub path: String,
    /// Its part of the cache, in proportion to those of the others.
    pub cache_share: u32,
    /// What to do while it is away; as for the whole file, if absent.
    pub offline: Option<OfflineAnswer>,
    /// Whether its writes are delayed; as for the whole file, if absent.
    pub delayed: Option<bool>,
    /// Where data must be before COMMIT is answered; as for the whole file, if absent.
    pub fsync: Option<FsyncAnswer>,
    /// The virtual server that has it, in a cluster; chosen by hashing, if absent.
    pub server: Option<SocketAddr>,
    /// Where clients of version 4 find it, if that is not here ([`OriginConfig::of_other`]).
    elsewhere: Option<Locations>,
    /// Its options of exports(5), over those of the whole file.
    access: Access,
}

#[derive(Clone, Debug)]
struct Access {
    ro: Option<bool>,
    squash: (Option<bool>, Option<bool>),
    anonuid: Option<u32>,
    anongid: Option<u32>,
    secure: Option<bool>,
    clients: Option<ClientList>,
    xprtsec: Option<XprtSec>,
    sec: Option<Sec>,
}

/// Does the file of a proxy have tables of origins?
pub fn has_tables(file: &ConfigFile) -> Result<bool, Failure> {
    let table = file.table()?;
    Ok(table.get(TABLE).is_some_and(|value| value.get_ref().as_array().is_some()))
}

/// Reads the origins of the file at `path`; none if it has no tables of origins.
///
/// # Errors
/// As [`read`], and if the file cannot be read.
pub fn load(path: &Path) -> Result<Vec<OriginConfig>, Failure> {
    let file = ConfigFile::load(path)?;
    if has_tables(&file)? { read(&file) } else { Ok(Vec::new()) }
}

/// Reads the origins of a file.
///
/// # Errors
/// The first mistake.
pub fn read(file: &ConfigFile) -> Result<Vec<OriginConfig>, Failure> {
    // The other keys are those of the command line: see `keys`.
    let found: Origins = toml::from_str(file.text()).map_err(|error| file.not_toml(&error))?;
    if found.origins.is_empty() {
        return Err(file.lacks("it has no origin: add an [[origin]] with a url"));
    }
    let mut origins: Vec<OriginConfig> = Vec::new();
    for table in found.origins {
        let at = table.span().start;
        let origin = OriginConfig::of(table.into_inner(), at).map_err(|(at, why)| file.wrong(at, why))?;
        let url = origin.url.to_string();
        if origins.len() == ORIGINS_MAX {
            return Err(file.wrong(at, format_args!("there are more than {ORIGINS_MAX} origins")));
        }
        if let Some(other) = origins.iter().find(|other| other.path == origin.path) {
            return Err(file.wrong(
                at,
                format_args!(
                    "{} and {url} are both at `{}`: give one of them another `path`",
                    other.url, origin.path
                ),
            ));
        }
        if origins.iter().any(|other| other.url.to_string() == url) {
            return Err(file.wrong(at, format_args!("{url} is there twice: remove one of the two")));
        }
        origins.push(origin);
    }
    Ok(origins)
}

/// The value of each key of each origin. `whole` has the keys of the whole file.
///
/// # Errors
/// As [`read`].
pub fn settings(file: &ConfigFile, whole: &[Setting]) -> Result<Vec<Setting>, Failure> {
    let origins = read(file)?;
    let table = file.table()?;
    let tables = table.get(TABLE).and_then(|tables| tables.get_ref().as_array());
    let mut settings = Vec::new();
    for (table, origin) in tables.into_iter().flatten().zip(origins) {
        let Some(table) = table.get_ref().as_table() else { continue };
        for (key, default) in keys() {
            let name = format!("{TABLE} {} {key}", origin.path);
            let setting = match (table.get_key_value(key), default) {
                (Some((given, value)), _) => Setting {
                    key: name,
                    value: Some(shown(value.get_ref())),
                    from: Place::Line(file.line(given.span().start)),
                },
                (None, Some(default)) => {
                    let value = (!default.is_empty()).then(|| default.to_owned());
                    Setting { key: name, value, from: Place::Default }
                }
                (None, None) => match whole.iter().find(|setting| setting.key == key) {
                    Some(setting) => Setting { key: name, ..setting.clone() },
                    None => Setting { key: name, value: None, from: Place::Default },
                },
            };
            // Options of a URL need a restart. Another place is another origin.
            match (key, setting.value.as_deref().and_then(|url| url.split_once('?'))) {
                ("url", Some((place, options))) => {
                    let options = Some(options.to_owned());
                    let key = format!("{}_options", setting.key);
                    settings.push(Setting { value: Some(place.to_owned()), ..setting.clone() });
                    settings.push(Setting { key, value: options, ..setting });
                }
                _ => settings.push(setting),
            }
        }
    }
    Ok(settings)
}

impl OriginConfig {
    /// The checked table, which begins at this byte.
    fn of(table: OriginTable, at: usize) -> Result<OriginConfig, (usize, String)> {
        let url_at = table.url.span().start;
        let url = Url::parse(table.url.get_ref()).map_err(|wrong| (url_at, wrong.to_string()))?;
        crate::proxy::check_options(&url).map_err(|wrong| (url_at, wrong.0))?;
        let path = table.path.unwrap_or_else(|| url.export_text());
        if !path.starts_with('/') {
            return Err((at, format!("`path` is `{path}`, and must begin with /")));
        }
        let cache_share = *table.cache_share.get_ref();
        if !(1..=SHARE_MAX).contains(&cache_share) {
            return Err((table.cache_share.span().start, format!("`cache_share` is 1 to {SHARE_MAX}")));
        }
        let offline = one_of("offline", "wait, read", table.offline)?;
        let fsync = one_of("fsync", "origin, journal", table.fsync)?;
        let clients = match table.clients.as_deref() {
            None => None,
            Some([]) => Some(ClientList::default()),
            Some(list) => Some(list.join(",").parse().map_err(|wrong| (at, wrong))?),
        };
        let server = match table.server {
            None => None,
            Some(text) => Some(text.get_ref().parse().map_err(|_| {
                let why =
                    format!("`server` is `{}`, and must be the address of a [[server]]", text.get_ref());
                (text.span().start, why)
            })?),
        };
        Ok(OriginConfig {
            url,
            path,
            cache_share,
            offline,
            delayed: table.sync.map(|sync| !sync),
            fsync,
            server,
            elsewhere: None,
            access: Access {
                ro: table.ro,
                squash: (table.all_squash, table.root_squash),
                anonuid: table.anonuid,
                anongid: table.anongid,
                secure: table.secure,
                clients,
                xprtsec: table.xprtsec.map(|text| text.parse()).transpose().map_err(|wrong| (at, wrong))?,
                sec: table.sec.map(|text| text.parse()).transpose().map_err(|wrong| (at, wrong))?,
            },
        })
    }

    /// Its options of exports(5). `whole` has those of the whole file.
    pub fn access(&self, whole: &ExportOptions) -> ExportOptions {
        let Access { ro, squash: (all, root), anonuid, anongid, secure, clients, xprtsec, sec } =
            self.access.clone();
        let all = all.unwrap_or(whole.squash == Squash::All);
        let root = root.unwrap_or(whole.squash != Squash::None);
        let squash = match (all, root) {
            (true, _) => Squash::All,
            (_, true) => Squash::Root,
            _ => Squash::None,
        };
        ExportOptions {
            read_only: ro.unwrap_or(whole.read_only),
            squash,
            anonuid: anonuid.unwrap_or(whole.anonuid),
            anongid: anongid.unwrap_or(whole.anongid),
            secure: secure.unwrap_or(whole.secure),
            clients: clients.unwrap_or_else(|| whole.clients.clone()),
            xprtsec: xprtsec.unwrap_or(whole.xprtsec),
            sec: sec.unwrap_or_else(|| whole.sec.clone()),
            refer: self.elsewhere.clone().unwrap_or_default(),
            serves_older: self.elsewhere.is_some(),
            ..whole.clone()
        }
    }

    /// Is it at another virtual server?
    pub fn is_of_other(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// The origin as another virtual server has it, at this URL. Clients of version 4 are sent there.
    pub fn of_other(self, url: Url, elsewhere: Locations) -> OriginConfig {
        let offline = Some(OfflineAnswer::Wait);
        OriginConfig { url, offline, elsewhere: Some(elsewhere), ..self }
    }
}

/// The value of a key that has one of a few, which `values` lists.
fn one_of<T: ValueEnum>(
    key: &str,
    values: &str,
    text: Option<Spanned<String>>,
) -> Result<Option<T>, (usize, String)> {
    let Some(text) = text else { return Ok(None) };
    let wrong = || format!("`{key}` is one of {values}, and not `{}`", text.get_ref());
    T::from_str(text.get_ref(), false).map(Some).map_err(|_| (text.span().start, wrong()))
}

/// Reads the origins of the text of a file.
#[cfg(test)]
pub fn read_text(text: &str) -> Result<Vec<OriginConfig>, String> {
    read(&ConfigFile::of("p.toml", text)).map_err(|failure| failure.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_its_keys_and_those_of_the_file() {
        let origins = read_text(
            "ro = true\n[[origin]]\nurl = 'nfs://a/x?vers=3'\n[[origin]]\nurl = 'nfs://b/x'\npath = '/b'\n\
             cache_share = 3\noffline = 'read'\nsync = false\nfsync = 'journal'\nro = false\nroot_squash = false\nclients = ['10.0.0.0/8']\n",
        );
        let origins = origins.unwrap();
        let whole = ExportOptions { read_only: true, anonuid: 7, ..ExportOptions::default() };
        let (a, b) = (&origins[0], &origins[1]);
        assert_eq!((a.path.as_str(), a.cache_share, a.offline), ("/x", 1, None));
        assert!(a.access(&whole).read_only && a.access(&whole).squash == Squash::Root);
        assert_eq!((b.path.as_str(), b.cache_share, b.offline), ("/b", 3, Some(OfflineAnswer::Read)));
        assert_eq!((a.delayed, a.fsync), (None, None));
        assert_eq!((b.delayed, b.fsync), (Some(true), Some(FsyncAnswer::Journal)));
        let of_b = b.access(&whole);
        assert!(!of_b.read_only && of_b.squash == Squash::None && of_b.anonuid == 7);
        assert!(!of_b.clients.admits("11.0.0.1".parse().unwrap()));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let origin = |more: &str| read_text(&format!("[[origin]]\nurl = 'nfs://a/x'\n{more}")).unwrap_err();
        for (more, wanted) in [
            ("rw = true", "p.toml:3:1: unknown field `rw`"),
            ("path = 'x'", "p.toml:1:1: `path` is `x`"),
            ("cache_share = 0", "p.toml:3:15: `cache_share` is 1 to 1000"),
            ("offline = 'maybe'", "p.toml:3:11: `offline` is one of wait, read, and not `maybe`"),
            ("fsync = 'disk'", "p.toml:3:9: `fsync` is one of origin, journal, and not `disk`"),
            ("[[origin]]\nurl = 'nfs://b/x'", "nfs://a/x and nfs://b/x are both at `/x`"),
            ("[[origin]]\nurl = 'nfs://a/x'\npath = '/y'", "nfs://a/x is there twice"),
            ("[[origin]]\nurl = 'http://a/x'", "p.toml:4:7: "),
        ] {
            let told = origin(more);
            assert!(told.contains(wanted), "{more}: {told}");
        }
        let told = read_text("origin = ['nfs://a/x']\n").unwrap_err();
        assert!(told.ends_with("expected a table below [[origin]] with a url"), "{told}");
        assert!(read_text("[[origin]]\npath = '/x'\n").unwrap_err().contains("missing field `url`"));
    }
}
