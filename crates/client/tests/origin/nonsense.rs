//! Tests of origins with impossible answers: each is an I/O error, none is passed on, and none causes a
//! panic.

use bytes::Bytes;
use client::{Nfs3, Origin as _};
use protocol::Reply;
use protocol::nfs3::{self, Ftype, call};
use vfs::{
    CreateHow, Entry, FileSystem, FileType, ReadDir, Result, SetAttributes, Stability, StateidBasis, Status,
};

use crate::scripted::*;

/// A mounted origin that gives this one answer to everything.
async fn answering(act: impl Fn() -> Act + Send + 'static) -> (Origin, Nfs3) {
    let origin = Origin::start(move |_| act()).await;
    let fs = origin.mount("").await;
    (origin, fs)
}

fn is_nonsense<T>(fs: &Nfs3, times: u64, result: Result<T>) {
    assert_eq!(result.map(drop).unwrap_err().status, Status::Io);
    assert_eq!(fs.nonsense_heard(), times);
}

fn read_ok(count: u32, eof: bool, data: &'static [u8]) -> Act {
    let data = Bytes::from_static(data).into();
    reply::<call::Read>(&Reply::Ok(nfs3::ReadOk { file_attributes: None, count, eof, data }))
}

#[tokio::test]
async fn reads_of_more_than_was_asked() {
    for (count, eof, data) in
        [(9, true, &b"012345678"[..]), (2, true, b"0123"), (4, true, b"01"), (0, false, b"")]
    {
        let (_origin, fs) = answering(move || read_ok(count, eof, data)).await;
        is_nonsense(&fs, 1, fs.read(&caller(), &handle(b"f"), StateidBasis::Anonymous, 0, 8).await);
    }
}

#[tokio::test]
async fn reads_of_something_that_is_no_file() {
    let (_origin, fs) = answering(|| {
        reply::<call::Read>(&Reply::Ok(nfs3::ReadOk {
            file_attributes: Some(fattr(Ftype::Dir, 5)),
            count: 1,
            eof: true,
            data: Bytes::from_static(b"0").into(),
        }))
    })
    .await;
    is_nonsense(&fs, 1, fs.read(&caller(), &handle(b"f"), StateidBasis::Anonymous, 0, 8).await);
}

#[tokio::test]
async fn writes_of_more_than_was_sent_or_less_durable() {
    let file_wcc = nfs3::WccData::default();
    for (count, committed) in
        [(6, nfs3::StableHow::FileSync), (0, nfs3::StableHow::FileSync), (5, nfs3::StableHow::Unstable)]
    {
        let (_origin, fs) = answering(move || {
            reply::<call::Write>(&Reply::Ok(nfs3::WriteOk { file_wcc, count, committed, verf: [0; 8] }))
        })
        .await;
        let data = Bytes::from_static(b"hello");
        let written =
            fs.write(&caller(), &handle(b"f"), StateidBasis::Anonymous, 0, data, Stability::DataSync).await;
        is_nonsense(&fs, 1, written);
    }
}

#[tokio::test]
async fn a_handle_that_changes_its_type() {
    let origin = Origin::start(|seen| {
        let ftype = if seen.nth == 0 { Ftype::Reg } else { Ftype::Lnk };
        reply::<call::Getattr>(&Reply::Ok(nfs3::GetattrOk { obj_attributes: fattr(ftype, 5) }))
    })
    .await;
    let fs = origin.mount("").await;
    assert_eq!(fs.getattr(&caller(), &handle(b"f")).await.unwrap().file_type, FileType::Regular);
    is_nonsense(&fs, 1, fs.getattr(&caller(), &handle(b"f")).await);
    is_nonsense(&fs, 2, fs.getattr(&caller(), &handle(b"f")).await);
    assert_eq!(fs.getattr(&caller(), &handle(b"g")).await.unwrap().file_type, FileType::Symlink);
}

fn listing(name: &'static [u8], cookie: u64, eof: bool) -> Act {
    let entry = nfs3::Entry { fileid: 1, name: nfs3::Filename::new(name).unwrap(), cookie };
    reply::<call::Readdir>(&Reply::Ok(nfs3::ReaddirOk {
        dir_attributes: None,
        cookieverf: [0; 8],
        entries: xdr::LinkedList::new(vec![entry]).unwrap(),
        eof,
    }))
}

