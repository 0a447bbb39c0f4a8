//! Which connections a server keeps, and which one gives way when there are too many.
//!
//! A pure table of what is connected: time comes from outside, and the end of a connection is an order to it. Peers are
//! counted as the account counts them ([`Peer`]).
//!
//! - There are at most [`Bounds::all`] connections, and at most half of them are of one peer.
//! - Above that the peer with the most connections gives way: of those on which nothing is under way, the one that
//!   has been silent for longest ends. A client connects again. A connection with calls or replies under way ends only if nothing
//!   has moved on it for [`STALLED`].
//! - A peer with fewer connections than the new one's loses none. If no connection can give way, the new one ends.
//! - A record that has begun is there within [`RECORD_TIME`] of its last byte, or its connection ends.
//! - Peers that are not admitted have [`Bounds::strangers`] among them, for [`STRANGER_IDLE`] each. A new one always gets in.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use tokio::time::Instant;

use crate::account::Peer;

/// A connection on which nothing moves for so long, although something is under way, may give way.
pub(crate) const STALLED: Duration = Duration::from_secs(10);
/// A peer that holds more than its share of memory loses connections that do not take their replies for so long.
const NOT_TAKEN: Duration = Duration::from_secs(2);
/// A peer that is not admitted asks within so long, or its connection ends.
const STRANGER_IDLE: Duration = Duration::from_secs(10);
/// A connection of a peer that is not admitted ends after so long, whatever it asks.
const STRANGER_AGE: Duration = Duration::from_secs(60);

/// A record of which no more has come for so long is not finished any more.
const RECORD_TIME: Duration = Duration::from_secs(30);

/// Connections of peers that are not admitted.
const STRANGERS_MAX: usize = 64;
/// Connections, if there are descriptors enough.
const CONNECTIONS_MAX: usize = 4096;
/// However few descriptors there are.
const CONNECTIONS_MIN: usize = 16;

/// How many connections there may be.
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

/// Connections for which a process of so many descriptors has enough: an eighth, the rest is for work.
pub(crate) fn for_descriptors(limit: usize) -> usize {
    (limit / 8).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX)
}

/// Raises the limit of open files as far as allowed, and says what it is.
pub(crate) fn descriptors() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_ok() {
        limit.current = limit.maximum;
    }
    limit.current.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

/// What the table needs to know of a connection.
pub(crate) trait Occupant {
    /// What goes on.
    fn activity(&self) -> Activity;
    /// Ends it.
    fn end(&self);
}

/// What goes on on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Activity {
    /// When bytes were received last; when it began, if none were.
    pub(crate) received: Instant,
    /// Bytes sent so far.
    pub(crate) sent: u64,
    /// Bytes of replies that are not sent.
    pub(crate) unsent: usize,
    /// Calls being answered.
    pub(crate) calls: usize,
    /// A record has begun, and is large enough to have been charged.
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
    /// What was seen when it was looked at last.
    sent: u64,
    /// When bytes were seen to leave last.
    moved: Instant,
    /// It has been told to end.
    ended: bool,
}

impl<C: Occupant> Entry<C> {
    /// What goes on, unless it is over.
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

    /// How readily it gives way: the smallest does first. `None` if it does not.
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

    /// May a connection of this peer begin? Another may have to end for it.
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

    /// Enters a connection that was admitted.
    pub(crate) fn enter(&mut self, peer: Peer, admitted: bool, connection: Weak<C>, now: Instant) {
        let entry = Entry { connection, admitted, since: now, sent: 0, moved: now, ended: false };
        self.of.entry(peer).or_default().push(entry);
        self.count();
    }

    /// Ends the connection that gives way first, of the peer with the most that `gives`, knowing how many it has. Peers that
    /// are admitted and those that are not are apart. False if none gives way.
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
                // Its descriptor is in use for a moment longer, which the reserve has room for.
                self.forget_ended();
                return true;
            }
        }
        false
    }

    /// To be called every second or so.
    pub(crate) fn tick(&mut self, now: Instant) {
        for entry in self.of.values_mut().flatten() {
            let Some(activity) = entry.look(now) else { continue };
            let idle = now.saturating_duration_since(activity.received);
            let age = now.saturating_duration_since(entry.since);
            let strange = !entry.admitted && (idle > STRANGER_IDLE || age > STRANGER_AGE);
            if strange || activity.charged_record && idle > RECORD_TIME {
                entry.end();
            }
        }
        self.forget_ended();
    }

    /// Ends the connections of a peer that hold memory on which nothing moves: replies not taken, records not finished.
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

    /// Descriptors have run out: the longest silent of the greatest holder ends.
    pub(crate) fn relieve(&mut self, now: Instant) -> bool {
        self.replace(|_, _| true, false, now) || self.replace(|_, _| true, true, now)
    }

    /// Ends all.
    pub(crate) fn end_all(&mut self) {
        self.of.values_mut().flatten().for_each(Entry::end);
        self.of.clear();
        self.count();
    }

    /// Connections that are kept.
    pub(crate) fn len(&self) -> usize {
        self.all
    }

    /// How many may be kept.
    pub(crate) fn most(&self) -> usize {
        self.bounds.all
    }

    /// A connection that has ended counts for as long as calls that came on it are answered: it has its descriptor. One that
    /// gave way for another has been counted for it.
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
