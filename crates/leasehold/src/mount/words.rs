//! The options behind `-o`: those of nfs(5), of mount(8) and fstab(5), and a few of our own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cache::{Fsync, WriteBehind};
use client::{Url, UrlError};
use mount::Target;

use crate::Failure;
use crate::cli::cache::{Keeping, OfflineAnswer};
use crate::cli::parse_size;
use crate::proxy::usual_write_behind;

/// The parsed options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// `ro`
    pub read_only: bool,
    /// `nosuid`, unless `suid` is given: a setuid program of the server's root would run as root here.
    pub nosuid: bool,
    /// `nodev`, unless `dev` is given, for the same reason.
    pub nodev: bool,
    /// `noexec`
    pub noexec: bool,
    /// `noatime`
    pub noatime: bool,
    /// `sync`
    pub sync: bool,
    /// `allow_other`: the default for root.
    pub allow_other: bool,
    /// `nolock`, `local_lock=all`
    pub local_locks: bool,
    /// `passthrough`
    pub passthrough: bool,
    /// `journal`
    pub journal: bool,
    /// `fsync=journal`
    pub fsync: Fsync,
    /// `cache=DIR`
    pub cache: Option<PathBuf>,
    /// `cachesize=SIZE`, `minfree=SIZE`, `offline=read`, `nofill`: how much the cache keeps, and whether it
    /// answers without the server.
    pub keeping: Keeping,
    /// `log=FILE`
    pub log: Option<PathBuf>,
    /// Where to answer HTTP.
    pub metrics: Option<SocketAddr>,
    /// `retry=MINUTES`: how long to wait for a server that does not answer.
    pub retry: Duration,
    /// `_netdev`, `x-…`: not used here, but kept for mount(8) and others.
    pub remembered: Vec<String>,
}

/// The options besides those of nfs(5).
const OURS: &str = "ro, rw, remount, suid, nosuid, dev, nodev, exec, noexec, atime, noatime, sync, async, allow_other, \
     noallow_other, lock, local_lock, passthrough, nopassthrough, journal, nojournal, fsync, fill, nofill, offline, cache, cachesize, minfree, prefetch, metrics, log, retry, and those that \
     only fstab uses";

impl Words {
    /// The defaults.
    pub fn new() -> Words {
        Words {
            read_only: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            noatime: false,
            sync: false,
            allow_other: rustix::process::geteuid().is_root(),
            local_locks: false,
            passthrough: true,
            journal: true,
            fsync: Fsync::Origin,
            cache: None,
            keeping: Keeping::default(),
            log: None,
            metrics: None,
            retry: Duration::from_secs(120),
            remembered: Vec::new(),
        }
    }

    /// Parses options that commas separate; those for the server go to the URL. With `sloppy`, unknown
    /// options are ignored.
    ///
    /// # Errors
    /// Names the option that is unknown or wrong.
    pub fn take(&mut self, text: &str, url: &mut Url, sloppy: bool) -> Result<(), Failure> {
        for word in text.split(',').filter(|word| !word.is_empty()) {
            if self.own(word)? {
                continue;
            }
            match url.options.apply(word) {
                Ok(()) => {}
                Err(UrlError::UnknownOption { .. }) if sloppy => {}
                Err(unknown @ UrlError::UnknownOption { .. }) => {
                    return Err(Failure(format!("{unknown}, {OURS}")));
                }
                Err(wrong) => return Err(Failure(wrong.to_string())),
            }
        }
        url.options.nolock = self.local_locks;
        if self.fsync == Fsync::Journal && (!self.journal || self.sync || !url.options.cache.ac) {
            return Err(Failure(
                "option `fsync=journal`: there is no journal with `nojournal`, `sync` or `noac`; leave one out".to_owned(),
            ));
        }
        Ok(())
    }

