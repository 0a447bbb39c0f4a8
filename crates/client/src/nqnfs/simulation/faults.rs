//! What a run is made of, and what goes wrong in it: all within what the protocol assumes, but for what a test takes away.

use super::network::Random;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    pub(super) clients: usize,
    pub(super) files: usize,
    /// The longest term that clients ask for, in seconds.
    pub(super) term_max_s: u64,
    /// Between two things that a client does, at most, in milliseconds.
    pub(super) pause_ms: u64,
    /// One thing in so many is a write.
    pub(super) writes_of: u64,
    /// A client uses any file once in so many times, and otherwise its own one.
    pub(super) others_of: u64,
    /// One message in so many is lost; none if 0.
    pub(super) lost_of: u64,
    /// One in so many comes twice.
    pub(super) twice_of: u64,
    /// How long a message is under way at most, in milliseconds.
    pub(super) delay_ms: u64,
    /// The rate of the slowest clock of a client.
    pub(super) slowest_clock: f64,
    /// The server crashes, and is down for so long.
    pub(super) server_crash: Option<u64>,
    pub(super) client_crashes: bool,
    /// A client is cut off from the server again and again, for so many milliseconds at most.
    pub(super) cut_ms: u64,
    pub(super) clock_skew_ms: u64,
    pub(super) write_slack_ms: u64,
    /// Whether the server waits after a restart.
    pub(super) recovers: bool,
    pub(super) quiet_s: u64,
    pub(super) records: usize,
    /// Clients push and renew at the last moment.
    pub(super) thin: bool,
    /// Files that are not there at first, beside the others.
    pub(super) made: usize,
    /// How often a client leaves with one VACATED of everything, and comes back.
    pub(super) departures: u64,
    pub(super) tell: bool,
}

/// What was written is pushed five seconds before its lease ends at the latest, and a server waits for `write_slack` of
/// eight after that end: a cut of so long leaves three in which it is sent again ten times.
const CUT_MAX: u64 = 10_000;
/// The same for clients that push at the last moment.
const THIN_CUT_MAX: u64 = 5_000;

impl Faults {
    /// Those of a seed, within what the protocol assumes.
    pub(super) fn of(seed: u64) -> Faults {
        let mut random = Random::new(seed ^ 0x6e71);
        let mut one_of = |among: &[u64]| among[random.below(among.len() as u64) as usize];
        Faults {
            clients: one_of(&[2, 3, 3]) as usize,
            files: one_of(&[1, 2, 4]) as usize,
            term_max_s: 60,
            pause_ms: one_of(&[800, 3_000, 6_000]),
            writes_of: one_of(&[2, 4, 8]),
            others_of: one_of(&[1, 3, 10]),
            lost_of: one_of(&[0, 20, 10, 5]),
            twice_of: one_of(&[0, 20, 5]),
            delay_ms: one_of(&[5, 100, 400]),
            slowest_clock: [1.0, 0.97, 0.955][one_of(&[0, 1, 2]) as usize],
            server_crash: [None, None, Some(0), Some(5_000)][one_of(&[0, 1, 2, 3]) as usize],
            client_crashes: one_of(&[0, 0, 1]) == 1,
            cut_ms: one_of(&[0, 4_000, CUT_MAX]),
            clock_skew_ms: 3000,
            write_slack_ms: 8000,
            recovers: true,
            quiet_s: one_of(&[0, 0, 5, 30]),
            records: one_of(&[1, 2, 100]) as usize,
            thin: false,
            made: 0,
            departures: 0,
            tell: false,
        }
    }

    /// Clients that leave nothing but the server's bounds between them and a fault, on clocks that lose a quarter; the server
    /// believes them to lose so much.
    pub(super) fn slow(seed: u64) -> Faults {
        let faults = Faults::of(seed);
        let cut_ms = faults.cut_ms.min(THIN_CUT_MAX);
        Faults { thin: true, cut_ms, slowest_clock: 0.75, clock_skew_ms: 20_000, ..faults }
    }

    /// The same on exact clocks, with short leases, cut off as long as their writes may be late.
    pub(super) fn late(seed: u64) -> Faults {
        let faults = Faults::of(seed);
        let (thin, cut_ms, term_max_s) = (true, THIN_CUT_MAX, 6);
        Faults { thin, cut_ms, term_max_s, slowest_clock: 1.0, clock_skew_ms: 500, ..faults }
    }

    /// Those of a seed, while files are made and clients come and go.
    pub(super) fn busy(seed: u64) -> Faults {
        Faults { made: 1 + (seed % 4) as usize, departures: seed / 4 % 3 * 2, ..Faults::of(seed) }
    }

    /// Clients that come back at once, over a network that is slow enough for what they said last.
    pub(super) fn hasty(seed: u64) -> Faults {
        Faults {
            departures: 8,
            delay_ms: 3_000,
            lost_of: 3,
            pause_ms: 800,
            cut_ms: 0,
            server_crash: None,
            ..Faults::busy(seed)
        }
    }

    /// All files, whether they are there or not.
    pub(super) fn all_files(&self) -> usize {
        self.files + self.made
    }

    /// Ten clients that write under leases, each mostly to a file of its own, when the server crashes among them.
    pub(super) fn storm(seed: u64) -> Faults {
        Faults {
            clients: 10,
            files: 10,
            pause_ms: 1_000,
            writes_of: 2,
            others_of: 40,
            server_crash: Some(5_000),
            client_crashes: false,
            cut_ms: 0,
            quiet_s: 0,
            records: 100,
            ..Faults::of(seed)
        }
    }
}
