//! Tests of operations whose answers leave things out, and of limits.

use bytes::Bytes;
use client::Origin as _;
use protocol::Reply;
use protocol::nfs3::{self, Ftype, Procedure, call};
use vfs::{AccessMask, CreateHow, FileSystem, ReadDir, SetAttributes, Stability, StateidBasis};

use crate::scripted::*;

fn getattr(ftype: Ftype) -> Act {
    reply::<call::Getattr>(&Reply::Ok(nfs3::GetattrOk { obj_attributes: fattr(ftype, 0) }))
}

#[tokio::test]
async fn reads_and_writes_are_cut_to_what_both_sides_do() {
    let origin = Origin::start(|seen| {
        if seen.is::<call::Read>() {
            let args = seen.args::<call::Read>();
            let data = Bytes::from(vec![7; args.count as usize]).into();
            let (file_attributes, count) = (Some(fattr(Ftype::Reg, 1 << 20)), args.count);
            return reply::<call::Read>(&Reply::Ok(nfs3::ReadOk {
                file_attributes,
                count,
                eof: false,
                data,
            }));
        }
        let args = seen.args::<call::Write>();
        assert_eq!(args.data.len(), args.count as usize);
        let before =
            nfs3::WccAttr { size: 1, mtime: nfs3::Nfstime::default(), ctime: nfs3::Nfstime::default() };
        let file_wcc = nfs3::WccData { before: Some(before), after: Some(fattr(Ftype::Reg, 2)) };
        let (count, committed) = (args.count, nfs3::StableHow::FileSync);
        reply::<call::Write>(&Reply::Ok(nfs3::WriteOk { file_wcc, count, committed, verf: *b"verifier" }))
    })
    .await;
    let fs = origin.mount("").await;
    let file = handle(b"f");
    let read = fs.read(&caller(), &file, StateidBasis::Anonymous, 0, 1 << 20).await.unwrap();
    assert_eq!((read.data.len(), read.eof), (65536, false));
    let data = Bytes::from(vec![1; 100_000]);
    let written = fs
        .write(&caller(), &file, StateidBasis::Anonymous, 9, data.clone(), Stability::Unstable)
        .await
        .unwrap();
    assert_eq!(
        (written.count, written.stability, written.verifier),
        (32768, Stability::FileSync, *b"verifier")
    );
    assert_eq!((written.wcc.before.unwrap().size, written.wcc.after.unwrap().size), (1, 2));
    let fs = origin.mount("rsize=4096&wsize=1024").await;
    assert_eq!(
        fs.read(&caller(), &file, StateidBasis::Anonymous, 0, 1 << 20).await.unwrap().data.len(),
        4096
    );
    let written =
        fs.write(&caller(), &file, StateidBasis::Anonymous, 0, data, Stability::Unstable).await.unwrap();
    assert_eq!(written.count, 1024);
    let counts = fs.counts();
    assert!(counts.of(Procedure::Read).bytes_received > 4096);
    assert!(counts.of(Procedure::Write).bytes_sent > 1024);
}

#[tokio::test]
async fn reads_past_the_end_find_it() {
    let origin = Origin::start(|_| {
        let file_attributes = Some(fattr(Ftype::Reg, 10));
        let data = Bytes::new().into();
        reply::<call::Read>(&Reply::Ok(nfs3::ReadOk { file_attributes, count: 0, eof: false, data }))
    })
    .await;
    let fs = origin.mount("").await;
    let read = fs.read(&caller(), &handle(b"f"), StateidBasis::Anonymous, 10, 8).await.unwrap();
    assert!(read.eof && read.data.is_empty());
}

#[tokio::test]
async fn what_create_leaves_out_is_asked_for() {
    let origin = Origin::start(|seen| {
        if seen.is::<call::Create>() {
            let dir_wcc = nfs3::WccData::default();
            return reply::<call::Create>(&Reply::Ok(nfs3::CreateOk {
                obj: None,
                obj_attributes: None,
                dir_wcc,
            }));
        }
        if seen.is::<call::Getattr>() {
            return getattr(Ftype::Reg);
        }
        reply::<call::Lookup>(&Reply::Ok(nfs3::LookupOk {
            object: wire_handle(b"new"),
            obj_attributes: None,
            dir_attributes: None,
        }))
    })
    .await;
    let fs = origin.mount("").await;
    let set = SetAttributes::default();
    let made =
        fs.create(&caller(), &fs.root_handle(), &name(b"x"), CreateHow::Unchecked, &set).await.unwrap();
    assert_eq!(made.node.handle, handle(b"new"));
    assert!(made.node.attributes.is_some());
    assert_eq!(fs.counts().total_calls(), 3);
}

