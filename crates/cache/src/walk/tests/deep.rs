//! A reader that goes depth first through a deep tree, over a link with a round trip: how often does it wait?

use std::collections::{HashMap, VecDeque};

use super::super::roster::{Entry, Kind};
use super::*;

const ROUND_TRIP: Duration = Duration::from_millis(40);
/// How long the reader reads most directories, and how long each of the large ones.
const READING: Duration = Duration::from_micros(1500);
const READING_LARGE: Duration = Duration::from_millis(100);
/// One directory in so many is large.
const LARGE_SHARE: usize = 20;
/// A listing is believed for so long.
const BELIEVED: Duration = Duration::from_secs(3);
const IN_FLIGHT_MAX: usize = 32;

/// A tree whose directories have different numbers of directories in them.
struct Tree {
    /// The directories within each.
    below: HashMap<String, Vec<String>>,
    /// All directories, depth first.
    order: Vec<String>,
}

impl Tree {
    fn new(directories: std::ops::Range<usize>) -> Tree {
        let mut tree = Tree { below: HashMap::new(), order: Vec::new() };
        let mut seed = 7;
        while !directories.contains(&tree.order.len()) {
            tree = Tree { below: HashMap::new(), order: Vec::new() };
            seed += 1;
            let mut random = seed;
            tree.grow("t".to_owned(), 0, &mut random);
        }
        tree
    }

    fn grow(&mut self, path: String, depth: u32, random: &mut u64) {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let fan = match (depth, *random >> 33) {
            (0, _) => 20,
            (5.., _) => 0,
            (_, bits) => [0, 0, 0, 1, 2, 3, 4, 20][bits as usize % 8],
        };
        self.order.push(path.clone());
        let names: Vec<_> = (0..fan).map(|n| format!("{path}/{n:02}")).collect();
        self.below.insert(path, names.clone());
        names.into_iter().for_each(|name| self.grow(name, depth + 1, random));
    }

    fn roster(&self, path: &str) -> Arc<Roster> {
        let entry =
            |child: &String| Entry { name: name(last(child)), handle: handle(child), kind: Kind::Directory };
        Arc::new(Roster::new(self.below[path].iter().map(entry).collect(), true))
    }
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

/// The reader, and the listings on their way to it.
struct Link<'t> {
    tree: &'t Tree,
    reader: Reader,
    /// When each listing came. `None` while it is on its way.
    here: HashMap<String, Option<Instant>>,
    asked: usize,
    flight: VecDeque<(Instant, Guess, String)>,
}

impl Link<'_> {
    fn send(&mut self) {
        let capacity = IN_FLIGHT_MAX - self.flight.len();
        let now = self.reader.now;
        for guess in self.reader.walks.guesses(u64::MAX / 2, capacity, now) {
            let path = String::from_utf8(guess.target.handle().as_bytes().to_vec()).unwrap();
            if self.is_here(&path) {
                self.reader.walks.listed(&handle(&path), &self.tree.roster(&path), now);
                self.reader.walks.done(&guess, Outcome::Nothing, now);
                continue;
            }
            self.here.insert(path.clone(), None);
            self.asked += 1;
            self.flight.push_back((now + ROUND_TRIP, guess, path));
        }
    }

    fn receive(&mut self) {
        let now = self.reader.now;
        while self.flight.front().is_some_and(|(at, ..)| *at <= now) {
            let Some((_, guess, path)) = self.flight.pop_front() else { return };
            let directory = handle(&path);
            self.reader.walks.listed(&directory, &self.tree.roster(&path), now);
            self.reader.walks.done(&guess, Outcome::Listing { bytes: 4096 }, now);
            self.here.insert(path, Some(now));
            self.send();
        }
    }

    fn step(&mut self, path: &str, action: Action) {
        let at = path.rsplit_once('/').map(|(above, name_of)| (handle(above), name(name_of)));
        let step = Step { directory: handle(path), at, directory_bytes: 4096, action };
        self.reader.walks.step(&self.reader.caller, &step, self.reader.now);
        self.send();
    }

    fn is_here(&self, path: &str) -> bool {
        let came = self.here.get(path).copied().flatten();
        came.is_some_and(|at| self.reader.now - at < BELIEVED)
    }

    fn is_under_way(&self, path: &str) -> bool {
        self.here.get(path).is_some_and(Option::is_none)
    }

    /// The reader lists a directory. Returns how long it waited.
    fn list(&mut self, path: &str) -> Duration {
        let before = self.reader.now;
        if !self.is_here(path) && !self.is_under_way(path) {
            self.step(path, Action::Entered);
        }
        while self.is_under_way(path) {
            self.reader.now = self.flight.front().unwrap().0;
            self.receive();
        }
        self.step(path, Action::Listed);
        if !self.is_here(path) {
            self.asked += 1;
            self.reader.now += ROUND_TRIP;
            self.receive();
            self.here.insert(path.to_owned(), Some(self.reader.now));
            self.reader.walks.listed(&handle(path), &self.tree.roster(path), self.reader.now);
            self.send();
        }
        self.reader.now - before
    }
}

/// When a slow reader comes, guesses are out of date. They are not made again and again.
#[test]
fn a_slow_reader_costs_no_more_than_one_guess_for_each_directory() {
    let tree = Tree::new(400..800);
    for reading in [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(4)] {
        let (here, flight) = (HashMap::new(), VecDeque::new());
        let mut link = Link { tree: &tree, reader: Reader::new(), here, flight, asked: 0 };
        for path in &tree.order {
            link.list(path);
            link.reader.now += reading;
            link.receive();
        }
        let (asked, directories) = (link.asked, tree.order.len());
        assert!(asked * 10 <= directories * 21, "{asked} calls for {directories} directories at {reading:?}");
    }
}

#[test]
fn a_reader_of_a_deep_tree_waits_for_few_of_its_directories() {
    let tree = Tree::new(2000..6000);
    let (here, flight) = (HashMap::new(), VecDeque::new());
    let mut link = Link { tree: &tree, reader: Reader::new(), here, flight, asked: 0 };
    let mut waited = Duration::ZERO;
    for (number, path) in tree.order.iter().enumerate() {
        waited += link.list(path);
        link.reader.now += if number % LARGE_SHARE == 0 { READING_LARGE } else { READING };
        link.receive();
    }
    let directories = u32::try_from(tree.order.len()).unwrap();
    let waits = waited.as_secs_f64() / ROUND_TRIP.as_secs_f64();
    assert!(waits * 25.0 < f64::from(directories), "{waits:.0} round trips for {directories} directories");
    let asked = link.asked;
    assert!(asked * 10 < tree.order.len() * 12, "{asked} calls for {directories} directories");
}
