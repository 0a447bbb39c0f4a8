//! The records of a cluster, as one answer of the store shows them.

use std::collections::BTreeMap;

use super::Refusal;
use crate::records::{FORMAT, Keys, MemberRecord, ServerRecord};
use crate::store::Committed;

/// See the module. Each record has the revision that changed it last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct View {
    /// The revision of the store.
    pub revision: u64,
    /// The members by name.
    pub members: BTreeMap<String, (MemberRecord, u64)>,
    /// The virtual servers by address.
    pub servers: BTreeMap<String, (ServerRecord, u64)>,
    /// There is nothing of this cluster yet.
    is_empty: bool,
}

impl View {
    /// Understands an answer.
    ///
    /// # Errors
    /// `Foreign` if a record is not one of this version.
    pub(super) fn parse(keys: &Keys, committed: &Committed) -> Result<View, Refusal> {
        let mut view =
            View { revision: committed.revision, is_empty: committed.entries.is_empty(), ..View::default() };
        let mut has_format = view.is_empty;
        for entry in &committed.entries {
            let foreign = || Refusal::Foreign { key: entry.key.clone() };
            if entry.key == keys.format() {
                has_format = entry.value == FORMAT;
            } else if let Some(name) = keys.name_in("members", &entry.key) {
                let record = serde_json::from_slice(&entry.value).map_err(|_| foreign())?;
                view.members.insert(name.to_owned(), (record, entry.changed_at));
            } else if let Some(address) = keys.name_in("servers", &entry.key) {
                let record = serde_json::from_slice(&entry.value).map_err(|_| foreign())?;
                view.servers.insert(address.to_owned(), (record, entry.changed_at));
            } else {
                return Err(foreign());
            }
        }
        if has_format { Ok(view) } else { Err(Refusal::Foreign { key: keys.format() }) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// The member that has a server, if it still has the incarnation that took it.
    pub fn holder(&self, server: &str) -> Option<&str> {
        let holder = self.servers.get(server)?.0.holder.as_ref()?;
        let (name, (member, _)) = self.members.get_key_value(&holder.member)?;
        (member.incarnation == holder.incarnation).then_some(name)
    }
}
