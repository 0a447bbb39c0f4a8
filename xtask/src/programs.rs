//! The workspace's test programs: built all at once and run by themselves.
//!
//! `cargo test -p …` for one part after the other would build the dependencies again with that part's features; and a list of parts
//! kept by hand forgets one. So cargo is asked once for everything, and says which programs it made.

use crate::steps::root;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestProgram {
    executable: PathBuf,
    /// Its package's directory, where it runs.
    directory: PathBuf,
    /// The name of its target: a crate's, or that of a file in `tests`.
    target: String,
}

impl TestProgram {
    /// Builds the tests of the whole workspace. `None` if that fails; cargo has said why.
    pub fn build_all() -> Option<Vec<TestProgram>> {
        let build = ["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"];
        let mut command = Command::new("cargo");
        command.args(build).current_dir(root()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut cargo = command.spawn().map_err(|error| eprintln!("cannot run cargo: {error}")).ok()?;
        let messages = BufReader::new(cargo.stdout.take()?).lines().map_while(Result::ok);
        let mut programs: Vec<TestProgram> = messages.filter_map(|line| TestProgram::told(&line)).collect();
        programs.sort_by_key(TestProgram::name);
        cargo.wait().is_ok_and(|status| status.success()).then_some(programs)
    }

    /// The program that a message of cargo's tells of, if it tells of one.
    fn told(message: &str) -> Option<TestProgram> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        Some(TestProgram {
            executable: message["executable"].as_str()?.into(),
            directory: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
            target: message["target"]["name"].as_str()?.to_owned(),
        })
    }

    /// Is it one of those that boot kernels?
    pub fn is_in_lab(&self) -> bool {
        self.package() == "lab" || self.target == "lab"
    }

    /// Package and target.
    pub fn name(&self) -> String {
        format!("{} {}", self.package(), self.target)
    }

    fn package(&self) -> String {
        self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Runs it; each line that it prints goes to `line`. True if it succeeded.
    pub fn run(&self, environment: &[(&str, &str)], line: impl FnMut(&str)) -> bool {
        let started = Instant::now();
        eprintln!("--- {}", self.name());
        let mut command = Command::new(&self.executable);
        command.envs(environment.iter().copied()).current_dir(&self.directory);
        let passed = run_through(command, line);
        eprintln!("--- {}: {:.1} s", self.name(), started.elapsed().as_secs_f64());
        passed
    }
}

/// Runs a command to its end with each line of its standard output shown and given to `line`; true if it succeeded.
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
    use super::TestProgram;

    #[test]
    fn cargo_tells_of_test_programs_among_other_things() {
        let test = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/leasehold/Cargo.toml","profile":{"test":true},
            "target":{"name":"mounts","kind":["test"]},"executable":"/t/mounts-1"}"#;
        let program = TestProgram::told(test).expect("a program");
        assert_eq!((program.name().as_str(), program.is_in_lab()), ("leasehold mounts", false));
        assert!(
            TestProgram::told(&test.replace("mounts\",\"kind", "lab\",\"kind")).expect("one").is_in_lab()
        );
        assert!(TestProgram::told(&test.replace("/leasehold/", "/lab/")).expect("one").is_in_lab());
        assert_eq!(TestProgram::told(&test.replace("true", "false")), None, "a program for users");
        assert_eq!(TestProgram::told(&test.replace("\"/t/mounts-1\"", "null")), None, "a library");
        assert_eq!(TestProgram::told(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(TestProgram::told("not JSON"), None);
    }
}
