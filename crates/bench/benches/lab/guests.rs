//! The guests of the comparison: clients that mount and run a pass, and one guest that re-exports its mount.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bench::relay::Relay;
use bench::run::Passed;
use bench::system::Address;
use bench::workload::{Plan, Workload};
use lab::{Guest, GuestOptions, Lab, Origin};

/// Mount point of the clients.
const MOUNTED: &str = "/mnt/nfs";
/// The longest time that a pass may take.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Size of the disk for the kernel's cache; the image is sparse.
const DISK_BYTES: u64 = 4 << 30;
/// Port of the kernel's NFS server.
const NFS_PORT: u16 = 2049;
/// Script: makes the disk `/dev/ubda` the kernel's cache (fscache, cachefiles).
const CACHE: &str = include_str!("cache.sh");
/// Script: mounts an origin and exports the mount.
const REEXPORT: &str = include_str!("reexport.sh");

/// True if cachefilesd, the daemon of the kernel's cache, is not installed.
pub fn cachefilesd_is_missing() -> bool {
    !["/sbin/cachefilesd", "/usr/sbin/cachefilesd"].into_iter().any(|path| Path::new(path).exists())
}

/// The running guests.
pub struct Guests {
    clients: Vec<Guest>,
    reexport: Option<Guest>,
}

/// The export that the clients mount.
pub struct Mounting {
    pub server: SocketAddr,
    pub export: String,
    pub options: String,
    /// The relay between the clients and the server; it must live as long as the mount.
    pub _relay: Option<Relay>,
}

/// The work of the clients in their mounts.
pub struct Work<'w> {
    pub workload: &'w Workload,
    pub plan: Plan,
    pub pass: u64,
    /// The directory of the workload in the export.
    pub name: &'w str,
}

impl Guests {
    /// Boots `clients` guests, and one more for the re-export if `reexport` is set. Each guest gets a disk
    /// for the kernel's cache.
    pub fn boot(lab: &Lab, program: &Path, clients: usize, reexport: bool) -> Result<Guests, String> {
        // The lab's directory is visible in the guests.
        std::fs::copy(program, lab.directory().join("bench")).map_err(|error| error.to_string())?;
        let boot = |name: &str| -> Result<Guest, String> {
            let mut options = GuestOptions::named(name);
            options.disks.push(disk(&lab.directory().join(format!("{name}.ext4")))?);
            Ok(lab.boot(options))
        };
        let clients = (0..clients).map(|number| boot(&format!("client{number}")));
        let clients = clients.collect::<Result<Vec<_>, _>>()?;
        let reexport = if reexport { Some(boot("reexport")?) } else { None };
        let guests = Guests { clients, reexport };
        if !cachefilesd_is_missing() {
            for guest in guests.clients.iter().chain(&guests.reexport) {
                sh(guest, CACHE)?;
            }
        }
        Ok(guests)
    }

    /// Makes the re-export guest export its mount of `from`. If `anew` is set, the guest first mounts `from`
    /// anew. Returns the address of the guest's server.
    pub fn reexport(&self, from: &Address, options: &str, anew: bool) -> Result<SocketAddr, String> {
        let guest = self.reexport.as_ref().ok_or("no guest to export again")?;
        if anew {
            let Address { server, export, .. } = from;
            let options = format!("{options},fsc,nconnect=4,port={}", server.port());
            sh(guest, &format!("set -- '{}:{export}' '{options}'\n{REEXPORT}", server.ip()))?;
        }
        Ok(SocketAddr::new(guest.address(), NFS_PORT))
    }

    /// Ends the re-export. The origin must still answer: without it the unmount would wait forever.
    pub fn end_reexport(&self) -> Result<(), String> {
        let Some(guest) = &self.reexport else { return Ok(()) };
        sh(guest, "if mountpoint -q /mnt/origin; then rpc.nfsd 0; exportfs -ua; umount /mnt/origin; fi")
            .map(drop)
    }

    /// Runs one pass on as many clients as the workload has. All clients begin together, each on a mount of
    /// its own.
    pub fn run(&self, mounting: &Mounting, work: &Work<'_>) -> Result<Passed, String> {
        let clients = &self.clients[..work.workload.clients.min(self.clients.len())];
        let mounted = clients.iter().try_for_each(|guest| mount(guest, mounting));
        let passed = mounted.and_then(|()| pass_of(clients, work));
        // Unmount even if the pass failed, so that the next pass can mount.
        let unmounted =
            clients.iter().try_for_each(|guest| sh(guest, &format!("umount {MOUNTED}")).map(drop));
        let passed = passed?;
        unmounted.map(|()| passed)
    }
}

fn pass_of(clients: &[Guest], work: &Work<'_>) -> Result<Passed, String> {
    let Work { workload, plan, pass, name } = work;
    let tasks: Vec<_> = clients
        .iter()
        .enumerate()
        .map(|(number, guest)| {
            guest.spawn(&format!(
                "exec /mnt/lab/bench pass --workload {} --pass {pass} --seed {} --scale {} --client {number} \
                 --drop-caches --dir {MOUNTED}/{name} --local /tmp/local-{name}-{pass}",
                workload.name, plan.seed, plan.scale
            ))
        })
        .collect();
    let mut all: Option<Passed> = None;
    for task in tasks {
        let output = task.wait(PATIENCE);
        let line = output.text.lines().find(|line| line.starts_with('{'));
        let passed = line.and_then(|line| serde_json::from_str::<Passed>(line).ok());
        let passed = passed.ok_or_else(|| last_line(&output.text))?;
        all = Some(match all {
            None => passed,
            Some(so_far) => so_far.and(&passed),
        });
    }
    all.ok_or_else(|| "a workload for no client".to_owned())
}

/// Mounts with an empty page cache. The disk cache keeps its content: files of another measurement do not
/// help this one.
fn mount(guest: &Guest, mounting: &Mounting) -> Result<(), String> {
    let Mounting { server, export, options, .. } = mounting;
    guest.drop_caches();
    let origin =
        Origin { host: server.ip(), port: server.port(), mountport: server.port(), export: export.clone() };
    let output = guest.try_mount_nfs(&origin, MOUNTED, options);
    if output.ok() { Ok(()) } else { Err(format!("cannot mount: {}", last_line(&output.text))) }
}

fn sh(guest: &Guest, script: &str) -> Result<String, String> {
    let output = guest.run(script);
    if output.ok() { Ok(output.text) } else { Err(format!("{}: {}", guest.name(), last_line(&output.text))) }
}

fn last_line(text: &str) -> String {
    text.trim().lines().last().unwrap_or("no word").to_owned()
}

/// Makes an empty ext4 file system in a file.
fn disk(path: &Path) -> Result<PathBuf, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    File::create(path).and_then(|file| file.set_len(DISK_BYTES)).map_err(failed)?;
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-E", "lazy_itable_init=1,nodiscard"]).arg(path).stdin(Stdio::null());
    if command.status().map_err(failed)?.success() {
        Ok(path.to_owned())
    } else {
        Err(format!("{}: mkfs.ext4 failed", path.display()))
    }
}
