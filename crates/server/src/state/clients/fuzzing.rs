//! The body of the fuzz target `clients`: any sequence of SETCLIENTID, EXCHANGE_ID, their confirmations,
//! state and time.
//!
//! No client loses state to another principal before its lease has expired. The number of clients stays
//! within its limit. The indices of the table agree with its records.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use protocol::nfs4::{ChannelAttrs, Netaddr};

use super::*;
use crate::exports::Admitting;

const LEASE: Duration = Duration::from_secs(90);
/// Fewer than there are names.
const CLIENTS_MAX: usize = 3;
const STEPS_MAX: usize = 1024;

/// A record that an operation gave out.
#[derive(Clone, Copy)]
enum Given {
    Minor0(Clientid, Verifier),
    Sessions(Clientid),
}

/// A confirmed client as it was before a step.
struct Known {
    maker: Maker,
    courtesy: bool,
    holds: bool,
}

struct World {
    table: Clients,
    now: Instant,
    given: Vec<Given>,
    /// The clients that hold state.
    holding: BTreeSet<Clientid>,
    /// The result of each client's last CREATE_SESSION, and its principal.
    created: BTreeMap<Clientid, (CreateSessionOk, Principal)>,
    sessions: u8,
}

/// Three bytes are one step: the operation, its maker and name, and the record it concerns.
pub fn clients(input: &[u8]) {
    let table = Clients::new((7, IdKey::of(1, 2)), LEASE, Holders::new()).up_to(CLIENTS_MAX);
    let (given, holding, created) = <_>::default();
    let mut world = World { table, now: Instant::now(), given, holding, created, sessions: 0 };
    for step in input.chunks_exact(3).take(STEPS_MAX) {
        world.step(step[0], step[1], step[2]);
        world.check();
    }
}

impl World {
    fn step(&mut self, what: u8, bits: u8, which: u8) {
        let maker = maker(bits);
        let (ownerid, verifier) = (Bytes::from(vec![bits >> 3 & 3]), [bits >> 5 & 1; 8]);
        let given = self.given.get(usize::from(which) % self.given.len().max(1)).copied();
        let before = self.known();
        let holding = self.holding.clone();
        let has_state = |id| holding.contains(&id);
        match (what % 8, given) {
            (0, _) => {
                let callback =
                    CallbackAddress { program: 1, location: Netaddr::default(), ident: which.into() };
                let request = Setclientid { ownerid, verifier, maker, callback };
                if let Ok((id, confirm)) = self.table.setclientid(request, self.now, has_state) {
                    self.given.push(Given::Minor0(id, confirm));
                }
            }
            (1, Some(Given::Minor0(id, confirm))) => {
                let confirm = if what & 8 == 0 { confirm } else { [0; 8] };
                let done = self.table.setclientid_confirm((id, confirm), &maker, self.now, has_state);
                self.gone(done.ok().and_then(|done| done.replaced), &before, Some(&maker));
            }
            (2, _) => {
                let owner = (ownerid, verifier);
                let update = bits & 0x40 != 0;
                let exchanged = self.table.exchange_id(owner, maker.clone(), update, self.now, has_state);
                if let Ok(exchanged) = exchanged {
                    self.given.push(Given::Sessions(exchanged.id));
                    self.gone(exchanged.replaced, &before, Some(&maker));
                }
            }
            (3, Some(Given::Sessions(id))) => self.create_session(id, u32::from(bits >> 5), &maker, &before),
            (4, Some(Given::Minor0(id, _) | Given::Sessions(id))) if before.contains_key(&id) => {
                self.holding.insert(id);
                self.table.renew(id, self.now);
            }
            (5, Some(Given::Minor0(id, _) | Given::Sessions(id))) => drop(self.holding.remove(&id)),
            (6, _) => self.now += LEASE / 4 * u32::from(bits % 8),
            (7, _) => {
                for id in self.table.overdue(self.now, has_state) {
                    let gone = self.table.remove(id);
                    self.gone(gone, &before, None);
                }
            }
            _ => {}
        }
    }

