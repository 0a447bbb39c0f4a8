//! Where the reader of a walk is, and when it goes through the tree once more.
//!
//! A reader that goes depth first never returns to a directory that it has passed. If it does return, there
//! are two explanations. Soon after, it is several readers, or one that goes breadth first. After a while, it
//! has begun a further pass: through the whole tree, through a part of it, or in another order.

use tokio::time::Instant;
use vfs::Handle;

use super::place::{is_passed, key};
use super::sequence::Sequence;
use super::window::Position;
use super::{AGAIN_MIN, Action, DEPTH_MAX, DIRECTORIES, FILES, Step, Walk};

impl Walk {
    /// The reader lists a directory of which no guess was made. If that is the second of those where it was
    /// in an earlier pass, a further pass has begun that nothing else has shown. True if so.
    pub(super) fn miss_again(&mut self, directory: &Handle, now: Instant) -> bool {
        let since = |at: Instant| now.saturating_duration_since(at);
        let visited = self.places.get(directory).and_then(|place| place.visited);
        if visited.is_none_or(|at| since(at) < AGAIN_MIN) {
            return false;
        }
        let before = self.missed.replace((*directory, now));
        let again = before.is_some_and(|(other, at)| other != *directory && since(at) < AGAIN_MIN);
        self.missed.take_if(|_| again);
        again
    }

    /// The reader goes through the rest of the tree once more, from this directory on.
    pub(super) fn go_on_again(&mut self, directory: &Handle) {
        let Some(here) = self.places.get(directory).map(|place| place.position.clone()) else { return };
        for place in self.places.values_mut() {
            let above = here.starts_with(&place.position);
            let rank = here.get(place.position.len()).filter(|_| above);
            place.ahead = [rank.map_or(0, |rank| rank + 1); 2];
            place.ventured = 0;
        }
        self.reader = here;
        self.rebuild();
    }

    /// The reader has gone into a directory: others beside it may follow, and beside those that it is in.
    pub(super) fn go_into(&mut self, directory: &Handle) {
        let mut below = *directory;
        for _ in 0..DEPTH_MAX {
            let Some((above, _)) = self.places.get(&below).and_then(|place| place.at.clone()) else { return };
            self.trust(&above, |_| 0);
            below = above;
        }
    }

    /// A listing that was guessed ahead of the reader was here already, or did not come.
    pub(super) fn was_no_venture(&mut self, directory: &Handle) {
        if let Some((above, _)) = self.places.get(directory).and_then(|place| place.at.clone()) {
            self.trust(&above, |ventured| ventured.saturating_sub(1));
        }
    }

    fn trust(&mut self, directory: &Handle, count: impl FnOnce(u32) -> u32) {
        let Some(place) = self.places.get_mut(directory) else { return };
        let avoided = place.is_avoided();
        place.ventured = count(place.ventured);
        if avoided && !place.is_avoided() && place.roster.is_some() {
            let at = key(&place.position, place.ahead[DIRECTORIES]);
            self.frontiers[DIRECTORIES].cursors.insert(at, *directory);
        }
    }

    /// The reader is in the directory of this step now. It has `paused` before. True if the directory was
    /// guessed so early that the guess is out of date.
    pub(super) fn come_to(&mut self, step: &Step, paused: bool, now: Instant) -> bool {
        let Some(place) = self.places.get_mut(&step.directory) else { return false };
        let before = place.visited.replace(now);
        let mut late = false;
        if !std::mem::replace(&mut place.used, true) && place.listed.is_some() && place.is_old(now) {
            // The guess came too early. Its names are needed again, and not at the second of them only.
            place.misses = place.misses.max(1);
            late = place.has_expired(now);
        }
        self.move_reader(step, (before, paused), now);
        late
    }

    /// The reader is in the directory of this step now, where it was `before`.
    fn move_reader(&mut self, step: &Step, (before, paused): (Option<Instant>, bool), now: Instant) {
        let Some(place) = self.places.get(&step.directory) else { return };
        let position = place.position.clone();
        let since = |at: Instant| now.saturating_duration_since(at);
        let was_here = before.is_some_and(|at| since(at) >= AGAIN_MIN);
        if position >= self.reader && !(paused && was_here && !self.depth_first) {
            return self.go_on(&step.directory, position);
        }
        // Several readers come back all the time: only the next pass of all of them begins at the top.
        let rested = since(self.began.0) >= AGAIN_MIN || self.is_above_the_begin(&position);
        let may_be = (self.depth_first || position.is_empty() || paused) && rested;
        let again = may_be && was_here;
        let behind = match self.reader.get(position.len()).filter(|_| self.reader.starts_with(&position)) {
            // Within the directory in which the reader was: does it go on there?
            Some(reached) => match self.rank_of(step) {
                Some(rank) if rank > *reached && matches!(step.action, Action::Opened(..)) => {
                    self.move_cursors(&step.directory, rank, &[DIRECTORIES, FILES]);
                    return self.go_on(&step.directory, key(&position, rank));
                }
                rank => rank.is_none_or(|rank| rank < *reached),
            },
            None => true,
        };
        if behind && again {
            self.depth_first |= paused;
            self.begin_again(&position, now);
        } else if self.depth_first && is_passed(&self.reader, &position) {
            self.depth_first = false;
            self.frontiers.iter_mut().for_each(|frontier| frontier.window.widen());
            // Here it was in an earlier pass: so it goes through all of the tree once more, in its own order.
            if was_here {
                self.places.values_mut().for_each(|place| place.ahead = [0; 2]);
            }
            self.rebuild();
        }
        if behind {
            self.reader = position;
        }
    }

    /// A reader may look into some directories first, and then at the files beside them.
    fn is_above_the_begin(&self, position: &Position) -> bool {
        self.began.1.len() > position.len() && self.began.1.starts_with(position)
    }

    /// The rank of the name in a step. `None` if there is no name, or if its rank is not known.
    fn rank_of(&self, step: &Step) -> Option<u32> {
        let (Action::Looked(name) | Action::Opened(name, _)) = &step.action else { return None };
        self.places.get(&step.directory)?.roster.as_ref()?.rank(self.order, name)
    }

    /// The reader goes once more through the tree below a directory of this position.
    fn begin_again(&mut self, position: &Position, now: Instant) {
        let rested = now.saturating_duration_since(self.began.0) >= AGAIN_MIN;
        if rested || !self.is_above_the_begin(position) {
            self.pass = now;
        }
        self.began = (now, position.clone());
        self.depth_first |= position.is_empty();
        self.sequence = Sequence::default();
        self.stats = false;
        for place in self.places.values_mut().filter(|place| place.position.starts_with(position)) {
            (place.ahead, place.ventured) = ([0; 2], 0);
            (place.opened, place.looked) = (None, None);
        }
        self.reader.clone_from(position);
        self.rebuild();
    }

    /// In the directories above this one, guesses go on behind the way to it: what lies before it is passed.
    fn leave_behind(&mut self, directory: &Handle) {
        let mut below = *directory;
        for _ in 0..DEPTH_MAX {
            let Some(place) = self.places.get(&below) else { return };
            let (Some((above, _)), Some(rank)) = (place.at.clone(), place.position.last()) else { return };
            let rank = rank + 1;
            self.move_cursors(&above, rank, &[DIRECTORIES, FILES]);
            below = above;
        }
    }

    fn go_on(&mut self, directory: &Handle, position: Position) {
        if self.depth_first {
            self.leave_behind(directory);
            self.frontiers.iter_mut().for_each(|frontier| frontier.pass(&position));
        }
        self.reader = position;
    }
}
