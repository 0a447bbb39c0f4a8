//! The papers' tables and figures, with our results next to theirs.
//!
//! If a paper shows only a figure, this module uses the numbers of its text. Absolute times depend on the
//! machines of their day. Counts and ratios between systems can be compared.

mod delegations;

use super::{NOT_COUNTED, Report, Rounds, bytes};

/// A table or figure of a paper.
#[derive(Clone, Debug)]
pub(crate) struct Exhibit {
    pub(crate) title: String,
    /// Paper, section, number.
    pub(crate) source: &'static str,
    pub(crate) note: String,
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Row>,
    pub(crate) chart: Option<Chart>,
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// True for the paper's own numbers.
    pub(crate) paper: bool,
    pub(crate) cells: Vec<String>,
}

/// Bars of a figure.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) bars: Vec<Bar>,
}

#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// Lowest and highest round.
    pub(crate) range: Option<(f64, f64)>,
    pub(crate) paper: bool,
}

/// The exhibits whose workloads were measured.
pub(super) fn all(report: &Report) -> Vec<Exhibit> {
    let mut exhibits = Vec::new();
    for rtt in report.rtts() {
        exhibits.extend([
            andrew_calls(report, rtt),
            andrew_phases(report, rtt),
            badros(report, rtt),
            badros_calls(report, rtt),
            lookups(report, rtt),
            delegations::reopened(report, rtt, false),
            delegations::reopened(report, rtt, true),
            recall(report, rtt),
            delegations::recall_dirty(report, rtt),
            rounds(report, rtt),
            delegations::write_sharing(report, rtt),
            server_share(report, rtt, &WEBSERVER),
            server_share(report, rtt, &WEBSERVER_ZIPF),
            server_share(report, rtt, &OLTP),
            server_share(report, rtt, &VARMAIL),
            server_share(report, rtt, &BUILD),
            build_time(report, rtt),
            micro(report, rtt),
            reread(report, rtt),
        ]);
    }
    exhibits.push(andrew_delay(report));
    exhibits.into_iter().flatten().collect()
}

/// All systems that ran a workload at a distance.
fn of<'r>(report: &'r Report, workload: &str, rtt: f64) -> Vec<Rounds<'r>> {
    let wanted = |group: &Rounds<'_>| group.workload == workload && (group.rtt_ms - rtt).abs() < 1e-6;
    report.groups().into_iter().filter(wanted).collect()
}

fn row(paper: bool, label: &str, cells: impl IntoIterator<Item = String>) -> Row {
    Row { paper, cells: [label.to_owned()].into_iter().chain(cells).collect() }
}

fn head(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn titled(title: &str, rtt: f64) -> String {
    format!("{title}, {rtt} ms")
}

/// One bar per system, with the value of `measure`.
fn bars<'r>(groups: &[Rounds<'r>], measure: impl Fn(&Rounds<'r>) -> super::Median) -> Vec<Bar> {
    let bar = |group: &Rounds<'r>| {
        let median = measure(group);
        let range = (group.all.len() > 1).then_some((median.low, median.high));
        Bar { label: group.system.to_owned(), value: median.median, range, paper: false }
    };
    groups.iter().map(bar).collect()
}

fn paper_bar(label: &str, value: f64) -> Bar {
    Bar { label: label.to_owned(), value, range: None, paper: true }
}

/// Which counts of a kind to use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    /// Calls that were made for this kind of operation.
    Calls,
    /// All operations of this kind, including those in compounds made for another operation.
    Operations,
}

/// Counts by kind at the origin, one row per system. `+` between kinds adds them up.
fn counts(groups: &[Rounds<'_>], of: Of, kinds: &[&str]) -> Vec<Row> {
    let one = |group: &Rounds<'_>, kind: &str| match of {
        Of::Calls => group.median(|measurement| measurement.calls.of(kind) as f64).median,
        Of::Operations => group.operations(kind).median,
    };
    let count =
        |group: &Rounds<'_>, kinds: &str| kinds.split('+').fold(0.0, |sum, kind| sum + one(group, kind));
    let of = |group: &Rounds<'_>| {
        let cells = kinds.iter().map(|kinds| format!("{:.0}", count(group, kinds)));
        row(false, group.system, cells.chain([format!("{:.0}", group.calls().median)]))
    };
    groups.iter().filter(|group| group.is_counted()).map(of).collect()
}

