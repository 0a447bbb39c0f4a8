//! The protection of arguments and results (RFC 2203, sections 5.3.2 and 5.3.3.4): in plain text, signed
//! (`rpc_gss_integ_data`) or encrypted (`rpc_gss_priv_data`). The signed or encrypted part begins with the
//! sequence number of the call.

use bytes::{BufMut, Bytes, BytesMut};
use gss::Context;
use xdr::{Decoder, Encoder, Message};

use super::Protection;
use crate::RECORD_MAX_BYTES;

/// Longest signature.
const MIC_MAX_BYTES: usize = 4 << 10;
/// A protected body above this size, in bytes, is computed on a thread that may block.
const LARGE_BYTES: usize = 64 << 10;

/// A body that is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It does not decode.
    #[error(transparent)]
    Xdr(#[from] xdr::Error),
    /// Its signature or encryption is wrong.
    #[error(transparent)]
    Gss(#[from] gss::Error),
    /// The sequence number in it is not that of the call, or a body that should be encrypted is not.
    #[error("the protected body belongs to another call")]
    OfAnotherCall,
    /// A part of the body cannot be read from its file.
    #[error(transparent)]
    File(#[from] std::io::Error),
}

/// Takes the protection off a body.
pub fn open(
    context: &Context,
    protection: Protection,
    sequence: u32,
    body: &Decoder,
) -> Result<Decoder, BodyError> {
    let mut body = body.clone();
    let opened = match protection {
        Protection::None => return Ok(body),
        Protection::Integrity => {
            let signed = body.shared(RECORD_MAX_BYTES)?;
            context.verify_mic(&signed, body.slice(MIC_MAX_BYTES)?)?;
            signed
        }
        Protection::Privacy => match context.unwrap(body.slice(RECORD_MAX_BYTES)?)? {
            (opened, true) => Bytes::from(opened),
            (_, false) => return Err(BodyError::OfAnotherCall),
        },
    };
    body.finish()?;
    let mut opened = Decoder::new(opened);
    if opened.u32()? == sequence { Ok(opened) } else { Err(BodyError::OfAnotherCall) }
}

/// Puts the protection on a body, and appends it.
pub fn seal(
    context: &Context,
    protection: Protection,
    sequence: u32,
    body: Message,
    to: &mut Encoder,
) -> Result<(), BodyError> {
    if protection == Protection::None {
        to.message(body);
        return Ok(());
    }
    let bytes = body.to_bytes()?;
    let mut numbered = BytesMut::with_capacity(4 + bytes.len());
    numbered.put_u32(sequence);
    numbered.put_slice(&bytes);
    let numbered = numbered.freeze();
    if protection == Protection::Integrity {
        let mic = context.mic(&numbered)?;
        to.shared(&numbered);
        to.opaque(&mic);
    } else {
        to.shared(&Bytes::from(context.wrap(&numbered, true)?));
    }
    Ok(())
}

/// Computes at once if that is short. `None` if the runtime is shutting down.
pub async fn compute<T: Send + 'static>(
    bytes: usize,
    protection: Protection,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if protection == Protection::None || bytes <= LARGE_BYTES {
        return Some(work());
    }
    tokio::task::spawn_blocking(work).await.ok()
}
