//! The command line of the measurement of growth.

use std::path::PathBuf;
use std::time::Duration;

use super::{Options, Report, System};
use crate::arguments::{Scratch, print};

/// Measures memory, calls and time over computed trees of growing size. Mounts need root.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Numbers of files, separated by commas; `--files 10000000` needs 10 GB of memory. `none`: no such trees
    #[arg(long, value_name = "LIST", default_value = "10000,100000,1000000", value_parser = numbers)]
    pub files: Numbers,
    /// Files in each directory of these trees
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub per_directory: u32,
    /// Numbers of names in one directory, or `none`
    #[arg(long, value_name = "LIST", default_value = "10000,100000", value_parser = numbers)]
    pub names: Numbers,
    /// Size of each file in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub bytes: u32,
    /// Cache to walk through; repeatable [default: both]
    #[arg(long = "system", value_enum, value_name = "NAME")]
    pub systems: Vec<System>,
    /// Numbers of leases of one client at the origin, or `none`
    #[arg(long, value_name = "LIST", default_value = "1000,10000,100000", value_parser = numbers)]
    pub leases: Numbers,
    /// Numbers of clients at the origin, or `none`
    #[arg(long, value_name = "LIST", default_value = "10,100,1000", value_parser = numbers)]
    pub clients: Numbers,
    /// Numbers of quiet clients beside a noisy one, or `none`
    #[arg(long, value_name = "LIST", default_value = "10,1000", value_parser = numbers)]
    pub quiet: Numbers,
    /// Changes that another client makes before a third walk; 0: no third walk
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub changes: u32,
    /// How long caches trust attributes, in seconds. It must be longer than two walks
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub actimeo: u32,
    /// NFS version of caches, and of the clients of the origin
    #[arg(long, value_name = "VERS", default_value = "4.2", value_parser = ["3", "4.1", "4.2"])]
    pub vers: String,
    /// The program `leasehold` [default: the one in this program's directory]
    #[arg(long, value_name = "FILE")]
    pub leasehold: Option<PathBuf>,
    /// Directory for the caches
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
    /// Write the report as an HTML page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Numbers in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(Vec<u32>);

fn numbers(text: &str) -> Result<Numbers, String> {
    if text == "none" {
        return Ok(Numbers(Vec::new()));
    }
    let parsed = text.split(',').map(|word| word.parse().ok().filter(|number| *number > 0));
    let numbers: Option<Vec<u32>> = parsed.collect();
    let numbers = numbers.filter(|numbers| numbers.is_sorted());
    let wrong = || format!("`{text}` is no list of ascending numbers such as 1000,10000");
    numbers.map(Numbers).ok_or_else(wrong)
}

impl Arguments {
    /// The options that the arguments stand for, with their files below `scratch`.
    fn options(&self, scratch: PathBuf) -> Options {
        let beside = || std::env::current_exe().unwrap_or_default().with_file_name("leasehold");
        let both = || vec![System::Mount, System::Proxy];
        Options {
            leasehold: self.leasehold.clone().unwrap_or_else(beside),
            directory: scratch,
            files: self.files.0.clone(),
            files_per_directory: self.per_directory,
            names: self.names.0.clone(),
            file_bytes: self.bytes,
            systems: if self.systems.is_empty() { both() } else { self.systems.clone() },
            leases: self.leases.0.clone(),
            clients: self.clients.0.clone(),
            quiet: self.quiet.0.clone(),
            changes: self.changes,
            actimeo: Duration::from_secs(self.actimeo.into()),
            vers: self.vers.clone(),
        }
    }

    /// Measures. Prints progress on standard error and the report on standard output.
    ///
    /// # Errors
    /// One line.
    pub async fn run(&self) -> Result<Report, String> {
        let scratch = Scratch::make(&self.directory)?;
        let options = self.options(scratch.0.clone());
        let runtime = tokio::runtime::Handle::current();
        // Walks block, as real programs do.
        let measuring = tokio::task::spawn_blocking(move || {
            super::run(&runtime, &options, |line| eprintln!("{line}")).map_err(|error| error.to_string())
        });
        let report = measuring.await.map_err(|error| format!("it ended before its time: {error}"))??;
        print(&if self.json { format!("{}\n", report.json()) } else { report.to_string() })?;
        if let Some(file) = &self.html {
            let written = std::fs::write(file, report.html());
            written.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ascends() {
        assert_eq!(numbers("10,200"), Ok(Numbers(vec![10, 200])));
        assert_eq!(numbers("none"), Ok(Numbers(vec![])));
        for wrong in ["", "200,10", "0", "1,x", "-1"] {
            assert!(numbers(wrong).is_err(), "{wrong}");
        }
    }
}
