//! Commands and options. clap makes `--help` and the man pages from the doc comments in this module.

pub mod cache;
pub mod cluster;
mod config;
mod kerberos;
mod network;
mod tls;
mod watching;
pub mod writeback;
pub mod writing;

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand};
use server::{ClientList, Locations, Sec, XprtSec};
use synthetic::Shape;

pub use config::{ConfigArguments, ConfigCommand, ConfigKeys, ConfigShow};
pub use kerberos::Kerberos;
pub use network::{Network, parse_metrics};
pub use tls::{Tls, TlsPolicy};
pub use watching::{Holding, HoldingOf, Revoke, Status, Top};

use cluster::CLUSTER_HELP;
use config::CONFIG_HELP;
use watching::{REVOKE_HELP, TOP_HELP};
use writeback::WRITEBACK_HELP;

/// A coherent cache for NFS: answers fast and does not lie.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, propagate_version = true, max_term_width = 110)]
#[command(after_help = "The environment sets the log, too: LEASEHOLD_LOG=info, LEASEHOLD_LOG_FORMAT=json.")]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
    /// The log options.
    #[command(flatten)]
    pub logging: Logging,
}

/// The log options.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Log")]
pub struct Logging {
    /// What to log: error, warn, info or debug [default: LEASEHOLD_LOG, or warn]
    #[arg(long, global = true, value_name = "LEVEL", value_parser = parse_log_level)]
    pub log_level: Option<String>,
    /// The form of the log [default: LEASEHOLD_LOG_FORMAT, or text]
    #[arg(long, global = true, value_enum)]
    pub log_format: Option<LogFormat>,
}

/// `--log-format`
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people
    Text,
    /// Lines of JSON for programs
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the effect of the cache: read a sample tree directly, through a cold cache and through a warm one
    Demo(Demo),
    /// Run the papers' workloads on a direct connection, a proxy, a mount and other caches, and write one
    /// report
    #[command(after_help = BENCH_HELP)]
    Bench(Box<bench::Arguments>),
    /// Mount a remote NFS export on a directory of this machine, with a cache on its disk
    #[command(after_help = MOUNT_HELP)]
    Mount(Box<Mount>),
    /// Unmount what `mount` has mounted, and wait until all its data is stored at the server
    Umount(Umount),
    /// Serve a remote NFS export to local clients, out of a cache on this machine's disk
    #[command(after_help = PROXY_HELP)]
    Proxy(Box<Proxy>),
    /// Serve a directory of this machine over NFS
    #[command(after_help = SERVE_HELP)]
    Serve(Box<Serve>),
    /// List, pin, fetch, drop and check cached files
    #[command(after_help = cache::CACHE_HELP)]
    Cache(cache::CacheArguments),
    /// List, send, export and discard the delayed writes of a mount, also of one that was killed
    #[command(after_help = WRITEBACK_HELP)]
    Writeback(writeback::WritebackArguments),
    /// Show and direct a member of a cluster of proxies
    #[command(after_help = CLUSTER_HELP)]
    Cluster(cluster::ClusterArguments),
    /// Show the state and counters of a running `serve`, `proxy` or `mount`
    Status(Status),
    /// Show live which clients and files are used most, and what the cache saves
    #[command(after_help = TOP_HELP)]
    Top(Top),
    /// List the version 4 clients of a running `serve` or `proxy`
    Clients(Holding),
    /// List what its clients have open
    Opens(HoldingOf),
    /// List who holds byte-range locks
    Locks(HoldingOf),
    /// List the leases (delegations) that its clients hold
    Leases(HoldingOf),
    /// Take everything from a client: opens, locks and leases
    #[command(after_help = REVOKE_HELP)]
    Revoke(Revoke),
    /// Check and explain configuration files
    #[command(after_help = CONFIG_HELP)]
    Config(ConfigArguments),
    /// Write the man pages
    Man(Man),
    /// Print the completions of a shell
    #[command(after_help = "Example:\n  leasehold completions bash >/etc/bash_completion.d/leasehold")]
    Completions(Completions),
    /// Abort the connection of a mount whose process was killed
    #[command(hide = true)]
    Guard(Guard),
}

