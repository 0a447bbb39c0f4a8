//! Peers of a server that send calls without waiting for replies: for the tests of fairness and for its
//! measurement.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rpc::message::CallHeader;
use rpc::{Credential, Server};

const PROGRAM: u32 = 400_002;
pub const QUIET: Ipv4Addr = Ipv4Addr::LOCALHOST;
pub const NOISY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// A reply that takes longer is taken for lost.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A connection of a peer.
#[derive(Clone)]
pub struct Wire(Arc<TcpStream>);

impl Wire {
    pub fn connect(from: Ipv4Addr, server: &Server) -> Wire {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&server.local_addr().into()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Wire(Arc::new(socket.into()))
    }

    pub fn send(&mut self, procedure: u32, count: usize) {
        let mut calls = Vec::new();
        for xid in 0..count as u32 {
            let credential = Credential::None;
            let header = CallHeader { xid, program: PROGRAM, version: 1, procedure, credential };
            let call = xdr::to_bytes(&header).unwrap();
            calls.extend_from_slice(&rpc::record::mark(call.len()));
            calls.extend_from_slice(&call);
        }
        (&*self.0).write_all(&calls).unwrap();
    }

    pub fn hear_one(&mut self) {
        let mut mark = [0; 4];
        (&*self.0).read_exact(&mut mark).unwrap();
        let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        (&*self.0).read_exact(&mut reply).unwrap();
    }
}
