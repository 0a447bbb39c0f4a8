//! Where a server listens, and what its clients may take.

use std::net::{Ipv4Addr, SocketAddr};

use clap::Args;

use super::parse_size;

/// The network options.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct Network {
    /// Address and port for NFS and MOUNT, over TCP and UDP
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address,
          default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 2049)))]
    pub listen: SocketAddr,
    /// Do not serve over UDP
    #[arg(long)]
    pub no_udp: bool,
    /// Do not register with rpcbind, and do not answer at port 111 if none runs. Clients of versions 2 and 3
    /// then need `port=`, `mountport=` and `nolock`
    #[arg(long)]
    pub no_rpcbind: bool,
    /// Memory for requests and replies of all clients. The server stops reading from a client that holds its
    /// share [default: a sixteenth of the memory, up to 2G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory_in_flight: Option<u64>,
    /// Most calls of one client (an address) in a second. Further ones wait; none gets an error [default: no
    /// limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub client_ops_max: Option<u64>,
    /// Most bytes of requests and replies of one client in a second. Further calls wait [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = parse_rate)]
    pub client_bytes_max: Option<u64>,
    /// Answer HTTP here: /metrics for Prometheus, /healthz, /readyz and /status. Without an address, only to
    /// this machine
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = parse_metrics)]
    pub metrics: Option<SocketAddr>,
}

/// Parses an address with a port.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an address and a port, such as 0.0.0.0:2049 or [::]:2049".to_owned())
}

/// Parses where metrics are served: a port of this machine, or an address and a port.
pub fn parse_metrics(text: &str) -> Result<SocketAddr, String> {
    let port = text.parse().ok().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let bad = || {
        format!(
            "`{text}` is not a port: write a port such as 9464, or an address and a port such as 10.0.0.1:9464"
        )
    };
    port.or_else(|| text.parse().ok()).ok_or_else(bad)
}

/// Parses a number of bytes in a second.
fn parse_rate(text: &str) -> Result<u64, String> {
    match parse_size(text)? {
        0 => Err("0 would let nothing through: leave the option out for no limit".to_owned()),
        bytes => Ok(bytes),
    }
}
