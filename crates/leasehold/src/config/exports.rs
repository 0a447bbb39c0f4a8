//! The exports in the configuration file of `serve`: exports(5) in TOML.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use server::{ClientList, ExportOptions, Locations, Sec, Squash, XprtSec};
use toml::Spanned;
use toml::de::DeValue;

use super::file::ConfigFile;
use super::{Place, Setting};
use crate::Failure;

/// The keys of an export, with their defaults.
pub const KEYS: [(&str, &str); 16] = [
    ("directory", ""),
    ("path", ""),
    ("ro", "false"),
    ("root_squash", "true"),
    ("all_squash", "false"),
    ("anonuid", "65534"),
    ("anongid", "65534"),
    ("secure", "true"),
    ("sync", "true"),
    ("crossmnt", "true"),
    ("exclusive", "false"),
    ("clients", "*"),
    ("xprtsec", "none:tls:mtls"),
    ("sec", "sys:none"),
    ("refer", ""),
    ("replicas", ""),
];

/// The part of a file that lists exports.
#[derive(Debug, Deserialize)]
struct Exports {
    #[serde(default, rename = "export")]
    exports: Vec<Spanned<ExportConfig>>,
}

/// One export.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportConfig {
    /// The directory to serve.
    pub directory: PathBuf,
    /// The path that clients mount; the directory, if absent.
    pub path: Option<String>,
    /// Allow no changes.
    #[serde(default)]
    pub ro: bool,
    /// Map root to the anonymous user.
    #[serde(default = "yes")]
    pub root_squash: bool,
    /// Map every user to the anonymous user.
    #[serde(default)]
    pub all_squash: bool,
    /// User id of the anonymous user.
    #[serde(default = "nobody")]
    pub anonuid: u32,
    /// Group id of the anonymous user.
    #[serde(default = "nobody")]
    pub anongid: u32,
    /// Admit only clients that call from a port below 1024.
    #[serde(default = "yes")]
    pub secure: bool,
    /// Reply only after metadata is on disk.
    #[serde(default = "yes")]
    pub sync: bool,
    /// Serve file systems mounted below the directory.
    #[serde(default = "yes")]
    pub crossmnt: bool,
    /// No process of this machine uses the directory except this server.
    #[serde(default)]
    pub exclusive: bool,
    /// Addresses, networks, names of hosts and netgroups of clients; all clients, if empty.
    #[serde(default)]
    pub clients: Vec<String>,
    /// The kinds of connections over which clients may use it, joined by colons.
    pub xprtsec: Option<String>,
    /// The flavors of authentication that it accepts, joined by colons.
    pub sec: Option<String>,
    /// The servers that have the export instead of this one.
    pub refer: Option<String>,
    /// Further servers that have the export.
    pub replicas: Option<String>,
}

fn yes() -> bool {
    true
}

fn nobody() -> u32 {
    65534
}

/// Reads the exports of the file at `path`, with their options.
///
/// # Errors
/// As [`read`], and if the file cannot be read.
pub fn load(path: &Path) -> Result<Vec<(ExportConfig, ExportOptions)>, Failure> {
    read(&ConfigFile::load(path)?)
}

/// Reads the exports of a file, with their options.
///
/// # Errors
/// The first mistake, or that there is none.
pub fn read(file: &ConfigFile) -> Result<Vec<(ExportConfig, ExportOptions)>, Failure> {
    let found: Exports = toml::from_str(file.text()).map_err(|error| file.not_toml(&error))?;
    if found.exports.is_empty() {
        return Err(file.lacks("it exports nothing: add an [[export]] with a directory"));
    }
    let of = |export: Spanned<ExportConfig>| {
        let at = export.span().start;
        let export = export.into_inner();
        let options = export.options().map_err(|wrong| file.wrong(at, wrong))?;
        Ok((export, options))
    };
    found.exports.into_iter().map(of).collect()
}

/// The value of each key of each export.
///
/// # Errors
/// As [`read`].
pub fn settings(file: &ConfigFile) -> Result<Vec<Setting>, Failure> {
    let exports = read(file)?;
    let table = file.table()?;
    let tables = table.get("export").and_then(|tables| tables.get_ref().as_array());
    let mut settings = Vec::new();
    for (table, (export, _)) in tables.into_iter().flatten().zip(exports) {
        let name = export.path.clone().unwrap_or_else(|| export.directory.display().to_string());
        let Some(table) = table.get_ref().as_table() else { continue };
        for (key, default) in KEYS {
            let given = table.get_key_value(key);
            let value = given.map(|(_, value)| shown(value.get_ref()));
            let from = given.map_or(Place::Default, |(key, _)| Place::Line(file.line(key.span().start)));
            let value = value.or_else(|| (!default.is_empty()).then(|| default.to_owned()));
            settings.push(Setting { key: format!("export {name} {key}"), value, from });
        }
    }
    Ok(settings)
}

