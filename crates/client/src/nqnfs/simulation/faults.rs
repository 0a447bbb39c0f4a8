//! The parameters and faults of a run. They stay within what the protocol assumes, except for what a test
//! removes.

use super::network::Random;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    pub(super) clients: usize,
    pub(super) files: usize,
    /// The longest term that clients ask for, in seconds.
    pub(super) term_max_s: u64,
    /// Longest pause between two actions of a client, in milliseconds.
    pub(super) pause_ms: u64,
    /// One action in this many is a write.
    pub(super) writes_of: u64,
    /// One action in this many is on any file; the others are on the client's own file.
    pub(super) others_of: u64,
    /// One message in this many is lost; none if 0.
    pub(super) lost_of: u64,
    /// One message in this many arrives twice.
    pub(super) twice_of: u64,
    /// Longest delay of a message, in milliseconds.
    pub(super) delay_ms: u64,
    /// The rate of the slowest clock of a client.
    pub(super) slowest_clock: f64,
    /// The server crashes, and is down for this many milliseconds.
    pub(super) server_crash: Option<u64>,
    pub(super) client_crashes: bool,
    /// A client is cut off from the server again and again, for at most this many milliseconds.
    pub(super) cut_ms: u64,
    pub(super) clock_skew_ms: u64,
    pub(super) write_slack_ms: u64,
    /// Does the server wait after a restart?
    pub(super) recovers: bool,
    pub(super) quiet_s: u64,
    pub(super) records: usize,
    /// Clients push and renew at the last moment.
    pub(super) thin: bool,
    /// Number of files, besides the others, that do not exist at first.
    pub(super) made: usize,
    /// Number of times that a client leaves with one VACATED of everything and comes back.
    pub(super) departures: u64,
    pub(super) tell: bool,
}

/// Longest cut. Writes are pushed at the latest five seconds before their lease ends, and the server waits
/// for a `write_slack` of eight seconds after that end. A cut of this length leaves three seconds, in which a
/// write is sent again ten times.
const CUT_MAX: u64 = 10_000;
/// The same for clients that push at the last moment.
const THIN_CUT_MAX: u64 = 5_000;

impl Faults {
    /// The faults of a seed, within what the protocol assumes.
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

    /// Clients without a margin of their own, so that only the server's limits prevent a fault. Their clocks
    /// lose a quarter, and the server assumes that much.
    pub(super) fn slow(seed: u64) -> Faults {
        let faults = Faults::of(seed);
        let cut_ms = faults.cut_ms.min(THIN_CUT_MAX);
        Faults { thin: true, cut_ms, slowest_clock: 0.75, clock_skew_ms: 20_000, ..faults }
    }

    /// The same on exact clocks, with short leases and cuts as long as their writes may be late.
    pub(super) fn late(seed: u64) -> Faults {
        let faults = Faults::of(seed);
        let (thin, cut_ms, term_max_s) = (true, THIN_CUT_MAX, 6);
        Faults { thin, cut_ms, term_max_s, slowest_clock: 1.0, clock_skew_ms: 500, ..faults }
    }

    /// The faults of a seed, while files are created and clients leave and come back.
    pub(super) fn busy(seed: u64) -> Faults {
        Faults { made: 1 + (seed % 4) as usize, departures: seed / 4 % 3 * 2, ..Faults::of(seed) }
    }

    /// Clients that come back at once, over a network slow enough to delay their last messages.
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

    /// Number of files, whether they exist or not.
    pub(super) fn all_files(&self) -> usize {
        self.files + self.made
    }

    /// Ten clients that write under leases, each mostly to its own file, when the server crashes.
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