impl Command {
    /// Do files that this command makes, or a program that it runs, belong to its user alone? Then they get
    /// the modes that the user's umask leaves.
    pub fn makes_files_of_its_user(&self) -> bool {
        match self {
            Command::Man(_) => true,
            Command::Cache(of) => matches!(of.command, cache::CacheCommand::Record(_)),
            _ => false,
        }
    }
}

const PROXY_HELP: &str = "\
Examples:
  leasehold proxy nfs://filer/export --cache /var/cache/leasehold/filer
  mount -t nfs -o vers=4.2 THIS-HOST:/export /mnt
  mount -t nfs -o vers=3 THIS-HOST:/export /mnt

Options of the URL have the names of nfs(5). They follow a `?` and are joined by `&` (quote the URL in a shell):
  vers=auto|4.2|4.1|4|3|nqnfs port=N mountport=N proto=tcp|udp xprtsec=none|tls|mtls tlsca=FILE tlscert=FILE tlskey=FILE sec=sys|krb5|krb5i|krb5p keytab=FILE ccachedir=DIR nconnect=N rsize=N wsize=N hard soft timeo=DECISECONDS retrans=N resvport noresvport nocto noac actimeo=S acregmin=S acregmax=S acdirmin=S acdirmax=S lookupcache=all|positive|none";

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
  vers=auto|4.2|4.1|4|3|nqnfs port=N mountport=N proto=tcp|udp xprtsec=none|tls|mtls nconnect=N rsize=N wsize=N hard soft timeo=DECISECONDS retrans=N retry=MINUTES resvport noresvport sec=sys|krb5|krb5i|krb5p nolock local_lock=all|none cto nocto ac noac actimeo=S acregmin=S acregmax=S acdirmin=S acdirmax=S lookupcache=all|positive|none
Options of mount(8): ro rw suid dev noexec noatime sync, and remount with these. The defaults are nosuid and nodev. Options that only fstab uses (_netdev, noauto, nofail, x-…) are accepted.
Options of Leasehold:
  tlsca=FILE         with xprtsec: PEM file with the CAs of the server [those of this machine]
  tlscert=FILE       with xprtsec=mtls: PEM file with our certificate
  tlskey=FILE        with xprtsec=mtls: PEM file with its key [the file of the certificate]
  keytab=FILE        with sec=krb5: the key of this machine, for root and for what belongs to no user [/etc/krb5.keytab]
  ccachedir=DIR      with sec=krb5: where the tickets of users are, as krb5cc_UID [/run/user/UID and /tmp]
  cache=DIR          cache directory, for this export alone
  cachesize=SIZE     keep at most this much file data [10G]
  minfree=SIZE       leave this much space free on the disk [1G]
  prefetch=SIZE      fetch at most this much ahead of readers who go through a tree, or 0 [64M]
  memory=SIZE        keep the known attributes of unused files in this much memory [a sixteenth, at most 512M]
  nofill             do not fetch the rest of files that were read in part
  offline=read       while the server is away, read complete files as last known [wait]
  allow_other        let all users use the mount; the default for root (noallow_other: do not)
  nopassthrough      do not let the kernel read complete cache files by itself
  nojournal          do not keep delayed writes on this disk: a killed mount loses them
  fsync=journal      answer fsync under a write lease when this disk has the data [origin]
  metrics=[ADDR:]PORT  answer HTTP there: /metrics, /healthz, /readyz, /status
  log=FILE           write messages to this file [the system log; with --foreground, standard error]

Mounting as an ordinary user needs fusermount3 (package fuse3).";

const SERVE_HELP: &str = "\
Examples:
  leasehold serve /srv
  leasehold serve /srv --listen 127.0.0.1:12049 --no-root-squash --clients 127.0.0.1
  leasehold serve --config exports.toml

