//! The aims of this project compared with the results of the papers: met or missed, and by how much.

use super::{Report, Rounds};

/// One aim.
#[derive(Clone, Debug)]
pub(super) struct Aim {
    pub(super) what: &'static str,
    pub(super) paper: &'static str,
    pub(super) wanted: &'static str,
    pub(super) measured: String,
    pub(super) met: bool,
}

/// A longer round trip is not on the same LAN.
const LAN_RTT_MAX_MS: f64 = 1.0;

/// The aims for which there are measurements, each at its longest round trip. Aims for a LAN count only on a
/// LAN.
pub(super) fn all(report: &Report) -> Vec<Aim> {
    let far = |workload: &str| report.rtts_of(workload).last().copied();
    let near =
        |workload: &str| report.rtts_of(workload).first().copied().filter(|rtt| *rtt <= LAN_RTT_MAX_MS);
    let fewer = |workload, wanted: f64, what, paper, aim| {
        let far = far(workload)?;
        let (direct, warm) = pair(report, workload, far)?;
        let saved = 100.0 * (1.0 - warm.calls().median / direct.calls().median.max(1e-9));
        Some(Aim {
            what,
            paper,
            wanted: aim,
            measured: format!("-{saved:.1} % at {far} ms"),
            met: saved >= wanted,
        })
    };
    let phase_ratio = |workload, phase: &str, wanted: f64, what, paper, aim| {
        let far = far(workload)?;
        let (direct, warm) = pair(report, workload, far)?;
        let ratio = direct.phase(phase)?.median / warm.phase(phase)?.median.max(1e-9);
        Some(Aim {
            what,
            paper,
            wanted: aim,
            measured: format!("{ratio:.1} x faster at {far} ms"),
            met: ratio >= wanted,
        })
    };
    [
        fewer("build", 95.0, "build, 2 clients, calls at the origin", "-50 % and more", "-95 %"),
        phase_ratio("build", "build", 10.0, "build, 2 clients, time", "3.5 x faster", "10 x faster"),
        far("build").and_then(|far| near_local(report, far)),
        fewer("webserver", 98.0, "webserver, 4 clients, calls at the origin", "-38 %", "-98 % once warm"),
        fewer("oltp", 60.0, "OLTP, 2 clients, calls at the origin", "-12.5 %", "-60 %"),
        near("random-reads").and_then(|near| random_reads(report, near)),
        near("create").and_then(|near| create(report, near)),
        far("badros").and_then(|far| again(report, far)),
        far("badros").and_then(|far| small_writes(report, far)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn pair<'r>(report: &'r Report, workload: &str, rtt: f64) -> Option<(Rounds<'r>, Rounds<'r>)> {
    Some((report.rounds(workload, "direct", rtt)?, report.rounds(workload, "proxy warm", rtt)?))
}

/// The build aim, measured through the mount: there the compiler runs, as on the local disk. Behind the proxy
/// only its file operations are made. Builds are repeated, so the pass on the mount that stays mounted
/// decides. The result of a fresh mount is shown too.
fn near_local(report: &Report, rtt: f64) -> Option<Aim> {
    let local = report.rounds("build", "local", rtt)?.seconds().median.max(1e-9);
    let ratio = |system: &str| Some(report.rounds("build", system, rtt)?.seconds().median / local);
    let anew = ratio("mount warm")?;
    let again = ratio("mount again");
    let stays = again.map_or_else(String::new, |again| format!("mount again: {again:.2} x, "));
    Some(Aim {
        what: "build, 2 clients, against a local disk",
        paper: "",
        wanted: "within 1.2 x",
        measured: format!("{stays}mount warm: {anew:.2} x at {rtt} ms"),
        met: again.unwrap_or(anew) <= 1.2,
    })
}

/// The latency of a miss and of a hit, each compared with direct.
fn random_reads(report: &Report, rtt: f64) -> Option<Aim> {
    let (direct, warm) = pair(report, "random-reads", rtt)?;
    let cold = report.rounds("random-reads", "proxy cold", rtt)?;
    let mean = |rounds: &Rounds<'_>| {
        rounds.median(|measurement| measurement.latencies.get("read").map_or(0.0, |read| read.mean)).median
    };
    let (miss, hit) = (mean(&cold) / mean(&direct).max(1e-9), mean(&direct) / mean(&warm).max(1e-9));
    Some(Aim {
        what: "random reads with no sharing, latency",
        paper: "1.3 against 7.8 ms (LAN)",
        wanted: "a miss at most 1.05 x, a hit 10 x better",
        measured: format!("a miss {miss:.2} x, a hit {hit:.1} x better at {rtt} ms"),
        met: miss <= 1.05 && hit >= 10.0,
    })
}

/// The result on the client itself (the mount); if that was not measured, the result behind the proxy.
fn on_the_client(report: &Report, rtt: f64) -> Option<Rounds<'_>> {
    ["mount warm", "proxy warm"].iter().find_map(|system| report.rounds("badros", system, rtt))
}

/// A big file read again, compared with no cache and with a local file.
fn again(report: &Report, rtt: f64) -> Option<Aim> {
    let seconds = |rounds: &Rounds<'_>| Some(rounds.phase("read a big file again")?.median.max(1e-9));
    let ours = on_the_client(report, rtt)?;
    let direct = seconds(&report.rounds("badros", "direct", rtt)?)?;
    let local = seconds(&report.rounds("badros", "local", rtt)?)?;
    let (system, time) = (ours.system, seconds(&ours)?);
    let (faster, of_local) = (direct / time, time / local);
    Some(Aim {
        what: "a big file read again (Badros)",
        paper: "14 x faster",
        wanted: "at the speed of the local disk (within 1.2 x)",
        measured: format!("{system}: {faster:.1} x faster, {of_local:.2} x the local time, at {rtt} ms"),
        met: of_local <= 1.2,
    })
}

/// Small writes, compared with clients that wait for each write, like those in the paper's comparison.
fn small_writes(report: &Report, rtt: f64) -> Option<Aim> {
    let seconds = |rounds: &Rounds<'_>| Some(rounds.phase("small writes x 4")?.median.max(1e-9));
    let ours = on_the_client(report, rtt)?;
    let waiting = seconds(&report.rounds("badros", "direct-sync", rtt)?)?;
    let faster = waiting / seconds(&ours)?;
    Some(Aim {
        what: "small writes x 4 (Badros)",
        paper: "almost 100 x faster",
        wanted: "100 x, against clients that wait for each write",
        measured: format!("{}: {faster:.1} x faster at {rtt} ms", ours.system),
        met: faster >= 100.0,
    })
}

fn create(report: &Report, rtt: f64) -> Option<Aim> {
    let direct = report.rounds("create", "direct", rtt)?;
    let through = report.rounds("create", "proxy cold", rtt)?;
    let slower = 100.0 * (through.seconds().median / direct.seconds().median.max(1e-9) - 1.0);
    Some(Aim {
        what: "create files through the proxy",
        paper: "7 to 40 % slower (LAN)",
        wanted: "at most 5 % slower",
        measured: format!("{slower:+.1} % at {rtt} ms"),
        met: slower <= 5.0,
    })
}