#[tokio::test]
async fn names_that_cannot_be() {
    let part = ReadDir {
        cookie: 0,
        verifier: [0; 8],
        bytes: 8192,
        plus: false,
        want_directory_lease: false,
        names_suffice: false,
    };
    let long = vec![b'x'; 256].leak();
    for bad in [&b"a/b"[..], b"/", b"", b"a\0b", long] {
        let (_origin, fs) = answering(move || listing(bad, 3, true)).await;
        is_nonsense(&fs, 1, fs.readdir(&caller(), &handle(b"d"), part).await);
    }
    // An entry that leads back to the start, and directories whose listing never advances.
    for (name, cookie) in [(&b"a"[..], 0), (b".", 0), (b".", 1)] {
        let (_origin, fs) = answering(move || listing(name, cookie, false)).await;
        is_nonsense(&fs, 1, fs.readdir(&caller(), &handle(b"d"), part).await);
    }
    let (_origin, fs) = answering(|| listing(b"..", 2, true)).await;
    let listed = fs.readdir(&caller(), &handle(b"d"), part).await.unwrap();
    assert_eq!((listed.entries, listed.eof), (Vec::<Entry>::new(), true));
}

#[tokio::test]
async fn handles_of_no_bytes() {
    let (_origin, fs) = answering(|| {
        reply::<call::Lookup>(&Reply::Ok(nfs3::LookupOk {
            object: wire_handle(b""),
            obj_attributes: None,
            dir_attributes: None,
        }))
    })
    .await;
    is_nonsense(&fs, 1, fs.lookup(&caller(), &handle(b"d"), &name(b"x"), vfs::Want::None).await);
    is_nonsense(&fs, 2, fs.parent(&caller(), &handle(b"d")).await);
}

#[tokio::test]
async fn what_was_made_is_of_another_type() {
    let (_origin, fs) = answering(|| {
        reply::<call::Mkdir>(&Reply::Ok(nfs3::CreateOk {
            obj: Some(wire_handle(b"new")),
            obj_attributes: Some(fattr(Ftype::Reg, 0)),
            dir_wcc: nfs3::WccData::default(),
        }))
    })
    .await;
    let set = SetAttributes::default();
    is_nonsense(&fs, 1, fs.mkdir(&caller(), &handle(b"d"), &name(b"x"), &set, vfs::Want::None).await);
}

#[tokio::test]
async fn targets_that_lead_nowhere() {
    for target in [&b""[..], b"a\0b"] {
        let (_origin, fs) = answering(move || {
            let data = nfs3::Nfspath::new(target).unwrap();
            reply::<call::Readlink>(&Reply::Ok(nfs3::ReadlinkOk { symlink_attributes: None, data }))
        })
        .await;
        is_nonsense(&fs, 1, fs.readlink(&caller(), &handle(b"l")).await);
    }
}

#[tokio::test]
async fn results_that_do_not_decode() {
    let garbage = [&[][..], &[0, 0], &[0, 0, 0, 0, 0, 0, 0, 9], &[0, 0, 0, 0, 255, 255, 255, 255]];
    for bytes in garbage {
        let (_origin, fs) = answering(move || Act::Reply(bytes.to_vec())).await;
        let (asker, file, x) = (caller(), handle(b"f"), name(b"x"));
        let part = ReadDir {
            cookie: 0,
            verifier: [0; 8],
            bytes: 8192,
            plus: true,
            want_directory_lease: false,
            names_suffice: false,
        };
        let set = SetAttributes::default();
        is_nonsense(&fs, 1, fs.getattr(&asker, &file).await);
        is_nonsense(&fs, 2, fs.read(&asker, &file, StateidBasis::Anonymous, 0, 8).await);
        is_nonsense(&fs, 3, fs.readdir(&asker, &file, part).await);
        is_nonsense(&fs, 4, fs.create(&asker, &file, &x, CreateHow::Unchecked, &set).await);
    }
}

#[tokio::test]
async fn statuses_that_no_rfc_has() {
    let (_origin, fs) =
        answering(|| reply::<call::Getattr>(&Reply::Fail(nfs3::Status::Other(4711), ()))).await;
    assert_eq!(fs.getattr(&caller(), &handle(b"f")).await.unwrap_err().status, Status::Io);
}

/// A stream that is no RPC ends its connection, and the call is sent again on the next one.
#[tokio::test]
async fn streams_that_are_no_rpc() {
    use std::io::{Read, Write};
    let origin = Origin::start(|_| Act::NoAnswer).await;
    let fs = origin.mount("soft&timeo=3&retrans=1").await;
    // Something that is no NFS server takes the origin's place.
    let address = origin.address;
    drop(origin);
    let listener = loop {
        match std::net::TcpListener::bind(address) {
            Ok(listener) => break listener,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let impostor = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 16];
        let _ = stream.read(&mut request);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let failed = fs.root(&caller()).await.unwrap_err();
    assert_eq!(failed.status, Status::Io);
    impostor.join().unwrap();
}
