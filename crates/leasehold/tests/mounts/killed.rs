//! Kills a mount while one of its threads waits in the kernel. The thread notifies the kernel of a name and
//! needs the lock of the directory. A program holds that lock and waits for a reply of the mount. After the
//! kill that reply can never come, and still no program may hang.
//!
//! Promise: no-program-hangs

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::setting::{Setting, may_mount, output, wait_until};
use crate::stress::watch::Connection;

/// The waiting program must get its error within this time.
const BOUND: Duration = Duration::from_secs(20);
/// Attempts to bring the wait about.
const TRIES_MAX: usize = 10;

/// A path to the server on which requests can be held back. The server's callbacks still get through.
struct Way {
    address: SocketAddr,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Way {
    fn to(server: &str) -> Way {
        let (listener, server) = (TcpListener::bind("127.0.0.1:0").unwrap(), server.to_owned());
        let (address, gate) = (listener.local_addr().unwrap(), <Arc<(Mutex<bool>, Condvar)>>::default());
        let shared = gate.clone();
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let server = TcpStream::connect(&server).unwrap();
                let (up, down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let gate = shared.clone();
                std::thread::spawn(move || copy(up, server, || drop(open(&gate))));
                std::thread::spawn(move || copy(down, client, || ()));
            }
        });
        Way { address, gate }
    }

    fn hold_requests(&self) {
        *self.gate.0.lock().unwrap() = true;
    }

    fn let_requests_go(&self) {
        *self.gate.0.lock().unwrap() = false;
        self.gate.1.notify_all();
    }
}

/// Waits while requests are held back.
fn open(gate: &(Mutex<bool>, Condvar)) -> std::sync::MutexGuard<'_, bool> {
    gate.1.wait_while(gate.0.lock().unwrap(), |held| *held).unwrap()
}

fn copy(mut from: TcpStream, mut to: TcpStream, may_go_on: impl Fn()) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        may_go_on();
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Does a thread of the process sleep uninterruptibly in the kernel?
fn is_stuck(process: Pid) -> bool {
    let tasks =
        fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).into_iter().flatten().flatten();
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).unwrap_or_default();
    tasks.map(status).any(|status| status.contains("\nState:\tD"))
}

/// File leases that the server has granted.
fn file_leases(setting: &Setting) -> u64 {
    let mut status = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    let status = output(status.args(["status", "--json"]).arg(setting.place("state")));
    let held = &serde_json::from_str::<serde_json::Value>(&status).unwrap()["held"]["/export"];
    ["read_leases", "write_leases"].iter().filter_map(|kind| held[kind].as_u64()).sum()
}

/// The guardian process that a mount has started.
fn guardian_of(process: Pid) -> Option<Pid> {
    let parent = format!("\nPPid:\t{}\n", process.as_raw_nonzero());
    let of = |entry: fs::DirEntry| {
        let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let read = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        (read("status").contains(&parent) && read("cmdline").contains("\0guard\0")).then_some(pid)
    };
    fs::read_dir("/proc").unwrap().flatten().find_map(of)
}

/// Has the guardian opened the connection's `abort` file?
fn is_armed(guardian: Pid) -> bool {
    let opened =
        fs::read_dir(format!("/proc/{}/fd", guardian.as_raw_nonzero())).into_iter().flatten().flatten();
    opened.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path.ends_with("abort"))
}

