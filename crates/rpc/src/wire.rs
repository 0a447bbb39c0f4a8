//! The bytes of one TCP connection, in plain text or through a session of TLS.

use std::io::{self, IoSlice};
use std::sync::OnceLock;

use bytes::BytesMut;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;
use xdr::FileRange;

use crate::tls::TransportSecurity;
use crate::tls::session::{HELD_BYTES, Session};

/// Most bytes in one `sendfile` call, so that one large reply does not occupy a worker thread too long.
const SENDFILE_MAX_BYTES: usize = 1 << 20;

/// See the module. Nothing here waits, except [`Wire::readable`] and [`Wire::writable`].
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    /// Apart, because most connections have none, and it is large.
    session: OnceLock<Box<Session>>,
}

impl Wire {
    /// A connection in plain text, or with the session of its handshake.
    pub(crate) fn new(stream: TcpStream, session: Option<Session>) -> Wire {
        let wire = Wire { stream, session: OnceLock::new() };
        session.into_iter().for_each(|session| wire.secure(session));
        wire
    }

    /// From here on, all bytes go through this session. The first session stays.
    pub(crate) fn secure(&self, session: Session) {
        let _ = self.session.set(Box::new(session));
    }

    /// The TCP connection.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// What protects the connection.
    pub(crate) fn security(&self) -> TransportSecurity {
        self.session.get().map_or(TransportSecurity::None, |session| session.security())
    }

    /// Waits until a read may bring bytes.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        if self.session.get().is_some_and(|session| session.may_have_plaintext()) {
            return Ok(());
        }
        self.stream.readable().await
    }

    /// Waits until the socket may take bytes.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    /// Appends what has arrived. `space` is free in the buffer. Returns zero at the end of the stream.
    pub(crate) fn try_read(&self, buffer: &mut BytesMut, space: usize) -> io::Result<usize> {
        match self.session.get() {
            None => self.stream.try_read_buf(buffer),
            Some(session) => session.read(&self.stream, buffer, space),
        }
    }

    /// Sends the start of these bytes. `more` says that the bytes of a file follow.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        if let Some(session) = self.session.get() {
            return session.send(&self.stream, slices);
        }
        let flags = if more { SendFlags::NOSIGNAL | SendFlags::MORE } else { SendFlags::NOSIGNAL };
        self.stream.try_io(Interest::WRITABLE, || {
            let mut control = SendAncillaryBuffer::default();
            Ok(rustix::net::sendmsg(&self.stream, slices, &mut control, flags)?)
        })
    }

    /// Sends the start of `left` bytes of a file from `offset` on.
    pub(crate) fn send_file(&self, range: &FileRange, mut offset: u64, left: usize) -> io::Result<usize> {
        if let Some(session) = self.session.get() {
            return session.send_file(&self.stream, range, offset, left);
        }
        let most = left.min(SENDFILE_MAX_BYTES);
        self.stream.try_io(Interest::WRITABLE, || {
            Ok(rustix::fs::sendfile(&self.stream, &*range.file, Some(&mut offset), most)?)
        })
    }

    /// Sends bytes that were taken before and that the socket has not taken.
    pub(crate) fn settle(&self) -> io::Result<()> {
        self.session.get().map_or(Ok(()), |session| session.settle(&self.stream))
    }

    /// Are there such bytes?
    pub(crate) fn is_pending(&self) -> bool {
        self.session.get().is_some_and(|session| session.is_pending())
    }

    /// Memory of such bytes, at most.
    pub(crate) fn held_bytes(&self) -> usize {
        if self.is_pending() { HELD_BYTES } else { 0 }
    }

    /// Ends both directions. An error means that the stream is gone already.
    pub(crate) fn shut_down(&self) {
        self.session.get().into_iter().for_each(|session| session.close(&self.stream));
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
    }
}
