//! The change of an accepted connection from plain text to TLS.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Connection, STRANGER};
use crate::intake::Intake;
use crate::message::{self, CallHeader, Refusal};
use crate::server::Dispatcher;
use crate::tls::{self, TransportSecurity, starttls};

impl Connection {
    /// Answers a call with AUTH_TLS. If TLS is offered, makes the handshake: from then on the connection is
    /// encrypted, and its peer may be admitted.
    pub(super) async fn start_tls(
        &self,
        dispatcher: Option<&Arc<Dispatcher>>,
        header: &CallHeader,
        intake: &mut Intake,
    ) -> io::Result<()> {
        let tls = dispatcher.and_then(|dispatcher| Some((dispatcher, dispatcher.tls.as_ref()?)));
        let is_first = !self.called.swap(true, Ordering::Relaxed);
        if header.procedure != 0 || !is_first || self.security() != TransportSecurity::None {
            self.queue(message::refuse(header.xid, Refusal::Auth(message::AUTH_BADCRED)), None);
            return Ok(());
        }
        let (Some((dispatcher, tls)), Some(share), true) = (tls, &self.share, self.listed) else {
            self.queue(message::success(header.xid).finish(), None);
            return Ok(());
        };
        // Bytes that arrive before the handshake could be another's, who wants them taken for the client's.
        if !intake.assembler.buffer.is_empty() {
            return Err(tls::Error::EarlyBytes.into());
        }
        self.queue(starttls(header.xid), None);
        self.send_gathered().await?;
        while self.outbox.queued_bytes() > 0 && !self.is_closed() {
            self.drained.notified().await;
        }
        let accepting = tls.accept(self.wire.stream(), share.handshake());
        let session = match self.unless_closed(accepting).await? {
            Ok(session) => session,
            Err(error) => {
                tls.failed(self.peer, &error);
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        };
        self.wire.secure(session);
        tracing::debug!(peer = %self.peer, xprtsec = self.security().word(), "the connection has TLS");
        self.judge(dispatcher.service.admits(self.peer, self.security()));
        *intake = self.new_intake();
        Ok(())
    }

    /// Notes whether the peer is admitted with TLS.
    fn judge(&self, admitted: bool) {
        let was_admitted = self.admitted.swap(admitted, Ordering::AcqRel);
        let difference = self.limits.calls_in_flight.saturating_sub(STRANGER.calls_in_flight);
        // No call is in flight, so all permits are here.
        match (was_admitted, admitted) {
            (false, true) => self.in_flight.add_permits(difference),
            (true, false) => {
                self.in_flight.forget_permits(difference);
            }
            _ => {}
        }
    }
}