/// Leaves out local systems and mounts of others: no relay counts their calls.
fn counted(groups: Vec<Rounds<'_>>) -> Vec<Rounds<'_>> {
    groups.into_iter().filter(Rounds::is_counted).collect()
}

fn calls(group: &Rounds<'_>) -> String {
    if group.is_counted() { format!("{:.0}", group.calls().median) } else { NOT_COUNTED.to_owned() }
}

fn andrew_calls(report: &Report, rtt: f64) -> Option<Exhibit> {
    let groups = counted(of(report, "andrew", rtt));
    groups.first()?;
    let kinds = ["GETATTR", "READ", "WRITE", "LOOKUP", "OPEN+CLOSE"];
    let papers = [
        ("BSD, NQNFS", [277, 139, 306, 575, 127, 1718]),
        ("BSD, NFS", [1210, 506, 451, 489, 0, 2894]),
        ("Spritely NFS", [259, 836, 192, 535, 1467, 3595]),
        ("Ultrix 4.3, NFS", [1225, 1186, 476, 810, 0, 4002]),
    ];
    let mut rows = counts(&groups, Of::Calls, &kinds);
    rows.extend(papers.map(|(name, numbers)| row(true, name, numbers.map(|number| number.to_string()))));
    let mut bars = bars(&groups, Rounds::calls);
    bars.extend(papers.map(|(name, numbers)| paper_bar(name, f64::from(numbers[5]))));
    Some(Exhibit {
        title: titled("RPC counts of the Andrew benchmark", rtt),
        source: "NQNFS, section 7.2, table 1",
        note: format!(
            "Ours at scale {}; the paper's GetLease, and the opens and closes of Spritely NFS, stand under OPEN and CLOSE.",
            report.plan.scale
        ),
        head: head(&["", "Getattr", "Read", "Write", "Lookup", "Open, Close", "Total"]),
        rows,
        chart: Some(Chart { title: "Calls at the server".to_owned(), unit: "", bars }),
    })
}

fn andrew_phases(report: &Report, rtt: f64) -> Option<Exhibit> {
    let groups = of(report, "andrew", rtt);
    groups.first()?;
    let phases = ["making directories", "copying files", "statting", "intensive reading", "cpu intensive"];
    let ours = groups.iter().map(|group| {
        let phase = |name: &&str| group.phase(name).unwrap_or_default().time();
        row(false, group.system, phases.iter().map(phase).chain([group.seconds().time()]))
    });
    let mut rows: Vec<Row> = ours.collect();
    let papers = [
        ("no caching", [6, 35, 41, 40, 258, 380]),
        ("NFS", [5, 24, 15, 20, 133, 197]),
        ("leases", [5, 19, 21, 21, 99, 165]),
    ];
    rows.extend(papers.map(|(name, numbers)| row(true, name, numbers.map(|number| format!("{number} s")))));
    Some(Exhibit {
        title: titled("Phases of the Andrew benchmark", rtt),
        source: "NQNFS, section 7.2, table 2",
        note: "The paper's on a DECstation 5000/25 in one building. Without a mount, phase 5 makes the compiler's file operations and does not compile.".to_owned(),
        head: head(&["", "1 directories", "2 copy", "3 stat", "4 read", "5 compile", "total"]),
        rows,
        chart: Some(Chart { title: "Time in all".to_owned(), unit: "s", bars: bars(&groups, Rounds::seconds) }),
    })
}

fn andrew_delay(report: &Report) -> Option<Exhibit> {
    let rtts: Vec<f64> =
        report.rtts().into_iter().filter(|rtt| !of(report, "andrew", *rtt).is_empty()).collect();
    if rtts.len() < 2 {
        return None;
    }
    let mut systems: Vec<&str> = Vec::new();
    for group in report.groups().iter().filter(|group| group.workload == "andrew") {
        if !systems.contains(&group.system) {
            systems.push(group.system);
        }
    }
    let compile =
        |system: &str, rtt: f64| Some(report.rounds("andrew", system, rtt)?.phase("cpu intensive")?.time());
    let mut rows: Vec<Row> = systems
        .iter()
        .map(|system| {
            row(
                false,
                system,
                rtts.iter().map(|rtt| format!("{rtt} ms: {}", compile(system, *rtt).unwrap_or_default())),
            )
        })
        .collect();
    let papers = [
        ("NFS, UDP", [139, 175, 207, 276, 304, 372]),
        ("NFS, TCP", [139, 208, 213, 273, 328, 506]),
        ("leases, UDP", [112, 150, 180, 221, 275, 338]),
        ("leases, TCP", [108, 139, 210, 238, 274, 379]),
    ];
    let delays = [5, 40, 80, 120, 160, 200];
    rows.extend(papers.map(|(name, numbers)| {
        let cells = delays.iter().zip(numbers).map(|(delay, number)| format!("{delay} ms: {number} s"));
        row(true, name, cells)
    }));
    let columns = rtts.len().max(delays.len());
    rows.iter_mut().for_each(|row| row.cells.resize(columns + 1, String::new()));
    let mut words = vec![""];
    words.resize(columns + 1, "delay");
    Some(Exhibit {
        title: "The compile phase over delay".to_owned(),
        source: "NQNFS, section 7.4, table 4, figure 6",
        note: String::new(),
        head: head(&words),
        rows,
        chart: None,
    })
}

fn badros(report: &Report, rtt: f64) -> Option<Exhibit> {
    let groups = of(report, "badros", rtt);
    let tests: Vec<&str> = groups.first()?.all[0].phases.iter().map(|phase| phase.name.as_str()).collect();
    let time = |group: &Rounds<'_>, test: &str| group.phase(test).unwrap_or_default();
    let claim = |test: &str| match test {
        "read a big file again" => "14 x faster",
        "small writes x 4" => "almost 100 x faster",
        "copying files x 4" => "3 % slower",
        "random reads" => "8 % slower",
        "cpu intensive x 4" => "more than 10 % faster",
        _ => "",
    };
    let rows = tests.iter().map(|test| {
        let cells = groups.iter().map(|group| time(group, test).time()).chain([claim(test).to_owned()]);
        row(false, test, cells)
    });
    let mut words: Vec<&str> = vec![""];
    words.extend(groups.iter().map(|group| group.system));
    words.push("paper: enhanced against standard client");
    let direct = groups.iter().find(|group| group.system == "direct");
    let again = "read a big file again";
    let mut bars: Vec<Bar> = groups
        .iter()
        .filter_map(|group| {
            let ratio = time(direct?, again).median / time(group, again).median.max(1e-9);
            Some(Bar { label: group.system.to_owned(), value: ratio, range: None, paper: false })
        })
        .collect();
    bars.push(paper_bar("Badros", 14.0));
    Some(Exhibit {
        title: titled("Thirteen tests, alone and four at once", rtt),
        source: "Badros, section 5, table 1, figures 4 and 5",
        note: "The paper's bars are pictures: its text gives these ratios. Our clients delay writes, as Linux has done since, but for direct-sync, which waits for each as those of Linux 2.0 did.".to_owned(),
        head: head(&words),
        rows: rows.collect(),
        chart: Some(Chart { title: "Reading a big file again: times faster than direct".to_owned(), unit: "x", bars }),
    })
}

fn badros_calls(report: &Report, rtt: f64) -> Option<Exhibit> {
    let groups = counted(of(report, "badros", rtt));
    let tests: Vec<&str> = groups.first()?.all[0].phases.iter().map(|phase| phase.name.as_str()).collect();
    let rows = tests.iter().map(|test| {
        let calls = |group: &Rounds<'_>| {
            group.phase_calls(test).map_or(NOT_COUNTED.to_owned(), |calls| format!("{:.0}", calls.median))
        };
        row(false, test, groups.iter().map(calls))
    });
    let words: Vec<&str> = [""].into_iter().chain(groups.iter().map(|group| group.system)).collect();
    Some(Exhibit {
        title: titled("Calls of the thirteen tests, alone and four at once", rtt),
        source: "Badros, section 5, figures 6 and 7",
        note: "At the server while the test ran; what was sent late counts to the next one. The paper's bars are pictures: its enhanced client never sends more than the standard one, and nothing to read again what is cached.".to_owned(),
        head: head(&words),
        rows: rows.collect(),
        chart: Some(Chart { title: "All calls".to_owned(), unit: "", bars: bars(&groups, Rounds::calls) }),
    })
}

