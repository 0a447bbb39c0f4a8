//! Each procedure of RFC 1813, byte by byte.

use bytes::Bytes;
use xdr::LinkedList;

use super::wire::{Seed, args, results, text};
use crate::Reply::{Fail, Ok};
use crate::nfs3::*;

const FATTR: &str = "1 420 1 1000 100 q5 q4096 8 1 q7 q42 11 12 13 14 15 16";
const FATTR_VALUE: Fattr = Fattr {
    ftype: Ftype::Reg,
    mode: 0o644,
    nlink: 1,
    uid: 1000,
    gid: 100,
    size: 5,
    used: 4096,
    rdev: Specdata { specdata1: 8, specdata2: 1 },
    fsid: 7,
    fileid: 42,
    atime: Nfstime { seconds: 11, nseconds: 12 },
    mtime: Nfstime { seconds: 13, nseconds: 14 },
    ctime: Nfstime { seconds: 15, nseconds: 16 },
};
const WCC: &str = "1 q4 3 0 15 16";
const WCC_VALUE: WccData = WccData {
    before: Some(WccAttr {
        size: 4,
        mtime: Nfstime { seconds: 3, nseconds: 0 },
        ctime: Nfstime { seconds: 15, nseconds: 16 },
    }),
    after: Some(FATTR_VALUE),
};
const VERIFIER: Verifier = *b"\x01\x02\x03\x04\x05\x06\x07\x08";

fn handle() -> Handle {
    Handle::new(b"\xca\xfe\xba\xbe\x01").unwrap()
}

fn place() -> DirOpArgs {
    DirOpArgs { dir: handle(), name: text("hello") }
}

fn sattr() -> Sattr {
    Sattr {
        mode: Some(0o600),
        uid: None,
        gid: Some(5),
        size: Some(1 << 32),
        atime: SetTime::SetToServerTime,
        mtime: SetTime::SetToClientTime(Nfstime { seconds: 9, nseconds: 8 }),
    }
}

const H: &str = "'cafebabe01";
const SATTR: &str = "1 384 0 1 5 1 q4294967296 1 2 9 8";

/// All examples. Making an example compares it with its bytes.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = vec![args::<call::Null>(&(), ""), results::<call::Null>(&(), "")];
    seeds.extend(attributes());
    seeds.extend(io());
    seeds.extend(making());
    seeds.extend(naming());
    seeds.extend(directories());
    seeds.extend(file_systems());
    seeds
}

fn attributes() -> Vec<Seed> {
    let set = SetattrArgs {
        object: handle(),
        new_attributes: sattr(),
        guard: Some(Nfstime { seconds: 15, nseconds: 16 }),
    };
    vec![
        args::<call::Getattr>(&GetattrArgs { object: handle() }, H),
        results::<call::Getattr>(&Ok(GetattrOk { obj_attributes: FATTR_VALUE }), &format!("0 {FATTR}")),
        results::<call::Getattr>(&Fail(Status::Stale, ()), "70"),
        args::<call::Setattr>(&set, &format!("{H} {SATTR} 1 15 16")),
        results::<call::Setattr>(&Ok(SetattrOk { obj_wcc: WCC_VALUE }), &format!("0 {WCC} 1 {FATTR}")),
        results::<call::Setattr>(&Fail(Status::NotSync, WccData::default()), "10002 0 0"),
        args::<call::Access>(&AccessArgs { object: handle(), access: 0x3f }, &format!("{H} 63")),
        results::<call::Access>(&Ok(AccessOk { obj_attributes: None, access: 3 }), "0 0 3"),
        results::<call::Access>(&Fail(Status::Other(4711), Some(FATTR_VALUE)), &format!("4711 1 {FATTR}")),
    ]
}

fn io() -> Vec<Seed> {
    let data = || Bytes::from_static(b"hello").into();
    let write =
        WriteArgs { file: handle(), offset: 1 << 33, count: 5, stable: StableHow::DataSync, data: data() };
    let written = WriteOk { file_wcc: WCC_VALUE, count: 5, committed: StableHow::FileSync, verf: VERIFIER };
    let read = ReadOk { file_attributes: Some(FATTR_VALUE), count: 5, eof: true, data: data() };
    vec![
        args::<call::Readlink>(&ReadlinkArgs { symlink: handle() }, H),
        results::<call::Readlink>(
            &Ok(ReadlinkOk { symlink_attributes: None, data: text("../there") }),
            "0 0 \"../there\"",
        ),
        results::<call::Readlink>(&Fail(Status::Inval, None), "22 0"),
        args::<call::Read>(
            &ReadArgs { file: handle(), offset: 4096, count: 65536 },
            &format!("{H} q4096 65536"),
        ),
        results::<call::Read>(&Ok(read), &format!("0 1 {FATTR} 5 1 \"hello\"")),
        results::<call::Read>(&Fail(Status::IsDir, None), "21 0"),
        args::<call::Write>(&write, &format!("{H} q8589934592 5 1 \"hello\"")),
        results::<call::Write>(&Ok(written), &format!("0 {WCC} 1 {FATTR} 5 2 =0102030405060708")),
        results::<call::Write>(&Fail(Status::NoSpc, WCC_VALUE), &format!("28 {WCC} 1 {FATTR}")),
        args::<call::Commit>(&CommitArgs { file: handle(), offset: 4096, count: 0 }, &format!("{H} q4096 0")),
        results::<call::Commit>(
            &Ok(CommitOk { file_wcc: WccData::default(), verf: VERIFIER }),
            "0 0 0 =0102030405060708",
        ),
        results::<call::Commit>(&Fail(Status::Io, WccData::default()), "5 0 0"),
    ]
}

