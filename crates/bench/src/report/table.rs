//! The report as a table for a terminal.

use std::fmt::Write;

use super::{Measurement, NOT_COUNTED, Report, Rounds, Usage, bytes, seconds};

/// How many kinds of calls are named.
const KINDS: usize = 5;

pub(super) fn render(report: &Report) -> String {
    let mut text = format!(
        "{}, {} processors, {}; NFSv{}, scale {}, seed {}, median of {}\n",
        report.date,
        report.machine.processors,
        report.machine.kernel,
        report.vers,
        report.plan.scale,
        report.plan.seed,
        report.rounds
    );
    let mut last = None;
    for group in report.groups() {
        if last != Some((group.workload, group.rtt_ms)) {
            let _ = writeln!(
                text,
                "\n{}, {} ms\n{:<20} {:>9} {:>7} {:>8} {:>8} {:>8} {:>9} {:>9}  by kind",
                group.workload,
                group.rtt_ms,
                "",
                "time",
                "spread",
                "speedup",
                "calls",
                "of them",
                "up",
                "down",
            );
            last = Some((group.workload, group.rtt_ms));
        }
        let direct = report.rounds(group.workload, "direct", group.rtt_ms);
        row(&mut text, &group, direct.as_ref());
    }
    if !report.left_out.is_empty() {
        text.push_str("\nleft out\n");
        report.left_out.iter().for_each(|left| {
            let _ = writeln!(text, "  {}: {}", left.what, left.why);
        });
    }
    text
}

fn row(text: &mut String, group: &Rounds<'_>, direct: Option<&Rounds<'_>>) {
    let (time, calls) = (group.seconds(), group.calls());
    let speedup = direct.map(|direct| format!("{:.2}x", direct.seconds().median / time.median.max(1e-9)));
    let share =
        direct.map(|direct| format!("{:.0}%", 100.0 * calls.median / direct.calls().median.max(1e-9)));
    let spread = (group.all.len() > 1).then(|| format!("{:.0}%", 100.0 * time.spread()));
    let or_none = |cell: Option<String>| cell.unwrap_or_else(|| NOT_COUNTED.to_owned());
    let if_counted = |cell: Option<String>| or_none(cell.filter(|_| group.is_counted()));
    let middle = group.middle();
    let mut kinds: Vec<(&String, &u64)> = middle.calls.calls.iter().collect();
    kinds.sort_by(|one, other| other.1.cmp(one.1));
    let more = if kinds.len() > KINDS { ", …" } else { "" };
    let kinds: Vec<String> =
        kinds.iter().take(KINDS).map(|(name, count)| format!("{name} {count}")).collect();
    let _ = writeln!(
        text,
        "{:<20} {:>9} {:>7} {:>8} {:>8} {:>8} {:>9} {:>9}  {}{more}{}{}",
        group.system,
        seconds(time.median),
        or_none(spread),
        or_none(speedup),
        if_counted(Some(format!("{:.0}", calls.median))),
        if_counted(share),
        if_counted(Some(bytes(middle.bytes_up as f64))),
        if_counted(Some(bytes(middle.bytes_down as f64))),
        kinds.join(", "),
        hits(middle),
        processes(middle),
    );
}

fn hits(of: &Measurement) -> String {
    of.hits.map_or_else(String::new, |hits| {
        let rate = |(hits, misses): (u64, u64)| {
            format!("{:.0}%", 100.0 * hits as f64 / (hits + misses).max(1) as f64)
        };
        let (attributes, names, data) = (rate(hits.attributes), rate(hits.names), rate(hits.data));
        format!("; hits: attributes {attributes}, names {names}, data {data}")
    })
}

/// CPU time and peak resident memory of each server process in the pass.
fn processes(of: &Measurement) -> String {
    let one = |usage: &Usage| {
        format!("; {} {:.2} s CPU, {}", usage.name, usage.cpu_seconds, bytes(usage.memory_bytes as f64))
    };
    of.usage.iter().map(one).collect()
}
