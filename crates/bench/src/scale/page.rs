//! The report as an HTML page: a chart for each quantity and each series.

use super::report::{QUANTITIES, Quantity, Report, growth, number};
use crate::report::exhibits::{Bar, Chart, Exhibit, Row};
use crate::report::page;

pub(super) fn render(report: &Report) -> String {
    let mut exhibits = Vec::new();
    for group in report.groups() {
        let Some(first) = group.first() else { continue };
        for Quantity { title, unit, of } in &QUANTITIES {
            let values: Vec<(u64, f64)> = group.iter().map(|row| (row.files.into(), of(row))).collect();
            let title = format!("{}, {}: {title}", first.series, first.system);
            exhibits.push(exhibit(title, "files", unit, &values));
        }
    }
    for series in ["leases", "clients"] {
        let held: Vec<_> = report.held.iter().filter(|held| held.series == series).collect();
        if held.is_empty() {
            continue;
        }
        let memory: Vec<_> = held.iter().map(|held| (held.count.into(), held.bytes_each())).collect();
        let time: Vec<_> = held.iter().map(|held| (held.count.into(), held.micros_each())).collect();
        exhibits.push(exhibit(format!("{series}: memory of the origin for each"), series, "B", &memory));
        exhibits.push(exhibit(format!("{series}: time for each"), series, "µs", &time));
    }
    let machine = &report.machine;
    let preface = format!("{} processors, {}; NFSv{}", machine.processors, machine.kernel, report.vers);
    page("The cost of growth", &preface, &exhibits)
}

fn exhibit(title: String, things: &str, unit: &'static str, values: &[(u64, f64)]) -> Exhibit {
    let bars = values.iter().map(|(count, value)| Bar {
        label: format!("{count} {things}"),
        value: *value,
        range: None,
        paper: false,
    });
    let chart = Some(Chart { title: title.clone(), unit, bars: bars.collect() });
    let mut before = None;
    let rows = values.iter().map(|(count, value)| {
        let cells = vec![count.to_string(), number(*value), growth(before, *value)];
        before = Some(*value);
        Row { paper: false, cells }
    });
    let rows = rows.collect();
    let head = [things, unit, "to the size before"].map(str::to_owned).to_vec();
    Exhibit { title, source: "", note: String::new(), head, rows, chart }
}
