//! Random programs. The seed determines the program.
//!
//! A program consists of phrases, such as "make a file under another name and rename it". Several phrases
//! are active at a time and take turns. Many phrases look up an absent name shortly before another seat
//! makes it.

use lab::Rng;

use crate::program::{Access, CELLS, Dir, How, Op, PAGE_CELLS, Place, SLOTS, Step, TOPS};

/// Phrases that are active at a time.
const PHRASES: usize = 3;
/// Files for locks; they are in the first directory.
pub const LOCKED: u16 = 2;
/// The slot for simultaneous calls.
const SHARED_SLOT: usize = SLOTS - 1;

/// The properties of a program.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The client of each seat.
    pub seats: &'static [usize],
    /// Steps in phrases, without the checks at the end.
    pub steps: usize,
    /// Percentage of phrases in which several seats call at once.
    pub together: usize,
    /// Whether the checks at the end wait for the lifetimes to pass.
    pub rests: bool,
    /// The lifetimes, in milliseconds.
    pub rest_milliseconds: u64,
}

struct Generator<'a> {
    rng: &'a mut Rng,
    wanted: Wanted,
    data: u64,
    fresh: u16,
}

/// Read access only.
pub const READ: Access =
    Access { write: false, create: false, exclusive: false, truncate: false, direct: false };
const WRITE: Access = Access { write: true, ..READ };
const EXCLUSIVE: Access = Access { exclusive: true, ..WRITE };

/// Generates a program.
pub fn program(rng: &mut Rng, wanted: Wanted) -> Vec<Step> {
    let mut generator = Generator { rng, wanted, data: 0, fresh: 100 };
    let mut steps = generator.preamble();
    let mut phrases: Vec<std::collections::VecDeque<Step>> = Vec::new();
    let begun = steps.len();
    while steps.len() < begun + wanted.steps {
        phrases.retain(|phrase| !phrase.is_empty());
        while phrases.len() < PHRASES {
            phrases.push(generator.phrase().into());
        }
        let phrase = generator.rng.below(phrases.len());
        steps.extend(phrases[phrase].pop_front());
    }
    steps
}

/// The end of each program: every file is closed, and then every client looks at everything.
pub fn epilogue(steps: &[Step], wanted: Wanted, served: usize) -> Vec<Step> {
    let mut places: Vec<Place> = steps.iter().flat_map(places_of).collect();
    places.sort();
    places.dedup();
    let mut dirs: Vec<Dir> = places.iter().map(|place| place.dir).collect();
    dirs.extend((0..TOPS).map(Dir::Top));
    dirs.sort();
    dirs.dedup();
    let closes = (0..wanted.seats.len()).flat_map(|seat| (0..SLOTS).map(move |slot| (seat, slot)));
    let mut end: Vec<Step> = closes.map(|(seat, slot)| Step::Alone(seat, Op::Close { slot })).collect();
    if wanted.rests {
        end.push(Step::Alone(0, Op::Pause { milliseconds: wanted.rest_milliseconds }));
    }
    let mut clients: Vec<usize> = Vec::new();
    for (seat, client) in wanted.seats.iter().enumerate() {
        if clients.contains(client) {
            continue;
        }
        clients.push(*client);
        end.extend(looks(seat, &places, &dirs, false));
    }
    // Opening a file recalls its lease, and that brings delayed data to the server. So open before looking.
    end.extend(looks(served, &places, &dirs, true));
    end
}

fn looks(seat: usize, places: &[Place], dirs: &[Dir], opens_first: bool) -> Vec<Step> {
    let mut looks: Vec<Op> = Vec::new();
    for place in places {
        if !opens_first {
            looks.push(Op::Look(*place));
        }
        if matches!(place.name.kind, 'f' | 'b' | 'l') {
            looks.push(Op::Open { place: *place, access: READ, slot: 0 });
            looks.push(Op::Read { slot: 0, cells: 0..CELLS, map: false });
            looks.push(Op::Close { slot: 0 });
        }
        if opens_first {
            looks.push(Op::Look(*place));
        }
    }
    looks.extend(dirs.iter().map(|dir| Op::List(*dir)));
    looks.into_iter().map(|op| Step::Alone(seat, op)).collect()
}

