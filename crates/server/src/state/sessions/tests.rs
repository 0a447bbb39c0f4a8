//! Tests the table of sessions and their slots against the rules of the RFCs.

use super::*;
use bytes::Bytes;
use proptest::prelude::*;

#[derive(Clone, Debug, PartialEq)]
struct Wire(u32, bool);

impl Bond for Wire {
    fn is_closed(&self) -> bool {
        self.1
    }
}

/// The connection that creates the session.
const FIRST: Wire = Wire(1, false);

fn maker() -> Maker {
    Maker::of(0, 1)
}

fn terms() -> CallbackTerms {
    CallbackTerms { program: 9, credential: rpc::Credential::None, minor: 1 }
}

fn attributes(slots: u32) -> ChannelAttrs {
    ChannelAttrs { maxrequestsize: 1000, maxoperations: 8, maxrequests: slots, ..ChannelAttrs::default() }
}

fn arriving(sessionid: Sessionid, slotid: u32, sequenceid: u32, digest: u64) -> Arriving {
    let sequence = SequenceArgs { sessionid, sequenceid, slotid, highest_slotid: 0, cachethis: true };
    Arriving { sequence, digest: Digest(digest), bytes: 100, operations: 2 }
}

fn message(text: &[u8]) -> Message {
    Message { first: Bytes::copy_from_slice(text), more: Vec::new() }
}

fn with_one(slots: u32) -> (Sessions<Wire>, Sessionid) {
    let mut sessions = Sessions::new(IdKey::random());
    let attributes = (attributes(slots), attributes(1));
    let id = sessions.create(1, attributes, terms(), maker(), Some((Wire(1, false), true))).unwrap();
    (sessions, id)
}

#[test]
fn a_session_that_is_refused_leaves_nothing() {
    let mut sessions = Sessions::new(IdKey::random()).up_to(0, 1 << 20);
    let attributes = (attributes(1), attributes(1));
    let refused = sessions.create(1, attributes, terms(), maker(), Some((FIRST, true)));
    assert_eq!(refused, Err(Status::Delay));
    assert!(sessions.clients.is_empty() && sessions.ids.is_empty());
}

#[test]
fn requests_out_of_bounds_do_not_take_the_slot() {
    let (mut sessions, id) = with_one(2);
    let status = |begun: Result<Begun, Status>| begun.err();
    assert_eq!(status(sessions.begin(&arriving([0; 16], 0, 1, 0), &FIRST)), Some(Status::BadSession));
    assert_eq!(status(sessions.begin(&arriving(id, 2, 1, 0), &FIRST)), Some(Status::BadSlot));
    let large = Arriving { bytes: 1001, ..arriving(id, 0, 1, 0) };
    assert_eq!(status(sessions.begin(&large, &FIRST)), Some(Status::ReqTooBig));
    let long = Arriving { operations: 9, ..arriving(id, 0, 1, 0) };
    assert_eq!(status(sessions.begin(&long, &FIRST)), Some(Status::TooManyOps));
    for sequence in [0, 2, u32::MAX] {
        assert_eq!(
            status(sessions.begin(&arriving(id, 0, sequence, 0), &FIRST)),
            Some(Status::SeqMisordered)
        );
    }
    assert!(matches!(sessions.begin(&arriving(id, 0, 1, 0), &FIRST), Ok(Begun::Execute { client: 1, .. })));
    assert_eq!(status(sessions.begin(&arriving(id, 0, 1, 0), &FIRST)), Some(Status::Delay));
    sessions.complete(id, 0, None);
    assert_eq!(status(sessions.begin(&arriving(id, 0, 1, 0), &FIRST)), Some(Status::RetryUncachedRep));
}

