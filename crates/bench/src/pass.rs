//! One pass of a workload in a mounted directory, as a command for machines that have nothing but the mount.
//!
//! The program that compares has put the files there and counts the calls to the origin. This command reports
//! what the clients saw. A workload of several clients runs on several machines, each as one client.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::interrupt::Interrupt;
use crate::run::{Pass, Passed};
use crate::target::{Forgetting, Mounted, Target};
use crate::workload::{self, Plan, Workload};

/// The pass, and its directories.
#[derive(Clone, Debug, clap::Args)]
pub struct PassArguments {
    /// Workload to run
    #[arg(long, value_parser = workload::named)]
    workload: Workload,
    /// Number of the pass; 0 is the cold one
    #[arg(long, default_value_t = 0)]
    pass: u64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sizes and counts relative to those of the papers
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Which client of the workload this is, from 0
    #[arg(long, default_value_t = 0)]
    client: usize,
    /// Where the workload empties memory, empty the machine's page cache (needs root); nothing else may use
    /// this machine
    #[arg(long)]
    drop_caches: bool,
    /// The directory with the workload's files
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// A directory of this machine, for the files that a client keeps on its own disk
    #[arg(long, value_name = "DIR")]
    local: PathBuf,
}

impl PassArguments {
    /// Runs the pass, and prints the result as one line of JSON.
    ///
    /// # Errors
    /// One line.
    pub fn run(&self) -> Result<(), String> {
        let passed = self.pass().map_err(|error| format!("{}: {error}", self.workload.name))?;
        println!("{}", serde_json::to_string(&passed).map_err(|error| error.to_string())?);
        Ok(())
    }

    fn pass(&self) -> io::Result<Passed> {
        std::fs::create_dir_all(&self.local)?;
        let forgetting = if self.drop_caches { Forgetting::WholeMachine } else { Forgetting::WhatWasOpened };
        let client: Arc<dyn Target> = Arc::new(Mounted::new(&self.dir, forgetting));
        let pass = Pass {
            workload: &self.workload,
            plan: Plan { seed: self.seed, scale: self.scale },
            clients: &[client],
            first_client: self.client,
            beside: None,
            pass: self.pass,
            local: &self.local,
            calls: None,
        };
        pass.run(&Interrupt::default())
    }
}
