//! The options of nfs(5) that have a meaning for this client.

use std::path::PathBuf;
use std::time::Duration;

use rpc::TransportSecurity;
use rpc::rpcsec_gss::Protection;
use rpc::tls::{ClientFiles, Identity};

use super::UrlError;
use crate::kerberos::Tickets;

/// The options that [`UrlError::UnknownOption`] lists.
pub(super) const KNOWN: &str = "port, mountport, mountproto, mountvers, proto, tcp, udp, vers, nfsvers, nconnect, rsize, \
     wsize, hard, soft, timeo, retrans, resvport, noresvport, sec, keytab, ccachedir, lock, nolock, acregmin, acregmax, acdirmin, acdirmax, \
     actimeo, ac, noac, cto, nocto, lookupcache, xprtsec, tlsca, tlscert, tlskey";

/// The way out if no certificate is named.
const PEM: &str = "name a PEM file";

/// TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proto {
    /// `tcp`
    Tcp,
    /// `udp`
    Udp,
}

/// `vers`: the version of NFS to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `3`
    V3,
    /// `4`: the highest minor version of 4 that the origin supports.
    V4,
    /// `4.1`
    V41,
    /// `4.2`
    V42,
    /// `nqnfs`: Macklem's protocol with leases.
    Nqnfs,
    /// `auto`: the highest of 4.2, 4.1 and 3 that the origin supports. Over UDP that is 3.
    Auto,
}

impl Version {
    /// The version if none is given.
    pub const DEFAULT: Version = Version::Auto;

    /// The minor versions of 4 to try, in order.
    pub fn minors(self) -> &'static [u32] {
        match self {
            Version::V3 | Version::Nqnfs => &[],
            Version::V41 => &[1],
            Version::V42 => &[2],
            Version::V4 | Version::Auto => &[2, 1],
        }
    }

    /// Is version 3 acceptable?
    pub fn takes_v3(self) -> bool {
        matches!(self, Version::V3 | Version::Auto)
    }
}

/// Options, with nfs(5)'s defaults where it has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `port`: overrides the port after the host.
    pub port: Option<u16>,
    /// `mountport`: the port of MOUNT. If not given, the client looks for it.
    pub mountport: Option<u16>,
    /// `mountproto`: the same as `proto` if not given.
    pub mountproto: Option<Proto>,
    /// `vers`
    pub vers: Version,
    /// `proto`
    pub proto: Proto,
    /// `nconnect`: connections to the server, 1 to 16. If not given, as many as the bytes in flight need.
    pub nconnect: Option<u8>,
    /// `rsize`: most bytes in a READ. If not given, the most that both sides support.
    pub rsize: Option<u32>,
    /// `wsize`: most bytes in a WRITE. If not given, the most that both sides support.
    pub wsize: Option<u32>,
    /// `soft`: give up after `timeo` × `retrans`. Otherwise (`hard`) retry without limit.
    pub soft: bool,
    /// `timeo`, as a duration (nfs(5) counts tenths of a second).
    pub timeo: Option<Duration>,
    /// `retrans`
    pub retrans: Option<u32>,
    /// `resvport`: call from a port below 1024 if this process may.
    pub resvport: bool,
    /// `xprtsec`: TLS on all connections to the server, and whether we prove with a certificate who we are.
    pub xprtsec: TransportSecurity,
    /// `tlsca`: the CAs of the server. Without it, those that this machine trusts.
    pub tlsca: Option<PathBuf>,
    /// `tlscert`: our certificate.
    pub tlscert: Option<PathBuf>,
    /// `tlskey`: its key. Without it, the key is in the same file.
    pub tlskey: Option<PathBuf>,
    /// `sec`: AUTH_SYS, or Kerberos with this protection.
    pub sec: Option<Protection>,
    /// `keytab` and `ccachedir`: where the tickets are.
    pub tickets: Tickets,
    /// `nolock`: over version 3, locks are not the server's.
    pub nolock: bool,
    /// The options for a cache above this layer.
    pub cache: CacheOptions,
}

