//! Delayed writes of one file against a byte array, before an origin that crashes at any time.
//!
//! Promise: order-at-the-origin
//! Promise: gaps-of-new-files

mod committing;

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const CHUNK: u64 = 16;
const SPAN: usize = 64;

/// An origin with one file.
#[derive(Default)]
struct Origin {
    durable: Vec<u8>,
    file: Vec<u8>,
    /// Set only if no change has come since.
    mtime: Option<Timestamp>,
    incarnation: u8,
}

impl Origin {
    fn write(&mut self, write: &WriteInFlight, count: usize, stability: Stability) {
        let offset = write.offset as usize;
        put(&mut self.file, offset, &write.bytes[..count]);
        self.mtime = None;
        if stability != Stability::Unstable {
            put(&mut self.durable, offset, &write.bytes[..count]);
        }
    }

    fn crash(&mut self) {
        self.file.clone_from(&self.durable);
        self.incarnation += 1;
    }

    fn verifier(&self) -> Verifier {
        [self.incarnation; 8]
    }
}

fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(bytes);
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        writer: u32,
        at: usize,
        length: usize,
    },
    Demand,
    /// Fills small gaps, if the end of the origin's file is known.
    Fill,
    Pending {
        seconds: i64,
    },
    Set,
    /// The origin carries out the SETATTR.
    SetDone,
    SetAnswered,
    /// The origin answers the SETATTR with DELAY.
    SetPutOff,
    Send,
    /// The origin carries out a WRITE in flight, or a part of it.
    Do {
        which: usize,
        short: bool,
        better: bool,
    },
    Land {
        which: usize,
    },
    Commit,
    CommitDone,
    Committed,
    Crash,
    Cut {
        size: usize,
    },
    CutDone,
    CutRefused,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..2u32, 0..SPAN - 24, 1..24usize)
            .prop_map(|(writer, at, length)| Step::Write { writer, at, length }),
        2 => Just(Step::Demand),
        2 => Just(Step::Fill),
        1 => (1..1000i64).prop_map(|seconds| Step::Pending { seconds }),
        1 => Just(Step::Set),
        1 => prop::sample::select(vec![Step::SetDone, Step::SetAnswered, Step::SetPutOff]),
        5 => Just(Step::Send),
        4 => (0..4usize, any::<bool>(), any::<bool>())
            .prop_map(|(which, short, better)| Step::Do { which, short, better }),
        4 => (0..4usize).prop_map(|which| Step::Land { which }),
        2 => Just(Step::Commit),
        2 => Just(Step::CommitDone),
        2 => Just(Step::Committed),
        1 => Just(Step::Crash),
        1 => (0..SPAN).prop_map(|size| Step::Cut { size }),
        1 => Just(Step::CutDone),
        1 => Just(Step::CutRefused),
    ]
}

struct World {
    writes: Writes,
    origin: Origin,
    /// The file as its writers see it.
    ours: Vec<u8>,
    /// The mtime that was set since the last change.
    mtime: Option<Timestamp>,
    in_flight: Vec<(WriteInFlight, Option<WriteAnswer>)>,
    /// A SETATTR in flight, and whether the origin has carried it out.
    setting: Option<(Pending, bool)>,
    /// The origin has put off a SETATTR.
    resting: bool,
    /// A COMMIT is in flight. `commit` has the verifier once the origin has carried it out.
    committing: Option<u64>,
    commit: Option<Verifier>,
    /// A truncation in flight: the new size, and the file's contents if it is carried out.
    cut: Option<(usize, Vec<u8>)>,
    byte: u8,
}

