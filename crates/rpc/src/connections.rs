//! The table of a server's connections: which ones it keeps, and which one gives way when there are too many.
//!
//! The table is pure: the caller passes the time, and the table ends a connection by calling it. It counts
//! peers as the account does ([`Peer`]).
//!
//! - There are at most [`Bounds::all`] connections, and at most half of them belong to one peer.
//! - Above that limit, the peer with the most connections gives way. Of its connections with nothing in
//!   flight, the table ends the one that has been silent longest; a client connects again. A connection with
//!   calls or replies in flight ends only if nothing has moved on it for [`STALLED`].
//! - A peer with fewer connections than the peer of the new one loses none. If no connection can give way,
//!   the new one ends.
//! - If a record has begun and no further byte arrives within [`RECORD_TIME`], its connection ends.
//! - Peers that are not admitted share [`Bounds::strangers`] connections, each for at most [`STRANGER_IDLE`]
//!   without input. A new one always gets in.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use tokio::time::Instant;

use crate::account::Peer;

/// A connection may give way if work is in flight on it and nothing has moved for this long.
pub(crate) const STALLED: Duration = Duration::from_secs(10);
/// If a peer holds more than its share of memory, its connections end after not taking replies for this long.
const NOT_TAKEN: Duration = Duration::from_secs(2);
/// The connection of a peer that is not admitted ends after this long without input.
const STRANGER_IDLE: Duration = Duration::from_secs(10);
/// The connection of a peer that is not admitted ends at this age, whatever it sends.
const STRANGER_AGE: Duration = Duration::from_secs(60);

/// A record that has not grown for this long is considered abandoned.
const RECORD_TIME: Duration = Duration::from_secs(30);

/// A connection on which nothing has come for this long gives up its buffer.
const RESTING: Duration = Duration::from_secs(1);

/// Most connections of peers that are not admitted.
const STRANGERS_MAX: usize = 64;
/// Most connections, if the process has enough descriptors.
const CONNECTIONS_MAX: usize = 4096;
/// Least limit of connections, however few descriptors there are.
const CONNECTIONS_MIN: usize = 16;

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) all: usize,
    pub(crate) strangers: usize,
}

impl Bounds {
    pub(crate) fn of(all: usize) -> Bounds {
        Bounds { all, strangers: STRANGERS_MAX.min(all / 4).max(1) }
    }
}

/// The number of connections for a process with `limit` descriptors: an eighth. The rest is for other work.
pub(crate) fn for_descriptors(limit: usize) -> usize {
    (limit / 8).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

/// Raises the limit of open files to the maximum allowed, and returns the limit.
pub(crate) fn descriptors() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_ok() {
        limit.current = limit.maximum;
    }
    limit.current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// The table's view of a connection.
pub(crate) trait Occupant {
    /// The current activity.
    fn activity(&self) -> Activity;
    /// Ends the connection.
    fn end(&self);
    /// Nothing has come for [`RESTING`]: gives up the memory that only input needs. Returns its bytes.
    fn rest(&self) -> usize;
}

/// The activity of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Activity {
    /// When bytes were received last, or when the connection began if none were.
    pub(crate) received: Instant,
    /// Bytes sent so far.
    pub(crate) sent: u64,
    /// Bytes of replies that are not sent yet.
    pub(crate) unsent: usize,
    /// Calls being answered.
    pub(crate) calls: usize,
    /// A record has begun, and it is large enough to have been charged.
    pub(crate) charged_record: bool,
}

impl Activity {
    fn is_busy(&self) -> bool {
        self.calls > 0 || self.unsent > 0
    }
}

/// A connection in the table.
#[derive(Debug)]
struct Entry<C> {
    connection: Weak<C>,
    admitted: bool,
    since: Instant,
    /// `Activity::sent` at the last look.
    sent: u64,
    /// When `sent` was last seen to change.
    moved: Instant,
    /// The table has told it to end.
    ended: bool,
}

impl<C: Occupant> Entry<C> {
    /// The current activity, or `None` if the connection is gone.
    fn look(&mut self, now: Instant) -> Option<Activity> {
        let activity = self.connection.upgrade()?.activity();
        if activity.sent != self.sent {
            (self.sent, self.moved) = (activity.sent, now);
        }
        Some(activity)
    }

    fn end(&mut self) {
        if let Some(connection) = self.connection.upgrade() {
            connection.end();
        }
        self.ended = true;
    }