#[test]
fn connections_are_bound_by_use_and_lost() {
    let (mut sessions, id) = with_one(1);
    assert!(sessions.get(id).unwrap().has_way_back());
    let unbound = sessions.begin(&arriving(id, 0, 1, 0), &Wire(2, false)).err();
    assert_eq!(unbound, Some(Status::ConnNotBoundToSession));
    sessions.join(id, Wire(2, false), &maker()).unwrap();
    sessions.begin(&arriving(id, 0, 1, 0), &Wire(2, false)).unwrap();
    assert_eq!(sessions.get(id).unwrap().ways_back().count(), 1);
    sessions.bind(id, (Wire(2, false), true), &maker()).unwrap();
    assert_eq!(sessions.get(id).unwrap().ways_back().next(), Some(&Wire(2, false)));
    sessions.get_mut(id).unwrap().back_down = true;
    assert!(!sessions.get(id).unwrap().has_way_back());
    sessions.bind(id, (Wire(3, false), true), &maker()).unwrap();
    assert!(sessions.get(id).unwrap().has_way_back());
    for bound in &mut sessions.get_mut(id).unwrap().connections {
        bound.connection.1 = true;
    }
    assert!(!sessions.get(id).unwrap().has_way_back());
    for number in 0..1000 {
        sessions.bind(id, (Wire(number, false), true), &maker()).unwrap();
    }
    assert_eq!(sessions.get(id).unwrap().connections.len(), CONNECTIONS_PER_SESSION_MAX);
}

#[test]
fn a_session_is_for_its_principal_and_for_peers_that_reach_it() {
    let (mut sessions, id) = with_one(1);
    let there = IpAddr::from([127, 0, 0, 2]);
    let (strange, other) = (Maker::of(0, 2), Maker::of(7, 1));
    let elsewhere = Maker { address: there, ..maker() };
    let bad = Err(Status::BadSession);
    let new = || Wire(9, false);
    assert_eq!(sessions.bind(id, (new(), true), &strange), bad);
    assert_eq!(sessions.bind(id, (new(), true), &other), bad);
    assert_eq!(
        (sessions.join(id, new(), &strange).err(), sessions.check(id, &strange).err()),
        (bad.err(), bad.err())
    );
    assert_eq!(sessions.check(id, &other), Err(Status::WrongCred));
    // Another user of the same host may use a session, as all users of a client do.
    assert_eq!(sessions.join(id, new(), &other), Ok(()));
    // Another address of the client may join only after the client has bound a connection from it.
    assert_eq!(sessions.join(id, Wire(10, false), &elsewhere), Err(Status::ConnNotBoundToSession));
    assert_eq!(sessions.bind(id, (Wire(10, false), false), &elsewhere), Ok(1));
    assert_eq!(sessions.join(id, Wire(11, false), &elsewhere), Ok(()));
    assert_eq!(sessions.check(id, &elsewhere), Ok(()));
    for number in 3..=255 {
        let many = Maker { address: IpAddr::from([127, 0, 0, number]), ..maker() };
        sessions.bind(id, (Wire(12, false), false), &many).unwrap();
    }
    assert_eq!(sessions.get(id).unwrap().addresses.len(), ADDRESSES_PER_SESSION_MAX);
    assert_eq!(sessions.join(id, Wire(13, false), &maker()), Ok(()), "the maker's address stays");
}

#[test]
fn sessions_go_alone_or_with_their_client() {
    let (mut sessions, first) = with_one(1);
    let second = sessions.create(1, (attributes(1), attributes(1)), terms(), maker(), None).unwrap();
    let other = sessions.create(2, (attributes(1), attributes(1)), terms(), maker(), None).unwrap();
    assert_eq!(sessions.of(1).map(|(id, _)| id).collect::<Vec<_>>(), vec![second, first]);
    assert_eq!(sessions.destroy(first), Ok(1));
    assert_eq!(sessions.destroy(first), Err(Status::BadSession));
    assert!(sessions.has(1));
    sessions.destroy_all(1);
    assert!(!sessions.has(1) && sessions.get(second).is_none() && sessions.get(other).is_some());
    for _ in 0..SESSIONS_PER_CLIENT_MAX {
        sessions.create(1, (attributes(1), attributes(1)), terms(), maker(), None).unwrap();
    }
    assert_eq!(
        sessions.create(1, (attributes(1), attributes(1)), terms(), maker(), None),
        Err(Status::Delay)
    );
}

