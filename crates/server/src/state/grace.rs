//! The grace period after a restart. Clients that held state before the restart may reclaim it, and no
//! client may take state that could belong to another (RFC 8881, section 8.4.2; RFC 7530, section 9.6.2).
//!
//! A pure state machine. It knows the names of the clients in the durable record of earlier incarnations.
//! If there are none, there is no grace period.
//!
//! Promise: grace-period

use std::collections::HashMap;
use std::time::Duration;

use protocol::nfs4::Status;
use tokio::time::Instant;

use super::clients::{ClientName, Generation};

/// The kind of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// New state.
    New,
    /// State that the client held before the restart.
    Reclaim,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Grace {
    ends: Option<Instant>,
    /// The end of grace is being written to the durable record. Until that is done, no new state is given
    /// out and nothing more is reclaimed.
    ending: bool,
    /// The clients that may reclaim, and whether each has finished reclaiming.
    before: HashMap<ClientName, bool>,
}

impl Grace {
    /// A grace period for the clients that held state before, if there are any.
    pub(crate) fn new(before: impl IntoIterator<Item = ClientName>, now: Instant, period: Duration) -> Grace {
        let before: HashMap<ClientName, bool> = before.into_iter().map(|name| (name, false)).collect();
        let ends = (!before.is_empty()).then_some(now + period);
        Grace { ends, ending: false, before }
    }

    /// Is the grace period on?
    pub(crate) fn is_on(&self) -> bool {
        self.ends.is_some()
    }

    /// May this client claim an open or a lock? `complete`: the client has sent RECLAIM_COMPLETE.
    ///
    /// # Errors
    /// `Grace`, `NoGrace`, `ReclaimBad`.
    pub(crate) fn admit(&self, name: &ClientName, complete: bool, claim: Claim) -> Result<(), Status> {
        let has_sessions = name.generation == Generation::Sessions;
        match claim {
            Claim::New if self.is_on() => Err(Status::Grace),
            // RFC 8881, section 18.51.3: a client must send RECLAIM_COMPLETE before it takes new state.
            Claim::New if has_sessions && !complete => Err(Status::Grace),
            Claim::New => Ok(()),
            Claim::Reclaim if complete || !self.is_on() || self.ending => Err(Status::NoGrace),
            Claim::Reclaim if self.before.contains_key(name) => Ok(()),
            Claim::Reclaim => Err(Status::ReclaimBad),
        }
    }

    /// The client has nothing more to reclaim. Returns true, once, when this is so for all clients: it is
    /// time to [end](Grace::end) grace.
    pub(crate) fn complete(&mut self, name: &ClientName) -> bool {
        if let Some(done) = self.before.get_mut(name) {
            *done = true;
        }
        self.before.values().all(|done| *done) && self.begin_to_end()
    }

    /// Is it time to [end](Grace::end)? True once.
    pub(crate) fn tick(&mut self, now: Instant) -> bool {
        let all_done = self.before.values().all(|done| *done);
        self.ends.is_some_and(|ends| all_done || now >= ends) && self.begin_to_end()
    }

    fn begin_to_end(&mut self) -> bool {
        self.is_on() && !std::mem::replace(&mut self.ending, true)
    }

    /// Ends grace, if the end is in the durable record. Otherwise grace stays on, and the end is tried
    /// again.
    pub(crate) fn end(&mut self, recorded: bool) {
        self.ending = false;
        if recorded {
            self.before.clear();
            self.ends = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const PERIOD: Duration = Duration::from_secs(90);

    fn name(generation: Generation, ownerid: &'static [u8]) -> ClientName {
        ClientName { generation, ownerid: Bytes::from_static(ownerid) }
    }

    #[test]
    fn without_clients_there_is_no_grace() {
        let grace = Grace::new([], Instant::now(), PERIOD);
        assert!(!grace.is_on());
        let minor0 = name(Generation::Minor0, b"a");
        assert_eq!(grace.admit(&minor0, false, Claim::New), Ok(()));
        assert_eq!(grace.admit(&minor0, false, Claim::Reclaim), Err(Status::NoGrace));
        let sessions = name(Generation::Sessions, b"a");
        assert_eq!(grace.admit(&sessions, false, Claim::New), Err(Status::Grace));
        assert_eq!(grace.admit(&sessions, true, Claim::New), Ok(()));
    }

    #[test]
    fn grace_is_for_those_who_were_there_and_ends_when_all_are_done() {
        let (a, b) = (name(Generation::Sessions, b"a"), name(Generation::Sessions, b"b"));
        let now = Instant::now();
        let mut grace = Grace::new([a.clone()], now, PERIOD);
        assert_eq!(grace.admit(&a, false, Claim::Reclaim), Ok(()));
        assert_eq!(grace.admit(&b, false, Claim::Reclaim), Err(Status::ReclaimBad));
        assert_eq!(grace.admit(&b, true, Claim::New), Err(Status::Grace));
        assert!(!grace.complete(&b) && grace.is_on());
        assert!(grace.complete(&a));
        assert_eq!(grace.admit(&a, false, Claim::Reclaim), Err(Status::NoGrace), "ending");
        assert_eq!(grace.admit(&b, true, Claim::New), Err(Status::Grace), "not before it is on the disk");
        grace.end(false);
        assert!(grace.tick(now) && !grace.tick(now));
        grace.end(true);
        assert_eq!(grace.admit(&a, true, Claim::Reclaim), Err(Status::NoGrace));
        assert_eq!(grace.admit(&b, true, Claim::New), Ok(()));
        assert!(!grace.complete(&a) && !grace.tick(now + PERIOD));
    }

    #[test]
    fn a_client_that_stays_away_does_not_keep_it_on() {
        let now = Instant::now();
        let mut grace = Grace::new([name(Generation::Minor0, b"a")], now, PERIOD);
        assert!(!grace.tick(now + PERIOD / 2) && grace.is_on());
        assert!(grace.tick(now + PERIOD) && !grace.tick(now + PERIOD));
        grace.end(true);
        assert!(!grace.is_on() && !grace.tick(now + PERIOD));
    }
}
