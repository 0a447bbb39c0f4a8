//! Tests the client records of both kinds of minor version against the rules of the RFCs.

use super::exchange_id::Exchanged;
use super::setclientid::Confirmed;
use super::*;
use crate::state::records::Before;
use protocol::nfs4::Netaddr;

const LEASE: Duration = Duration::from_secs(90);

fn clients() -> Clients {
    Clients::new((7, IdKey::random()), LEASE, Holders::new())
}

/// A user on a host that the first of two exports admits.
fn user(uid: u32) -> Maker {
    Maker::of(uid, 1)
}

fn callback(ident: u32) -> CallbackAddress {
    CallbackAddress { program: 0x4000_0000, location: Netaddr::default(), ident }
}

fn request(verifier: u8, uid: u32, ident: u32) -> Setclientid {
    Setclientid {
        ownerid: Bytes::from_static(b"client"),
        verifier: [verifier; 8],
        maker: user(uid),
        callback: callback(ident),
    }
}

fn exchange(
    clients: &mut Clients,
    verifier: u8,
    uid: u32,
    update: bool,
    state: bool,
) -> Result<Exchanged, Status> {
    let owner = (Bytes::from_static(b"client"), [verifier; 8]);
    clients.exchange_id(owner, user(uid), update, Instant::now(), |_| state)
}

fn session() -> CreateSessionOk {
    let none = protocol::nfs4::ChannelAttrs::default();
    CreateSessionOk {
        sessionid: [7; 16],
        sequence: 1,
        flags: 0,
        fore_chan_attrs: none,
        back_chan_attrs: none,
    }
}

/// EXCHANGE_ID and CREATE_SESSION.
fn confirmed_by_session(clients: &mut Clients, verifier: u8) -> (Clientid, Option<Gone>) {
    let exchanged = exchange(clients, verifier, 0, false, true).unwrap();
    let next = clients.session_sequence(exchanged.id, exchanged.sequence, &user(0));
    assert_eq!(next, Ok(SessionConfirm::Next));
    let gone = clients.confirm_by_session(exchanged.id, Instant::now());
    clients.session_created(exchanged.id, session(), Principal::User(0));
    (exchanged.id, gone)
}

#[test]
fn setclientid_is_confirmed_once_and_again() {
    let (mut clients, now) = (clients(), Instant::now());
    let (id, confirm) = clients.setclientid(request(1, 0, 5), now, |_| true).unwrap();
    assert_eq!(clients.of_minor0(id).err(), Some(Status::Expired), "unconfirmed");
    assert_eq!(
        clients.setclientid_confirm((id, [9; 8]), &user(0), now, |_| false),
        Err(Status::StaleClientid)
    );
    assert_eq!(clients.setclientid_confirm((id, confirm), &user(1), now, |_| false), Err(Status::ClidInuse));
    let done = clients.setclientid_confirm((id, confirm), &user(0), now, |_| false).unwrap();
    assert_eq!(done, Confirmed { replaced: None, callback_changed: true });
    let again = clients.setclientid_confirm((id, confirm), &user(0), now, |_| false).unwrap();
    assert_eq!(again, Confirmed::default());
    assert!(clients.of_minor0(id).is_ok());
    assert_eq!(clients.of_minor0(0).err(), Some(Status::StaleClientid));
}

#[test]
fn setclientid_of_the_same_incarnation_changes_the_callback_under_the_same_id() {
    let (mut clients, now) = (clients(), Instant::now());
    let (id, confirm) = clients.setclientid(request(1, 0, 5), now, |_| true).unwrap();
    clients.setclientid_confirm((id, confirm), &user(0), now, |_| false).unwrap();
    let (same, second) = clients.setclientid(request(1, 0, 6), now, |_| true).unwrap();
    assert_eq!(same, id);
    assert_ne!(second, confirm);
    let ident = |clients: &Clients| match &clients.of_minor0(id).unwrap().way {
        Way::Minor0 { callback, .. } => callback.ident,
        Way::Sessions { .. } => 0,
    };
    assert_eq!(ident(&clients), 5);
    clients.setclientid_confirm((id, second), &user(0), now, |_| false).unwrap();
    assert_eq!(ident(&clients), 6);
}

