//! Kills the proxy with `kill -9` repeatedly while a client works; the client goes on without errors.
//! `LAB_STEPS` sets the number of kills.
//!
//! Promise: calls-that-take-effect-once
//! Promise: cache-after-a-kill
//! Promise: stable-data

use std::time::Duration;

use lab::{Lab, Rng, V3, V4_2, suite};

use crate::stack::{self, between};

fn kills() -> usize {
    std::env::var("LAB_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// Reads, writes, runs `tar x`, renames, links and removes until the file /tmp/stop exists. Any error ends
/// it.
const WORK: &str = r#"
set -eu
cd /mnt/nfs
mkdir -p work; cd work
round=0
while [ ! -e /tmp/stop ]; do
    round=$((round + 1))
    mkdir r$round
    tar xf ../tree.tar -C r$round
    diff -r ../tree r$round/tree
    mv r$round/tree r$round/moved
    for name in $(ls r$round/moved); do mv r$round/moved/$name r$round/moved/$name.x; done
    for n in $(seq 20); do echo line $n >>r$round/log; ln r$round/log r$round/log.$n; mkdir r$round/d$n; done
    [ $(wc -l <r$round/log) = 20 ]
    for n in $(seq 20); do rm r$round/log.$n; rmdir r$round/d$n; ln -s log r$round/s$n; done
    head -c 3000000 /dev/urandom >r$round/data; cp r$round/data r$round/copy; cmp r$round/data r$round/copy
    rm -r r$round
done
[ -z "$(ls)" ]
echo "rounds: $round"
"#;

#[test]
fn a_client_survives_kills_of_the_proxy() {
    let Some(lab) = Lab::enter("kill") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let proxy = stack::proxy(&lab, &serve.origin(), "cache", &[]);
    through_kills(&lab, proxy, V3);
}

/// When the proxy is killed, its disk alone has a part of the bytes.
// Promise: delayed-writes-of-a-proxy
#[test]
fn a_client_survives_kills_of_a_proxy_that_delays_writes() {
    let Some(lab) = Lab::enter("kill-journal") else { return };
    let serve = stack::serve_with(&lab, &lab.subdirectory("served"), &["--lease-time", "5"]);
    let more = ["--fsync", "journal", "--lease-time", "5"];
    let proxy = stack::proxy_in(&lab, &serve.origin(), "4.2", "cache", &more);
    through_kills(&lab, proxy, V4_2);
}

fn through_kills(lab: &Lab, mut proxy: stack::Leasehold, version: &str) {
    let guest = lab.guest("client");
    suite::tree::provide(lab, suite::tree::Size::Large);
    guest.mount_nfs(&proxy.origin(), "/mnt/nfs", version);
    guest.sh("cd /mnt/nfs; cp -r /mnt/lab/tree . ; tar cf tree.tar tree; head -c 20000000 /dev/urandom >warm; sync");
    guest.sh("while [ $(($(date +%s) - $(stat -c %Z /mnt/nfs/warm))) -lt 5 ]; do sleep 0.2; done");
    guest.drop_caches();
    let warm = guest.sh("sha256sum /mnt/nfs/warm");
    guest.drop_caches();
    assert_eq!(guest.sh("sha256sum /mnt/nfs/warm"), warm);

    let mut rng = Rng::from_environment();
    let work = guest.spawn(WORK);
    let kills = kills();
    for kill in 0..kills {
        let pause = Duration::from_millis(200 + rng.below(1300) as u64);
        if let Some(output) = work.ended_within(pause) {
            panic!("the work ended before kill {kill}: {}", output.tail());
        }
        proxy.kill_and_restart();
    }
    guest.sh("touch /tmp/stop");
    let output = work.wait(Duration::from_secs(120));
    assert!(output.ok(), "{}", output.tail());
    eprintln!("lab: kill: {} through {kills} kills", output.text.trim());

    guest.drop_caches();
    let (before, reads) = (proxy.upstream_calls(), proxy.reads());
    assert_eq!(guest.sh("sha256sum /mnt/nfs/warm"), warm);
    let calls = between(&before, &proxy.upstream_calls());
    assert_eq!(proxy.reads(), reads, "warm files cost no READ: {calls:?}");
    guest.sh("diff -r /mnt/lab/tree /mnt/nfs/tree");
}
