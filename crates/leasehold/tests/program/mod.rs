//! Runs the program as a user does: in the background, stopped by a signal, with directories of its own.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

pub mod http;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

pub fn leasehold(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub fn run(arguments: &[&str]) -> Output {
    leasehold(arguments).output().unwrap()
}

/// A server in the background; dropping the value kills it.
pub struct Running {
    pub child: Child,
    pub address: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Starts a server, and reads its address from the line that reports it is ready.
    pub fn start(arguments: &[&str]) -> Running {
        Running::start_at(arguments, "127.0.0.1:0")
    }

    /// The same, on a given address.
    pub fn start_at(arguments: &[&str], address: &str) -> Running {
        Running::of(leasehold(arguments), address)
    }

    /// The same, with a limit of descriptors.
    pub fn start_limited(arguments: &[&str], descriptors: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n \"$1\"; shift; exec \"$@\"", "sh", descriptors]);
        command.arg(env!("CARGO_BIN_EXE_leasehold")).args(arguments).stdin(Stdio::null());
        Running::of(command, "127.0.0.1:0")
    }

    /// The same, with this directory as the root. Only root can do this.
    pub fn start_in(root: impl AsRef<Path>, arguments: &[&str]) -> Running {
        let mut command = Command::new("chroot");
        command.arg(root.as_ref()).arg("/usr/bin/leasehold").args(arguments).stdin(Stdio::null());
        Running::of(command, "127.0.0.1:0")
    }

    /// The same, in a mount namespace where these files are those of /etc. Only root can do this.
    pub fn start_bound(files: &[(&str, &Path)], arguments: &[&str]) -> Running {
        let binds = files.iter().map(|(name, file)| format!("mount --bind {} /etc/{name}", path(file)));
        let script = binds.chain(["exec \"$@\"".to_owned()]).collect::<Vec<_>>().join(" && ");
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script, "sh", env!("CARGO_BIN_EXE_leasehold")]);
        command.args(arguments).stdin(Stdio::null());
        Running::of(command, "127.0.0.1:0")
    }

    fn of(mut command: Command, address: &str) -> Running {
        // A configuration file has keys for the options of exports.
        let is_configured = command.get_args().any(|argument| argument == "--config");
        let admitting: &[&str] = if is_configured { &[] } else { &["--insecure", "--no-root-squash"] };
        let mut child = command
            .args(["--listen", address])
            .args(admitting)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Some((_, behind)) = line.split_once(" on ") else {
            let mut error = String::new();
            child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            panic!("{line}{error}");
        };
        let address = behind.split(';').next().unwrap().to_owned();
        Running { child, address }
    }

    pub fn url(&self) -> String {
        format!("nfs://{}/export?noresvport", self.address)
    }

    /// Stops it with SIGTERM. Returns its standard error.
    pub fn terminate(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut error = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert!(self.child.wait().unwrap().success(), "{error}");
        error
    }
}

pub fn path(directory: &Path) -> &str {
    directory.to_str().unwrap()
}

/// Checks for exit code 1 and exactly one line, which contains these words.
#[track_caller]
pub fn fails_with(output: &Output, words: &[&str]) {
    fails_in_lines(output, words, 1);
}

/// The same, with this number of lines.
#[track_caller]
pub fn fails_in_lines(output: &Output, words: &[&str], lines: usize) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(error.trim_end().lines().count(), lines, "{error}");
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

pub struct Tree {
    pub directory: tempfile::TempDir,
}

impl Tree {
    pub fn new() -> Tree {
        let directory = tempfile::tempdir().unwrap();
        for name in ["served", "state", "cache"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        std::fs::write(directory.path().join("served/file"), b"content").unwrap();
        Tree { directory }
    }

    pub fn path(&self, name: &str) -> String {
        path(&self.directory.path().join(name)).to_owned()
    }

    pub fn serve(&self) -> Running {
        self.serve_at("127.0.0.1:0")
    }

    /// The same, on a given address.
    pub fn serve_at(&self, address: &str) -> Running {
        let (served, state) = (self.path("served"), self.path("state"));
        Running::start_at(&["serve", &served, "--export", "/export", "--state", &state], address)
    }

    pub fn proxy(&self, origin: &Running) -> Running {
        self.proxy_with(origin, &[])
    }

    /// The same, with more options.
    pub fn proxy_with(&self, origin: &Running, more: &[&str]) -> Running {
        let (url, cache) = (origin.url(), self.path("cache"));
        let all = [&["proxy", &url, "--cache", &cache, "--min-free", "0"], more].concat();
        Running::start(&all)
    }
}