/// How long a cache above may use what it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// `acregmin`: shortest timeout for attributes of a file.
    pub acregmin: Duration,
    /// `acregmax`: longest timeout for attributes of a file.
    pub acregmax: Duration,
    /// `acdirmin`: shortest timeout for attributes of a directory.
    pub acdirmin: Duration,
    /// `acdirmax`: longest timeout for attributes of a directory.
    pub acdirmax: Duration,
    /// `ac`. With `noac`, no attributes are cached, and writes are synchronous.
    pub ac: bool,
    /// `cto`: close-to-open consistency.
    pub cto: bool,
    /// `lookupcache`
    pub lookupcache: LookupCache,
}

/// The names that a cache may remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupCache {
    /// `all`: existing names, and negative entries.
    All,
    /// `positive`: existing names only.
    Positive,
    /// `none`
    None,
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions {
            acregmin: Duration::from_secs(3),
            acregmax: Duration::from_secs(60),
            acdirmin: Duration::from_secs(30),
            acdirmax: Duration::from_secs(60),
            ac: true,
            cto: true,
            lookupcache: LookupCache::All,
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            port: None,
            mountport: None,
            mountproto: None,
            vers: Version::DEFAULT,
            proto: Proto::Tcp,
            nconnect: None,
            rsize: None,
            wsize: None,
            soft: false,
            timeo: None,
            retrans: None,
            resvport: true,
            xprtsec: TransportSecurity::None,
            tlsca: None,
            tlscert: None,
            tlskey: None,
            sec: None,
            tickets: Tickets::default(),
            nolock: false,
            cache: CacheOptions::default(),
        }
    }
}

impl Options {
    /// `timeo`, or the default of nfs(5): 60 s over TCP. The default over UDP is 1.1 s, from which the timer
    /// adapts.
    pub fn timeo(&self) -> Duration {
        self.timeo.unwrap_or(match self.proto {
            Proto::Tcp => Duration::from_secs(60),
            Proto::Udp => Duration::from_millis(1100),
        })
    }

    /// The time after which a `soft` call fails; `None` means never.
    pub fn patience(&self) -> Option<Duration> {
        let retrans = self.retrans.unwrap_or(match self.proto {
            Proto::Tcp => 2,
            Proto::Udp => 3,
        });
        self.soft.then(|| self.timeo() * retrans.max(1))
    }

    /// The files for TLS; `None` without TLS.
    ///
    /// # Errors
    /// If options contradict each other. A single option cannot tell.
    pub fn tls_files(&self) -> Result<Option<ClientFiles>, UrlError> {
        let wrong = |word: String, wanted| Err(UrlError::OptionValue { word, wanted });
        let xprtsec = format!("xprtsec={}", self.xprtsec.word());
        let own = self.tlscert.as_ref().or(self.tlskey.as_ref());
        let is_tcp = [Some(self.proto), self.mountproto].into_iter().flatten().all(|it| it == Proto::Tcp);
        match (self.xprtsec, &self.tlscert) {
            (TransportSecurity::None, _) if own.or(self.tlsca.as_ref()).is_some() => wrong(
                xprtsec,
                "uses no certificates: write xprtsec=tls or mtls, or leave out tlsca, tlscert and tlskey",
            ),
            (TransportSecurity::None, _) => Ok(None),
            _ if !is_tcp => wrong(xprtsec, "TLS needs TCP: leave out udp"),
            (TransportSecurity::Tls, _) if own.is_some() => wrong(
                xprtsec,
                "shows the server no certificate: write xprtsec=mtls, or leave out tlscert and tlskey",
            ),
            (TransportSecurity::Tls, _) => Ok(Some(ClientFiles { ca: self.tlsca.clone(), identity: None })),
            (TransportSecurity::Mtls, None) => {
                wrong(xprtsec, "needs our certificate and its key: tlscert=FILE, tlskey=FILE")
            }
            (TransportSecurity::Mtls, Some(certificate)) => {
                let key = self.tlskey.as_ref().unwrap_or(certificate).clone();
                let identity = Some(Identity { certificate: certificate.clone(), key });
                Ok(Some(ClientFiles { ca: self.tlsca.clone(), identity }))
            }
        }
    }

