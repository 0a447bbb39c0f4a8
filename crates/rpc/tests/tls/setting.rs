//! The server and the links of these tests.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rpc::message::Refusal;
use rpc::service::{Answering, Outcome, Remember};
use rpc::tls::{Acceptor, ClientFiles, Connector, Identity, ServerFiles};
use rpc::{
    Answer, Call, CallError, Credential, Link, LinkOptions, Outgoing, Patience, ReplyCache, Server,
    ServerOptions, Service, TlsLink, TransportSecurity,
};
use tokio::time::Instant;
use xdr::{Bulk, Encode, Encoder, FileRange};

use crate::pki::{Issued, Pki};

pub const PROGRAM: u32 = 400_001;
pub const NULL: u32 = 0;
pub const ECHO: u32 = 1;
/// Answers how many calls of it there were before.
pub const COUNT: u32 = 2;
/// Answers with a range of a file, after a word and before another one.
pub const FILE: u32 = 4;
/// Calls the client back, and answers what it answered.
pub const CALL_BACK: u32 = 5;
/// Answers the security of its connection.
pub const SECURITY: u32 = 6;
pub const FILE_WORDS: u32 = 1_500_000;

/// A program that admits calls over connections of some kinds only.
pub struct Program {
    admits: &'static [TransportSecurity],
    pub counted: AtomicU32,
    file: Arc<std::fs::File>,
}

impl Program {
    pub fn admitting(admits: &'static [TransportSecurity]) -> Arc<Program> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&(0..FILE_WORDS).flat_map(u32::to_be_bytes).collect::<Vec<_>>()).unwrap();
        Arc::new(Program { admits, counted: AtomicU32::new(0), file: Arc::new(file) })
    }

    pub fn counted(&self) -> u32 {
        self.counted.load(Ordering::SeqCst)
    }
}

impl Service for Program {
    fn admits(&self, _: SocketAddr, security: TransportSecurity) -> bool {
        self.admits.contains(&security)
    }

    fn call(self: Arc<Self>, mut call: Call) -> Answering {
        Box::pin(async move {
            let mut reply = call.reply();
            match call.header.procedure {
                NULL => {}
                ECHO => reply.raw(&call.arguments.rest()),
                COUNT => reply.u32(self.counted.fetch_add(1, Ordering::SeqCst)),
                FILE => {
                    let Ok(length) = call.arguments.u32() else { return Refusal::GarbageArguments.into() };
                    let range = FileRange { file: self.file.clone(), offset: 0, length, pin: None };
                    reply.u32(7);
                    Bulk::File(range).encode(&mut reply);
                    reply.u32(9);
                }
                CALL_BACK => {
                    let connection = call.connection.clone().unwrap();
                    let header = rpc::message::CallHeader {
                        xid: connection.xid(),
                        procedure: COUNT,
                        ..call.header.clone()
                    };
                    let calling = connection.call(header, Encoder::new().finish());
                    reply.u32(calling.await.unwrap().unwrap().u32().unwrap());
                }
                SECURITY => reply.u32(call.security() as u32),
                _ => return Outcome::Refuse(Refusal::ProcedureUnavailable),
            }
            Outcome::Reply(reply.finish())
        })
    }

    fn remember(&self, call: &Call) -> Remember {
        if call.header.procedure == COUNT { Remember::Reply } else { Remember::No }
    }
}

pub const ENCRYPTED: &[TransportSecurity] = &[TransportSecurity::Tls, TransportSecurity::Mtls];

pub fn acceptor(issued: &Issued, clients: Option<&Pki>) -> Arc<Acceptor> {
    let files = ServerFiles {
        certificate: issued.certificate.clone(),
        key: issued.key.clone(),
        client_ca: clients.map(Pki::ca),
    };
    Acceptor::open(files).unwrap()
}

/// A server that serves the program with TLS.
pub async fn serve(program: &Arc<Program>, tls: Option<Arc<Acceptor>>) -> Server {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = ServerOptions { tls, ..ServerOptions::new(listen) };
    Server::start(options, program.clone(), ReplyCache::volatile()).await.unwrap()
}

/// The files of a client that trusts a CA.
pub fn trusting(pki: &Pki, own: Option<&Issued>) -> ClientFiles {
    let identity = |own: &Issued| Identity { certificate: own.certificate.clone(), key: own.key.clone() };
    ClientFiles { ca: Some(pki.ca()), identity: own.map(identity) }
}

pub fn options(server: SocketAddr, host: &str, files: ClientFiles) -> LinkOptions {
    let tls = TlsLink { connector: Connector::new(host, files), probe: (PROGRAM, 1) };
    LinkOptions { tls: Some(tls), timeo: Duration::from_secs(2), ..LinkOptions::new(server) }
}

pub fn link(server: &Server, host: &str, files: ClientFiles) -> Link {
    Link::new(options(server.local_addr(), host, files))
}

pub fn outgoing(procedure: u32, arguments: &[u8]) -> Outgoing {
    let mut encoder = Encoder::new();
    encoder.raw(arguments);
    Outgoing {
        program: PROGRAM,
        version: 1,
        procedure,
        credential: Credential::None,
        arguments: encoder.finish(),
    }
}

pub async fn call(link: &Link, procedure: u32, arguments: &[u8]) -> Result<Answer, CallError> {
    let patience = Patience::Until(Instant::now() + Duration::from_secs(30));
    link.call(outgoing(procedure, arguments), patience).await
}

/// The word that a procedure answers.
pub async fn word(link: &Link, procedure: u32) -> u32 {
    call(link, procedure, &[]).await.unwrap().results.u32().unwrap()
}

/// Why a link gets no TLS. The server must not have executed its call.
pub async fn failure(link: &Link, program: &Program) -> String {
    let calling = call(link, COUNT, &[]);
    let error = tokio::select! {
        error = link.tls_failed() => error,
        answer = calling => panic!("{answer:?}"),
    };
    assert_eq!(program.counted(), 0, "{error}");
    error.to_string()
}