impl World {
    fn new() -> World {
        World {
            writes: Writes::new(CHUNK, 0, Version::default()),
            origin: Origin::default(),
            ours: Vec::new(),
            mtime: None,
            in_flight: Vec::new(),
            setting: None,
            resting: false,
            committing: None,
            commit: None,
            cut: None,
            byte: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Write { writer, at, length } => {
                self.byte = self.byte.wrapping_add(1);
                let data = vec![self.byte; length];
                let caller = Caller::unix(writer, writer, &[]);
                let time = (Instant::now(), Timestamp::new(i64::from(self.byte), 0));
                self.writes.write(at as u64, &data, &caller, time);
                put(&mut self.ours, at, &data);
                self.mtime = None;
                if let Some((_, cut)) = &mut self.cut {
                    put(cut, at, &data);
                }
            }
            Step::Pending { seconds } => {
                self.mtime = Some(Timestamp::new(seconds, 0));
                self.writes.set_pending(times(seconds));
            }
            Step::Set => self.set(),
            Step::SetDone => {
                if let Some((times, done @ false)) = &mut self.setting {
                    self.origin.mtime = times.mtime.or(self.origin.mtime);
                    *done = true;
                }
            }
            Step::SetAnswered => {
                if let Some((times, _)) = self.setting.take_if(|(_, done)| *done) {
                    self.writes.end_pending(&times, Ok(()));
                }
            }
            Step::SetPutOff => {
                if self.setting.take_if(|(_, done)| !*done).is_some() {
                    self.writes.rest_pending();
                    self.resting = true;
                }
            }
            Step::Demand => {
                self.writes.demand();
            }
            Step::Fill => self.fill(),
            Step::Send => self.send(),
            Step::Do { which, short, better } => self.execute(which, short, better),
            Step::Land { which } => self.answer(which),
            Step::Commit => {
                if let Some(commit) = self.writes.begin_commit() {
                    self.committing = Some(commit.number);
                }
            }
            Step::CommitDone => {
                if self.committing.is_some() && self.commit.is_none() {
                    self.commit = Some(self.origin.verifier());
                    self.origin.durable.clone_from(&self.origin.file);
                }
            }
            Step::Committed => {
                if let Some(verifier) = self.commit.take() {
                    let number = self.committing.take().unwrap();
                    self.writes.end_commit(number, Ok(verifier));
                }
            }
            Step::Crash => {
                self.origin.crash();
                self.writes.doubt();
            }
            Step::Cut { size } => {
                if self.cut.is_none() {
                    self.writes.begin_cut(size as u64);
                    let mut cut = self.ours.clone();
                    cut.resize(size, 0);
                    self.cut = Some((size, cut));
                }
            }
            Step::CutDone => self.end_cut(true),
            Step::CutRefused => self.end_cut(false),
        }
        self.check();
    }

    /// The cache does not know the end of the origin's file while a WRITE is carried out but not answered,
    /// or after a crash.
    fn fill(&mut self) {
        if self.in_flight.iter().all(|(_, answered)| answered.is_none()) && !self.writes.is_doubtful() {
            self.writes.fill_gaps(self.origin.file.len() as u64);
        }
    }

    fn send(&mut self) {
        if let Some(write) = self.writes.next(3) {
            assert!(self.cut.is_none(), "sent while it is held");
            assert!(self.setting.is_none(), "sent while times are on their way that it makes void");
            assert!(write.bytes.len() as u64 <= CHUNK && !write.bytes.is_empty());
            let others = self.in_flight.iter().map(|(other, _)| other.range());
            assert!(!others.into_iter().any(|other| overlap(&other, &write.range())), "two orders of bytes");
            self.in_flight.push((write, None));
        }
    }

    /// Does what the task does that sets the attributes.
    fn set(&mut self) {
        if self.setting.is_none() && self.writes.pending().is_some() {
            let resumed = std::mem::take(&mut self.resting);
            let times = if resumed { self.writes.resume_pending() } else { self.writes.begin_pending() };
            assert!(times.is_none() || self.writes.begin_pending().is_none(), "twice");
            self.setting = times.map(|times| (times, false));
        }
    }

    fn execute(&mut self, which: usize, short: bool, better: bool) {
        let verifier = self.origin.verifier();
        let Some((write, answered @ None)) = self.in_flight.get_mut(which) else { return };
        let count = if short { write.bytes.len().div_ceil(2) } else { write.bytes.len() };
        let stability = if better { Stability::FileSync } else { write.stability };
        self.origin.write(write, count, stability);
        *answered = Some(WriteAnswer::Taken { count: count as u32, stability, verifier });
    }

    fn answer(&mut self, which: usize) {
        if let Some((write, Some(answered))) = self.in_flight.get(which) {
            self.writes.answered(write.ticket, *answered);
            self.in_flight.remove(which);
        }
    }

    fn end_cut(&mut self, done: bool) {
        let Some((size, cut)) = &self.cut else { return };
        let size = *size;
        if !self.writes.is_clear_from(size as u64) {
            return;
        }
        assert!(self.setting.is_none(), "cut while times are on their way that it makes void");
        if done {
            self.ours.clone_from(cut);
            (self.mtime, self.origin.mtime) = (None, None);
            self.origin.file.resize(size, 0);
            // A truncation is durable when it is answered. Unstable bytes below the new end need not be.
            self.origin.durable.resize(size, 0);
        }
        self.writes.end_cut(size as u64, done);
        self.cut = None;
    }