    /// Parses one of our options; false if it is not ours. Options that have no effect here are accepted.
    fn own(&mut self, word: &str) -> Result<bool, Failure> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let wants = |wanted: &str| Failure(format!("option `{word}`: {wanted}"));
        let text = |wanted: &str| value.filter(|value| !value.is_empty()).ok_or_else(|| wants(wanted));
        match name {
            "cache" => self.cache = Some(text("name a directory, such as cache=/var/cache/x")?.into()),
            "cachesize" => self.keeping.cache_size = parse_size(text("write e.g. 10G")?).map_err(Failure)?,
            "minfree" => self.keeping.min_free = parse_size(text("write e.g. 1G")?).map_err(Failure)?,
            "prefetch" => {
                self.keeping.prefetch = parse_size(text("write e.g. 64M, or 0")?).map_err(Failure)?;
            }
            "memory" => self.keeping.memory = Some(parse_size(text("write e.g. 512M")?).map_err(Failure)?),
            "metrics" => {
                let address = text("write a port, such as 9464")?;
                self.metrics = Some(crate::cli::parse_metrics(address).map_err(Failure)?);
            }
            "offline" => {
                self.keeping.offline = match value {
                    Some("wait") => OfflineAnswer::Wait,
                    Some("read") => OfflineAnswer::Read,
                    _ => return Err(wants("write `wait`, or `read` to read complete files as last known")),
                }
            }
            "fsync" => {
                self.fsync = match value {
                    Some("origin") => Fsync::Origin,
                    Some("journal") => Fsync::Journal,
                    _ => return Err(wants("write `origin`, or `journal` to answer fsync from this disk")),
                }
            }
            "log" => self.log = Some(text("name a file, such as log=/var/log/x")?.into()),
            "retry" => {
                let minutes: u64 = text("write a number of minutes, such as retry=2")?
                    .parse()
                    .map_err(|_| wants("write a number of minutes, such as retry=2"))?;
                self.retry = Duration::from_secs(minutes.min(1_000_000) * 60);
            }
            "local_lock" => {
                self.local_locks = match value {
                    Some("none") => false,
                    Some("all") => true,
                    _ => {
                        return Err(wants(
                            "write `all` or `none`: flock and POSIX locks are the same at the server",
                        ));
                    }
                }
            }
            "comment" => {}
            _ if name.starts_with("x-") || name == "_netdev" => self.remembered.push(word.to_owned()),
            _ if name.starts_with("X-") => {}
            _ if value.is_some() => return Ok(false),
            _ => return Ok(self.flag(name)),
        }
        Ok(true)
    }

    fn flag(&mut self, name: &str) -> bool {
        match name {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "nosuid" => self.nosuid = true,
            "suid" => self.nosuid = false,
            "nodev" => self.nodev = true,
            "dev" => self.nodev = false,
            "noexec" => self.noexec = true,
            "exec" => self.noexec = false,
            "noatime" => self.noatime = true,
            "atime" | "relatime" | "strictatime" => self.noatime = false,
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            "lock" => self.local_locks = false,
            "nolock" => self.local_locks = true,
            "fill" => self.keeping.no_fill = false,
            "nofill" => self.keeping.no_fill = true,
            "passthrough" => self.passthrough = true,
            "nopassthrough" => self.passthrough = false,
            "journal" => self.journal = true,
            "nojournal" => self.journal = false,
            // mount(8) implies these flags for mounts by users.
            "user" | "users" | "owner" | "group" => {
                (self.nosuid, self.nodev, self.noexec) = (true, true, name != "owner" && name != "group");
            }
            // `remount` is handled before this: see that module.
            "remount" | "defaults" | "auto" | "noauto" | "nouser" | "nofail" | "diratime" | "nodiratime"
            | "norelatime" | "lazytime" | "nolazytime" | "silent" | "loud" | "fg" | "intr" | "nointr" => {}
            _ => return false,
        }
        true
    }

    /// How writes are delayed. `None` if every write must reach the server before it returns.
    pub fn write_behind(&self, url: &Url) -> Option<WriteBehind> {
        // nfs(5): with noac, writes are synchronous.
        if self.sync || !url.options.cache.ac {
            return None;
        }
        Some(WriteBehind { journal: self.journal, fsync: self.fsync, ..usual_write_behind(url) })
    }

    /// The source that `findmnt` and `df` show: as it was given, with the port if an option gave the port.
    pub fn shown(given: &str, url: &Url) -> String {
        match url.options.port {
            Some(port) if url.port != Some(port) => Url { port: Some(port), ..url.clone() }.to_string(),
            _ => given.split_once('?').map_or(given, |(before, _)| before).to_owned(),
        }
    }

    /// The mount point, and the flags of mount(8).
    pub fn target(&self, directory: PathBuf, source: String) -> Target {
        let mut target = Target::new(directory, source);
        target.read_only = self.read_only;
        target.nosuid = self.nosuid;
        target.nodev = self.nodev;
        target.noexec = self.noexec;
        target.noatime = self.noatime;
        target.allow_other = self.allow_other;
        target
    }
}

