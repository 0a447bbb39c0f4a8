//! Commands and options. `--help` and the man pages are made from what stands here.

pub mod cache;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand};
use server::{ClientList, Locations};

/// A coherent cache for NFS: answers fast and does not lie.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, propagate_version = true, max_term_width = 110)]
#[command(after_help = "Set LEASEHOLD_LOG=info or debug to see more on standard error.")]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what Leasehold does: a sample tree read directly, through a cold cache and through a warm one
    Demo(Demo),
    /// Measure: the papers' workloads on a direct connection, through a proxy and a mount, and on the peers, as one report
    #[command(after_help = BENCH_HELP)]
    Bench(Box<bench::Arguments>),
    /// Mount a remote NFS export on a directory of this machine, with a cache on its disk
    #[command(after_help = MOUNT_HELP)]
    Mount(Box<Mount>),
    /// Unmount what `mount` has mounted, and wait until all that was written is stored
    Umount(Umount),
    /// Serve a remote NFS export to local clients, out of a cache on this machine's disk
    #[command(after_help = PROXY_HELP)]
    Proxy(Box<Proxy>),
    /// Serve a directory of this machine over NFS
    #[command(after_help = SERVE_HELP)]
    Serve(Box<Serve>),
    /// See, keep, fetch, drop and check what is cached
    #[command(after_help = cache::CACHE_HELP)]
    Cache(cache::CacheArguments),
    /// Show what a running `serve`, `proxy` or `mount` has done: calls, hits, what is cached
    Status(Status),
    /// Write the man pages
    Man(Man),
    /// End the connection of a mount whose process is killed
    #[command(hide = true)]
    Guard(Guard),
}

const PROXY_HELP: &str = "\
Examples:
  leasehold proxy nfs://filer/export --cache /var/cache/leasehold/filer
  mount -t nfs -o vers=4.2 THIS-HOST:/export /mnt
  mount -t nfs -o vers=3,tcp,port=2049,mountport=2049,mountproto=tcp,nolock THIS-HOST:/export /mnt

Options of the URL, with the names of nfs(5), joined by `&` behind a `?` (quote it from the shell):
  vers=auto|4.2|4.1|4|3 port=N mountport=N proto=tcp|udp nconnect=N rsize=N wsize=N hard soft timeo=DECISECONDS retrans=N resvport noresvport nocto noac actimeo=S acregmin=S acregmax=S acdirmin=S acdirmax=S lookupcache=all|positive|none";

const BENCH_HELP: &str = "\
Examples:
  leasehold bench --html report.html
  leasehold bench --against nfs://filer/scratch --workload build --rtt lan
  leasehold bench --list";

const MOUNT_HELP: &str = "\
Examples:
  leasehold mount nfs://filer/export /mnt -o vers=4.2
  leasehold mount filer:/export ~/filer -o ro,cache=$HOME/.cache/filer --foreground
  leasehold umount /mnt

From /etc/fstab, once `leasehold` is linked as /sbin/mount.leasehold and /sbin/umount.leasehold:
  filer:/export  /mnt  leasehold  vers=4.2,_netdev,noatime  0 0

Options, with the names of nfs(5):
  vers=3|4.1|4.2|4|auto port=N mountport=N proto=tcp|udp nconnect=N rsize=N wsize=N hard soft timeo=DECISECONDS retrans=N retry=MINUTES resvport noresvport sec=sys nolock local_lock=all|none cto nocto ac noac actimeo=S acregmin=S acregmax=S acdirmin=S acdirmax=S lookupcache=all|positive|none
