//! What a cluster needs of a key-value store that several members share: transactions that compare the
//! revisions of keys, as etcd has them (`Txn` of its API v3).
//!
//! A store orders all transactions. Each that changes something gets a revision that is larger than all
//! before. A key remembers the revision that changed it last.

use std::collections::BTreeMap;

/// A key of the store.
pub type Key = String;

/// A condition and changes, carried out at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Transaction {
    /// All must hold, or nothing is changed.
    pub conditions: Vec<Condition>,
    /// The changes, each of another key.
    pub changes: Vec<Change>,
    /// The result has all keys that begin so, after the changes.
    pub prefix: Key,
}

/// A condition of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// The key.
    pub key: Key,
    /// The revision that changed it last; zero if the key must be absent.
    pub changed_at: u64,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Sets it.
    Put {
        /// The key.
        key: Key,
        /// Its new value.
        value: Vec<u8>,
    },
    /// Removes it, if it is there.
    Delete {
        /// The key.
        key: Key,
    },
}

/// A transaction was carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Committed {
    /// All conditions held, and the changes were made.
    pub succeeded: bool,
    /// The revision of the store after it. The keys that it put have this revision.
    pub revision: u64,
    /// The keys with the prefix, in order.
    pub entries: Vec<Entry>,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision that changed it last.
    pub changed_at: u64,
}

/// No result of a transaction.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    /// No answer. The transaction may be carried out nevertheless, now or later.
    #[error("{0}")]
    Unknown(String),
    /// The store has refused it, and will refuse it again: it was not carried out.
    #[error("{0}")]
    Refused(String),
}

/// A store that several members share.
pub trait Store: Send + Sync {
    /// Carries out a transaction. Returns within a few seconds.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn transact(
        &self,
        transaction: &Transaction,
    ) -> impl Future<Output = Result<Committed, StoreError>> + Send;
}

/// A store in memory: for tests, and as the definition of what a store does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    revision: u64,
    entries: BTreeMap<Key, (Vec<u8>, u64)>,
}

impl Memory {
    /// Carries out a transaction.
    pub fn commit(&mut self, transaction: &Transaction) -> Committed {
        let changed_at = |key: &Key| self.entries.get(key).map_or(0, |(_, at)| *at);
        let holds = |condition: &Condition| changed_at(&condition.key) == condition.changed_at;
        let succeeded = transaction.conditions.iter().all(holds);
        let changes = |change: &Change| match change {
            Change::Put { .. } => true,
            Change::Delete { key } => self.entries.contains_key(key),
        };
        if succeeded && transaction.changes.iter().any(changes) {
            self.revision += 1;
            for change in &transaction.changes {
                match change {
                    Change::Put { key, value } => {
                        self.entries.insert(key.clone(), (value.clone(), self.revision));
                    }
                    Change::Delete { key } => {
                        self.entries.remove(key);
                    }
                }
            }
        }
        let with_prefix = self.entries.range(transaction.prefix.clone()..);
        let entries = with_prefix
            .take_while(|(key, _)| key.starts_with(&transaction.prefix))
            .map(|(key, (value, changed_at))| Entry {
                key: key.clone(),
                value: value.clone(),
                changed_at: *changed_at,
            })
            .collect();
        Committed { succeeded, revision: self.revision, entries }
    }
}
