//! Each procedure of RFC 1094, byte by byte.

use bytes::Bytes;
use xdr::LinkedList;

use super::wire::{Seed, args, results, text};
use crate::Reply::{Fail, Ok};
use crate::nfs2::*;

const FATTR: &str = "2 16877 3 1000 100 512 4096 0 8 7 42 11 12 13 14 15 16";
const FATTR_VALUE: Fattr = Fattr {
    ftype: Ftype::Dir,
    mode: 0o40_755,
    nlink: 3,
    uid: 1000,
    gid: 100,
    size: 512,
    blocksize: 4096,
    rdev: 0,
    blocks: 8,
    fsid: 7,
    fileid: 42,
    atime: Timeval { seconds: 11, useconds: 12 },
    mtime: Timeval { seconds: 13, useconds: 14 },
    ctime: Timeval { seconds: 15, useconds: 16 },
};
const SATTR: &str = "420 4294967295 100 0 1 2 4294967295 4294967295";
const SATTR_VALUE: Sattr = Sattr {
    mode: 0o644,
    uid: KEEP,
    gid: 100,
    size: 0,
    atime: Timeval { seconds: 1, useconds: 2 },
    mtime: Timeval { seconds: KEEP, useconds: KEEP },
};
const HANDLE: Handle = [0xab; 32];
const H: &str = "=abababababababababababababababababababababababababababababababab";

fn place(name: &'static str) -> DirOpArgs {
    DirOpArgs { dir: HANDLE, name: text(name) }
}

/// All examples. Making an example compares it with its bytes.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    seeds.extend(files());
    seeds.extend(names());
    seeds.extend([
        args::<call::Null>(&(), ""),
        args::<call::Root>(&(), ""),
        args::<call::Writecache>(&(), ""),
        args::<call::Readdir>(&ReaddirArgs { dir: HANDLE, cookie: 0, count: 4096 }, &format!("{H} 0 4096")),
        results::<call::Readdir>(
            &Ok(ReaddirOk {
                entries: LinkedList::new(vec![Entry { fileid: 42, name: text("hello"), cookie: 3 }]).unwrap(),
                eof: true,
            }),
            "0 1 42 \"hello\" 3 0 1",
        ),
        args::<call::Statfs>(&HANDLE, H),
        results::<call::Statfs>(
            &Ok(StatfsOk { tsize: 8192, bsize: 4096, blocks: 3, bfree: 2, bavail: 1 }),
            "0 8192 4096 3 2 1",
        ),
    ]);
    seeds
}

fn files() -> Vec<Seed> {
    let data = || Bytes::from_static(b"hello").into();
    let write = WriteArgs { file: HANDLE, beginoffset: 0, offset: 4096, totalcount: 0, data: data() };
    vec![
        args::<call::Getattr>(&HANDLE, H),
        results::<call::Getattr>(&Ok(FATTR_VALUE), &format!("0 {FATTR}")),
        results::<call::Getattr>(&Fail(Stat::Stale, ()), "70"),
        args::<call::Setattr>(&SattrArgs { file: HANDLE, attributes: SATTR_VALUE }, &format!("{H} {SATTR}")),
        results::<call::Setattr>(&Ok(FATTR_VALUE), &format!("0 {FATTR}")),
        args::<call::Readlink>(&HANDLE, H),
        results::<call::Readlink>(&Ok(text("../there")), "0 \"../there\""),
        args::<call::Read>(
            &ReadArgs { file: HANDLE, offset: 8192, count: 8192, totalcount: 0 },
            &format!("{H} 8192 8192 0"),
        ),
        results::<call::Read>(
            &Ok(ReadOk { attributes: FATTR_VALUE, data: data() }),
            &format!("0 {FATTR} \"hello\""),
        ),
        args::<call::Write>(&write, &format!("{H} 0 4096 0 \"hello\"")),
        results::<call::Write>(&Ok(FATTR_VALUE), &format!("0 {FATTR}")),
        results::<call::Write>(&Fail(Stat::Wflush, ()), "99"),
    ]
}

fn names() -> Vec<Seed> {
    let found = Ok(DirOpOk { file: HANDLE, attributes: FATTR_VALUE });
    let found_wire = format!("0 {H} {FATTR}");
    let create = CreateArgs { location: place("hello"), attributes: SATTR_VALUE };
    let symlink = SymlinkArgs { from: place("link"), to: text("target"), attributes: SATTR_VALUE };
    vec![
        args::<call::Lookup>(&place("hello"), &format!("{H} \"hello\"")),
        results::<call::Lookup>(&found, &found_wire),
        results::<call::Lookup>(&Fail(Stat::NoEnt, ()), "2"),
        args::<call::Create>(&create, &format!("{H} \"hello\" {SATTR}")),
        results::<call::Create>(&found, &found_wire),
        args::<call::Remove>(&place("hello"), &format!("{H} \"hello\"")),
        results::<call::Remove>(&Ok(()), "0"),
        args::<call::Rename>(
            &RenameArgs { from: place("old"), to: place("new") },
            &format!("{H} \"old\" {H} \"new\""),
        ),
        results::<call::Rename>(&Fail(Stat::Other(18), ()), "18"),
        args::<call::Link>(&LinkArgs { from: HANDLE, to: place("new") }, &format!("{H} {H} \"new\"")),
        results::<call::Link>(&Ok(()), "0"),
        args::<call::Symlink>(&symlink, &format!("{H} \"link\" \"target\" {SATTR}")),
        results::<call::Symlink>(&Ok(()), "0"),
        args::<call::Mkdir>(&create, &format!("{H} \"hello\" {SATTR}")),
        results::<call::Mkdir>(&found, &found_wire),
        args::<call::Rmdir>(&place("hello"), &format!("{H} \"hello\"")),
        results::<call::Rmdir>(&Fail(Stat::NotEmpty, ()), "66"),
    ]
}

#[test]
fn every_procedure_is_as_rfc_1094_writes_it() {
    let seeds = seeds();
    for procedure in Procedure::ALL {
        assert!(
            seeds.iter().any(|seed| u32::from(seed.input[0]) == *procedure as u32),
            "{}",
            procedure.name()
        );
    }
    assert_eq!(Procedure::ALL.len(), 18);
}
