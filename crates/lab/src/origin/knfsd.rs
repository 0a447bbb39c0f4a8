//! The Linux kernel's NFS server, in its own guest on an ext4 image that outlives the guest.
//!
//! The exported tree is `/mnt/exp` of the guest. A script there changes files without the knowledge of the
//! server's clients. Guests cannot reach each other, so clients reach the server through its own link. The
//! addresses of the link stay the same when the guest is replaced.

use crate::guest::{Guest, GuestOptions};
use crate::log::say;
use crate::net::{Cut, Link};
use crate::origin::{CallCounts, Origin};
use crate::session::{Lab, host_command, wait_for};
use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SET_UP: &str = include_str!("knfsd.sh");
/// The exported directory in the guest.
const EXPORT: &str = "/mnt/exp";
const PORT: u16 = 2049;
const MOUNTPORT: u16 = 20048;
/// Shows the listening sockets and the running programs of the service.
const LISTENERS: &str = "ss -ltn; ps ax | grep rp[c]; sleep 5";
/// Shows the state of a server that no longer answers: load, memory, connections, threads, last kernel
/// messages.
const AT: &str = "uptime; grep -E 'MemFree|Dirty|Writeback' /proc/meminfo; ss -tn; ps ax -o stat,wchan:32,comm | grep -E '^D|nfsd' || true; dmesg | tail -n 20";
/// Number of server threads: the usual default.
const THREADS: u32 = 8;
/// Size of the image; it is sparse.
const IMAGE_BYTES: u64 = 6 << 30;
/// How long a start may take.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// A running kernel NFS server.
#[derive(Debug)]
pub struct Knfsd {
    guest: Option<Guest>,
    link: Option<Link>,
    image: PathBuf,
    lab: Lab,
}

impl Knfsd {
    /// Boots a guest, exports a new ext4 file system, and waits until the server answers.
    pub fn start(lab: &Lab) -> Knfsd {
        Knfsd::of_size(lab, IMAGE_BYTES)
    }

    /// As `start`, with a file system of `bytes` bytes.
    pub fn of_size(lab: &Lab, bytes: u64) -> Knfsd {
        let image = lab.directory().join("knfsd.ext4");
        let created = File::create(&image).and_then(|file| file.set_len(bytes));
        created.unwrap_or_else(|error| panic!("lab: {}: {error}", image.display()));
        host_command("mkfs.ext4", &["-q", "-E", "lazy_itable_init=1,nodiscard", &image.to_string_lossy()]);
        let mut knfsd = Knfsd { guest: None, link: None, image, lab: lab.clone() };
        knfsd.boot();
        knfsd
    }

    /// The address of its export: an address of the host that all guests can reach, and that stays the same
    /// after a crash.
    pub fn origin(&self) -> Origin {
        self.link().origin()
    }

    /// The same for version 4, where the export is the root.
    pub fn origin_v4(&self) -> Origin {
        Origin { export: "/".to_owned(), ..self.origin() }
    }

    /// The network to the server, which can be cut or slowed.
    pub fn link(&self) -> &Link {
        self.link.as_ref().unwrap_or_else(|| panic!("lab: the server never came up"))
    }

    /// The guest that it runs in.
    pub fn guest(&self) -> &Guest {
        self.guest.as_ref().unwrap_or_else(|| panic!("lab: the server's guest is off"))
    }

    /// Runs a script at the server in the exported directory; the script must succeed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.guest().sh(&format!("cd {EXPORT}\n{script}"))
    }

    /// Calls that the server has answered since its guest booted.
    #[track_caller]
    pub fn nfs3_calls(&self) -> CallCounts {
        CallCounts::parse(&self.guest().sh("cat /proc/net/rpc/nfsd"))
    }

    /// Stops the service. Connections are closed, and new ones are refused.
    #[track_caller]
    pub fn stop_service(&self) {
        self.guest().sh("rpc.nfsd 0");
    }

    /// Starts the service again, and ends its grace period at once, so that version 4 clients need not wait
    /// for it.
    #[track_caller]
    pub fn start_service(&self) {
        self.guest().sh(&format!(
            "rpc.nfsd -V 3 -V 4 -V 4.1 -V 4.2 {THREADS}; echo Y >/proc/fs/nfsd/v4_end_grace || true"
        ));
        self.wait_until_ready();
    }

    /// Kills the guest like a power failure, and boots again on the same image. Unstable data is lost.
    /// Nothing answers until the service runs again.
    pub fn crash(&mut self) {
        self.link().cut(Cut::BlackHole);
        drop(self.guest.take());
        self.boot();
    }

    fn boot(&mut self) {
        let mut options = GuestOptions::named("knfsd");
        options.memory_mib = 1024;
        options.disks.push(self.image.clone());
        let guest = self.lab.boot(options);
        guest.sh(SET_UP);
        let origin =
            Origin { host: guest.address(), port: PORT, mountport: MOUNTPORT, export: EXPORT.to_owned() };
        self.guest = Some(guest);
        self.start_service();
        match &self.link {
            None => self.link = Some(Link::to(&self.lab, &origin)),
            Some(link) => {
                link.retarget(&origin);
                link.restore();
            }
        }
    }

    fn wait_until_ready(&self) {
        let host = self.guest().address();
        for port in [PORT, MOUNTPORT] {
            let address = SocketAddr::new(host, port);
            let started = Instant::now();
            wait_for(&format!("knfsd at {address}"), START_PATIENCE, || {
                let answer = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok();
                if answer.is_none() && started.elapsed() > START_PATIENCE / 2 {
                    say(&format!("knfsd at {address} is late: {}", self.guest().run(LISTENERS).text));
                }
                answer
            });
        }
    }
}

impl Drop for Knfsd {
    /// If the test is failing, shows whether the server was hanging.
    fn drop(&mut self) {
        if let Some(guest) = self.guest.as_ref().filter(|_| std::thread::panicking()) {
            let told = guest.run_for(Duration::from_secs(10), AT);
            say(&format!("knfsd, asked what it is at ({}):\n{}", told.code, told.tail()));
        }
    }
}
