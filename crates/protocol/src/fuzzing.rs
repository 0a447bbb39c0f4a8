//! The bodies of the fuzz targets: what must hold of any bytes at all.
//!
//! An input is a procedure number in its first byte and a message behind it. The message is decoded as the procedure's
//! arguments and as its results; neither may panic, and what decodes must survive being encoded and decoded again.
//! `fuzz/` runs these bodies without end; a test of this crate runs them over the seed corpus and seeded mutations.

use bytes::Bytes;
use xdr::{Decode, Encode};

use crate::{Call, Visit};

/// Any bytes as NFS version 3.
pub fn nfs3(input: &[u8]) {
    split(input, |number, body| crate::nfs3::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

/// Any bytes as NFS version 2.
pub fn nfs2(input: &[u8]) {
    split(input, |number, body| crate::nfs2::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

/// Any bytes as MOUNT, versions 1 and 3.
pub fn mount(input: &[u8]) {
    split(input, |number, body| crate::mount::v1::Procedure::try_from(number).map(|it| it.visit(body)).ok());
    split(input, |number, body| crate::mount::v3::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

/// Any bytes as port mapper messages.
pub fn portmap(input: &[u8]) {
    split(input, |number, body| crate::portmap::Procedure::try_from(number).map(|it| it.visit(body)).ok());
}

fn split(input: &[u8], visit: impl Fn(u32, Body<'_>) -> Option<()>) {
    if let Some((&number, body)) = input.split_first() {
        visit(number.into(), Body(body));
    }
}

/// A message of a procedure that is not yet known.
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
    // Bytes may differ in padding alone, so the length may not.
    assert_eq!(again.len(), bytes.len());
    assert_eq!(xdr::from_bytes::<T>(again).as_ref(), Ok(&value));
}
