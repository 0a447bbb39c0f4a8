//! A server, its mounts and optionally a proxy. All of them are processes that can be killed.
//!
//! Only one setting exists at a time in this process. A new process has a copy of every descriptor until it
//! executes its program. Closing those copies sends a FLUSH for files that another test is using.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");
/// How long the process of a mount may take to exit after it was stopped.
const END_PATIENCE: Duration = Duration::from_secs(120);
/// The shortest lease time, which is also that of the grace period.
const BRIEF: [&str; 2] = ["--lease-time", "5"];
/// The NFS versions to test.
pub const VERSIONS: [&str; 2] = ["3", "4.2"];

/// Can this process mount anything?
pub fn may_mount() -> bool {
    let device = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let may = device && rustix::process::geteuid().is_root();
    if !may {
        eprintln!("skipped: mounting takes root and /dev/fuse");
    }
    may
}

static ALONE: Mutex<()> = Mutex::new(());

/// A served directory, and directories for its mounts.
pub struct Setting {
    directory: tempfile::TempDir,
    server: Running,
    mounts: Vec<Mounted>,
    /// Dropped last.
    _alone: MutexGuard<'static, ()>,
}

/// A server process and its address.
pub struct Running {
    child: Child,
    pub address: String,
}

/// A mount, and its name in the test.
struct Mounted {
    name: String,
    child: Child,
}

