//! The command line of the comparison with the native file system.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Options, Report, Size, Task};

/// Compares `leasehold mount` with the native file system. Needs root.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Task to measure: sequential, random, stat, untar, appends, writes; repeatable [default: all]
    #[arg(long = "task", value_name = "NAME")]
    pub tasks: Vec<Task>,
    /// Rounds for each measurement in the near places; the report gives medians
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub rounds: u16,
    /// Round trip to the far places in milliseconds; 0 leaves them out
    #[arg(long, value_name = "MS", default_value_t = 40)]
    pub far: u16,
    /// NFS version
    #[arg(long, value_name = "VERS", default_value = "4.2", value_parser = ["3", "4.1", "4.2"])]
    pub vers: String,
    /// An argument for `serve`, such as `--async`; repeatable
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub serve: Vec<String>,
    /// An argument for `mount -o`; repeatable
    #[arg(long, value_name = "WORD")]
    pub mount: Vec<String>,
    /// Number of files that the search visits
    #[arg(long, value_name = "N", default_value_t = Size::default().files, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub files: u64,
    /// Number of appends
    #[arg(long, value_name = "N", default_value_t = Size::default().appends, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub appends: u64,
    /// Number of files in the archive
    #[arg(long, value_name = "N", default_value_t = Size::default().sources, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub sources: u64,
    /// The program `leasehold` [default: the one in this program's directory]
    #[arg(long, value_name = "FILE")]
    pub leasehold: Option<PathBuf>,
    /// Directory for all files: its file system is the native one
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub directory: PathBuf,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

impl Arguments {
    /// The options that the arguments stand for.
    pub fn options(&self) -> Options {
        let beside = || std::env::current_exe().unwrap_or_default().with_file_name("leasehold");
        Options {
            tasks: if self.tasks.is_empty() { Task::ALL.to_vec() } else { self.tasks.clone() },
            rounds: self.rounds.into(),
            far: (self.far > 0).then(|| Duration::from_millis(self.far.into())),
            far_rounds: 1,
            vers: self.vers.clone(),
            serve: self.serve.clone(),
            mount: self.mount.clone(),
            size: Size { files: self.files, appends: self.appends, sources: self.sources, ..Size::default() },
            leasehold: self.leasehold.clone().unwrap_or_else(beside),
            directory: std::path::absolute(&self.directory).unwrap_or_else(|_| Path::new("/var/tmp").into()),
        }
    }

    /// Measures. Prints progress on standard error and the report on standard output.
    ///
    /// # Errors
    /// One line.
    pub async fn run(&self) -> Result<Report, String> {
        let options = self.options();
        let runtime = tokio::runtime::Handle::current();
        // Tasks block, as real programs do.
        let measuring = tokio::task::spawn_blocking(move || {
            super::run(&runtime, &options, |line| eprintln!("{line}")).map_err(|error| error.to_string())
        });
        let report = measuring.await.map_err(|error| format!("it ended before its time: {error}"))??;
        crate::arguments::print(&if self.json {
            format!("{}\n", report.json())
        } else {
            report.to_string()
        })?;
        Ok(report)
    }
}
