//! The call with AUTH_TLS and its answer (RFC 9289, section 4.1).

use tokio::net::TcpStream;
use xdr::{Decoder, Encode, Encoder, Message};

use super::Error;
use crate::auth::{AUTH_NONE, Credential};
use crate::message::{CallHeader, Incoming};
use crate::record::{self, Assembler};

const TOKEN: &[u8] = b"STARTTLS";
/// The longest answer to the probe that is read, in bytes. An error has fewer.
const ANSWER_MAX_BYTES: usize = 1024;

/// The answer of a server that offers TLS.
pub(crate) fn starttls(xid: u32) -> Message {
    let mut encoder = Encoder::with_capacity(32);
    encoder.u32(xid);
    encoder.u32(1); // REPLY
    encoder.u32(0); // MSG_ACCEPTED
    encoder.u32(AUTH_NONE);
    encoder.u32(TOKEN.len() as u32);
    encoder.raw(TOKEN);
    encoder.u32(0); // SUCCESS
    encoder.finish()
}

/// Asks for TLS on a new connection.
pub(super) async fn ask(stream: &TcpStream, (program, version): (u32, u32)) -> Result<(), Error> {
    let mut xid = [0; 4];
    // The connection is new, so any xid is as good.
    let _ = getrandom::fill(&mut xid);
    let xid = u32::from_ne_bytes(xid);
    let header = CallHeader { xid, program, version, procedure: 0, credential: Credential::Tls };
    let mut encoder = Encoder::with_capacity(64);
    header.encode(&mut encoder);
    let call = encoder.finish().first;
    send(stream, &[&record::mark(call.len())[..], &call].concat()).await?;
    let mut assembler = Assembler::new(ANSWER_MAX_BYTES);
    loop {
        let taken = assembler.take().map_err(|_| Error::NotOffered)?;
        let Some(answer) = taken else {
            assembler.reserve(ANSWER_MAX_BYTES);
            stream.readable().await?;
            match stream.try_read_buf(&mut assembler.buffer) {
                // A server that does not know the flavor may close the connection.
                Ok(0) => return Err(Error::NotOffered),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            continue;
        };
        if !assembler.buffer.is_empty() {
            return Err(Error::EarlyBytes);
        }
        return match Incoming::parse(answer) {
            Ok(Incoming::Reply { xid: of, rest }) if of == xid && offers(rest.clone()) => Ok(()),
            _ => Err(Error::NotOffered),
        };
    }
}

/// Is this the rest of a reply that offers TLS?
fn offers(mut rest: Decoder) -> bool {
    let mut word = |wanted: u32| rest.u32() == Ok(wanted);
    if !(word(0) && word(AUTH_NONE)) {
        return false;
    }
    rest.slice(TOKEN.len()).is_ok_and(|token| token == TOKEN) && rest.u32() == Ok(0)
}

async fn send(stream: &TcpStream, mut bytes: &[u8]) -> Result<(), Error> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_the_token_in_its_verifier() {
        let bytes = starttls(7).to_bytes().unwrap();
        assert_eq!(&bytes[..], b"\0\0\0\x07\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x08STARTTLS\0\0\0\0");
        let Incoming::Reply { rest, .. } = Incoming::parse(bytes).unwrap() else { panic!("a reply") };
        assert!(offers(rest));
    }

    #[test]
    fn an_answer_without_the_token_offers_nothing() {
        let plain = crate::message::success(7).finish();
        let refused = crate::message::refuse(7, crate::message::Refusal::Auth(5));
        for message in [plain, refused] {
            let Incoming::Reply { rest, .. } = Incoming::parse(message.to_bytes().unwrap()).unwrap() else {
                panic!("a reply")
            };
            assert!(!offers(rest));
        }
    }
}