Of mount(8): ro rw suid dev noexec noatime sync (nosuid and nodev are the default), remount with these; what only fstab reads (_netdev, noauto, nofail, x-…) is accepted.
Of our own:
  cache=DIR          where to keep the cache: a directory for this export alone
  cachesize=SIZE     keep at most so much file data [10G]
  minfree=SIZE       leave so much of the disk to others [1G]
  nofill             do not fetch the rest of files of which a part was read
  offline=read       while the server is away, read whole files as they were last known [wait]
  allow_other        let every user use it, as root's mounts do (noallow_other: not)
  nopassthrough      do not let the kernel read whole cache files by itself
  log=FILE           where messages go [the system's log; with --foreground, standard error]

As an ordinary user it takes fusermount3 (package fuse3).";

const SERVE_HELP: &str = "\
Examples:
  leasehold serve /srv
  leasehold serve /srv --listen 127.0.0.1:12049 --no-root-squash --clients 127.0.0.1
  leasehold serve --config exports.toml

A configuration file:
  [[export]]
  directory = \"/srv/projects\"
  path = \"/projects\"              # what clients mount; the directory if left out
  ro = false
  root_squash = true              # also all_squash, anonuid, anongid, secure, sync, crossmnt
  # refer = \"/projects@b.example.com\"   # it is there, and v4 clients follow; replicas: there too
  clients = [\"10.1.0.0/16\"]";

/// `leasehold serve`
#[derive(Debug, Args)]
pub struct Serve {
    /// The directory to serve
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    pub directory: Option<PathBuf>,
    /// Serve what this TOML file lists, instead of one directory
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The path that clients mount [default: that of the directory]
    #[arg(long, value_name = "PATH")]
    pub export: Option<String>,
    /// Where to keep the handle key and the reply log [default: /var/lib/leasehold/…, or ~/.local/state/leasehold/…]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Answer before metadata is on disk, as exports(5) `async`: faster, and a power cut loses the last seconds
    #[arg(long = "async")]
    pub asynchronous: bool,
    /// Do not serve file systems mounted below the directory
    #[arg(long)]
    pub no_crossmnt: bool,
    /// Send v4 clients there instead, and serve nothing: `PATH@HOST[+HOST…][:PATH@HOST…]`. The directory is not looked at
    #[arg(long, value_name = "PLACES", conflicts_with = "replicas")]
    pub refer: Option<Locations>,
    /// Tell v4 clients that ask where else it is: `PATH@HOST[+HOST…][:PATH@HOST…]`
    #[arg(long, value_name = "PLACES")]
    pub replicas: Option<Locations>,
    /// Who may do what.
    #[command(flatten)]
    pub access: ExportOptions,
    /// Where to listen.
    #[command(flatten)]
    pub network: Network,
    /// What NFSv4 clients get.
    #[command(flatten)]
    pub version4: Version4,
}

/// `leasehold proxy`
#[derive(Debug, Args)]
pub struct Proxy {
    /// The origin: `nfs://HOST[:PORT]/EXPORT[?OPTION&…]`
    #[arg(value_name = "URL")]
    pub origin: client::Url,
    /// Where to keep the cache: a directory for this origin alone [default: /var/cache/leasehold/…, or ~/.cache/leasehold/…]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// The path that clients mount [default: the origin's export path]
    #[arg(long, value_name = "PATH")]
    pub export: Option<String>,
    /// The key that handles are checked with; give several proxies of one origin the same file, and clients can move
    /// between them [default: one of its own, in the cache directory]
    #[arg(long, value_name = "FILE")]
    pub handle_key: Option<PathBuf>,
    /// What is cached.
    #[command(flatten)]
    pub keeping: cache::Keeping,
    /// Who may do what.
    #[command(flatten)]
    pub access: ExportOptions,
    /// Where to listen.
    #[command(flatten)]
    pub network: Network,
    /// What NFSv4 clients get.
    #[command(flatten)]
    pub version4: Version4,
}

/// `leasehold mount`
#[derive(Debug, Args)]
pub struct Mount {
    /// What to mount: `nfs://SERVER[:PORT]/EXPORT[?OPTION&…]`, or `SERVER:/EXPORT`
    #[arg(value_name = "SOURCE")]
    pub source: String,
    /// The directory to mount on
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// How, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground, and end with Ctrl-C
    #[arg(short, long)]
    pub foreground: bool,
    /// Pass over options that are not known
    #[arg(long)]
    pub sloppy: bool,
    /// We are the process in the background
    #[arg(long, hide = true)]
    pub ready: bool,
}

/// `leasehold umount`
#[derive(Debug, Args)]
pub struct Umount {
    /// The directory that is mounted on
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Out of sight at once, also while it is used; do not wait, and say what is left to store
    #[arg(short, long)]
    pub lazy: bool,
    /// Break off what waits for the server, and do not wait; say what is left to store
    #[arg(short, long)]
    pub force: bool,
}

/// Options of exports(5).
#[derive(Debug, Args)]
#[command(next_help_heading = "Export options, as in exports(5)")]
pub struct ExportOptions {
    /// Allow no changes
    #[arg(long)]
    pub ro: bool,
    /// Let root of a client be root here
    #[arg(long)]
    pub no_root_squash: bool,
    /// Treat every user as the anonymous one
    #[arg(long, conflicts_with = "no_root_squash")]
    pub all_squash: bool,
    /// User id of the anonymous user
    #[arg(long, value_name = "UID", default_value_t = 65534)]
    pub anonuid: u32,
    /// Group id of the anonymous user
    #[arg(long, value_name = "GID", default_value_t = 65534)]
    pub anongid: u32,
    /// Admit clients that call from a port above 1023, as any user of a client machine can
    #[arg(long)]
    pub insecure: bool,
    /// Admit only these: addresses and networks, separated by commas
    #[arg(long, value_name = "LIST", default_value = "*")]
    pub clients: ClientList,
}

/// Where to listen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub struct Network {
    /// Address and port for NFS and MOUNT, over TCP and UDP
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address,
          default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 2049)))]
    pub listen: SocketAddr,
    /// Do not answer over UDP
    #[arg(long)]
    pub no_udp: bool,
    /// Do not register with rpcbind, even if one runs
    #[arg(long)]
    pub no_rpcbind: bool,
    /// Memory for requests and replies of all clients together; who holds his share is not read from until something of it
    /// is done [default: a sixteenth of the memory, up to 2G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory_in_flight: Option<u64>,
}

