//! The report as one page without scripts, fonts or external resources.

use std::fmt::Write;

use super::exhibits::{self, Exhibit};
use super::{NOT_COUNTED, Report, aims, bytes, seconds, svg};

const STYLE: &str = include_str!("page.css");

/// The page up to its first paragraph.
fn head(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Leasehold: {title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    )
}

/// A page of these exhibits alone.
pub(crate) fn page(title: &str, preface: &str, exhibits: &[Exhibit]) -> String {
    let mut page = head(title);
    let _ = writeln!(page, "<p>{}</p>", escape(preface));
    for (number, exhibit) in exhibits.iter().enumerate() {
        section(&mut page, number, exhibit);
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

pub(super) fn render(report: &Report) -> String {
    let mut page = head("The papers' evaluations, repeated");
    preface(&mut page, report);
    aims_table(&mut page, report);
    let exhibits = exhibits::all(report);
    contents(&mut page, &exhibits);
    for (number, exhibit) in exhibits.iter().enumerate() {
        section(&mut page, number, exhibit);
    }
    everything(&mut page, report);
    left_out(&mut page, report);
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// Escapes text for use in an element or an attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(character),
        }
    }
    escaped
}

fn preface(page: &mut String, report: &Report) {
    let machine = &report.machine;
    let _ = writeln!(
        page,
        "<p>{}; {} processors, {}, {}. NFSv{}; scale {}, seed {}; medians of {}, with the lowest and the highest round as a \
         line over the bar. Numbers of the papers are marked as <span class=\"mark\">theirs</span>.</p>\n<pre>{}</pre>",
        escape(&report.date),
        machine.processors,
        bytes(machine.memory_bytes as f64),
        escape(&machine.kernel),
        escape(&report.vers),
        report.plan.scale,
        report.plan.seed,
        report.rounds,
        escape(&report.command)
    );
}

fn aims_table(page: &mut String, report: &Report) {
    let aims = aims::all(report);
    if aims.is_empty() {
        return;
    }
    page.push_str("<h2>Aims</h2>\n");
    let rows = aims.iter().map(|aim| {
        let verdict = if aim.met { "met" } else { "missed" };
        let cells = [aim.what, verdict, &aim.measured, aim.wanted, aim.paper].map(str::to_owned);
        (verdict, cells.to_vec())
    });
    let head = ["what", "", "measured", "aim", "paper"].map(str::to_owned);
    table(page, &head, rows);
}

fn contents(page: &mut String, exhibits: &[Exhibit]) {
    page.push_str("<nav><ul>\n");
    for (number, exhibit) in exhibits.iter().enumerate() {
        let _ = writeln!(page, "<li><a href=\"#e{number}\">{}</a></li>", escape(&exhibit.title));
    }
    page.push_str("<li><a href=\"#all\">Everything that was measured</a></li>\n</ul></nav>\n");
}

fn section(page: &mut String, number: usize, exhibit: &Exhibit) {
    let _ = writeln!(
        page,
        "<section id=\"e{number}\">\n<h2>{}</h2>\n<p class=\"source\">{}</p>",
        escape(&exhibit.title),
        escape(exhibit.source)
    );
    if !exhibit.note.is_empty() {
        let _ = writeln!(page, "<p>{}</p>", escape(&exhibit.note));
    }
    if let Some(chart) = &exhibit.chart {
        page.push_str(&svg::bars(chart));
    }
    let rows = exhibit.rows.iter().map(|row| (if row.paper { "paper" } else { "ours" }, row.cells.clone()));
    table(page, &exhibit.head, rows);
    page.push_str("</section>\n");
}

/// A table. If it is wider than the window, it scrolls on its own.
fn table<'c>(page: &mut String, head: &[String], rows: impl Iterator<Item = (&'c str, Vec<String>)>) {
    page.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    head.iter().for_each(|word| {
        let _ = write!(page, "<th scope=\"col\">{}</th>", escape(word));
    });
    page.push_str("</tr></thead>\n<tbody>\n");
    for (class, cells) in rows {
        let _ = write!(page, "<tr class=\"{class}\">");
        for (index, cell) in cells.iter().enumerate() {
            let cell = escape(cell);
            let _ = if index == 0 {
                write!(page, "<th scope=\"row\">{cell}</th>")
            } else {
                write!(page, "<td>{cell}</td>")
            };
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
}

fn everything(page: &mut String, report: &Report) {
    page.push_str("<section id=\"all\">\n<h2>Everything that was measured</h2>\n");
    let head = [
        "workload, system, distance",
        "time",
        "spread",
        "operations",
        "p50",
        "p90",
        "p99",
        "calls at the origin",
        "by kind",
        "bytes up",
        "bytes down",
        "CPU of servers",
        "memory of servers",
        "hits: attributes, names, data",
    ]
    .map(str::to_owned);
    let rows = report.groups().into_iter().map(|group| {
        let middle = group.middle();
        let kinds: Vec<String> =
            middle.calls.calls.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let slowest = middle
            .latencies
            .values()
            .max_by(|one, other| (one.mean * one.count as f64).total_cmp(&(other.mean * other.count as f64)));
        let latency = slowest.copied().unwrap_or_default();
        let each = |what: fn(&crate::system::Usage) -> String| {
            let words: Vec<String> =
                middle.usage.iter().map(|usage| format!("{} {}", usage.name, what(usage))).collect();
            words.join(", ")
        };
        let hits = middle.hits.map_or_else(String::new, |hits| {
            let of = |(hits, misses): (u64, u64)| format!("{hits} of {}", hits + misses);
            format!("{}, {}, {}", of(hits.attributes), of(hits.names), of(hits.data))
        });
        let if_counted = |cell: String| if group.is_counted() { cell } else { NOT_COUNTED.to_owned() };
        let cells = vec![
            format!("{}, {}, {} ms", group.workload, group.system, group.rtt_ms),
            seconds(group.seconds().median),
            if group.all.len() > 1 {
                format!("{:.0} %", 100.0 * group.seconds().spread())
            } else {
                NOT_COUNTED.to_owned()
            },
            middle.operations.to_string(),
            seconds(latency.p50 / 1e3),
            seconds(latency.p90 / 1e3),
            seconds(latency.p99 / 1e3),
            if_counted(format!("{:.0}", group.calls().median)),
            kinds.join(", "),
            if_counted(bytes(middle.bytes_up as f64)),
            if_counted(bytes(middle.bytes_down as f64)),
            each(|usage| format!("{:.2} s", usage.cpu_seconds)),
            each(|usage| bytes(usage.memory_bytes as f64)),
            hits,
        ];
        ("ours", cells)
    });
    table(page, &head, rows);
    page.push_str(
        "<p>Percentiles are of the kind of system call that took the most time in all.</p>\n</section>\n",
    );
}

fn left_out(page: &mut String, report: &Report) {
    if report.left_out.is_empty() {
        return;
    }
    page.push_str("<section>\n<h2>Left out</h2>\n<ul>\n");
    for left in &report.left_out {
        let _ = writeln!(page, "<li>{}: {}</li>", escape(&left.what), escape(&left.why));
    }
    page.push_str("</ul>\n</section>\n");
}