fn places_of(step: &Step) -> Vec<Place> {
    let of = |op: &Op| match op {
        Op::Look(place)
        | Op::Open { place, .. }
        | Op::Unlink(place)
        | Op::Mkdir(place)
        | Op::Rmdir(place) => {
            vec![*place]
        }
        Op::Link(from, to) | Op::Rename(from, to) => vec![*from, *to],
        _ => Vec::new(),
    };
    match step {
        Step::Alone(_, op) => of(op),
        Step::Together(parts) => parts.iter().flat_map(|(_, ops)| ops.iter().flat_map(of)).collect(),
    }
}

/// A place whose kind of name is that of another place, because a file keeps its kind when it is renamed.
fn like(place: Place, other: Place) -> Place {
    Place::new(place.dir, other.name.kind, place.name.number)
}

impl Generator<'_> {
    /// Makes the files for locks, which every phrase may use.
    fn preamble(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for number in 0..LOCKED {
            let place = Place::new(Dir::Top(0), 'l', number);
            let id = self.id();
            let write = Op::Write { slot: 0, cells: 0..CELLS, how: How::Call, id };
            // Under a lock, because files for locks are written in no other way. Over version 3 they stay
            // empty.
            let lock = Op::Lock { slot: 0, cells: 0..CELLS, exclusive: true };
            let open = Op::Open { place, access: EXCLUSIVE, slot: 0 };
            let ops = [open, lock, write, Op::Unlock { slot: 0 }, Op::Close { slot: 0 }];
            steps.extend(ops.into_iter().map(|op| Step::Alone(0, op)));
        }
        steps
    }

    fn id(&mut self) -> u64 {
        self.data += 1;
        self.data
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.rng.below(100) < percent
    }

    fn seat(&mut self) -> usize {
        self.rng.below(self.wanted.seats.len())
    }

    /// A seat of another client, if there is one.
    fn other(&mut self, seat: usize) -> usize {
        let seats = self.wanted.seats;
        let others: Vec<usize> = (0..seats.len()).filter(|other| seats[*other] != seats[seat]).collect();
        if others.is_empty() { seat } else { *self.rng.pick(&others) }
    }

    fn dir(&mut self) -> Dir {
        let top = self.rng.below(TOPS);
        if self.chance(15) { Dir::Sub(top, self.rng.below(2) as u16) } else { Dir::Top(top) }
    }

    fn file(&mut self) -> Place {
        let dir = self.dir();
        self.file_in(dir)
    }

    fn file_in(&mut self, dir: Dir) -> Place {
        if self.chance(10) {
            return Place::new(dir, 'b', self.rng.below(2) as u16);
        }
        let number = if self.fresh > 100 && self.chance(20) {
            100 + self.rng.below(usize::from(self.fresh - 100)) as u16
        } else {
            self.rng.below(5) as u16
        };
        Place::new(dir, 'f', number)
    }

    /// A name that no phrase has used yet.
    fn fresh(&mut self, dir: Dir) -> Place {
        self.fresh += 1;
        Place::new(dir, 'f', self.fresh - 1)
    }

    fn slot(&mut self) -> usize {
        self.rng.below(SHARED_SLOT)
    }

    fn cells(&mut self) -> std::ops::Range<usize> {
        let first = self.rng.below(CELLS);
        let first = if self.chance(40) { 0 } else { first };
        first..first + 1 + self.rng.below(CELLS - first)
    }

    fn how(&mut self) -> How {
        *self.rng.pick(&[How::Call, How::Call, How::Call, How::Map, How::MapSync])
    }

    /// Chooses the cells to write, and how. A map writes whole pages. With any NFS client it overwrites what
    /// another client has written to the rest of a page meanwhile. So a write by a map covers complete pages,
    /// and its lock covers them, too.
    fn written(&mut self) -> (std::ops::Range<usize>, How) {
        let (cells, how) = (self.cells(), self.how());
        if how == How::Call {
            return (cells, how);
        }
        let pages = cells.start / PAGE_CELLS * PAGE_CELLS..cells.end.next_multiple_of(PAGE_CELLS).min(CELLS);
        (pages, how)
    }

    fn write(&mut self, slot: usize) -> Op {
        let (cells, how) = self.written();
        Op::Write { slot, cells, how, id: self.id() }
    }

    fn read(&mut self, slot: usize) -> Op {
        Op::Read { slot, cells: 0..CELLS, map: self.chance(20) }
    }

    fn phrase(&mut self) -> Vec<Step> {
        let seat = self.seat();
        if self.rng.below(100) < self.wanted.together {
            return vec![self.at_once()];
        }
        match self.rng.below(100) {
            0..18 => self.absent_then_made(seat),
            18..24 => self.reference(seat),
            24..30 => self.object(seat),
            30..42 => self.under_a_lock(seat),
            42..72 => {
                let ops = self.alone();
                ops.into_iter().map(|op| Step::Alone(seat, op)).collect()
            }
            _ => {
                let op = self.single();
                vec![Step::Alone(seat, op)]
            }
        }
    }

    /// One seat looks up a name, another makes it, and the first looks again. In between it may do something
    /// that confirms negative entries.
    fn absent_then_made(&mut self, seat: usize) -> Vec<Step> {
        let dir = self.dir();
        let place = if self.chance(70) { self.fresh(dir) } else { self.file_in(dir) };
        let (other, slot, mine) = (self.other(seat), self.slot(), self.slot());
        let mut steps = vec![Step::Alone(seat, Op::Look(place))];
        let make = |op| Step::Alone(other, op);
        match self.rng.below(4) {
            0 => {
                let from = like(self.file_in(dir), place);
                steps.push(make(Op::Rename(from, place)));
            }
            1 => {
                let from = like(self.file_in(dir), place);
                steps.push(make(Op::Link(from, place)));
            }
            _ => {
                steps.push(make(Op::Open { place, access: EXCLUSIVE, slot }));
                steps.push(make(self.write(slot)));
                steps.push(make(Op::Close { slot }));
            }
        }
        let confirms = match self.rng.below(7) {
            0 => Some(Op::Open { place: self.file_in(dir), access: READ, slot: mine }),
            1 => Some(Op::Open { place: self.fresh(dir), access: EXCLUSIVE, slot: mine }),
            2 => {
                let from = self.file_in(dir);
                Some(Op::Rename(from, like(self.file_in(dir), from)))
            }
            3 => {
                let to = self.fresh(dir);
                Some(Op::Link(like(self.file_in(dir), to), to))
            }
            4 => Some(Op::Mkdir(Place::new(dir, 'e', self.rng.below(3) as u16))),
            5 => Some(Op::List(dir)),
            _ => None,
        };
        if let Some(confirms) = confirms {
            let opens = matches!(confirms, Op::Open { .. });
            steps.push(Step::Alone(seat, confirms));
            if opens {
                steps.push(Step::Alone(seat, Op::Close { slot: mine }));
            }
        }
        if self.chance(50) {
            steps.push(Step::Alone(seat, Op::Look(place)));
        }
        let access = if self.chance(20) { WRITE } else { READ };
        steps.push(Step::Alone(seat, Op::Open { place, access, slot: mine }));
        steps.push(Step::Alone(seat, self.read(mine)));
        steps.push(Step::Alone(seat, Op::Close { slot: mine }));
        steps
    }

    /// What git does with a reference: look, make the lock file, look again, write, and rename it over.
    fn reference(&mut self, seat: usize) -> Vec<Step> {
        let dir = self.dir();
        let reference = Place::new(dir, 'f', self.rng.below(5) as u16);
        let lock = Place::new(dir, 'f', 90 + reference.name.number);
        let other = self.other(seat);
        let mut steps = vec![Step::Alone(seat, Op::Look(reference))];
        for seat in [other, seat] {
            let (slot, mine) = (self.slot(), self.slot());
            let mut ops = vec![Op::Open { place: lock, access: EXCLUSIVE, slot }, Op::Look(reference)];
            ops.push(Op::Open { place: reference, access: READ, slot: mine });
            ops.extend([self.read(mine), Op::Close { slot: mine }, self.write(slot), Op::Close { slot }]);
            ops.push(Op::Rename(lock, reference));
            steps.extend(ops.into_iter().map(|op| Step::Alone(seat, op)));
        }
        steps
    }

    /// What git does with an object: make its directory if it is absent, and give a finished file its name
    /// there.
    fn object(&mut self, seat: usize) -> Vec<Step> {
        let top = self.rng.below(TOPS);
        let sub = self.rng.below(2) as u16;
        let (dir, slot) = (Dir::Sub(top, sub), self.slot());
        let (part, object) = (self.fresh(Dir::Top(top)), self.fresh(dir));
        let other = self.other(seat);
        let mut steps = vec![Step::Alone(other, Op::Look(object))];
        let mut ops = vec![Op::Look(object), Op::Mkdir(Place::new(Dir::Top(top), 's', sub))];
        ops.extend([Op::Open { place: part, access: EXCLUSIVE, slot }, self.write(slot), Op::Close { slot }]);
        ops.push(if self.chance(50) { Op::Rename(part, object) } else { Op::Link(part, object) });
        steps.extend(ops.into_iter().map(|op| Step::Alone(seat, op)));
        let slot = self.slot();
        steps.push(Step::Alone(other, Op::List(dir)));
        for op in [Op::Open { place: object, access: READ, slot }, self.read(slot), Op::Close { slot }] {
            steps.push(Step::Alone(other, op));
        }
        if self.chance(30) {
            steps.push(Step::Alone(other, Op::Unlink(object)));
            steps.push(Step::Alone(other, Op::Rmdir(Place::new(Dir::Top(top), 's', sub))));
        }
        steps
    }

    fn under_a_lock(&mut self, seat: usize) -> Vec<Step> {
        let place = Place::new(Dir::Top(0), 'l', self.rng.below(usize::from(LOCKED)) as u16);
        let (slot, exclusive) = (self.slot(), self.chance(70));
        let (cells, how) = self.written();
        let direct = self.chance(15);
        let open = Op::Open { place, access: Access { direct, ..WRITE }, slot };
        let mut ops = vec![open, Op::Lock { slot, cells: cells.clone(), exclusive }, self.read(slot)];
        if exclusive {
            ops.push(Op::Write { slot, cells, how, id: self.id() });
            ops.push(self.read(slot));
        }
        if self.chance(80) {
            ops.push(Op::Unlock { slot });
        }
        ops.push(Op::Close { slot });
        ops.into_iter().map(|op| Step::Alone(seat, op)).collect()
    }

    /// Several calls of one seat.
    fn alone(&mut self) -> Vec<Op> {
        let (place, slot) = (self.file(), self.slot());
        let direct = self.chance(15);
        match self.rng.below(5) {
            0 => vec![Op::Open { place, access: READ, slot }, self.read(slot), Op::Close { slot }],
            1 => {
                let access = Access { create: true, direct, truncate: self.chance(30), ..WRITE };
                vec![Op::Open { place, access, slot }, self.write(slot), Op::Close { slot }]
            }
            2 => {
                let access = Access { direct, ..WRITE };
                let mut ops = vec![Op::Open { place, access, slot }, self.read(slot), self.write(slot)];
                ops.extend([self.read(slot), Op::Close { slot }, Op::Look(place)]);
                ops
            }
            3 => {
                let part = Place::new(place.dir, place.name.kind, 80);
                let open =
                    Op::Open { place: part, access: Access { create: true, truncate: true, ..WRITE }, slot };
                vec![open, self.write(slot), Op::Close { slot }, Op::Rename(part, place), Op::Look(place)]
            }
            _ => vec![
                Op::Unlink(place),
                Op::Look(place),
                Op::Open { place, access: EXCLUSIVE, slot },
                self.write(slot),
            ],
        }
    }

    fn single(&mut self) -> Op {
        let (place, slot) = (self.file(), self.slot());
        let directory = |generator: &mut Self| {
            let kind = if generator.chance(40) { 's' } else { 'e' };
            Place::new(Dir::Top(generator.rng.below(TOPS)), kind, generator.rng.below(2) as u16)
        };
        match self.rng.below(20) {
            0..3 => Op::Look(place),
            3 => Op::Open { place, access: READ, slot },
            4 => Op::Open { place, access: WRITE, slot },
            5 => self.read(slot),
            6 => self.write(slot),
            7 => Op::Sync { slot },
            8 => Op::Cut { slot, cells: self.rng.below(CELLS) },
            9 | 10 => Op::Close { slot },
            11 => Op::Link(place, like(self.file(), place)),
            12 | 13 => Op::Rename(place, like(self.file(), place)),
            14 => Op::Unlink(place),
            15 | 16 => Op::Mkdir(directory(self)),
            17 => Op::Rmdir(directory(self)),
            18 => {
                let (from, to) = (directory(self), directory(self));
                let empty = Place::new(Dir::Top(0), 'e', 0);
                Op::Rename(like(from, empty), like(to, empty))
            }
            _ => Op::List(self.dir()),
        }
    }

    /// Several seats call at once with the same names. Each uses a slot that is free before and after.
    fn at_once(&mut self) -> Step {
        let place = self.file();
        let slot = SHARED_SLOT;
        let count = 2 + self.rng.below(2);
        let mut seats: Vec<usize> = (0..self.wanted.seats.len()).collect();
        self.rng.shuffle(&mut seats);
        let kind = self.rng.below(5);
        let parts = seats.into_iter().take(count).enumerate().map(|(at, seat)| {
            let read = [
                Op::Open { place, access: READ, slot },
                Op::Read { slot, cells: 0..CELLS, map: false },
                Op::Close { slot },
            ];
            let ops = match (kind, at) {
                // One winner.
                (0, _) => {
                    vec![Op::Open { place, access: EXCLUSIVE, slot }, Op::Close { slot }, Op::Look(place)]
                }
                (1, _) => {
                    let from = like(self.file_in(place.dir), place);
                    vec![
                        if self.chance(50) { Op::Link(from, place) } else { Op::Rename(from, place) },
                        Op::Look(place),
                    ]
                }
                // A writer and readers.
                (2, 0) => {
                    let access = Access { create: true, direct: self.chance(30), ..WRITE };
                    vec![Op::Open { place, access, slot }, self.write_plainly(slot), Op::Close { slot }]
                }
                // A replacement and readers.
                (3, 0) => {
                    let part = like(self.fresh(place.dir), place);
                    let open = Op::Open { place: part, access: EXCLUSIVE, slot };
                    vec![open, self.write_plainly(slot), Op::Close { slot }, Op::Rename(part, place)]
                }
                (2 | 3, _) => read.to_vec(),
                _ => {
                    let mut op = self.single();
                    while !matches!(
                        op,
                        Op::Look(_) | Op::Link(..) | Op::Unlink(_) | Op::Mkdir(_) | Op::Rmdir(_)
                    ) {
                        op = self.single();
                    }
                    vec![op]
                }
            };
            (seat, ops)
        });
        Step::Together(parts.collect())
    }

    fn write_plainly(&mut self, slot: usize) -> Op {
        let cells = self.cells();
        Op::Write { slot, cells, how: How::Call, id: self.id() }
    }
}
