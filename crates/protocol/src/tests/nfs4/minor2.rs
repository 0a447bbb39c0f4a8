//! The additions of RFC 7862 and RFC 8276.

use bytes::Bytes;

use super::*;

pub fn seeds() -> Vec<Seed> {
    [copies(), space(), reads(), layouts(), xattrs()].concat()
}

fn copies() -> Vec<Seed> {
    let servers = || {
        list(vec![
            Netloc::Name(text("server")),
            Netloc::Url(text("nfs://server")),
            Netloc::Netaddr(Netaddr { netid: text("tcp"), addr: text("::1.8.1") }),
        ])
    };
    let s = "3 1 \"server\" 2 \"nfs://server\" 3 \"tcp\" \"::1.8.1\"";
    let copy = CopyArgs {
        src_stateid: STATEID,
        dst_stateid: Stateid::CURRENT,
        src_offset: 1,
        dst_offset: 2,
        count: 3,
        consecutive: true,
        synchronous: false,
        source_server: servers(),
    };
    let response = |callback_id| WriteResponse {
        callback_id,
        count: 3,
        committed: StableHow::Unstable,
        writeverf: VERIFIER,
    };
    let requirements = CopyRequirements { consecutive: true, synchronous: false };
    let copied = |callback_id| ResOp::Copy(Ok(CopyOk { response: response(callback_id), requirements }));
    let notify = CopyNotifyArgs { src_stateid: STATEID, destination_server: Netloc::Name(text("other")) };
    let notified = CopyNotifyOk {
        lease_time: Nfstime { seconds: 90, nseconds: 0 },
        stateid: STATEID,
        source_server: servers(),
    };
    let clone = CloneArgs {
        src_stateid: STATEID,
        dst_stateid: STATEID,
        src_offset: 4096,
        dst_offset: 8192,
        count: 0,
    };
    let status = |complete| ResOp::OffloadStatus(Ok(OffloadStatusOk { count: 3, complete }));
    vec![
        arg(&ArgOp::Copy(copy), &format!("{S} 1 =000000000000000000000000 q1 q2 q3 1 0 {s}")),
        res(&copied(None), &format!("0 0 q3 0 {V} 1 0")),
        res(&copied(Some(STATEID)), &format!("0 1 {S} q3 0 {V} 1 0")),
        res(&ResOp::Copy(Err(CopyFailure::OffloadNoReqs(requirements))), "10094 1 0"),
        res(&ResOp::Copy(Err(Status::Xdev.into())), "18"),
        arg(&ArgOp::CopyNotify(notify), &format!("{S} 1 \"other\"")),
        res(&ResOp::CopyNotify(Ok(notified)), &format!("0 q90 0 {S} {s}")),
        arg(&ArgOp::OffloadCancel(OffloadArgs { stateid: STATEID }), S),
        res(&ResOp::OffloadCancel(Ok(())), "0"),
        arg(&ArgOp::OffloadStatus(OffloadArgs { stateid: STATEID }), S),
        res(&status(None), "0 q3 0"),
        res(&status(Some(Outcome::Ok(()))), "0 q3 1 0"),
        res(&status(Some(Outcome::Fail(Status::NoSpc, ()))), "0 q3 1 28"),
        arg(&ArgOp::Clone(clone), &format!("{S} {S} q4096 q8192 q0")),
        res(&ResOp::Clone(Err(Status::Inval)), "22"),
    ]
}

fn space() -> Vec<Seed> {
    let range = AllocateArgs { stateid: STATEID, offset: 1, length: 2 };
    let hints = Bitmap::from_words([0b10010, 0, 0]);
    let advise = IoAdviseArgs { stateid: STATEID, offset: 1, count: 2, hints };
    let same = WriteSameArgs {
        stateid: STATEID,
        stable: StableHow::FileSync,
        adb: AppDataBlock {
            offset: 1,
            block_size: 2,
            block_count: 3,
            reloff_blocknum: 4,
            block_num: 5,
            reloff_pattern: 6,
            pattern: Bytes::from_static(b"pattern").into(),
        },
    };
    let response =
        WriteResponse { callback_id: None, count: 6, committed: StableHow::FileSync, writeverf: VERIFIER };
    vec![
        arg(&ArgOp::Allocate(range), &format!("{S} q1 q2")),
        res(&ResOp::Allocate(Err(Status::NoSpc)), "28"),
        arg(&ArgOp::Deallocate(range), &format!("{S} q1 q2")),
        res(&ResOp::Deallocate(Ok(())), "0"),
        arg(&ArgOp::IoAdvise(advise), &format!("{S} q1 q2 1 18")),
        res(&ResOp::IoAdvise(Ok(IoAdviseOk { hints })), "0 1 18"),
        arg(&ArgOp::WriteSame(same), &format!("{S} 2 q1 q2 q3 q4 5 q6 \"pattern\"")),
        res(&ResOp::WriteSame(Ok(response)), &format!("0 0 q6 2 {V}")),
        res(&ResOp::WriteSame(Err(Status::UnionNotSupp)), "10090"),
    ]
}