    /// The order of giving way, smallest first. `None` if the connection does not give way.
    fn order(&mut self, now: Instant) -> Option<(bool, Instant)> {
        let activity = self.look(now).filter(|_| !self.ended)?;
        let moved = activity.received.max(self.moved);
        match activity.is_busy() {
            false => Some((false, activity.received)),
            true if now.saturating_duration_since(moved) >= STALLED => Some((true, moved)),
            true => None,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Connections<C> {
    bounds: Bounds,
    of: HashMap<Peer, Vec<Entry<C>>>,
    all: usize,
    strangers: usize,
}

impl<C: Occupant> Connections<C> {
    pub(crate) fn new(bounds: Bounds) -> Connections<C> {
        Connections { bounds, of: HashMap::new(), all: 0, strangers: 0 }
    }

    /// May a connection of this peer begin? The call may end another connection for it.
    pub(crate) fn admit(&mut self, peer: Peer, admitted: bool, now: Instant) -> bool {
        let own_max = (self.bounds.all / 2).max(1);
        let is_full = |table: &Connections<C>| {
            let own = table.of.get(&peer).map_or(0, Vec::len);
            table.all >= table.bounds.all
                || own >= own_max
                || !admitted && table.strangers >= table.bounds.strangers
        };
        if is_full(self) {
            self.forget_ended();
        }
        let own = self.of.get(&peer).map_or(0, Vec::len);
        if !admitted && self.strangers >= self.bounds.strangers {
            return self.replace(|_, _| true, false, now);
        }
        if own >= own_max {
            return self.replace(|holder, _| holder == peer, admitted, now);
        }
        self.all < self.bounds.all
            || self.replace(|_, _| true, false, now)
            || self.replace(|holder, count| holder == peer || count > own, true, now)
    }

    /// Enters a connection that [`Connections::admit`] let in.
    pub(crate) fn enter(&mut self, peer: Peer, admitted: bool, connection: Weak<C>, now: Instant) {
        let entry = Entry { connection, admitted, since: now, sent: 0, moved: now, ended: false };
        self.of.entry(peer).or_default().push(entry);
        self.count();
    }

    /// Ends one connection. `gives` selects peers by address and by their number of connections. Of those,
    /// the peer with the most connections comes first, and its connection that gives way first ends.
    /// `admitted` says whether to choose among admitted peers or among the others. Returns false if none
    /// gives way.
    fn replace(&mut self, gives: impl Fn(Peer, usize) -> bool, admitted: bool, now: Instant) -> bool {
        let count = |entries: &Vec<Entry<C>>| {
            entries.iter().filter(|entry| entry.admitted == admitted && !entry.ended).count()
        };
        let mut holders: Vec<(usize, Peer)> = self
            .of
            .iter()
            .map(|(peer, entries)| (count(entries), *peer))
            .filter(|(count, peer)| *count > 0 && gives(*peer, *count))
            .collect();
        holders.sort_unstable_by(|one, other| other.cmp(one));
        for (_, holder) in holders {
            let entries = self.of.get_mut(&holder).into_iter().flatten();
            let first = entries
                .filter(|entry| entry.admitted == admitted)
                .filter_map(|entry| Some((entry.order(now)?, entry)))
                .min_by_key(|(order, _)| *order);
            if let Some((_, entry)) = first {
                entry.end();
                // Its descriptor stays in use for a moment. The descriptors kept in reserve cover that.
                self.forget_ended();
                return true;
            }
        }
        false
    }

    /// The caller runs this about once a second. Returns the bytes that idle connections have given up.
    pub(crate) fn tick(&mut self, now: Instant) -> usize {
        let mut given_up = 0;
        for entry in self.of.values_mut().flatten() {
            let Some(activity) = entry.look(now) else { continue };
            let idle = now.saturating_duration_since(activity.received);
            let age = now.saturating_duration_since(entry.since);
            let strange = !entry.admitted && (idle > STRANGER_IDLE || age > STRANGER_AGE);
            if strange || activity.charged_record && idle > RECORD_TIME {
                entry.end();
            } else if idle > RESTING
                && let Some(connection) = entry.connection.upgrade()
            {
                given_up += connection.rest();
            }
        }
        self.forget_ended();
        given_up
    }

    /// Ends connections of a peer that hold memory without progress: replies not taken, records not finished.
    /// Returns their number.
    pub(crate) fn end_stalled(&mut self, peer: Peer, now: Instant) -> usize {
        let mut ended = 0;
        for entry in self.of.get_mut(&peer).into_iter().flatten() {
            let Some(activity) = entry.look(now) else { continue };
            let long = |since: Instant| now.saturating_duration_since(since) >= NOT_TAKEN;
            let not_taken = activity.unsent > 0 && long(entry.moved);
            let not_finished = activity.charged_record && long(activity.received);
            if !entry.ended && (not_taken || not_finished) {
                entry.end();
                ended += 1;
            }
        }
        ended
    }

    /// Descriptors have run out: ends the connection that has been silent longest, of the peer with the most.
    pub(crate) fn relieve(&mut self, now: Instant) -> bool {
        self.replace(|_, _| true, false, now) || self.replace(|_, _| true, true, now)
    }

    /// The rules of admission have changed: ends the connections that `may_stay` does not accept with the
    /// answer under which they began. Their peers connect again.
    pub(crate) fn judge_again(&mut self, may_stay: impl Fn(&C, bool) -> bool) {
        for entry in self.of.values_mut().flatten() {
            let Some(connection) = entry.connection.upgrade() else { continue };
            if !may_stay(&connection, entry.admitted) {
                entry.end();
            }
        }
        self.forget_ended();
    }

    /// Ends all connections.
    pub(crate) fn end_all(&mut self) {
        self.of.values_mut().flatten().for_each(Entry::end);
        self.of.clear();
        self.count();
    }

    /// The number of connections in the table.
    pub(crate) fn len(&self) -> usize {
        self.all
    }

    /// The limit on connections.
    pub(crate) fn most(&self) -> usize {
        self.bounds.all
    }

    /// Removes entries of ended connections. A connection that ended by itself counts as long as calls that
    /// came on it are in progress, because it still has its descriptor. One that gave way to another does not
    /// count any more.
    fn forget_ended(&mut self) {
        self.of.retain(|_, entries| {
            entries.retain(|entry| entry.connection.strong_count() > 0 && !entry.ended);
            !entries.is_empty()
        });
        self.count();
    }

    fn count(&mut self) {
        self.all = self.of.values().map(Vec::len).sum();
        self.strangers = self.of.values().flatten().filter(|entry| !entry.admitted).count();
    }
}

#[cfg(test)]
mod tests;
