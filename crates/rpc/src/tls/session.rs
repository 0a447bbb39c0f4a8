//! An encrypted connection: both directions of one TCP connection, without waiting.
//!
//! Reading and writing never wait. They go as far as the socket takes or gives bytes, under a lock that is
//! held only across non-blocking system calls. Ciphertext that the socket does not take stays in the session.
//! Further plaintext is taken only when all of it has left, so a session holds at most [`HELD_BYTES`].

use std::io::{self, IoSlice, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;
use parking_lot::Mutex;
use rustls::Connection;
use tokio::net::TcpStream;
use xdr::FileRange;

use super::{Error, TransportSecurity};

/// Most plaintext that one call of send takes, and about what a session holds of ciphertext, in bytes.
pub(crate) const HELD_BYTES: usize = 64 << 10;
/// The longest TLS record has this much plaintext.
const RECORD_BYTES: usize = 16 << 10;

/// See the module.
pub(crate) struct Session {
    tls: Mutex<Connection>,
    security: TransportSecurity,
    /// There is plaintext that arrived with the end of the handshake.
    early: AtomicBool,
    /// There is ciphertext that the socket has not taken.
    pending: AtomicBool,
    /// The other end has sent close_notify.
    ended: AtomicBool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({})", self.security.word())
    }
}

impl Session {
    /// A session after its handshake.
    pub(super) fn new(tls: Connection) -> Session {
        let is_client = matches!(tls, Connection::Client(_));
        let proven = !is_client && tls.peer_certificates().is_some_and(|chain| !chain.is_empty());
        Session {
            tls: Mutex::new(tls),
            security: if proven { TransportSecurity::Mtls } else { TransportSecurity::Tls },
            early: AtomicBool::new(true),
            pending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// The security that the client has proven.
    pub(crate) fn security(&self) -> TransportSecurity {
        self.security
    }

    /// Is a read worthwhile although the socket has no bytes?
    pub(crate) fn may_have_plaintext(&self) -> bool {
        self.early.load(Ordering::Acquire)
    }

    /// Has the socket left ciphertext here?
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Reads what the socket has, at most about `most` bytes, and appends the plaintext.
    ///
    /// # Errors
    /// `WouldBlock` if there is no plaintext yet. An error of TLS if a record is not authentic, or if the
    /// stream ends without close_notify.
    pub(crate) fn read(&self, stream: &TcpStream, into: &mut BytesMut, most: usize) -> io::Result<usize> {
        let mut tls = self.tls.lock();
        let before = into.len();
        if self.early.swap(false, Ordering::AcqRel) {
            drain(&mut tls, into)?;
        }
        if into.len() == before && !self.ended.load(Ordering::Acquire) {
            let mut bytes = [0; RECORD_BYTES];
            let most = most.clamp(RECORD_BYTES / 4, bytes.len());
            let count = stream.try_read(&mut bytes[..most])?;
            if count == 0 {
                return Err(Error::Truncated.into());
            }
            self.decrypt(&mut tls, &bytes[..count], into, stream)?;
            self.push(&mut tls, stream)?;
        }
        match into.len() - before {
            0 if self.ended.load(Ordering::Acquire) => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            read => Ok(read),
        }
    }

    fn decrypt(
        &self,
        tls: &mut Connection,
        mut bytes: &[u8],
        into: &mut BytesMut,
        stream: &TcpStream,
    ) -> io::Result<()> {
        while !bytes.is_empty() && !self.ended.load(Ordering::Acquire) {
            tls.read_tls(&mut bytes)?;
            match tls.process_new_packets() {
                Ok(state) => self.ended.store(state.peer_has_closed(), Ordering::Release),
                Err(error) => {
                    // It tells the other end the reason, if the socket takes it.
                    let _ = push(tls, stream);
                    return Err(Error::from(error).into());
                }
            }
            drain(tls, into)?;
        }
        Ok(())
    }

    /// Encrypts and sends the start of these bytes, and returns how many it has taken.
    ///
    /// # Errors
    /// `WouldBlock` if the socket has not taken the bytes of earlier calls.
    pub(crate) fn send(&self, stream: &TcpStream, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut tls = self.tls.lock();
        push(&mut tls, stream)?;
        let taken = tls.writer().write_vectored(slices)?;
        self.push(&mut tls, stream)?;
        Ok(taken)
    }

    /// As [`Session::send`], for `left` bytes of a file.
    pub(crate) fn send_file(
        &self,
        stream: &TcpStream,
        range: &FileRange,
        offset: u64,
        left: usize,
    ) -> io::Result<usize> {
        let mut tls = self.tls.lock();
        push(&mut tls, stream)?;
        let mut taken = 0;
        let mut bytes = [0; RECORD_BYTES];
        while taken < left.min(HELD_BYTES) {
            let part = &mut bytes[..RECORD_BYTES.min(left - taken)];
            let read = range.file.read_at(part, offset + taken as u64)?;
            let written = tls.writer().write(&part[..read])?;
            taken += written;
            // The end of the file, or of the space in the session.
            if written < part.len() {
                break;
            }
        }
        self.push(&mut tls, stream)?;
        Ok(taken)
    }

    /// Sends ciphertext that the socket has not taken yet.
    ///
    /// # Errors
    /// `WouldBlock` if some is left.
    pub(crate) fn settle(&self, stream: &TcpStream) -> io::Result<()> {
        if !self.is_pending() {
            return Ok(());
        }
        let mut tls = self.tls.lock();
        self.push(&mut tls, stream)?;
        if self.is_pending() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    /// Tells the other end that no more bytes follow, as far as the socket takes it at once.
    pub(crate) fn close(&self, stream: &TcpStream) {
        if let Some(mut tls) = self.tls.try_lock() {
            tls.send_close_notify();
            let _ = push(&mut tls, stream);
        }
    }

    /// Sends what the socket takes, and notes whether something is left.
    fn push(&self, tls: &mut Connection, stream: &TcpStream) -> io::Result<()> {
        let pushed = push(tls, stream);
        self.pending.store(tls.wants_write(), Ordering::Release);
        match pushed {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }
}

/// Appends the plaintext that has arrived.
fn drain(tls: &mut Connection, into: &mut BytesMut) -> io::Result<()> {
    let mut reader = tls.reader();
    let mut bytes = [0; RECORD_BYTES];
    loop {
        match reader.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => into.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Sends the ciphertext of a connection.
///
/// # Errors
/// `WouldBlock` if the socket does not take all of it.
pub(super) fn push(tls: &mut Connection, stream: &TcpStream) -> io::Result<()> {
    while tls.wants_write() {
        if tls.write_tls(&mut Socket(stream))? == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

/// A stream as rustls writes to it.
struct Socket<'s>(&'s TcpStream);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
