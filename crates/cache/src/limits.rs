//! How much is cached, and which files (Badros, sections 4 and 4.3).
//!
//! Three limits bound the data on disk: its total size, its size for each file system of the origin, and the
//! space on the disk that is left to others. Each limit has a **hard** value, at which nothing more is
//! stored, and a **soft** value, at which the cleaner starts. The cleaner continues until usage is a
//! twentieth below the soft value. Three thresholds decide which files are cached at all: the smallest size,
//! the largest size, and the time since the last change.
//!
//! [`Pressure`] is the amount of data to evict. It is pure bookkeeping: computed from the limits, and reduced
//! by each eviction.
//!
//! Promise: limits-and-pins

use std::collections::HashMap;
use std::time::Duration;

use vfs::{Attributes, Fsid, Timestamp};

/// The number of bytes to evict.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// From any file system.
    all: u64,
    /// From each of these file systems.
    shares: HashMap<Fsid, u64>,
}

/// The space in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of disk that all data uses.
    pub used_bytes: u64,
    /// Bytes of disk that the data of each file system uses.
    pub shares: Vec<(Fsid, u64)>,
    /// Bytes that are free on the disk.
    pub free_bytes: u64,
}

impl Pressure {
    /// The bytes to evict so that usage is a twentieth below the soft limits.
    pub fn of(limits: &Limits, usage: &Usage) -> Pressure {
        let soft = limits.soft_max_bytes();
        let over = usage.used_bytes.saturating_sub(after_cleaning(soft));
        let free_wanted = limits.min_free_bytes.saturating_add(limits.min_free_bytes / 5);
        // Space that others use on the disk cannot be freed here.
        let short = free_wanted.saturating_sub(usage.free_bytes).min(usage.used_bytes);
        let mut shares = HashMap::new();
        if let Some(soft) = limits.export_soft_bytes() {
            for (fsid, used) in &usage.shares {
                let over = used.saturating_sub(after_cleaning(soft));
                if over > 0 {
                    shares.insert(*fsid, over);
                }
            }
        }
        Pressure { all: over.max(short), shares }
    }

    /// Must data of this file system be evicted?
    pub fn wants(&self, fsid: Fsid) -> bool {
        self.all > 0 || self.shares.contains_key(&fsid)
    }

    /// So many bytes of this file system were evicted.
    pub fn relieve(&mut self, fsid: Fsid, bytes: u64) {
        self.all = self.all.saturating_sub(bytes);
        if let Some(over) = self.shares.get_mut(&fsid) {
            *over = over.saturating_sub(bytes);
            if *over == 0 {
                self.shares.remove(&fsid);
            }
        }
    }

    /// Is nothing left to evict?
    pub fn is_relieved(&self) -> bool {
        self.all == 0 && self.shares.is_empty()
    }
}

/// How far the cleaner goes: a twentieth below a limit. So it does not start again at once.
pub fn after_cleaning(limit: u64) -> u64 {
    limit - limit / 20
}

/// The limits and thresholds. They may change while the cache runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The hard limit of file data on disk, in bytes, at which caching pauses.
    pub size_max_bytes: u64,
    /// The soft limit, at which the cleaner starts. Nine tenths of the hard limit by default.
    pub size_soft_bytes: Option<u64>,
    /// The hard limit for each file system of the origin, in bytes. Its soft limit is in the same proportion.
    pub export_max_bytes: Option<u64>,
    /// Smaller files are not cached.
    pub file_min_bytes: u64,
    /// Larger files are not cached.
    pub file_max_bytes: u64,
    /// Files that changed more recently are not cached. The timestamp granularity rule keeps cached data of
    /// such files right. This option keeps the disk from filling with data that will soon be gone.
    pub changed_min_age: Duration,
    /// Bytes of the disk that are left to others. Below this, caching pauses; the cleaner starts a tenth
    /// above.
    pub min_free_bytes: u64,
}

impl Default for Limits {
    /// 10 GiB, with 1 GiB left free; all files.
    fn default() -> Limits {
        Limits {
            size_max_bytes: 10 << 30,
            size_soft_bytes: None,
            export_max_bytes: None,
            file_min_bytes: 0,
            file_max_bytes: u64::MAX,
            changed_min_age: Duration::ZERO,
            min_free_bytes: 1 << 30,
        }
    }
}

impl Limits {
    /// Is this usage within the soft limits? `shares` returns the bytes that the data of each file system
    /// uses. It is called only if there is a limit for each file system.
    pub(crate) fn is_within_soft(
        &self,
        used_bytes: u64,
        free_bytes: u64,
        shares: impl FnOnce() -> Vec<(Fsid, u64)>,
    ) -> bool {
        let export_soft = self.export_soft_bytes();
        used_bytes <= self.soft_max_bytes()
            && free_bytes >= self.min_free_bytes + self.min_free_bytes / 10
            && export_soft.is_none_or(|soft| shares().iter().all(|(_, used)| *used <= soft))
    }

