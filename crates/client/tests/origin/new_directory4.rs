//! MKDIR at a scripted origin of version 4.1: the delegation of the new directory, and what has to be shown
//! under it.
//!
//! Promise: directory-leases

use protocol::nfs4::{
    self, ArgOp, Component, Entry, Fattr, Ftype, GetattrOk, ReaddirOk, ResOp, Status as Wire,
};
use vfs::{AccessMask, Created, FileSystem, Leases, SetAttributes, Want};
use xdr::LinkedList;

use client::Nfs4;

use crate::directories4::{Given, give, granted, unavailable};
use crate::scripted::{caller, handle, name};
use crate::scripted4::{Origin4, Say, fattr, say};
use crate::state4::{soon, until};

/// The origin's answers about the new directory.
#[derive(Clone, Copy)]
struct Case {
    given: Given,
    granted: u32,
    names: &'static [&'static str],
    eof: bool,
    fails: bool,
}

const GOOD: Case = Case { given: granted, granted: u32::MAX, names: &[], eof: true, fails: false };

/// An origin that has granted a delegation before, and then says this about the new directory.
async fn mounted(case: Case) -> (Origin4, Nfs4, vfs::Callbacks) {
    let mut grants = 0;
    let origin = Origin4::start(move |operation, all| {
        let makes = all.iter().any(|operation| matches!(operation, ArgOp::Create(_)));
        match operation {
            ArgOp::GetDirDelegation(_) => give(if makes { case.given } else { granted }, &mut grants),
            ArgOp::Getattr(args) => {
                let directory = Fattr { ftype: Some(Ftype::Dir), ..fattr(args.attr_request) };
                say(ResOp::Getattr(Ok(GetattrOk { obj_attributes: Box::new(directory) })))
            }
            ArgOp::Access(args) if makes => {
                let access = args.access & case.granted;
                say(ResOp::Access(Ok(nfs4::AccessOk { supported: args.access, access })))
            }
            ArgOp::Readdir(_) if case.fails => say(ResOp::Readdir(Err(Wire::TooSmall))),
            ArgOp::Readdir(args) => {
                let entry = |text: &&'static str| Entry {
                    cookie: 3,
                    name: Component::new(text.as_bytes()).unwrap(),
                    attrs: fattr(args.attr_request),
                };
                let entries = LinkedList::new(case.names.iter().map(entry).collect()).unwrap();
                say(ResOp::Readdir(Ok(ReaddirOk { cookieverf: [1; 8], entries, eof: case.eof })))
            }
            _ => Say::Usual,
        }
    })
    .await;
    let fs = origin.mount("").await;
    let callbacks = fs.callbacks().unwrap();
    let first = soon(fs.delegate(&caller(), &handle(b"dir"), AccessMask::LOOKUP)).await.unwrap();
    assert!(first.lease.is_some());
    (origin, fs, callbacks)
}

async fn make(fs: &Nfs4) -> Created {
    let none = SetAttributes::default();
    let made = soon(fs.mkdir(&caller(), &handle(b"dir"), &name(b"x"), &none, Want::Read)).await.unwrap();
    assert!(made.node.attributes.unwrap().is_dir());
    made
}

#[tokio::test]
async fn one_call_brings_the_lease_on_an_empty_directory() {
    let (origin, fs, _callbacks) = mounted(GOOD).await;
    let before = origin.seen().len();
    let made = make(&fs).await;
    assert!(made.lease.is_some() && made.directory.after.is_some());
    assert_eq!(origin.seen().len(), before + 1);
    assert!(origin.operations("DELEGRETURN").is_empty());
}

#[tokio::test]
async fn without_proof_that_it_is_empty_the_lease_goes_back() {
    let cases = [
        Case { names: &["theirs"], ..GOOD },
        Case { eof: false, ..GOOD },
        Case { granted: AccessMask::READ.bits() | AccessMask::LOOKUP.bits(), ..GOOD },
        Case { fails: true, ..GOOD },
    ];
    for (number, case) in cases.into_iter().enumerate() {
        let (origin, fs, _callbacks) = mounted(case).await;
        let made = make(&fs).await;
        assert!(made.lease.is_none(), "{number}");
        assert_eq!(made.directory.after.is_some(), !case.fails, "{number}");
        until(|| origin.operations("DELEGRETURN").len() == 1).await;
        assert_eq!(origin.operations("CREATE").len(), 1, "{number}");
    }
}

#[tokio::test]
async fn an_origin_that_gives_none_has_made_the_directory_all_the_same() {
    let (origin, fs, _callbacks) = mounted(Case { given: unavailable, ..GOOD }).await;
    let made = make(&fs).await;
    assert!(made.lease.is_none() && made.directory.after.is_some());
    let refused = Case { given: || ResOp::GetDirDelegation(Err(Wire::Delay)), ..GOOD };
    let (_refusing, fs, _callbacks) = mounted(refused).await;
    let made = make(&fs).await;
    assert!(made.lease.is_none() && made.directory.after.is_none());
    assert!(origin.operations("DELEGRETURN").is_empty());
}
