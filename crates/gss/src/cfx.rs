//! The messages of an established context, signed and encrypted in this process (RFC 4121, section 4.2).
//!
//! MIT's library does that without the AES instructions of the processor, and one call of a context after the
//! other. So it gives the keys away once a context is established, if they are of AES with SHA-1 (RFC 3962),
//! and forgets the context. Contexts with other keys stay in the library.
//!
//! Assumes that the caller notices replayed and reordered messages: the sequence number of a token is written
//! and not checked.

mod crypto;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;
use crypto::{CONFOUNDER_BYTES, MAC_BYTES, Sealer, Signer};

/// A key of the library, with its encryption type (RFC 3961).
pub(crate) struct Key {
    pub(crate) encryption: u32,
    pub(crate) bytes: Vec<u8>,
}

/// The keys of a context.
pub(crate) struct Keys {
    /// This side has initiated the context.
    pub(crate) is_initiator: bool,
    pub(crate) session: Key,
    /// The key that the acceptor has chosen, if it has.
    pub(crate) acceptor: Option<Key>,
    /// The number of the next token.
    pub(crate) sequence: u64,
}

/// The header of a token.
pub(crate) const HEADER_BYTES: usize = 16;
pub(crate) type Header = [u8; HEADER_BYTES];

const MIC: [u8; 2] = [4, 4];
const WRAP: [u8; 2] = [5, 4];
/// `Flags`: `SentByAcceptor`, `Sealed`, `AcceptorSubkey`.
const SENT_BY_ACCEPTOR: u8 = 1;
const SEALED: u8 = 2;
const ACCEPTOR_KEY: u8 = 4;

/// `KG-USAGE-…` of section 2: what a key is used for, by the side that sends.
#[derive(Clone, Copy)]
enum Usage {
    AcceptorSeal = 22,
    AcceptorSign = 23,
    InitiatorSeal = 24,
    InitiatorSign = 25,
}

/// The keys of one direction.
struct Direction {
    mic: Signer,
    /// Signs a wrapped message that is not encrypted.
    plain: Signer,
    sealer: Sealer,
}

impl Direction {
    fn of(key: &Key, by_acceptor: bool) -> Option<Direction> {
        let (sign, seal) = if by_acceptor {
            (Usage::AcceptorSign, Usage::AcceptorSeal)
        } else {
            (Usage::InitiatorSign, Usage::InitiatorSeal)
        };
        Some(Direction {
            mic: Signer::of(key, sign as u32)?,
            plain: Signer::of(key, seal as u32)?,
            sealer: Sealer::of(key, seal as u32)?,
        })
    }
}

/// See the module.
pub(crate) struct Messages {
    is_initiator: bool,
    /// The flags of our tokens.
    flags: u8,
    /// Our tokens.
    sent: Direction,
    /// Those of the peer under the session's key, and under the acceptor's.
    received: Direction,
    received_acceptor: Option<Direction>,
    sequence: AtomicU64,
}

impl Messages {
    /// `None` if the keys are of another kind.
    pub(crate) fn new(keys: &Keys) -> Option<Messages> {
        let Keys { is_initiator, session, acceptor, sequence } = keys;
        let role = if *is_initiator { 0 } else { SENT_BY_ACCEPTOR };
        let of_peer = |key: &Key| Direction::of(key, *is_initiator);
        let received_acceptor = match acceptor {
            Some(key) => Some(of_peer(key)?),
            None => None,
        };
        Some(Messages {
            is_initiator: *is_initiator,
            flags: role | if acceptor.is_some() { ACCEPTOR_KEY } else { 0 },
            sent: Direction::of(acceptor.as_ref().unwrap_or(session), !is_initiator)?,
            received: of_peer(session)?,
            received_acceptor,
            sequence: AtomicU64::new(*sequence),
        })
    }

    /// Section 4.2.6.1.
    pub(crate) fn mic(&self, message: &[u8]) -> Vec<u8> {
        let mut header = self.header(MIC, self.flags);
        header[3..8].fill(0xff);
        [&header[..], &self.sent.mic.sign(&[message, &header])].concat()
    }

    /// Checks a signature of the peer.
    pub(crate) fn verify_mic(&self, message: &[u8], mic: &[u8]) -> Result<(), Error> {
        let wrong = || Error::defective("the signature of a message is wrong");
        let (header, mac) = mic.split_first_chunk::<HEADER_BYTES>().ok_or_else(wrong)?;
        let received =
            self.received_as(header, MIC).filter(|_| header[3..8] == [0xff; 5]).ok_or_else(wrong)?;
        if received.mic.verifies(&[message, header], mac) {
            Ok(())
        } else {
            Err(Error::bad_signature("the signature of a message is wrong"))
        }
    }

