//! Bars as SVG that takes its colours from the page and scales with it.
//!
//! One bar under the other with its label above it, so that a narrow window shows everything. Where values lie more than
//! a hundredfold apart, the scale is logarithmic and the title says so.

use std::fmt::Write;

use super::exhibits::Chart;
use super::html::escape;

const WIDTH: f64 = 640.0;
/// Of a bar with its label.
const STEP: f64 = 40.0;
const BAR: f64 = 16.0;
/// Kept free behind the longest bar for its value.
const VALUE_WIDTH: f64 = 110.0;
/// Beyond this ratio of the largest to the smallest, logarithms.
const LOGARITHMIC_FROM: f64 = 100.0;

/// A chart; empty if there is nothing to draw.
pub(super) fn bars(chart: &Chart) -> String {
    let positive = chart.bars.iter().map(|bar| bar.value).filter(|value| *value > 0.0);
    let highest = |value: f64, bar: &super::exhibits::Bar| {
        value.max(bar.value).max(bar.range.map_or(0.0, |range| range.1))
    };
    let most = chart.bars.iter().fold(0.0, highest);
    if most <= 0.0 {
        return String::new();
    }
    let least = positive.fold(most, f64::min);
    let logarithmic = most / least > LOGARITHMIC_FROM;
    let length = |value: f64| {
        let share = if logarithmic {
            if value <= 0.0 { 0.0 } else { (1.0 + (value / least).log10()) / (1.0 + (most / least).log10()) }
        } else {
            value / most
        };
        share.max(0.0) * (WIDTH - VALUE_WIDTH)
    };
    let height = STEP * chart.bars.len() as f64 + 26.0;
    let scale = if logarithmic { ", logarithmic" } else { "" };
    let title = escape(&format!("{}{scale}", chart.title));
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n<text x=\"0\" y=\"16\" class=\"title\">{title}</text>\n"
    );
    for (index, bar) in chart.bars.iter().enumerate() {
        let top = 26.0 + STEP * index as f64;
        let class = if bar.paper { "paper" } else { "ours" };
        let width = length(bar.value).max(1.0);
        let label = if bar.paper { format!("paper: {}", bar.label) } else { bar.label.clone() };
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.1}\" class=\"label\">{}</text><rect x=\"0\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\" class=\"{class}\"/>",
            top + 13.0,
            escape(&label),
            top + 18.0,
        );
        let mut end = width;
        if let Some((low, high)) = bar.range {
            let (from, to, middle) = (length(low), length(high), top + 18.0 + BAR / 2.0);
            let _ = writeln!(
                svg,
                "<path d=\"M{from:.1} {middle:.1}H{to:.1}M{from:.1} {:.1}v8M{to:.1} {:.1}v8\" class=\"range\"/>",
                middle - 4.0,
                middle - 4.0
            );
            end = end.max(to);
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"value\">{}</text>",
            end + 6.0,
            top + 18.0 + BAR - 3.0,
            escape(&value(bar.value, chart.unit)),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn value(value: f64, unit: &str) -> String {
    let number = match value.abs() {
        0.0 => "0".to_owned(),
        ..0.1 => format!("{value:.4}"),
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    if unit.is_empty() { number } else { format!("{number} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::exhibits::Bar;

    fn chart(values: &[f64]) -> Chart {
        let bar = |value: &f64| Bar { label: "a<b".to_owned(), value: *value, range: None, paper: false };
        Chart { title: "Time".to_owned(), unit: "s", bars: values.iter().map(bar).collect() }
    }

    fn widths(svg: &str) -> Vec<f64> {
        let found = svg.split("width=\"").skip(1).filter_map(|rest| rest.split('"').next());
        found.filter_map(|width| width.parse().ok()).collect()
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let svg = bars(&chart(&[10.0, 5.0]));
        assert_eq!(widths(&svg), [530.0, 265.0]);
        assert!(svg.contains("a&lt;b") && svg.contains("10.0 s") && !svg.contains("logarithmic"));
    }

    #[test]
    fn values_far_apart_are_drawn_by_their_logarithms() {
        let svg = bars(&chart(&[1000.0, 1.0, 0.0]));
        assert_eq!(widths(&svg), [530.0, 132.5, 1.0]);
        assert!(svg.contains("logarithmic"));
        assert_eq!(bars(&chart(&[0.0])), "");
    }
}
