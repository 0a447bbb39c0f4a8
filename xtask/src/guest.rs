//! `cargo xtask lab`: a guest for experiments, and the lab's tests with other kernels.

use crate::kernels::{self, Kernel};
use clap::ValueEnum;
use lab::{Ganesha, Guest, GuestOptions, Knfsd, Lab, Origin, V3};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Duration;

/// How long one script or line may take.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Options of `cargo xtask lab`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Start this server and mount it on /mnt/nfs
    #[arg(long)]
    origin: Option<Server>,
    /// Mount options, as in nfs(5)
    #[arg(long = "options", default_value = V3)]
    mount_with: String,
    /// Run the lab's tests with guests of newer kernels, fetched from Debian (a nightly run)
    #[arg(long, conflicts_with_all = ["origin", "mount_with", "command", "file"])]
    kernels: bool,
    /// Boot this kernel instead of the host's package; with --kernels, in all guests
    #[arg(long)]
    kernel: Option<Kernel>,
    /// Run this command
    #[arg(short, conflicts_with = "file")]
    command: Option<String>,
    /// Run this script
    file: Option<PathBuf>,
    /// With --kernels: run only tests whose names contain one of these words
    #[arg(last = true, requires = "kernels")]
    only: Vec<String>,
}

/// A foreign NFS server.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Server {
    /// nfs-ganesha, on the host
    Ganesha,
    /// The kernel's server, in a guest of its own
    Knfsd,
}

/// The server, which must run as long as the mount.
enum Running {
    Ganesha(Ganesha),
    Knfsd(Knfsd),
}

impl Running {
    fn start(lab: &Lab, server: Server) -> Running {
        match server {
            Server::Ganesha => Running::Ganesha(Ganesha::start(lab)),
            Server::Knfsd => Running::Knfsd(Knfsd::start(lab)),
        }
    }

    fn origin(&self) -> Origin {
        match self {
            Running::Ganesha(ganesha) => ganesha.origin(),
            Running::Knfsd(knfsd) => knfsd.origin(),
        }
    }
}

/// Boots the guest, mounts, and runs the script; true if it succeeds.
pub fn run(options: &Options) -> bool {
    if options.kernels {
        return kernels::run(options.kernel, &options.only);
    }
    let mut wanted = GuestOptions::named("guest");
    if let Some(kernel) = options.kernel {
        match kernel.provide() {
            Ok(directory) => wanted.kernel = Some(directory),
            Err(missing) => {
                eprintln!("{missing}");
                return false;
            }
        }
    }
    let Some(lab) = Lab::enter("xtask") else { return false };
    let server = options.origin.map(|server| Running::start(&lab, server));
    let guest = lab.boot(wanted);
    if let Some(server) = &server {
        let origin = server.origin();
        guest.mount_nfs(&origin, "/mnt/nfs", &options.mount_with);
        eprintln!("{} is mounted on /mnt/nfs", origin.url());
    }
    match (&options.command, &options.file) {
        (Some(command), _) => run_script(&guest, command),
        (None, Some(file)) => match std::fs::read_to_string(file) {
            Ok(script) => run_script(&guest, &script),
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                false
            }
        },
        (None, None) => converse(&guest),
    }
}

fn run_script(guest: &Guest, script: &str) -> bool {
    let output = guest.run_for(PATIENCE, script);
    print!("{}", output.text);
    output.ok()
}

/// Runs each line of standard input in a shell of its own.
fn converse(guest: &Guest) -> bool {
    eprintln!("each line runs in a shell of its own in the guest; end with ^D");
    let prompt = || {
        eprint!("{}# ", guest.name());
        let _ = std::io::stderr().flush();
    };
    prompt();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let output = guest.run_for(PATIENCE, &line);
        print!("{}", output.text);
        if !output.ok() {
            eprintln!("({})", output.code);
        }
        prompt();
    }
    true
}
