//! The body of the fuzz target of tokens: any bytes from a peer without the keys, and any header and message
//! from a peer with them. Such a peer may lie about lengths and rotations, under a right signature.

use crate::cfx::{HEADER_BYTES, Header, Key, Keys, Messages};

/// Takes the input as a signature and as a wrapped message, and then as the header and the message of a token
/// with a right signature.
///
/// # Panics
/// If a token without a signature is taken, or one with it is read otherwise than RFC 4121 says.
pub fn tokens(input: &[u8]) {
    for acceptor_key in [false, true] {
        let [peer, own] = [true, false].map(|is_initiator| messages(is_initiator, acceptor_key));
        assert!(own.verify_mic(b"message", input).is_err(), "nobody has made this signature");
        assert!(own.unwrap(input).is_err(), "nobody has wrapped this");
        let Some((header, message)) = input.split_first_chunk::<HEADER_BYTES>() else { continue };
        for private in [false, true] {
            signed(&peer, &own, *header, message, private);
        }
    }
}

fn signed(peer: &Messages, own: &Messages, header: Header, message: &[u8], private: bool) {
    let Some(token) = peer.wrap_as(header, message, private) else { return };
    // `EC`: the bytes of the filler in an encrypted message, of the signature in another one.
    let extra = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let expected = match (private, message.len().checked_sub(extra)) {
        (true, length) => length,
        (false, _) => (extra == 12).then_some(message.len()),
    };
    let read = own.unwrap(&token).ok();
    assert_eq!(read, expected.map(|length| (message[..length].to_vec(), private)), "{header:?}");
}

/// One side of a context. The other side has the same keys.
fn messages(is_initiator: bool, acceptor_key: bool) -> Messages {
    let key = |encryption, length| Key { encryption, bytes: (0..length).collect() };
    let acceptor = acceptor_key.then(|| key(17, 16));
    let keys = Keys { is_initiator, session: key(18, 32), acceptor, sequence: 0 };
    Messages::new(&keys).unwrap_or_else(|| panic!("keys of AES"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tokens_are_read_as_their_header_says(
            small in any::<bool>(),
            mut header in any::<[u8; 16]>(),
            message in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            if small {
                // Lengths and rotations that fit.
                (header[4], header[6]) = (0, 0);
                (header[5], header[7]) = (header[5] % 64, header[7] % 128);
            }
            super::tokens(&[&header[..], &message].concat());
        }
    }

    #[test]
    fn the_lengths_of_a_signature_and_of_a_filler_are_read() {
        let header = |extra: u8, rotation: u8| [0, 0, 0, 0, 0, extra, 0, rotation, 0, 0, 0, 0, 0, 0, 0, 1];
        for extra in 0..40 {
            for rotation in 0..80 {
                super::tokens(&[&header(extra, rotation)[..], &[7; 30]].concat());
            }
        }
        super::tokens(&header(0, 255));
        super::tokens(&[]);
    }
}
