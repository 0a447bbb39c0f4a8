//! The test programs of the workspace, and the `leasehold` that they run: built together, then run one by
//! one.
//!
//! `cargo test -p …` or `cargo run -p …` for each part would build the dependencies again with the features
//! of that part. A list of parts kept by hand would miss one. So one cargo command builds everything, and
//! its messages name the programs.

use crate::steps::root;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The programs that cargo has built.
#[derive(Debug, Default)]
pub struct Programs {
    /// In the order of their names.
    pub tests: Vec<TestProgram>,
    /// The `leasehold` binary, if cargo has built it.
    pub leasehold: Option<PathBuf>,
}

impl Programs {
    /// Builds the tests of the whole workspace and the programs that they need. `None` if that fails; cargo
    /// has printed the cause.
    pub fn build() -> Option<Programs> {
        let build = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
        let mut command = Command::new("cargo");
        command.args(build).current_dir(root()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut cargo = command.spawn().map_err(|error| eprintln!("cannot run cargo: {error}")).ok()?;
        let mut programs = Programs::default();
        for line in BufReader::new(cargo.stdout.take()?).lines().map_while(Result::ok) {
            programs.told(&line);
        }
        programs.tests.sort_by_key(TestProgram::name);
        cargo.wait().is_ok_and(|status| status.success()).then_some(programs)
    }

    /// Takes the program that a message of cargo names, if it names one.
    fn told(&mut self, message: &str) -> Option<()> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["reason"] != "compiler-artifact" {
            return None;
        }
        let (executable, target) = (message["executable"].as_str()?, message["target"]["name"].as_str()?);
        if message["profile"]["test"] == true {
            self.tests.push(TestProgram {
                executable: executable.into(),
                directory: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
                target: target.to_owned(),
            });
        } else if target == "leasehold" {
            self.leasehold = Some(executable.into());
        }
        Some(())
    }
}

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestProgram {
    executable: PathBuf,
    /// The directory of its package, in which it runs.
    directory: PathBuf,
    /// The name of its target: of a crate, or of a file in `tests`.
    target: String,
}

impl TestProgram {
    /// Do all its tests boot kernels?
    pub fn is_in_lab(&self) -> bool {
        self.package() == "lab" || self.target == "lab"
    }

    /// Words in the names of its tests that boot kernels. An empty list means all tests, `None` means no
    /// test.
    pub fn tests_in_lab(&self) -> Option<&'static [&'static str]> {
        match &*self.target {
            _ if self.is_in_lab() => Some(&[]),
            "programs" => Some(&["kernel::"]),
            _ => None,
        }
    }

    /// Do its tests wait for most of their time: for mounts, processes and timeouts?
    pub fn waits(&self) -> bool {
        ["mounts", "mounted", "programs"].contains(&&*self.target)
    }

    /// The package and the target.
    pub fn name(&self) -> String {
        format!("{} {}", self.package(), self.target)
    }

    fn package(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Runs the tests whose names contain one of the words in `only`, or all if there are none. Prints each
    /// output line and passes it to `line`. True if the program succeeds.
    pub fn run(&self, environment: &[(&str, &str)], only: &[&str], line: impl FnMut(&str)) -> bool {
        let started = Instant::now();
        eprintln!("--- {}", self.name());
        let mut command = self.command(environment);
        command.args(only);
        let passed = run_through(command, line);
        eprintln!("--- {}: {:.1} s", self.name(), started.elapsed().as_secs_f64());
        passed
    }

    /// Runs the program beside others, and prints its output in one piece at its end. True if it succeeds.
    pub fn run_beside(&self, environment: &[(&str, &str)], line: impl FnMut(&str)) -> bool {
        let started = Instant::now();
        let output = self.command(environment).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let Ok(output) = output.inspect_err(|error| eprintln!("cannot run {}: {error}", self.name())) else {
            return false;
        };
        let printed = String::from_utf8_lossy(&output.stdout);
        printed.lines().for_each(line);
        let took = started.elapsed().as_secs_f64();
        println!("--- {}\n{printed}--- {}: {took:.1} s", self.name(), self.name());
        output.status.success()
    }

    fn command(&self, environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(&self.executable);
        command.envs(environment.iter().copied()).current_dir(&self.directory);
        command
    }
}

/// Runs a command to its end. Prints each line of its standard output and passes it to `line`. True if it
/// succeeds.
pub fn run_through(mut command: Command, mut line: impl FnMut(&str)) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("cannot run {}: {error}", command.get_program().display());
            return false;
        }
    };
    for printed in
        child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines).map_while(Result::ok)
    {
        line(&printed);
        println!("{printed}");
    }
    child.wait().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::{Programs, TestProgram};
    use std::path::Path;

    fn told(message: &str) -> Programs {
        let mut programs = Programs::default();
        programs.told(message);
        programs
    }

    fn test_told(message: &str) -> Option<TestProgram> {
        told(message).tests.pop()
    }

    #[test]
    fn cargo_tells_of_test_programs_among_other_things() {
        let test = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/leasehold/Cargo.toml","profile":{"test":true},
            "target":{"name":"mounts","kind":["test"]},"executable":"/t/mounts-1"}"#;
        let program = test_told(test).expect("a program");
        assert_eq!((program.name().as_str(), program.is_in_lab()), ("leasehold mounts", false));
        assert!(test_told(&test.replace("mounts\",\"kind", "lab\",\"kind")).expect("one").is_in_lab());
        assert!(test_told(&test.replace("/leasehold/", "/lab/")).expect("one").is_in_lab());
        let some = test_told(&test.replace("mounts\",\"kind", "programs\",\"kind")).expect("one");
        assert_eq!((some.is_in_lab(), some.tests_in_lab()), (false, Some(&["kernel::"][..])));
        assert_eq!((program.tests_in_lab(), program.waits()), (None, true));
        assert_eq!(test_told(&test.replace("true", "false")), None, "not a test");
        assert_eq!(test_told(&test.replace("\"/t/mounts-1\"", "null")), None, "a library");
        assert_eq!(test_told(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(test_told("not JSON"), None);
    }

    #[test]
    fn cargo_tells_where_the_program_for_users_is() {
        let users = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/leasehold/Cargo.toml","profile":{"test":false},
            "target":{"name":"leasehold","kind":["bin"]},"executable":"/t/leasehold"}"#;
        assert_eq!(told(users).leasehold.as_deref(), Some(Path::new("/t/leasehold")));
        assert_eq!(told(&users.replace("false", "true")).leasehold, None, "its unit tests");
        assert_eq!(told(&users.replace(":\"leasehold\"", ":\"bench\"")).leasehold, None, "another one");
    }
}