fn lookups(report: &Report, rtt: f64) -> Option<Exhibit> {
    let groups = counted(of(report, "lookups", rtt));
    groups.first()?;
    let kinds = ["LOOKUP", "GETATTR", "WRITE", "READ", "CREATE+OPEN", "READDIR+READDIRPLUS"];
    let mut rows = counts(&groups, Of::Calls, &kinds);
    let papers = [
        ("Linux 2.4.1", [54_405, 284, 7_913, 3_361, 770, 409, 108_810]),
        ("Linux 2.4.1, modified", [11_176, 384, 7_914, 3_364, 770, 410, 62_718]),
    ];
    rows.extend(papers.map(|(name, numbers)| row(true, name, numbers.map(|number| number.to_string()))));
    Some(Exhibit {
        title: titled("LOOKUPs of a build", rtt),
        source: "Lever, Simple Benchmark",
        note: format!(
            "The paper's build is the Linux kernel's; ours is a generated tree at scale {}.",
            report.plan.scale
        ),
        head: head(&["", "Lookup", "Getattr", "Write", "Read", "Create (v4: Open)", "Readdir", "Total"]),
        rows,
        chart: Some(Chart {
            title: "LOOKUPs at the server".to_owned(),
            unit: "",
            bars: bars(&groups, |group| group.median(|measurement| measurement.calls.of("LOOKUP") as f64)),
        }),
    })
}