/// A value as a command line would have it.
pub fn shown(value: &DeValue) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Array(values) => {
            values.iter().map(|value| shown(value.get_ref())).collect::<Vec<_>>().join(",")
        }
        DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Table(_) => String::new(),
    }
}

impl ExportConfig {
    /// The options in the form that the server takes.
    fn options(&self) -> Result<ExportOptions, String> {
        let clients = match &self.clients[..] {
            [] => ClientList::default(),
            list => list.join(",").parse()?,
        };
        let places = |places: &Option<String>| match places {
            None => Ok(Locations::default()),
            Some(places) => places.parse(),
        };
        if self.refer.is_some() && self.replicas.is_some() {
            let directory = self.directory.display();
            return Err(format!(
                "{directory} has both refer and replicas: leave refer out if this server has the files, and replicas if it has not"
            ));
        }
        Ok(ExportOptions {
            refer: places(&self.refer)?,
            serves_older: false,
            replicas: places(&self.replicas)?,
            read_only: self.ro,
            squash: match (self.all_squash, self.root_squash) {
                (true, _) => Squash::All,
                (_, true) => Squash::Root,
                _ => Squash::None,
            },
            anonuid: self.anonuid,
            anongid: self.anongid,
            secure: self.secure,
            clients,
            xprtsec: self.xprtsec.as_deref().map_or(Ok(XprtSec::default()), str::parse)?,
            sec: self.sec.as_deref().map_or(Ok(Sec::default()), str::parse)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_one(text: &str) -> Result<ExportOptions, String> {
        let file = ConfigFile::of("e.toml", text);
        read(&file).map(|mut exports| exports.remove(0).1).map_err(|failure| failure.0)
    }

    #[test]
    fn a_file_is_exports5_in_toml() {
        let options = read_one(
            "[[export]]\ndirectory = '/srv'\nro = true\nroot_squash = false\nclients = ['10.0.0.0/8', '::1']\n",
        )
        .unwrap();
        assert!(options.read_only && options.secure && options.squash == Squash::None);
        assert!(options.clients.admits("10.9.9.9".parse().unwrap()));
        assert!(!options.clients.admits("11.9.9.9".parse().unwrap()));
    }

    #[test]
    fn a_list_of_nothing_admits_nobody_by_mistake() {
        for clients in ["['']", "[' ']", "['', '']", "['10.0.0.1', '']", "['::ffff:10.0.0.0/104']"] {
            let refused = read_one(&format!("[[export]]\ndirectory = '/srv'\nclients = {clients}\n"));
            let refused = refused.unwrap_err();
            assert!(refused.contains("client address"), "{clients}: {refused}");
        }
        let everybody = read_one("[[export]]\ndirectory = '/srv'\nclients = ['*']\n").unwrap();
        assert!(everybody.clients.admits("10.9.9.9".parse().unwrap()));
    }

    #[test]
    fn an_export_is_elsewhere_or_there_too() {
        let options = |more: &str| read_one(&format!("[[export]]\ndirectory = '/srv'\n{more}"));
        assert_eq!(options("refer = '/a@b+c'").unwrap().refer.to_string(), "/a@b+c");
        assert_eq!(options("replicas = '/a@b'").unwrap().replicas.to_string(), "/a@b");
        let error = options("refer = '/a@b'\nreplicas = '/a@b'").unwrap_err();
        assert!(error.contains("/srv") && error.contains("leave refer out"), "{error}");
        assert!(options("refer = 'elsewhere'").unwrap_err().contains("PATH@HOST"));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        let error = read_one("[[export]]\ndirectory = '/srv'\nrw = true\n").unwrap_err();
        assert!(error.starts_with("e.toml:3:1: unknown field `rw`"), "{error}");
        assert!(read_one("").unwrap_err().contains("[[export]]"));
    }

    #[test]
    fn the_keys_are_those_that_are_read() {
        let all = KEYS.map(|(key, default)| match (key, default) {
            ("replicas", _) => String::new(),
            ("clients", _) => "clients = ['*']".to_owned(),
            ("xprtsec" | "sec", _) => format!("{key} = '{default}'"),
            (_, "") => format!("{key} = '/srv@host'"),
            _ => format!("{key} = {default}"),
        });
        let options = read_one(&format!("[[export]]\n{}\n", all.join("\n"))).unwrap();
        let defaults = ExportOptions::default();
        assert_eq!(
            (options.squash, options.anonuid, options.secure),
            (defaults.squash, defaults.anonuid, defaults.secure)
        );
        assert_eq!((options.xprtsec, options.sec), (defaults.xprtsec, defaults.sec));
        let unknown = read_one("[[export]]\nno = 1\n").unwrap_err();
        assert!(KEYS.iter().all(|(key, _)| unknown.contains(&format!("`{key}`"))), "{unknown}");
    }
}
