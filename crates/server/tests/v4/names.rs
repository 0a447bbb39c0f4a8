//! Names, attributes and data, in minor version 0 with the special state id.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use bytes::Bytes;
use protocol::nfs4::{
    AccessArgs, ArgFattr, ArgOp, Attr, Bitmap, CommitArgs, Createtype, Fattr, Ftype, Limited, LinkArgs,
    Linktext, Nfstime, ReadArgs, ReaddirArgs, ReaddirOk, RemoveArgs, RenameArgs, SecinfoArgs, SetattrArgs,
    Settime, StableHow, Stateid, Status, VerifyArgs, WriteArgs, op,
};
use xdr::Bulk;

use crate::wire::{Client, ROOT, create, getattr, lookup, name, serve_root, then, walk};

fn mode(mode: u32) -> Fattr {
    Fattr { mode: Some(mode), ..Fattr::default() }
}

fn setattr(fattr: Fattr) -> ArgOp {
    ArgOp::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, obj_attributes: ArgFattr::from(fattr) })
}

fn rename(old: &[u8], new: &[u8]) -> ArgOp {
    ArgOp::Rename(RenameArgs { oldname: name(old), newname: name(new) })
}

fn remove(target: &[u8]) -> ArgOp {
    ArgOp::Remove(RemoveArgs { target: name(target) })
}

fn read(offset: u64, count: u32) -> ArgOp {
    ArgOp::Read(ReadArgs { stateid: Stateid::ANONYMOUS, offset, count })
}

fn write(offset: u64, data: &[u8]) -> ArgOp {
    let data = Bulk::Bytes(Bytes::copy_from_slice(data));
    ArgOp::Write(WriteArgs { stateid: Stateid::ANONYMOUS, offset, stable: StableHow::Unstable, data })
}

#[tokio::test]
async fn everything_but_files_is_made_by_create() {
    let served = serve_root().await;
    let mut client = served.client(0).await;
    let types = [
        (&b"dir"[..], Createtype::Dir, Ftype::Dir),
        (b"lnk", Createtype::Lnk(Linktext::new(&b"dir"[..]).unwrap()), Ftype::Lnk),
        (b"fifo", Createtype::Fifo, Ftype::Fifo),
        (b"sock", Createtype::Sock, Ftype::Sock),
    ];
    for (name, objtype, ftype) in types {
        let root = client.getattr(vec![ROOT], &[Attr::Change]).await.change;
        let made = then(vec![ROOT], [create(name, objtype.clone(), mode(0o705))]);
        let made = client.last::<op::Create>(made).await;
        assert_eq!(made.attrset, Bitmap::of(&[Attr::Mode]));
        assert!(made.cinfo.atomic && Some(made.cinfo.before) == root && made.cinfo.after > made.cinfo.before);
        let found = client.getattr(then(vec![ROOT], [lookup(name)]), &[Attr::Type]).await;
        assert_eq!(found.ftype, Some(ftype));
        let again = client.status(then(vec![ROOT], [create(name, objtype, mode(0o705))])).await;
        assert_eq!(again, Err(Status::Exist));
    }
    let read = client.last::<op::Readlink>(then(walk("/lnk"), [ArgOp::Readlink(())])).await;
    assert_eq!(&read.link[..], b"dir");
    let file = client.status(then(vec![ROOT], [create(b"x", Createtype::Other(1), mode(0))])).await;
    assert_eq!(file, Err(Status::BadType));
    let below = client.status(then(walk("/fifo"), [create(b"x", Createtype::Dir, mode(0o700))])).await;
    assert_eq!(below, Err(Status::NotDir));
}

#[tokio::test]
async fn names_that_are_none_are_refused_by_every_operation_that_takes_one() {
    let served = serve_root().await;
    std::fs::write(served.tree().join("file"), b"").unwrap();
    let mut client = served.client(0).await;
    let long = [b'x'; 256];
    let bad = [
        (&b""[..], Status::Inval),
        (b".", Status::BadName),
        (b"..", Status::BadName),
        (b"a/b", Status::BadChar),
        (b"a\0b", Status::BadChar),
        (&long, Status::NameTooLong),
    ];
    for (bad, status) in bad {
        let operations = [
            lookup(bad),
            create(bad, Createtype::Dir, mode(0o755)),
            remove(bad),
            rename(bad, b"x"),
            rename(b"file", bad),
            ArgOp::Secinfo(SecinfoArgs { name: name(bad) }),
        ];
        for operation in operations {
            let shown = format!("{operation:?}");
            let given = client.status(vec![ROOT, ArgOp::Savefh(()), operation]).await;
            assert_eq!(given, Err(status), "{shown}");
        }
        let link = [ArgOp::Savefh(()), ROOT, ArgOp::Link(LinkArgs { newname: name(bad) })];
        assert_eq!(client.status(then(walk("/file"), link)).await, Err(status));
    }
    assert_eq!(client.status(walk("/caf\u{e9}")).await, Err(Status::NoEnt));
    std::fs::write(
        served.tree().join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff")),
        b"",
    )
    .unwrap();
    assert_eq!(client.status(vec![ROOT, lookup(b"\xff")]).await, Ok(()), "any bytes are a name");
}

