//! The operations of RFC 7530.

use bytes::Bytes;
use xdr::LinkedList;

use super::*;

pub fn seeds() -> Vec<Seed> {
    [handles(), attributes(), io(), names(), directories(), opens(), locks(), clients()].concat()
}

fn handles() -> Vec<Seed> {
    vec![
        arg(&ArgOp::Putfh(PutfhArgs { object: handle() }), H),
        res(&ResOp::Putfh(Ok(())), "0"),
        res(&ResOp::Putfh(Err(Status::BadHandle)), "10001"),
        arg(&ArgOp::Putrootfh(()), ""),
        res(&ResOp::Putrootfh(Err(Status::WrongSec)), "10016"),
        arg(&ArgOp::Putpubfh(()), ""),
        res(&ResOp::Putpubfh(Ok(())), "0"),
        arg(&ArgOp::Getfh(()), ""),
        res(&ResOp::Getfh(Ok(GetfhOk { object: handle() })), &format!("0 {H}")),
        res(&ResOp::Getfh(Err(Status::NoFileHandle)), "10020"),
        arg(&ArgOp::Savefh(()), ""),
        res(&ResOp::Savefh(Ok(())), "0"),
        arg(&ArgOp::Restorefh(()), ""),
        res(&ResOp::Restorefh(Err(Status::RestoreFh)), "10030"),
        arg(&ArgOp::Lookup(LookupArgs { objname: text("hello") }), "\"hello\""),
        res(&ResOp::Lookup(Err(Status::NoEnt)), "2"),
        arg(&ArgOp::Lookupp(()), ""),
        res(&ResOp::Lookupp(Ok(())), "0"),
        arg(&ArgOp::Openattr(OpenattrArgs { createdir: true }), "1"),
        res(&ResOp::Openattr(Err(Status::NotSupp)), "10004"),
    ]
}

fn attributes() -> Vec<Seed> {
    let request = Bitmap::of(&[Attr::Size, Attr::Mode]);
    let set = SetattrArgs { stateid: STATEID, obj_attributes: fattr().into() };
    let failed = SetattrFailure { status: Status::NoSpc, attrsset: Bitmap::of(&[Attr::Mode]) };
    let unknown = ArgFattr::Unknown {
        attribute: 61,
        attrmask: Bitmap::EMPTY.with(Attr::FsStatus),
        attr_vals: xdr::Opaque::new(vec![1, 2, 3, 4]).unwrap(),
    };
    vec![
        arg(&ArgOp::Getattr(GetattrArgs { attr_request: request }), "2 16 2"),
        res(&ResOp::Getattr(Ok(GetattrOk { obj_attributes: Box::new(fattr()) })), &format!("0 {A}")),
        res(&ResOp::Getattr(Err(Status::Stale)), "70"),
        arg(&ArgOp::Setattr(set), &format!("{S} {A}")),
        arg(
            &ArgOp::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, obj_attributes: unknown }),
            "0 =000000000000000000000000 2 0 536870912 '01020304",
        ),
        res(&ResOp::Setattr(Ok(SetattrOk { attrsset: request })), "0 2 16 2"),
        res(&ResOp::Setattr(Err(failed)), "28 2 0 2"),
        res(&ResOp::Setattr(Err(Status::AttrNotSupp.into())), "10032 0"),
        arg(&ArgOp::Verify(VerifyArgs { obj_attributes: fattr().into() }), A),
        res(&ResOp::Verify(Err(Status::NotSame)), "10027"),
        arg(&ArgOp::Nverify(VerifyArgs { obj_attributes: fattr().into() }), A),
        res(&ResOp::Nverify(Err(Status::Same)), "10009"),
        arg(&ArgOp::Access(AccessArgs { access: 0x3f }), "63"),
        res(&ResOp::Access(Ok(AccessOk { supported: 0x1f, access: 3 })), "0 31 3"),
        res(&ResOp::Access(Err(Status::Other(4711))), "4711"),
    ]
}

fn io() -> Vec<Seed> {
    let data = || Bytes::from_static(b"hello").into();
    let write = WriteArgs { stateid: STATEID, offset: 1 << 33, stable: StableHow::DataSync, data: data() };
    let written = WriteOk { count: 5, committed: StableHow::FileSync, writeverf: VERIFIER };
    vec![
        arg(
            &ArgOp::Read(ReadArgs { stateid: STATEID, offset: 4096, count: 65536 }),
            &format!("{S} q4096 65536"),
        ),
        res(&ResOp::Read(Ok(ReadOk { eof: true, data: data() })), "0 1 \"hello\""),
        res(&ResOp::Read(Err(Status::OpenMode)), "10038"),
        arg(&ArgOp::Write(write), &format!("{S} q8589934592 1 \"hello\"")),
        res(&ResOp::Write(Ok(written)), &format!("0 5 2 {V}")),
        res(&ResOp::Write(Err(Status::Grace)), "10013"),
        arg(&ArgOp::Commit(CommitArgs { offset: 4096, count: 0 }), "q4096 0"),
        res(&ResOp::Commit(Ok(CommitOk { writeverf: VERIFIER })), &format!("0 {V}")),
        arg(&ArgOp::Readlink(()), ""),
        res(&ResOp::Readlink(Ok(ReadlinkOk { link: text("../there") })), "0 \"../there\""),
        res(&ResOp::Readlink(Err(Status::WrongType)), "10083"),
    ]
}

