//! A test's stay in the lab: its lane, the guard, a directory, an address that every guest can reach.
//!
//! Guests reach the host and not each other; a relay on the host's address joins them (see `Link`).

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

/// Where rpcbind listens for its own machine, in `/run`.
const RPCBIND: &str = "rpcbind.sock";
/// The program that build.rs made.
const HAND: &str = env!("LAB_HAND");

/// A test's stay in the lab; clones are the same stay, which ends with the last of them and of what was started in it.
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
    /// The other lanes, if the stay is alone; let go of when the guard, which holds its own, has cleaned up.
    _others: Locks,
}

impl Lab {
    /// Enters the lab, waiting for a free lane. `None` where the lab's tests are left out on purpose (`LEASEHOLD_LAB=skip`); a
    /// machine that cannot run them otherwise is a panic with the way out. A test enters once: a second time waits for ever.
    pub fn enter(name: &str) -> Option<Lab> {
        Lab::enter_by(name, Lane::take)
    }

    /// [`Lab::enter`] for a test that measures times: nobody else is in the lab meanwhile.
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
        // By a program: while this process had it open for writing, a child that another test is just starting would have it so too,
        // and what somebody writes cannot be run (ETXTBSY).
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

    /// A directory on a real disk that lives as long as the stay; guests see it, read-only, at `/mnt/lab`.
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

    /// The host's address as every guest and the host itself see it: servers under test listen here.
    pub fn address(&self) -> IpAddr {
        IpAddr::V4(self.lane().host())
    }

    /// [`Lab::address`] with a TCP and UDP port that is free now.
    pub fn free_address(&self) -> SocketAddr {
        SocketAddr::new(self.address(), free_port(self.address()))
    }

    /// Boots a guest with the usual options.
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

    /// A number no other guest of this stay has.
    pub(crate) fn next_guest_number(&self) -> u8 {
        let number = self.inner.guests.fetch_add(1, Ordering::SeqCst).saturating_add(1);
        assert!(number < 250, "lab: {} boots too many guests", self.name());
        number
    }

    /// Sees to it that an rpcbind answers till the end of the stay, and returns the directory to have as `/run` for being answered:
    /// ganesha refuses version 3 without one, though nobody asks it. It has a network of its own, so that it opens no port here.
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
        self.guard().add(&format!("group {}", child.id())); // which ends it
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

/// Waits until `attempt` gives something; panics with `what` after `patience`.
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

/// A port of `address` that nobody has now, for TCP and for UDP.
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

/// Runs a program of the host to its end; what it says on failure is the panic's text.
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

/// Under /var/tmp, which is meant to be a disk: a test puts gigabytes here.
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
