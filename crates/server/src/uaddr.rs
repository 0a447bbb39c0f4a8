//! Universal addresses (RFC 5665): `192.0.2.1.8.1` is port 2049 of 192.0.2.1.

use std::net::{IpAddr, SocketAddr};

/// Parses a universal address. `None` if it is none, or if its port is zero.
pub(crate) fn parse(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let (rest, low) = text.rsplit_once('.')?;
    let (address, high) = rest.rsplit_once('.')?;
    let port = u16::from(high.parse::<u8>().ok()?) << 8 | u16::from(low.parse::<u8>().ok()?);
    let address: IpAddr = address.parse().ok()?;
    (port != 0).then_some(SocketAddr::new(address, port))
}

/// Writes a universal address.
pub(crate) fn format(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    format!("{}.{high}.{low}", address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_two_parts() {
        for address in ["192.0.2.7:2049", "[2001:db8::1]:65535", "0.0.0.0:111"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(parse(format(address).as_bytes()), Some(address));
        }
        for bad in [&b""[..], b"1.2", b"192.0.2.7.8.256", b"host.8.1", b"192.0.2.7.0.0", b"\xff"] {
            assert_eq!(parse(bad), None);
        }
    }
}
