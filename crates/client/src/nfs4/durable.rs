//! A record of the state held at the origin, which survives the process, and its use by the next incarnation.
//!
//! [`record`] defines the entries, and [`journal`] keeps them in a file. All code locks the state through
//! [`RecordedState::lock`]. Releasing that lock records all changes, before any caller learns of them. The
//! order of steps ensures that the record never promises more than the origin has:
//! - A grant is recorded when it arrives. That it may arrive is recorded before the request is sent.
//! - An object that is given up is recorded as going before the origin is told, and removed when the origin
//!   has it.
//! - The range of a LOCK or LOCKU is recorded as in doubt, from before it is sent until it is answered.
//!
//! The module assumes that the process is killed, but not the machine. It rejects a record of another boot of
//! the machine, of another URL or server, or a damaged one. Then this incarnation has a new verifier, and the
//! origin drops what the last one held (RFC 8881, section 2.4). If the record can no longer be written, it is
//! removed.

pub(crate) mod record;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use vfs::{LeaseId, OpenId};
use xdr::Opaque;

use super::establish::{Client, Identity};
use super::state::{Delegation, Open, State, Touched};
use crate::journal::fields::TooLarge;
use crate::journal::{self, Contents, Entries, Journal, boot};
use crate::nlm;
use crate::replica::Mirror;
use crate::url::Url;
use record::{Entry, Going, Opening};

/// The recorded state of an earlier incarnation.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    pub(crate) incarnation: record::Incarnation,
    /// The lease was renewed at this time or later, counted from the start of the machine. Not known of a
    /// record from another machine.
    pub(crate) renewed: Option<Duration>,
    pub(crate) opens: BTreeMap<OpenId, (Open, Going)>,
    pub(crate) leases: BTreeMap<LeaseId, (Delegation, Going)>,
    pub(crate) openings: Vec<Opening>,
    /// The last id assigned to any object.
    pub(crate) last_name: u64,
}

/// The identity of this incarnation at the origin, and the state that it takes over from the last one.
#[derive(Clone, Debug)]
pub struct Incarnation {
    pub(crate) identity: Identity,
    pub(crate) past: Option<Past>,
    /// The locks that the last one held over version 3.
    pub(crate) locks: nlm::Past,
}

impl Incarnation {
    /// A client that is unknown to every server and leaves no record.
    pub fn volatile(url: &Url) -> Incarnation {
        Incarnation { identity: Identity::volatile(url), past: None, locks: nlm::Past::default() }
    }

    /// The client with this `co_ownerid`, at most 1,024 bytes. Its record, if any, is the file `path`. If the
    /// record cannot be used, the second value is the reason, as one line for the user. The origin must then
    /// drop what the last incarnation held. But if the record is of another URL, that state is left alone,
    /// and this is a client of its own.
    pub fn resume(url: &Url, owner: Bytes, path: &Path) -> (Incarnation, Option<String>) {
        let (incarnation, told) = Incarnation::resume_state(url, owner, path);
        let beside = nlm::beside(path);
        let (locks, lost) = match nlm::Past::read(&beside, &url.to_string(), boot().as_deref()) {
            Ok(locks) => (locks, None),
            Err(reason) => (nlm::Past::default(), Some(reason)),
        };
        let lost = lost.map(|reason| {
            format!(
                "locks of an earlier process may stay at {url}: {}: {reason}; if a file stays locked, let \
                 the server release the locks of this machine",
                beside.display()
            )
        });
        (Incarnation { locks, ..incarnation }, told.or(lost))
    }

    fn resume_state(url: &Url, owner: Bytes, path: &Path) -> (Incarnation, Option<String>) {
        let mut fresh = Identity { owner, ..Identity::volatile(url) };
        let reason =
            match journal::read(path).and_then(|contents| contents.as_ref().map(Past::parse).transpose()) {
                Ok(None) => None,
                Ok(Some(past)) if past.incarnation.url[..] != *url.to_string().as_bytes() => {
                    fresh = Identity::volatile(url);
                    Some(format!("it is of {}", String::from_utf8_lossy(&past.incarnation.url)))
                }
                Ok(Some(past)) => match past.check(&fresh.owner, boot().as_deref()) {
                    Ok(()) => {
                        let identity = Identity { verifier: past.incarnation.verifier, ..fresh };
                        let locks = nlm::Past::default();
                        return (Incarnation { identity, past: Some(past), locks }, None);
                    }
                    Err(reason) => Some(reason),
                },
                Err(reason) => Some(reason),
            };
        let told = reason.map(|reason| {
            format!(
                "what was held at {url} is not taken over: {}: {reason}; opens and locks are made anew",
                path.display()
            )
        });
        (Incarnation { identity: fresh, past: None, locks: nlm::Past::default() }, told)
    }