    /// The soft limit of the total size.
    pub(crate) fn soft_max_bytes(&self) -> u64 {
        let tenth = self.size_max_bytes - self.size_max_bytes / 10;
        self.size_soft_bytes.map_or(tenth, |soft| soft.min(self.size_max_bytes))
    }

    /// The soft limit of one file system. Its share of the hard limit is the same as for the total size.
    pub(crate) fn export_soft_bytes(&self) -> Option<u64> {
        let hard = self.export_max_bytes?;
        let share =
            u128::from(self.soft_max_bytes()) * u128::from(hard) / u128::from(self.size_max_bytes.max(1));
        Some(u64::try_from(share).unwrap_or(hard).min(hard))
    }

    /// Do the thresholds admit a file with these attributes?
    pub(crate) fn takes(&self, attributes: &Attributes, now: Timestamp) -> bool {
        let sized = (self.file_min_bytes..=self.file_max_bytes).contains(&attributes.size);
        let changed = attributes.mtime.max(attributes.ctime);
        let rested = self.changed_min_age == Duration::ZERO || changed.plus(self.changed_min_age) <= now;
        sized && rested
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fsid(number: u64) -> Fsid {
        Fsid { major: number, minor: 0 }
    }

    #[test]
    fn thresholds_choose_what_is_cached() {
        let mut limits = Limits::default();
        let attributes = |size| crate::testing::attributes(size, 1000);
        assert!(limits.takes(&attributes(0), Timestamp::new(1000, 0)), "all, if nothing is said");
        limits.file_min_bytes = 4096;
        limits.file_max_bytes = 1 << 20;
        limits.changed_min_age = Duration::from_secs(30);
        let later = Timestamp::new(1030, 0);
        assert!(limits.takes(&attributes(4096), later) && limits.takes(&attributes(1 << 20), later));
        assert!(!limits.takes(&attributes(4095), later) && !limits.takes(&attributes((1 << 20) + 1), later));
        assert!(!limits.takes(&attributes(4096), Timestamp::new(1029, 0)), "changed half a minute ago");
    }

    #[test]
    fn soft_limits_are_below_hard_ones() {
        let mut limits = Limits { size_max_bytes: 1000, ..Limits::default() };
        assert_eq!((limits.soft_max_bytes(), limits.export_soft_bytes()), (900, None));
        limits.export_max_bytes = Some(500);
        assert_eq!(limits.export_soft_bytes(), Some(450));
        limits.size_soft_bytes = Some(600);
        assert_eq!((limits.soft_max_bytes(), limits.export_soft_bytes()), (600, Some(300)));
        limits.size_soft_bytes = Some(5000);
        assert_eq!((limits.soft_max_bytes(), limits.export_soft_bytes()), (1000, Some(500)));
    }

    proptest! {
        /// Evicting wanted data in any order until nothing is wanted meets every limit, and evicts nothing
        /// that no limit asked for.
        #[test]
        fn what_is_wanted_is_enough_and_not_more(
            files in prop::collection::vec((0..4u64, 1..200u64), 0..40),
            size_max in 100..4000u64, export_max in prop::option::of(50..2000u64),
            min_free in 0..500u64, free in 0..1000u64,
        ) {
            let limits = Limits {
                size_max_bytes: size_max,
                export_max_bytes: export_max,
                min_free_bytes: min_free,
                ..Limits::default()
            };
            let mut left = files.clone();
            let usage = |left: &[(u64, u64)]| {
                let used_bytes: u64 = left.iter().map(|(_, bytes)| bytes).sum();
                let freed = files.iter().map(|(_, bytes)| bytes).sum::<u64>() - used_bytes;
                let share = |of: u64| {
                    (fsid(of), left.iter().filter(|(on, _)| *on == of).map(|(_, bytes)| bytes).sum())
                };
                Usage { used_bytes, shares: (0..4).map(share).collect(), free_bytes: free + freed }
            };
            let mut pressure = Pressure::of(&limits, &usage(&left));
            let mut at = 0;
            while at < left.len() && !pressure.is_relieved() {
                let (on, bytes) = left[at];
                if pressure.wants(fsid(on)) {
                    let before = Pressure::of(&limits, &usage(&left));
                    prop_assert!(!before.is_relieved(), "something is over its limit when something goes");
                    left.remove(at);
                    pressure.relieve(fsid(on), bytes);
                } else {
                    at += 1;
                }
            }
            prop_assert!(pressure.is_relieved() || left.iter().all(|(on, _)| !pressure.wants(fsid(*on))));
            let Usage { used_bytes, shares, free_bytes } = usage(&left);
            let within = limits.is_within_soft(used_bytes, free_bytes, || shares);
            if pressure.is_relieved() {
                prop_assert!(Pressure::of(&limits, &usage(&left)).is_relieved());
                prop_assert!(within || used_bytes == 0, "the cleaner does not start again at once");
            }
        }
    }
}
