//! The memory of a lease. This test has a process of its own, whose size it reads.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use arbiter::Options;
use arbiter::leases::{Leases, Wanted};
use tokio::time::Instant;
use vfs::{Handle, HolderId, Lease, LeaseId, LeaseKind, Share, Want};

const LEASES: u64 = 100_000;
/// Limit for one lease, its handle included.
const BYTES_MAX: u64 = 600;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_lease_takes_some_hundred_bytes() {
    let (mut leases, now) = (Leases::new(&Options::default()), Instant::now());
    let before = resident_bytes();
    for number in 0..LEASES {
        // The length of a handle of `local` on ext4.
        let handle = Handle::new(&[[7; 4].as_slice(), &[0; 8], &number.to_be_bytes()].concat()).unwrap();
        let below = Lease {
            id: LeaseId(number),
            kind: LeaseKind::Write,
            until: None,
            change: number,
            space_limit: Lease::NO_SPACE_LIMIT,
        };
        leases.granted_below(&handle, Some(below));
        let wanted = Wanted {
            holder: Some(HolderId(1)),
            access: Share::READ,
            want: Want::Any,
            others: arbiter::shares::Others::default(),
            change: number,
            directory: false,
            term: None,
        };
        assert!(leases.grant(now, &handle, &wanted).is_some());
    }
    let each = (resident_bytes() - before) / LEASES;
    println!("{each} bytes for each of {LEASES} leases");
    assert!(each <= BYTES_MAX, "{each} bytes");
    assert!(leases.effects().is_empty(), "none is recalled");
}