fn names() -> Vec<Seed> {
    let create =
        |objtype| ArgOp::Create(CreateArgs { objtype, objname: text("hello"), createattrs: fattr().into() });
    let device = Specdata { specdata1: 8, specdata2: 1 };
    let renamed = RenameOk { source_cinfo: CINFO, target_cinfo: ChangeInfo::default() };
    vec![
        arg(&create(Createtype::Dir), &format!("2 \"hello\" {A}")),
        arg(&create(Createtype::Blk(device)), &format!("3 8 1 \"hello\" {A}")),
        arg(&create(Createtype::Chr(device)), &format!("4 8 1 \"hello\" {A}")),
        arg(&create(Createtype::Lnk(text("../there"))), &format!("5 \"../there\" \"hello\" {A}")),
        arg(&create(Createtype::Sock), &format!("6 \"hello\" {A}")),
        arg(&create(Createtype::Fifo), &format!("7 \"hello\" {A}")),
        arg(&create(Createtype::Other(1)), &format!("1 \"hello\" {A}")),
        res(
            &ResOp::Create(Ok(CreateOk { cinfo: CINFO, attrset: Bitmap::of(&[Attr::Mode]) })),
            &format!("0 {C} 2 0 2"),
        ),
        res(&ResOp::Create(Err(Status::BadType)), "10007"),
        arg(&ArgOp::Link(LinkArgs { newname: text("hello") }), "\"hello\""),
        res(&ResOp::Link(Ok(LinkOk { cinfo: CINFO })), &format!("0 {C}")),
        arg(&ArgOp::Remove(RemoveArgs { target: text("hello") }), "\"hello\""),
        res(&ResOp::Remove(Ok(RemoveOk { cinfo: CINFO })), &format!("0 {C}")),
        res(&ResOp::Remove(Err(Status::NotEmpty)), "66"),
        arg(
            &ArgOp::Rename(RenameArgs { oldname: text("hello"), newname: text("world") }),
            "\"hello\" \"world\"",
        ),
        res(&ResOp::Rename(Ok(renamed)), &format!("0 {C} 0 q0 q0")),
    ]
}

fn directories() -> Vec<Seed> {
    let read = ReaddirArgs {
        cookie: 3,
        cookieverf: VERIFIER,
        dircount: 4096,
        maxcount: 65536,
        attr_request: Bitmap::of(&[Attr::Size, Attr::Mode]),
    };
    let entry = |cookie, name, attrs| Entry { cookie, name: text(name), attrs };
    let failed =
        Fattr { rdattr_error: Some(Outcome::Fail(Status::Access, ())), fileid: Some(42), ..Fattr::default() };
    let listing = ReaddirOk {
        cookieverf: VERIFIER,
        entries: LinkedList::new(vec![entry(4, "hello", fattr()), entry(5, "locked", failed)]).unwrap(),
        eof: true,
    };
    let secinfo = list(vec![
        Secinfo::RpcsecGss(RpcsecGssInfo {
            oid: xdr::Opaque::new(vec![0x2a, 0x86]).unwrap(),
            qop: 0,
            service: RpcGssSvc::Integrity,
        }),
        Secinfo::Flavor(1),
    ]);
    vec![
        arg(&ArgOp::Readdir(read), &format!("q3 {V} 4096 65536 2 16 2")),
        res(
            &ResOp::Readdir(Ok(listing)),
            &format!("0 {V} 1 q4 \"hello\" {A} 1 q5 \"locked\" 1 1050624 12 13 q42 0 1"),
        ),
        res(
            &ResOp::Readdir(Ok(ReaddirOk { cookieverf: [0; 8], entries: LinkedList::default(), eof: false })),
            "0 q0 0 0",
        ),
        res(&ResOp::Readdir(Err(Status::BadCookie)), "10003"),
        arg(&ArgOp::Secinfo(SecinfoArgs { name: text("hello") }), "\"hello\""),
        res(&ResOp::Secinfo(Ok(secinfo)), "0 2 6 '2a86 0 2 1"),
    ]
}

