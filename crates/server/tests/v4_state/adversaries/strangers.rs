//! A peer that no export admits. In every program and version, over TCP and UDP, it gets a reply to NULL
//! and an error for all other procedures.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use protocol::{mount, nfs2, nfs3, nlm, nqnfs, nsm};
use rpc::message::{AUTH_TOOWEAK, CallHeader, Refusal, parse_reply};
use rpc::{AuthSys, Credential};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use xdr::{Decoder, Opaque};

use crate::setup::{exchange_id, setclientid};
use crate::wire::{Client, ROOT, Served, open_to, serve};

const LISTED: Ipv4Addr = Ipv4Addr::LOCALHOST;
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const BOUND: Duration = Duration::from_secs(30);
const MOUNT: u32 = mount::v3::PROGRAM;

/// Program, version, and the number of procedures.
const SERVED: [(u32, u32, u32); 12] = [
    (nfs2::PROGRAM, 2, 18),
    (nfs3::PROGRAM, 3, 22),
    (nfs3::PROGRAM, 4, 2),
    (nqnfs::PROGRAM, nqnfs::VERSION, 24),
    (MOUNT, 1, 6),
    (MOUNT, 2, 8),
    (MOUNT, 3, 6),
    (nlm::v1::PROGRAM, 1, 17),
    (nlm::v3::PROGRAM, 3, 25),
    (nlm::v4::PROGRAM, 4, 25),
    (nsm::PROGRAM, nsm::VERSION, 8),
    (nfs3::PROGRAM, 5, 2),
];

async fn served() -> Served {
    serve(vec![("/a", open_to("127.0.0.1")), ("/b", open_to("127.0.0.9,10.0.0.0/8"))]).await
}

/// A call with an existing path as its argument.
fn call(program: u32, version: u32, procedure: u32) -> Vec<u8> {
    let credential = Credential::Sys(AuthSys::default());
    let header = CallHeader { xid: 7, program, version, procedure, credential };
    let mut bytes = xdr::to_bytes(&header).unwrap().to_vec();
    if procedure > 0 {
        bytes.extend_from_slice(&xdr::to_bytes(&Opaque::<64>::new(&b"/a"[..]).unwrap()).unwrap());
    }
    bytes
}

/// The contents of a reply: its results, or the reason for their absence.
fn parsed(reply: &[u8]) -> Result<Decoder, Refusal> {
    parse_reply(Decoder::new(reply[8..].to_vec().into())).unwrap()
}

fn is_what_strangers_get(program: u32, version: u32, procedure: u32, reply: &[u8]) -> bool {
    match (parsed(reply), procedure) {
        (Ok(rest), 0) => rest.remaining() == 0,
        // MNT has its own status for this case.
        (Ok(mut rest), 1) => program == MOUNT && rest.u32() == Ok(13) && rest.remaining() == 0,
        (Err(Refusal::Auth(status)), _) => status == AUTH_TOOWEAK && (procedure > 0 || version == 5),
        _ => false,
    }
}

async fn connect(source: Ipv4Addr, server: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    socket.connect(server).await.unwrap()
}

async fn exchange(stream: &mut TcpStream, call: &[u8]) -> Vec<u8> {
    stream.write_u32(call.len() as u32 | 1 << 31).await.unwrap();
    stream.write_all(call).await.unwrap();
    let length = tokio::time::timeout(BOUND, stream.read_u32()).await.unwrap().unwrap() & 0x7fff_ffff;
    let mut reply = vec![0; length as usize];
    stream.read_exact(&mut reply).await.unwrap();
    reply
}

#[tokio::test]
async fn a_stranger_gets_null_and_an_error_over_tcp() {
    let served = served().await;
    let mut stream = connect(STRANGER, served.server.local_addr()).await;
    for (program, version, procedures) in SERVED {
        for procedure in 0..procedures {
            let reply = exchange(&mut stream, &call(program, version, procedure)).await;
            let right = is_what_strangers_get(program, version, procedure, &reply);
            assert!(right, "{program} {version} {procedure}: {reply:x?}");
        }
    }
    assert_eq!(served.front.counts().iter().count(), 0, "nothing was carried out");
}

