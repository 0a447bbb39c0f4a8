//! Encodes calls word by word and sends them from any address of this machine, as a hostile client can.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use protocol::{mount, nfs3, nfs4};
use rpc::message::{CallHeader, parse_reply};
use rpc::{AuthSys, Credential};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use xdr::{Decoder, Encoder};

use crate::program::Running;

/// The longest a call may take.
const BOUND: Duration = Duration::from_secs(30);

/// Resident memory of a process, in bytes.
pub fn rss(of: &Running) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", of.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<usize>().unwrap() * 1024
}

/// Connects from an address, optionally with a small receive buffer.
pub async fn connect(from: Ipv4Addr, to: &str, buffer: Option<u32>) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind((from, 0).into())?;
    socket.connect(to.parse::<SocketAddr>().unwrap()).await
}

/// A client that acts as user 0.
pub struct Wire {
    pub stream: TcpStream,
    xid: u32,
}

impl Wire {
    pub fn of(stream: TcpStream) -> Wire {
        Wire { stream, xid: 0 }
    }

    pub async fn connect(from: Ipv4Addr, to: &str) -> Wire {
        let stream = connect(from, to, None).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Wire::of(stream)
    }

    /// A record that contains a call.
    fn record(&mut self, (program, version, procedure): (u32, u32, u32), arguments: Encoder) -> Vec<u8> {
        self.xid += 1;
        let credential = Credential::Sys(AuthSys::default());
        let header = CallHeader { xid: self.xid, program, version, procedure, credential };
        let mut call = xdr::to_bytes(&header).unwrap().to_vec();
        call.extend_from_slice(&arguments.finish().to_bytes().unwrap());
        [&(call.len() as u32 | 1 << 31).to_be_bytes()[..], &call].concat()
    }

    async fn reply(&mut self) -> Decoder {
        parse_reply(self.message().await).unwrap().unwrap()
    }

    /// The next reply, without its xid and direction.
    async fn message(&mut self) -> Decoder {
        let reading = async {
            let length = self.stream.read_u32().await.unwrap() & 0x7fff_ffff;
            let mut reply = vec![0; length as usize];
            self.stream.read_exact(&mut reply).await.unwrap();
            reply
        };
        let reply = tokio::time::timeout(BOUND, reading).await.expect("a reply");
        Decoder::new(reply[8..].to_vec().into())
    }

    async fn call(&mut self, procedure: (u32, u32, u32), arguments: Encoder) -> Decoder {
        let record = self.record(procedure, arguments);
        self.stream.write_all(&record).await.unwrap();
        self.reply().await
    }

    /// Sends a call of any program, and tells whether the server refuses it.
    pub async fn is_refused(&mut self, header: &CallHeader, arguments: Encoder) -> bool {
        let mut call = xdr::to_bytes(header).unwrap().to_vec();
        call.extend_from_slice(&arguments.finish().to_bytes().unwrap());
        self.stream.write_u32(call.len() as u32 | 1 << 31).await.unwrap();
        self.stream.write_all(&call).await.unwrap();
        !matches!(parse_reply(self.message().await), Ok(Ok(_)))
    }

    async fn nfs3(&mut self, procedure: nfs3::Procedure, arguments: Encoder) -> Decoder {
        self.call((nfs3::PROGRAM, nfs3::VERSION, procedure as u32), arguments).await
    }

    pub async fn null(&mut self) {
        self.nfs3(nfs3::Procedure::Null, Encoder::new()).await;
    }

    pub async fn mount(&mut self, path: &str) -> Vec<u8> {
        let mut reply = self.call((mount::v3::PROGRAM, 3, 1), opaque(path.as_bytes())).await;
        assert_eq!(reply.u32(), Ok(0));
        reply.slice(64).unwrap().to_vec()
    }

    pub async fn getattr(&mut self, handle: &[u8]) -> u32 {
        self.nfs3(nfs3::Procedure::Getattr, opaque(handle)).await.u32().unwrap()
    }

