//! The sockets of a link, from reserved ports if that is possible.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::net::{TcpSocket, TcpStream, UdpSocket};

use super::{LinkOptions, SourcePort};

/// Connects to the server.
pub(super) async fn dial_from(options: &LinkOptions) -> io::Result<TcpStream> {
    let LinkOptions { server, source, local, .. } = *options;
    let from = local.unwrap_or(unspecified(server));
    if source == SourcePort::Reserved {
        for port in reserved_ports() {
            let socket = new_socket(server)?;
            match socket.bind(SocketAddr::new(from, port)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
                Err(_) => continue,
            }
            match socket.connect(server).await {
                // An earlier connection may linger on the same pair of ports.
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
                other => return other,
            }
        }
    }
    let socket = new_socket(server)?;
    if let Some(local) = local {
        socket.bind(SocketAddr::new(local, 0))?;
    }
    socket.connect(server).await
}

fn new_socket(server: SocketAddr) -> io::Result<TcpSocket> {
    if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

fn unspecified(server: SocketAddr) -> IpAddr {
    match server {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The ports that Linux's RPC client uses, 665 to 1023, from a random start.
fn reserved_ports() -> impl Iterator<Item = u16> {
    const RANGE: std::ops::Range<u16> = 665..1024;
    let mut start = [0; 2];
    let _ = getrandom::fill(&mut start);
    let offset = u16::from_ne_bytes(start) % RANGE.end.abs_diff(RANGE.start);
    RANGE.skip(offset as usize).chain(RANGE.take(offset as usize))
}

/// A socket for datagrams to the server and from it.
pub(super) async fn datagram_socket(options: &LinkOptions) -> Option<UdpSocket> {
    let from = options.local.unwrap_or(unspecified(options.server));
    let ports = match options.source {
        SourcePort::Reserved => reserved_ports().collect(),
        SourcePort::Any => Vec::new(),
    };
    for port in ports.into_iter().chain([0]) {
        if let Ok(socket) = UdpSocket::bind((from, port)).await {
            return socket.connect(options.server).await.ok().map(|()| socket);
        }
    }
    None
}