    /// The protection of calls and the places of tickets; `None` without Kerberos.
    ///
    /// # Errors
    /// If options contradict each other. A single option cannot tell.
    pub fn kerberos(&self) -> Result<Option<(Protection, &Tickets)>, UrlError> {
        let wrong = |word: String, wanted| Err(UrlError::OptionValue { word, wanted });
        match self.sec {
            None if self.tickets != Tickets::default() => wrong(
                "sec=sys".to_owned(),
                "uses no tickets: write sec=krb5, or leave out keytab and ccachedir",
            ),
            Some(protection) if self.vers == Version::Nqnfs => {
                wrong(format!("sec={protection}"), "NQNFS has no Kerberos: write another vers, or sec=sys")
            }
            sec => Ok(sec.map(|protection| (protection, &self.tickets))),
        }
    }

    /// Applies one option: a word of nfs(5), `name` or `name=value`.
    ///
    /// # Errors
    /// The error names the word.
    pub fn apply(&mut self, word: &str) -> Result<(), UrlError> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let option = Word { word, value };
        match name {
            "port" => self.port = Some(option.port()?),
            "mountport" => self.mountport = Some(option.port()?),
            "mountproto" => self.mountproto = Some(option.proto()?),
            "proto" => self.proto = option.proto()?,
            "tcp" => self.proto = option.flag(Proto::Tcp)?,
            "udp" => self.proto = option.flag(Proto::Udp)?,
            "vers" | "nfsvers" => self.vers = option.version()?,
            "mountvers" => option.one_of(&["3"], "only version 3 is spoken: write `3`")?,
            "sec" => {
                let kerberos = || Protection::ALL.into_iter().find(|known| value == Some(&known.to_string()));
                self.sec = if value == Some("sys") { None } else { kerberos() };
                if self.sec.is_none() && value != Some("sys") {
                    return Err(option.wants("`sys`, `krb5`, `krb5i` or `krb5p`"));
                }
            }
            "keytab" => self.tickets.keytab = Some(option.file("name a keytab")?),
            "ccachedir" => self.tickets.directory = Some(option.file("name a directory with ticket caches")?),
            "lock" => self.nolock = option.flag(false)?,
            "nolock" => self.nolock = option.flag(true)?,
            "nconnect" => {
                let number = option.number(1..=16, "a number of connections from 1 to 16")?;
                self.nconnect = Some(number as u8);
            }
            "rsize" => self.rsize = Some(option.transfer()?),
            "wsize" => self.wsize = Some(option.transfer()?),
            "hard" => self.soft = option.flag(false)?,
            "soft" => self.soft = option.flag(true)?,
            "timeo" => {
                let deciseconds = option.number(1..=6000, "tenths of a second from 1 to 6000")?;
                self.timeo = Some(Duration::from_millis(deciseconds * 100));
            }
            "retrans" => self.retrans = Some(option.number(0..=1000, "a number from 0 to 1000")? as u32),
            "resvport" => self.resvport = option.flag(true)?,
            "noresvport" => self.resvport = option.flag(false)?,
            "xprtsec" => {
                let known = TransportSecurity::ALL.into_iter().find(|known| value == Some(known.word()));
                self.xprtsec = known.ok_or_else(|| option.wants("`none`, `tls` or `mtls`"))?;
            }
            "tlsca" => self.tlsca = Some(option.file(PEM)?),
            "tlscert" => self.tlscert = Some(option.file(PEM)?),
            "tlskey" => self.tlskey = Some(option.file(PEM)?),
            _ => return self.cache.apply(name, option),
        }
        Ok(())
    }
}