    fn create_session(
        &mut self,
        id: Clientid,
        sequence: u32,
        maker: &Maker,
        before: &BTreeMap<Clientid, Known>,
    ) {
        match self.table.session_sequence(id, sequence, maker) {
            Ok(SessionConfirm::Next) => {
                let gone = self.table.confirm_by_session(id, self.now);
                self.sessions = self.sessions.wrapping_add(1);
                let made = session(self.sessions, sequence);
                self.table.session_created(id, made, maker.principal);
                self.created.insert(id, (made, maker.principal));
                self.gone(gone, before, Some(maker));
            }
            Ok(SessionConfirm::Replay(made)) => {
                assert_eq!(self.created.get(&id), Some(&(made, maker.principal)), "another's, or an old one");
            }
            Ok(SessionConfirm::OfAnother(made)) => {
                let (given, to) = self.created[&id];
                assert!(given == made && to != maker.principal);
            }
            Err(_) => {}
        }
    }

    /// All confirmed clients.
    fn known(&self) -> BTreeMap<Clientid, Known> {
        let known = |client: &Client| Known {
            maker: client.maker.clone(),
            courtesy: self.table.is_courtesy(client.id, self.now),
            holds: self.holding.contains(&client.id),
        };
        self.table.iter().map(|client| (client.id, known(client))).collect()
    }

    /// Checks a removal that a maker's request or the passing of time caused.
    fn gone(&mut self, gone: Option<Gone>, before: &BTreeMap<Clientid, Known>, by: Option<&Maker>) {
        let Some(gone) = gone else { return };
        let known = &before[&gone.id];
        let by_itself = by.is_some_and(|by| known.maker.principal == by.principal);
        assert!(by_itself || known.courtesy || !known.holds, "its state is lost to another");
        self.holding.remove(&gone.id);
    }

    fn check(&self) {
        let table = &self.table;
        let confirmed: BTreeMap<HolderId, Clientid> =
            table.iter().map(|client| (client.holder, client.id)).collect();
        assert!(confirmed.len() == table.iter().count() && confirmed.len() <= CLIENTS_MAX);
        assert_eq!(
            table.holders.iter().map(|(holder, id)| (*holder, *id)).collect::<BTreeMap<_, _>>(),
            confirmed
        );
        assert!(self.holding.iter().all(|id| table.confirmed(*id).is_some()));
        let mut ids = BTreeMap::new();
        let mut unconfirmed = 0;
        for (name, named) in &table.names {
            assert!(named.confirmed.is_some() || named.unconfirmed.is_some(), "a name of nothing");
            unconfirmed += usize::from(named.unconfirmed.is_some());
            ids.extend([&named.confirmed, &named.unconfirmed].into_iter().flatten().map(|of| (of.id, name)));
        }
        assert_eq!(table.ids.iter().map(|(id, name)| (*id, name)).collect::<BTreeMap<_, _>>(), ids);
        assert!(unconfirmed == table.unconfirmed.len() && unconfirmed <= CLIENTS_MAX);
    }
}

/// One of two users on one of two hosts. The same exports admit both hosts, or one more admits the second.
fn maker(bits: u8) -> Maker {
    let (user, host) = (bits & 1, bits >> 1 & 1);
    Maker {
        principal: Principal::User(user.into()),
        address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)),
        admitting: Admitting::of(1 | u64::from(host & bits >> 2) << 1),
    }
}

fn session(number: u8, sequence: u32) -> CreateSessionOk {
    let none = ChannelAttrs::default();
    CreateSessionOk {
        sessionid: [number; 16],
        sequence,
        flags: 0,
        fore_chan_attrs: none,
        back_chan_attrs: none,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn nobody_loses_state_to_another_and_all_stays_within_bounds() {
        protocol::fuzzing::over_corpus("clients", super::clients);
    }
}