#[test]
fn setclientid_of_a_new_incarnation_replaces_the_old_one_when_confirmed() {
    let (mut clients, now) = (clients(), Instant::now());
    let (old, confirm) = clients.setclientid(request(1, 0, 5), now, |_| true).unwrap();
    clients.setclientid_confirm((old, confirm), &user(0), now, |_| false).unwrap();
    let holder = clients.of_minor0(old).unwrap().holder;
    let (lost, _) = clients.setclientid(request(2, 0, 5), now, |_| true).unwrap();
    let (new, confirm) = clients.setclientid(request(2, 0, 5), now, |_| true).unwrap();
    assert!(clients.of_minor0(old).is_ok() && clients.maker(lost).is_none());
    let done = clients.setclientid_confirm((new, confirm), &user(0), now, |_| false).unwrap();
    assert_eq!(done.replaced, Some(Gone { id: old, holder, recorded: None }));
    assert_eq!(clients.of_minor0(old).err(), Some(Status::Expired));
    assert!(clients.holder(holder).is_none());
    assert_eq!(clients.iter().count(), 1);
}

#[test]
fn a_name_with_state_is_not_for_another_principal() {
    let (mut clients, now) = (clients(), Instant::now());
    let (id, confirm) = clients.setclientid(request(1, 0, 5), now, |_| true).unwrap();
    clients.setclientid_confirm((id, confirm), &user(0), now, |_| false).unwrap();
    let refused = clients.setclientid(request(1, 1, 5), now, |_| true).unwrap_err();
    assert_eq!(refused, (Status::ClidInuse, Some(Netaddr::default())));
    assert!(clients.setclientid(request(1, 1, 5), now, |_| false).is_ok());
    assert!(clients.setclientid(request(1, 1, 5), now + 2 * LEASE, |_| true).is_ok());
}

#[test]
fn who_got_state_since_another_asked_for_its_name_keeps_it_for_its_lease() {
    let (mut clients, now) = (clients(), Instant::now());
    let (id, confirm) = clients.setclientid(request(1, 0, 5), now, |_| true).unwrap();
    clients.setclientid_confirm((id, confirm), &user(0), now, |_| false).unwrap();
    let other = clients.setclientid(request(1, 1, 5), now, |_| false).unwrap();
    let refused = clients.setclientid_confirm(other, &user(1), now, |client| client == id);
    assert_eq!(refused, Err(Status::ClidInuse));
    assert!(clients.of_minor0(id).is_ok());
    let later = now + 2 * LEASE;
    let done = clients.setclientid_confirm(other, &user(1), later, |client| client == id).unwrap();
    assert_eq!(done.replaced.map(|gone| gone.id), Some(id));
}

#[test]
fn records_that_are_confirmed_late_are_no_more_than_there_may_be() {
    let (mut table, now) = (clients().up_to(2), Instant::now());
    let ask = |table: &mut Clients, name: &'static [u8]| {
        let ownerid = Bytes::from_static(name);
        table.setclientid(Setclientid { ownerid, ..request(1, 0, 5) }, now, |_| true).unwrap()
    };
    let (first, second) = (ask(&mut table, b"first"), ask(&mut table, b"second"));
    table.setclientid_confirm(first, &user(0), now, |_| true).unwrap();
    let third = ask(&mut table, b"third");
    table.setclientid_confirm(second, &user(0), now, |_| true).unwrap();
    assert_eq!(table.setclientid_confirm(third, &user(0), now, |_| true), Err(Status::Resource));
    table.remove(first.0);
    let with_sessions = exchange(&mut table, 1, 0, false, true).unwrap();
    table.setclientid_confirm(third, &user(0), now, |_| true).unwrap();
    let refused = table.session_sequence(with_sessions.id, 1, &user(0));
    assert_eq!((refused, table.iter().count()), (Err(Status::Delay), 2));
}

