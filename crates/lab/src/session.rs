//! The lab as one test uses it: a lane, the guard, a directory, and an address that every guest can reach.
//!
//! Guests can reach the host but not each other. A relay on the host's address connects them (see `Link`).

use crate::guard::Guard;
use crate::guest::{Guest, GuestOptions};
use crate::lane::{Lane, Locks};
use crate::log::say;
use crate::require::require;
use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Socket of rpcbind for local clients, in `/run`.
const RPCBIND: &str = "rpcbind.sock";
/// The program that build.rs has built.
pub(crate) const HAND: &str = env!("LAB_HAND");

/// The lab as one test uses it. Clones refer to the same use. It ends when the last clone and everything
/// started in it is dropped.
#[derive(Debug, Clone)]
pub struct Lab {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    directory: PathBuf,
    guests: AtomicU8,
    lane: Lane,
    entered: Instant,
    guard: Guard,
    /// Locks of the other lanes, if the test uses the lab alone. They are released after the guard, which
    /// holds the lock of the test's own lane, has cleaned up.
    _others: Locks,
}

impl Lab {
    /// Enters the lab; waits for a free lane. Returns `None` if `LEASEHOLD_LAB=skip` leaves out the lab's
    /// tests. If the machine cannot run them for another reason, panics with a message that says what to
    /// install. A test may enter only once: a second call would wait forever.
    pub fn enter(name: &str) -> Option<Lab> {
        Lab::enter_by(name, Lane::take)
    }

    /// As [`Lab::enter`], for a test that measures times: no other test is in the lab at the same time.
    pub fn enter_alone(name: &str) -> Option<Lab> {
        Lab::enter_by(name, Lane::take_all)
    }

    fn enter_by(name: &str, take: fn(&str) -> (Lane, Locks)) -> Option<Lab> {
        if !require() {
            say(&format!("{name}: SKIPPED (LEASEHOLD_LAB=skip)"));
            return None;
        }
        let (lane, mut locks) = take(name);
        let entered = Instant::now();
        let directory = create_directory();
        let hand = directory.join("lab-hand");
        // Copy with `cp`. If this process had the file open for writing, a child that another thread is just
        // starting would inherit the descriptor. A file that is open for writing cannot be executed
        // (ETXTBSY).
        host_command("cp", &[HAND, &hand.to_string_lossy()]);
        let guard = Guard::start(&hand, locks.remove(0));
        let guests = AtomicU8::new(0);
        let inner = Inner { name: name.to_owned(), directory, guests, lane, entered, guard, _others: locks };
        let lab = Lab { inner: Arc::new(inner) };
        lab.guard().add(&format!("directory {}", lab.inner.directory.display()));
        lab.add_host_address();
        Some(lab)
    }

    /// The name of the test.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// A directory on a real disk, removed at the end. Guests see it read-only at `/mnt/lab`.
    pub fn directory(&self) -> &Path {
        &self.inner.directory
    }

    /// A new empty directory in [`Lab::directory`].
    pub fn subdirectory(&self, name: &str) -> PathBuf {
        let path = self.inner.directory.join(name);
        fs::create_dir_all(&path)
            .unwrap_or_else(|error| panic!("lab: cannot create {}: {error}", path.display()));
        path
    }

    /// The host's address for every guest and for the host itself. Servers under test listen there.
    pub fn address(&self) -> IpAddr {
        IpAddr::V4(self.lane().host())
    }

    /// [`Lab::address`] with a TCP and UDP port that is currently free.
    pub fn free_address(&self) -> SocketAddr {
        SocketAddr::new(self.address(), free_port(self.address()))
    }

    /// Boots a guest with the default options.
    pub fn guest(&self, name: &str) -> Guest {
        self.boot(GuestOptions::named(name))
    }

    /// Boots a guest.
    pub fn boot(&self, options: GuestOptions) -> Guest {
        Guest::boot(self, options)
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.inner.lane
    }

    pub(crate) fn guard(&self) -> &Guard {
        &self.inner.guard
    }

    /// A number that no other guest of this test has.
    pub(crate) fn next_guest_number(&self) -> u8 {
        let number = self.inner.guests.fetch_add(1, Ordering::SeqCst).saturating_add(1);
        assert!(number < 250, "lab: {} boots too many guests", self.name());
        number
    }

    /// Ensures that an rpcbind runs until the end of the test. Returns the directory that its client must
    /// have as `/run`. Ganesha refuses version 3 without an rpcbind, although no client asks for it. The
    /// rpcbind has its own network namespace, so it opens no port on the host.
    pub fn ensure_rpcbind(&self) -> PathBuf {
        let run = self.subdirectory("run");
        let answers = || UnixStream::connect(run.join(RPCBIND)).ok();
        if answers().is_some() {
            return run;
        }
        self.subdirectory("run/rpcbind");
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--mount", "sh", "-c"])
            .arg("mount --bind \"$0\" /run; ip link set lo up; exec rpcbind -f")
            .arg(&run)
            .stdin(Stdio::null())
            .process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("lab: cannot start rpcbind: {error}"));
        self.guard().add(&format!("group {}", child.id())); // the guard kills it at the end
        std::thread::spawn(move || child.wait());
        wait_for(&format!("rpcbind in {}", run.display()), Duration::from_secs(10), answers);
        run
    }

    fn add_host_address(&self) {
        let cidr = format!("{}/32", self.lane().host());
        let _ = Command::new("ip").args(["addr", "del", &cidr, "dev", "lo"]).stderr(Stdio::null()).status();
        host_command("ip", &["addr", "add", &cidr, "dev", "lo"]);
        self.guard().add(&format!("address {cidr} lo"));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        say(&format!("{}: {:.1} s", self.name, self.entered.elapsed().as_secs_f64()));
    }
}

/// Waits until `attempt` returns a value. Panics with `what` after `patience`.
#[track_caller]
pub fn wait_for<T>(what: &str, patience: Duration, mut attempt: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(started.elapsed() < patience, "lab: {what}: not within {patience:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A port of `address` that is currently free for TCP and UDP.
pub fn free_port(address: IpAddr) -> u16 {
    for _ in 0..64 {
        let Ok(tcp) = TcpListener::bind((address, 0)) else { break };
        let Ok(bound) = tcp.local_addr() else { break };
        if std::net::UdpSocket::bind(bound).is_ok() {
            return bound.port();
        }
    }
    panic!("lab: no free port on {address}");
}

/// Runs a program of the host to its end. If it fails, panics with its error output.
pub(crate) fn host_command(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            panic!("lab: {program} {}: {}: {}", arguments.join(" "), output.status, said.trim());
        }
        Err(error) => panic!("lab: cannot run {program}: {error}"),
    }
}

/// Creates the test's directory, by default in /var/tmp, which should be on a disk: a test writes gigabytes
/// there.
fn create_directory() -> PathBuf {
    let under =
        std::env::var_os("LEASEHOLD_LAB_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let mut builder = tempfile::Builder::new();
    let directory =
        builder.prefix("leasehold-lab.").permissions(fs::Permissions::from_mode(0o755)).tempdir_in(&under);
    let directory =
        directory.unwrap_or_else(|error| panic!("lab: no directory in {}: {error}", under.display()));
    directory.keep() // the guard removes it
}
