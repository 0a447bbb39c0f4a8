//! NLM, NSM and RPCBIND, byte by byte.

use xdr::LinkedList;

use super::wire::{Seed, args, results, text};
use crate::nlm::{
    CancelArgs, Holder, Lock, LockArgs, Notify, Res, Share, ShareArgs, ShareRes, Stat, TestArgs, TestReply,
    TestRes, UnlockArgs, v1, v3, v4,
};
use crate::{nsm, rpcbind};

fn lock<N>(offset: N, length: N) -> Lock<N> {
    Lock { caller_name: text("pc"), fh: text("handle"), oh: text("7@pc"), svid: 7, offset, length }
}

/// Examples of NLM. Making an example compares it with its bytes.
pub fn nlm_seeds() -> Vec<Seed> {
    let cookie = text("\x01\x02");
    let res = |stat| Res { cookie: text("\x01\x02"), stat };
    let locked = LockArgs {
        cookie: text("\x01\x02"),
        block: true,
        exclusive: false,
        alock: lock(5u64, 0),
        reclaim: false,
        state: 9,
    };
    let locked_wire = "'0102 1 0 \"pc\" \"handle\" \"7@pc\" 7 q5 q0 0 9";
    let old = LockArgs {
        cookie: cookie.clone(),
        block: false,
        exclusive: true,
        alock: lock(5u32, 2),
        reclaim: true,
        state: 9,
    };
    let holder = Holder { exclusive: true, svid: 3, oh: text("3@x"), offset: 0u64, length: 0 };
    let share = Share { caller_name: text("pc"), fh: text("handle"), oh: text("7@pc"), mode: 2, access: 1 };
    let shared = ShareArgs { cookie: cookie.clone(), share, reclaim: false };
    vec![
        args::<v1::call::Null>(&(), ""),
        args::<v1::call::Lock>(&old, "'0102 0 1 \"pc\" \"handle\" \"7@pc\" 7 5 2 1 9"),
        results::<v1::call::Lock>(&res(Stat::DeniedNolocks), "'0102 2"),
        args::<v4::call::Lock>(&locked, locked_wire),
        args::<v4::call::LockMsg>(&locked, locked_wire),
        args::<v4::call::NmLock>(&locked, locked_wire),
        results::<v4::call::Lock>(&res(Stat::Blocked), "'0102 3"),
        args::<v4::call::Test>(
            &TestArgs { cookie: cookie.clone(), exclusive: true, alock: lock(1, 2) },
            "'0102 1 \"pc\" \"handle\" \"7@pc\" 7 q1 q2",
        ),
        results::<v4::call::Test>(
            &TestRes { cookie: cookie.clone(), stat: TestReply::Denied(holder) },
            "'0102 1 1 3 \"3@x\" q0 q0",
        ),
        results::<v4::call::Test>(&TestRes { cookie: cookie.clone(), stat: TestReply::Other(0) }, "'0102 0"),
        args::<v4::call::Cancel>(
            &CancelArgs { cookie: cookie.clone(), block: true, exclusive: true, alock: lock(1, 2) },
            "'0102 1 1 \"pc\" \"handle\" \"7@pc\" 7 q1 q2",
        ),
        args::<v4::call::Unlock>(
            &UnlockArgs { cookie: cookie.clone(), alock: lock(1, 2) },
            "'0102 \"pc\" \"handle\" \"7@pc\" 7 q1 q2",
        ),
        args::<v4::call::Granted>(
            &TestArgs { cookie: cookie.clone(), exclusive: false, alock: lock(1, 2) },
            "'0102 0 \"pc\" \"handle\" \"7@pc\" 7 q1 q2",
        ),
        args::<v4::call::GrantedRes>(&res(Stat::Granted), "'0102 0"),
        args::<v3::call::Share>(&shared, "'0102 \"pc\" \"handle\" \"7@pc\" 2 1 0"),
        results::<v3::call::Share>(&ShareRes { cookie, stat: Stat::Granted, sequence: 0 }, "'0102 0 0"),
        args::<v4::call::FreeAll>(&Notify { name: text("pc"), state: 9 }, "\"pc\" 9"),
    ]
}

/// Examples of NSM. Making an example compares it with its bytes.
pub fn nsm_seeds() -> Vec<Seed> {
    use nsm::{MonArgs, MonId, MyId, StatChge, StatRes, call};
    let my_id = MyId { name: text("localhost"), program: 100_021, version: 4, procedure: 16 };
    let mon_id = MonId { mon_name: text("pc"), my_id: my_id.clone() };
    let mon_wire = "\"pc\" \"localhost\" 100021 4 16";
    vec![
        args::<call::Null>(&(), ""),
        args::<call::Stat>(&text("pc"), "\"pc\""),
        results::<call::Stat>(&StatRes { stat: nsm::STAT_SUCC, state: 5 }, "0 5"),
        args::<call::Mon>(
            &MonArgs { mon_id: mon_id.clone(), private: [7; 16] },
            &format!("{mon_wire} =07070707070707070707070707070707"),
        ),
        args::<call::Unmon>(&mon_id, mon_wire),
        args::<call::UnmonAll>(&my_id, "\"localhost\" 100021 4 16"),
        args::<call::Notify>(&StatChge { mon_name: text("pc"), state: 5 }, "\"pc\" 5"),
    ]
}

/// Examples of RPCBIND. Making an example compares it with its bytes.
pub fn rpcbind_seeds() -> Vec<Seed> {
    use rpcbind::{Rpcb, v3, v4};
    let nlm = Rpcb {
        prog: 100_021,
        vers: 4,
        netid: text("tcp"),
        addr: text("0.0.0.0.8.1"),
        owner: text("superuser"),
    };
    let wire = "100021 4 \"tcp\" \"0.0.0.0.8.1\" \"superuser\"";
    vec![
        args::<v3::call::Set>(&nlm, wire),
        args::<v3::call::Unset>(&nlm, wire),
        args::<v4::call::Getaddr>(&nlm, wire),
        args::<v4::call::Getversaddr>(&nlm, wire),
        results::<v4::call::Getaddr>(&text("192.0.2.1.8.1"), "\"192.0.2.1.8.1\""),
        results::<v3::call::Dump>(&LinkedList::new(vec![nlm]).unwrap(), &format!("1 {wire} 0")),
        results::<v3::call::Gettime>(&77, "77"),
    ]
}

#[test]
fn the_lock_manager_is_as_the_specification_writes_it() {
    assert_eq!((nlm_seeds().len(), nsm_seeds().len(), rpcbind_seeds().len()), (17, 7, 7));
}
