//! The configuration file of `serve`: exports(5) in TOML.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use server::{ClientList, ExportOptions, Locations, Squash};

use crate::Failure;

/// A configuration file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The exports.
    #[serde(default, rename = "export")]
    pub exports: Vec<ExportConfig>,
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
    /// Client addresses and networks; all clients, if empty.
    #[serde(default)]
    pub clients: Vec<String>,
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

impl Config {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Config, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure(format!("cannot read {}: {error}; name a file that this user may read", path.display()))
        })?;
        Config::parse(&text).map_err(|error| Failure(format!("{}: {error}", path.display())))
    }

    fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            format!("line {line}: {}", error.message().replace('\n', " "))
        })?;
        if config.exports.is_empty() {
            return Err("it exports nothing: add an [[export]] with a directory".to_owned());
        }
        Ok(config)
    }
}

impl ExportConfig {
    /// The options in the form that the server takes.
    pub fn options(&self) -> Result<ExportOptions, Failure> {
        let clients = match &self.clients[..] {
            [] => ClientList::default(),
            list => list.join(",").parse().map_err(Failure)?,
        };
        let places = |places: &Option<String>| match places {
            None => Ok(Locations::default()),
            Some(places) => places.parse().map_err(Failure),
        };
        if self.refer.is_some() && self.replicas.is_some() {
            let directory = self.directory.display();
            return Err(Failure(format!(
                "{directory} has both refer and replicas: leave refer out if this server has the files, and replicas if it has not"
            )));
        }
        Ok(ExportOptions {
            refer: places(&self.refer)?,
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
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_exports5_in_toml() {
        let text = "[[export]]\ndirectory = '/srv'\nro = true\nroot_squash = false\nclients = ['10.0.0.0/8', '::1']\n";
        let config = Config::parse(text).unwrap();
        let options = config.exports[0].options().unwrap();
        assert!(options.read_only && options.secure && options.squash == Squash::None);
        assert!(options.clients.admits("10.9.9.9".parse().unwrap()));
        assert!(!options.clients.admits("11.9.9.9".parse().unwrap()));
    }

    #[test]
    fn a_list_of_nothing_admits_nobody_by_mistake() {
        for clients in ["['']", "[' ']", "['', '']", "['10.0.0.1', '']", "['::ffff:10.0.0.0/104']"] {
            let text = format!("[[export]]\ndirectory = '/srv'\nclients = {clients}\n");
            let refused = Config::parse(&text).unwrap().exports[0].options().unwrap_err();
            assert!(refused.0.contains("client address"), "{clients}: {}", refused.0);
        }
        let everybody = Config::parse("[[export]]\ndirectory = '/srv'\nclients = ['*']\n").unwrap();
        assert!(everybody.exports[0].options().unwrap().clients.admits("10.9.9.9".parse().unwrap()));
    }

    #[test]
    fn an_export_is_elsewhere_or_there_too() {
        let options = |more: &str| {
            let text = format!("[[export]]\ndirectory = '/srv'\n{more}");
            Config::parse(&text).unwrap().exports[0].options()
        };
        assert_eq!(options("refer = '/a@b+c'").unwrap().refer.to_string(), "/a@b+c");
        assert_eq!(options("replicas = '/a@b'").unwrap().replicas.to_string(), "/a@b");
        let error = options("refer = '/a@b'\nreplicas = '/a@b'").unwrap_err();
        assert!(error.0.contains("/srv") && error.0.contains("leave refer out"), "{}", error.0);
        assert!(options("refer = 'elsewhere'").unwrap_err().0.contains("PATH@HOST"));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let error = Config::parse("[[export]]\ndirectory = '/srv'\nrw = true\n").unwrap_err();
        assert!(error.starts_with("line 3: unknown field `rw`"), "{error}");
        assert!(Config::parse("").unwrap_err().contains("[[export]]"));
    }
}
