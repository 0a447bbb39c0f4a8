//! Any value of any operation survives a round trip, and arbitrary bytes decode or fail cleanly. See
//! [`super::super::properties`].

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use xdr::{Decode, Decoder, Encode};

use super::*;
use crate::nfs4::callback::CbOperation;

fn words() -> impl Strategy<Value = Bytes> {
    let word = prop_oneof![6 => 0..2u32, 2 => 2..8u32, 1 => any::<u32>()];
    proptest::collection::vec(word, 0..160).prop_map(|words| {
        let mut bytes = BytesMut::new();
        words.into_iter().for_each(|word| bytes.put_u32(word));
        bytes.freeze()
    })
}

/// Decodes an operation of this number from the front of `bytes`, and checks that it survives a round trip.
/// Its encoding may be shorter, because a bitmap has only one shortest form.
fn comes_back<T: Encode + Decode + PartialEq + std::fmt::Debug>(number: u32, bytes: &Bytes) -> bool {
    let mut message = BytesMut::new();
    message.put_u32(number);
    message.put_slice(bytes);
    let length = message.len();
    let mut decoder = Decoder::new(message.freeze());
    let Ok(value) = T::decode(&mut decoder) else { return false };
    let encoded = xdr::to_bytes(&value).unwrap();
    assert!(encoded.len() <= length - decoder.remaining(), "{value:?} grew");
    assert_eq!(xdr::from_bytes::<T>(encoded).unwrap(), value);
    true
}

/// For the arguments and results of each operation and callback: whether the bytes began with them.
fn everything(bytes: &Bytes) -> Vec<bool> {
    let ops = Operation::ALL.iter().map(|it| *it as u32);
    let callbacks = CbOperation::ALL.iter().map(|it| *it as u32);
    ops.flat_map(|it| [comes_back::<ArgOp>(it, bytes), comes_back::<ResOp>(it, bytes)])
        .chain(callbacks.flat_map(|it| [comes_back::<CbArgOp>(it, bytes), comes_back::<CbResOp>(it, bytes)]))
        .collect()
}

#[test]
fn any_operation_comes_back() {
    let mut runner = TestRunner::deterministic();
    let mut met = vec![0; everything(&Bytes::new()).len()];
    for _ in 0..10_000 {
        let bytes = words().new_tree(&mut runner).unwrap().current();
        met.iter_mut().zip(everything(&bytes)).for_each(|(met, came)| *met += u32::from(came));
    }
    assert!(met.iter().all(|&times| times >= 50), "an operation was hardly met: {met:?}");
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        let bytes = Bytes::from(bytes);
        everything(&bytes);
        for first in [1, 2] {
            crate::fuzzing::nfs4(&[&[first], &bytes[..]].concat());
        }
    }

    #[test]
    fn any_words_decode_as_a_compound_or_fail(bytes in words(), first in 1..3u8) {
        crate::fuzzing::nfs4(&[&[first], &bytes[..]].concat());
    }
}