A configuration file:
  [[export]]
  directory = \"/srv/projects\"
  path = \"/projects\"              # what clients mount; default: the directory
  ro = false
  root_squash = true              # also all_squash, anonuid, anongid, secure, sync, crossmnt, exclusive, xprtsec
  # refer = \"/projects@b.example.com\"   # send v4 clients there; replicas: further servers
  clients = [\"10.1.0.0/16\"]";

/// The options of `serve` for one export. A configuration file has a key for each of them.
pub const OF_ONE_EXPORT: [&str; 15] = [
    "export",
    "asynchronous",
    "no_crossmnt",
    "exclusive",
    "refer",
    "replicas",
    "ro",
    "no_root_squash",
    "all_squash",
    "anonuid",
    "anongid",
    "insecure",
    "clients",
    "xprtsec",
    "sec",
];

/// The argument of `serve` that names the directory.
pub const SERVED: &str = "directory";

/// `leasehold serve`
#[derive(Debug, Args)]
pub struct Serve {
    /// The directory to serve
    #[arg(required_unless_present_any = ["config", "synthetic"], conflicts_with = "config")]
    pub directory: Option<PathBuf>,
    /// Serve a computed tree instead of a directory, for measurements:
    /// `files=N,per-directory=N,bytes=N,seed=N`. Every user may change everything, and changes end with the
    /// process
    #[arg(long, value_name = "SHAPE", hide = true, conflicts_with_all = ["directory", "config"])]
    pub synthetic: Option<Shape>,
    /// Serve the exports that this TOML file lists, instead of one directory. It may set the other options,
    /// too
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_ONE_EXPORT)]
    pub config: Option<PathBuf>,
    /// The path that clients mount [default: the path of the directory]
    #[arg(long, value_name = "PATH")]
    pub export: Option<String>,
    /// Where to keep the handle key and the reply log [default: /var/lib/leasehold/…, or
    /// ~/.local/state/leasehold/…]
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Reply before metadata is on disk, as exports(5) `async`: faster, but a power cut loses the last
    /// seconds
    #[arg(long = "async")]
    pub asynchronous: bool,
    /// Do not serve file systems mounted below the directory
    #[arg(long)]
    pub no_crossmnt: bool,
    /// No process of this machine uses the directory except this server. Delegations and opens
    /// then take no descriptors, and a change by such a process is not noticed
    #[arg(long)]
    pub exclusive: bool,
    /// Refer v4 clients to these servers: `PATH@HOST[+HOST…][:PATH@HOST…]`. The contents of the directory are
    /// not served
    #[arg(long, value_name = "PLACES", conflicts_with = "replicas")]
    pub refer: Option<Locations>,
    /// Further servers of the export, for v4 clients that ask: `PATH@HOST[+HOST…][:PATH@HOST…]`
    #[arg(long, value_name = "PLACES")]
    pub replicas: Option<Locations>,
    /// The access rules.
    #[command(flatten)]
    pub access: ExportOptions,
    /// The options about users.
    #[command(flatten)]
    pub users: Users,
    /// The network options.
    #[command(flatten)]
    pub network: Network,
    /// The TLS options.
    #[command(flatten)]
    pub tls: Tls,
    /// The Kerberos options.
    #[command(flatten)]
    pub kerberos: Kerberos,
    /// The NFSv4 options.
    #[command(flatten)]
    pub version4: Version4,
    /// The audit log.
    #[command(flatten)]
    pub auditing: Auditing,
}