#[tokio::test]
async fn the_wrong_type_of_object_is_named() {
    let served = serve_root().await;
    std::fs::write(served.tree().join("file"), b"").unwrap();
    std::os::unix::fs::symlink("file", served.tree().join("link")).unwrap();
    let mut client = served.client(0).await;
    for (path, operation, status) in [
        ("/file", lookup(b"x"), Status::NotDir),
        ("/link", lookup(b"x"), Status::Symlink),
        ("/file", ArgOp::Lookupp(()), Status::NotDir),
        ("/", read(0, 1), Status::IsDir),
        ("/link", read(0, 1), Status::Inval),
        ("/", write(0, b"x"), Status::IsDir),
        ("/", ArgOp::Commit(CommitArgs { offset: 0, count: 0 }), Status::IsDir),
        ("/file", ArgOp::Readlink(()), Status::Inval),
        ("/file", remove(b"x"), Status::NotDir),
        ("/link", remove(b"x"), Status::NotDir),
        ("/file", readdir(0, 4096, &[]), Status::NotDir),
        ("/", ArgOp::Openattr(protocol::nfs4::OpenattrArgs { createdir: false }), Status::NotSupp),
    ] {
        let shown = format!("{operation:?} of {path}");
        assert_eq!(client.status(then(walk(path), [operation])).await, Err(status), "{shown}");
    }
}

#[tokio::test]
async fn names_are_linked_moved_and_removed() {
    let served = serve_root().await;
    for directory in ["from", "to", "full"] {
        std::fs::create_dir(served.tree().join(directory)).unwrap();
    }
    std::fs::write(served.tree().join("full/x"), b"").unwrap();
    std::fs::write(served.tree().join("from/file"), b"content").unwrap();
    let mut client = served.client(0).await;
    let link = [ArgOp::Savefh(()), ROOT, ArgOp::Link(LinkArgs { newname: name(b"link") })];
    let linked = client.last::<op::Link>(then(walk("/from/file"), link.clone())).await;
    assert_ne!(linked.cinfo.before, linked.cinfo.after);
    assert_eq!(client.status(then(walk("/from/file"), link.clone())).await, Err(Status::Exist));
    assert_eq!(client.status(then(walk("/full"), link)).await, Err(Status::IsDir));
    let between = |from: &str, to: &str, operation| {
        then(then(walk(from), [ArgOp::Savefh(())]), then(walk(to), [operation]))
    };
    let moved = client.last::<op::Rename>(between("/from", "/to", rename(b"file", b"moved"))).await;
    assert!(moved.source_cinfo.atomic && moved.target_cinfo.atomic);
    assert_eq!(std::fs::read(served.tree().join("to/moved")).unwrap(), b"content");
    for (old, new, status) in [
        (&b"link"[..], &b"to"[..], Status::Exist),
        (b"to", b"link", Status::Exist),
        (b"to", b"full", Status::NotEmpty),
        (b"none", b"x", Status::NoEnt),
    ] {
        let given = client.status(between("/", "/", rename(old, new))).await;
        assert_eq!(given, Err(status), "{} to {}", old.escape_ascii(), new.escape_ascii());
    }
    assert_eq!(client.status(between("/link", "/", rename(b"x", b"y"))).await, Err(Status::NotDir));
    assert_eq!(client.status(vec![ROOT, remove(b"full")]).await, Err(Status::NotEmpty));
    for (target, path) in [(&b"from"[..], "/"), (b"link", "/"), (b"moved", "/to")] {
        assert_eq!(client.status(then(walk(path), [remove(target)])).await, Ok(()));
    }
    assert_eq!(client.status(vec![ROOT, remove(b"from")]).await, Err(Status::NoEnt));
}

