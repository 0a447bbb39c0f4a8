//! The command line of the measurement: `[NAME=]URL… [--option]…`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use client::Url;

use super::{Error, Options, Report, Target, TreeOptions, Workload};

/// Drives NFSv3 servers and reports operations/s, MB/s and latency.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// Servers: `nfs://HOST[:PORT]/EXPORT[?mountport=PORT]`. A leading `NAME=` sets the name in the report;
    /// `NAME@PID=` also measures the CPU time of that process. The others are compared with the first.
    #[arg(required = true, value_name = "[NAME[@PID]=]URL")]
    pub servers: Vec<Target>,
    /// Workload to measure; repeatable [default: all].
    #[arg(long = "workload", value_name = "NAME")]
    pub workloads: Vec<Workload>,
    /// Seconds to measure each workload.
    #[arg(long, default_value = "2", value_parser = seconds, value_name = "SECONDS")]
    pub duration: Duration,
    /// Seconds that each workload runs before it is measured.
    #[arg(long, default_value = "0.5", value_parser = seconds, value_name = "SECONDS")]
    pub warm_up: Duration,
    /// Rounds for each measurement; the report gives medians.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000), value_name = "N")]
    pub rounds: u16,
    /// Connections to each server.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    pub connections: u16,
    /// Calls in flight at each server.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096), value_name = "N")]
    pub in_flight: u16,
    /// Number of small files.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000), value_name = "N")]
    pub files: u16,
    /// Size of the large file in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..), value_name = "MIB")]
    pub large: u16,
    /// Use the files that exist in this directory below the exports.
    #[arg(long, value_name = "DIR")]
    pub files_in: Option<String>,
    /// Make those files first, in this directory of this machine; the exports must show it as the directory
    /// of `--files-in`.
    #[arg(long, value_name = "DIR", requires = "files_in")]
    pub prepare: Option<PathBuf>,
    /// Print the report as JSON.
    #[arg(long)]
    pub json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a number of seconds from 0 to 3600");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.0..=3600.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}

impl FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Target, String> {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if !name.contains('/') => (Some(name), url),
            _ => (None, text),
        };
        let url: Url = url.parse().map_err(|error: client::UrlError| error.to_string())?;
        let (name, pid) = match name.map(|name| name.split_once('@').unwrap_or((name, ""))) {
            None => (url.host.clone(), ""),
            Some((name, pid)) => (name.to_owned(), pid),
        };
        let pid = match pid {
            "" => None,
            pid => Some(pid.parse().map_err(|_| format!("`{pid}` is not a process id"))?),
        };
        Ok(Target { name, url, pid })
    }
}

impl Arguments {
    /// The options that the arguments stand for.
    pub fn options(&self) -> Options {
        let workloads =
            if self.workloads.is_empty() { Workload::ALL.to_vec() } else { self.workloads.clone() };
        Options {
            servers: self.servers.clone(),
            workloads,
            duration: self.duration,
            warm_up: self.warm_up,
            rounds: self.rounds.into(),
            connections: self.connections.into(),
            in_flight: self.in_flight.into(),
            tree: TreeOptions {
                files: self.files.into(),
                large_bytes: u64::from(self.large) << 20,
                prepared_in: self.files_in.clone(),
            },
        }
    }

    /// Measures. Prints progress on standard error and the report on standard output.
    pub async fn run(&self) -> Result<Report, Error> {
        let options = self.options();
        if let Some(directory) = &self.prepare {
            super::prepare(directory, &options.tree)?;
        }
        let report = super::run(&options, |row| eprintln!("{row}")).await?;
        if self.json {
            println!("{}", report.json());
        } else {
            print!("{report}");
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_names_and_processes() {
        let target: Target = "serve@12=nfs://127.0.0.1:2050/x?mountport=7".parse().unwrap();
        assert_eq!((target.name.as_str(), target.pid), ("serve", Some(12)));
        assert_eq!(target.url.options.mountport, Some(7));
        let target: Target = "nfs://localhost/x?mountport=7".parse().unwrap();
        assert_eq!((target.name.as_str(), target.pid), ("localhost", None));
        assert!("a@b=nfs://h/x".parse::<Target>().is_err());
        assert!("a=http://h/x".parse::<Target>().is_err());
    }
}
