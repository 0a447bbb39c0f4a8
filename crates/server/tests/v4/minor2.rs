//! Operations of minor versions 1 and 2 that need only a session: extents, copies, extended attributes, and
//! replies that are too big for a session.

use bytes::Bytes;
use protocol::nfs4::{
    ACCESS4_XALIST, ACCESS4_XAREAD, ACCESS4_XAWRITE, AccessArgs, AllocateArgs, ArgOp, Attr, Bitmap,
    CloneArgs, CopyArgs, DataContent, GetattrArgs, IoAdviseArgs, ListxattrsArgs, OffloadArgs, ReadArgs,
    ReadPlusArgs, ReadPlusContent, SecinfoStyle, SeekArgs, SetxattrArgs, SetxattrOption, Stateid, Status,
    XattrArgs, XattrValue, op,
};
use xdr::List;

use crate::setup::{Home, LEASE, Session, create};
use crate::wire::{ROOT, lookup, name, then, walk};

const MIB: u64 = 1 << 20;

/// A client of minor version 2 on a new server.
async fn session(home: &Home) -> (crate::setup::Incarnation, Session) {
    let incarnation = home.serve(LEASE).await;
    let mut session = incarnation.session(b"client").await;
    session.client.minor = 2;
    (incarnation, session)
}

fn seek(offset: u64, what: DataContent) -> ArgOp {
    ArgOp::Seek(SeekArgs { stateid: Stateid::ANONYMOUS, offset, what })
}

fn range(offset: u64, length: u64) -> AllocateArgs {
    AllocateArgs { stateid: Stateid::CURRENT, offset, length }
}

#[tokio::test]
async fn holes_are_found_made_and_left_out() {
    let home = Home::new();
    let path = home.tree().join("file");
    let (_incarnation, mut session) = session(&home).await;
    std::fs::write(&path, vec![7; 3 * MIB as usize]).unwrap();
    // The state id of OPEN is the current one for the following operations.
    let opened = vec![ROOT, ArgOp::Open(create(b"file", b"owner", 3))];
    let deallocated = session.compound(then(opened.clone(), [ArgOp::Deallocate(range(MIB, MIB))])).await;
    if deallocated.status() == Err(Status::NotSupp) {
        return; // a file system without holes
    }
    assert_eq!(deallocated.status(), Ok(()));
    let hole = session.last::<op::Seek>(then(walk("/file"), [seek(0, DataContent::Hole)])).await;
    let data = session.last::<op::Seek>(then(walk("/file"), [seek(MIB, DataContent::Data)])).await;
    assert_eq!((hole.offset, data.offset, hole.eof, data.eof), (MIB, 2 * MIB, false, false));
    let behind = session.status(then(walk("/file"), [seek(3 * MIB, DataContent::Data)])).await;
    assert_eq!(behind, Err(Status::Nxio));
    let read = ReadPlusArgs { stateid: Stateid::ANONYMOUS, offset: MIB / 2, count: MIB as u32 };
    session.sequence += 1;
    let uncached = vec![session.sequence(session.sequence, 0, false)];
    let read = then(then(uncached, walk("/file")), [ArgOp::ReadPlus(read)]);
    let read = session.client.last::<op::ReadPlus>(read).await;
    let expected = vec![
        ReadPlusContent::Data { offset: MIB / 2, data: Bytes::from(vec![7; MIB as usize / 2]).into() },
        ReadPlusContent::Hole { offset: MIB, length: MIB / 2 },
    ];
    assert!(read.contents.to_vec() == expected && !read.eof);
    let grown = session.status(then(opened.clone(), [ArgOp::Allocate(range(3 * MIB, MIB))])).await;
    assert_eq!((grown, std::fs::metadata(&path).unwrap().len()), (Ok(()), 4 * MIB));
    let too_far = session.status(then(opened, [ArgOp::Allocate(range(u64::MAX, 2))])).await;
    assert_eq!(too_far, Err(Status::Inval));
}

#[tokio::test]
async fn a_range_is_copied_before_the_answer() {
    let home = Home::new();
    let (_incarnation, mut session) = session(&home).await;
    std::fs::write(home.tree().join("from"), b"0123456789").unwrap();
    let (target, handle) = session.open(create(b"to", b"owner", 3)).await;
    let copy = CopyArgs {
        src_stateid: Stateid::ANONYMOUS,
        dst_stateid: target,
        src_offset: 2,
        dst_offset: 1,
        count: 5,
        consecutive: true,
        synchronous: true,
        source_server: List::default(),
    };
    let places = then(walk("/from"), [ArgOp::Savefh(()), crate::wire::putfh(handle)]);
    let copied = session.last::<op::Copy>(then(places.clone(), [ArgOp::Copy(copy)])).await;
    assert!(copied.requirements.synchronous && copied.response.callback_id.is_none());
    assert_eq!(copied.response.count, 5);
    assert_eq!(std::fs::read(home.tree().join("to")).unwrap(), b"\x0023456");
    let clone = CloneArgs {
        src_stateid: Stateid::ANONYMOUS,
        dst_stateid: target,
        src_offset: 0,
        dst_offset: 0,
        count: 0,
    };
    let cloned = session.status(then(places, [ArgOp::Clone(clone)])).await;
    assert!(matches!(cloned, Ok(()) | Err(Status::NotSupp)), "as the file system can: {cloned:?}");
}