/// `leasehold proxy`
#[derive(Debug, Args)]
pub struct Proxy {
    /// The origin: `nfs://HOST[:PORT]/EXPORT[?OPTION&…]`
    #[arg(value_name = "URL", required = false, required_unless_present = "config")]
    pub origin: Option<client::Url>,
    /// Take the options from this TOML file, too. Without URL, it names the origin, or several
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to keep the cache: a directory for this proxy alone [default: /var/cache/leasehold/…, or
    /// ~/.cache/leasehold/…]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// The path that clients mount [default: the origin's export path]
    #[arg(long, value_name = "PATH")]
    pub export: Option<String>,
    /// File with the key that protects handles. With the same file, clients can move between several proxies
    /// of one origin [default: a key of its own, in the cache directory]
    #[arg(long, value_name = "FILE")]
    pub handle_key: Option<PathBuf>,
    /// What to do with a referral of an origin of version 4
    #[arg(long, value_enum, default_value_t)]
    pub referrals: ReferralAnswer,
    /// The cache options.
    #[command(flatten)]
    pub keeping: cache::Keeping,
    /// The options about writes.
    #[command(flatten)]
    pub writing: writing::Writing,
    /// The access rules.
    #[command(flatten)]
    pub access: ExportOptions,
    /// The options about users.
    #[command(flatten)]
    pub users: Users,
    /// The network options.
    #[command(flatten)]
    pub network: Network,
    /// The TLS options.
    #[command(flatten)]
    pub tls: Tls,
    /// The Kerberos options.
    #[command(flatten)]
    pub kerberos: Kerberos,
    /// The NFSv4 options.
    #[command(flatten)]
    pub version4: Version4,
    /// The audit log.
    #[command(flatten)]
    pub auditing: Auditing,
}

/// `leasehold mount`
#[derive(Debug, Args)]
pub struct Mount {
    /// What to mount: `nfs://SERVER[:PORT]/EXPORT[?OPTION&…]`, or `SERVER:/EXPORT`
    #[arg(value_name = "SOURCE", required = false, required_unless_present = "config")]
    pub source: String,
    /// The directory to mount on
    #[arg(value_name = "DIR", required = false, required_unless_present = "config")]
    pub directory: PathBuf,
    /// Take the options from this TOML file, too
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Mount options, separated by commas
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground; Ctrl-C unmounts
    #[arg(short, long)]
    pub foreground: bool,
    /// Ignore unknown options
    #[arg(long)]
    pub sloppy: bool,
    /// Internal: this is the process in the background
    #[arg(long, hide = true)]
    pub ready: bool,
}

/// `leasehold umount`
#[derive(Debug, Args)]
pub struct Umount {
    /// The mount point
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Detach the mount at once, even if it is in use. Do not wait, but report what is left to store
    #[arg(short, long)]
    pub lazy: bool,
    /// Abort requests that wait for the server. Do not wait, but report what is left to store
    #[arg(short, long)]
    pub force: bool,
}

/// `--referrals`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReferralAnswer {
    /// Serve the place that it names as one more origin, in the same tree
    #[default]
    Follow,
    /// Send clients of version 4 there
    Pass,
    /// Log it. Clients get an error
    Report,
}

/// Options of exports(5).
#[derive(Debug, Args)]
#[command(next_help_heading = "Export options, as in exports(5)")]
pub struct ExportOptions {
    /// Reject all changes
    #[arg(long)]
    pub ro: bool,
    /// Let root of a client act as root here
    #[arg(long)]
    pub no_root_squash: bool,
    /// Map every user to the anonymous user
    #[arg(long, conflicts_with = "no_root_squash")]
    pub all_squash: bool,
    /// User id of the anonymous user
    #[arg(long, value_name = "UID", default_value_t = 65534)]
    pub anonuid: u32,
    /// Group id of the anonymous user
    #[arg(long, value_name = "GID", default_value_t = 65534)]
    pub anongid: u32,
    /// Admit clients that call from a port above 1023. Any user of a client machine can use such a port
    #[arg(long)]
    pub insecure: bool,
    /// Admit only these clients: addresses, networks, names of hosts and @netgroups, separated by commas
    #[arg(long, value_name = "LIST", default_value = "*")]
    pub clients: ClientList,
    /// Admit only these connections: none (plain text), tls, mtls (with a certificate of the client), joined
    /// by colons. With --tls off only `none` is there, and with --tls require `none` is not
    #[arg(long, value_name = "LIST", default_value_t)]
    pub xprtsec: XprtSec,
    /// Accept these flavors of authentication, the most preferred first: sys, none (no user), krb5
    /// (Kerberos), krb5i (and signed), krb5p (and encrypted), joined by colons
    #[arg(long, value_name = "LIST", default_value_t)]
    pub sec: Sec,
}

