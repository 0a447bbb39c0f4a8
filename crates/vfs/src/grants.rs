//! Calls in flight that may bring a lease, and news about leases that overtook their grants.
//!
//! Pure tables. A reply grants a lease, and callbacks tell of its recall or its end. A callback may arrive
//! before the reply. A reply may also name a lease that the layer has returned after the call was sent. In
//! both cases the layer remembers the news until no reply can name the lease under that grant any more: until
//! all calls that were in flight at that time have ended. A call that begins later is not waited for.

use std::collections::{BTreeSet, HashMap};

use crate::lease::LeaseId;

/// The number of a call that may bring a lease, in the order in which the calls began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GrantNumber(u64);

/// A point in time: it separates the calls that had begun from later ones. The default is before all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

impl GrantNumber {
    /// Had the call begun at this time?
    pub fn began_before(self, mark: Mark) -> bool {
        self.0 < mark.0
    }
}

/// The calls in flight that may bring a lease. The number of calls is not bounded here.
#[derive(Debug, Default)]
pub struct GrantsInFlight {
    next: u64,
    in_flight: BTreeSet<u64>,
}

impl GrantsInFlight {
    /// A call is about to be sent.
    pub fn begin(&mut self) -> GrantNumber {
        let number = self.next;
        self.next += 1;
        self.in_flight.insert(number);
        GrantNumber(number)
    }

    /// The call was answered and its result is recorded, or it was given up.
    pub fn end(&mut self, call: GrantNumber) {
        self.in_flight.remove(&call.0);
    }

    /// The time now.
    pub fn mark(&self) -> Mark {
        Mark(self.next)
    }

    /// Have all calls ended that were in flight at this time?
    pub fn have_ended(&self, mark: Mark) -> bool {
        self.in_flight.first().is_none_or(|oldest| *oldest >= mark.0)
    }

    /// The number of calls in flight.
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Is no call in flight?
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }
}

/// The calls in flight, with the news about leases that a reply in flight may name.
///
/// `NEWS_MAX` limits the number of leases with news. If it is reached, [`Grants::hear`] refuses further ones,
/// and the layer treats the lease as one that no reply in flight brings.
#[derive(Debug)]
pub struct Grants<T, const NEWS_MAX: usize> {
    calls: GrantsInFlight,
    /// Until when the news matter; `None` if that is not known yet.
    news: HashMap<LeaseId, (T, Option<Mark>)>,
}

impl<T, const NEWS_MAX: usize> Default for Grants<T, NEWS_MAX> {
    fn default() -> Grants<T, NEWS_MAX> {
        Grants { calls: GrantsInFlight::default(), news: HashMap::new() }
    }
}

impl<T, const NEWS_MAX: usize> Grants<T, NEWS_MAX> {
    /// A call that may bring a lease is about to be sent.
    pub fn begin(&mut self) -> GrantNumber {
        self.calls.begin()
    }

    /// The call has ended, and the lease that it brought is recorded. Forgets the news that matter to no call
    /// in flight any more, and returns them in any order.
    pub fn end(&mut self, call: GrantNumber) -> Vec<(LeaseId, T)> {
        self.calls.end(call);
        let calls = &self.calls;
        let is_over = |until: &Option<Mark>| until.is_some_and(|mark| calls.have_ended(mark));
        let over = self.news.extract_if(|_, (_, until)| is_over(until));
        over.map(|(id, (news, _))| (id, news)).collect()
    }

    /// The calls in flight.
    pub fn calls(&self) -> &GrantsInFlight {
        &self.calls
    }

    /// Would [`Grants::hear`] remember news now?
    pub fn can_hear(&self) -> bool {
        !self.calls.is_empty() && self.news.len() < NEWS_MAX
    }

    /// Remembers news about a lease that is not held, for the calls in flight now. They replace earlier news
    /// about that lease. False if no call is in flight or too much is remembered; then nothing changes.
    pub fn hear(&mut self, id: LeaseId, news: T) -> bool {
        let can = self.can_hear();
        if can {
            self.remember(id, news);
        }
        can
    }

    /// Remembers news for the calls in flight now, without a limit. The layer bounds the number of such news,
    /// for example because it has held the lease. If no call is in flight, forgets all news about the lease.
    pub fn remember(&mut self, id: LeaseId, news: T) {
        if self.calls.is_empty() {
            self.news.remove(&id);
        } else {
            self.news.insert(id, (news, Some(self.calls.mark())));
        }
    }

    /// Keeps news until others replace them or the layer [takes](Grants::take) them, without a limit.
    pub fn keep(&mut self, id: LeaseId, news: T) {
        self.news.insert(id, (news, None));
    }

    /// The news about a lease.
    pub fn news(&self, id: LeaseId) -> Option<&T> {
        self.news.get(&id).map(|(news, _)| news)
    }

    /// Forgets the news about a lease, and returns them.
    pub fn take(&mut self, id: LeaseId) -> Option<T> {
        self.news.remove(&id).map(|(news, _)| news)
    }

