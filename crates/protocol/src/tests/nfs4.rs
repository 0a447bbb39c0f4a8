//! Each operation of NFS version 4, and compounds, byte by byte.

mod attributes;
mod callbacks;
mod compound;
mod minor0;
mod minor1;
mod minor2;
mod properties;

use super::wire::{Seed, text, wire};
use crate::nfs4::callback::{CbArgOp, CbResOp};
use crate::nfs4::*;

/// All examples. Making an example compares it with its bytes.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = minor0::seeds();
    seeds.extend(minor1::seeds());
    seeds.extend(minor2::seeds());
    seeds.extend(callbacks::seeds());
    seeds.extend(compound::seeds());
    seeds
}

/// A stateid, followed by its bytes. The other constants follow the same pattern.
const STATEID: Stateid = Stateid { seqid: 9, other: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] };
const S: &str = "9 =0102030405060708090a0b0c";
const CINFO: ChangeInfo = ChangeInfo { atomic: true, before: 5, after: 6 };
const C: &str = "1 q5 q6";
const VERIFIER: Verifier = [1, 2, 3, 4, 5, 6, 7, 8];
const V: &str = "=0102030405060708";
const ID: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
const I: &str = "=000102030405060708090a0b0c0d0e0f";
const O: &str = "q7 \"owner\"";
const H: &str = "'cafebabe01";
/// `size` and `mode`.
const A: &str = "2 16 2 12 q0 420";

fn owner() -> StateOwner {
    StateOwner { clientid: 7, owner: text("owner") }
}

fn handle() -> Handle {
    Handle::new(b"\xca\xfe\xba\xbe\x01").unwrap()
}

fn fattr() -> Fattr {
    Fattr { size: Some(0), mode: Some(0o644), ..Fattr::default() }
}

fn list<T, const MAX: usize>(elements: Vec<T>) -> xdr::List<T, MAX> {
    xdr::List::new(elements).unwrap()
}

/// Checks that an operation with its arguments encodes to its number and exactly these bytes, and decodes
/// from them.
fn arg(op: &ArgOp, text: &str) -> Seed {
    let text = format!("{} {text}", op.operation() as u32);
    same(op, &text);
    let name = format!("v4-{}-args", op.operation().name().to_lowercase());
    seed(name, 1, &format!("' 2 1 {text}"))
}

/// Checks that an operation with its results encodes to its number and exactly these bytes, and decodes from
/// them.
fn res(op: &ResOp, text: &str) -> Seed {
    let text = format!("{} {text}", op.operation() as u32);
    same(op, &text);
    let status = op.status().err().map_or(0, u32::from);
    let case = if status == 0 { "ok" } else { "other" };
    let name = format!("v4-{}-{case}", op.operation().name().to_lowercase());
    seed(name, 1, &format!("{status} ' 1 {text}"))
}

/// Checks that a callback with its arguments encodes to its number and exactly these bytes, and decodes from
/// them.
fn cb_arg(op: &CbArgOp, text: &str) -> Seed {
    let text = format!("{} {text}", op.operation() as u32);
    same(op, &text);
    let name = format!("v4-{}-args", op.operation().name().to_lowercase());
    seed(name, 2, &format!("' 2 77 1 {text}"))
}

/// Checks that a callback with its results encodes to its number and exactly these bytes, and decodes from
/// them.
fn cb_res(op: &CbResOp, text: &str) -> Seed {
    let text = format!("{} {text}", op.operation() as u32);
    same(op, &text);
    let status = op.status().err().map_or(0, u32::from);
    let case = if status == 0 { "ok" } else { "other" };
    let name = format!("v4-{}-{case}", op.operation().name().to_lowercase());
    seed(name, 2, &format!("{status} ' 1 {text}"))
}

fn same<T: xdr::Encode + xdr::Decode + PartialEq + std::fmt::Debug>(value: &T, text: &str) {
    assert_eq!(&xdr::from_bytes::<T>(wire(text).into()).unwrap(), value, "decoded from {text}");
    assert_eq!(xdr::to_bytes(value).unwrap(), wire(text), "{value:?} encoded, against {text}");
}

fn seed(name: String, first: u8, text: &str) -> Seed {
    Seed { name, input: [&[first], &wire(text)[..]].concat() }
}