    /// The `co_ownerid`.
    pub fn owner(&self) -> &Bytes {
        &self.identity.owner
    }

    /// Does it take anything over?
    pub fn resumes(&self) -> bool {
        self.past.is_some()
    }
}

impl Past {
    /// Parses the contents of a journal.
    ///
    /// # Errors
    /// A message, if an entry is unknown or refers to an entry that is missing.
    pub(crate) fn parse(contents: &Contents) -> Result<Past, String> {
        let names = contents.entries.keys().chain(&contents.removed).filter_map(|key| record::name_of(key));
        let mut last_name = names.max().unwrap_or(0);
        let (mut incarnation, mut renewed) = (None, None);
        let (mut opens, mut leases, mut openings) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        for (key, value) in &contents.entries {
            match record::decode(key, value).ok_or("it has an entry of another version")? {
                Entry::Incarnation(of) => incarnation = Some(of),
                Entry::Renewed(seconds) => renewed = Some(Duration::from_secs(seconds)),
                Entry::Open(id, open, going) => drop(opens.insert(OpenId(id), (open, going))),
                Entry::Locks(id, owner, locks, doubt) => {
                    // In the order of keys, an open comes before its locks.
                    let (open, _): &mut (Open, Going) =
                        opens.get_mut(&OpenId(id)).ok_or("it has locks without an open")?;
                    doubt.map(|doubt| open.locking_mut().doubts.insert(owner.clone(), doubt));
                    locks.map(|locks| open.locking_mut().locks.insert(owner, locks));
                }
                Entry::Lease(id, held, going) => drop(leases.insert(LeaseId(id), (held, going))),
                Entry::Opening(opening) => openings.push(opening),
            }
        }
        let incarnation = incarnation.ok_or("it does not say whose it is")?;
        last_name = last_name.max(incarnation.last_name);
        Ok(Past { incarnation, renewed, opens, leases, openings, last_name })
    }

    /// May this incarnation take it over?
    fn check(&self, owner: &[u8], boot: Option<&[u8]>) -> Result<(), String> {
        if self.incarnation.owner[..] != *owner {
            return Err("it is of another client".to_owned());
        }
        match boot {
            Some(boot) if self.incarnation.boot[..] == *boot => Ok(()),
            Some(_) => Err("the machine was restarted since, and may have lost its end".to_owned()),
            None => Err("whether the machine was restarted since is not known".to_owned()),
        }
    }

    /// Is it certain that the lease has not ended? Then no other client was granted this state, even if the
    /// origin has restarted meanwhile.
    pub(crate) fn is_within_lease(&self) -> bool {
        let lease = Duration::from_secs(self.incarnation.lease_seconds.into());
        let passed = self.renewed.zip(uptime()).and_then(|(renewed, now)| now.checked_sub(renewed));
        passed.is_some_and(|passed| passed < lease)
    }
}

/// Time since the machine started, including time asleep.
pub(super) fn uptime() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The state, and the journal that records it.
#[derive(Debug, Default)]
pub(super) struct RecordedState {
    inner: Mutex<Followed>,
}

#[derive(Debug, Default)]
struct Followed {
    state: State,
    journal: Option<Journal>,
}

/// The locked state. Dropping the guard records what was touched.
pub(super) struct Guard<'a>(MutexGuard<'a, Followed>);

impl Deref for Guard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0.state
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0.state
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.record();
    }
}