#[test]
fn exchange_id_has_nine_cases() {
    let mut table = clients();
    let fresh = exchange(&mut table, 1, 0, false, true).unwrap(); // 1
    assert!(!fresh.confirmed && fresh.sequence == 1);
    assert_eq!(exchange(&mut table, 1, 0, true, true), Err(Status::NoEnt)); // 7
    let again = exchange(&mut table, 1, 0, false, true).unwrap(); // 4
    assert_ne!(again.id, fresh.id);
    assert!(table.maker(fresh.id).is_none());
    let (id, _) = confirmed_by_session(&mut table, 1);
    let known = exchange(&mut table, 1, 0, false, true).unwrap(); // 2
    assert_eq!(known, Exchanged { id, sequence: 2, confirmed: true, replaced: None });
    assert_eq!(exchange(&mut table, 1, 0, true, true), Ok(known.clone())); // 6
    assert_eq!(exchange(&mut table, 2, 0, true, true), Err(Status::NotSame)); // 8
    assert_eq!(exchange(&mut table, 1, 1, true, true), Err(Status::Perm)); // 9
    assert_eq!(exchange(&mut table, 1, 1, false, true), Err(Status::ClidInuse)); // 3
    let other = exchange(&mut table, 1, 1, false, false).unwrap(); // 3, nothing held
    assert_eq!(other.replaced.map(|gone| gone.id), Some(id));
    let mut table = clients();
    let (old, _) = confirmed_by_session(&mut table, 1);
    let (new, gone) = confirmed_by_session(&mut table, 2); // 5
    assert_ne!(old, new);
    assert_eq!(gone.map(|gone| gone.id), Some(old));
}

#[test]
fn create_session_is_answered_from_its_slot() {
    let mut table = clients();
    let exchanged = exchange(&mut table, 1, 0, false, true).unwrap();
    let ask = |table: &Clients, sequence, uid| table.session_sequence(exchanged.id, sequence, &user(uid));
    assert_eq!(ask(&table, 0, 0), Err(Status::SeqMisordered), "nothing to replay yet");
    assert_eq!(ask(&table, 1, 1), Err(Status::ClidInuse));
    assert_eq!(ask(&table, 1, 0), Ok(SessionConfirm::Next));
    table.confirm_by_session(exchanged.id, Instant::now());
    table.session_created(exchanged.id, session(), Principal::User(0));
    assert_eq!(ask(&table, 1, 0), Ok(SessionConfirm::Replay(session())));
    assert_eq!(ask(&table, 2, 1), Ok(SessionConfirm::Next));
    assert_eq!(ask(&table, 3, 0), Err(Status::SeqMisordered));
    assert_eq!(table.session_sequence(99, 1, &user(0)), Err(Status::StaleClientid));
}

#[test]
fn silence_is_borne_for_a_day() {
    let (mut clients, now) = (clients(), Instant::now());
    let (id, confirm) = clients.setclientid(request(1, 0, 5), now, |_| true).unwrap();
    clients.setclientid_confirm((id, confirm), &user(0), now, |_| false).unwrap();
    assert!(!clients.is_courtesy(id, now + LEASE));
    assert!(clients.is_courtesy(id, now + 2 * LEASE));
    assert!(clients.overdue(now + 3 * LEASE, |_| true).is_empty());
    assert_eq!(clients.overdue(now + 3 * LEASE, |_| false), vec![id]);
    assert_eq!(clients.overdue(now + COURTESY + LEASE, |_| true), vec![id]);
    let (unconfirmed, _) = clients.setclientid(request(2, 0, 5), now, |_| true).unwrap();
    clients.overdue(now + 2 * LEASE, |_| true);
    assert!(clients.maker(unconfirmed).is_none() && clients.maker(id).is_some());
    assert_eq!(clients.remove(id).map(|gone| gone.id), Some(id));
    assert!(clients.names.is_empty() && clients.ids.is_empty() && clients.holders.is_empty());
}

