//! Runs a program and compares each outcome with the model. Shortens a program that fails.

use std::collections::HashSet;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::model::{Client, Model};
use crate::program::{Outcome, Step};
use crate::seat::{Event, Seat};

/// The largest number of models kept at a time.
const MODELS_MAX: usize = 64;
/// How long to shorten a program.
const SHRINK_MAX: Duration = Duration::from_secs(60);
/// How many runs of a shorter program must pass before it counts as correct.
const ATTEMPTS: usize = 2;

/// Numbers the directories of programs.
static PROGRAMS: AtomicUsize = AtomicUsize::new(0);

/// The seats of a table, and the promises to their clients.
pub struct Stage {
    pub seats: Vec<Seat>,
    pub clients: Vec<Client>,
}

/// A program with an outcome that is not permitted.
pub struct Failure {
    pub what: String,
    /// The calls with their outcomes.
    pub events: Vec<Event>,
    /// The index of the step that failed.
    pub at: usize,
}

impl Stage {
    /// Runs a program. Returns its calls.
    pub fn run(&mut self, steps: &[Step]) -> Result<Vec<Event>, Failure> {
        let directory = format!("p{}", PROGRAMS.fetch_add(1, Ordering::Relaxed));
        let since = Instant::now();
        for (number, seat) in self.seats.iter_mut().enumerate() {
            seat.begin(&directory, number == 0).unwrap_or_else(|error| panic!("{directory}: {error}"));
        }
        let clients: Vec<usize> = self.seats.iter().map(|seat| seat.client).collect();
        let mut models = vec![Model::new(&self.clients)];
        let mut events = Vec::new();
        let mut result = Ok(());
        for (at, step) in steps.iter().enumerate() {
            if !models.iter().all(|model| model.is_defined(&clients, step)) {
                continue;
            }
            let made = self.make(step, since);
            events.extend(made.iter().flatten().cloned());
            match order(&models, &clients, &made) {
                Ok(then) => models = then,
                Err(what) => {
                    result = Err((at, what));
                    break;
                }
            }
        }
        for seat in &mut self.seats {
            seat.end();
        }
        match result {
            Ok(()) => {
                events.retain(|event| event.outcome != Outcome::Skipped);
                Ok(events)
            }
            Err((at, what)) => Err(Failure { what, events, at }),
        }
    }

    /// Makes the calls of a step, and returns them by seat.
    fn make(&mut self, step: &Step, since: Instant) -> Vec<Vec<Event>> {
        let parts = match step {
            Step::Alone(seat, op) => return vec![self.seats[*seat].call(*seat, op, since)],
            Step::Together(parts) => parts,
        };
        let start = Barrier::new(parts.len());
        std::thread::scope(|scope| {
            let mut at_work = Vec::new();
            for (number, seat) in self.seats.iter_mut().enumerate() {
                let Some((_, ops)) = parts.iter().find(|(part, _)| *part == number) else { continue };
                let start = &start;
                at_work.push(scope.spawn(move || {
                    start.wait();
                    ops.iter().flat_map(|op| seat.call(number, op, since)).collect::<Vec<Event>>()
                }));
            }
            at_work.into_iter().map(|part| part.join().unwrap()).collect()
        })
    }

    /// Makes a failed program as short as possible.
    pub fn shrink(&mut self, steps: &[Step], failure: Failure) -> (Vec<Step>, Failure) {
        let began = Instant::now();
        let mut best = (steps[..=failure.at].to_vec(), failure);
        let mut chunk = best.0.len() / 2;
        while chunk > 0 {
            let mut from = 0;
            while from < best.0.len() && began.elapsed() < SHRINK_MAX {
                let mut shorter = best.0.clone();
                shorter.drain(from..(from + chunk).min(best.0.len()));
                let failed = (0..ATTEMPTS).find_map(|_| self.run(&shorter).err());
                match failed {
                    Some(failure) => {
                        shorter.truncate(failure.at + 1);
                        best = (shorter, failure);
                    }
                    None => from += chunk,
                }
            }
            chunk /= 2;
        }
        best
    }

    /// A failure as a list of calls.
    pub fn tell(&self, failure: &Failure) -> String {
        let mut told = String::new();
        for event in failure.events.iter().filter(|event| event.outcome != Outcome::Skipped) {
            let _ = writeln!(told, "{}", self.tell_call(event));
        }
        format!("{told}WRONG: {}", failure.what)
    }

    /// A call with its start time and duration.
    pub fn tell_call(&self, Event { seat, op, outcome, began, ended }: &Event) -> String {
        let name = &self.seats[*seat].name;
        let (began, took) = (began.as_secs_f64() * 1e3, ended.saturating_sub(*began).as_secs_f64() * 1e3);
        format!("{began:9.1} ms {took:+7.1}  {name}: {op} = {outcome}")
    }
}

/// The models after simultaneous calls, for every possible order of the calls.
fn order(models: &[Model], clients: &[usize], made: &[Vec<Event>]) -> Result<Vec<Model>, String> {
    let mut search = Search {
        clients,
        made,
        next: vec![0; made.len()],
        seen: HashSet::new(),
        then: Vec::new(),
        why: (0, String::new()),
    };
    models.iter().for_each(|model| search.from(model));
    if search.then.is_empty() { Err(search.why.1) } else { Ok(search.then) }
}

/// A search over all orders of simultaneous calls that lead to different models.
struct Search<'a> {
    clients: &'a [usize],
    made: &'a [Vec<Event>],
    /// How many calls of each seat are done.
    next: Vec<usize>,
    /// Visited states: the number of done calls, and a hash of the model.
    seen: HashSet<(Vec<usize>, u64)>,
    then: Vec<Model>,
    /// Why the order that got furthest failed, with the number of its done calls.
    why: (usize, String),
}

impl Search<'_> {
    /// Tries each call that may be next.
    fn from(&mut self, model: &Model) {
        let mut hasher = DefaultHasher::new();
        model.hash(&mut hasher);
        if !self.seen.insert((self.next.clone(), hasher.finish())) {
            return;
        }
        let made = self.made;
        let waiting: Vec<usize> = (0..made.len()).filter(|at| self.next[*at] < made[*at].len()).collect();
        if waiting.is_empty() && self.then.len() < MODELS_MAX {
            self.then.push(model.clone());
        }
        // If one call ended before another began, it comes first.
        let first_end = waiting.iter().map(|at| made[*at][self.next[*at]].ended).min().unwrap_or_default();
        for at in waiting {
            let event = &made[at][self.next[at]];
            if event.began > first_end {
                continue;
            }
            match model.apply(self.clients[event.seat], event) {
                Ok(models) => {
                    self.next[at] += 1;
                    models.iter().for_each(|model| self.from(model));
                    self.next[at] -= 1;
                }
                Err(why) => {
                    let done = self.next.iter().sum();
                    if done >= self.why.0 {
                        self.why = (done, why);
                    }
                }
            }
        }
    }
}