fn recall(report: &Report, rtt: f64) -> Option<Exhibit> {
    let groups = of(report, "recall", rtt);
    groups.first()?;
    let kinds = ["no delegation", "read delegation", "write delegation"];
    let time = |group: &Rounds<'_>, kind: &str| group.phase(kind).unwrap_or_default();
    let mut rows: Vec<Row> = groups
        .iter()
        .map(|group| row(false, group.system, kinds.iter().map(|kind| time(group, kind).time())))
        .collect();
    rows.push(row(true, "LAN", ["1.5-9 ms", "1007 ms", "1010 ms"].map(str::to_owned)));
    rows.push(row(true, "WAN", ["150-500 ms", "1400 ms", "1600 ms"].map(str::to_owned)));
    Some(Exhibit {
        title: titled("A conflicting OPEN", rtt),
        source: "Nache, section 3.2, table 1",
        note: "The paper's clients sleep a second on NFS4ERR_DELAY.".to_owned(),
        head: head(&["", "no delegation", "read delegation", "write delegation"]),
        rows,
        chart: Some(Chart {
            title: "OPEN against a write delegation".to_owned(),
            unit: "s",
            bars: bars(&groups, |group| time(group, "write delegation")),
        }),
    })
}

fn rounds(report: &Report, rtt: f64) -> Option<Exhibit> {
    let kinds = ["OPEN", "CLOSE", "ACCESS", "GETATTR", "LOCK", "LOCKU", "READ"];
    let mut rows = Vec::new();
    for (workload, state) in [("rounds", "on"), ("rounds-undelegated", "off")] {
        for mut each in counts(&counted(of(report, workload, rtt)), Of::Operations, &kinds) {
            each.cells[0] = format!("{}, delegations {state}", each.cells[0]);
            rows.push(each);
        }
    }
    rows.first()?;
    let papers = [
        ("delegations on", [101, 101, 101, 1, 101, 1, 100]),
        ("delegations off", [800, 800, 1, 700, 800, 800, 100]),
    ];
    rows.extend(papers.map(|(name, numbers)| {
        row(true, name, numbers.map(|number| number.to_string()).into_iter().chain([String::new()]))
    }));
    Some(Exhibit {
        title: titled("100 files opened, locked, read, unlocked and closed, eight times", rtt),
        source: "Nache, section 6.1, table 2",
        note: format!(
            "Operations, of which a compound has several; the total is compounds. Scale {}: {} files. GETATTR and ACCESS ride in other compounds.",
            report.plan.scale,
            report.plan.count(100, 10)
        ),
        head: head(&["", "OPEN", "CLOSE", "ACCESS", "GETATTR", "LOCK", "LOCKU", "READ", "calls"]),
        rows,
        chart: None,
    })
}