    pub async fn lookup(&mut self, directory: &[u8], name: &str) -> Result<Vec<u8>, u32> {
        let mut arguments = opaque(directory);
        put(&mut arguments, name.as_bytes());
        let mut reply = self.nfs3(nfs3::Procedure::Lookup, arguments).await;
        match reply.u32().unwrap() {
            0 => Ok(reply.slice(64).unwrap().to_vec()),
            status => Err(status),
        }
    }

    pub async fn create(&mut self, directory: &[u8], name: &str) -> u32 {
        let mut arguments = opaque(directory);
        put(&mut arguments, name.as_bytes());
        // UNCHECKED, without attributes.
        (0..7).for_each(|_| arguments.u32(0));
        self.nfs3(nfs3::Procedure::Create, arguments).await.u32().unwrap()
    }

    fn read_arguments(handle: &[u8], offset: u64, count: u32) -> Encoder {
        let mut arguments = opaque(handle);
        arguments.u64(offset);
        arguments.u32(count);
        arguments
    }

    /// Encodes a READ without sending it.
    pub fn read_call(&mut self, handle: &[u8], offset: u64, count: u32) -> Vec<u8> {
        let procedure = (nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Read as u32);
        self.record(procedure, Wire::read_arguments(handle, offset, count))
    }

    pub async fn read(&mut self, handle: &[u8], offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let mut reply = self.nfs3(nfs3::Procedure::Read, Wire::read_arguments(handle, offset, count)).await;
        let status = reply.u32().unwrap();
        if status != 0 {
            return Err(status);
        }
        if reply.u32() == Ok(1) {
            reply.array::<84>().unwrap();
        }
        let (_count, _eof) = (reply.u32(), reply.u32());
        Ok(reply.slice(2 << 20).unwrap().to_vec())
    }

    /// Sends this many WRITEs in a row without waiting. Returns how many succeeded.
    pub async fn write_all_of(mut self, handle: Vec<u8>, count: u64, bytes: usize) -> usize {
        let mut records = Vec::new();
        for number in 0..count {
            let mut arguments = Wire::read_arguments(&handle, number * bytes as u64, bytes as u32);
            arguments.u32(0); // UNSTABLE
            put(&mut arguments, &vec![b'w'; bytes]);
            let procedure = (nfs3::PROGRAM, nfs3::VERSION, nfs3::Procedure::Write as u32);
            records.push(self.record(procedure, arguments));
        }
        let (mut receiving, mut sending) = self.stream.into_split();
        let send = async {
            for record in &records {
                sending.write_all(record).await.unwrap();
            }
        };
        let receive = async {
            let mut succeeded = 0;
            for _ in 0..count {
                let length = receiving.read_u32().await.unwrap() & 0x7fff_ffff;
                let mut reply = vec![0; length as usize];
                receiving.read_exact(&mut reply).await.unwrap();
                let mut reply = parse_reply(Decoder::new(reply[8..].to_vec().into())).unwrap().unwrap();
                succeeded += usize::from(reply.u32() == Ok(0));
            }
            succeeded
        };
        tokio::join!(send, receive).1
    }

    /// Encodes a compound of minor version 0 that walks a path and then READs from offset 0 repeatedly; does
    /// not send it.
    pub fn gulp(&mut self, path: &[&str], reads: u32, bytes: u32) -> Vec<u8> {
        let mut operations = Encoder::new();
        operations.u32(nfs4::Operation::Putrootfh as u32);
        for name in path {
            operations.u32(nfs4::Operation::Lookup as u32);
            put(&mut operations, name.as_bytes());
        }
        for _ in 0..reads {
            operations.u32(nfs4::Operation::Read as u32);
            (0..4).for_each(|_| operations.u32(0)); // the anonymous state id
            operations.u64(0);
            operations.u32(bytes);
        }
        self.compound(0, b"", 1 + path.len() as u32 + reads, &operations.finish().to_bytes().unwrap())
    }

