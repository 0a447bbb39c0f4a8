//! The table at the end, for a terminal.

use std::fmt::Write;

use super::{Report, Rounds, bytes, seconds};

/// Kinds of calls that are named.
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
                "\n{}, {} ms\n{:<20} {:>9} {:>7} {:>8} {:>8} {:>8} {:>9} {:>9} {:>7} {:>8}  by kind",
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
                "CPU s",
                "memory",
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
    let speedup = direct.map_or(0.0, |direct| direct.seconds().median / time.median.max(1e-9));
    let share = direct.map_or(0.0, |direct| 100.0 * calls.median / direct.calls().median.max(1e-9));
    let middle = group.middle();
    let cpu: f64 = middle.usage.iter().fold(0.0, |sum, usage| sum + usage.cpu_seconds);
    let memory: u64 = middle.usage.iter().map(|usage| usage.memory_bytes).max().unwrap_or(0);
    let mut kinds: Vec<(&String, &u64)> = middle.calls.calls.iter().collect();
    kinds.sort_by(|one, other| other.1.cmp(one.1));
    let more = if kinds.len() > KINDS { ", …" } else { "" };
    let kinds: Vec<String> =
        kinds.iter().take(KINDS).map(|(name, count)| format!("{name} {count}")).collect();
    let hits = middle.hits.map_or_else(String::new, |hits| {
        let rate = |(hits, misses): (u64, u64)| {
            format!("{:.0}%", 100.0 * hits as f64 / (hits + misses).max(1) as f64)
        };
        format!(
            "; hits: attributes {}, names {}, data {}",
            rate(hits.attributes),
            rate(hits.names),
            rate(hits.data)
        )
    });
    let _ = writeln!(
        text,
        "{:<20} {:>9} {:>6.0}% {:>7.2}x {:>8.0} {:>7.0}% {:>9} {:>9} {:>7.2} {:>8}  {}{more}{hits}",
        group.system,
        seconds(time.median),
        100.0 * time.spread(),
        speedup,
        calls.median,
        share,
        bytes(middle.bytes_up as f64),
        bytes(middle.bytes_down as f64),
        cpu,
        bytes(memory as f64),
        kinds.join(", "),
    );
}