    /// The number of leases with news.
    pub fn news_len(&self) -> usize {
        self.news.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: LeaseId = LeaseId(1);

    #[test]
    fn a_recall_before_the_grant_waits_for_the_calls_in_flight_only() {
        let mut grants = Grants::<&str, 9>::default();
        assert!(!grants.hear(ONE, "recalled"), "no call is in flight");
        let (first, second) = (grants.begin(), grants.begin());
        assert!(grants.hear(ONE, "recalled"));
        let later = grants.begin();
        assert!(later.began_before(grants.calls().mark()) && !first.began_before(Mark::default()));
        assert_eq!(grants.end(second), []);
        assert_eq!(grants.news(ONE), Some(&"recalled"));
        assert_eq!(grants.end(first), [(ONE, "recalled")], "a call that began later is not waited for");
        assert_eq!(grants.end(later), []);
    }

    #[test]
    fn a_returned_lease_is_remembered_until_older_replies_have_come() {
        let mut grants = Grants::<&str, 9>::default();
        let call = grants.begin();
        grants.keep(ONE, "returning");
        assert_eq!(grants.end(call), []);
        grants.remember(ONE, "returned");
        assert_eq!(grants.news(ONE), None, "no reply in flight can name it");
        let call = grants.begin();
        grants.remember(ONE, "returned");
        assert_eq!(grants.take(ONE), Some("returned"));
        assert_eq!(grants.end(call), []);
    }

    #[test]
    fn news_beyond_the_limit_are_refused() {
        let mut grants = Grants::<(), 2>::default();
        let call = grants.begin();
        grants.keep(LeaseId(8), ());
        assert!(grants.hear(ONE, ()));
        assert!(!grants.hear(LeaseId(2), ()) && !grants.can_hear());
        assert_eq!(grants.end(call), [(ONE, ())]);
        assert_eq!(grants.news_len(), 1);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Begin,
        /// Ends one of the calls in flight.
        End(usize),
        Hear(u64),
        Remember(u64),
        Keep(u64),
        Take(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Begin),
            3 => (0..8usize).prop_map(Step::End),
            2 => (0..5u64).prop_map(Step::Hear),
            1 => (0..5u64).prop_map(Step::Remember),
            1 => (0..5u64).prop_map(Step::Keep),
            1 => (0..5u64).prop_map(Step::Take),
        ]
    }

    proptest! {
        /// The model remembers with all news which calls were in flight.
        #[test]
        fn news_are_remembered_as_long_as_a_call_from_before_is_in_flight(
            steps in prop::collection::vec(step(), 1..80),
        ) {
            const NEWS_MAX: usize = 3;
            let mut grants = Grants::<usize, NEWS_MAX>::default();
            let mut in_flight: Vec<GrantNumber> = Vec::new();
            let mut news: HashMap<u64, (usize, Option<Vec<GrantNumber>>)> = HashMap::new();
            for (now, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Begin => in_flight.push(grants.begin()),
                    Step::End(at) if at < in_flight.len() => {
                        let call = in_flight.remove(at);
                        let mark = grants.calls().mark();
                        let mut over = grants.end(call);
                        let none_left = |calls: &Vec<GrantNumber>| calls.iter().all(|call| !in_flight.contains(call));
                        let gone = news.extract_if(|_, (_, calls)| calls.as_ref().is_some_and(none_left));
                        let mut expected: Vec<_> = gone.map(|(id, (at, _))| (LeaseId(id), at)).collect();
                        over.sort_unstable();
                        expected.sort_unstable();
                        prop_assert_eq!(over, expected);
                        prop_assert!(call.began_before(mark));
                    }
                    Step::End(_) => {}
                    Step::Hear(id) => {
                        let can = !in_flight.is_empty() && news.len() < NEWS_MAX;
                        prop_assert_eq!(grants.hear(LeaseId(id), now), can);
                        if can {
                            news.insert(id, (now, Some(in_flight.clone())));
                        }
                    }
                    Step::Remember(id) => {
                        grants.remember(LeaseId(id), now);
                        news.remove(&id);
                        if !in_flight.is_empty() {
                            news.insert(id, (now, Some(in_flight.clone())));
                        }
                    }
                    Step::Keep(id) => {
                        grants.keep(LeaseId(id), now);
                        news.insert(id, (now, None));
                    }
                    Step::Take(id) => {
                        prop_assert_eq!(grants.take(LeaseId(id)), news.remove(&id).map(|(at, _)| at));
                    }
                }
                for id in 0..5 {
                    prop_assert_eq!(grants.news(LeaseId(id)), news.get(&id).map(|(at, _)| at));
                }
                prop_assert_eq!(grants.news_len(), news.len());
                prop_assert_eq!(grants.calls().len(), in_flight.len());
                prop_assert_eq!(grants.calls().is_empty(), in_flight.is_empty());
            }
        }
    }
}