fn reads() -> Vec<Seed> {
    let contents = list(vec![
        ReadPlusContent::Data { offset: 0, data: Bytes::from_static(b"hello").into() },
        ReadPlusContent::Hole { offset: 5, length: 4091 },
    ]);
    let seek = |what| ArgOp::Seek(SeekArgs { stateid: STATEID, offset: 1, what });
    vec![
        arg(&ArgOp::ReadPlus(ReadPlusArgs { stateid: STATEID, offset: 1, count: 2 }), &format!("{S} q1 2")),
        res(&ResOp::ReadPlus(Ok(ReadPlusOk { eof: true, contents })), "0 1 2 0 q0 \"hello\" 1 q5 q4091"),
        res(&ResOp::ReadPlus(Err(Status::NotSupp)), "10004"),
        arg(&seek(DataContent::Data), &format!("{S} q1 0")),
        arg(&seek(DataContent::Hole), &format!("{S} q1 1")),
        arg(&seek(DataContent::Other(2)), &format!("{S} q1 2")),
        res(&ResOp::Seek(Ok(SeekOk { eof: false, offset: 4096 })), "0 0 q4096"),
        res(&ResOp::Seek(Err(Status::Nxio)), "6"),
    ]
}

fn layouts() -> Vec<Seed> {
    let error = DeviceError { deviceid: ID, status: Outcome::Fail(Status::Nxio, ()), opnum: 38 };
    let errors = LayouterrorArgs { offset: 1, length: 2, stateid: STATEID, errors: list(vec![error]) };
    let stats = LayoutstatsArgs {
        offset: 1,
        length: 2,
        stateid: STATEID,
        read: IoInfo { count: 3, bytes: 4 },
        write: IoInfo { count: 5, bytes: 6 },
        deviceid: ID,
        layoutupdate: LayoutUpdate { layout_type: 4, body: text("body") },
    };
    vec![
        arg(&ArgOp::Layouterror(errors), &format!("q1 q2 {S} 1 {I} 6 38")),
        res(&ResOp::Layouterror(Ok(())), "0"),
        arg(&ArgOp::Layoutstats(stats), &format!("q1 q2 {S} q3 q4 q5 q6 {I} 4 \"body\"")),
        res(&ResOp::Layoutstats(Err(Status::BadLayout)), "10050"),
    ]
}

fn xattrs() -> Vec<Seed> {
    let set = |option| ArgOp::Setxattr(SetxattrArgs { option, key: text("colour"), value: text("blue") });
    let names = ListxattrsOk { cookie: 4, names: list(vec![text("colour"), text("size")]), eof: true };
    let changed = XattrChangedOk { cinfo: CINFO };
    vec![
        arg(&ArgOp::Getxattr(XattrArgs { name: text("colour") }), "\"colour\""),
        res(&ResOp::Getxattr(Ok(GetxattrOk { value: text("blue") })), "0 \"blue\""),
        res(&ResOp::Getxattr(Err(Status::NoXattr)), "10095"),
        arg(&set(SetxattrOption::Either), "0 \"colour\" \"blue\""),
        arg(&set(SetxattrOption::Create), "1 \"colour\" \"blue\""),
        arg(&set(SetxattrOption::Replace), "2 \"colour\" \"blue\""),
        res(&ResOp::Setxattr(Ok(changed)), &format!("0 {C}")),
        res(&ResOp::Setxattr(Err(Status::Xattr2Big)), "10096"),
        arg(&ArgOp::Listxattrs(ListxattrsArgs { cookie: 3, maxcount: 4096 }), "q3 4096"),
        res(&ResOp::Listxattrs(Ok(names)), "0 q4 2 \"colour\" \"size\" 1"),
        arg(&ArgOp::Removexattr(XattrArgs { name: text("colour") }), "\"colour\""),
        res(&ResOp::Removexattr(Ok(changed)), &format!("0 {C}")),
    ]
}