    /// A read here returns what was written here, whatever the origin has lost.
    fn check(&self) {
        if self.cut.is_some() {
            return;
        }
        let mut view = self.origin.file.clone();
        let pieces = self.writes.overlay(&(0..SPAN as u64));
        pieces.iter().for_each(|(at, bytes)| put(&mut view, *at as usize, bytes));
        assert_eq!(view, self.ours);
        assert!(self.writes.end().unwrap_or(0) <= self.ours.len() as u64);
    }

    /// Finishes everything, as fsync does.
    fn finish(&mut self) {
        self.end_writes();
        self.end_setting();
        self.end_cut(true);
        let upto = self.writes.demand();
        for _ in 0..1000 {
            match self.writes.progress(upto, Level::Stable) {
                Progress::Done => break,
                Progress::Commit => {
                    for step in [Step::Commit, Step::CommitDone, Step::Committed] {
                        self.step(&step);
                    }
                }
                Progress::SetPending => {
                    self.set();
                    assert!(self.setting.is_some());
                    self.end_setting();
                }
                Progress::Wait => {
                    for step in [Step::CommitDone, Step::Committed, Step::Send] {
                        self.step(&step);
                    }
                    self.end_writes();
                }
            }
        }
        assert_eq!(self.writes.progress(upto, Level::Stable), Progress::Done);
        assert!(self.writes.is_clean() && self.writes.take_error().is_none());
        assert_eq!((self.writes.bytes(), self.writes.end()), (0, None));
        self.origin.crash();
        assert_eq!(self.origin.file, self.ours, "durable after fsync");
        assert_eq!(self.origin.mtime, self.mtime, "of what was done last");
    }

    fn end_setting(&mut self) {
        if std::mem::take(&mut self.resting) {
            self.setting = self.writes.resume_pending().map(|times| (times, false));
        }
        self.step(&Step::SetDone);
        self.step(&Step::SetAnswered);
    }