fn opens() -> Vec<Seed> {
    let open = |openhow, claim| {
        ArgOp::Open(OpenArgs { seqid: 1, share_access: 0x103, share_deny: 2, owner: owner(), openhow, claim })
    };
    let create = |how| open(Openflag::Create(how), OpenClaim::Null(text("hello")));
    let existing = |claim| open(Openflag::Nocreate, claim);
    let front = format!("1 259 2 {O}");
    let both = Creatverfattr { verf: VERIFIER, attrs: fattr().into() };
    let confirm = OpenConfirmArgs { open_stateid: STATEID, seqid: 2 };
    let downgrade = OpenDowngradeArgs { open_stateid: STATEID, seqid: 2, share_access: 1, share_deny: 0 };
    let stateid = OpenStateidOk { open_stateid: STATEID };
    let mut seeds = vec![
        arg(&create(Createhow::Unchecked(fattr().into())), &format!("{front} 1 0 {A} 0 \"hello\"")),
        arg(&create(Createhow::Guarded(ArgFattr::default())), &format!("{front} 1 1 0 0 0 \"hello\"")),
        arg(&create(Createhow::Exclusive(VERIFIER)), &format!("{front} 1 2 {V} 0 \"hello\"")),
        arg(&create(Createhow::Exclusive41(both)), &format!("{front} 1 3 {V} {A} 0 \"hello\"")),
        arg(&existing(OpenClaim::Null(text("hello"))), &format!("{front} 0 0 \"hello\"")),
        arg(&existing(OpenClaim::Previous(OpenDelegationType::Write)), &format!("{front} 0 1 2")),
        arg(&existing(OpenClaim::DelegateCur(STATEID, text("hello"))), &format!("{front} 0 2 {S} \"hello\"")),
        arg(&existing(OpenClaim::DelegatePrev(text("hello"))), &format!("{front} 0 3 \"hello\"")),
        arg(&existing(OpenClaim::Fh), &format!("{front} 0 4")),
        arg(&existing(OpenClaim::DelegCurFh(STATEID)), &format!("{front} 0 5 {S}")),
        arg(&existing(OpenClaim::DelegPrevFh), &format!("{front} 0 6")),
        res(&ResOp::Open(Err(Status::ShareDenied)), "10015"),
        arg(&ArgOp::OpenConfirm(confirm), &format!("{S} 2")),
        res(&ResOp::OpenConfirm(Ok(stateid)), &format!("0 {S}")),
        arg(&ArgOp::OpenDowngrade(downgrade), &format!("{S} 2 1 0")),
        res(&ResOp::OpenDowngrade(Ok(stateid)), &format!("0 {S}")),
        arg(&ArgOp::Close(CloseArgs { seqid: 3, open_stateid: STATEID }), &format!("3 {S}")),
        res(&ResOp::Close(Ok(stateid)), &format!("0 {S}")),
        res(&ResOp::Close(Err(Status::LocksHeld)), "10037"),
        arg(&ArgOp::Delegreturn(DelegreturnArgs { deleg_stateid: STATEID }), S),
        res(&ResOp::Delegreturn(Err(Status::OldStateid)), "10024"),
        arg(&ArgOp::Delegpurge(DelegpurgeArgs { clientid: 7 }), "q7"),
        res(&ResOp::Delegpurge(Ok(())), "0"),
    ];
    seeds.extend(delegations().into_iter().map(|(delegation, text)| {
        let opened = OpenOk {
            stateid: STATEID,
            cinfo: CINFO,
            rflags: 6,
            attrset: Bitmap::of(&[Attr::Size]),
            delegation,
        };
        res(&ResOp::Open(Ok(opened)), &format!("0 {S} {C} 6 1 16 {text}"))
    }));
    seeds
}

/// Each kind of delegation with its bytes.
pub fn delegations() -> Vec<(OpenDelegation, String)> {
    let permissions = || Ace {
        acetype: ACE4_ACCESS_ALLOWED_ACE_TYPE,
        flag: ACE4_IDENTIFIER_GROUP,
        access_mask: ACE4_READ_DATA | ACE4_EXECUTE,
        who: text("EVERYONE@"),
    };
    let ace = "0 64 33 \"EVERYONE@\"";
    let read = || OpenReadDelegation { stateid: STATEID, recall: true, permissions: permissions() };
    let write = |space_limit| OpenWriteDelegation {
        stateid: STATEID,
        recall: false,
        space_limit,
        permissions: permissions(),
    };
    let blocks = NfsSpaceLimit::Blocks { num_blocks: 10, bytes_per_block: 512 };
    let none = OpenDelegation::NoneExt;
    vec![
        (OpenDelegation::None, "0".into()),
        (OpenDelegation::Read(read()), format!("1 {S} 1 {ace}")),
        (
            OpenDelegation::Write(write(NfsSpaceLimit::Size(u64::MAX))),
            format!("2 {S} 0 1 q{} {ace}", u64::MAX),
        ),
        (OpenDelegation::Write(write(blocks)), format!("2 {S} 0 2 10 512 {ace}")),
        (none(OpenNoneDelegation::NotWanted), "3 0".into()),
        (none(OpenNoneDelegation::Contention { server_will_push_deleg: true }), "3 1 1".into()),
        (none(OpenNoneDelegation::Resource { server_will_signal_avail: false }), "3 2 0".into()),
        (none(OpenNoneDelegation::IsDir), "3 8".into()),
        (none(OpenNoneDelegation::Other(99)), "3 99".into()),
        (OpenDelegation::ReadAttrsDeleg(read()), format!("4 {S} 1 {ace}")),
        (OpenDelegation::WriteAttrsDeleg(write(blocks)), format!("5 {S} 0 2 10 512 {ace}")),
    ]
}

