//! Tests of the derive and the primitives, byte by byte.

use bytes::Bytes;
use proptest::prelude::*;

use crate::{
    Bulk, Decode, Decoder, Encode, Encoder, Error, FileRange, Inline, LinkedList, List, Opaque, Xdr,
};
use crate::{from_bytes, to_bytes};

#[derive(Clone, Debug, PartialEq, Xdr)]
struct Pair {
    small: u32,
    name: Opaque<8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Xdr)]
enum Colour {
    Red = 1,
    Blue = 7,
}

#[derive(Clone, Debug, PartialEq, Xdr)]
enum Union {
    #[xdr(case = 0)]
    Nothing,
    #[xdr(case = 2)]
    Pair(Pair, u64),
    #[xdr(case = 3)]
    Named { colour: Colour },
    #[xdr(default)]
    Other(u32),
}

#[derive(Clone, Debug, PartialEq, Xdr)]
struct Generic<T> {
    value: Option<T>,
}

fn back<T: Encode + Decode + PartialEq + std::fmt::Debug>(value: &T) -> Bytes {
    let bytes = to_bytes(value).unwrap();
    assert_eq!(&from_bytes::<T>(bytes.clone()).unwrap(), value);
    bytes
}

#[test]
fn structs_are_their_fields_in_order() {
    let pair = Pair { small: 5, name: Opaque::new(&b"abcde"[..]).unwrap() };
    assert_eq!(back(&pair), &b"\0\0\0\x05\0\0\0\x05abcde\0\0\0"[..]);
    assert_eq!(back(&Generic { value: Some(7u64) }), &b"\0\0\0\x01\0\0\0\0\0\0\0\x07"[..]);
}

#[test]
fn enums_are_their_discriminants() {
    assert_eq!(back(&Colour::Blue), &b"\0\0\0\x07"[..]);
    assert_eq!(
        from_bytes::<Colour>(Bytes::from_static(b"\0\0\0\x02")),
        Err(Error::Discriminant { name: "Colour", value: 2 })
    );
}

#[test]
fn unions_carry_their_case() {
    assert_eq!(back(&Union::Nothing), &b"\0\0\0\0"[..]);
    assert_eq!(back(&Union::Named { colour: Colour::Red }), &b"\0\0\0\x03\0\0\0\x01"[..]);
    assert_eq!(back(&Union::Other(9)), &b"\0\0\0\x09"[..]);
    back(&Union::Pair(Pair { small: 1, name: Opaque::default() }, 3));
}

#[test]
fn lengths_are_bounded_before_they_are_believed() {
    let huge = Bytes::from_static(b"\xff\xff\xff\xff");
    assert!(matches!(from_bytes::<Opaque<64>>(huge.clone()), Err(Error::TooLong { .. })));
    assert!(matches!(from_bytes::<Inline<64>>(huge.clone()), Err(Error::TooLong { .. })));
    assert!(matches!(from_bytes::<Bulk>(huge.clone()), Err(Error::TooLong { .. })));
    assert!(matches!(from_bytes::<List<u64, 1000>>(huge), Err(Error::TooLong { .. })));
    let short = Bytes::from_static(b"\0\0\x03\xe8");
    assert_eq!(from_bytes::<List<u64, 1000>>(short.clone()), Err(Error::Truncated));
    assert_eq!(from_bytes::<Opaque<4096>>(short), Err(Error::Truncated));
    let chain = to_bytes(&LinkedList::<u32, 9>::new(vec![1, 2, 3]).unwrap()).unwrap();
    assert!(from_bytes::<LinkedList<u32, 2>>(chain.clone()).is_err());
    assert_eq!(&from_bytes::<LinkedList<u32, 3>>(chain).unwrap()[..], [1, 2, 3]);
}

#[test]
fn bulk_is_shared_not_copied() {
    let data = Bytes::from(vec![7u8; 5001]);
    let mut encoder = Encoder::new();
    encoder.u32(0);
    Bulk::Bytes(data.clone()).encode(&mut encoder);
    encoder.u32(9);
    encoder.patch(0, 42);
    let message = encoder.finish();
    assert_eq!(message.len(), 4 + 4 + 5001 + 3 + 4);
    match &message.more[0] {
        crate::Segment::Bytes(segment) => assert_eq!(segment.as_ptr(), data.as_ptr()),
        crate::Segment::File(_) => panic!("not a file"),
    }
    let complete = message.to_bytes().unwrap();
    let mut decoder = Decoder::new(complete.clone());
    assert_eq!(decoder.u32(), Ok(42));
    let Bulk::Bytes(again) = Bulk::decode(&mut decoder).unwrap() else { panic!("decoded data is in memory") };
    assert_eq!(again, data);
    assert_eq!(again.as_ptr(), complete[8..].as_ptr());
}

#[test]
fn a_file_range_is_a_segment() {
    let mut file = tempfile();
    std::io::Write::write_all(&mut file, b"0123456789").unwrap();
    let range = FileRange { file: file.into(), offset: 2, length: 5, pin: None };
    assert_eq!(to_bytes(&Bulk::File(range)).unwrap(), &b"\0\0\0\x0523456\0\0\0"[..]);
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("xdr-test-{}", std::process::id()));
    let file =
        std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

proptest! {
    #[test]
    fn any_bytes_decode_or_fail_cleanly(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(value) = from_bytes::<Union>(bytes.clone().into()) {
            // A decoded value must survive another round trip. The bytes may differ in the padding.
            back(&value);
        }
        let _ = from_bytes::<List<Pair, 16>>(bytes.into());
    }
}
