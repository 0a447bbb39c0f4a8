//! Proxies behind proxies, with kernel clients: a chain of three before `serve`, and one before knfsd.
//!
//! Promise: chained-proxies

use std::time::Duration;

use lab::{Knfsd, Lab, Origin, V3, V4_1, V4_2};

use crate::restart::adds_up;
use crate::stack::{self, Leasehold};

/// The lease time of the origin; that of each proxy before it follows from it.
const LEASE_TIME: [&str; 2] = ["--lease-time", "30"];

fn chain(lab: &Lab, origin: &Origin) -> Vec<Leasehold> {
    let mut chain: Vec<Leasehold> = Vec::new();
    for cache in ["first", "second", "third"] {
        let below = chain.last().map_or_else(|| origin.clone(), Leasehold::origin);
        chain.push(stack::proxy_in(lab, &below, "4.2", cache, &[]));
    }
    chain
}

/// Clients of the last proxy, of the first one and of the origin count under one lock. Any of the proxies is
/// killed, then two at once, then all.
#[test]
fn what_is_counted_under_a_lock_adds_up_through_kills_of_any_level() {
    let Some(lab) = Lab::enter("levels-count") else { return };
    let served = lab.subdirectory("served");
    let serve = stack::serve_with(&lab, &served, &LEASE_TIME);
    let mut chain = chain(&lab, &serve.origin());
    let clients = [
        ("one", chain[2].origin(), V4_1),
        ("two", chain[2].origin(), V4_2),
        ("first", chain[0].origin(), V4_2),
        ("direct", serve.origin(), V4_2),
    ];
    let mut rng = lab::Rng::from_environment();
    adds_up(&lab, &clients, &served.join("number"), || {
        for levels in [&[0][..], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
            std::thread::sleep(Duration::from_millis(1500 + rng.below(2000) as u64));
            levels.iter().for_each(|level: &usize| chain[*level].process.kill());
            levels.iter().for_each(|level| chain[*level].process.restart());
            levels.iter().for_each(|level| chain[*level].wait());
        }
    });
}

/// The handles of knfsd are longer than those of `serve`, so that those of the third proxy do not fit version
/// 3 and are kept in its table. A tree is copied, compared, and read again after all proxies were killed.
#[test]
fn long_handles_before_knfsd_last_over_restarts_of_all_levels() {
    let Some(lab) = Lab::enter("levels-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    let mut chain = chain(&lab, &knfsd.origin_v4());
    let guest = lab.guest("client");
    guest.mount_nfs(&chain[2].origin(), "/mnt/nfs", V3);
    guest.sh("mkdir -p /tmp/tree/a/b /tmp/tree/c; for i in $(seq 40); do echo $i >/tmp/tree/a/b/$i; echo c$i >/tmp/tree/c/$i; done");
    guest.sh("cp -r /tmp/tree /mnt/nfs/tree && diff -r /tmp/tree /mnt/nfs/tree");
    let open =
        guest.spawn("exec 3</mnt/nfs/tree/a/b/7; while [ ! -e /tmp/release ]; do sleep 0.1; done; cat <&3");
    chain.iter_mut().for_each(|proxy| proxy.process.kill());
    chain.iter_mut().for_each(|proxy| proxy.process.restart());
    chain.iter().for_each(Leasehold::wait);
    guest.sh("touch /tmp/release");
    let read = open.wait(Duration::from_secs(60));
    assert_eq!(read.text.trim(), "7");
    guest.drop_caches();
    guest.sh("diff -r /tmp/tree /mnt/nfs/tree && rm -r /mnt/nfs/tree && [ ! -e /mnt/nfs/tree ]");
}