fn locks() -> Vec<Seed> {
    let lock = |locktype, locker| {
        ArgOp::Lock(LockArgs { locktype, reclaim: false, offset: 10, length: u64::MAX, locker })
    };
    let open_owner =
        Locker::OpenOwner { open_seqid: 4, open_stateid: STATEID, lock_seqid: 0, lock_owner: owner() };
    let lock_owner = Locker::LockOwner { lock_stateid: STATEID, lock_seqid: 5 };
    let all = u64::MAX;
    let denied = LockDenied { offset: 0, length: 20, locktype: NfsLockType::Write, owner: owner() };
    let test = LocktArgs { locktype: NfsLockType::Read, offset: 10, length: 1, owner: owner() };
    let unlock =
        LockuArgs { locktype: NfsLockType::Write, seqid: 6, lock_stateid: STATEID, offset: 0, length: all };
    vec![
        arg(&lock(NfsLockType::Writew, open_owner), &format!("4 0 q10 q{all} 1 4 {S} 0 {O}")),
        arg(&lock(NfsLockType::Read, lock_owner), &format!("1 0 q10 q{all} 0 {S} 5")),
        res(&ResOp::Lock(Ok(LockOk { lock_stateid: STATEID })), &format!("0 {S}")),
        res(&ResOp::Lock(Err(LockFailure::Denied(denied.clone()))), &format!("10010 q0 q20 2 {O}")),
        res(&ResOp::Lock(Err(Status::Deadlock.into())), "10045"),
        arg(&ArgOp::Lockt(test), &format!("1 q10 q1 {O}")),
        res(&ResOp::Lockt(Ok(())), "0"),
        res(&ResOp::Lockt(Err(LockFailure::Denied(denied))), &format!("10010 q0 q20 2 {O}")),
        res(&ResOp::Lockt(Err(Status::Denied.into())), "10010 q0 q0 1 q0 '"),
        arg(&ArgOp::Locku(unlock), &format!("2 6 {S} q0 q{all}")),
        res(&ResOp::Locku(Ok(LockOk { lock_stateid: STATEID })), &format!("0 {S}")),
        arg(&ArgOp::ReleaseLockowner(ReleaseLockownerArgs { lock_owner: owner() }), O),
        res(&ResOp::ReleaseLockowner(Err(Status::LocksHeld)), "10037"),
    ]
}

fn clients() -> Vec<Seed> {
    let address = || Netaddr { netid: text("tcp"), addr: text("192.0.2.1.8.1") };
    let set = SetclientidArgs {
        client: ClientOwner { verifier: VERIFIER, ownerid: text("client") },
        callback: CbClient { cb_program: 0x4000_0000, cb_location: address() },
        callback_ident: 3,
    };
    let confirm = SetclientidConfirmArgs { clientid: 7, setclientid_confirm: VERIFIER };
    let is_set = SetclientidOk { clientid: 7, setclientid_confirm: VERIFIER };
    let in_use = SetclientidFailure::ClidInuse(address());
    vec![
        arg(&ArgOp::Setclientid(set), &format!("{V} \"client\" 1073741824 \"tcp\" \"192.0.2.1.8.1\" 3")),
        res(&ResOp::Setclientid(Ok(is_set)), &format!("0 q7 {V}")),
        res(&ResOp::Setclientid(Err(in_use)), "10017 \"tcp\" \"192.0.2.1.8.1\""),
        res(&ResOp::Setclientid(Err(Status::Delay.into())), "10008"),
        arg(&ArgOp::SetclientidConfirm(confirm), &format!("q7 {V}")),
        res(&ResOp::SetclientidConfirm(Err(Status::StaleClientid)), "10022"),
        arg(&ArgOp::Renew(RenewArgs { clientid: 7 }), "q7"),
        res(&ResOp::Renew(Err(Status::CbPathDown)), "10048"),
    ]
}