    /// A record that contains a compound of this many encoded operations.
    fn compound(&mut self, minor: u32, tag: &[u8], count: u32, operations: &[u8]) -> Vec<u8> {
        let mut arguments = opaque(tag);
        arguments.u32(minor);
        arguments.u32(count);
        arguments.raw(operations);
        self.record((nfs4::PROGRAM, nfs4::VERSION, 1), arguments)
    }

    /// Sends a compound of version 4.1 with one operation. Returns the operation's results, or its error.
    async fn single(&mut self, operation: Encoder) -> Result<Decoder, u32> {
        let record = self.compound(1, b"", 1, &operation.finish().to_bytes().unwrap());
        self.stream.write_all(&record).await.unwrap();
        let mut reply = self.reply().await;
        let (_status, _tag, _count) = (reply.u32(), reply.slice(64).map(drop), reply.u32());
        let (_operation, status) = (reply.u32(), reply.u32().unwrap());
        if status == 0 { Ok(reply) } else { Err(status) }
    }

    /// EXCHANGE_ID under this name. Returns the client id and the sequence id for its first session.
    pub async fn exchange_id(&mut self, owner: &[u8]) -> Result<(u64, u32), u32> {
        let mut operation = Encoder::new();
        operation.u32(nfs4::Operation::ExchangeId as u32);
        operation.raw(b"verifier");
        put(&mut operation, owner);
        (0..3).for_each(|_| operation.u32(0)); // no flags, SP4_NONE, no implementation
        let mut known = self.single(operation).await?;
        Ok((known.u64().unwrap(), known.u32().unwrap()))
    }

    /// CREATE_SESSION that asks for this many slots. Returns the session id and the number of slots it got.
    pub async fn create_session(
        &mut self,
        client: u64,
        sequence: u32,
        slots: u32,
    ) -> Result<([u8; 16], u32), u32> {
        let mut operation = Encoder::new();
        operation.u32(nfs4::Operation::CreateSession as u32);
        operation.u64(client);
        operation.u32(sequence);
        operation.u32(0);
        for (largest, operations, requests) in [(1 << 20, 50, slots), (4096, 8, 2)] {
            for word in [0, largest, largest, 4096, operations, requests, 0] {
                operation.u32(word);
            }
        }
        for word in [0x4000_0000, 1, 0] {
            operation.u32(word); // callbacks with AUTH_NONE
        }
        let mut made = self.single(operation).await?;
        let session = made.array::<16>().unwrap();
        for _ in 0..7 {
            made.u32().unwrap(); // sequence, flags, sizes, operations
        }
        Ok((session, made.u32().unwrap()))
    }

    /// Has the server cache a reply of about 4 KiB in each of a session's slots.
    pub async fn fill(&mut self, session: &[u8; 16], slots: u32) {
        const GETATTRS: u32 = 48;
        for slot in 0..slots {
            let mut operations = Encoder::new();
            operations.u32(nfs4::Operation::Sequence as u32);
            operations.raw(session);
            for word in [1, slot, slots - 1, 1, nfs4::Operation::Putrootfh as u32] {
                operations.u32(word);
            }
            for _ in 0..GETATTRS {
                for word in [nfs4::Operation::Getattr as u32, 2, 0x0010_010a, 0x0080_0030] {
                    operations.u32(word); // type, change, fsid, fileid; owner, group, times
                }
            }
            let operations = operations.finish().to_bytes().unwrap();
            let record = self.compound(1, &[b't'; 900], 2 + GETATTRS, &operations);
            self.stream.write_all(&record).await.unwrap();
        }
        for _ in 0..slots {
            self.message().await;
        }
    }
}

fn put(encoder: &mut Encoder, bytes: &[u8]) {
    encoder.u32(bytes.len() as u32);
    encoder.raw(bytes);
    encoder.raw(&[0; 3][..xdr::padding(bytes.len())]);
}

fn opaque(bytes: &[u8]) -> Encoder {
    let mut encoder = Encoder::new();
    put(&mut encoder, bytes);
    encoder
}
