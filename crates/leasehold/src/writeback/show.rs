//! Prints the answers of `leasehold writeback`.

use std::fmt::Write as _;
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::status::seconds;
use crate::units::{ago, counted, human};

/// Prints lines of JSON, or text.
#[derive(Clone, Copy)]
pub struct Show {
    /// Lines of JSON.
    pub json: bool,
}

impl Show {
    /// A line of an answer, except the last.
    pub fn line(self, line: &Value) {
        if self.json {
            crate::output::line(line);
        } else if let Some(entry) = line.get("entry") {
            crate::output::line(text(entry, seconds(SystemTime::now())));
        }
    }

    /// The last line of `ls`.
    pub fn listed(self, done: &Value, directory: &Path) {
        self.last(done, || {
            let mut said = match (number(done, "files"), number(done, "conflicts")) {
                (0, 0) => "nothing is delayed, and no conflicts are kept".to_owned(),
                (0, _) => format!("nothing is delayed; {}", conflicts(done)),
                (_, 0) => delayed(done),
                _ => format!("{}; {}", delayed(done), conflicts(done)),
            };
            // Writing to a string cannot fail.
            if done["running"] == false && number(done, "files") > 0 {
                let directory = directory.display();
                let _ = write!(
                    said,
                    "
nothing runs on {directory}: the next mount, or proxy with --async, sends what it can"
                );
            }
            if done["outdated"] == true {
                said += "\nthe journal also has writes of before the machine started, which are not sent";
            }
            said
        });
    }

    /// The last line of `push`.
    pub fn pushed(self, done: &Value) {
        self.last(done, || match number(done, "files") {
            0 => "nothing is delayed".to_owned(),
            files => format!("{} of {} are on their way", bytes(done), counted(files, "file", "files")),
        });
    }

    /// Nothing is delayed any more.
    pub fn sent(self) {
        self.last(&json!({ "files": 0, "bytes": 0 }), || "nothing is delayed".to_owned());
    }

    /// The last line of `export`.
    pub fn exported(self, done: &Value) {
        self.last(done, || match (number(done, "files"), number(done, "conflicts")) {
            (0, 0) => "nothing is delayed, and no conflicts are kept".to_owned(),
            (files, kept) => {
                let files = counted(files, "file", "files");
                format!("copied {} of {files}, and {}", bytes(done), counted(kept, "conflict", "conflicts"))
            }
        });
    }

    /// The last line of `discard`.
    pub fn discarded(self, done: &Value) {
        self.last(done, || format!("discarded: {}", amount(done)));
    }

    fn last(self, done: &Value, text: impl FnOnce() -> String) {
        if self.json {
            crate::output::line(json!({ "done": done }));
        } else {
            crate::output::line(text());
        }
    }
}

/// How much is discarded, or would be.
pub fn amount(done: &Value) -> String {
    let files = || format!("{} of delayed writes of {}", bytes(done), files(done));
    let kept = || {
        format!(
            "{} ({})",
            counted(number(done, "conflicts"), "kept conflict", "kept conflicts"),
            human(number(done, "conflict_bytes"))
        )
    };
    match (number(done, "files"), number(done, "conflicts")) {
        (0, 0) if done["outdated"] == true => "delayed writes of before the machine started".to_owned(),
        (0, 0) => "nothing".to_owned(),
        (0, _) => kept(),
        (_, 0) => files(),
        _ => format!("{} and {}", files(), kept()),
    }
}

/// How much is delayed, in an answer to `ls`.
fn delayed(done: &Value) -> String {
    let oldest = done["oldest_s"].as_u64().map(|age| format!(", the oldest for {}", ago(age)));
    format!("{} of {} are delayed{}", bytes(done), files(done), oldest.unwrap_or_default())
}

fn conflicts(done: &Value) -> String {
    match number(done, "conflicts") {
        1 => "1 conflict is kept".to_owned(),
        kept => format!("{kept} conflicts are kept"),
    }
}

/// `12 bytes`
pub fn bytes(done: &Value) -> String {
    counted(number(done, "bytes"), "byte", "bytes")
}

/// `3 files`
pub fn files(done: &Value) -> String {
    counted(number(done, "files"), "file", "files")
}

fn number(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or_default()
}

fn text(entry: &Value, now: u64) -> String {
    let word = |field: &str| entry[field].as_str();
    let age = match entry["kept"].as_u64() {
        Some(kept) => Some(now.saturating_sub(kept)),
        None => entry["age_s"].as_u64(),
    };
    let copy = word("copy").map(|copy| format!("  {copy}")).unwrap_or_default();
    format!(
        "{:8}  {:>6}  {:>8}  {}{copy}",
        word("state").unwrap_or("-"),
        human(number(entry, "bytes")),
        age.map_or_else(|| "-".to_owned(), ago),
        word("path").or(word("file")).unwrap_or("-"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_state_size_age_and_place() {
        let waiting = json!({ "state": "waiting", "path": "/d/a b", "bytes": 4096, "age_s": 35 });
        assert_eq!(text(&waiting, 0), "waiting     4.0K      35 s  /d/a b");
        let kept = json!({ "state": "conflict", "file": "/c/x", "bytes": 7, "kept": 1000, "copy": "/to/x" });
        assert_eq!(text(&kept, 1300), "conflict       7     5 min  /c/x  /to/x");
    }

    #[test]
    fn what_would_be_deleted_is_told() {
        let of = |files: u64, conflicts: u64| {
            let kept = conflicts * 1024;
            amount(&json!({ "files": files, "bytes": 1, "conflicts": conflicts, "conflict_bytes": kept }))
        };
        assert_eq!(of(0, 0), "nothing");
        let outdated = json!({ "files": 0, "conflicts": 0, "outdated": true });
        assert_eq!(amount(&outdated), "delayed writes of before the machine started");
        assert_eq!(of(0, 1), "1 kept conflict (1.0K)");
        assert_eq!(of(2, 0), "1 byte of delayed writes of 2 files");
        assert_eq!(of(1, 2), "1 byte of delayed writes of 1 file and 2 kept conflicts (2.0K)");
    }

    #[test]
    fn the_sum_is_a_sentence() {
        let done = json!({ "files": 1, "bytes": 1200, "conflicts": 1, "oldest_s": 5 });
        assert_eq!(delayed(&done), "1,200 bytes of 1 file are delayed, the oldest for 5 s");
        assert_eq!(conflicts(&done), "1 conflict is kept");
    }
}
