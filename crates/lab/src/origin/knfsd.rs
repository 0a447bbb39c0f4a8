//! The Linux kernel's NFS server, in a guest of its own on an ext4 image that outlives the guest.
//!
//! The exported tree is the guest's `/mnt/exp`; a script there changes files behind the back of whoever stands in front. Guests do not
//! reach each other, so the server is reached through a link of its own, whose addresses stay when the guest is replaced.

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
/// Tells who listens, and which of the service's programs run.
const LISTENERS: &str = "ss -ltn; ps ax | grep rp[c]; sleep 5";
/// Tells what a server that has fallen silent is at: its load, memory, connections, threads, and what its kernel said last.
const AT: &str = "uptime; grep -E 'MemFree|Dirty|Writeback' /proc/meminfo; ss -tn; ps ax -o stat,wchan:32,comm | grep -E '^D|nfsd' || true; dmesg | tail -n 20";
/// Server threads: the usual default.
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
    /// Boots a guest, exports a fresh ext4 file system and waits until it answers.
    pub fn start(lab: &Lab) -> Knfsd {
        Knfsd::of_size(lab, IMAGE_BYTES)
    }

    /// The same with a file system of so many bytes.
    pub fn of_size(lab: &Lab, bytes: u64) -> Knfsd {
        let image = lab.directory().join("knfsd.ext4");
        let created = File::create(&image).and_then(|file| file.set_len(bytes));
        created.unwrap_or_else(|error| panic!("lab: {}: {error}", image.display()));
        host_command("mkfs.ext4", &["-q", "-E", "lazy_itable_init=1,nodiscard", &image.to_string_lossy()]);
        let mut knfsd = Knfsd { guest: None, link: None, image, lab: lab.clone() };
        knfsd.boot();
        knfsd
    }

    /// Where it exports: an address of the host that everybody reaches and that outlives a crash.
    pub fn origin(&self) -> Origin {
        self.link().origin()
    }

    /// The same for version 4, whose root is what is exported.
    pub fn origin_v4(&self) -> Origin {
        Origin { export: "/".to_owned(), ..self.origin() }
    }

    /// The way to it, to be cut or slowed.
    pub fn link(&self) -> &Link {
        self.link.as_ref().unwrap_or_else(|| panic!("lab: the server never came up"))
    }

    /// The guest it runs in.
    pub fn guest(&self) -> &Guest {
        self.guest.as_ref().unwrap_or_else(|| panic!("lab: the server's guest is off"))
    }

    /// Runs a script at the server, in the exported directory; it must succeed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.guest().sh(&format!("cd {EXPORT}\n{script}"))
    }

    /// Calls that the server has answered since its guest booted.
    #[track_caller]
    pub fn nfs3_calls(&self) -> CallCounts {
        CallCounts::parse(&self.guest().sh("cat /proc/net/rpc/nfsd"))
    }

    /// Stops the service; connections are closed, new ones refused.
    #[track_caller]
    pub fn stop_service(&self) {
        self.guest().sh("rpc.nfsd 0");
    }

    /// Starts the service again. (Version 4 clients wait for the grace period, which is ended at once.)
    #[track_caller]
    pub fn start_service(&self) {
        self.guest().sh(&format!(
            "rpc.nfsd -V 3 -V 4 -V 4.1 -V 4.2 {THREADS}; echo Y >/proc/fs/nfsd/v4_end_grace || true"
        ));
        self.wait_until_ready();
    }

    /// Pulls the plug and boots again on the same image: what was not stable is lost. Until the service is up again nothing answers.
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
    /// A test that fails shows whether it was the server that hung.
    fn drop(&mut self) {
        if let Some(guest) = self.guest.as_ref().filter(|_| std::thread::panicking()) {
            let told = guest.run_for(Duration::from_secs(10), AT);
            say(&format!("knfsd, asked what it is at ({}):\n{}", told.code, told.tail()));
        }
    }
}