impl CacheOptions {
    fn apply(&mut self, name: &str, option: Word<'_>) -> Result<(), UrlError> {
        match name {
            "acregmin" => self.acregmin = option.seconds()?,
            "acregmax" => self.acregmax = option.seconds()?,
            "acdirmin" => self.acdirmin = option.seconds()?,
            "acdirmax" => self.acdirmax = option.seconds()?,
            "actimeo" => {
                let all = option.seconds()?;
                (self.acregmin, self.acregmax, self.acdirmin, self.acdirmax) = (all, all, all, all);
            }
            "ac" => self.ac = option.flag(true)?,
            "noac" => self.ac = option.flag(false)?,
            "cto" => self.cto = option.flag(true)?,
            "nocto" => self.cto = option.flag(false)?,
            "lookupcache" => {
                self.lookupcache = match option.value {
                    Some("all") => LookupCache::All,
                    Some("pos" | "positive") => LookupCache::Positive,
                    Some("none") => LookupCache::None,
                    _ => return Err(option.wants("`all`, `positive` or `none`")),
                }
            }
            _ => return Err(UrlError::UnknownOption { word: option.word.to_owned() }),
        }
        Ok(())
    }
}

/// An option as written, and its value.
#[derive(Clone, Copy)]
struct Word<'a> {
    word: &'a str,
    value: Option<&'a str>,
}

impl Word<'_> {
    fn wants(self, wanted: &'static str) -> UrlError {
        UrlError::OptionValue { word: self.word.to_owned(), wanted }
    }

    fn number(self, range: std::ops::RangeInclusive<u64>, wanted: &'static str) -> Result<u64, UrlError> {
        let number = self.value.and_then(|value| value.parse().ok());
        number.filter(|number| range.contains(number)).ok_or_else(|| self.wants(wanted))
    }

    /// A mount leaves the working directory later, so the path becomes absolute.
    fn file(self, wanted: &'static str) -> Result<PathBuf, UrlError> {
        let named = self.value.filter(|value| !value.is_empty());
        named.and_then(|value| std::path::absolute(value).ok()).ok_or_else(|| self.wants(wanted))
    }

    fn port(self) -> Result<u16, UrlError> {
        Ok(self.number(1..=65535, "a port from 1 to 65535")? as u16)
    }

    fn seconds(self) -> Result<Duration, UrlError> {
        Ok(Duration::from_secs(self.number(0..=31_536_000, "a number of seconds, at most a year")?))
    }

    /// A transfer size as in nfs(5): rounded down to a multiple of 1024, at most 1 MiB. A value below 1024
    /// becomes 4096.
    fn transfer(self) -> Result<u32, UrlError> {
        let bytes = self
            .number(1..=u64::from(u32::MAX), "a number of bytes, a multiple of 1024 up to 1048576")?
            as u32;
        Ok(if bytes < 1024 { 4096 } else { (bytes - bytes % 1024).min(1 << 20) })
    }

    /// The host decides between IPv4 and IPv6.
    fn proto(self) -> Result<Proto, UrlError> {
        match self.value {
            Some("tcp" | "tcp6") => Ok(Proto::Tcp),
            Some("udp" | "udp6") => Ok(Proto::Udp),
            _ => Err(self.wants("`tcp` or `udp`")),
        }
    }

    fn version(self) -> Result<Version, UrlError> {
        match self.value {
            Some("3") => Ok(Version::V3),
            Some("4") => Ok(Version::V4),
            Some("4.1") => Ok(Version::V41),
            Some("4.2") => Ok(Version::V42),
            Some("nqnfs") => Ok(Version::Nqnfs),
            Some("auto") => Ok(Version::Auto),
            _ => Err(self
                .wants("`3`, `4`, `4.1`, `4.2`, `nqnfs`, or `auto` for the highest that the server speaks")),
        }
    }

    fn flag<T>(self, value: T) -> Result<T, UrlError> {
        if self.value.is_some() { Err(self.wants("takes no value")) } else { Ok(value) }
    }

    fn one_of(self, values: &[&str], wanted: &'static str) -> Result<(), UrlError> {
        if self.value.is_some_and(|value| values.contains(&value)) { Ok(()) } else { Err(self.wants(wanted)) }
    }
}
