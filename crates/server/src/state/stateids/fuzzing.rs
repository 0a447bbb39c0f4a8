//! The body of the fuzz target `states`. It adds, changes and removes opens, locks and delegations in any
//! sequence, and looks up state ids.
//!
//! A state id is valid for its client alone, at its seqid, and as long as its state exists. The indices and
//! counts agree with the states. A state that was refused or removed leaves nothing behind.

use std::collections::BTreeMap;

use super::*;

/// Fewer than may be asked for.
const STATES_MAX: usize = 6;
const CLIENTS: u32 = 3;
const STEPS_MAX: usize = 1024;
const KEY: IdKey = IdKey::of(1, 2);
const EPOCH: u32 = 7;

struct World {
    table: Stateids,
    /// The states as the table last returned them.
    model: BTreeMap<StateKey, HeldState>,
    leases: u64,
}

/// Three bytes are one step: the operation; the client, file and owner; and the state.
pub fn states(input: &[u8]) {
    let table = Stateids::new((EPOCH, KEY)).up_to(STATES_MAX, STATES_MAX);
    let mut world = World { table, model: BTreeMap::new(), leases: 0 };
    for step in input.chunks_exact(3).take(STEPS_MAX) {
        world.step(step[0], step[1], step[2]);
        world.check();
    }
}

impl World {
    fn step(&mut self, what: u8, bits: u8, which: u8) {
        let number = u32::from(bits) % CLIENTS + 1;
        let client = (KEY.client(EPOCH, number), HolderId(number.into()));
        let file = file(bits >> 2 & 1);
        let owner = Bytes::from(vec![bits >> 3 & 1]);
        let at = usize::from(which) % self.model.len().max(1);
        let held = self.model.values().nth(at).cloned();
        match (what % 8, held) {
            (0, _) if self.table.open_of(client.0, file, &owner).is_none() => {
                self.insert(client, file, open(owner));
            }
            (1, Some(by))
                if matches!(by.kind, Kind::Open { .. }) && self.table.lock_of(by.key, &owner).is_none() =>
            {
                self.insert((by.client, by.holder), by.file(), Kind::Lock { by: by.key, owner });
            }
            (2, _) => {
                self.leases += 1;
                let (lease, standing) = (LeaseId(self.leases), Standing::Good);
                let (kind, opener) = (LeaseKind::Read, Principal::Machine);
                self.insert(client, file, Kind::Delegation { lease, kind, opener, standing });
            }
            (3, Some(held)) => {
                let changed = self.table.change(held.key, |_| {}).expect("it is held");
                let known = self.model.get_mut(&held.key).expect("the same");
                known.seqid += 1;
                assert_eq!(changed, self.table.wire(known));
            }
            (4, Some(held)) => {
                let to = [Standing::Good, Standing::Recalled, Standing::Revoked][usize::from(bits % 3)];
                self.table.set_standing(held.key, to);
                let known = self.model.get_mut(&held.key).expect("it is held");
                if let Kind::Delegation { standing, .. } = &mut known.kind {
                    *standing = to;
                }
            }
            (5, Some(held)) => {
                assert!(self.table.remove(held.key).is_some() && self.table.remove(held.key).is_none());
                self.model.retain(|key, of| {
                    *key != held.key && !matches!(of.kind, Kind::Lock { by, .. } if by == held.key)
                });
            }
            (6, _) if what & 8 != 0 => {
                self.table.remove_all(client.0);
                self.model.retain(|_, held| held.client != client.0);
            }
            (7, Some(held)) => self.ask(&held, client.0, u32::from(bits >> 5), what >> 3),
            _ => {}
        }
    }

    fn insert(&mut self, client: (Clientid, HolderId), file: FileKey, kind: Kind) {
        let is_delegation = matches!(kind, Kind::Delegation { .. });
        let alike = self.model.values().filter(|held| held.is_delegation() == is_delegation);
        let full = alike.count() == STATES_MAX;
        match self.table.insert(client, file, kind) {
            Ok(held) => {
                assert!(!full && held.seqid == 1);
                assert!(self.model.insert(held.key, held.clone()).is_none(), "the id of another");
            }
            Err(status) => assert!(full && status == Status::Delay),
        }
    }