/// A figure that shows the share of the operations that reaches the server.
struct Share {
    workload: &'static str,
    title: &'static str,
    source: &'static str,
    /// The share that reaches the server according to the paper, in percent of the operations without a
    /// proxy.
    paper: f64,
    says: &'static str,
}

const WEBSERVER: Share = Share {
    workload: "webserver",
    title: "Filebench web server, files chosen uniformly",
    source: "Nache, section 6.3.1, figure 13",
    paper: 62.0,
    says: "38 % fewer with four clients",
};
const WEBSERVER_ZIPF: Share = Share {
    workload: "webserver-zipf",
    title: "Filebench web server, files chosen by Zipf's law",
    ..WEBSERVER
};
const OLTP: Share = Share {
    workload: "oltp",
    title: "Filebench OLTP",
    source: "Nache, section 6.3.1, figure 14",
    paper: 87.5,
    says: "12.5 % fewer with two clients",
};
const VARMAIL: Share = Share {
    workload: "varmail",
    title: "Filebench varmail",
    source: "Nache, section 6.1, figures 9 and 10",
    paper: 100.0 / 1.2,
    says: "16 to 1.2 times fewer with delegations, over all workloads of the figure",
};
const BUILD: Share = Share {
    workload: "build",
    title: "Software build, two clients",
    source: "Nache, section 6.3.2, figures 15 to 17",
    paper: 50.0,
    says: "more than 50 % fewer with two clients",
};

fn server_share(report: &Report, rtt: f64, share: &Share) -> Option<Exhibit> {
    let groups = counted(of(report, share.workload, rtt));
    let direct = groups.iter().find(|group| group.system == "direct")?.calls().median.max(1e-9);
    let of_direct = |group: &Rounds<'_>| {
        group.median(|measurement| 100.0 * measurement.calls.total_of_work() as f64 / direct)
    };
    let rows = groups.iter().map(|group| {
        let operations = group.middle().operations.max(1) as f64;
        let calls = group.calls().median;
        let cells = [
            format!("{operations:.0}"),
            format!("{calls:.0}"),
            format!("{:.3}", calls / operations),
            format!("{:.1} %", of_direct(group).median),
            group.seconds().time(),
        ];
        row(false, group.system, cells)
    });
    let mut rows: Vec<Row> = rows.collect();
    let paper = ["", "", "", &format!("{:.1} %", share.paper), ""].map(str::to_owned);
    rows.push(row(true, "with Nache", paper));
    let mut bars = bars(&groups, of_direct);
    bars.push(paper_bar("Nache", share.paper));
    Some(Exhibit {
        title: titled(share.title, rtt),
        source: share.source,
        note: format!("The paper: {}.", share.says),
        head: head(&[
            "",
            "operations of the clients",
            "calls at the server",
            "for each operation",
            "of direct",
            "time",
        ]),
        rows,
        chart: Some(Chart {
            title: "Calls at the server, of those without anything between".to_owned(),
            unit: "%",
            bars,
        }),
    })
}

fn build_time(report: &Report, rtt: f64) -> Option<Exhibit> {
    let groups = of(report, "build", rtt);
    let direct = groups.iter().find(|group| group.system == "direct")?.seconds().median;
    let faster = |group: &Rounds<'_>| group.median(|measurement| direct / measurement.seconds.max(1e-9));
    let mut rows: Vec<Row> = groups
        .iter()
        .map(|group| {
            row(false, group.system, [group.seconds().time(), format!("{:.2} x", faster(group).median)])
        })
        .collect();
    rows.push(row(true, "Linux kernel, direct", ["533 min".to_owned(), "1 x".to_owned()]));
    rows.push(row(true, "Linux kernel, Nache, two clients", [String::new(), "3.5 x".to_owned()]));
    rows.push(row(true, "GDB, direct", ["15.8 min".to_owned(), "1 x".to_owned()]));
    rows.push(row(true, "Emacs, direct", ["5.6 min".to_owned(), "1 x".to_owned()]));
    let mut bars = bars(&groups, faster);
    bars.push(paper_bar("Nache", 3.5));
    Some(Exhibit {
        title: titled("Time of a build by two clients", rtt),
        source: "Nache, section 6.3.2, figure 18",
        note: "The paper's distance is 75 ms.".to_owned(),
        head: head(&["", "time", "against direct"]),
        rows,
        chart: Some(Chart { title: "Times faster than direct".to_owned(), unit: "x", bars }),
    })
}