    fn end_writes(&mut self) {
        while !self.in_flight.is_empty() {
            self.execute(0, false, false);
            self.answer(0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A read here returns written bytes at once, and after fsync they are durable at the origin, whatever
    /// it does and when.
    #[test]
    fn nothing_written_is_lost(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.step(step));
        world.finish();
    }
}

fn times(seconds: i64) -> Pending {
    let mtime = Some(Timestamp::new(seconds, 0));
    Pending { mtime, asked: true, ..Pending::of(&user()) }
}

fn user() -> Caller {
    Caller::unix(1, 1, &[])
}

fn now() -> (Instant, Timestamp) {
    (Instant::now(), Timestamp::new(1, 0))
}

fn taken(write: &WriteInFlight) -> WriteAnswer {
    WriteAnswer::Taken { count: write.bytes.len() as u32, stability: write.stability, verifier: [0; 8] }
}

#[test]
fn what_is_small_is_one_stable_write_and_what_is_large_is_many_and_a_commit() {
    let mut writes = Writes::new(1000, 0, Version::default());
    for n in 0..10 {
        assert_eq!(writes.write(n * 100, &[1; 100], &user(), now()), n > 0);
        assert!(writes.next(8).is_none(), "nobody has asked, and it may go on");
    }
    writes.demand();
    let write = writes.next(8).unwrap();
    assert_eq!((write.bytes.len(), write.stability), (1000, Stability::FileSync));
    writes.answered(write.ticket, taken(&write));
    assert!(writes.is_clean());

    for n in 0..25 {
        writes.write(n * 100, &[1; 100], &user(), now());
    }
    let first = writes.next(8).unwrap();
    let second = writes.next(8).unwrap();
    assert!(writes.next(8).is_none(), "the last one is not full");
    assert_eq!((first.stability, second.stability), (Stability::Unstable, Stability::Unstable));
    writes.answered(first.ticket, taken(&first));
    writes.answered(second.ticket, taken(&second));
    let upto = writes.demand();
    let last = writes.next(8).unwrap();
    assert_eq!((last.bytes.len(), last.stability), (500, Stability::Unstable));
    assert_eq!(writes.progress(upto, Level::Stable), Progress::Wait);
    writes.answered(last.ticket, taken(&last));
    assert_eq!(writes.progress(upto, Level::Sent), Progress::Done);
    assert_eq!(writes.progress(upto, Level::Stable), Progress::Commit);
    let commit = writes.begin_commit().unwrap();
    assert!(writes.begin_commit().is_none());
    writes.end_commit(commit.number, Ok([0; 8]));
    assert_eq!(writes.progress(upto, Level::Stable), Progress::Done);
    assert!(writes.next(8).is_none() && writes.is_clean() && writes.is_idle());
}

/// What `as` and `ld` write: sections in any order, each at its alignment.
fn with_gaps(pieces: impl IntoIterator<Item = std::ops::Range<usize>>) -> Writes {
    let mut writes = Writes::new(1 << 20, 0, Version::default());
    for piece in pieces {
        writes.write(piece.start as u64, &vec![1; piece.len()], &user(), now());
    }
    writes
}

fn sent(writes: &mut Writes) -> Vec<(u64, usize, Stability)> {
    writes.demand();
    std::iter::from_fn(|| writes.next(1000))
        .map(|sent| (sent.offset, sent.bytes.len(), sent.stability))
        .collect()
}

#[test]
fn an_object_file_is_one_write_if_nothing_is_known_to_be_in_its_gaps() {
    const OBJECT: [std::ops::Range<usize>; 4] = [480..1987, 64..458, 2312..3144, 0..64];
    let mut writes = with_gaps(OBJECT);
    writes.fill_gaps(0);
    assert_eq!(sent(&mut writes), [(0, 3144, Stability::FileSync)]);
    let mut writes = with_gaps(OBJECT);
    writes.fill_gaps(1000);
    let some = [(0, 458, Stability::Unstable), (480, 2664, Stability::Unstable)];
    assert_eq!(sent(&mut writes), some, "there may be something before the end");
}

#[test]
fn a_gap_with_a_whole_block_stays_a_hole_and_so_does_what_would_be_much() {
    let mut writes = with_gaps([0..100, 8192..8193]);
    writes.fill_gaps(0);
    assert_eq!(sent(&mut writes).len(), 2, "nobody has touched the block from 4096 on");
    let mut writes = with_gaps([0..100, 8191..8192]);
    writes.fill_gaps(0);
    assert_eq!(sent(&mut writes), [(0, 8192, Stability::FileSync)], "this one has a byte");
    let bytes: Vec<_> = (0..100).map(|n| n * 4096..n * 4096 + 1).collect();
    let mut writes = with_gaps(bytes);
    writes.fill_gaps(0);
    assert_eq!((writes.bytes(), sent(&mut writes).len()), (16 * 4096 + 84, 84), "64 KiB at a time");
}

#[test]
fn what_is_on_its_way_or_unstable_is_no_gap() {
    let mut writes = with_gaps(std::iter::once(100..200));
    writes.demand();
    let write = writes.next(8).unwrap();
    writes.write(0, &[2; 50], &user(), now());
    writes.write(300, &[2; 50], &user(), now());
    writes.fill_gaps(0);
    assert_eq!(writes.bytes(), 200, "on its way");
    let stability = Stability::Unstable;
    writes.answered(write.ticket, WriteAnswer::Taken { count: 100, stability, verifier: [0; 8] });
    writes.fill_gaps(0);
    assert_eq!(writes.bytes(), 200, "unstable");
    let commit = writes.begin_commit().unwrap();
    writes.end_commit(commit.number, Ok([0; 8]));
    writes.fill_gaps(200);
    assert_eq!(writes.bytes(), 100, "durable");
}

#[test]
fn what_lands_while_a_truncation_is_refused_is_older_than_what_waited() {
    let mut writes = with_gaps([0..16, 2000..2016]);
    writes.demand();
    let write = writes.next(8).unwrap();
    assert_eq!((write.offset, write.stability), (0, Stability::Unstable));
    writes.write(0, b"N", &user(), now());
    writes.begin_cut(0);
    writes.answered(write.ticket, taken(&write));
    writes.end_cut(0, false);
    writes.demand();
    let commit = writes.begin_commit().unwrap();
    let newer = writes.next(8).unwrap();
    assert_eq!((newer.offset, &newer.bytes[..]), (0, &b"N"[..]));
    // The origin has lost what it took. Only bytes without newer bytes in flight are sent again.
    writes.end_commit(commit.number, Ok([1; 8]));
    let mut sent: Vec<_> = std::iter::from_fn(|| writes.next(8)).map(|write| write.offset).collect();
    sent.sort_unstable();
    assert_eq!(sent, [1, 2000]);
}

#[test]
fn each_writer_is_sent_in_its_own_name_and_the_last_one_has_the_byte() {
    let mut writes = Writes::new(1000, 0, Version::default());
    writes.write(0, b"aaaa", &Caller::unix(1, 1, &[]), now());
    writes.write(2, b"bbbb", &Caller::unix(2, 2, &[]), now());
    writes.write(0, b"A", &Caller::unix(1, 1, &[]), now());
    writes.demand();
    let sent: Vec<_> = std::iter::from_fn(|| writes.next(8)).collect();
    let told: Vec<_> = sent.iter().map(|write| (write.offset, &write.bytes[..])).collect();
    assert_eq!(told, [(0, &b"Aa"[..]), (2, &b"bbbb"[..])]);
    assert_ne!(sent[0].mark.writer.principal, sent[1].mark.writer.principal);
}

#[test]
fn an_error_is_told_once_and_ends_delaying_until_something_is_taken() {
    let mut writes = Writes::new(1000, 0, Version::default());
    writes.write(0, b"aaaa", &user(), now());
    writes.demand();
    let write = writes.next(8).unwrap();
    writes.answered(write.ticket, WriteAnswer::Refused(Status::NoSpc));
    assert!(writes.is_clean() && !writes.is_idle() && writes.is_strict());
    assert_eq!(writes.take_error(), Some(Status::NoSpc));
    assert_eq!(writes.take_error(), None);
    writes.relent();
    assert!(writes.next(8).is_none() && writes.is_idle());
}

#[test]
fn a_file_that_is_gone_is_not_written_and_complains_no_more() {
    let mut writes = Writes::new(10, 0, Version::default());
    writes.write(0, &[1; 25], &user(), now());
    writes.demand();
    let write = writes.next(1).unwrap();
    writes.discard();
    writes.answered(write.ticket, WriteAnswer::Refused(Status::Stale));
    assert!(writes.next(8).is_none() && writes.is_clean() && writes.take_error().is_none());
}

#[test]
fn the_age_is_that_of_the_oldest_byte() {
    let mut writes = Writes::new(1000, 0, Version::default());
    let (start, stamp) = now();
    let later = start + Duration::from_secs(5);
    writes.write(100, b"b", &user(), (later, stamp));
    writes.write(0, b"a", &user(), (start, stamp));
    assert_eq!(writes.oldest(), Some(start));
    writes.begin_cut(50);
    assert_eq!((writes.oldest(), writes.end()), (Some(start), Some(101)), "until the origin has cut it");
    writes.end_cut(50, true);
    assert_eq!((writes.bytes(), writes.end()), (1, Some(1)));
}

/// What an assembler writes: sections with a few bytes between them, and one far behind.
#[test]
fn narrow_gaps_of_zeros_are_sent_along_and_others_are_not() {
    let caller = Caller::unix(1, 1, &[]);
    let now = (Instant::now(), Timestamp::new(1, 0));
    let sent = |from: Option<u64>| {
        let mut writes = Writes::new(1 << 20, 1, Version::default());
        for (at, bytes) in [(0, &b"header"[..]), (8, b"text"), (15, b"symbols"), (100_000, b"far")] {
            writes.write(at, bytes, &caller, now);
        }
        writes.demand();
        from.into_iter().for_each(|end| writes.fill_gaps(end));
        let mut sent = Vec::new();
        while let Some(write) = writes.next(8) {
            // While a WRITE is in flight, this fills nothing more.
            from.into_iter().for_each(|end| writes.fill_gaps(end));
            sent.push((write.offset, write.bytes));
        }
        sent
    };
    let text = |at, bytes: &'static [u8]| (at, Bytes::from_static(bytes));
    let (header, symbols, far) = (text(0, b"header"), text(15, b"symbols"), text(100_000, b"far"));
    assert_eq!(sent(None), [header.clone(), text(8, b"text"), symbols, far.clone()]);
    assert_eq!(sent(Some(0)), [text(0, b"header\0\0text\0\0\0symbols"), far.clone()]);
    // The origin has bytes before offset 10 that are unknown here.
    assert_eq!(sent(Some(10)), [header, text(8, b"text\0\0\0symbols"), far]);
}

#[test]
fn what_the_origin_takes_a_part_of_goes_on_at_once() {
    let mut writes = Writes::new(10_000, 0, Version::default());
    writes.write(0, &[1; 5000], &user(), now());
    writes.demand();
    assert!(writes.begin_draining());
    let write = writes.next(8).unwrap();
    assert!(writes.next(8).is_none());
    let (stability, verifier) = (Stability::FileSync, [0; 8]);
    writes.answered(write.ticket, WriteAnswer::Taken { count: 4096, stability, verifier });
    assert!(writes.begin_draining(), "nobody asks a second time");
    let rest = writes.next(8).unwrap();
    assert_eq!((rest.offset, rest.bytes.len()), (4096, 904));
}