    /// Looks up the state id of a held state, for any client and at any seqid, or a forged id.
    fn ask(&self, held: &HeldState, by: Clientid, seqid: u32, bits: u8) {
        let mut stateid = Stateid { seqid, ..self.table.wire(held) };
        let (minor, session) = (u32::from(bits & 1), bits & 2 == 0);
        let forged = bits & 0x1c == 0x1c;
        if forged {
            stateid.other[usize::from(bits >> 1) % 12] ^= 1;
        }
        let found = self.table.find(stateid, Requester { minor, client: session.then_some(by) }, |_| true);
        let strange = minor > 0 && (!session || by != held.client);
        let expected = match seqid {
            _ if forged && minor == 0 => Err(Status::StaleStateid),
            _ if forged || strange => Err(Status::BadStateid),
            0 if minor > 0 => Ok(()),
            seqid if seqid > held.seqid => Err(Status::BadStateid),
            seqid if seqid < held.seqid => Err(Status::OldStateid),
            _ => Ok(()),
        };
        let expected = match expected {
            Ok(()) if held.is_revoked() && minor > 0 => Err(Status::DelegRevoked),
            Ok(()) if held.is_revoked() => Err(Status::BadStateid),
            other => other,
        };
        assert_eq!(found.map(|found| found.key), expected.map(|()| held.key));
    }

    fn check(&self) {
        let table = &self.table;
        assert!(table.held.len() == self.model.len() && self.model.len() <= 2 * STATES_MAX);
        let delegations = self.model.values().filter(|held| held.is_delegation()).count();
        assert_eq!(table.delegations, delegations);
        let mut counts: BTreeMap<u32, [usize; 3]> = BTreeMap::new();
        for held in self.model.values() {
            let known = table.get(held.key).expect("it is held");
            assert_eq!(
                (known.seqid, known.client, known.file(), &known.kind),
                (held.seqid, held.client, held.file(), &held.kind)
            );
            let found = match &held.kind {
                Kind::Open { owner, .. } => table.open_of(held.client, held.file(), owner),
                Kind::Lock { by, owner } => table.lock_of(*by, owner),
                Kind::Delegation { lease, .. } => table.delegation(held.export, *lease),
            };
            assert_eq!(found.map(|found| found.key), Some(held.key));
            assert_eq!(table.of_file(&held.file()).filter(|of| of.key == held.key).count(), 1);
            let count = counts.entry(held.key.client).or_default();
            count[0] += 1;
            count[1] += usize::from(held.is_delegation());
            count[2] += usize::from(held.is_revoked());
        }
        let indexed = table.opens.len() + table.locks.len() + table.leases.len();
        let of_files: usize = table.files.values().flat_map(|files| files.values()).map(Vec::len).sum();
        let of_owners: usize = table.owners.values().sum();
        assert_eq!(of_owners, self.model.len() - delegations);
        assert_eq!((indexed, of_files), (self.model.len(), self.model.len()));
        assert!(
            table
                .files
                .values()
                .all(|files| !files.is_empty() && files.values().all(|keys| !keys.is_empty())),
            "a file of nothing"
        );
        let told = table.counts.iter();
        let told = told.map(|(client, count)| (*client, [count.states, count.delegations, count.revoked]));
        assert_eq!(told.collect::<BTreeMap<_, _>>(), counts);
    }
}

fn file(number: u8) -> FileKey {
    FileKey { export: ExportId(1), handle: Handle::new(&[number]).expect("one byte") }
}

fn open(owner: Bytes) -> Kind {
    let (access, deny, opener) = (Share::READ, Share::empty(), Principal::Machine);
    Kind::Open { open: OpenId(1), owner, access, deny, opener, confirmed: true }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_state_id_is_good_for_its_client_and_nothing_is_left_of_what_has_gone() {
        protocol::fuzzing::over_corpus("states", super::states);
    }
}
