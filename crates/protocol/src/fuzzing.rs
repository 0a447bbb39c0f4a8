//! The bodies of the fuzz targets: properties that must hold for arbitrary input bytes.
//!
//! An input is a procedure number in the first byte, followed by a message. The message is decoded both as
//! the procedure's arguments and as its results. Neither decoder may panic, and every decoded value must
//! survive another round trip. `fuzz/` runs these bodies endlessly. Tests run them with [`over_corpus`] on
//! the seeds and on seeded mutations.

use std::path::PathBuf;

use bytes::Bytes;
use xdr::{Decode, Decoder, Encode};

use crate::{Call, Visit};

/// Arbitrary bytes as NFS version 3.
pub fn nfs3(input: &[u8]) {
    split(input, |number, body| crate::nfs3::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

/// Arbitrary bytes as NFS version 4. The first byte is 1 for COMPOUND and 2 for `CB_COMPOUND`, which is
/// procedure 1 of another program.
pub fn nfs4(input: &[u8]) {
    use crate::nfs4::callback::{CbCompoundArgs, CbCompoundHeader, CbCompoundRes};
    use crate::nfs4::{CompoundArgs, CompoundHeader, CompoundRes};

    let Some((&number, body)) = input.split_first() else { return };
    let bytes = Bytes::copy_from_slice(body);
    if number == 1 {
        settles::<CompoundRes>(&bytes);
        let complete = settles::<CompoundArgs>(&bytes).map(|args| args.argarray.into_vec());
        piecemeal(&bytes, complete.as_deref(), CompoundHeader::next);
    } else if number == 2 {
        settles::<CbCompoundRes>(&bytes);
        let complete = settles::<CbCompoundArgs>(&bytes).map(|args| args.argarray.into_vec());
        piecemeal(&bytes, complete.as_deref(), CbCompoundHeader::next);
    }
}

/// A decoded value must survive another round trip. It may encode to fewer bytes, because a bitmap has only
/// one shortest form.
fn settles<T: Encode + Decode + PartialEq + std::fmt::Debug>(bytes: &Bytes) -> Option<T> {
    let value = xdr::from_bytes::<T>(bytes.clone()).ok()?;
    let Ok(again) = xdr::to_bytes(&value) else { unreachable!("decoded data is in memory") };
    assert_eq!(xdr::from_bytes::<T>(again).as_ref(), Ok(&value));
    Some(value)
}

/// Decoding operations one by one gives the same as decoding the complete message, up to the first operation
/// that the minor version lacks.
fn piecemeal<H: Decode, A: PartialEq + std::fmt::Debug, E>(
    bytes: &Bytes,
    complete: Option<&[A]>,
    next: fn(&mut H, &mut Decoder) -> Option<Result<A, E>>,
) {
    let mut decoder = Decoder::new(bytes.clone());
    let Ok(mut header) = H::decode(&mut decoder) else { return };
    let ops: Vec<_> = std::iter::from_fn(|| next(&mut header, &mut decoder)).collect();
    let Some(complete) = complete else { return };
    assert_eq!(ops.is_empty(), complete.is_empty());
    for (index, (op, expected)) in ops.iter().zip(complete).enumerate() {
        assert!(
            op.as_ref().is_ok_and(|op| op == expected) || index + 1 == ops.len(),
            "{expected:?} was lost"
        );
    }
}

/// Arbitrary bytes as NFS version 2.
pub fn nfs2(input: &[u8]) {
    split(input, |number, body| crate::nfs2::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

/// Arbitrary bytes as MOUNT, versions 1 and 3.
pub fn mount(input: &[u8]) {
    split(input, |number, body| crate::mount::v1::Procedure::try_from(number).map(|it| it.visit(body)).ok());
    split(input, |number, body| crate::mount::v3::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

/// Arbitrary bytes as NQNFS.
pub fn nqnfs(input: &[u8]) {
    split(input, |number, body| crate::nqnfs::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

/// Arbitrary bytes as port mapper messages.
pub fn portmap(input: &[u8]) {
    split(input, |number, body| crate::portmap::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

/// Arbitrary bytes as NLM, versions 1, 3 and 4.
pub fn nlm(input: &[u8]) {
    split(input, |number, body| crate::nlm::v1::Procedure::try_from(number).map(|it| it.visit(body)).ok());
    split(input, |number, body| crate::nlm::v3::Procedure::try_from(number).map(|it| it.visit(body)).ok());
    split(input, |number, body| crate::nlm::v4::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

/// Arbitrary bytes as NSM.
pub fn nsm(input: &[u8]) {
    split(input, |number, body| crate::nsm::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

/// Arbitrary bytes as RPCBIND, versions 3 and 4.
pub fn rpcbind(input: &[u8]) {
    split(input, |number, body| {
        crate::rpcbind::v3::Procedure::try_from(number).map(|it| it.visit(body)).ok()
    });
    split(input, |number, body| {
        crate::rpcbind::v4::Procedure::try_from(number).map(|it| it.visit(body)).ok()
    });
}

fn split(input: &[u8], visit: impl Fn(u32, Body<'_>) -> Option<()>) {
    if let Some((&number, body)) = input.split_first() {
        visit(number.into(), Body(body));
    }
}

/// A message whose procedure is not known yet.
struct Body<'a>(&'a [u8]);

impl Visit for Body<'_> {
    type Output = ();

    fn visit<C: Call>(self) {
        let bytes = Bytes::copy_from_slice(self.0);
        round_trip::<C::Args>(&bytes);
        round_trip::<C::Results>(&bytes);
    }
}

fn round_trip<T: Encode + Decode + PartialEq + std::fmt::Debug>(bytes: &Bytes) {
    let Ok(value) = xdr::from_bytes::<T>(bytes.clone()) else { return };
    let Ok(again) = xdr::to_bytes(&value) else { unreachable!("decoded data is in memory") };
    // Only padding bytes may differ, so the length must be the same.
    assert_eq!(again.len(), bytes.len());
    assert_eq!(xdr::from_bytes::<T>(again).as_ref(), Ok(&value));
}

/// Mutations per seed.
const ROUNDS: u32 = 300;

/// The directory with the seeds of a target.
pub fn corpus(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

/// Runs a body on the seeds of its target and on mutations of them. The mutations are the same each time.
///
/// # Panics
/// If the corpus cannot be read, or the body panics.
pub fn over_corpus(target: &str, body: fn(&[u8])) {
    let corpus = corpus(target);
    let Ok(files) = std::fs::read_dir(&corpus) else { panic!("there is no corpus {}", corpus.display()) };
    let mut files: Vec<_> = files.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    let mut random = Random(0x1ea5_e401_d000_0001);
    for file in files {
        let Ok(seed) = std::fs::read(&file) else { panic!("{} cannot be read", file.display()) };
        body(&seed);
        for _ in 0..ROUNDS {
            body(&mutated(&seed, &mut random));
        }
    }
}

/// Makes one to four changes of kinds that tend to find faults: bit flips, extreme words, cuts, repeats.
fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len().max(1));
        let word = at..bytes.len().min(at + 4);
        match random.below(6) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (at % 8)),
            1 => bytes[word].fill(0xff),
            2 => bytes[word].fill(0),
            3 => bytes.truncate(at),
            4 => bytes.extend_from_within(at..),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.next() as u8),
        }
    }
    bytes
}

/// A small deterministic generator, so that failures are reproducible.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}
