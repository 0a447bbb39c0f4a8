//! Open owners and lock owners of minor version 0. The requests of an owner come one after the other, each
//! with the next seqid. The client may send the last one again (RFC 7530, sections 9.1.7 to 9.1.10).
//!
//! A pure table. `R` is the type of an answer; the table keeps the last answer of each owner. In the later
//! minor versions sessions do this, and owners need no records.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use protocol::nfs4::{Clientid, Status};
use tokio::time::Instant;

use super::capacity::Bounds;
use super::footprint::of_map;
use super::stateids::StateKey;

/// An owner's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnerName {
    pub(crate) client: Clientid,
    pub(crate) kind: OwnerKind,
    /// At most 1,024 bytes.
    pub(crate) name: Bytes,
}

/// The kind of owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OwnerKind {
    Open,
    Lock,
}

/// How to treat a request of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Turn<R> {
    /// It is the next one.
    Execute,
    /// It is the first request of an open owner whose earlier incarnation was never confirmed. The earlier
    /// opens are void.
    Anew,
    /// It is a retry of the last one, which had this answer.
    Replay(R),
}

#[derive(Debug)]
struct Owner<R> {
    /// Always true of lock owners.
    confirmed: bool,
    /// The seqid and answer of the last request, if there was one.
    last: Option<(u32, R)>,
    used: Instant,
    /// The open that the owner closed last, for a retry of CLOSE.
    closed: Option<StateKey>,
}

/// All owners.
#[derive(Debug)]
pub(crate) struct Owners<R> {
    by_name: HashMap<OwnerName, Owner<R>>,
    closed: HashMap<StateKey, OwnerName>,
    most: usize,
}

impl<R> Default for Owners<R> {
    fn default() -> Owners<R> {
        Owners { by_name: HashMap::new(), closed: HashMap::new(), most: Bounds::default().owners }
    }
}

/// Is this a failure that leaves the owner's seqid where it was (RFC 7530, section 9.1.7)?
pub(crate) fn leaves_seqid(status: Result<(), Status>) -> bool {
    matches!(
        status,
        Err(Status::StaleClientid
            | Status::StaleStateid
            | Status::BadStateid
            | Status::BadSeqid
            | Status::BadXdr
            | Status::Resource
            | Status::NoFileHandle
            | Status::Moved)
    )
}

impl<R: Clone> Owners<R> {
    /// With a limit of `most` owners.
    pub(crate) fn up_to(self, most: usize) -> Owners<R> {
        Owners { most, ..self }
    }

    /// See [`super::Footprint`].
    pub(crate) fn bytes(&self) -> usize {
        of_map(&self.by_name) + of_map(&self.closed)
    }

    /// Is there capacity for one more owner?
    pub(crate) fn has_capacity(&self) -> bool {
        self.by_name.len() < self.most
    }

    /// Does this client have any owner?
    pub(crate) fn any_of(&self, client: Clientid) -> bool {
        self.by_name.keys().any(|name| name.client == client)
    }

    /// Begins an OPEN, which may be an owner's first request.
    ///
    /// # Errors
    /// `BadSeqid`; `Resource` if there are too many owners.
    pub(crate) fn begin_open(
        &mut self,
        name: &OwnerName,
        seqid: u32,
        now: Instant,
    ) -> Result<Turn<R>, Status> {
        match self.by_name.get(name) {
            Some(owner) if owner.confirmed => self.begin(name, seqid, now),
            Some(_) => {
                self.remove(name);
                self.enter(name, false, now).map(|()| Turn::Anew)
            }
            None => self.enter(name, false, now).map(|()| Turn::Execute),
        }
    }

    /// Begins the first LOCK of a lock owner under an open. The owner may be known from another open. An
    /// owner that does not hold any state (`holds` is false) is forgotten first. A client whose first lock
    /// was denied forgets the owner too, and may use the same name anew.
    ///
    /// # Errors
    /// `BadSeqid`; `Resource` if there are too many owners.
    pub(crate) fn begin_lock(
        &mut self,
        name: &OwnerName,
        seqid: u32,
        now: Instant,
        holds: bool,
    ) -> Result<(), Status> {
        if !holds {
            self.remove(name);
        }
        match self.begin(name, seqid, now) {
            Ok(Turn::Execute) => Ok(()),
            _ if !self.by_name.contains_key(name) => self.enter(name, true, now),
            // The open owner's seqid shows that this is no retry.
            _ => Err(Status::BadSeqid),
        }
    }