#[test]
fn a_client_gives_slots_up_once_it_has_seen_that_it_is_asked_and_uses_none_of_them() {
    let fore = ChannelAttrs { maxresponsesize_cached: 8 << 10, ..attributes(32) };
    let budget = promised(&fore) * 3 / 2;
    let mut sessions = Sessions::new(IdKey::random()).up_to(99, budget);
    let create = |sessions: &mut Sessions<Wire>, client| {
        let fore = sessions.granted(fore, &maker());
        let id = sessions.create(client, (fore, attributes(1)), terms(), maker(), Some((FIRST, false)));
        (id.unwrap(), fore.maxrequests)
    };
    let large = sessions.create(1, (fore, attributes(1)), terms(), maker(), Some((FIRST, false))).unwrap();
    let ask = |sessions: &mut Sessions<Wire>, slot, sequence, highest_slotid| {
        let mut arriving = arriving(large, slot, sequence, 0);
        arriving.sequence.highest_slotid = highest_slotid;
        match sessions.begin(&arriving, &FIRST) {
            Ok(Begun::Execute { highest_slot, target_highest_slot, .. }) => {
                Ok((highest_slot, target_highest_slot))
            }
            begun => Err(begun.err()),
        }
    };
    assert_eq!(ask(&mut sessions, 20, 1, 31), Ok((31, 31)));
    assert_eq!(create(&mut sessions, 2).1, 1, "there is little left");
    while sessions.promises.greatest_when_short().is_none() {
        create(&mut sessions, 2);
    }
    assert_eq!(ask(&mut sessions, 0, 1, 0), Ok((31, 15)), "it is told in slot 0");
    assert_eq!(ask(&mut sessions, 1, 1, 0), Ok((31, 15)), "and may not have heard");
    sessions.complete(large, 0, None);
    sessions.complete(large, 1, None);
    assert_eq!(ask(&mut sessions, 0, 2, 20), Ok((31, 15)), "it uses slot 20");
    sessions.complete(large, 0, None);
    assert_eq!(ask(&mut sessions, 0, 3, 1), Ok((31, 15)), "slot 20 is busy still");
    sessions.complete(large, 0, None);
    sessions.complete(large, 20, Some(message(b"kept")));
    let before = sessions.promises.total();
    assert_eq!(ask(&mut sessions, 0, 4, 1), Ok((15, 15)));
    assert_eq!(before - sessions.promises.total(), promised(&fore) / 2);
    assert_eq!(ask(&mut sessions, 20, 2, 1), Err(Some(Status::BadSlot)));
    assert_eq!(ask(&mut sessions, 15, 1, 15), Ok((15, 15)));
    sessions.destroy_all(1);
    sessions.destroy_all(2);
    assert_eq!(sessions.promises.total(), 0);
}

/// The model of one slot: the last sequence id, its digest and its reply.
type Model = Option<(u32, u64, Option<Vec<u8>>)>;

proptest! {
    /// Whatever arrives in whatever order, each sequence id is executed once, in order, and a retry gets
    /// its reply.
    #[test]
    fn each_request_is_carried_out_exactly_once(
        steps in proptest::collection::vec((0u32..3, 0u32..6, 0u64..2, any::<bool>()), 1..80)
    ) {
        let (mut sessions, id) = with_one(2);
        let mut model: [Model; 2] = [None, None];
        for (slot, ahead, digest, cached) in steps {
            let last = model.get(slot as usize).and_then(|slot| slot.as_ref()).map_or(0, |(last, ..)| *last);
            let sequence = last.wrapping_add(ahead).wrapping_sub(2);
            let begun = sessions.begin(&arriving(id, slot, sequence, digest), &FIRST);
            let Some(known) = model.get_mut(slot as usize) else {
                prop_assert_eq!(begun.err(), Some(Status::BadSlot));
                continue;
            };
            match begun {
                Ok(Begun::Execute { .. }) => {
                    prop_assert_eq!(sequence, last + 1);
                    let reply = cached.then(|| format!("{slot}/{sequence}").into_bytes());
                    sessions.complete(id, slot, reply.as_deref().map(message));
                    *known = Some((sequence, digest, reply));
                }
                Ok(Begun::Replay(reply)) => {
                    let expected = known.clone().map(|(sequence, digest, reply)| (sequence, digest, reply.unwrap()));
                    prop_assert_eq!(expected, Some((sequence, digest, reply.first.to_vec())));
                }
                Err(Status::SeqMisordered) => {
                    let retry = known.is_some() && sequence == last;
                    prop_assert!(sequence != last + 1 && !retry);
                }
                Err(Status::SeqFalseRetry) => prop_assert!(known.as_ref().is_some_and(|known| known.1 != digest)),
                Err(Status::RetryUncachedRep) => prop_assert!(known.as_ref().is_some_and(|known| known.2.is_none())),
                Err(status) => prop_assert!(false, "{status}"),
            }
        }
    }
}
