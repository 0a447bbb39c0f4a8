//! Tests of reports with invented measurements.

mod browser;

use super::*;

fn measurement(
    workload: &str,
    system: &str,
    round: usize,
    seconds: f64,
    calls: &[(&str, u64)],
) -> Measurement {
    let calls: BTreeMap<String, u64> =
        calls.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
    let phase = |name: &str| Phase { name: name.to_owned(), seconds, operations: 10, calls: Some(7) };
    Measurement {
        workload: workload.to_owned(),
        system: system.to_owned(),
        round,
        rtt_ms: 75.0,
        clients: 2,
        seconds,
        phases: ["build", "write delegation", "read a big file again", "small writes x 4"]
            .map(phase)
            .to_vec(),
        operations: 100,
        latencies: BTreeMap::from([(
            "read".to_owned(),
            Latencies { count: 9, mean: seconds, ..Latencies::default() },
        )]),
        calls: Calls { operations: calls.clone(), calls },
        bytes_up: 1000,
        bytes_down: 2_000_000,
        usage: vec![Usage { name: "proxy".to_owned(), cpu_seconds: 0.5, memory_bytes: 1 << 24 }],
        client_cpu_seconds: 0.1,
        hits: Some(Hits { attributes: (9, 1), names: (1, 0), data: (0, 0) }),
    }
}

fn report() -> Report {
    let mut report = Report {
        date: date(UNIX_EPOCH),
        machine: Machine { processors: 2, memory_bytes: 4 << 30, kernel: "Linux <6>".to_owned() },
        command: "leasehold bench".to_owned(),
        plan: Plan { seed: 1, scale: 0.5 },
        vers: "4.2".to_owned(),
        network: Network::default(),
        rounds: 3,
        left_out: vec![LeftOut { what: "mount".to_owned(), why: "no <kernel>".to_owned() }],
        measurements: Vec::new(),
    };
    for workload in crate::workload::ALL {
        for (round, seconds) in [3.0, 1.0, 2.0].into_iter().enumerate() {
            let direct = [("GETATTR", 900), ("READ", 100), ("SEQUENCE", 77)];
            report.measurements.push(measurement(workload.name, "direct", round, 10.0 * seconds, &direct));
            report.measurements.push(measurement(
                workload.name,
                "proxy cold",
                round,
                10.0 * seconds,
                &direct,
            ));
            report.measurements.push(measurement(
                workload.name,
                "proxy warm",
                round,
                seconds,
                &[("GETATTR", 30)],
            ));
            report.measurements.push(measurement(workload.name, "local", round, seconds, &[]));
            if workload.name == "build" {
                for (system, times) in [("mount warm", 3.0), ("mount again", 1.1)] {
                    report.measurements.push(measurement(workload.name, system, round, times * seconds, &[]));
                }
            }
            if workload.synchronous {
                let waiting = measurement(workload.name, "direct-sync", round, 90.0 * seconds, &direct);
                report.measurements.push(waiting);
            }
        }
    }
    report
}

#[test]
fn medians_are_of_all_rounds_and_upkeep_is_no_work() {
    let report = report();
    let direct = report.rounds("build", "direct", 75.0).unwrap();
    assert_eq!(direct.seconds(), Median { median: 20.0, low: 10.0, high: 30.0 });
    assert!((direct.seconds().spread() - 1.0).abs() < 1e-9);
    assert!((direct.calls().median - 1000.0).abs() < 1e-9);
    assert_eq!(direct.middle().round, 2);
    assert_eq!(Median::of([]), Median::default());
}

#[test]
fn dates_are_civil() {
    let at = |seconds| date(UNIX_EPOCH + std::time::Duration::from_secs(seconds));
    assert_eq!(at(0), "1970-01-01 00:00 UTC");
    assert_eq!(at(951_782_399), "2000-02-28 23:59 UTC");
    assert_eq!(at(951_782_400), "2000-02-29 00:00 UTC");
    assert_eq!(at(1_795_287_900), "2026-11-21 19:05 UTC");
}

#[test]
fn aims_are_held_against_what_was_measured() {
    let aims = aims::all(&report());
    let verdict = |what: &str| {
        let aim = aims.iter().find(|aim| aim.what.starts_with(what)).unwrap();
        (aim.measured.as_str(), aim.met)
    };
    assert_eq!(verdict("build, 2 clients, calls"), ("-97.0 % at 75 ms", true));
    assert_eq!(verdict("build, 2 clients, time"), ("10.0 x faster at 75 ms", true));
    assert_eq!(
        verdict("build, 2 clients, against"),
        ("mount again: 1.10 x, mount warm: 3.00 x at 75 ms", true)
    );
    assert_eq!(verdict("webserver"), ("-97.0 % at 75 ms", false));
    let again = "proxy warm: 10.0 x faster, 1.00 x the local time, at 75 ms";
    assert_eq!(verdict("a big file read again"), (again, true));
    assert_eq!(verdict("small writes"), ("proxy warm: 90.0 x faster at 75 ms", false));
    assert!(aims.iter().all(|aim| !aim.what.starts_with("create")), "75 ms are no LAN");
}

#[test]
fn each_aim_is_held_at_the_distances_of_its_own_workload() {
    let mut report = report();
    for each in &mut report.measurements {
        match each.workload.as_str() {
            "create" | "random-reads" => each.rtt_ms = 0.2,
            "andrew" => each.rtt_ms = 200.0,
            _ => {}
        }
    }
    let aims = aims::all(&report);
    let verdict = |what: &str| {
        let aim = aims.iter().find(|aim| aim.what.starts_with(what)).unwrap();
        (aim.measured.as_str(), aim.met)
    };
    assert_eq!(verdict("build, 2 clients, calls"), ("-97.0 % at 75 ms", true));
    assert_eq!(verdict("create"), ("+0.0 % at 0.2 ms", true));
    assert_eq!(verdict("random reads"), ("a miss 1.00 x, a hit 10.0 x better at 0.2 ms", true));
}

