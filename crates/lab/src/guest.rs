//! A guest: Debian's user-mode Linux, a kernel that runs as an ordinary process. Its read-only root is the
//! host's `/`.
//!
//! So a guest has everything that the host has installed; only `/tmp`, `/run` and `/mnt` are its own. In
//! about two seconds it boots to an agent that runs scripts. A guest has one processor and is pinned to one
//! of the host's processors, which makes its system calls several times faster.

mod kerberos;
mod kernel;
mod nfs;
mod task;
mod xstate;

pub use nfs::{V2, V3, V4_0, V4_1, V4_2};
pub use task::{Output, Task};

use crate::guest::kernel::Kernel;
use crate::hand::Hand;
use crate::log::Log;
use crate::session::{Lab, host_command};
use rustix::process::{Pid, Signal};
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The script of a guest's first process.
const INIT: &str = include_str!("guest/init.sh");
/// Port of the agent.
const AGENT_PORT: u16 = 7;
/// How long a boot may take on a busy machine.
const BOOT_PATIENCE: Duration = Duration::from_secs(60);
/// How long a script may take by default.
const SCRIPT_PATIENCE: Duration = Duration::from_secs(180);
/// Prefix of each script: stops at the first failure and reports its line.
const STRICT: &str = "set -eEu -o pipefail\n\
    trap 'code=$?; echo \"lab: line $((LINENO - 2)) failed with $code: $BASH_COMMAND\" >&2' ERR\n";

/// The properties of a guest.
#[derive(Debug, Clone)]
pub struct GuestOptions {
    /// Its host name.
    pub name: String,
    /// Its memory in MiB.
    pub memory_mib: u32,
    /// Disk images, visible in the guest as `/dev/ubda`, `/dev/ubdb`, ….
    pub disks: Vec<PathBuf>,
    /// The directory of a kernel that `cargo xtask lab --kernels` has fetched; `None` means the host's own
    /// package.
    pub kernel: Option<PathBuf>,
}

impl GuestOptions {
    /// The default guest: 768 MiB, no disks, and the kernel that `LEASEHOLD_LAB_KERNEL` names, if it is set.
    pub fn named(name: &str) -> GuestOptions {
        GuestOptions {
            name: name.to_owned(),
            memory_mib: 768,
            disks: Vec::new(),
            kernel: kernel::of_environment(),
        }
    }
}

/// A running guest. Dropping it kills it at once, like a power failure.
#[derive(Debug)]
pub struct Guest {
    options: GuestOptions,
    number: u8,
    child: Child,
    console: Log,
    lab: Lab,
}

impl Guest {
    pub(crate) fn boot(lab: &Lab, options: GuestOptions) -> Guest {
        let number = lab.next_guest_number();
        create_tap(lab, number);
        let (child, console) = start_kernel(lab, &options, number);
        lab.guard().add(&format!("group {}", child.id()));
        let mut guest = Guest { options, number, child, console, lab: lab.clone() };
        guest.wait_until_ready();
        guest
    }

    /// Its host name.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// Its address. The host can reach it, other guests cannot.
    pub fn address(&self) -> IpAddr {
        IpAddr::V4(self.lab.lane().address(self.number, 2))
    }

    /// The host's end of its network: a tap device.
    pub fn device(&self) -> String {
        self.lab.lane().device(self.number)
    }

    /// The lab that it belongs to.
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Version of its kernel, such as `(6, 1)`.
    #[track_caller]
    pub fn linux(&self) -> (u32, u32) {
        let release = self.sh("uname -r");
        let mut numbers = release.split(['.', '-', '+']).map_while(|word| word.trim().parse().ok());
        (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
    }

    /// The last output of the kernel and the first process.
    pub fn console(&self) -> String {
        self.console.text()
    }

    /// Runs a bash script, which stops at the first failing command, and waits up to three minutes for it.
    pub fn run(&self, script: &str) -> Output {
        self.run_for(SCRIPT_PATIENCE, script)
    }

    /// Runs a script for at most `patience`. Then kills it and returns code 124, like timeout(1). If the
    /// guest dies, the code is 255.
    pub fn run_for(&self, patience: Duration, script: &str) -> Output {
        self.spawn(script).wait(patience)
    }

    /// Runs a script that must succeed, and returns its output.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let output = self.run(script);
        assert!(
            output.code == 0,
            "lab: {}: script failed with {}:\n{}",
            self.name(),
            output.code,
            output.tail()
        );
        output.text
    }

    /// Starts a script without waiting for it. Dropping the task kills the script.
    pub fn spawn(&self, script: &str) -> Task {
        Task::start(self.connect(), &format!("{STRICT}{script}"))
    }