#[tokio::test]
async fn a_datagram_of_a_stranger_gets_no_more_bytes_than_it_had() {
    let served = served().await;
    let socket = UdpSocket::bind((STRANGER, 0)).await.unwrap();
    socket.connect(served.server.local_addr()).await.unwrap();
    let mut calls: Vec<_> = SERVED
        .iter()
        .flat_map(|&(program, version, count)| {
            (0..count).map(move |procedure| call(program, version, procedure))
        })
        .collect();
    // Calls that are truncated anywhere, and calls of another RPC version.
    let complete = calls[0].clone();
    calls.extend((0..complete.len()).map(|length| complete[..length].to_vec()));
    calls.extend(
        (12..20).map(|length| [&complete[..8], &[0, 0, 0, 3], &complete[12..]].concat()[..length].to_vec()),
    );
    for call in &calls {
        socket.send(call).await.unwrap();
        // If no call waits, datagrams are answered in order: the answer to NULL follows the answer to the
        // call before it.
        socket.send(&marked(&complete)).await.unwrap();
        let mut reply = [0; 2048];
        loop {
            let length = tokio::time::timeout(BOUND, socket.recv(&mut reply)).await.unwrap().unwrap();
            if reply[..4] == MARK {
                break;
            }
            assert!(length <= call.len(), "{} bytes asked, {length} answered", call.len());
        }
    }
    assert_eq!(served.front.counts().iter().count(), 0);
}

const MARK: [u8; 4] = [0xff; 4];

/// NULL with a distinct xid.
fn marked(null: &[u8]) -> Vec<u8> {
    [&MARK, &null[4..]].concat()
}

#[tokio::test]
async fn a_stranger_makes_no_client_of_version_4() {
    let served = served().await;
    let address = served.server.local_addr();
    for (minor, operation) in
        [(1, exchange_id(b"stranger", 1, 0)), (0, setclientid(b"stranger", 1)), (1, ROOT), (9, ROOT)]
    {
        let mut stranger = Client::connect_from(STRANGER, address, minor).await;
        assert_eq!(stranger.refusal(vec![operation]).await, Refusal::Auth(AUTH_TOOWEAK));
    }
    let mut listed = Client::connect_from(LISTED, address, 1).await;
    assert_eq!(listed.status(vec![exchange_id(b"listed", 1, 0)]).await, Ok(()));
}

#[tokio::test]
async fn a_stranger_cannot_make_us_keep_a_large_message() {
    let served = served().await;
    let mut stranger = connect(STRANGER, served.server.local_addr()).await;
    stranger.write_u32(1 << 20 | 1 << 31).await.unwrap();
    let _ = stranger.write_all(&[0; 8 << 10]).await; // the connection may be closed by now
    let closed = tokio::time::timeout(BOUND, stranger.read(&mut [0; 64])).await.expect("it is closed");
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
}

#[tokio::test]
async fn showmount_works_from_any_port_of_a_listed_address() {
    let secure = server::ExportOptions { secure: true, ..open_to("127.0.0.1") };
    let served = serve(vec![("/a", secure)]).await;
    for (source, told) in [(LISTED, true), (STRANGER, false)] {
        let mut stream = connect(source, served.server.local_addr()).await;
        for procedure in [2, 5] {
            let reply = exchange(&mut stream, &call(MOUNT, 3, procedure)).await;
            assert_eq!(parsed(&reply).is_ok(), told, "{source} {procedure}");
        }
        // All other procedures require a source port below 1024.
        let reply = exchange(&mut stream, &call(nfs3::PROGRAM, 3, 1)).await;
        assert_eq!(parsed(&reply).err(), Some(Refusal::Auth(AUTH_TOOWEAK)));
    }
}