#[tokio::test]
async fn extended_attributes_are_set_listed_and_removed() {
    let home = Home::new();
    let (_incarnation, mut session) = session(&home).await;
    std::fs::write(home.tree().join("file"), b"").unwrap();
    let asked = GetattrArgs { attr_request: Bitmap::of(&[Attr::XattrSupport]) };
    let told = session.last::<op::Getattr>(then(walk("/file"), [ArgOp::Getattr(asked)])).await;
    if told.obj_attributes.xattr_support != Some(true) {
        return; // a file system without them
    }
    let set = |option, value: &[u8]| {
        let value = XattrValue::new(value.to_vec()).unwrap();
        then(walk("/file"), [ArgOp::Setxattr(SetxattrArgs { option, key: name(b"key"), value })])
    };
    let get = then(walk("/file"), [ArgOp::Getxattr(XattrArgs { name: name(b"key") })]);
    let remove = then(walk("/file"), [ArgOp::Removexattr(XattrArgs { name: name(b"key") })]);
    let list = |maxcount| then(walk("/file"), [ArgOp::Listxattrs(ListxattrsArgs { cookie: 0, maxcount })]);
    assert_eq!(session.status(get.clone()).await, Err(Status::NoXattr));
    assert_eq!(session.status(set(SetxattrOption::Replace, b"x")).await, Err(Status::NoXattr));
    session.last::<op::Setxattr>(set(SetxattrOption::Create, b"one")).await;
    assert_eq!(session.status(set(SetxattrOption::Create, b"x")).await, Err(Status::Exist));
    session.last::<op::Setxattr>(set(SetxattrOption::Either, b"two")).await;
    assert_eq!(&session.last::<op::Getxattr>(get.clone()).await.value[..], b"two");
    let listed = session.last::<op::Listxattrs>(list(4096)).await;
    assert_eq!((listed.names.to_vec(), listed.eof), (vec![name(b"key")], true));
    assert_eq!(session.status(list(8)).await, Err(Status::TooSmall));
    let large = session.status(set(SetxattrOption::Either, &vec![0; 65_537])).await;
    assert_eq!(large, Err(Status::Xattr2Big));
    let access = AccessArgs { access: ACCESS4_XAREAD | ACCESS4_XAWRITE | ACCESS4_XALIST };
    let access = session.last::<op::Access>(then(walk("/file"), [ArgOp::Access(access)])).await;
    assert_eq!((access.supported, access.access), (0x1c0, 0x1c0), "for root");
    session.last::<op::Removexattr>(remove.clone()).await;
    assert_eq!(session.status(remove).await, Err(Status::NoXattr));
}

#[tokio::test]
async fn what_is_not_offered_is_not_supported_rather_than_illegal() {
    let home = Home::new();
    let (_incarnation, mut session) = session(&home).await;
    for operation in [
        ArgOp::OffloadCancel(OffloadArgs { stateid: Stateid::ANONYMOUS }),
        ArgOp::OffloadStatus(OffloadArgs { stateid: Stateid::ANONYMOUS }),
        ArgOp::Renew(protocol::nfs4::RenewArgs { clientid: 1 }),
    ] {
        assert_eq!(
            session.status(vec![ROOT, operation.clone()]).await,
            Err(Status::NotSupp),
            "{operation:?}"
        );
    }
    std::fs::write(home.tree().join("file"), b"").unwrap();
    let advise =
        IoAdviseArgs { stateid: Stateid::ANONYMOUS, offset: 0, count: 1, hints: Bitmap::EMPTY.with_bit(1) };
    let advised = session.last::<op::IoAdvise>(then(walk("/file"), [ArgOp::IoAdvise(advise)])).await;
    assert!(advised.hints.is_empty(), "no hint is heeded");
}

#[tokio::test]
async fn secinfo_uses_the_current_handle_up() {
    let home = Home::new();
    let (_incarnation, mut session) = session(&home).await;
    std::fs::create_dir(home.tree().join("dir")).unwrap();
    let no_name = |style| ArgOp::SecinfoNoName(style);
    for operation in [no_name(SecinfoStyle::CurrentFh), no_name(SecinfoStyle::Parent)] {
        let behind = session.status(vec![ROOT, lookup(b"dir"), operation, ArgOp::Getfh(())]).await;
        assert_eq!(behind, Err(Status::NoFileHandle));
    }
    let above = session.status(vec![ROOT, no_name(SecinfoStyle::Parent)]).await;
    assert_eq!(above, Err(Status::NoEnt));
}

#[tokio::test]
async fn a_reply_that_the_session_has_no_room_for_is_not_sent() {
    let home = Home::new();
    let incarnation = home.serve(LEASE).await;
    std::fs::write(home.tree().join("file"), vec![7; 4096]).unwrap();
    let mut client = incarnation.client(1).await;
    let known = client.last::<op::ExchangeId>(vec![crate::setup::exchange_id(b"small", 1, 0)]).await;
    let mut args = crate::setup::create_session_args(known.clientid, known.sequenceid, 4);
    args.fore_chan_attrs.maxresponsesize = 1024;
    args.fore_chan_attrs.maxresponsesize_cached = 1024;
    let made = client.last::<op::CreateSession>(vec![ArgOp::CreateSession(args)]).await;
    let mut session = Session { client, clientid: known.clientid, id: made.sessionid, sequence: 0 };
    session.last::<op::ReclaimComplete>(vec![crate::setup::reclaim_complete()]).await;
    let read = |count| {
        then(walk("/file"), [ArgOp::Read(ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count })])
    };
    assert_eq!(session.last::<op::Read>(read(512)).await.data.len(), 512);
    let sequence = session.sequence(session.sequence + 1, 0, false);
    let uncached = session.client.status(then(vec![sequence], read(4096))).await;
    assert_eq!(uncached, Err(Status::RepTooBig));
    session.sequence += 1;
    assert_eq!(session.status(read(4096)).await, Err(Status::RepTooBigToCache));
}