    /// A hand that works in this guest.
    pub fn hand(&self) -> Hand {
        let hand = self.connect().and_then(Hand::in_guest);
        hand.unwrap_or_else(|error| panic!("lab: no hand in {}: {error}\n{}", self.name(), self.last_words()))
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.child.id() as i32) {
            let _ = rustix::process::kill_process_group(group, signal); // it may have ended
        }
    }

    /// Syncs file systems, shuts down in order, and waits for the end.
    pub fn halt(mut self) {
        let _ = self.run("sync");
        let _ = self.spawn("echo o >/proc/sysrq-trigger").wait(Duration::from_secs(5));
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(10) && matches!(self.child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let address = SocketAddr::new(self.address(), AGENT_PORT);
        TcpStream::connect_timeout(&address, Duration::from_secs(10))
    }

    fn wait_until_ready(&mut self) {
        let ready = self.console.wait_for_line("LAB-", BOOT_PATIENCE);
        assert!(
            ready.as_deref().is_some_and(|line| line.contains("LAB-READY")),
            "lab: guest {} did not come up within {BOOT_PATIENCE:?}\n{}",
            self.name(),
            self.last_words()
        );
    }

    fn last_words(&self) -> String {
        let console = self.console.text();
        let lines: Vec<&str> = console.lines().collect();
        let tail = &lines[lines.len().saturating_sub(40)..];
        format!("console of {}:\n{}", self.name(), tail.join("\n"))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.last_words());
        }
        let group = self.child.id();
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        self.lab.guard().forget(&format!("group {group}"));
        let device = self.lab.lane().device(self.number);
        let _ = Command::new("ip").args(["link", "del", &device]).stderr(Stdio::null()).status();
        self.lab.guard().forget(&format!("link {device}"));
    }
}

fn create_tap(lab: &Lab, number: u8) {
    let device = lab.lane().device(number);
    let _ = Command::new("ip").args(["link", "del", &device]).stderr(Stdio::null()).status(); // an old device
    host_command("ip", &["tuntap", "add", "dev", &device, "mode", "tap"]);
    lab.guard().add(&format!("link {device}"));
    host_command("ip", &["addr", "add", &format!("{}/24", lab.lane().address(number, 1)), "dev", &device]);
    host_command("ip", &["link", "set", &device, "up"]);
}

fn start_kernel(lab: &Lab, options: &GuestOptions, number: u8) -> (Child, Log) {
    let directory = lab.directory().display();
    let init = lab.directory().join("init");
    let written =
        fs::write(&init, INIT).and_then(|()| fs::set_permissions(&init, fs::Permissions::from_mode(0o755)));
    written.unwrap_or_else(|error| panic!("lab: cannot write {}: {error}", init.display()));
    let kernel = Kernel::of(options.kernel.as_deref());
    let mut command = kernel.command(lab.lane().processor(number), lab.directory());
    command.arg(format!("mem={}M", options.memory_mib)).arg(format!("umid={}", options.name));
    command.arg(format!("uml_dir={directory}/uml")).args(["rootfstype=hostfs", "rootflags=/", "ro", "quiet"]);
    command.arg(format!("init={}", init.display())).args(["con=null", "ssl=null", "con0=null,fd:1"]);
    // Without gro=1, bulk reads hang.
    command.arg(format!("vec0:transport=tap,ifname={},depth=128,gro=1", lab.lane().device(number)));
    for (index, disk) in options.disks.iter().enumerate() {
        command.arg(format!("ubd{index}={}", disk.display()));
    }
    command.arg(format!("LAB_NAME={}", options.name)).arg(format!("LAB_DIRECTORY={directory}"));
    command
        .arg(format!("LAB_ADDRESS={}", lab.lane().address(number, 2)))
        .arg(format!("LAB_GATEWAY={}", lab.lane().address(number, 1)));
    command.env("TMPDIR", memory_directory(lab, options.memory_mib)).process_group(0);

    let (reader, writer) = std::io::pipe().unwrap_or_else(|error| panic!("lab: no pipe: {error}"));
    let errors = writer.try_clone().unwrap_or_else(|error| panic!("lab: no pipe: {error}"));
    command.stdin(Stdio::null()).stdout(writer).stderr(errors);
    let child =
        command.spawn().unwrap_or_else(|error| panic!("lab: cannot start {}: {error}", kernel.name()));
    let console = Log::default();
    console.collect(reader);
    (child, console)
}

/// The directory for the file with the guest's memory. It is in memory if there is capacity, to avoid disk
/// writes.
fn memory_directory(lab: &Lab, memory_mib: u32) -> PathBuf {
    let shared = PathBuf::from("/dev/shm");
    let free =
        rustix::fs::statvfs(&shared).map_or(0, |status| status.f_bavail.saturating_mul(status.f_frsize));
    if free >> 20 > u64::from(memory_mib) + 64 { shared } else { lab.directory().to_owned() }
}