impl Running {
    /// Starts a program that prints the address that it listens on.
    fn start(command: &mut Command) -> Running {
        Running::of(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn of(mut child: Child) -> Running {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_once(" on ").unwrap_or_else(|| panic!("it said {line:?}")).1;
        let address = address.split(';').next().unwrap().to_owned();
        Running { child, address }
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The process id.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Setting {
    /// Serves an empty directory. Waits until the previous setting is gone.
    pub fn new() -> Setting {
        Setting::with(|_| ())
    }

    /// The same, on a file system of its own with this number of bytes.
    pub fn of_size(bytes: u64) -> Setting {
        Setting::with(|served| {
            let size = format!("size={bytes}");
            output(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "leasehold-test"]).arg(served));
        })
    }

    /// Serves an empty directory, by a process with this limit of descriptors.
    pub fn limited(descriptors: &str) -> Setting {
        Setting::start(|_| (), Some(descriptors), &[])
    }

    /// Serves an empty directory with the shortest grace period.
    pub fn with_brief_grace() -> Setting {
        Setting::start(|_| (), None, &BRIEF)
    }

    fn with(prepare: impl FnOnce(&Path)) -> Setting {
        Setting::start(prepare, None, &[])
    }

    fn start(prepare: impl FnOnce(&Path), descriptors: Option<&str>, options: &[&str]) -> Setting {
        // A test that has failed is over, too.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("served")).unwrap();
        prepare(&directory.path().join("served"));
        let mut command = serve(directory.path(), descriptors);
        let server = Running::start(command.args(["--listen", "127.0.0.1:0"]).args(options));
        Setting { directory, server, mounts: Vec::new(), _alone: alone }
    }

    /// A path in the directory of this setting.
    pub fn place(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A path on the server.
    pub fn there(&self, name: impl AsRef<Path>) -> PathBuf {
        self.place("served").join(name)
    }

    /// A path on a mount.
    pub fn at(&self, mount: &str, name: impl AsRef<Path>) -> PathBuf {
        let mounted = self.place(format!("mnt-{mount}"));
        if name.as_ref().as_os_str().is_empty() { mounted } else { mounted.join(name) }
    }

    /// Mounts the server, and waits until it is mounted.
    pub fn mount(&mut self, name: &str, options: &str) {
        let address = self.server.address.clone();
        self.mount_from(&address, name, options);
    }

    /// The same with another server.
    pub fn mount_from(&mut self, address: &str, name: &str, options: &str) {
        let child = self.mounting(address, name, options).spawn().unwrap();
        self.mounted(name, child);
    }

    /// The command that mounts in the foreground.
    pub fn mounting(&self, address: &str, name: &str, options: &str) -> Command {
        let (cache, log) = (self.cache(name), self.log(name));
        let at = self.at(name, "");
        // The mount point of a killed process exists, but answers nothing.
        if !at.exists() && !is_mounted(&at) {
            fs::create_dir(&at).unwrap();
        }
        let words = format!("cache={},minfree=0,noresvport,log={},{options}", cache.display(), log.display());
        // Under nohup(1) SIGHUP is ignored, and child processes inherit that.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", PROGRAM]);
        command.args(["mount", "--foreground", &format!("nfs://{address}/export")]).arg(&at);
        command.args(["-o", &words]).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Waits until the process has mounted.
    #[track_caller]
    pub fn mounted(&mut self, name: &str, mut child: Child) {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let log = self.log(name);
        assert!(line.contains(" is mounted on "), "it said {line:?}, and in its log {:?}", fs::read(log));
        self.mounts.push(Mounted { name: name.to_owned(), child });
    }

    /// The log file of a mount.
    pub fn log(&self, name: &str) -> PathBuf {
        self.place(format!("log-{name}"))
    }

    /// Gives up a mount without waiting for its process.
    pub fn leave(&mut self, name: &str) -> Child {
        self.take(name).child
    }

    /// The address of the server.
    pub fn address(&self) -> String {
        self.server.address.clone()
    }

    /// Kills the server, and starts it again on the same port. See [`Setting::with_brief_grace`].
    pub fn restart_server(&mut self) {
        self.server.kill();
        let mut command = serve(self.directory.path(), None);
        command.args(["--listen", &self.server.address]).args(BRIEF);
        self.server = Running::start(&mut command);
    }

    /// The server.
    pub fn server(&self) -> &Running {
        &self.server
    }

    /// The process id of a mount.
    pub fn pid_of(&self, name: &str) -> Option<Pid> {
        let mounted = self.mounts.iter().find(|mounted| mounted.name == name)?;
        Some(Pid::from_child(&mounted.child))
    }

    /// Sends SIGTERM to a mount. Returns its process, which exits later.
    pub fn terminate(&mut self, name: &str) -> Child {
        let child = self.take(name).child;
        rustix::process::kill_process(Pid::from_child(&child), rustix::process::Signal::TERM).unwrap();
        child
    }

    /// The exit status of a mount's process after it was unmounted otherwise.
    #[track_caller]
    pub fn ended(&mut self, name: &str) -> ExitStatus {
        let began = Instant::now();
        loop {
            let mounted = self.mounts.iter_mut().find(|mounted| mounted.name == name).unwrap();
            if let Some(status) = mounted.child.try_wait().unwrap() {
                self.take(name);
                return status;
            }
            assert!(began.elapsed() < END_PATIENCE, "the mount {name} has not ended");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends SIGKILL to a mount. Programs that use it get errors from then on.
    pub fn kill(&mut self, name: &str) {
        let mut mounted = self.take(name);
        mounted.child.kill().unwrap();
        mounted.child.wait().unwrap();
    }

    /// Unmounts and waits for a clean exit.
    pub fn unmount(&mut self, name: &str) {
        let unmounted = Command::new(PROGRAM).arg("umount").arg(self.at(name, "")).status().unwrap();
        assert!(unmounted.success());
        assert!(self.take(name).child.wait().unwrap().success());
    }

    fn take(&mut self, name: &str) -> Mounted {
        let at = self.mounts.iter().position(|mounted| mounted.name == name).unwrap();
        self.mounts.remove(at)
    }

    fn cache(&self, name: &str) -> PathBuf {
        self.place(format!("cache-{name}"))
    }

    /// Calls of one procedure that a mount has made to its server so far.
    pub fn upstream(&self, name: &str, procedure: &str) -> u64 {
        self.status(name)["upstream"][procedure]["calls"].as_u64().unwrap_or(0)
    }

    /// READs that a mount has made so far, including those piggybacked on OPENs.
    pub fn reads(&self, name: &str) -> u64 {
        let status = self.status(name);
        let of = |count: &Value| count.as_u64().unwrap_or(0);
        of(&status["upstream"]["READ"]["calls"]) + of(&status["cache"]["piggybacked_reads"])
    }

    pub fn status(&self, name: &str) -> Value {
        let output =
            Command::new(PROGRAM).args(["status", "--json"]).arg(self.at(name, "")).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Checks the data of a cache against its checksums.
    #[track_caller]
    pub fn verify(&self, name: &str) {
        let output = Command::new(PROGRAM).args(["cache", "verify"]).arg(self.cache(name)).output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("; 0 damaged"), "{said}");
    }

    /// Prepares a proxy of the server, at the given address; it waits until it is told to start.
    ///
    /// A process that has files of the mount open must not start a process on which the mount depends. The
    /// child closes those files before it executes its program, and each close sends a FLUSH.
    pub fn proxy(&self, listen: &str) -> Prepared {
        self.proxy_with(listen, "hard")
    }

    /// The same, with an option in the URL.
    pub fn proxy_with(&self, listen: &str, option: &str) -> Prepared {
        self.proxy_limited(listen, option, None)
    }

    /// The same, with a limit of descriptors.
    pub fn limited_proxy(&self, descriptors: &str) -> Prepared {
        self.proxy_limited("127.0.0.1:0", "hard", Some(descriptors))
    }

    fn proxy_limited(&self, listen: &str, option: &str, descriptors: Option<&str>) -> Prepared {
        let url = format!("nfs://{}/export?noresvport&vers=4.2&{option}", self.server.address);
        let mut command = descriptors.map_or_else(|| Command::new("env"), limited);
        command.args(["sh", "-c", "read go; exec \"$@\"", "sh", PROGRAM, "proxy", &url]);
        command.args(["--min-free", "0", "--insecure", "--no-root-squash", "--no-rpcbind"]);
        command.args(["--listen", listen, "--cache"]).arg(self.cache("proxy"));
        Prepared(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }
}

/// A program that waits until it is told to start.
pub struct Prepared(Child);

impl Prepared {
    /// Starts the program, and waits until it prints its address.
    pub fn start(mut self) -> Running {
        writeln!(self.0.stdin.take().unwrap(), "go").unwrap();
        Running::of(self.0)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        for mut mounted in std::mem::take(&mut self.mounts) {
            let at = self.at(&mounted.name, "");
            let _ = Command::new("umount").arg("-l").arg(at).stderr(Stdio::null()).status();
            let _ = mounted.child.kill();
            let _ = mounted.child.wait();
        }
        self.server.kill();
        let served = self.there("");
        if is_mounted(served.components().as_path()) {
            let _ = Command::new("umount").arg("-l").arg(served).status();
        }
        // Mounts whose process was killed are still mounted.
        for entry in fs::read_dir(self.directory.path()).unwrap().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b"mnt-") {
                let _ = Command::new("umount").arg("-lq").arg(entry.path()).stderr(Stdio::null()).status();
            }
        }
    }
}

fn is_mounted(at: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == at.to_str())
}

/// A command that runs another program with a limit of descriptors.
fn limited(descriptors: &str) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={descriptors}:{descriptors}"));
    command
}

fn serve(directory: &Path, descriptors: Option<&str>) -> Command {
    let mut command = descriptors.map_or_else(|| Command::new("env"), limited);
    command.arg(PROGRAM).arg("serve").arg(directory.join("served")).args([
        "--export",
        "/export",
        "--insecure",
    ]);
    command.args(["--no-root-squash", "--no-rpcbind", "--async", "--state"]);
    command.arg(directory.join("state"));
    command
}

/// Waits for a condition; the test fails after twenty seconds.
#[track_caller]
pub fn wait_until(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "it did not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a program and returns its standard output.
#[track_caller]
pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
