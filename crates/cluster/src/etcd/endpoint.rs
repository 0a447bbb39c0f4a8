//! The address of an etcd member.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The port of etcd's clients, registered at IANA.
const DEFAULT_PORT: u16 = 2379;

/// The address of an etcd member: `http://HOST:PORT`, or `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// A name or an address; of IPv6 without brackets.
    host: String,
    port: u16,
    secure: bool,
}

/// A text is not an [`Endpoint`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum EndpointError {
    /// The scheme is missing, or is another one.
    #[error("etcd endpoint {0:?} does not begin with http:// or https://; write https://HOST:PORT")]
    Scheme(String),
    /// The host is empty, or has characters that no name has.
    #[error(
        "etcd endpoint {0:?} has no valid host; write https://HOST:PORT, and an IPv6 address in brackets"
    )]
    Host(String),
    /// The port is not a number from 1 to 65535.
    #[error("etcd endpoint {0:?} has no valid port; write https://HOST:PORT with a port from 1 to 65535")]
    Port(String),
    /// A path, a query or a user follows or precedes the host.
    #[error("etcd endpoint {0:?} has more than a host and a port; write https://HOST:PORT")]
    Excess(String),
}

impl Endpoint {
    /// Is it reached over TLS?
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// The name or address that the certificate must have.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The host and the port, for a resolver.
    pub(super) fn address(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// The host and the port, for the header `Host`.
    pub(super) fn authority(&self) -> String {
        let Endpoint { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Endpoint, EndpointError> {
        let owned = || text.to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(|| EndpointError::Scheme(owned()))?;
        let secure = scheme.eq_ignore_ascii_case("https");
        if !secure && !scheme.eq_ignore_ascii_case("http") {
            return Err(EndpointError::Scheme(owned()));
        }
        // etcdctl and the members themselves print URLs with a slash at the end.
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains(['/', '?', '#', '@']) {
            return Err(EndpointError::Excess(owned()));
        }
        let (host, port) = if let Some(bracketed) = authority.strip_prefix('[') {
            let (host, rest) = bracketed.split_once(']').ok_or_else(|| EndpointError::Host(owned()))?;
            let address: Ipv6Addr = host.parse().map_err(|_| EndpointError::Host(owned()))?;
            let port = rest.strip_prefix(':');
            if port.is_none() && !rest.is_empty() {
                return Err(EndpointError::Port(owned()));
            }
            (address.to_string(), port)
        } else {
            let (host, port) = match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            };
            let belongs = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            // A second colon means an IPv6 address without brackets.
            let is_bare_ipv6 = port.is_some_and(|port| port.contains(':'));
            if host.is_empty() || is_bare_ipv6 || !host.bytes().all(belongs) {
                return Err(EndpointError::Host(owned()));
            }
            (host.to_owned(), port)
        };
        let port = match port {
            None => DEFAULT_PORT,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => match digits.parse() {
                Ok(port) if port != 0 => port,
                _ => return Err(EndpointError::Port(owned())),
            },
            Some(_) => return Err(EndpointError::Port(owned())),
        };
        Ok(Endpoint { host, port, secure })
    }
}
