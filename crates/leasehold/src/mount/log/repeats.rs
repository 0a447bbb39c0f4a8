//! Messages that repeat: of equal ones, a few are written in a while, and the rest are counted.
//!
//! Two messages are equal if they differ in their times alone. A message that names another file is another
//! message, and is written.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// A while.
const WINDOW: Duration = Duration::from_secs(60);
/// Equal messages that are written in that time.
const WRITTEN_MAX: u64 = 5;
/// Messages that are remembered. When there are more, all are forgotten.
const REMEMBERED_MAX: usize = 1024;

/// The messages of late.
#[derive(Debug, Default)]
pub struct Repeats {
    seen: HashMap<u64, Seen>,
}

#[derive(Debug)]
struct Seen {
    since: Instant,
    count: u64,
}

/// How to treat a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Write it.
    Write,
    /// Write it, and that so many like it were left out.
    WriteAfter(u64),
    /// Leave it out.
    LeaveOut,
}

impl Repeats {
    /// Decides about a line of the log.
    pub fn judge(&mut self, line: &[u8], now: Instant) -> Fate {
        let mut hasher = DefaultHasher::new();
        without_time(line).hash(&mut hasher);
        let key = hasher.finish();
        if let Some(seen) = self.seen.get_mut(&key) {
            if now.duration_since(seen.since) < WINDOW {
                seen.count += 1;
                return if seen.count > WRITTEN_MAX { Fate::LeaveOut } else { Fate::Write };
            }
            let left_out = seen.count.saturating_sub(WRITTEN_MAX);
            *seen = Seen { since: now, count: 1 };
            return if left_out > 0 { Fate::WriteAfter(left_out) } else { Fate::Write };
        }
        if self.seen.len() >= REMEMBERED_MAX {
            self.seen.clear();
        }
        self.seen.insert(key, Seen { since: now, count: 1 });
        Fate::Write
    }
}

/// The line behind its time: behind the first space of text, or behind the first field of JSON.
fn without_time(line: &[u8]) -> &[u8] {
    let end = if line.starts_with(b"{") { b',' } else { b' ' };
    line.iter().position(|byte| *byte == end).map_or(line, |at| &line[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_repeats_is_counted() {
        let (mut repeats, began) = (Repeats::default(), Instant::now());
        let mut judge =
            |line: &str, second: u64| repeats.judge(line.as_bytes(), began + Duration::from_secs(second));
        for second in 0..5 {
            assert_eq!(judge(&format!("{second}Z  WARN filer is silent"), second), Fate::Write);
        }
        assert!(
            (5..50)
                .all(|second| judge(&format!("{second}Z  WARN filer is silent"), second) == Fate::LeaveOut)
        );
        assert_eq!(judge("50Z  WARN other is silent", 50), Fate::Write, "another message");
        assert_eq!(judge("61Z  WARN filer is silent", 61), Fate::WriteAfter(45));
        assert_eq!(judge("62Z  WARN filer is silent", 62), Fate::Write);
        assert_eq!(judge("200Z  WARN filer is silent", 200), Fate::Write);
    }

    #[test]
    fn lines_of_json_are_compared_without_their_times_too() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let line = |time: u32, what: &str| format!("{{\"timestamp\":\"{time}\",\"message\":\"{what}\"}}\n");
        let fates: Vec<Fate> = (0..6).map(|time| repeats.judge(line(time, "a").as_bytes(), now)).collect();
        assert_eq!(fates[5], Fate::LeaveOut);
        assert_eq!(repeats.judge(line(7, "b").as_bytes(), now), Fate::Write);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for number in 0..10 * REMEMBERED_MAX {
            repeats.judge(format!("0 {number}").as_bytes(), now);
        }
        assert!(repeats.seen.len() <= REMEMBERED_MAX);
    }
}