    /// Begins a request of an owner that has made one before.
    ///
    /// # Errors
    /// `BadSeqid` if the seqid is neither the next nor the last.
    pub(crate) fn begin(&mut self, name: &OwnerName, seqid: u32, now: Instant) -> Result<Turn<R>, Status> {
        let owner = self.by_name.get_mut(name).ok_or(Status::BadSeqid)?;
        owner.used = now;
        match &owner.last {
            None => Ok(Turn::Execute),
            Some((last, reply)) if *last == seqid => Ok(Turn::Replay(reply.clone())),
            Some((last, _)) if last.wrapping_add(1) == seqid => Ok(Turn::Execute),
            Some(_) => Err(Status::BadSeqid),
        }
    }

    /// Stores the answer to the request.
    pub(crate) fn finish(&mut self, name: &OwnerName, seqid: u32, status: Result<(), Status>, reply: R) {
        if let Some(owner) = self.by_name.get_mut(name)
            && !leaves_seqid(status)
        {
            owner.last = Some((seqid, reply));
        }
    }

    /// Has the open owner been confirmed?
    pub(crate) fn is_confirmed(&self, name: &OwnerName) -> bool {
        self.by_name.get(name).is_some_and(|owner| owner.confirmed)
    }

    /// The owner is confirmed, by OPEN_CONFIRM or by an OPEN that needs no confirmation.
    pub(crate) fn confirm(&mut self, name: &OwnerName) {
        if let Some(owner) = self.by_name.get_mut(name) {
            owner.confirmed = true;
        }
    }

    /// Notes that the owner closed this open.
    pub(crate) fn closed(&mut self, name: &OwnerName, key: StateKey) {
        let Some(owner) = self.by_name.get_mut(name) else { return };
        if let Some(before) = owner.closed.replace(key) {
            self.closed.remove(&before);
        }
        self.closed.insert(key, name.clone());
    }

    /// The owner that closed this open, if that was the owner's last close.
    pub(crate) fn closer(&self, key: StateKey) -> Option<&OwnerName> {
        self.closed.get(&key)
    }

    /// Forgets an owner.
    pub(crate) fn remove(&mut self, name: &OwnerName) {
        if let Some(closed) = self.by_name.remove(name).and_then(|owner| owner.closed) {
            self.closed.remove(&closed);
        }
    }

    /// Forgets all owners of a client.
    pub(crate) fn remove_all(&mut self, client: Clientid) {
        self.by_name.retain(|name, _| name.client != client);
        self.closed.retain(|_, name| name.client != client);
    }

    /// Forgets the owners that have sent no request for longer than `idle`, unless they hold state.
    pub(crate) fn forget_idle(&mut self, now: Instant, idle: Duration, holds: impl Fn(&OwnerName) -> bool) {
        self.by_name.retain(|name, owner| now.saturating_duration_since(owner.used) <= idle || holds(name));
        let owners = &self.by_name;
        self.closed.retain(|_, name| owners.contains_key(name));
    }

