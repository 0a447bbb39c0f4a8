//! Hands in a separate process on the host. If that process dies, for instance because a mapped file was
//! truncated, the test continues. Also, programs that the test starts do not inherit the files that these
//! hands have open.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::Hand;
use crate::session::free_port;

/// A process that serves hands.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    address: SocketAddr,
}

impl Agent {
    /// Starts the process, and waits until it accepts connections.
    pub fn start() -> Agent {
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let address = SocketAddr::new(host, free_port(host));
        let mut command = Command::new(env!("LAB_HAND"));
        command.arg("agent").arg(address.to_string()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("lab: cannot start a hand: {error}"));
        let mut line = String::new();
        let read = child.stdout.take().map(|said| BufReader::new(said).read_line(&mut line));
        assert!(matches!(read, Some(Ok(1..))), "lab: a hand did not start on {address}");
        Agent { child, address }
    }

    /// Connects another hand. An act that takes longer than `patience` fails.
    pub fn hand(&self, patience: Duration) -> Hand {
        let hand =
            TcpStream::connect(self.address).and_then(|connection| Hand::connected(connection, patience));
        hand.unwrap_or_else(|error| panic!("lab: no hand at {}: {error}", self.address))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A process that hangs in a file system stays until that ends.
        let _ = self.child.try_wait();
    }
}