#[test]
fn the_longest_silent_is_the_first_to_go_and_nobody_whose_lease_is_good() {
    let (mut clients, start) = (clients(), Instant::now());
    let mut known = |name: &'static [u8], seconds| {
        let at = start + Duration::from_secs(seconds);
        let owner = (Bytes::from_static(name), [1; 8]);
        let id = clients.exchange_id(owner, user(0), false, at, |_| true).unwrap().id;
        clients.confirm_by_session(id, at);
        id
    };
    let (second, first, third) = (known(b"second", 10), known(b"first", 0), known(b"third", 20));
    let after = |seconds| start + LEASE + Duration::from_secs(seconds);
    assert_eq!(clients.oldest_courtesy(after(0), |_| true), None, "their leases are good");
    assert_eq!(clients.oldest_courtesy(after(30), |_| true), Some(first));
    assert_eq!(clients.oldest_courtesy(after(30), |client| client.id != first), Some(second));
    assert_eq!(clients.oldest_courtesy(after(15), |client| client.id == third), None);
    clients.renew(first, after(15));
    assert_eq!(clients.oldest_courtesy(after(30), |_| true), Some(second));
    let full = clients.up_to(3);
    assert!(!full.has_capacity());
}

fn at(address: u8) -> Maker {
    Maker { address: std::net::IpAddr::from([10, 0, 0, address]), ..user(0) }
}

#[test]
fn records_that_nobody_confirms_push_out_those_of_the_peer_that_has_most() {
    let (mut table, now) = (clients(), Instant::now());
    let named = |table: &mut Clients, name: String, of: u8| {
        let owner = (Bytes::from(name), [1; 8]);
        table.exchange_id(owner, at(of), false, now, |_| false).map(|known| known.id)
    };
    let modest = named(&mut table, "modest".into(), 2).unwrap();
    let first = named(&mut table, "greedy".into(), 1).unwrap();
    for number in 0..3 * UNCONFIRMED_MAX {
        named(&mut table, format!("greedy {number}"), 1).unwrap();
    }
    assert_eq!((table.unconfirmed.len(), table.ids.len()), (UNCONFIRMED_MAX, UNCONFIRMED_MAX));
    assert_eq!(table.names.len(), UNCONFIRMED_MAX);
    let next = |table: &Clients, id, of| table.session_sequence(id, 1, &at(of));
    assert_eq!(next(&table, first, 1), Err(Status::StaleClientid));
    assert_eq!(next(&table, modest, 2), Ok(SessionConfirm::Next), "the oldest of all, but of another peer");
    // The same holds for minor version 0. Whatever becomes of a record, it is counted once.
    let of_minor0 = Setclientid { maker: at(3), ..request(1, 0, 1) };
    let (id, confirm) = table.setclientid(of_minor0.clone(), now, |_| false).unwrap();
    table.setclientid_confirm((id, confirm), &at(3), now, |_| false).unwrap();
    let (again, update) = table.setclientid(of_minor0, now, |_| false).unwrap();
    assert_eq!((again, table.unconfirmed.len()), (id, UNCONFIRMED_MAX));
    table.setclientid_confirm((id, update), &at(3), now, |_| false).unwrap();
    table.confirm_by_session(modest, now);
    table.overdue(now + 2 * LEASE, |_| true);
    assert_eq!((table.unconfirmed.len(), table.ids.len(), table.iter().count()), (0, 2, 2));
}

#[test]
fn the_peer_with_the_most_clients_gives_one_that_was_not_heard_of_for_long() {
    let (mut table, start) = (clients(), Instant::now());
    let mut known = |name: &'static [u8], of, seconds| {
        let at_that_time = start + Duration::from_secs(seconds);
        let owner = (Bytes::from_static(name), [1; 8]);
        let id = table.exchange_id(owner, at(of), false, at_that_time, |_| true).unwrap().id;
        table.confirm_by_session(id, at_that_time);
        id
    };
    let (oldest, second, first) = (known(b"oldest", 1, 0), known(b"2", 2, 9), known(b"1", 2, 5));
    assert_eq!(table.of_greatest(|_| true), Some(first));
    assert_eq!(table.of_greatest(|client| client.id != first && client.id != second), Some(oldest));
    assert_eq!(table.of_greatest(|_| false), None);
}

