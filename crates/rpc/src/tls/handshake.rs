//! The handshake of TLS on a connection that nothing else uses yet.

use std::io;

use rustls::Connection;
use tokio::net::TcpStream;

use super::session::{Session, push};
use super::{ALPN, Error};

/// Bytes of one read. A client may send its first calls with the end of its handshake, and they wait in the
/// session: there must be few of them.
const READ_BYTES: usize = 4 << 10;

/// Makes the handshake. The caller bounds the time.
pub(super) async fn shake(stream: &TcpStream, mut tls: Connection) -> Result<Session, Error> {
    loop {
        match push(&mut tls, stream) {
            Ok(()) if !tls.is_handshaking() => break,
            Ok(()) => {
                stream.readable().await?;
                read_some(&mut tls, stream)?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error.into()),
        }
    }
    if tls.alpn_protocol() != Some(ALPN) {
        tls.send_close_notify();
        let _ = push(&mut tls, stream);
        return Err(Error::Alpn);
    }
    Ok(Session::new(tls))
}

/// Takes what has arrived.
fn read_some(tls: &mut Connection, stream: &TcpStream) -> Result<(), Error> {
    let mut bytes = [0; READ_BYTES];
    let count = match stream.try_read(&mut bytes) {
        Ok(0) => return Err(Error::Truncated),
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut rest = &bytes[..count];
    while !rest.is_empty() {
        if tls.read_tls(&mut rest)? == 0 {
            return Err(Error::Truncated);
        }
        if let Err(error) = tls.process_new_packets() {
            // It tells the other end the reason, if the socket takes it.
            let _ = push(tls, stream);
            return Err(error.into());
        }
    }
    Ok(())
}
