//! Moments as users write them: `2026-01-31`, `2026-01-31T12:00:00`, `@1700000000`, `90m`, `36h`, `7d`
//! (ago).

use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub i64);

/// Now.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        parse(text, now()).map(Moment).ok_or_else(|| {
            format!("`{text}` is not a time: write 2026-01-31, 2026-01-31T12:00:00 (UTC), @SECONDS, or an age such as 90m, 36h or 7d")
        })
    }
}

fn parse(text: &str, now: i64) -> Option<i64> {
    if let Some(seconds) = text.strip_prefix('@') {
        return seconds.parse().ok();
    }
    let unit = match text.chars().next_back()? {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(3600),
        'd' => Some(86_400),
        _ => None,
    };
    if let Some(unit) = unit {
        let number: i64 = text[..text.len() - 1].parse().ok().filter(|number| *number >= 0)?;
        return number.checked_mul(unit).and_then(|ago| now.checked_sub(ago));
    }
    let (date, time) = text.split_once('T').unwrap_or((text, "00:00:00"));
    let numbers = |text: &str, between: char| -> Option<Vec<i64>> {
        text.split(between).map(|part| part.parse().ok()).collect()
    };
    let (date, time) = (numbers(date, '-')?, numbers(time.trim_end_matches('Z'), ':')?);
    let ([year, month, day], [hour, minute, rest @ ..]) = (&date[..], &time[..]) else { return None };
    let second = match rest {
        [] => 0,
        [second] => *second,
        _ => return None,
    };
    let sane = (1970..=9999).contains(year) && (1..=12).contains(month) && (1..=31).contains(day);
    let timed = (0..24).contains(hour) && (0..60).contains(minute) && (0..=60).contains(&second);
    (sane && timed).then(|| days(*year, *month, *day) * 86_400 + hour * 3600 + minute * 60 + second)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. The computation begins each year in March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leaps = year / 4 - year / 100 + year / 400;
    year * 365 + leaps + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// A moment in text: `2026-01-31 12:00:00`, UTC.
pub fn show(seconds: i64) -> String {
    let (mut left, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let mut year = 1970 + left.div_euclid(366);
    while days(year + 1, 1, 1) <= left {
        year += 1;
    }
    let month = (1..=12).rev().find(|month| days(year, *month, 1) <= left).unwrap_or(1);
    left -= days(year, month, 1);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02}", left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_what_people_write() {
        let now = 1_700_000_000;
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("2023-11-14T22:13:20", now),
            ("2023-11-14T22:13:20Z", now),
            ("2023-11-14T22:13", now - 20),
            ("2024-02-29", 1_709_164_800),
            ("@77", 77),
            ("90m", now - 5400),
            ("36h", now - 129_600),
            ("7d", now - 604_800),
        ] {
            assert_eq!(parse(text, now), Some(seconds), "{text}");
        }
        for wrong in [
            "",
            "soon",
            "2026-13-01",
            "2026-01-32",
            "2026-01",
            "T12:00",
            "-5d",
            "5w",
            "99999999999999999999d",
        ] {
            assert_eq!(parse(wrong, now), None, "{wrong}");
        }
    }

    #[test]
    fn moments_are_shown() {
        assert_eq!(show(0), "1970-01-01 00:00:00");
        assert_eq!(show(1_700_000_000), "2023-11-14 22:13:20");
        assert_eq!(show(1_709_164_800 + 86_399), "2024-02-29 23:59:59");
        assert_eq!(show(1_735_689_599), "2024-12-31 23:59:59");
    }
}
