//! Each procedure of NQNFS byte by byte, as in the appendix of Macklem's paper.

use bytes::Bytes;
use xdr::LinkedList;

use super::wire::{Seed, args, results, text};
use crate::Reply::{Fail, Ok};
use crate::nfs2;
use crate::nfs2::Ftype;
use crate::nqnfs::*;

/// type mode nlink uid gid | size | blocksize rdev | bytes | fsid fid | atime mtime ctime | flags gen | rev
const FATTR: &str = "2 16877 3 1000 100 q4294967808 4096 0 q8192 7 42 11 12 13 14 15 16 0 9 q77";
const FATTR_VALUE: Fattr = Fattr {
    ftype: Ftype::Dir,
    mode: 0o40_755,
    nlink: 3,
    uid: 1000,
    gid: 100,
    size: (1 << 32) + 512,
    blocksize: 4096,
    rdev: 0,
    bytes: 8192,
    fsid: 7,
    fid: 42,
    atime: Time { seconds: 11, nano_seconds: 12 },
    mtime: Time { seconds: 13, nano_seconds: 14 },
    ctime: Time { seconds: 15, nano_seconds: 16 },
    flags: 0,
    generation: 9,
    rev: 77,
};
const SATTR: &str = "420 4294967295 100 q0 1 2 4294967295 4294967295 4294967295 4294967295";
const SATTR_VALUE: Sattr =
    Sattr { mode: 0o644, gid: 100, size: 0, atime: Time { seconds: 1, nano_seconds: 2 }, ..Sattr::KEEP };
const HANDLE: Handle = [0xab; 32];
const H: &str = "=abababababababababababababababababababababababababababababababab";
const PROMISE: Promise = Promise { cachable: true, duration: 30, rev: 77 };

fn place(name: &'static str) -> nfs2::DirOpArgs {
    nfs2::DirOpArgs { dir: HANDLE, name: text(name) }
}

fn plain<T>(args: T) -> Leased<T> {
    Leased { lease: LeaseRequest::None, args }
}

fn reading<T>(args: T) -> Leased<T> {
    Leased { lease: LeaseRequest::Read(30), args }
}

fn done<T>(results: T) -> Reply<T> {
    Ok(Granted { lease: LeaseResult::None, results })
}

/// All examples. Making an example compares it with its bytes.
pub fn seeds() -> Vec<Seed> {
    [files(), data(), names(), directories(), leases()].concat()
}

fn files() -> Vec<Seed> {
    vec![
        args::<call::Null>(&(), ""),
        args::<call::Root>(&(), ""),
        args::<call::Writecache>(&(), ""),
        args::<call::Getattr>(&plain(HANDLE), &format!("0 {H}")),
        args::<call::Getattr>(&reading(HANDLE), &format!("1 30 {H}")),
        results::<call::Getattr>(&done(FATTR_VALUE), &format!("0 0 {FATTR}")),
        results::<call::Getattr>(
            &Ok(Granted { lease: LeaseResult::Read(PROMISE), results: FATTR_VALUE }),
            &format!("0 1 1 30 q77 {FATTR}"),
        ),
        results::<call::Getattr>(&Fail(Stat::Expired, ()), "500"),
        results::<call::Getattr>(&Fail(Stat::Trylater, ()), "501"),
        results::<call::Getattr>(&Fail(Stat::Autherr, ()), "502"),
        args::<call::Setattr>(
            &plain(SattrArgs { file: HANDLE, attributes: SATTR_VALUE }),
            &format!("0 {H} {SATTR}"),
        ),
        results::<call::Setattr>(&done(FATTR_VALUE), &format!("0 0 {FATTR}")),
        args::<call::Readlink>(&plain(HANDLE), &format!("0 {H}")),
        results::<call::Readlink>(&done(text("../there")), "0 0 \"../there\""),
        args::<call::Statfs>(&plain(HANDLE), &format!("0 {H}")),
        results::<call::Statfs>(
            &done(StatfsOk {
                tsize: 8192,
                bsize: 4096,
                blocks: 5,
                bfree: 4,
                bavail: 3,
                files: 2,
                files_free: 1,
            }),
            "0 0 8192 4096 5 4 3 2 1",
        ),
        args::<call::Access>(
            &plain(AccessArgs { file: HANDLE, read: true, write: false, exec: true }),
            &format!("0 {H} 1 0 1"),
        ),
        results::<call::Access>(&done(()), "0 0"),
        results::<call::Access>(&Fail(Stat::V2(nfs2::Stat::Acces), ()), "13"),
    ]
}

fn data() -> Vec<Seed> {
    let bytes = || Bytes::from_static(b"hello").into();
    let refused = Promise { cachable: false, duration: 30, rev: 78 };
    vec![
        args::<call::Read>(
            &reading(ReadArgs { file: HANDLE, offset: 1 << 33, count: 8192 }),
            &format!("1 30 {H} q8589934592 8192"),
        ),
        results::<call::Read>(
            &Ok(Granted {
                lease: LeaseResult::Read(PROMISE),
                results: ReadOk { attributes: FATTR_VALUE, data: bytes() },
            }),
            &format!("0 1 1 30 q77 {FATTR} \"hello\""),
        ),
        args::<call::Write>(
            &Leased {
                lease: LeaseRequest::Write(60),
                args: WriteArgs { file: HANDLE, offset: 4096, append: false, data: bytes() },
            },
            &format!("2 60 {H} q4096 0 \"hello\""),
        ),
        args::<call::Write>(
            &plain(WriteArgs { file: HANDLE, offset: 0, append: true, data: bytes() }),
            &format!("0 {H} q0 1 \"hello\""),
        ),
        results::<call::Write>(
            &Ok(Granted { lease: LeaseResult::Write(refused), results: FATTR_VALUE }),
            &format!("0 2 0 30 q78 {FATTR}"),
        ),
        results::<call::Write>(&Fail(Stat::V2(nfs2::Stat::NoSpc), ()), "28"),
    ]
}

