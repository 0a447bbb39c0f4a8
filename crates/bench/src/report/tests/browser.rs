//! Tests of the page in a browser: headless Chromium lays it out in a narrow and a wide window, in light and
//! dark mode.
//!
//! Without Chromium the test says so and passes. Debian's package is 80 MB, 290 MB unpacked with its
//! dependencies.

use std::process::Command;

use serde::Deserialize;

use super::report;
use crate::report::html::escape;

/// Shows the page in a frame of the given width, and writes its findings into the document.
const PROBE: &str = include_str!("probe.html");
/// Lowest contrast of text (WCAG 2.1, 1.4.3). Bars are graphics and need 3 (1.4.11).
const CONTRAST: f64 = 4.5;
const BARS_CONTRAST: f64 = 3.0;

/// The findings of the probe.
#[derive(Debug, Deserialize)]
struct Seen {
    /// Width of the frame, without its scroll bar.
    width: u32,
    /// Width of the content.
    scroll: u32,
    charts: usize,
    /// Elements that extend beyond the window.
    beyond: Vec<String>,
    /// Words of charts that are cut off.
    cut: Vec<String>,
    background: String,
    /// Colours of text; the last two are those of the two kinds of bars.
    colors: Vec<String>,
}

/// Renders the page and returns the findings; `None` without Chromium.
fn look(page: &str, width: u32, dark: bool) -> Option<Seen> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("probe.html");
    let probe = PROBE.replace("@WIDTH@", &width.to_string()).replace("@PAGE@", &escape(page));
    std::fs::write(&file, probe).unwrap();
    let mut command = Command::new("timeout");
    command.args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", directory.path().join("profile").display()));
    let scheme = if dark { "0" } else { "1" };
    command.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
    command.args(["--window-size=1600,1000", "--virtual-time-budget=20000"]);
    let output = command.arg(format!("file://{}", file.display())).output().unwrap();
    if output.status.code() == Some(127) {
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let said = || format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let (_, seen) = text.split_once("<pre id=\"seen\">").unwrap_or_else(|| panic!("{}", said()));
    let seen = seen.split("</pre>").next().unwrap().replace("&lt;", "<").replace("&gt;", ">");
    Some(serde_json::from_str(&seen.replace("&amp;", "&")).unwrap_or_else(|error| panic!("{error}: {seen}")))
}

/// Luminance of a colour written as `rgb(1, 2, 3)`.
fn luminance(color: &str) -> f64 {
    let numbers = color.trim_start_matches("rgb(").trim_end_matches(')').split(", ");
    let linear = |channel: &str| {
        let value = channel.parse::<f64>().unwrap_or_else(|_| panic!("{color} is no colour")) / 255.0;
        if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    numbers.zip([0.2126, 0.7152, 0.0722]).map(|(channel, weight)| weight * linear(channel)).sum()
}

fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
fn the_page_fits_a_narrow_window_and_can_be_read_in_the_dark() {
    let page = report().html();
    let mut backgrounds = Vec::new();
    for (width, dark) in [(320, false), (360, true), (1280, false), (1280, true)] {
        let Some(seen) = look(&page, width, dark) else {
            eprintln!("SKIPPED: no chromium: apt-get install chromium");
            return;
        };
        assert!(seen.charts >= 10 && seen.width <= width, "{seen:?}");
        assert!(
            seen.scroll <= seen.width && seen.beyond.is_empty() && seen.cut.is_empty(),
            "{width}: {seen:?}"
        );
        let (text, bars) = seen.colors.split_at(seen.colors.len() - 2);
        for (colors, wanted) in [(text, CONTRAST), (bars, BARS_CONTRAST)] {
            let faint = colors.iter().find(|color| contrast(color, &seen.background) < wanted);
            assert_eq!(faint, None, "dark: {dark}, on {}", seen.background);
        }
        backgrounds.push(luminance(&seen.background) > 0.5);
    }
    assert_eq!(backgrounds, [true, false, true, false], "light and dark");
}

#[test]
fn contrast_is_that_of_wcag() {
    assert!((contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") - 21.0).abs() < 1e-6);
    assert!((contrast("rgb(119, 119, 119)", "rgb(255, 255, 255)") - 4.48).abs() < 0.01);
}
