//! `nfs://HOST[:PORT]/EXPORT[?OPTION&…]`: a server, an export, and options with the names of nfs(5).

mod options;

use std::fmt;
use std::str::FromStr;

pub use options::{CacheOptions, LookupCache, Options, Proto, Version};

/// The location of a remote file system, and how to use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Name or address of the server; IPv6 without brackets.
    pub host: String,
    /// The NFS port, if given.
    pub port: Option<u16>,
    /// Path of the export: any bytes, starting with `/`.
    pub export: Vec<u8>,
    /// The options after `?`.
    pub options: Options,
}

/// Why a URL is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It does not begin with `nfs://`.
    #[error("`{0}` is not an NFS URL: write nfs://HOST[:PORT]/EXPORT")]
    Scheme(String),
    /// No host, or an invalid one.
    #[error("`{0}` is not a host: write a name, an IPv4 address, or an IPv6 address in brackets")]
    Host(String),
    /// An invalid port.
    #[error("`{0}` is not a port: write a number from 1 to 65535, or leave it out")]
    Port(String),
    /// An invalid path: a `%` without two hexadecimal digits, a NUL, or too many bytes.
    #[error(
        "`{0}` is not an export path: at most 1024 bytes, `%` only before two hexadecimal digits, and no NUL"
    )]
    Export(String),
    /// An option that does not exist.
    #[error("unknown option `{word}`: known are {known}", known = options::KNOWN)]
    UnknownOption {
        /// The option as written.
        word: String,
    },
    /// An option with a missing or invalid value.
    #[error("option `{word}`: {wanted}")]
    OptionValue {
        /// The option as written.
        word: String,
        /// The values that are allowed.
        wanted: &'static str,
    },
}

/// `MNTPATHLEN`
const EXPORT_MAX_BYTES: usize = 1024;

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// The error names the wrong word and what is allowed there.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let rest = text.strip_prefix("nfs://").ok_or_else(|| UrlError::Scheme(text.to_owned()))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, "/"),
        };
        let (host, port) = parse_authority(authority)?;
        let mut options = Options::default();
        for word in query.split('&').filter(|word| !word.is_empty()) {
            options.apply(word)?;
        }
        Ok(Url { host, port, export: parse_path(path)?, options })
    }

    /// The export's path as text for users.
    pub fn export_text(&self) -> String {
        String::from_utf8_lossy(&self.export).into_owned()
    }
}

impl FromStr for Url {
    type Err = UrlError;
    fn from_str(text: &str) -> Result<Url, UrlError> {
        Url::parse(text)
    }
}

/// Server and export, without the options.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nfs://")?;
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        for &byte in &self.export {
            match byte {
                b'/' | b'-' | b'_' | b'.' | b'~' | b'+' | b',' | b'=' | b':' | b'@' => {
                    write!(f, "{}", byte as char)?;
                }
                _ if byte.is_ascii_alphanumeric() => write!(f, "{}", byte as char)?,
                _ => write!(f, "%{byte:02x}")?,
            }
        }
        Ok(())
    }
}

fn parse_authority(authority: &str) -> Result<(String, Option<u16>), UrlError> {
    let bad = || UrlError::Host(authority.to_owned());
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, behind) = rest.split_once(']').ok_or_else(bad)?;
        host.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
        match behind {
            "" => (host, None),
            _ => (host, Some(behind.strip_prefix(':').ok_or_else(bad)?)),
        }
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let possible = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if host.is_empty() || host.len() > 255 || !host.bytes().all(possible) {
        return Err(bad());
    }
    let port = match port {
        None => None,
        Some(text) => {
            Some(text.parse().ok().filter(|port| *port != 0).ok_or_else(|| UrlError::Port(text.to_owned()))?)
        }
    };
    Ok((host.to_owned(), port))
}

fn parse_path(text: &str) -> Result<Vec<u8>, UrlError> {
    let bad = || UrlError::Export(text.to_owned());
    let mut path = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            path.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| (byte as char).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(bad()) };
        path.push((high * 16 + low) as u8);
    }
    // Users write `/srv/`, and servers export `/srv`.
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    if path.len() > EXPORT_MAX_BYTES || path.contains(&0) { Err(bad()) } else { Ok(path) }
}

#[cfg(test)]
mod tests;
