//! The members, their servers, the calls and the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cluster::records::{Keys, ServerRecord};
use cluster::store::{Change, Committed, Condition, Entry, Memory, StoreError, Transaction};
use cluster::{Member, Moment, Refusal};

use crate::bounds::CLUSTER;

/// The transaction in flight of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    pub transaction: Arc<Transaction>,
    /// Set when the store has carried it out.
    pub result: Option<Arc<Committed>>,
}

/// A server in the process of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Running {
    pub epoch: u64,
    /// Its user stops it: it is not ordered any more.
    pub stopping: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    pub member: Arc<Member>,
    pub clock: u8,
    pub incarnation: u8,
    pub place: u8,
    pub sent: u8,
    pub draining: bool,
    pub call: Option<Call>,
    pub running: BTreeMap<String, Running>,
    /// The end of the term that the servers were told last.
    pub until: Moment,
}

/// How often something was done that has a bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    pub unknown: u8,
    pub kills: u8,
    pub moves: u8,
    pub drains: u8,
    pub leaves: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub store: Memory,
    pub seats: Vec<Seat>,
    /// Calls whose caller has given up or died, and which the store may still carry out.
    pub strays: Vec<Arc<Transaction>>,
    pub spent: Spent,
    pub fenced: bool,
    pub given: bool,
    pub epoch_reused: bool,
}

impl Seat {
    pub fn now(&self) -> Moment {
        Duration::from_nanos(self.clock.into())
    }

    /// The driver publishes the orders after each event, and the user of the servers obeys at once.
    pub fn publish(&mut self) {
        let now = self.now();
        let orders = Arc::make_mut(&mut self.member).orders(now);
        let Some(until) = orders.until.filter(|until| now < *until) else { return };
        self.until = until;
        for (server, running) in &mut self.running {
            running.stopping |= !orders.run.contains_key(server);
        }
        for (server, run) in orders.run {
            let running = self.running.entry(server).or_insert(Running { epoch: run.epoch, stopping: false });
            // A server that is being stopped is not started again before it has stopped.
            if !running.stopping {
                running.epoch = run.epoch;
            }
        }
    }

    pub fn tick(&mut self, late: u8) {
        self.clock += 1;
        if self.now() >= self.until + Duration::from_nanos(late.into()) {
            self.running.clear();
        }
    }
}

impl State {
    /// The store carries out a transaction.
    pub fn commit(&mut self, transaction: &Transaction) -> Committed {
        let keys = Keys::new(CLUSTER);
        let look = Transaction { prefix: keys.live(), ..Transaction::default() };
        let prefix = keys.server("");
        let servers = transaction.changes.iter().filter_map(|change| match change {
            Change::Put { key, value } if key.starts_with(&prefix) => Some((key, value)),
            _ => None,
        });
        let parse = |value: &[u8]| serde_json::from_slice::<ServerRecord>(value).unwrap();
        let servers: Vec<(&String, ServerRecord)> = servers.map(|(key, value)| (key, parse(value))).collect();
        let before = if servers.is_empty() { Vec::new() } else { self.store.commit(&look).entries };
        let committed = self.store.commit(transaction);
        if committed.succeeded {
            for (key, record) in servers {
                let old = before.iter().find(|entry| entry.key == *key).map(|entry| parse(&entry.value));
                self.note(&old.unwrap_or_default(), &record);
            }
        }
        // A key never has an earlier revision again, so these fail for ever.
        if !self.strays.is_empty() {
            let entries = self.store.commit(&look).entries;
            let may_hold = |condition: &Condition| {
                let has =
                    |entry: &Entry| (&entry.key, entry.changed_at) == (&condition.key, condition.changed_at);
                condition.changed_at == 0 || entries.iter().any(has)
            };
            self.strays.retain(|stray| stray.conditions.iter().all(may_hold));
        }
        committed
    }

    pub fn note(&mut self, old: &ServerRecord, new: &ServerRecord) {
        self.epoch_reused |= match &new.holder {
            Some(_) => new.epoch <= old.epoch,
            None => new.epoch < old.epoch,
        };
        if new.holder.is_some() && old.epoch > 0 {
            match &old.holder {
                Some(_) => self.fenced = true,
                None => self.given = true,
            }
        }
    }

    /// The caller of a call is not there any more.
    pub fn stray(&mut self, call: Option<Call>) {
        if let Some(Call { transaction, result: None }) = call
            && !transaction.changes.is_empty()
        {
            self.strays.push(transaction);
        }
    }

    pub fn send(&mut self, it: usize) {
        let seat = &mut self.seats[it];
        let now = seat.now();
        seat.sent += 1;
        let transaction = Arc::new(Arc::make_mut(&mut seat.member).next(now));
        seat.call = Some(Call { transaction, result: None });
    }

    pub fn carry_out(&mut self, it: usize) -> Option<()> {
        let transaction = self.seats[it].call.as_ref()?.transaction.clone();
        let result = Some(Arc::new(self.commit(&transaction)));
        self.seats[it].call = Some(Call { transaction, result });
        Some(())
    }

    pub fn answer(&mut self, it: usize, answer: Result<Committed, StoreError>) {
        let seat = &mut self.seats[it];
        let now = seat.now();
        match Arc::make_mut(&mut seat.member).answered(now, answer) {
            Ok(()) | Err(Refusal::NameInUse { .. }) => {}
            Err(refusal) => panic!("{refusal}"),
        }
        seat.publish();
    }

    pub fn answer_with_result(&mut self, it: usize) -> Option<()> {
        let result = self.seats[it].call.take()?.result?;
        self.answer(it, Ok(Arc::unwrap_or_clone(result)));
        Some(())
    }

    /// A transaction without a fault, for the beginning.
    pub fn transact(&mut self, it: usize) -> Option<()> {
        self.send(it);
        self.carry_out(it)?;
        self.answer_with_result(it)
    }
}
