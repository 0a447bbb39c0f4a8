//! Results that differ between success and failure, as in all versions of NFS and MOUNT.

use xdr::{Decode, Decoder, Encode, Encoder, Error};

/// A union over a status. Zero is followed by a `T`. Any other value, known or not, is a failure and is
/// followed by an `F`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<T, S, F = ()> {
    /// The status was zero.
    Ok(T),
    /// The non-zero status and its body.
    Fail(S, F),
}

impl<T, S, F> Reply<T, S, F> {
    /// Converts it to a [`Result`], for `?`.
    pub fn into_result(self) -> Result<T, (S, F)> {
        match self {
            Reply::Ok(ok) => Ok(ok),
            Reply::Fail(status, fail) => Err((status, fail)),
        }
    }
}

impl<T: Encode, S: Encode, F: Encode> Encode for Reply<T, S, F> {
    fn encode(&self, encoder: &mut Encoder) {
        match self {
            Reply::Ok(ok) => {
                encoder.u32(0);
                ok.encode(encoder);
            }
            Reply::Fail(status, fail) => {
                status.encode(encoder);
                fail.encode(encoder);
            }
        }
    }
}

impl<T: Decode, S: From<u32>, F: Decode> Decode for Reply<T, S, F> {
    fn decode(decoder: &mut Decoder) -> Result<Reply<T, S, F>, Error> {
        match decoder.u32()? {
            0 => Ok(Reply::Ok(T::decode(decoder)?)),
            status => Ok(Reply::Fail(S::from(status), F::decode(decoder)?)),
        }
    }
}

/// Generates an enum of failures that has the RFC's values and keeps any other value. Success is not a
/// variant: it is [`Reply::Ok`].
macro_rules! failures {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$each])* $variant,)*
            /// A value that is not in the RFC.
            Other(u32),
        }

        impl From<u32> for $name {
            fn from(value: u32) -> $name {
                match value {
                    $($value => $name::$variant,)*
                    other => $name::Other(other),
                }
            }
        }

        impl From<$name> for u32 {
            fn from(status: $name) -> u32 {
                match status {
                    $($name::$variant => $value,)*
                    $name::Other(other) => other,
                }
            }
        }

        impl xdr::Encode for $name {
            fn encode(&self, encoder: &mut xdr::Encoder) {
                encoder.u32(u32::from(*self));
            }
        }

        impl xdr::Decode for $name {
            fn decode(decoder: &mut xdr::Decoder) -> Result<$name, xdr::Error> {
                decoder.u32().map($name::from)
            }
        }
    };
}

pub(crate) use failures;