fn micro(report: &Report, rtt: f64) -> Option<Exhibit> {
    // Operations/s and latency in ms, each with Nache and without.
    let lan = [
        [37.0, 40.0, 1283.0, 1172.0],
        [99.0, 127.0, 1.3, 7.8],
        [27.0, 32.0, 37.6, 31.3],
        [9.0, 11.9, 220.0, 146.0],
    ];
    let wan = [
        [9.0, 16.0, 5217.0, 3009.0],
        [77.0, 48.0, 12.9, 20.7],
        [8.6, 10.0, 116.3, 98.0],
        [2.2, 2.4, 883.4, 821.0],
    ];
    let workloads = ["create", "random-reads", "random-writes", "random-appends"];
    let mut rows = Vec::new();
    for (number, workload) in workloads.into_iter().enumerate() {
        let groups = of(report, workload, rtt);
        let Some(first) = groups.first() else { continue };
        let name = first.all[0].phases.first().map_or(workload, |phase| phase.name.as_str());
        for group in &groups {
            let middle = group.middle();
            let rate = middle.operations as f64 / middle.seconds.max(1e-9);
            let mean = 1e3 * middle.seconds / middle.operations.max(1) as f64;
            let cells = [format!("{rate:.0}"), format!("{mean:.2}"), calls(group)];
            rows.push(row(false, &format!("{name}, {}", group.system), cells));
        }
        for (place, [nache, without, nache_ms, without_ms]) in [("LAN", lan[number]), ("WAN", wan[number])] {
            let cells = |rate: f64, latency: f64| [rate.to_string(), latency.to_string(), String::new()];
            rows.push(row(true, &format!("{name}, Nache, {place}"), cells(nache, nache_ms)));
            rows.push(row(true, &format!("{name}, NFSv4, {place}"), cells(without, without_ms)));
        }
    }
    rows.first()?;
    let reads = of(report, "random-reads", rtt);
    let mean = |group: &Rounds<'_>| {
        group.median(|measurement| measurement.latencies.get("read").map_or(0.0, |latencies| latencies.mean))
    };
    Some(Exhibit {
        title: titled("Micro-benchmarks", rtt),
        source: "Nache, section 6.4, table 3",
        note: "Operations are system calls of the workload, as filebench counts them; the paper's latency of a create is of many calls.".to_owned(),
        head: head(&["", "operations/s", "mean latency, ms", "calls at the server"]),
        rows,
        chart: Some(Chart { title: "Mean latency of a random read".to_owned(), unit: "ms", bars: bars(&reads, mean) }),
    })
}

fn reread(report: &Report, rtt: f64) -> Option<Exhibit> {
    let groups = of(report, "reread", rtt);
    groups.first()?;
    let rows = groups.iter().map(|group| {
        let middle = group.middle();
        let cells = [
            group.seconds().time(),
            calls(group),
            if group.is_counted() { bytes(middle.bytes_down as f64) } else { NOT_COUNTED.to_owned() },
        ];
        row(false, group.system, cells)
    });
    Some(Exhibit {
        title: titled("A re-read after a restart", rtt),
        source: "Badros, section 3",
        note: "The warm pass is the one after the restart.".to_owned(),
        head: head(&["", "time", "calls at the server", "bytes from it"]),
        rows: rows.collect(),
        chart: Some(Chart { title: "Time".to_owned(), unit: "s", bars: bars(&groups, Rounds::seconds) }),
    })
}