#[tokio::test]
async fn an_exclusive_create_sets_its_attributes_afterwards() {
    let origin = Origin::start(|seen| {
        if seen.is::<call::Setattr>() {
            let set = seen.args::<call::Setattr>().new_attributes;
            assert_eq!((set.mode, set.uid), (Some(0o600), None));
            assert_eq!(
                (set.atime, set.mtime),
                (nfs3::SetTime::DontChange, nfs3::SetTime::DontChange),
                "the verifier may be there"
            );
            let after = Some(nfs3::Fattr { mode: 0o600, ..fattr(Ftype::Reg, 0) });
            let obj_wcc = nfs3::WccData { before: None, after };
            return reply::<call::Setattr>(&Reply::Ok(nfs3::SetattrOk { obj_wcc }));
        }
        assert_eq!(seen.args::<call::Create>().how, nfs3::CreateHow::Exclusive(*b"12345678"));
        reply::<call::Create>(&Reply::Ok(nfs3::CreateOk {
            obj: Some(wire_handle(b"new")),
            obj_attributes: Some(fattr(Ftype::Reg, 0)),
            dir_wcc: nfs3::WccData::default(),
        }))
    })
    .await;
    let fs = origin.mount("").await;
    let how = CreateHow::Exclusive(*b"12345678");
    let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    let made = fs.create(&caller(), &fs.root_handle(), &name(b"x"), how, &set).await.unwrap();
    assert_eq!(made.node.attributes.unwrap().mode, 0o600);
    assert_eq!(fs.counts().total_calls(), 2);
    // A front of version 3 passes no attributes: its client sends a SETATTR.
    fs.create(&caller(), &fs.root_handle(), &name(b"x"), how, &SetAttributes::default()).await.unwrap();
    assert_eq!(fs.counts().total_calls(), 3);
}

/// Lists `.`, `..` and five files, three entries at a time. Cookies start at 1, with the first file.
fn readdir(cookie: u64) -> nfs3::ReaddirOk {
    let names: [&'static [u8]; 7] = [b"a", b"b", b".", b"..", b"c", b"d", b"e"];
    let entry = |at: usize| nfs3::Entry {
        fileid: 100 + at as u64,
        name: nfs3::Filename::new(names[at]).unwrap(),
        cookie: at as u64 + 1,
    };
    let from = cookie as usize;
    let to = names.len().min(from + 2);
    nfs3::ReaddirOk {
        dir_attributes: Some(fattr(Ftype::Dir, 512)),
        cookieverf: *b"verifier",
        entries: xdr::LinkedList::new((from..to).map(entry).collect()).unwrap(),
        eof: to == names.len(),
    }
}

#[tokio::test]
async fn directories_are_read_without_plus_if_need_be() {
    let origin = Origin::start(|seen| {
        if seen.is::<call::Readdirplus>() {
            return reply::<call::Readdirplus>(&Reply::Fail(nfs3::Status::NotSupp, None));
        }
        let args = seen.args::<call::Readdir>();
        assert_eq!(args.cookieverf, if args.cookie == 0 { [0; 8] } else { *b"verifier" });
        reply::<call::Readdir>(&Reply::Ok(readdir(args.cookie)))
    })
    .await;
    let fs = origin.mount("").await;
    let mut part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 100,
        plus: true,
        want_directory_lease: false,
        names_suffice: false,
    };
    let mut names = Vec::new();
    loop {
        let listing = fs.readdir(&caller(), &fs.root_handle(), part).await.unwrap();
        assert!(!listing.entries.is_empty());
        for entry in listing.entries {
            assert!(entry.cookie >= vfs::Entry::FIRST_COOKIE && entry.cookie < 1 << 63);
            names.push(entry.name.to_string());
            part.cookie = entry.cookie;
        }
        part.verifier = listing.verifier;
        if listing.eof {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    // READDIRPLUS was tried once, and the reply with dots only was skipped.
    assert_eq!(fs.counts().calls(Procedure::Readdirplus), 1);
    assert_eq!(fs.counts().calls(Procedure::Readdir), 4);
}

#[tokio::test]
async fn the_parent_of_the_root_is_the_root() {
    let origin = Origin::start(|seen| {
        if seen.is::<call::Getattr>() {
            return getattr(Ftype::Dir);
        }
        assert_eq!(&seen.args::<call::Lookup>().what.name[..], b"..");
        reply::<call::Lookup>(&Reply::Ok(nfs3::LookupOk {
            object: wire_handle(ROOT),
            obj_attributes: Some(fattr(Ftype::Dir, 512)),
            dir_attributes: None,
        }))
    })
    .await;
    let fs = origin.mount("").await;
    let root = fs.root_handle();
    assert_eq!(fs.parent(&caller(), &root).await.unwrap().node.handle, root);
    assert_eq!(fs.counts().calls(Procedure::Lookup), 0);
    assert_eq!(fs.parent(&caller(), &handle(b"d")).await.unwrap().node.handle, root);
}

#[tokio::test]
async fn rights_that_were_not_asked_for_are_not_granted() {
    let origin = Origin::start(|_| {
        reply::<call::Access>(&Reply::Ok(nfs3::AccessOk { obj_attributes: None, access: 0xffff_ffff }))
    })
    .await;
    let fs = origin.mount("").await;
    let asked = AccessMask::READ | AccessMask::EXECUTE;
    assert_eq!(fs.access(&caller(), &handle(b"f"), asked).await.unwrap().granted, asked);
}

#[tokio::test]
async fn failures_bring_attributes_along() {
    let origin = Origin::start(|_| {
        reply::<call::Lookup>(&Reply::Fail(nfs3::Status::NoEnt, Some(fattr(Ftype::Dir, 512))))
    })
    .await;
    let fs = origin.mount("").await;
    let failed = fs.lookup(&caller(), &handle(b"d"), &name(b"x"), vfs::Want::None).await.unwrap_err();
    assert_eq!(failed.status, vfs::Status::NoEnt);
    assert_eq!(failed.attributes.unwrap().size, 512);
}
