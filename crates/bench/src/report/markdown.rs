//! The exhibits as Markdown.

use std::fmt::Write;

use super::exhibits::{self, Row};
use super::{Report, aims};

pub(super) fn render(report: &Report) -> String {
    let mut text = format!(
        "{}; {} processors, {}, {}. NFSv{}, scale {}, seed {}, median of {}:\n\n    {}\n",
        report.date,
        report.machine.processors,
        super::bytes(report.machine.memory_bytes as f64),
        report.machine.kernel,
        report.vers,
        report.plan.scale,
        report.plan.seed,
        report.rounds,
        report.command.replace('\n', "\n    ")
    );
    let aims = aims::all(report);
    if !aims.is_empty() {
        text.push_str("\n| what | paper | aim | measured | |\n|---|---|---|---|---|\n");
        aims.iter().for_each(|aim| {
            let verdict = if aim.met { "met" } else { "missed" };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {verdict} |",
                aim.what, aim.paper, aim.wanted, aim.measured
            );
        });
    }
    for exhibit in exhibits::all(report) {
        let _ = write!(text, "\n**{}** ({}). {}\n\n", exhibit.title, exhibit.source, exhibit.note);
        let _ = writeln!(text, "| {} |\n|{}", exhibit.head.join(" | "), "---|".repeat(exhibit.head.len()));
        exhibit.rows.iter().for_each(|Row { paper, cells }| {
            let mut cells = cells.clone();
            if let Some(label) = cells.first_mut().filter(|_| *paper) {
                *label = format!("*paper: {label}*");
            }
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        });
    }
    if !report.left_out.is_empty() {
        text.push_str("\nLeft out:\n\n");
        report.left_out.iter().for_each(|left| {
            let _ = writeln!(text, "- {}: {}", left.what, left.why);
        });
    }
    text
}
