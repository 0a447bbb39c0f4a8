//! The steps of a task: announces them, times them, and prints a summary at the end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// The steps that a task has run so far.
#[derive(Debug, Default)]
pub struct Steps {
    done: Vec<(String, Outcome, Duration, String)>,
    /// The time of the steps that ran beside others.
    beside: Duration,
}

impl Steps {
    /// Runs a step; `work` returns whether it passed.
    pub fn step(&mut self, name: &str, work: impl FnOnce() -> bool) {
        self.step_with_note(name, || (work(), String::new()));
    }

    /// Runs a step; `work` returns whether it passed, and a note for the summary.
    pub fn step_with_note(&mut self, name: &str, work: impl FnOnce() -> (bool, String)) {
        eprintln!("\n=== {name}");
        let started = Instant::now();
        let (passed, note) = work();
        let outcome = if passed { Outcome::Passed } else { Outcome::Failed };
        self.done.push((name.to_owned(), outcome, started.elapsed(), note));
    }

    /// Records a step that ran beside others.
    pub fn record(&mut self, name: &str, passed: bool, took: Duration) {
        let outcome = if passed { Outcome::Passed } else { Outcome::Failed };
        self.done.push((name.to_owned(), outcome, took, "beside the tests".to_owned()));
        self.beside += took;
    }

    /// Records a skipped step and the reason.
    pub fn skip(&mut self, name: &str, why: &str) {
        eprintln!("\n=== {name}: SKIPPED: {why}");
        self.done.push((name.to_owned(), Outcome::Skipped, Duration::ZERO, why.to_owned()));
    }

    /// Did no step fail?
    pub fn passed(&self) -> bool {
        self.done.iter().all(|(_, outcome, ..)| *outcome != Outcome::Failed)
    }

    /// Prints one line per step and one for the task.
    pub fn summarize(&self, task: &str) {
        eprintln!("\n=== summary");
        for (name, outcome, took, note) in &self.done {
            let word = match outcome {
                Outcome::Passed => "ok",
                Outcome::Failed => "FAILED",
                Outcome::Skipped => "SKIPPED",
            };
            eprintln!("{name:<22} {word:<8} {:>7.1} s  {note}", took.as_secs_f64());
        }
        let total: Duration = self.done.iter().map(|(_, _, took, _)| *took).sum();
        let total = total.saturating_sub(self.beside);
        let verdict = if self.passed() { "passed" } else { "FAILED" };
        eprintln!("{task}: {verdict} in {:.0} s", total.as_secs_f64());
    }
}

/// Runs a program in the root of the workspace with additional environment, and shows its output. False if
/// it fails or does not exist.
pub fn run<'a>(
    program: &str,
    arguments: impl IntoIterator<Item = &'a str>,
    environment: &[(&str, &str)],
) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).envs(environment.iter().copied()).current_dir(root()).stdin(Stdio::null());
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cannot run {program}: {error}");
            false
        }
    }
}

/// Runs a program without output. True if it exists and succeeds.
pub fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
