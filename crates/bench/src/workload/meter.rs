//! Counts and times the file system operations of a workload.

use std::collections::BTreeMap;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::histogram::Histogram;
use crate::interrupt::Interrupt;
use crate::target::{How, Listed, OpenFile, Stat, Target};

/// Durations of operations, by kind.
#[derive(Debug, Default)]
pub struct Meter {
    operations: Mutex<BTreeMap<&'static str, Histogram>>,
    interrupt: Interrupt,
}

/// Percentiles of one kind of operation, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Latencies {
    /// Number of operations.
    pub count: u64,
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Latencies {
    /// Combines the results of two machines: the mean of all operations, and the larger of the two
    /// percentiles.
    pub(crate) fn and(self, other: &Latencies) -> Latencies {
        let count = self.count + other.count;
        let sum = self.mean * self.count as f64 + other.mean * other.count as f64;
        Latencies {
            count,
            mean: sum / (count as f64).max(1.0),
            p50: self.p50.max(other.p50),
            p90: self.p90.max(other.p90),
            p99: self.p99.max(other.p99),
        }
    }
}

impl Meter {
    /// A meter whose operations fail once `interrupt` requests the end.
    pub fn new(interrupt: &Interrupt) -> Meter {
        Meter { operations: Mutex::default(), interrupt: interrupt.clone() }
    }

    /// Number of operations so far.
    pub fn operations(&self) -> u64 {
        self.operations.lock().values().map(Histogram::count).sum()
    }

    /// Latencies by kind of operation.
    pub fn latencies(&self) -> BTreeMap<String, Latencies> {
        let of = |(kind, histogram): (&&'static str, &Histogram)| {
            let milliseconds = |percent| histogram.percentile(percent).as_secs_f64() * 1e3;
            let latencies = Latencies {
                count: histogram.count(),
                mean: histogram.mean().as_secs_f64() * 1e3,
                p50: milliseconds(50.0),
                p90: milliseconds(90.0),
                p99: milliseconds(99.0),
            };
            ((*kind).to_owned(), latencies)
        };
        self.operations.lock().iter().map(of).collect()
    }

    fn time<T>(&self, kind: &'static str, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.interrupt.check()?;
        let started = Instant::now();
        let done = work();
        self.operations.lock().entry(kind).or_default().add(started.elapsed());
        done
    }
}

/// A target with a meter.
#[derive(Clone)]
pub struct Metered<T> {
    target: T,
    meter: Arc<Meter>,
}

impl<T> Metered<T> {
    /// Wraps a target. Several targets may share a meter.
    pub fn new(target: T, meter: Arc<Meter>) -> Metered<T> {
        Metered { target, meter }
    }
}

impl<T: Deref<Target = dyn Target> + Send + Sync> Target for Metered<T> {
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn OpenFile + '_>> {
        let kind = if how.makes() { "create" } else { "open" };
        let file = self.meter.time(kind, || self.target.open(path, how))?;
        Ok(Box::new(MeteredFile { file, meter: &self.meter }))
    }

    fn stat(&self, path: &str) -> io::Result<Stat> {
        self.meter.time("stat", || self.target.stat(path))
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        self.meter.time("list", || self.target.list(path))
    }

    fn mkdir(&self, path: &str) -> io::Result<()> {
        self.meter.time("mkdir", || self.target.mkdir(path))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.meter.time("remove", || self.target.remove(path))
    }

    fn rmdir(&self, path: &str) -> io::Result<()> {
        self.meter.time("rmdir", || self.target.rmdir(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.meter.time("rename", || self.target.rename(from, to))
    }

    fn forget(&self) -> io::Result<()> {
        self.target.forget()
    }

    fn directory(&self) -> Option<&Path> {
        self.target.directory()
    }
}

struct MeteredFile<'f> {
    file: Box<dyn OpenFile + 'f>,
    meter: &'f Meter,
}

impl OpenFile for MeteredFile<'_> {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.meter.time("read", || self.file.read_at(buffer, offset))
    }

    fn write_at(&mut self, data: &[u8], offset: u64) -> io::Result<()> {
        self.meter.time("write", || self.file.write_at(data, offset))
    }

    fn size(&mut self) -> io::Result<u64> {
        self.file.size()
    }

    fn sync(&mut self) -> io::Result<()> {
        self.meter.time("sync", || self.file.sync())
    }

    fn lock(&mut self, exclusive: bool) -> io::Result<()> {
        self.meter.time("lock", || self.file.lock(exclusive))
    }

    fn unlock(&mut self) -> io::Result<()> {
        self.meter.time("unlock", || self.file.unlock())
    }

    fn close(self: Box<Self>) -> io::Result<()> {
        self.meter.time("close", || self.file.close())
    }
}