#[tokio::test]
async fn attributes_are_told_and_set() {
    let served = serve_root().await;
    let path = served.tree().join("file");
    std::fs::write(&path, b"0123456789").unwrap();
    let mut client = served.client(0).await;
    let asked: Vec<Attr> = (0..87).filter_map(Attr::from_number).filter(|attr| !unreadable(*attr)).collect();
    let all = client.getattr(walk("/file"), &asked).await;
    let metadata = std::fs::metadata(&path).unwrap();
    let fhsize = client.handle("/file").await;
    assert_eq!((all.size, all.fileid, all.numlinks), (Some(10), Some(metadata.ino()), Some(1)));
    assert_eq!((all.filehandle, all.ftype, all.lease_time), (Some(fhsize), Some(Ftype::Reg), Some(90)));
    assert_eq!(all.owner.as_ref().map(|owner| owner.to_vec()), Some(metadata.uid().to_string().into_bytes()));
    let supported = all.supported_attrs.unwrap();
    let write_only = Bitmap::of(&[Attr::TimeAccessSet, Attr::TimeModifySet]);
    assert_eq!(all.attributes(), supported - write_only, "what is supported is told, and nothing else");
    let mandatory = (0..12).chain([19]).all(|number| supported.contains_bit(number));
    assert!(mandatory, "{supported:?}");

    let time = Nfstime { seconds: 1_000_000, nseconds: 5000 };
    let set = Fattr {
        mode: Some(0o640),
        size: Some(4),
        owner: Limited::new(&b"17@example.org"[..]),
        time_modify_set: Some(Settime::SetToClientTime(time)),
        ..Fattr::default()
    };
    let asked = set.attributes();
    let done = client.last::<op::Setattr>(then(walk("/file"), [setattr(set)])).await;
    assert_eq!(done.attrsset, asked);
    let metadata = std::fs::metadata(&path).unwrap();
    let now = (metadata.permissions().mode() & 0o7777, metadata.len(), metadata.uid(), metadata.mtime());
    assert_eq!(now, (0o640, 4, 17, 1_000_000));
    let bad_owner = Fattr { owner: Limited::new(&b"nobody of that name"[..]), ..Fattr::default() };
    for (bad, status) in [
        (Fattr { numlinks: Some(2), ..Fattr::default() }, Status::Inval),
        (Fattr { hidden: Some(true), ..Fattr::default() }, Status::AttrNotSupp),
        (Fattr { mode: Some(0o10000), ..Fattr::default() }, Status::Inval),
        (bad_owner, Status::BadOwner),
    ] {
        assert_eq!(client.status(then(walk("/file"), [setattr(bad)])).await, Err(status));
    }
    let write_only = client.status(vec![ROOT, getattr(&[Attr::TimeAccessSet])]).await;
    assert_eq!(write_only, Err(Status::Inval));
}

fn unreadable(attr: Attr) -> bool {
    matches!(attr, Attr::TimeAccessSet | Attr::TimeModifySet | Attr::ModeUmask)
}

#[tokio::test]
async fn attributes_are_compared() {
    let served = serve_root().await;
    std::fs::write(served.tree().join("file"), b"0123456789").unwrap();
    let mut client = served.client(0).await;
    let verify = |size| VerifyArgs {
        obj_attributes: ArgFattr::from(Fattr {
            size: Some(size),
            ftype: Some(Ftype::Reg),
            ..Fattr::default()
        }),
    };
    for (size, verified, nverified) in [(10, Ok(()), Err(Status::Same)), (11, Err(Status::NotSame), Ok(()))] {
        assert_eq!(client.status(then(walk("/file"), [ArgOp::Verify(verify(size))])).await, verified);
        assert_eq!(client.status(then(walk("/file"), [ArgOp::Nverify(verify(size))])).await, nverified);
    }
    let unsupported = Fattr { archive: Some(true), ..Fattr::default() };
    let unsupported = VerifyArgs { obj_attributes: ArgFattr::from(unsupported) };
    assert_eq!(client.status(vec![ROOT, ArgOp::Verify(unsupported)]).await, Err(Status::AttrNotSupp));
}