fn has_ended(child: &mut Child, bound: Duration) -> bool {
    let end = Instant::now() + bound;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Makes a mount with a thread that waits for a program that waits for the server. Returns that program, and
/// another one whose write has made the server recall a lease from the mount.
fn stuck(setting: &mut Setting, way: &Way) -> (Child, Child) {
    setting.mount_from(&way.address.to_string(), "a", "vers=4.2");
    setting.mount("b", "vers=4.2");
    let process = setting.pid_of("a").unwrap();
    wait_until(|| guardian_of(process).is_some_and(is_armed));
    // The server decides whether it grants a lease, so a recall may find nothing to notify. Then try again.
    for round in 0..TRIES_MAX {
        let directory = format!("d{round}");
        fs::create_dir(setting.there(&directory)).unwrap();
        fs::write(setting.there(&directory).join("f"), "text").unwrap();
        let (mut waiting, mut other) = try_to_stick(setting, way, &directory);
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            if is_stuck(process) {
                return (waiting, other);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        way.let_requests_go();
        waiting.wait().unwrap();
        other.wait().unwrap();
    }
    panic!("no recall found a thread to wait in {TRIES_MAX} tries");
}

/// Starts a mkdir that waits for the server, and elsewhere a write to a file of the same directory on which
/// the mount has a lease.
fn try_to_stick(setting: &Setting, way: &Way, directory: &str) -> (Child, Child) {
    let at = |mount: &str, name: &str| setting.at(mount, directory).join(name);
    // The recall of a lease on the file makes the mount notify the kernel of the name.
    let before = file_leases(setting);
    wait_until(|| {
        assert_eq!(fs::read(at("a", "f")).unwrap(), b"text");
        file_leases(setting) > before
    });
    // The shell is in the directory already. So its first request is for the name, and the kernel holds the
    // lock of the directory for it.
    let mut making = Command::new("sh");
    making.args(["-c", "read go && exec mkdir new"]).current_dir(at("a", "")).stdin(Stdio::piped());
    let mut waiting = making.stderr(Stdio::null()).spawn().unwrap();
    fs::metadata(at("a", "")).unwrap();
    way.hold_requests();
    waiting.stdin.take().unwrap().write_all(b"\n").unwrap();
    wait_until(|| {
        let wchan = fs::read_to_string(format!("/proc/{}/wchan", waiting.id())).unwrap_or_default();
        wchan == "request_wait_answer"
    });
    let mut other = Command::new("sh");
    other.args(["-c", "echo other > \"$0\""]).arg(at("b", "f")).stderr(Stdio::null());
    (waiting, other.spawn().unwrap())
}

fn kill(guarded: bool) {
    let mut setting = Setting::new();
    let way = Way::to(&setting.address());
    let (mut waiting, mut other) = stuck(&mut setting, &way);
    let (process, connection) = (setting.pid_of("a").unwrap(), Connection::of(&setting.at("a", "")));
    if !guarded {
        kill_process(guardian_of(process).unwrap(), Signal::KILL).unwrap();
    }
    kill_process(process, Signal::KILL).unwrap();
    if !guarded {
        wait_until(|| {
            fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()))
                .is_ok_and(|status| status.contains("\nState:\tZ"))
        });
        let mut unmounting = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        unmounting
            .args(["umount", "--lazy"])
            .arg(setting.at("a", ""))
            .stderr(Stdio::null())
            .status()
            .unwrap();
    }
    let ended = has_ended(&mut waiting, BOUND);
    if !ended {
        // Nothing else would end the program, and it would hang the whole machine.
        connection.abort();
        waiting.wait().unwrap();
    }
    setting.kill("a");
    let looked = fs::read_dir(setting.at("a", "")).map(|_| ()).map_err(|error| error.raw_os_error());
    let _ = other.kill();
    let _ = other.wait();
    assert!(ended, "who waited for the mount that was killed waits for ever");
    assert!(!waiting.wait().unwrap().success(), "mkdir was never answered");
    let told = if guarded { Err(Some(Errno::NOTCONN.raw_os_error())) } else { Ok(()) };
    assert_eq!(looked, told, "guarded: {guarded}");
}

#[test]
fn a_mount_that_is_killed_while_it_notifies_the_kernel_leaves_nobody_waiting() {
    if may_mount() {
        kill(true);
    }
}

#[test]
fn umount_ends_what_a_mount_without_its_guardian_has_left() {
    if may_mount() {
        kill(false);
    }
}
