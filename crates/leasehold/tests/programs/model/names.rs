//! The objects that a name has led to, with times, and what a client may still trust about it.

use std::collections::BTreeMap;
use std::time::Duration;

/// Allows for a late timer, and for the time between a reply and reading the clock.
const SLACK: Duration = Duration::from_millis(25);

/// How long a client may trust what it knows.
#[derive(Debug, Clone, Copy, Hash)]
pub struct Lifetimes {
    /// For a name that leads to an object: the attribute timeout.
    pub present: Duration,
    /// For a negative entry.
    pub absent: Duration,
}

/// When the last call of a client began that confirms the names of a directory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Confirmed {
    /// For absent names.
    pub absent: Duration,
    /// For names that lead to an object.
    pub present: Duration,
}

/// All objects that a name has led to.
#[derive(Debug, Clone, Hash)]
pub struct History {
    /// The objects with the time from which the name led to them, oldest first.
    states: Vec<(Duration, Option<usize>)>,
    /// For each client, the index of the oldest state that it may still see. Simultaneous calls are in the
    /// order of the model, whatever their times.
    known: BTreeMap<usize, usize>,
    /// When an object was replaced by another. A client that has the old object open renames it away first.
    replaced: Option<(Duration, Duration)>,
}

impl Default for History {
    fn default() -> History {
        History { states: vec![(Duration::ZERO, None)], known: BTreeMap::new(), replaced: None }
    }
}

impl History {
    /// The present object.
    pub fn now(&self) -> Option<usize> {
        self.states.last().and_then(|(_, object)| *object)
    }

    /// A client has changed the name; the call returned at `when`.
    pub fn set(&mut self, client: usize, when: Duration, object: Option<usize>) {
        self.states.push((when, object));
        self.learn(client);
    }

    /// The same, by a rename over an existing object.
    pub fn replace(&mut self, client: usize, during: (Duration, Duration), object: usize) {
        if self.now().is_some() {
            self.replaced = Some(during);
        }
        self.set(client, during.1, Some(object));
    }

    /// Does a call overlap a replacement, during which the name may be absent?
    pub fn is_replaced_in(&self, (began, ended): (Duration, Duration)) -> bool {
        self.replaced.is_some_and(|(from, to)| began < to && from < ended)
    }

    /// All objects that the name led to at some moment since then.
    pub fn since(&self, began: Duration) -> impl Iterator<Item = usize> {
        let ends = self.states.iter().skip(1).map(|(when, _)| *when).chain([Duration::MAX]);
        let led = self.states.iter().zip(ends).filter(move |(_, end)| *end >= began);
        led.filter_map(|((_, object), _)| *object)
    }

    /// A client has seen the true state.
    pub fn learn(&mut self, client: usize) {
        self.known.insert(client, self.states.len() - 1);
    }

    /// A client has seen this object. If the name never led to it before, the client knows the true state.
    pub fn saw(&mut self, client: usize, object: Option<usize>) {
        let Some(((_, now), before)) = self.states.split_last() else { return };
        if *now == object && before.iter().all(|(_, earlier)| *earlier != object) {
            self.learn(client);
        }
    }

    /// The objects that a call of a client which begins at `began` may find; the true one comes first.
    pub fn candidates(
        &self,
        client: usize,
        began: Duration,
        confirmed: Confirmed,
        lifetimes: Lifetimes,
    ) -> Vec<Option<usize>> {
        let mut may = vec![self.now()];
        let known = self.known.get(&client).copied().unwrap_or_default();
        for (at, (_, object)) in self.states.iter().enumerate().skip(known) {
            let Some((ended, _)) = self.states.get(at + 1) else { break };
            let (lifetime, confirmed) = match object {
                Some(_) => (lifetimes.present, confirmed.present),
                None => (lifetimes.absent, confirmed.absent),
            };
            if *ended > confirmed && began < *ended + lifetime + SLACK && !may.contains(object) {
                may.push(*object);
            }
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::{Confirmed, History, Lifetimes};
    use std::time::Duration;

    const A: usize = 0;
    const B: usize = 1;
    const OF: Lifetimes = Lifetimes { present: Duration::from_secs(3), absent: Duration::from_secs(1) };

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn by(milliseconds: u64) -> Confirmed {
        Confirmed { absent: at(milliseconds), ..Confirmed::default() }
    }

    #[test]
    fn absence_is_believed_for_a_second_or_until_a_point_of_coherence() {
        let mut name = History::default();
        name.set(B, at(100), Some(7));
        assert_eq!(name.candidates(A, at(200), by(0), OF), [Some(7), None]);
        assert_eq!(name.candidates(A, at(200), by(99), OF), [Some(7), None], "before it was answered");
        assert_eq!(name.candidates(A, at(200), by(150), OF), [Some(7)]);
        assert_eq!(name.candidates(A, at(1200), by(0), OF), [Some(7)]);
        assert_eq!(name.candidates(B, at(101), by(0), OF), [Some(7)], "its own");
        name.saw(A, Some(7));
        assert_eq!(name.candidates(A, at(200), by(0), OF), [Some(7)], "seen before");
    }

    #[test]
    fn a_replaced_file_is_believed_for_the_attribute_timeout() {
        let mut name = History::default();
        name.set(B, at(100), Some(7));
        name.replace(B, (at(2000), at(2010)), 8);
        assert_eq!(name.candidates(A, at(3000), by(2500), OF), [Some(8), Some(7)]);
        let changed = |milliseconds| Confirmed { present: at(milliseconds), ..by(0) };
        assert_eq!(
            name.candidates(A, at(3000), changed(2005), OF),
            [Some(8), Some(7)],
            "before it was answered"
        );
        assert_eq!(name.candidates(A, at(3000), changed(2011), OF), [Some(8)]);
        assert_eq!(name.candidates(A, at(5100), by(0), OF), [Some(8)]);
        assert!(name.is_replaced_in((at(2005), at(2006))) && !name.is_replaced_in((at(2011), at(2012))));
        name.learn(A);
        assert_eq!(name.candidates(A, at(3000), by(0), OF), [Some(8)]);
    }
}