#[test]
fn who_comes_back_after_a_restart_is_the_holder_that_it_was_and_nobody_else_is() {
    let name = ClientName { generation: Generation::Sessions, ownerid: Bytes::from_static(b"client") };
    let before = HolderId(6 << 32 | 3);
    let known = Before { holder: before, principal: Some(Principal::User(0)) };
    let holders = Holders::from([(name, known)]);
    let mut clients = Clients::new((7, IdKey::random()), LEASE, holders.clone());
    assert_eq!(exchange(&mut clients, 1, 7, false, false), Err(Status::ClidInuse), "another user");
    clients.end_grace();
    assert!(exchange(&mut clients, 1, 7, false, false).is_ok());
    let mut clients = Clients::new((7, IdKey::random()), LEASE, holders);
    let mut stranger = || {
        let owner = (Bytes::from_static(b"stranger"), [1; 8]);
        let id = clients.exchange_id(owner, user(0), false, Instant::now(), |_| false).unwrap().id;
        clients.confirm_by_session(id, Instant::now());
        clients.confirmed(id).unwrap().holder
    };
    assert_eq!(stranger().0 >> 32, 7);
    // The first answer is lost, and the client asks again.
    exchange(&mut clients, 1, 0, false, false).unwrap();
    let back = exchange(&mut clients, 1, 0, false, false).unwrap().id;
    assert_eq!(clients.confirm_by_session(back, Instant::now()), None);
    assert_eq!(clients.confirmed(back).unwrap().holder, before);
    // The next incarnation is another holder, and the state of the previous one goes.
    let next = exchange(&mut clients, 2, 0, false, false).unwrap().id;
    assert_eq!(clients.confirm_by_session(next, Instant::now()).unwrap().holder, before);
    assert_ne!(clients.confirmed(next).unwrap().holder, before);
}

#[test]
fn a_record_is_for_peers_that_every_export_of_its_maker_admits() {
    let (wider, strange) = (Maker::of(0, 3), Maker::of(0, 2));
    let now = Instant::now();
    let exchange = |table: &mut Clients, verifier: u8, maker: &Maker, update, at| {
        let owner = (Bytes::from_static(b"client"), [verifier; 8]);
        table.exchange_id(owner, maker.clone(), update, at, |_| false)
    };
    let mut table = clients();
    let (id, _) = confirmed_by_session(&mut table, 1);
    for verifier in [1, 2] {
        assert_eq!(exchange(&mut table, verifier, &strange, false, now), Err(Status::ClidInuse));
    }
    assert_eq!(exchange(&mut table, 1, &strange, true, now), Err(Status::Perm));
    for sequence in 0..3 {
        assert_eq!(table.session_sequence(id, sequence, &strange), Err(Status::StaleClientid));
    }
    let another = table.session_sequence(id, 1, &Maker::of(1, 1));
    assert_eq!(another, Ok(SessionConfirm::OfAnother(session())), "for the session's connections alone");
    assert_eq!(table.session_sequence(id, 1, &wider), Ok(SessionConfirm::Replay(session())));
    assert_eq!(exchange(&mut table, 1, &wider, false, now).map(|known| known.id), Ok(id));
    // A name is not reserved forever.
    assert!(exchange(&mut table, 2, &strange, false, now + 2 * LEASE).is_ok());

    let mut table = clients();
    let of = |maker: &Maker, verifier| Setclientid { maker: maker.clone(), ..request(verifier, 0, 5) };
    let (id, confirm) = table.setclientid(of(&user(0), 1), now, |_| false).unwrap();
    assert_eq!(
        table.setclientid_confirm((id, confirm), &strange, now, |_| false),
        Err(Status::StaleClientid)
    );
    table.setclientid_confirm((id, confirm), &wider, now, |_| false).unwrap();
    let refused = table.setclientid(of(&strange, 2), now, |_| false).unwrap_err();
    assert_eq!(refused, (Status::ClidInuse, Some(Netaddr::default())));
}
