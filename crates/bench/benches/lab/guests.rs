//! The guests: clients that mount and run a pass, and one that exports again what it has mounted.

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

/// Where clients mount.
const MOUNTED: &str = "/mnt/nfs";
/// A pass may take this long.
const PATIENCE: Duration = Duration::from_secs(3600);
/// Of a disk for the kernel's cache; the image is sparse.
const DISK_BYTES: u64 = 4 << 30;
/// Of the kernel's server.
const NFS_PORT: u16 = 2049;
/// Makes the disk `/dev/ubda` the kernel's cache (fscache, cachefiles).
const CACHE: &str = include_str!("cache.sh");
/// Mounts an origin and exports it.
const REEXPORT: &str = include_str!("reexport.sh");

/// Is the program that keeps the kernel's cache not there?
pub fn cachefilesd_is_missing() -> bool {
    !["/sbin/cachefilesd", "/usr/sbin/cachefilesd"].into_iter().any(|path| Path::new(path).exists())
}

/// Those that are running.
pub struct Guests {
    clients: Vec<Guest>,
    reexport: Option<Guest>,
}

/// What clients mount.
pub struct Mounting {
    pub server: SocketAddr,
    pub export: String,
    pub options: String,
    /// Lives as long as the mount.
    pub _relay: Option<Relay>,
}

/// What they do there.
pub struct Work<'w> {
    pub workload: &'w Workload,
    pub plan: Plan,
    pub pass: u64,
    /// The directory of the export.
    pub name: &'w str,
}

impl Guests {
    /// Boots clients, and one more to export again; all can keep the kernel's cache on a disk.
    pub fn boot(lab: &Lab, program: &Path, clients: usize, reexport: bool) -> Result<Guests, String> {
        // The stay's directory is what guests see.
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

    /// Lets the one guest export what it mounts from there, mounted anew if so wanted; where it answers.
    pub fn reexport(&self, from: &Address, options: &str, anew: bool) -> Result<SocketAddr, String> {
        let guest = self.reexport.as_ref().ok_or("no guest to export again")?;
        if anew {
            let Address { server, export, .. } = from;
            let options = format!("{options},fsc,nconnect=4,port={}", server.port());
            sh(guest, &format!("set -- '{}:{export}' '{options}'\n{REEXPORT}", server.ip()))?;
        }
        Ok(SocketAddr::new(guest.address(), NFS_PORT))
    }

    /// Ends that, while the origin is still there to take leave of: without it the unmount would wait for ever.
    pub fn end_reexport(&self) -> Result<(), String> {
        let Some(guest) = &self.reexport else { return Ok(()) };
        sh(guest, "if mountpoint -q /mnt/origin; then rpc.nfsd 0; exportfs -ua; umount /mnt/origin; fi")
            .map(drop)
    }

    /// One pass, on as many clients as the workload is for; all begin together, on mounts of their own.
    pub fn run(&self, mounting: &Mounting, work: &Work<'_>) -> Result<Passed, String> {
        let clients = &self.clients[..work.workload.clients.min(self.clients.len())];
        let mounted = clients.iter().try_for_each(|guest| mount(guest, mounting));
        let passed = mounted.and_then(|()| pass_of(clients, work));
        // Whatever came of it, the next one mounts.
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

/// Mounts with empty memory. What is on the disk stays: of the files of another measurement nothing is of use.
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

/// An empty ext4 file system in a file.
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