/// The options about users.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Users, as in rpc.mountd(8)")]
pub struct Users {
    /// Take the groups of a user from this machine (nsswitch), and not from the client, which can send 16 at
    /// most. The primary group stays that of the client
    #[arg(long)]
    pub manage_gids: bool,
}

/// The audit log.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Audit log")]
pub struct Auditing {
    /// Record who changes what: a line of JSON for each operation, in this file or, with `journal`, in the
    /// log
    #[arg(long, value_name = "FILE|journal")]
    pub audit: Option<PathBuf>,
    /// The operations that are recorded
    #[arg(long, value_enum, default_value_t)]
    pub audit_scope: AuditScope,
}

/// `--audit-scope`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AuditScope {
    /// Changes, and opens for writing. Writes of version 3 once a minute for each user and file
    #[default]
    Changes,
    /// All operations on files, but for locks, closes and leases
    All,
}

/// The NFSv4 options.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "NFSv4")]
pub struct Version4 {
    /// When to grant delegations
    #[arg(long, value_enum, default_value_t)]
    pub delegations: Delegate,
    /// Most delegations granted at one time
    #[arg(long, value_name = "N", default_value_t = Version4::DELEGATIONS_MAX)]
    pub delegations_max: usize,
    /// Lease time in seconds: how long a client's state is safe after its last request. Clients have the same
    /// time to reclaim state after a restart, and to return a delegation
    #[arg(long, value_name = "SECONDS", default_value_t = Version4::LEASE_TIME,
          value_parser = clap::value_parser!(u32).range(5..=3600))]
    pub lease_time: u32,
}

impl Version4 {
    const DELEGATIONS_MAX: usize = 1_000_000;
    /// The default of the Linux server.
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
    /// Where they are likely to last: not on files that clients have just used in conflict
    #[default]
    Auto,
    /// Wherever the protocol allows them
    Always,
    /// To no client
    Never,
}

/// `leasehold demo`
#[derive(Debug, Args)]
pub struct Demo {
    /// Round-trip time to the origin, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 40)]
    pub rtt_ms: u64,
    /// Keep the origin's files in memory instead of a directory
    #[arg(long)]
    pub memory: bool,
    /// Leave the proxy and the origin running, and print how to mount
    #[arg(long)]
    pub keep: bool,
    /// Print the table as JSON
    #[arg(long)]
    pub json: bool,
}

/// `leasehold guard`, which `mount` starts: see `mount::guardian`
#[derive(Debug, Args)]
pub struct Guard {
    /// Process id of the mount
    #[arg(long)]
    pub process: i32,
    /// Number of its FUSE connection
    #[arg(long)]
    pub connection: u32,
}

/// `leasehold man`
#[derive(Debug, Args)]
pub struct Man {
    /// The directory to write them to
    pub directory: PathBuf,
}

/// `leasehold completions`
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

impl ExportOptions {
    /// The options in the form that the server takes.
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
            xprtsec: self.xprtsec,
            sec: self.sec.clone(),
            ..server::ExportOptions::default()
        }
    }
}

/// Checks what to log: a filter of the library `tracing`, of which a level is the simplest.
fn parse_log_level(text: &str) -> Result<String, String> {
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) if !text.trim().is_empty() => Ok(text.to_owned()),
        _ => Err(format!(
            "`{text}` is not a level: write error, warn, info or debug, or part=level, such as cache=debug"
        )),
    }
}

/// Parses a number of bytes; K, M, G and T stand for powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || {
        format!("`{text}` is not a size: write a number of bytes, or a number with K, M, G or T, such as 10G")
    };
    let (digits, shift) = match text.trim_end_matches(['i', 'B']).char_indices().next_back() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        Some((at, 'T' | 't')) => (&text[..at], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or_else(bad)
}

/// The completions of a shell.
pub fn completions(shell: clap_complete::Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "leasehold", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes a man page for the program and one for each command.
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
