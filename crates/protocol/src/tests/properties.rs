//! Any value of any type comes back from the wire; any bytes decode or fail cleanly.
//!
//! Values are drawn by decoding: words that are mostly small numbers make booleans, cases and lengths come out right
//! often enough that each type is met in all its shapes, and each shape with large numbers too.

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use xdr::{Decode, Decoder, Encode};

use crate::{Call, Visit};

fn words() -> impl Strategy<Value = Bytes> {
    let word = prop_oneof![6 => 0..2u32, 2 => 2..8u32, 1 => any::<u32>()];
    proptest::collection::vec(word, 0..160).prop_map(|words| {
        let mut bytes = BytesMut::new();
        for word in words {
            bytes.put_u32(word);
        }
        bytes.freeze()
    })
}

/// Decodes a value off the front of `words`, if one is there, and expects it back from its own encoding.
fn comes_back<T: Encode + Decode + PartialEq + std::fmt::Debug>(words: &Bytes) -> bool {
    let mut decoder = Decoder::new(words.clone());
    let Ok(value) = T::decode(&mut decoder) else { return false };
    let encoded = xdr::to_bytes(&value).unwrap();
    assert_eq!(encoded.len(), words.len() - decoder.remaining());
    assert_eq!(xdr::from_bytes::<T>(encoded).unwrap(), value);
    true
}

struct ComesBack<'a>(&'a Bytes);

impl Visit for ComesBack<'_> {
    type Output = [bool; 2];
    fn visit<C: Call>(self) -> [bool; 2] {
        [comes_back::<C::Args>(self.0), comes_back::<C::Results>(self.0)]
    }
}

/// For each type of each program, whether the bytes began with a value of it.
fn everything(bytes: &Bytes) -> Vec<bool> {
    let programs = [
        crate::nfs3::Procedure::ALL.iter().flat_map(|it| it.visit(ComesBack(bytes))).collect::<Vec<_>>(),
        crate::nfs2::Procedure::ALL.iter().flat_map(|it| it.visit(ComesBack(bytes))).collect(),
        crate::nqnfs::Procedure::ALL.iter().flat_map(|it| it.visit(ComesBack(bytes))).collect(),
        crate::mount::v1::Procedure::ALL.iter().flat_map(|it| it.visit(ComesBack(bytes))).collect(),
        crate::mount::v3::Procedure::ALL.iter().flat_map(|it| it.visit(ComesBack(bytes))).collect(),
        crate::portmap::Procedure::ALL.iter().flat_map(|it| it.visit(ComesBack(bytes))).collect(),
    ];
    programs.concat()
}

#[test]
fn any_value_comes_back() {
    let mut runner = TestRunner::deterministic();
    let mut met = vec![0; everything(&Bytes::new()).len()];
    for _ in 0..20_000 {
        let bytes = words().new_tree(&mut runner).unwrap().current();
        met.iter_mut().zip(everything(&bytes)).for_each(|(met, came)| *met += u32::from(came));
    }
    assert!(met.iter().all(|&times| times >= 100), "a type was hardly met: {met:?}");
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        everything(&bytes.into());
    }
}

#[test]
fn lengths_beyond_bounds_are_refused() {
    let mut name = BytesMut::new();
    name.put_u32(4);
    name.put_u32(1);
    name.put_u32(5000);
    name.put_bytes(0, 5000);
    assert!(matches!(
        xdr::from_bytes::<crate::nfs3::LookupArgs>(name.freeze()),
        Err(xdr::Error::TooLong { length: 5000, bound: 4096 })
    ));
    let handle = Bytes::from_static(&[0, 0, 0, 65]);
    assert!(matches!(
        xdr::from_bytes::<crate::nfs3::GetattrArgs>(handle),
        Err(xdr::Error::TooLong { length: 65, bound: 64 })
    ));
}
