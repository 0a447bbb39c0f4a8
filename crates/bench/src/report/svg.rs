//! Bar charts as SVG. The page sets the colours, and the window sets the width.
//!
//! Each bar is below the previous one, with its label above it. Lengths are shares of the width and heights
//! are fixed, so that text keeps the page's font size in a narrow window. The title is not part of the
//! drawing, because it must wrap there. If values differ more than a hundredfold, the scale is logarithmic
//! and the title says so.

use std::fmt::Write;

use super::exhibits::Chart;
use super::html::escape;
use super::seconds;

/// Height of a bar with its label, in pixels.
const STEP: f64 = 40.0;
const BAR: f64 = 16.0;
/// Length of the longest bar, in percent of the width; the rest is for its value.
const LONGEST_PERCENT: f64 = 76.0;
/// If the ratio of the largest to the smallest value is larger, the scale is logarithmic.
const LOGARITHMIC_FROM: f64 = 100.0;

/// The scale: converts values to percent of the width.
struct Scale {
    least: f64,
    most: f64,
}

impl Scale {
    /// `None` if there is nothing to draw.
    fn of(chart: &Chart) -> Option<Scale> {
        let ends = chart.bars.iter().map(|bar| bar.value.max(bar.range.map_or(0.0, |(_, high)| high)));
        let most = ends.fold(0.0, f64::max);
        let positive = chart.bars.iter().map(|bar| bar.value).filter(|value| *value > 0.0);
        (most > 0.0).then(|| Scale { least: positive.fold(most, f64::min), most })
    }

    fn is_logarithmic(&self) -> bool {
        self.most / self.least > LOGARITHMIC_FROM
    }

    fn percent(&self, value: f64) -> f64 {
        let share = match self.is_logarithmic() {
            false => value / self.most,
            true if value <= 0.0 => 0.0,
            true => (1.0 + (value / self.least).log10()) / (1.0 + (self.most / self.least).log10()),
        };
        share.max(0.0) * LONGEST_PERCENT
    }
}

/// The chart; empty if there is nothing to draw.
pub(super) fn bars(chart: &Chart) -> String {
    let Some(scale) = Scale::of(chart) else { return String::new() };
    let height = STEP * chart.bars.len() as f64;
    let kind = if scale.is_logarithmic() { ", logarithmic" } else { "" };
    let title = escape(&format!("{}{kind}", chart.title));
    let mut svg = format!(
        "<figure>\n<figcaption>{title}</figcaption>\n<svg width=\"100%\" height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n"
    );
    for (index, bar) in chart.bars.iter().enumerate() {
        let top = STEP * index as f64;
        let class = if bar.paper { "paper" } else { "ours" };
        let width = scale.percent(bar.value).max(0.3);
        let label = if bar.paper { format!("paper: {}", bar.label) } else { bar.label.clone() };
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.1}\" class=\"label\">{}</text><rect x=\"0\" y=\"{:.1}\" width=\"{width:.1}%\" height=\"{BAR}\" class=\"{class}\"/>",
            top + 13.0,
            escape(&label),
            top + 18.0,
        );
        let mut end = width;
        if let Some((low, high)) = bar.range {
            let (from, to, middle) = (scale.percent(low), scale.percent(high), top + 18.0 + BAR / 2.0);
            let _ = writeln!(
                svg,
                "<line x1=\"{from:.1}%\" x2=\"{to:.1}%\" y1=\"{middle}\" y2=\"{middle}\" class=\"range\"/>"
            );
            end = end.max(to);
        }
        let _ = writeln!(
            svg,
            "<text x=\"{end:.1}%\" dx=\"6\" y=\"{:.1}\" class=\"value\">{}</text>",
            top + 18.0 + BAR - 3.0,
            escape(&value(bar.value, chart.unit)),
        );
    }
    svg.push_str("</svg>\n</figure>\n");
    svg
}

fn value(value: f64, unit: &str) -> String {
    let number = match value.abs() {
        _ if unit == "s" => return seconds(value),
        complete if complete.fract() == 0.0 => format!("{value:.0}"),
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
        let found = svg.split("width=\"").skip(2).filter_map(|rest| rest.split('%').next());
        found.filter_map(|width| width.parse().ok()).collect()
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let svg = bars(&chart(&[10.0, 5.0]));
        assert_eq!(widths(&svg), [76.0, 38.0]);
        assert!(svg.contains("a&lt;b") && svg.contains("10.0 s") && !svg.contains("logarithmic"));
    }

    #[test]
    fn values_far_apart_are_drawn_by_their_logarithms() {
        let svg = bars(&chart(&[1000.0, 1.0, 0.0]));
        assert_eq!(widths(&svg), [76.0, 19.0, 0.3]);
        assert!(svg.contains("logarithmic"));
        assert_eq!(bars(&chart(&[0.0])), "");
    }
}