fn making() -> Vec<Seed> {
    let made = CreateOk { obj: Some(handle()), obj_attributes: Some(FATTR_VALUE), dir_wcc: WCC_VALUE };
    let made_wire = format!("0 1 {H} 1 {FATTR} {WCC} 1 {FATTR}");
    let bare = CreateOk { obj: None, obj_attributes: None, dir_wcc: WccData::default() };
    let create = |how| CreateArgs { location: place(), how };
    let mknod = |what| MknodArgs { location: place(), what };
    let device = Specdata { specdata1: 8, specdata2: 3 };
    let symlink =
        SymlinkArgs { location: place(), symlink_attributes: sattr(), symlink_data: text("target") };
    vec![
        args::<call::Create>(
            &create(CreateHow::Unchecked(Sattr::default())),
            &format!("{H} \"hello\" 0 0 0 0 0 0 0"),
        ),
        args::<call::Create>(&create(CreateHow::Guarded(sattr())), &format!("{H} \"hello\" 1 {SATTR}")),
        args::<call::Create>(
            &create(CreateHow::Exclusive(VERIFIER)),
            &format!("{H} \"hello\" 2 =0102030405060708"),
        ),
        results::<call::Create>(&Ok(made), &made_wire),
        results::<call::Create>(&Fail(Status::Exist, WccData::default()), "17 0 0"),
        args::<call::Mkdir>(
            &MkdirArgs { location: place(), attributes: sattr() },
            &format!("{H} \"hello\" {SATTR}"),
        ),
        results::<call::Mkdir>(&Ok(bare), "0 0 0 0 0"),
        results::<call::Mkdir>(&Fail(Status::Dquot, WCC_VALUE), &format!("69 {WCC} 1 {FATTR}")),
        args::<call::Symlink>(&symlink, &format!("{H} \"hello\" {SATTR} \"target\"")),
        results::<call::Symlink>(&Ok(made), &made_wire),
        results::<call::Symlink>(&Fail(Status::NotSupp, WccData::default()), "10004 0 0"),
        args::<call::Mknod>(&mknod(MknodData::Chr(sattr(), device)), &format!("{H} \"hello\" 4 {SATTR} 8 3")),
        args::<call::Mknod>(&mknod(MknodData::Blk(sattr(), device)), &format!("{H} \"hello\" 3 {SATTR} 8 3")),
        args::<call::Mknod>(&mknod(MknodData::Sock(sattr())), &format!("{H} \"hello\" 6 {SATTR}")),
        args::<call::Mknod>(&mknod(MknodData::Fifo(sattr())), &format!("{H} \"hello\" 7 {SATTR}")),
        args::<call::Mknod>(&mknod(MknodData::Other(1)), &format!("{H} \"hello\" 1")),
        results::<call::Mknod>(&Ok(made), &made_wire),
        results::<call::Mknod>(&Fail(Status::BadType, WccData::default()), "10007 0 0"),
    ]
}

fn naming() -> Vec<Seed> {
    let looked = LookupOk { object: handle(), obj_attributes: None, dir_attributes: Some(FATTR_VALUE) };
    let remove = RemoveArgs { object: place() };
    let removed = RemoveOk { dir_wcc: WCC_VALUE };
    let other = DirOpArgs { dir: Handle::new(b"\x09\x08\x07\x06").unwrap(), name: text("new") };
    let rename = RenameArgs { from: place(), to: other.clone() };
    let renamed = RenameRes { fromdir_wcc: WCC_VALUE, todir_wcc: WccData::default() };
    let linked = LinkRes { file_attributes: Some(FATTR_VALUE), linkdir_wcc: WCC_VALUE };
    vec![
        args::<call::Lookup>(&LookupArgs { what: place() }, &format!("{H} \"hello\"")),
        results::<call::Lookup>(&Ok(looked), &format!("0 {H} 0 1 {FATTR}")),
        results::<call::Lookup>(&Fail(Status::NoEnt, None), "2 0"),
        args::<call::Remove>(&remove, &format!("{H} \"hello\"")),
        results::<call::Remove>(&Ok(removed), &format!("0 {WCC} 1 {FATTR}")),
        results::<call::Remove>(&Fail(Status::Acces, WccData::default()), "13 0 0"),
        args::<call::Rmdir>(&remove, &format!("{H} \"hello\"")),
        results::<call::Rmdir>(&Ok(removed), &format!("0 {WCC} 1 {FATTR}")),
        results::<call::Rmdir>(&Fail(Status::NotEmpty, WccData::default()), "66 0 0"),
        args::<call::Rename>(&rename, &format!("{H} \"hello\" '09080706 \"new\"")),
        results::<call::Rename>(&Ok(renamed), &format!("0 {WCC} 1 {FATTR} 0 0")),
        results::<call::Rename>(&Fail(Status::Xdev, RenameRes::default()), "18 0 0 0 0"),
        args::<call::Link>(&LinkArgs { file: handle(), link: other }, &format!("{H} '09080706 \"new\"")),
        results::<call::Link>(&Ok(linked), &format!("0 1 {FATTR} {WCC} 1 {FATTR}")),
        results::<call::Link>(&Fail(Status::Mlink, LinkRes::default()), "31 0 0 0"),
    ]
}