    /// Section 4.2.6.2.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn wrap(&self, message: &[u8], private: bool) -> Result<Vec<u8>, Error> {
        let sealed = if private { SEALED } else { 0 };
        let mut header = self.header(WRAP, self.flags | sealed);
        header[3] = 0xff;
        if private {
            let sealed = self.sent.sealer.seal(&header, message, &header);
            return sealed.map_err(|error| Error::here(&format!("cannot wrap a message: {error}")));
        }
        let mac = self.sent.plain.sign(&[message, &header]);
        // `EC` is the length of the signature, and 0 in what is signed.
        header[4..6].copy_from_slice(&(MAC_BYTES as u16).to_be_bytes());
        Ok([&header[..], message, &mac].concat())
    }

    /// The message of a token of the peer, and whether it was encrypted.
    pub(crate) fn unwrap(&self, token: &[u8]) -> Result<(Vec<u8>, bool), Error> {
        let wrong = || Error::defective("a wrapped message is wrong");
        let (header, body) = token.split_first_chunk::<HEADER_BYTES>().ok_or_else(wrong)?;
        let received = self.received_as(header, WRAP).filter(|_| header[3] == 0xff).ok_or_else(wrong)?;
        let [extra, rotation] =
            [4, 6].map(|at| usize::from(u16::from_be_bytes([header[at], header[at + 1]])));
        let rotated;
        let body = if rotation == 0 || body.is_empty() {
            body
        } else {
            let mut copy = body.to_vec();
            copy.rotate_left(rotation % body.len());
            rotated = copy;
            &rotated[..]
        };
        // The header is signed without its rotation.
        let mut signed = *header;
        signed[6..8].fill(0);
        let forged = || Error::bad_signature("a wrapped message is wrong");
        if header[2] & SEALED != 0 {
            let mut plain = received.sealer.open(body).ok_or_else(forged)?;
            let message =
                (plain.len() - CONFOUNDER_BYTES).checked_sub(extra + HEADER_BYTES).ok_or_else(wrong)?;
            if plain[plain.len() - HEADER_BYTES..] != signed {
                return Err(forged());
            }
            plain.drain(..CONFOUNDER_BYTES);
            plain.truncate(message);
            return Ok((plain, true));
        }
        let length = body.len().checked_sub(MAC_BYTES).filter(|_| extra == MAC_BYTES).ok_or_else(wrong)?;
        let (message, mac) = body.split_at(length);
        signed[4..6].fill(0);
        if received.plain.verifies(&[message, &signed], mac) {
            Ok((message.to_vec(), false))
        } else {
            Err(forged())
        }
    }

    /// A wrapped message whose header says what its sender likes about lengths, rotation and number.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn wrap_as(&self, mut header: Header, message: &[u8], private: bool) -> Option<Vec<u8>> {
        header[..2].copy_from_slice(&WRAP);
        header[2] = self.flags | if private { SEALED } else { 0 };
        header[3] = 0xff;
        let mut signed = header;
        signed[6..8].fill(0);
        let body = if private {
            self.sent.sealer.seal(&[], message, &signed).ok()?
        } else {
            signed[4..6].fill(0);
            [message, &self.sent.plain.sign(&[message, &signed])].concat()
        };
        let rotation = usize::from(u16::from_be_bytes([header[6], header[7]]));
        let mut token = [&header[..], &body].concat();
        token[HEADER_BYTES..].rotate_right(rotation % body.len());
        Some(token)
    }

    fn header(&self, token: [u8; 2], flags: u8) -> Header {
        let mut header = [0; HEADER_BYTES];
        header[..2].copy_from_slice(&token);
        header[2] = flags;
        header[8..].copy_from_slice(&self.sequence.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        header
    }

    /// The keys for a token of the peer. `None` if the token is of another kind, or one of ours.
    fn received_as(&self, header: &Header, token: [u8; 2]) -> Option<&Direction> {
        let by_acceptor = header[2] & SENT_BY_ACCEPTOR != 0;
        if header[..2] != token || by_acceptor != self.is_initiator {
            return None;
        }
        if header[2] & ACCEPTOR_KEY == 0 { Some(&self.received) } else { self.received_acceptor.as_ref() }
    }
}
