//! The measurements of delegations by Nache's authors: figures 1 to 3, 11 and 12. The curves have no numbers;
//! the paper's text gives a few.

use super::{Bar, Chart, Exhibit, bars, counted, head, of, row, titled};
use crate::report::{Median, NOT_COUNTED, Report, Rounds};
use crate::workload::{recall, reopen, sharing};

/// Calls after a number of opens of one file.
pub(super) fn reopened(report: &Report, rtt: f64, writes: bool) -> Option<Exhibit> {
    let read = (
        "reopen",
        "One file opened, read and closed again and again",
        "Nache, section 3.1, figure 1",
        "half as many packets with delegations",
    );
    let written = (
        "rewrite",
        "One file opened, written, read and closed again and again",
        "Nache, section 3.2, figure 2",
        "a fifth of the packets with delegations, the writes going to the server all the same",
    );
    let (name, title, source, says) = if writes { written } else { read };
    let undelegated = format!("{name}-undelegated");
    let mut rows = Vec::new();
    let mut drawn: Vec<Bar> = Vec::new();
    for (workload, state) in [(name, "on"), (undelegated.as_str(), "off")] {
        for group in counted(of(report, workload, rtt)) {
            let label = format!("{}, delegations {state}", group.system);
            let calls = reopen::TIMES.map(|times| after(&group, times));
            let told =
                |calls: Option<f64>| calls.map_or(NOT_COUNTED.to_owned(), |calls| format!("{calls:.0}"));
            rows.push(row(false, &label, calls.map(told)));
            if let Some(value) = calls.last().copied().flatten() {
                drawn.push(Bar { label, value, range: None, paper: false });
            }
        }
    }
    rows.first()?;
    let words: Vec<String> = reopen::TIMES.iter().map(|times| format!("{times} x")).collect();
    Some(Exhibit {
        title: titled(title, rtt),
        source,
        note: format!(
            "Calls at the server after so many times; what is sent after the last close is not in it. The paper: {says}."
        ),
        head: [String::new()].into_iter().chain(words).collect(),
        rows,
        chart: Some(Chart { title: "Calls after 64 times".to_owned(), unit: "", bars: drawn }),
    })
}

/// Calls of all phases up to the one that ends after `times` opens.
fn after(group: &Rounds<'_>, times: u64) -> Option<f64> {
    let phases = reopen::TIMES.into_iter().filter(|each| *each <= times).map(reopen::phase);
    phases.map(|phase| group.phase_calls(&phase).map(|calls| calls.median)).sum()
}

/// The recall of a delegation after writes.
pub(super) fn recall_dirty(report: &Report, rtt: f64) -> Option<Exhibit> {
    let groups = of(report, "recall-dirty", rtt);
    groups.first()?;
    let time = |group: &Rounds<'_>, kib: usize| group.phase(&recall::dirty_phase(kib)).unwrap_or_default();
    let rows = groups
        .iter()
        .map(|group| row(false, group.system, recall::DIRTY_KIB.map(|kib| time(group, kib).time())));
    let words: Vec<String> = recall::DIRTY_KIB.iter().map(|kib| format!("{kib} KiB")).collect();
    let most = recall::DIRTY_KIB[recall::DIRTY_KIB.len() - 1];
    Some(Exhibit {
        title: titled("A conflicting OPEN of what has just been written", rtt),
        source: "Nache, section 3.2, figure 3",
        note: "Only `mount` has anything left to send when the file has been closed. The paper: about a second up to 1 MB, and \
               more with more data."
            .to_owned(),
        head: [String::new()].into_iter().chain(words).collect(),
        rows: rows.collect(),
        chart: Some(Chart {
            title: "OPEN after 8 MiB were written".to_owned(),
            unit: "s",
            bars: bars(&groups, |group| time(group, most)),
        }),
    })
}

/// Two clients that share files.
pub(super) fn write_sharing(report: &Report, rtt: f64) -> Option<Exhibit> {
    let rate = |group: &Rounds<'_>, phase: &str| {
        group.median(|measurement| {
            let found = measurement.phases.iter().find(|each| each.name == phase);
            found.map_or(0.0, |phase| phase.operations as f64 / phase.seconds.max(1e-9))
        })
    };
    let open_and_close = |group: &Rounds<'_>| {
        ["open", "create", "close"].map(|kind| {
            group.median(|measurement| measurement.latencies.get(kind).map_or(0.0, |it| it.mean)).median
        })
    };
    let columns = [(0, false), (1, false), (0, true), (1, true)];
    let mut rows = Vec::new();
    let mut drawn = Vec::new();
    for (workload, state) in [("sharing", "on"), ("sharing-undelegated", "off")] {
        for group in of(report, workload, rtt) {
            let label = format!("{}, delegations {state}", group.system);
            let rates = columns.map(|(client, synced)| rate(&group, &sharing::phase(client, synced)).median);
            let [open, create, close] = open_and_close(&group);
            let mut cells = rates.map(|rate| format!("{rate:.1}")).to_vec();
            cells.extend([format!("{:.1}", open.max(create)), format!("{close:.1}")]);
            let slower = Median::of([rates[0], rates[1]]).low;
            drawn.push(Bar { label: label.clone(), value: slower, range: None, paper: false });
            rows.push(row(false, &label, cells));
        }
    }
    rows.first()?;
    let papers =
        [("delegations on", ["109", "54", "75", "75"]), ("delegations off", ["alike", "alike", "", ""])];
    rows.extend(
        papers.map(|(name, rates)| row(true, name, rates.into_iter().chain(["", ""]).map(str::to_owned))),
    );
    Some(Exhibit {
        title: titled("Two clients that append to the same files", rtt),
        source: "Nache, section 6.2, figures 11 and 12",
        note: "Files appended to in a second, by each client, without and with a sync before the close; mean latencies in ms \
               of both."
            .to_owned(),
        head: head(&["", "client 1", "client 2", "client 1, synced", "client 2, synced", "open, ms", "close, ms"]),
        rows,
        chart: Some(Chart { title: "Files a second, the slower client".to_owned(), unit: "", bars: drawn }),
    })
}