/// Parses `nfs://…`, or `server:/export` as mount(8) writes it.
pub fn source(text: &str) -> Result<Url, Failure> {
    if text.contains("://") {
        return Url::parse(text).map_err(|error| Failure(error.to_string()));
    }
    let bad = || Failure(format!("`{text}` is not a server: write nfs://SERVER/EXPORT or SERVER:/EXPORT"));
    let colon = if text.starts_with('[') { text.find("]:").map(|at| at + 1) } else { text.find(":/") };
    let (host, path) = text.split_at(colon.ok_or_else(bad)?);
    let path = path[1..].replace('%', "%25").replace('?', "%3f");
    Url::parse(&format!("nfs://{host}{path}")).map_err(|error| Failure(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(words: &str) -> Result<(Words, Url), String> {
        let (mut taken, mut url) = (Words::new(), source("host:/export").unwrap());
        taken.take(words, &mut url, false).map_err(|failure| failure.0)?;
        Ok((taken, url))
    }

    #[test]
    fn a_line_of_fstab_is_understood() {
        let line = "rw,_netdev,noauto,nofail,x-systemd.automount,noatime,nodev,vers=4.2,soft,timeo=100,retrans=3,\
                    nconnect=4,acregmin=5,noac,lookupcache=positive,cache=/var/c,cachesize=2G,sec=sys";
        let (words, url) = take(line).unwrap();
        assert!(words.noatime && words.nodev && !words.read_only && words.nosuid);
        assert!(words.write_behind(&url).is_none(), "noac");
        assert_eq!(words.remembered, ["_netdev", "x-systemd.automount"]);
        assert_eq!((words.cache, words.keeping.cache_size), (Some("/var/c".into()), 2 << 30));
        assert!(url.options.soft && !url.options.cache.ac && url.options.nconnect == Some(4));
    }

    #[test]
    fn programs_and_devices_of_the_server_have_no_rights_here_unless_they_are_given() {
        for (line, nosuid, nodev) in [
            ("rw", true, true),
            ("defaults,_netdev", true, true),
            ("suid", false, true),
            ("dev,suid", false, false),
            ("suid,dev,user", true, true),
        ] {
            let (words, _) = take(line).unwrap();
            let target = words.target("/mnt".into(), "host:/export".into());
            assert_eq!((target.nosuid, target.nodev), (nosuid, nodev), "{line}");
        }
    }

    #[test]
    fn a_word_that_nobody_knows_is_named() {
        for (wrong, said) in [
            ("rw,nocache", "`nocache`"),
            ("cache=", "`cache=`"),
            ("vers=5", "`vers=5`"),
            ("local_lock=flock", "`local_lock=flock`"),
            ("ro=1", "`ro=1`"),
            ("minfree=lots", "lots"),
            ("prefetch=", "64M"),
            ("memory=much", "much"),
            ("metrics=x", "9464"),
        ] {
            let failure = take(wrong).unwrap_err();
            assert!(failure.contains(said), "{wrong}: {failure}");
        }
        let mut url = source("host:/export").unwrap();
        Words::new().take("nocache,ro", &mut url, true).unwrap();
    }

    #[test]
    fn the_source_is_shown_as_it_was_given_and_the_port_with_it() {
        for (given, options, shown) in [
            ("filer:/export", "ro", "filer:/export"),
            ("nfs://filer:2050/export?vers=3", "ro", "nfs://filer:2050/export"),
            ("filer:/export", "port=2050", "nfs://filer:2050/export"),
            ("nfs://filer/export", "port=2050", "nfs://filer:2050/export"),
            ("nfs://filer:2050/export", "port=2050", "nfs://filer:2050/export"),
        ] {
            let (mut words, mut url) = (Words::new(), source(given).unwrap());
            words.take(options, &mut url, false).unwrap();
            assert_eq!(Words::shown(given, &url), shown, "{given} with {options}");
        }
    }

    #[test]
    fn servers_are_written_both_ways() {
        for text in ["nfs://host/srv/a", "host:/srv/a"] {
            assert_eq!(source(text).unwrap().to_string(), "nfs://host/srv/a");
        }
        assert_eq!(source("[::1]:/srv").unwrap().host, "::1");
        assert_eq!(source("host:/50%?").unwrap().export, b"/50%?");
        assert!(["host", "/dir", "host/dir", ""].iter().all(|text| source(text).is_err()));
    }
}
