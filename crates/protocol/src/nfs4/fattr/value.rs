//! Attribute values and their encoded lengths, which must be known before encoding.

use xdr::{Decode, Decoder, Encode, Encoder, Error, List};

use crate::nfs4::{
    Acl, Bitmap, ChangeAttrType, ChangePolicy, FsLocations, Fsid, Ftype, Handle, LayoutHint, Limited,
    ModeMasked, ModeUmask, Nfsacl41, Nfstime, OpenArguments, Outcome, SecLabel, Settime, Specdata,
};

/// The value of an attribute.
pub(super) trait Value: Encode + Decode {
    /// The number of bytes on the wire.
    fn encoded_len(&self) -> usize;
}

macro_rules! fixed {
    ($($value:ty = $bytes:literal;)*) => {
        $(impl Value for $value {
            fn encoded_len(&self) -> usize {
                $bytes
            }
        })*
    };
}

fixed! {
    bool = 4;
    u32 = 4;
    u64 = 8;
    Ftype = 4;
    Outcome = 4;
    ChangeAttrType = 4;
    Fsid = 16;
    Nfstime = 12;
    Specdata = 8;
    ChangePolicy = 16;
    ModeMasked = 8;
    ModeUmask = 8;
}

const fn opaque_len(bytes: usize) -> usize {
    4 + bytes + xdr::padding(bytes)
}

impl Value for Bitmap {
    fn encoded_len(&self) -> usize {
        Bitmap::encoded_len(*self)
    }
}

impl Value for Limited {
    fn encoded_len(&self) -> usize {
        opaque_len(self.len())
    }
}

impl Value for Handle {
    fn encoded_len(&self) -> usize {
        opaque_len(self.len())
    }
}

impl Value for Settime {
    fn encoded_len(&self) -> usize {
        match self {
            Settime::SetToServerTime => 4,
            Settime::SetToClientTime(_) => 16,
        }
    }
}

impl Value for Acl {
    fn encoded_len(&self) -> usize {
        4 + self.iter().map(|ace| 12 + opaque_len(ace.who.len())).sum::<usize>()
    }
}

impl Value for List<u32, 64> {
    fn encoded_len(&self) -> usize {
        4 + 4 * self.len()
    }
}

/// A large or rare value; boxed to keep `Fattr` small.
macro_rules! boxed {
    ($($value:ty),*) => {
        $(
            impl Encode for Box<$value> {
                fn encode(&self, encoder: &mut Encoder) {
                    (**self).encode(encoder);
                }
            }

            impl Decode for Box<$value> {
                fn decode(decoder: &mut Decoder) -> Result<Box<$value>, Error> {
                    <$value>::decode(decoder).map(Box::new)
                }
            }

            impl Value for Box<$value> {
                fn encoded_len(&self) -> usize {
                    let mut encoder = Encoder::new();
                    (**self).encode(&mut encoder);
                    encoder.len()
                }
            }
        )*
    };
}

boxed!(FsLocations, LayoutHint, Nfsacl41, OpenArguments, SecLabel);