impl RecordedState {
    pub(super) fn lock(&self) -> Guard<'_> {
        Guard(self.inner.lock())
    }

    /// Records everything, now and from now on, in the file `path`, and replaces what was there.
    /// With a mirror, a copy is kept there.
    pub(super) fn keep(
        &self,
        path: &Path,
        incarnation: &record::Incarnation,
        mirror: Option<Arc<Mirror>>,
    ) -> std::io::Result<()> {
        let mut followed = self.inner.lock();
        let Followed { state, journal } = &mut *followed;
        state.record(true);
        let entries = all(state, incarnation).map_err(|failed| std::io::Error::other(in_words(failed)));
        let copy = mirror.clone();
        let begun = entries.and_then(|entries| {
            let mut begun = Journal::begin(path, &entries)?;
            if let Some(mirror) = mirror {
                mirror.begin(entries);
                begun.mirrored(mirror);
            }
            Ok(begun)
        });
        match begun {
            Ok(begun) => *journal = Some(begun),
            Err(error) => {
                state.record(false);
                // The copy of an earlier machine must not be resumed from later.
                copy.iter().for_each(|mirror| mirror.begin(Entries::new()));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Stops recording, and removes the record.
    pub(super) fn forget(&self) {
        let mut followed = self.inner.lock();
        followed.state.record(false);
        if let Some(Err(error)) = followed.journal.take().map(Journal::abandon) {
            // A record that stays does no harm: the next incarnation finds that the origin has none of this
            // state.
            tracing::debug!(%error, "the record of what was held at the origin could not be removed");
        }
    }

    /// Records another client id or session.
    pub(super) fn change_incarnation(&self, incarnation: &record::Incarnation) {
        self.inner.lock().note(|journal| {
            journal.put(&record::incarnation_key(), &record::incarnation(incarnation)?);
            Ok(())
        });
    }

    /// Records that the lease was renewed at this time since the machine started, or later.
    pub(super) fn renewed(&self, uptime: Duration) {
        self.inner.lock().note(|journal| {
            journal.put(&record::renewed_key(), &record::renewed(uptime.as_secs())?);
            Ok(())
        });
    }
}

impl Followed {
    fn record(&mut self) {
        let touched = self.state.take_touched();
        if touched.is_empty() {
            return;
        }
        let Followed { state, journal } = self;
        let result = journal.as_mut().map(|journal| {
            for what in touched {
                let (prefix, wanted) = entries_of(state, what).map_err(in_words)?;
                journal.sync(&prefix, wanted);
            }
            journal.flush().map_err(|error| error.to_string())
        });
        if let Some(Err(cause)) = result {
            self.give_up(&cause);
        }
    }

    fn note(&mut self, work: impl FnOnce(&mut Journal) -> Result<(), TooLarge>) {
        let result = self.journal.as_mut().map(|journal| {
            work(journal).map_err(in_words)?;
            journal.flush().map_err(|error| error.to_string())
        });
        if let Some(Err(cause)) = result {
            self.give_up(&cause);
        }
    }

    /// Removes the record, because an incomplete record must not be relied on.
    fn give_up(&mut self, cause: &str) {
        self.state.record(false);
        let Some(journal) = self.journal.take() else { return };
        let removed = journal
            .abandon()
            .map_or_else(|error| format!("and not removed ({error})"), |()| "removed".into());
        tracing::error!(
            "the record of what is held at the origin could not be written ({cause}) and was {removed}; \
             free some space and restart, or a restart will lose opens and locks"
        );
    }
}

fn in_words(_: TooLarge) -> String {
    "a name is too long, or one owner has too many locks".to_owned()
}

/// All entries of the record.
fn all(state: &mut State, incarnation: &record::Incarnation) -> Result<Entries, TooLarge> {
    let mut entries = Entries::from([(record::incarnation_key(), record::incarnation(incarnation)?)]);
    if let Some(uptime) = uptime() {
        entries.insert(record::renewed_key(), record::renewed(uptime.as_secs())?);
    }
    for what in state.take_touched() {
        entries.extend(entries_of(state, what)?.1);
    }
    Ok(entries)
}

/// The common prefix of an object's keys, and its entries.
fn entries_of(state: &State, what: Touched) -> Result<(Vec<u8>, Entries), TooLarge> {
    let one = |key: Vec<u8>, value: Option<Vec<u8>>| {
        let entries = value.map(|value| (key.clone(), value)).into_iter().collect();
        (key, entries)
    };
    Ok(match what {
        Touched::Open(id) => {
            let entries = state.any_open(id).map(|(open, going)| record::open(id.0, open, going));
            (record::open_key(id.0), entries.transpose()?.unwrap_or_default())
        }
        Touched::Lease(id) => {
            let value = state.any_lease(id).map(|(held, going)| record::lease(held, going));
            one(record::lease_key(id.0), value.transpose()?)
        }
        Touched::Opening(number) => {
            one(record::opening_key(number), state.opening_of(number).map(record::opening).transpose()?)
        }
    })
}

/// The entry that describes this incarnation.
pub(super) fn incarnation(
    url: &Url,
    identity: &Identity,
    client: &Client,
    (session, lease, last_name): ([u8; 16], Duration, u64),
) -> record::Incarnation {
    record::Incarnation {
        url: opaque(url.to_string().as_bytes()),
        boot: opaque(&boot().unwrap_or_default()),
        owner: opaque(&identity.owner),
        verifier: identity.verifier,
        server: opaque(&client.server),
        scope: opaque(&client.scope),
        clientid: client.id,
        session,
        lease_seconds: lease.as_secs() as u32,
        last_name,
    }
}

/// A value that is too long is recorded as empty, which matches nothing.
fn opaque<const MAX: usize>(bytes: &[u8]) -> Opaque<MAX> {
    Opaque::new(Bytes::copy_from_slice(bytes)).unwrap_or_default()
}

/// The locks of an open, for the layer above.
pub(super) fn locks_of(open: &Open) -> Vec<vfs::Lock> {
    let all = open.locks().iter();
    all.flat_map(|(owner, locks)| locks.ranges.iter().map(move |range| range.lock(owner))).collect()
}

#[cfg(test)]
mod tests;