fn directories() -> Vec<Seed> {
    let entry = |fileid, name, cookie| Entry { fileid, name: text(name), cookie };
    let listing = ReaddirOk {
        dir_attributes: None,
        cookieverf: VERIFIER,
        entries: LinkedList::new(vec![entry(1, ".", 1), entry(42, "hello", 1 << 40)]).unwrap(),
        eof: true,
    };
    let plus = ReaddirplusOk {
        dir_attributes: Some(FATTR_VALUE),
        cookieverf: VERIFIER,
        entries: LinkedList::new(vec![Entryplus {
            fileid: 42,
            name: text("hello"),
            cookie: 3,
            name_attributes: Some(FATTR_VALUE),
            name_handle: Some(handle()),
        }])
        .unwrap(),
        eof: false,
    };
    let read = ReaddirArgs { dir: handle(), cookie: 3, cookieverf: VERIFIER, count: 8192 };
    let read_plus =
        ReaddirplusArgs { dir: handle(), cookie: 0, cookieverf: [0; 8], dircount: 4096, maxcount: 32768 };
    vec![
        args::<call::Readdir>(&read, &format!("{H} q3 =0102030405060708 8192")),
        results::<call::Readdir>(
            &Ok(listing),
            "0 0 =0102030405060708 1 q1 \".\" q1 1 q42 \"hello\" q1099511627776 0 1",
        ),
        results::<call::Readdir>(&Fail(Status::BadCookie, None), "10003 0"),
        args::<call::Readdirplus>(&read_plus, &format!("{H} q0 =0000000000000000 4096 32768")),
        results::<call::Readdirplus>(
            &Ok(plus),
            &format!("0 1 {FATTR} =0102030405060708 1 q42 \"hello\" q3 1 {FATTR} 1 {H} 0 0"),
        ),
        results::<call::Readdirplus>(&Fail(Status::TooSmall, None), "10005 0"),
    ]
}

fn file_systems() -> Vec<Seed> {
    let object = FsArgs { object: handle() };
    let space = FsstatOk {
        obj_attributes: Some(FATTR_VALUE),
        tbytes: 1,
        fbytes: 2,
        abytes: 3,
        tfiles: 4,
        ffiles: 5,
        afiles: 6,
        invarsec: 7,
    };
    let info = FsinfoOk {
        obj_attributes: None,
        rtmax: 1,
        rtpref: 2,
        rtmult: 3,
        wtmax: 4,
        wtpref: 5,
        wtmult: 6,
        dtpref: 7,
        maxfilesize: 8,
        time_delta: Nfstime { seconds: 0, nseconds: 1 },
        properties: FSF3_LINK | FSF3_SYMLINK | FSF3_HOMOGENEOUS | FSF3_CANSETTIME,
    };
    let conf = PathconfOk {
        obj_attributes: None,
        linkmax: 32000,
        name_max: 255,
        no_trunc: true,
        chown_restricted: true,
        case_insensitive: false,
        case_preserving: true,
    };
    vec![
        args::<call::Fsstat>(&object, H),
        results::<call::Fsstat>(&Ok(space), &format!("0 1 {FATTR} q1 q2 q3 q4 q5 q6 7")),
        results::<call::Fsstat>(&Fail(Status::ServerFault, None), "10006 0"),
        args::<call::Fsinfo>(&object, H),
        results::<call::Fsinfo>(&Ok(info), "0 0 1 2 3 4 5 6 7 q8 0 1 27"),
        results::<call::Fsinfo>(&Fail(Status::BadHandle, None), "10001 0"),
        args::<call::Pathconf>(&object, H),
        results::<call::Pathconf>(&Ok(conf), "0 0 32000 255 1 1 0 1"),
        results::<call::Pathconf>(&Fail(Status::Jukebox, None), "10008 0"),
    ]
}

#[test]
fn every_procedure_is_as_rfc_1813_writes_it() {
    let seeds = seeds();
    for procedure in Procedure::ALL {
        assert!(
            seeds.iter().any(|seed| u32::from(seed.input[0]) == *procedure as u32),
            "{}",
            procedure.name()
        );
    }
    assert_eq!(Procedure::ALL.len(), 22);
    assert_eq!(Procedure::try_from(22), Err(crate::UnknownProcedure(22)));
}
