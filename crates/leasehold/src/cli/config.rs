//! `leasehold config …`

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(super) const CONFIG_HELP: &str = "\
A key of a file has the name of its option, with _ for -. An option that turns something off is a key that is
true by default: --no-udp is `udp = false`, and --insecure is `secure = false`. A file of a proxy:
  origin = \"nfs://filer/export?vers=4.2\"
  cache_size = \"100G\"
  clients = [\"10.1.0.0/16\"]
A file of a mount has `source`, `directory` and `options`, a list of mount options. In the file of a serve, each
[[export]] has the keys of exports(5).

On SIGHUP, a process reads its file again, and says in the log what has changed and what needs a restart.

Examples:
  leasehold config check /etc/leasehold/proxy/filer.toml
  leasehold config show /etc/leasehold/exports.toml
  leasehold proxy --config /etc/leasehold/proxy/filer.toml";

/// `leasehold config`
#[derive(Debug, Args)]
pub struct ConfigArguments {
    /// The command.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a file. The first mistake is named with its line and column
    Check(ConfigCheck),
    /// Show all values of a file, and where each is from: a line of the file, or the default
    Show(ConfigShow),
    /// List the keys of `serve`, `proxy` or `mount`, with their defaults
    Keys(ConfigKeys),
}

/// `leasehold config check`
#[derive(Debug, Args)]
pub struct ConfigCheck {
    /// The file: of a proxy if it has `origin`, of a mount if it has `source`, otherwise of a serve
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// `leasehold config show`
#[derive(Debug, Args)]
pub struct ConfigShow {
    /// The file.
    #[command(flatten)]
    pub of: ConfigCheck,
    /// Options of the command line that override it
    #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
    pub options: Vec<std::ffi::OsString>,
    /// Print each value as a line of JSON
    #[arg(long)]
    pub json: bool,
}

/// `leasehold config keys`
#[derive(Debug, Args)]
pub struct ConfigKeys {
    /// The command
    #[arg(value_name = "COMMAND", value_parser = ["serve", "proxy", "mount"])]
    pub command: String,
}