#[test]
fn what_nobody_counted_is_not_told_as_nothing() {
    let mut report = report();
    report.measurements.retain(|each| each.system == "proxy cold");
    report.measurements.iter_mut().for_each(|each| each.system = "dir cold".to_owned());
    let exhibits = exhibits::all(&report);
    let titles: Vec<&str> = exhibits.iter().map(|exhibit| exhibit.title.as_str()).collect();
    assert!(!titles.iter().any(|title| title.starts_with("RPC counts")), "{titles:?}");
    let micro = exhibits.iter().find(|exhibit| exhibit.title.starts_with("Micro")).unwrap();
    assert!(micro.rows.iter().filter(|row| !row.paper).all(|row| row.cells[3] == "-"));
    let table = report.table();
    assert!(!table.contains("0.00x") && table.contains(" - "), "{table}");
}

#[test]
fn a_phase_that_nobody_counted_is_not_told_as_nothing() {
    let mut report = report();
    let of_kernel = |each: &mut Measurement| {
        each.system = "kernel".to_owned();
        each.phases.iter_mut().for_each(|phase| phase.calls = None);
    };
    let mut kernel: Vec<Measurement> =
        report.measurements.iter().filter(|each| each.system == "direct").cloned().collect();
    kernel.iter_mut().for_each(of_kernel);
    report.measurements.extend(kernel);
    let exhibits = exhibits::all(&report);
    let calls = exhibits.iter().find(|exhibit| exhibit.title.starts_with("Calls of the thirteen")).unwrap();
    let column = |system: &str| calls.head.iter().position(|word| word == system).unwrap();
    let (direct, kernel) = (column("direct"), column("kernel"));
    assert!(calls.rows.iter().all(|row| row.cells[direct] == "7" && row.cells[kernel] == "-"));
}

#[test]
fn a_time_is_told_with_its_spread_where_there_is_one() {
    assert_eq!(Median::of([1.0, 1.04, 1.02]).time(), "1.0 s");
    assert_eq!(Median::of([2.0, 1.0, 4.0]).time(), "2.0 s (1.0 s to 4.0 s)");
    let mut once = report();
    once.measurements.retain(|each| each.round == 0);
    let row = once.table().lines().find(|line| line.starts_with("direct ")).unwrap().to_owned();
    assert_eq!(row.split_whitespace().nth(3), Some("-"), "one round has no spread: {row}");
}

#[test]
fn every_workload_is_in_an_exhibit_with_the_papers_numbers() {
    let exhibits = exhibits::all(&report());
    for number in
        ["1718", "54405", "1007 ms", "800", "62.0 %", "87.5 %", "533 min", "1283", "14 x faster", "109"]
    {
        let shown = exhibits
            .iter()
            .any(|exhibit| exhibit.rows.iter().flat_map(|row| &row.cells).any(|cell| cell.contains(number)));
        assert!(shown, "{number}");
    }
    for exhibit in &exhibits {
        assert!(exhibit.rows.iter().all(|row| row.cells.len() == exhibit.head.len()), "{}", exhibit.title);
    }
}

#[test]
fn the_page_stands_alone_and_is_well_formed() {
    let page = report().html();
    assert!(page.contains("no &lt;kernel&gt;") && page.contains("prefers-color-scheme: dark"));
    assert!(!page.contains("<script") && !page.contains("http"), "nothing comes from elsewhere");
    for element in
        ["table", "tr", "td", "th", "section", "figure", "figcaption", "svg", "text", "div", "p", "ul", "li"]
    {
        let opened =
            page.matches(&format!("<{element} ")).count() + page.matches(&format!("<{element}>")).count();
        assert_eq!(opened, page.matches(&format!("</{element}>")).count(), "{element}");
    }
    assert!(page.matches("<svg").count() >= 10);
}

#[test]
fn json_comes_back_as_it_went() {
    let report = report();
    assert_eq!(serde_json::from_str::<Report>(&report.json()).unwrap(), report);
    assert!(report.table().contains("proxy warm") && report.markdown().contains("| *paper: with Nache* |"));
}

#[test]
fn what_was_measured_elsewhere_is_joined_if_it_is_of_the_same_plan() {
    let (mut here, mut lab) = (report(), report());
    lab.measurements.retain(|measurement| measurement.system == "direct");
    lab.measurements.iter_mut().for_each(|measurement| measurement.system = "kernel".to_owned());
    here.join(lab).unwrap();
    assert!(here.rounds("build", "kernel", 75.0).is_some() && here.rounds("build", "direct", 75.0).is_some());
    assert!(here.markdown().contains("| kernel |") && here.command.lines().count() == 2);
    let other = Report { plan: Plan { seed: 1, scale: 0.25 }, ..report() };
    assert!(here.join(other).unwrap_err().contains("scale 0.25"));
    let network = Network { bytes_per_second: Some(1_250_000), ..Network::default() };
    let elsewhere = Report { network, measurements: Vec::new(), ..report() };
    assert!(here.join(elsewhere).unwrap_err().contains("10 Mbit/s"));
    assert!(here.join(report()).unwrap_err().ends_with("is there already"));
    let later = Report { date: "2027".to_owned(), measurements: Vec::new(), ..report() };
    here.join(later).unwrap();
    assert!(here.command.ends_with("# 2027 on Linux <6>"), "{}", here.command);
}
