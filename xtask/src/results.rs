//! The results of test programs, read from what they print: how many tests passed, and why the others
//! failed.
//!
//! Assumes the output of Rust's test harness: a section `---- NAME stdout ----` for each failed test after
//! all tests have run, and a line `test result: …` at the end. The summary of a long run repeats the panics,
//! so that a reader of the last lines knows them.

use std::fmt;

/// Bounds of what is kept of one panic, and of all.
const LINES_MAX: usize = 24;
const LINE_MAX_CHARS: usize = 300;
const FAILURES_MAX: usize = 8;

/// The results of one or more test programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Results {
    passed: u64,
    failed: u64,
    ignored: u64,
    failures: Vec<Failure>,
    reading: Reading,
}

/// A test that failed, and the first lines of its panic.
#[derive(Debug, Default, PartialEq, Eq)]
struct Failure {
    test: String,
    panic: Vec<String>,
}

/// The place in the output.
#[derive(Debug, Default, PartialEq, Eq)]
enum Reading {
    #[default]
    Other,
    /// In the section of the last failure, before its panic or after it.
    Section,
    /// In the message of its panic.
    Panic,
}

impl Results {
    /// Adds the results of other programs.
    pub fn join(&mut self, other: Results) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        let room = FAILURES_MAX.saturating_sub(self.failures.len());
        self.failures.extend(other.failures.into_iter().take(room));
    }

    /// The number of tests that were left out.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Takes the next line of a program's output.
    pub fn add(&mut self, line: &str) {
        if let Some(result) = line.strip_prefix("test result: ") {
            self.reading = Reading::Other;
            self.count(result);
        } else if let Some(test) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            if self.failures.len() < FAILURES_MAX {
                self.failures.push(Failure { test: test.to_owned(), panic: Vec::new() });
                self.reading = Reading::Section;
            }
        } else if self.reading != Reading::Other {
            self.keep(line);
        }
    }

    /// Adds the numbers of a line such as `ok. 3 passed; 0 failed; 1 ignored; …`.
    fn count(&mut self, result: &str) {
        let words: Vec<&str> = result.split([' ', ';']).filter(|word| !word.is_empty()).collect();
        for pair in words.windows(2) {
            let count = pair[0].parse().unwrap_or(0);
            match pair[1] {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }

    /// Keeps a line of a section if it belongs to a panic.
    fn keep(&mut self, line: &str) {
        let ends = ["stack backtrace:", "note: ", "failures:"].iter().any(|end| line.starts_with(end));
        if line.contains("panicked at ") {
            self.reading = Reading::Panic;
        } else if ends {
            self.reading = Reading::Section;
        }
        let Some(failure) = self.failures.last_mut() else { return };
        if self.reading == Reading::Panic && failure.panic.len() < LINES_MAX {
            failure.panic.push(line.chars().take(LINE_MAX_CHARS).collect());
        }
    }

    /// The failed tests with their panics, for people; empty if none is known.
    pub fn failures(&self) -> String {
        let mut told = String::new();
        for failure in &self.failures {
            told.push_str(&failure.test);
            told.push('\n');
            failure.panic.iter().for_each(|line| told.extend(["    ", line, "\n"]));
        }
        told
    }
}

impl fmt::Display for Results {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} passed, {} failed, {} ignored", self.passed, self.failed, self.ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::Results;

    fn read(output: &str) -> Results {
        let mut results = Results::default();
        output.lines().for_each(|line| results.add(line));
        results
    }

    #[test]
    fn results_are_added_up() {
        let mut results = read(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test some::test ... ok",
        );
        results.join(read("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out"));
        assert_eq!(results.to_string(), "7 passed, 2 failed, 1 ignored");
        assert_eq!(results.failures(), "");
    }

    #[test]
    fn panics_of_failed_tests_are_kept() {
        let results = read(
            "test a::b ... FAILED\n\nfailures:\n\n---- a::b stdout ----\nlab: seed 3\n\
             thread 'a::b' (7) panicked at src/x.rs:9:5:\nleft: 1\nright: 2\nstack backtrace:\n   0: std\n\
             note: Some details are omitted\n\nlog: late\n---- a::c stdout ----\nError: NotFound\n\n\
             failures:\n    a::b\n    a::c\n\n\
             test result: FAILED. 0 passed; 2 failed; 0 ignored; 0 measured\nafter panicked at the end",
        );
        assert_eq!(
            results.failures(),
            "a::b\n    thread 'a::b' (7) panicked at src/x.rs:9:5:\n    left: 1\n    right: 2\na::c\n"
        );
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let long = "x".repeat(super::LINE_MAX_CHARS * 2);
        let section =
            format!("---- t stdout ----\nthread 't' panicked at y\n{}", format!("{long}\n").repeat(99));
        let results = read(&section.repeat(99));
        assert_eq!(results.failures.len(), super::FAILURES_MAX);
        let kept = results.failures().chars().count();
        assert!(kept < super::FAILURES_MAX * super::LINES_MAX * (super::LINE_MAX_CHARS + 10), "{kept}");
    }
}
