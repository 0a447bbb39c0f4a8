//! The answers of the user database, and the look-ups in flight. Pure: the caller gives the time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// An answer counts for so long. After that, the next call of the user asks again.
pub(super) const FRESH: Duration = Duration::from_secs(300);
/// So long counts the answer that there is no such user.
pub(super) const UNKNOWN_FRESH: Duration = Duration::from_secs(60);
/// After a failure, the table asks again no sooner.
pub(super) const RETRY: Duration = Duration::from_secs(5);
/// If the user database fails, an answer serves until it is this old: the lifetime that rpc.mountd(8) gives
/// to each answer.
pub(super) const OLD: Duration = Duration::from_secs(1800);
/// A call without any answer waits for so long after the look-up began.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// A call that has an old answer waits for so long after the look-up began.
pub(super) const PATIENCE_WITH_ANSWER: Duration = Duration::from_secs(1);
/// The most users.
const USERS_MAX: usize = 16_384;
/// The most group ids of all users together.
const IDS_MAX: usize = 1 << 20;
/// The most look-ups in flight or waiting to begin.
pub(super) const LOOK_UPS_MAX: usize = 1024;

/// How a look-up ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The user's groups.
    Groups(Arc<[u32]>),
    /// There is no such user.
    NoUser,
    /// The user database did not answer, or failed.
    Failed,
}

/// Receives the end of a look-up.
pub(super) type Ended = watch::Receiver<Option<Found>>;

/// The answer to a caller, or how it gets one.
#[derive(Debug)]
pub(super) enum Asked {
    /// These are the groups.
    Known(Arc<[u32]>),
    /// A look-up is in flight. At `until`, `otherwise` are the groups.
    Wait { ended: Ended, until: Instant, otherwise: Arc<[u32]> },
    /// As [`Asked::Wait`], and the caller must begin the look-up.
    Begin { ended: Ended, until: Instant, otherwise: Arc<[u32]>, begun: Begun },
}

/// A look-up that the table expects to be made. It must end in [`Table::end`].
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) uid: u32,
    pub(super) began: Instant,
    ends: watch::Sender<Option<Found>>,
    generation: u64,
}

#[derive(Debug)]
struct Answer {
    groups: Arc<[u32]>,
    at: Instant,
    lifetime: Duration,
}

#[derive(Debug)]
struct LookUp {
    began: Instant,
    ended: Ended,
}

#[derive(Debug)]
struct User {
    answer: Option<Answer>,
    look_up: Option<LookUp>,
    /// The last look-up failed: no further one before this time.
    retry: Option<Instant>,
    used: Instant,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Table {
    users: HashMap<u32, User>,
    ids: usize,
    look_ups: usize,
    generation: u64,
    none: Arc<[u32]>,
}

impl Default for Table {
    fn default() -> Table {
        Table { users: HashMap::new(), ids: 0, look_ups: 0, generation: 0, none: Arc::new([]) }
    }
}

impl Table {
    /// The groups of a user, or the way to get them.
    pub(super) fn ask(&mut self, uid: u32, now: Instant) -> Asked {
        if !self.users.contains_key(&uid) && self.users.len() >= USERS_MAX {
            self.make_space();
        }
        let user =
            self.users.entry(uid).or_insert(User { answer: None, look_up: None, retry: None, used: now });
        user.used = now;
        let age = |answer: &Answer| now.saturating_duration_since(answer.at);
        if let Some(answer) = user.answer.as_ref().filter(|answer| age(answer) < answer.lifetime) {
            return Asked::Known(answer.groups.clone());
        }
        let old = user.answer.as_ref().filter(|answer| age(answer) < OLD);
        let patience = if old.is_some() { PATIENCE_WITH_ANSWER } else { PATIENCE };
        let otherwise = old.map_or_else(|| self.none.clone(), |answer| answer.groups.clone());
        if let Some(look_up) = &user.look_up {
            let until = look_up.began + patience;
            if until <= now {
                return Asked::Known(otherwise);
            }
            return Asked::Wait { ended: look_up.ended.clone(), until, otherwise };
        }
        if user.retry.is_some_and(|retry| now < retry) || self.look_ups >= LOOK_UPS_MAX {
            return Asked::Known(otherwise);
        }
        let (ends, ended) = watch::channel(None);
        user.look_up = Some(LookUp { began: now, ended: ended.clone() });
        self.look_ups += 1;
        let begun = Begun { uid, began: now, ends, generation: self.generation };
        Asked::Begin { ended, until: now + patience, otherwise, begun }
    }

    /// A look-up has ended. An answer from before [`Table::forget`] is told to those who wait for it, and is
    /// not kept.
    pub(super) fn end(&mut self, begun: Begun, found: Found, now: Instant) {
        let Begun { uid, ends, generation, .. } = begun;
        self.look_ups -= 1;
        if generation == self.generation
            && let Some(user) = self.users.get_mut(&uid)
        {
            user.look_up = None;
            let (groups, lifetime) = match &found {
                Found::Groups(groups) => (Some(groups.clone()), FRESH),
                Found::NoUser => (Some(self.none.clone()), UNKNOWN_FRESH),
                Found::Failed => (None, RETRY),
            };
            user.retry = groups.is_none().then(|| now + lifetime);
            if let Some(groups) = groups {
                self.ids += groups.len();
                let answer = Answer { groups, at: now, lifetime };
                self.ids -= user.answer.replace(answer).map_or(0, |old| old.groups.len());
            }
            if self.ids > IDS_MAX {
                self.make_space();
            }
        }
        // Nobody may be waiting any more.
        let _ = ends.send(Some(found));
    }

    /// Forgets every answer. The look-ups in flight go on, for those who wait for them.
    pub(super) fn forget(&mut self) {
        self.users.clear();
        self.ids = 0;
        self.generation += 1;
    }

    /// Users with an answer or a look-up in flight.
    pub(super) fn len(&self) -> usize {
        self.users.len()
    }

    /// Look-ups in flight, or waiting to begin.
    pub(super) fn look_ups(&self) -> usize {
        self.look_ups
    }

    /// Removes at least an eighth of the users, and of the ids. Users that do not exist go first, then those
    /// that called longest ago. A user with a look-up in flight stays, so that no second one begins.
    fn make_space(&mut self) {
        let mut order: Vec<_> = self.users.iter().filter(|(_, user)| user.look_up.is_none()).collect();
        order.sort_unstable_by_key(|(_, user)| (has_groups(user), user.used));
        let (users, ids) = (USERS_MAX - USERS_MAX / 8, IDS_MAX - IDS_MAX / 8);
        let (mut left, mut left_ids) = (self.users.len(), self.ids);
        let mut going = Vec::new();
        for (uid, user) in order {
            if left < users && left_ids < ids {
                break;
            }
            left -= 1;
            left_ids -= user.answer.as_ref().map_or(0, |answer| answer.groups.len());
            going.push(*uid);
        }
        for uid in going {
            self.users.remove(&uid);
        }
        self.ids = left_ids;
    }
}

fn has_groups(user: &User) -> bool {
    user.answer.as_ref().is_some_and(|answer| !answer.groups.is_empty())
}