    fn enter(&mut self, name: &OwnerName, confirmed: bool, now: Instant) -> Result<(), Status> {
        if !self.has_capacity() {
            return Err(Status::Resource);
        }
        self.by_name.insert(name.clone(), Owner { confirmed, last: None, used: now, closed: None });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn owner(kind: OwnerKind) -> OwnerName {
        OwnerName { client: 1, kind, name: Bytes::from_static(b"owner") }
    }

    #[test]
    fn an_open_owner_counts_once_it_is_confirmed() {
        let (mut owners, name, now) = (Owners::default(), owner(OwnerKind::Open), Instant::now());
        assert_eq!(owners.begin_open(&name, 17, now), Ok(Turn::Execute));
        owners.finish(&name, 17, Ok(()), "first");
        assert_eq!(owners.begin_open(&name, 40, now), Ok(Turn::Anew));
        owners.finish(&name, 40, Ok(()), "anew");
        assert_eq!(owners.begin(&name, 41, now), Ok(Turn::Execute));
        owners.confirm(&name);
        owners.finish(&name, 41, Ok(()), "confirm");
        assert_eq!(owners.begin_open(&name, 41, now), Ok(Turn::Replay("confirm")));
        assert_eq!(owners.begin_open(&name, 40, now), Err(Status::BadSeqid));
        assert_eq!(owners.begin_open(&name, 42, now), Ok(Turn::Execute));
        owners.finish(&name, 42, Err(Status::BadStateid), "bad");
        assert_eq!(owners.begin_open(&name, 42, now), Ok(Turn::Execute), "the seqid did not move");
        owners.finish(&name, 42, Err(Status::Grace), "grace");
        assert_eq!(owners.begin_open(&name, 42, now), Ok(Turn::Replay("grace")));
    }

    #[test]
    fn a_lock_owner_goes_on_counting_at_another_open() {
        let (mut owners, name, now) = (Owners::default(), owner(OwnerKind::Lock), Instant::now());
        assert_eq!(owners.begin(&name, 3, now), Err(Status::BadSeqid));
        assert_eq!(owners.begin_lock(&name, 3, now, false), Ok(()));
        owners.finish(&name, 3, Err(Status::Denied), ());
        assert_eq!(owners.begin_lock(&name, 3, now, false), Ok(()), "it has nothing, and was forgotten");
        owners.finish(&name, 3, Ok(()), ());
        assert_eq!(owners.begin_lock(&name, 3, now, true), Err(Status::BadSeqid));
        assert_eq!(owners.begin_lock(&name, 4, now, true), Ok(()));
    }

    #[test]
    fn the_last_close_may_come_again() {
        let (mut owners, name, now) = (Owners::default(), owner(OwnerKind::Open), Instant::now());
        let ids = crate::state::ids::IdKey::of(1, 2);
        let mut stateids = crate::state::stateids::Stateids::new((1, ids));
        let file = super::super::stateids::FileKey {
            export: crate::exports::ExportId(1),
            handle: vfs::Handle::new(b"f").unwrap(),
        };
        let mut key = |lease| {
            let kind = super::super::stateids::Kind::Delegation {
                lease: vfs::LeaseId(lease),
                kind: vfs::LeaseKind::Read,
                opener: vfs::Principal::Machine,
                standing: super::super::stateids::Standing::Good,
            };
            stateids.insert((ids.client(1, 1), vfs::HolderId(1)), file, kind).unwrap().key
        };
        let (first, second) = (key(1), key(2));
        assert_eq!(owners.begin_open(&name, 1, now), Ok(Turn::Execute));
        owners.finish(&name, 1, Ok(()), ());
        owners.closed(&name, first);
        owners.closed(&name, second);
        assert_eq!((owners.closer(first), owners.closer(second)), (None, Some(&name)));
        owners.forget_idle(now + Duration::from_secs(9), Duration::from_secs(10), |_| false);
        assert!(owners.closer(second).is_some());
        owners.forget_idle(now + Duration::from_secs(11), Duration::from_secs(10), |_| true);
        assert!(owners.closer(second).is_some());
        owners.forget_idle(now + Duration::from_secs(11), Duration::from_secs(10), |_| false);
        assert!(owners.by_name.is_empty() && owners.closed.is_empty());
    }

    proptest! {
        /// Against a counter: no request is executed twice or out of order.
        #[test]
        fn seqids_go_up_by_one(start in any::<u32>(), steps in proptest::collection::vec((0u32..4, any::<bool>()), 1..50)) {
            let (mut owners, name, now) = (Owners::default(), owner(OwnerKind::Open), Instant::now());
            prop_assert_eq!(owners.begin_open(&name, start, now), Ok(Turn::Execute));
            owners.confirm(&name);
            owners.finish(&name, start, Ok(()), start);
            let mut last = start;
            for (ahead, moves) in steps {
                let seqid = last.wrapping_add(ahead).wrapping_sub(1);
                let expected = match ahead {
                    1 => Ok(Turn::Replay(last)),
                    2 => Ok(Turn::Execute),
                    _ => Err(Status::BadSeqid),
                };
                prop_assert_eq!(owners.begin(&name, seqid, now), expected);
                if ahead == 2 {
                    let status = if moves { Err(Status::Denied) } else { Err(Status::BadStateid) };
                    owners.finish(&name, seqid, status, seqid);
                    last = if moves { seqid } else { last };
                }
            }
        }
    }
}