fn names() -> Vec<Seed> {
    let made = done(DirOpOk { file: HANDLE, attributes: FATTR_VALUE });
    let made_wire = format!("0 0 {H} {FATTR}");
    let create = plain(CreateArgs { location: place("hello"), attributes: SATTR_VALUE });
    let symlink = SymlinkArgs { from: place("link"), to: text("target"), attributes: SATTR_VALUE };
    vec![
        args::<call::Lookup>(
            &reading(LookupArgs { duration: 30, dir: HANDLE, name: text("hello") }),
            &format!("1 30 30 {H} \"hello\""),
        ),
        // The first lease is on the directory, the second on the object of the name.
        results::<call::Lookup>(
            &Ok(Granted {
                lease: LeaseResult::None,
                results: LookupOk {
                    lookup_lease: LeaseResult::Read(PROMISE),
                    file: HANDLE,
                    attributes: FATTR_VALUE,
                },
            }),
            &format!("0 0 1 1 30 q77 {H} {FATTR}"),
        ),
        results::<call::Lookup>(&Fail(Stat::V2(nfs2::Stat::NoEnt), ()), "2"),
        args::<call::Create>(&create, &format!("0 {H} \"hello\" {SATTR}")),
        results::<call::Create>(&made, &made_wire),
        args::<call::Mkdir>(&create, &format!("0 {H} \"hello\" {SATTR}")),
        results::<call::Mkdir>(&made, &made_wire),
        args::<call::Remove>(&plain(place("hello")), &format!("0 {H} \"hello\"")),
        results::<call::Remove>(&done(()), "0 0"),
        args::<call::Rmdir>(&plain(place("hello")), &format!("0 {H} \"hello\"")),
        results::<call::Rmdir>(&Fail(Stat::V2(nfs2::Stat::NotEmpty), ()), "66"),
        args::<call::Rename>(
            &plain(RenameArgs { from: place("old"), to: place("new") }),
            &format!("0 {H} \"old\" {H} \"new\""),
        ),
        results::<call::Rename>(&Fail(Stat::V2(nfs2::Stat::Other(18)), ()), "18"),
        args::<call::Link>(
            &plain(LinkArgs { from: HANDLE, to: place("new") }),
            &format!("0 {H} {H} \"new\""),
        ),
        results::<call::Link>(&done(()), "0 0"),
        args::<call::Symlink>(&plain(symlink), &format!("0 {H} \"link\" \"target\" {SATTR}")),
        results::<call::Symlink>(&done(()), "0 0"),
    ]
}

fn directories() -> Vec<Seed> {
    let old = nfs2::Entry { fileid: 42, name: text("hello"), cookie: 3 };
    let entry = Entry {
        cachable: 1,
        duration: 30,
        rev: 77,
        entry_fh: HANDLE,
        entry_attrib: FATTR_VALUE,
        fid: 42,
        name: text("hello"),
        cookie: 3,
    };
    vec![
        args::<call::Readdir>(
            &plain(ReaddirArgs { dir: HANDLE, cookie: 0, count: 4096 }),
            &format!("0 {H} 0 4096"),
        ),
        results::<call::Readdir>(
            &done(ReaddirOk { entries: LinkedList::new(vec![old]).unwrap(), eof: true }),
            "0 0 1 42 \"hello\" 3 0 1",
        ),
        args::<call::Readdirlook>(
            &reading(ReaddirlookArgs { file: HANDLE, cookie: 3, cnt: 8192, duration: 30 }),
            &format!("1 30 {H} 3 8192 30"),
        ),
        results::<call::Readdirlook>(
            &Ok(Granted {
                lease: LeaseResult::Read(PROMISE),
                results: ReaddirlookOk { entries: LinkedList::new(vec![entry]).unwrap(), eof: true },
            }),
            &format!("0 1 1 30 q77 1 1 30 q77 {H} {FATTR} 42 \"hello\" 3 0 1"),
        ),
    ]
}

fn leases() -> Vec<Seed> {
    vec![
        args::<call::Getlease>(
            &GetleaseArgs { file: HANDLE, rw: Cachetype::Write, duration: 30 },
            &format!("{H} 2 30"),
        ),
        results::<call::Getlease>(
            &Ok(GetleaseOk { promise: PROMISE, attributes: FATTR_VALUE }),
            &format!("0 1 30 q77 {FATTR}"),
        ),
        results::<call::Getlease>(&Fail(Stat::Trylater, ()), "501"),
        args::<call::Vacated>(&HANDLE, H),
        args::<call::Evicted>(&HANDLE, H),
    ]
}

#[test]
fn every_procedure_is_as_the_appendix_writes_it() {
    let seeds = seeds();
    for procedure in Procedure::ALL {
        assert!(
            seeds.iter().any(|seed| u32::from(seed.input[0]) == *procedure as u32),
            "{}",
            procedure.name()
        );
    }
    assert_eq!((PROGRAM, VERSION), (300_105, 1));
    assert_eq!(
        Procedure::ALL.iter().map(|procedure| *procedure as u32).collect::<Vec<_>>(),
        (0..=22).collect::<Vec<_>>()
    );
}