/// What NFSv4 clients get.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "NFSv4")]
pub struct Version4 {
    /// When clients get delegations
    #[arg(long, value_enum, default_value_t)]
    pub delegations: Delegate,
    /// Delegations out at one time, at most
    #[arg(long, value_name = "N", default_value_t = Version4::DELEGATIONS_MAX)]
    pub delegations_max: usize,
    /// How long a silent client is sure to keep what it holds, how long it may reclaim that after a restart, and how long
    /// it may take to return a delegation, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = Version4::LEASE_TIME,
          value_parser = clap::value_parser!(u32).range(5..=3600))]
    pub lease_time: u32,
}

impl Version4 {
    const DELEGATIONS_MAX: usize = 100_000;
    /// As Linux.
    const LEASE_TIME: u32 = 90;
}

impl Default for Version4 {
    fn default() -> Version4 {
        Version4 {
            delegations: Delegate::default(),
            delegations_max: Version4::DELEGATIONS_MAX,
            lease_time: Version4::LEASE_TIME,
        }
    }
}

/// `--delegations`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Delegate {
    /// Where they are likely to last: not on files that changed hands recently
    #[default]
    Auto,
    /// Wherever they are allowed
    Always,
    /// To nobody
    Never,
}

/// `leasehold demo`
#[derive(Debug, Args)]
pub struct Demo {
    /// Round-trip time to the origin, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 40)]
    pub rtt_ms: u64,
    /// Leave proxy and origin running, and print how to mount
    #[arg(long)]
    pub keep: bool,
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,
}

/// `leasehold status`
#[derive(Debug, Args)]
pub struct Status {
    /// The cache directory of a proxy or mount, the directory that is mounted on, or the state directory of a serve
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `leasehold guard`, which `mount` starts: see `mount::guardian`
#[derive(Debug, Args)]
pub struct Guard {
    /// The mount's process
    #[arg(long)]
    pub process: i32,
    /// The number of its connection
    #[arg(long)]
    pub connection: u32,
}

/// `leasehold man`
#[derive(Debug, Args)]
pub struct Man {
    /// Where to
    pub directory: PathBuf,
}

impl ExportOptions {
    /// As the server takes them.
    pub fn to_server(&self) -> server::ExportOptions {
        server::ExportOptions {
            read_only: self.ro,
            squash: match (self.all_squash, self.no_root_squash) {
                (true, _) => server::Squash::All,
                (_, true) => server::Squash::None,
                _ => server::Squash::Root,
            },
            anonuid: self.anonuid,
            anongid: self.anongid,
            secure: !self.insecure,
            clients: self.clients.clone(),
            ..server::ExportOptions::default()
        }
    }
}

/// An address and a port.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "write an address and a port, as 0.0.0.0:2049 or [::]:2049".to_owned())
}

/// Bytes, or with K, M, G, T.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is no size: write a number of bytes, or one with K, M, G or T behind it");
    let (digits, shift) = match text.trim_end_matches(['i', 'B']).char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or_else(bad)
}

/// One page for the program and one for each command.
pub fn write_man_pages(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Arguments::command(), directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn sizes_are_what_people_write() {
        let read = ["0", "512", "4K", "10M", "10G", "2T", "1GiB"].map(|text| parse_size(text).unwrap());
        assert_eq!(read, [0, 512, 4096, 10 << 20, 10 << 30, 2 << 40, 1 << 30]);
        assert!(["", "G", "ten", "-1", "99999999999T"].iter().all(|text| parse_size(text).is_err()));
    }
}