#[tokio::test]
async fn data_is_written_committed_and_read() {
    let served = serve_root().await;
    let path = served.tree().join("file");
    std::fs::write(&path, b"").unwrap();
    let mut client = served.client(0).await;
    let content: Vec<u8> = (0..1_000_000u32).map(|at| (at % 251) as u8).collect();
    let written = client.last::<op::Write>(then(walk("/file"), [write(0, &content)])).await;
    assert_eq!(written.count as usize, content.len());
    let commit = ArgOp::Commit(CommitArgs { offset: 0, count: 0 });
    assert_eq!(client.last::<op::Commit>(then(walk("/file"), [commit])).await.writeverf, written.writeverf);
    assert!(std::fs::read(&path).unwrap() == content);
    for count in [1, 1000, 65_536, 999_999] {
        let data = client.last::<op::Read>(then(walk("/file"), [read(1, count)])).await;
        assert!(data.data.to_bytes().unwrap() == content[1..=count as usize], "{count} bytes");
        assert_eq!(data.eof, count == 999_999);
    }
    for (offset, count) in [(1_000_000, 10), (u64::MAX, 10), (u64::MAX, u32::MAX)] {
        let behind = client.last::<op::Read>(then(walk("/file"), [read(offset, count)])).await;
        assert!(behind.eof && behind.data.is_empty(), "{count} bytes at {offset}");
    }
    assert_eq!(client.status(then(walk("/file"), [write(u64::MAX - 1, b"xy")])).await, Err(Status::FBig));
    let overflow = ArgOp::Commit(CommitArgs { offset: u64::MAX, count: 1 });
    assert_eq!(client.status(then(walk("/file"), [overflow])).await, Err(Status::Inval));
}

#[tokio::test]
async fn access_tells_what_is_granted_of_what_is_known() {
    let served = serve_root().await;
    std::fs::write(served.tree().join("file"), b"").unwrap();
    let mut client = served.client(0).await;
    let access = |access| ArgOp::Access(AccessArgs { access });
    let file = client.last::<op::Access>(then(walk("/file"), [access(0x3f)])).await;
    assert_eq!((file.supported, file.access), (0x2d, 0x0d), "a file of mode 0644, for root");
    let directory = client.last::<op::Access>(vec![ROOT, access(0x3f)]).await;
    assert_eq!((directory.supported, directory.access), (0x1f, 0x1f));
    assert_eq!(client.status(vec![ROOT, access(0x40)]).await, Err(Status::Inval));
}

fn readdir(cookie: u64, maxcount: u32, attributes: &[Attr]) -> ArgOp {
    verified(cookie, [0; 8], maxcount, attributes)
}

fn verified(cookie: u64, cookieverf: [u8; 8], maxcount: u32, attributes: &[Attr]) -> ArgOp {
    let attr_request = Bitmap::of(attributes);
    ArgOp::Readdir(ReaddirArgs { cookie, cookieverf, dircount: maxcount / 4, maxcount, attr_request })
}

async fn list(client: &mut Client, maxcount: u32, attributes: &[Attr]) -> Vec<ReaddirOk> {
    let mut parts: Vec<ReaddirOk> = Vec::new();
    let (mut cookie, mut verifier) = (0, [0; 8]);
    while !parts.last().is_some_and(|part| part.eof) {
        let asked = verified(cookie, verifier, maxcount, attributes);
        let part = client.last::<op::Readdir>(vec![ROOT, asked]).await;
        assert!(xdr::to_bytes(&part).unwrap().len() <= maxcount as usize);
        cookie = part.entries.last().map_or(cookie, |entry| entry.cookie);
        verifier = part.cookieverf;
        parts.push(part);
    }
    parts
}

#[tokio::test]
async fn directories_are_listed_whole_in_parts_that_fit() {
    let served = serve_root().await;
    for number in 0..300 {
        std::fs::write(served.tree().join(format!("{number:03}{}", "n".repeat(number % 60))), b"").unwrap();
    }
    let mut client = served.client(0).await;
    let attributes = [Attr::Type, Attr::Fileid, Attr::RdattrError, Attr::Owner, Attr::Filehandle];
    for (maxcount, attributes) in
        [(256, &[][..]), (600, &[Attr::Fileid]), (1000, &attributes), (1 << 20, &attributes)]
    {
        let parts = list(&mut client, maxcount, attributes).await;
        let mut names = std::collections::BTreeSet::new();
        for entry in parts.iter().flat_map(|part| part.entries.iter()) {
            assert!(entry.cookie > 2);
            assert_eq!(entry.attrs.attributes(), Bitmap::of(attributes));
            assert!(names.insert(entry.name.to_vec()), "{:?} comes twice", entry.name);
        }
        assert_eq!(names.len(), 300, "in parts of {maxcount} bytes");
    }
    for (operation, status) in [
        (readdir(1, 4096, &[]), Status::BadCookie),
        (readdir(2, 4096, &[]), Status::BadCookie),
        (verified(0, [1; 8], 4096, &[]), Status::BadCookie),
        (readdir(0, 0, &[]), Status::TooSmall),
        (readdir(0, 30, &[]), Status::TooSmall),
        (readdir(0, 4096, &[Attr::TimeModifySet]), Status::Inval),
    ] {
        let shown = format!("{operation:?}");
        assert_eq!(client.status(vec![ROOT, operation]).await, Err(status), "{shown}");
    }
}
