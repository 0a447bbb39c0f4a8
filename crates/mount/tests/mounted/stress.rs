//! The mount never makes the kernel hang. Many threads use it at once, with recalls, changes on the server,
//! a server that stops and comes back, and unmounts in the middle. A watchdog checks for progress.
//!
//! Promise: no-program-hangs

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::setting::{Setting, may_mount};

/// The least number of operations for each thread, on average.
const ROUNDS: u64 = 150;
/// The mount counts as hung if no operation finishes for this time.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn nothing_hangs() {
    if !may_mount() {
        return;
    }
    for version in ["3", "4.2"] {
        let mut setting = Setting::new(&format!("vers={version}&timeo=5"));
        (0..20).for_each(|n| fs::write(setting.there(format!("f{n}")), vec![b'x'; n * 997]).unwrap());
        let (done, end) = (AtomicU64::new(0), AtomicBool::new(false));
        let (mnt, there) = (setting.mnt(), setting.there("."));
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (done, end, mnt) = (&done, &end, &mnt);
                scope.spawn(move || {
                    for round in 0.. {
                        if end.load(Ordering::Relaxed) {
                            return;
                        }
                        let name = |n: u64| mnt.join(format!("f{}", n % 20));
                        let n = round * 7 + thread * 3;
                        // Other threads remove and rename these files: errors are expected, hanging is not.
                        let _ = match n % 8 {
                            0 => fs::read(name(n)).map(drop),
                            1 => fs::write(name(n), vec![b'y'; (n % 5000) as usize]),
                            2 => fs::metadata(name(n)).map(drop),
                            3 => fs::rename(name(n), name(n + 1)),
                            4 => fs::read_dir(mnt).map(|entries| assert!(entries.count() < 100)),
                            5 => fs::remove_file(name(n)),
                            6 => fs::hard_link(name(n), name(n + 5)),
                            _ => fs::File::open(name(n)).and_then(|file| file.sync_all()),
                        };
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            scope.spawn(|| {
                // On the server: each write recalls the delegations of the file.
                let mut n = 0;
                while !end.load(Ordering::Relaxed) {
                    n += 1;
                    let _ = fs::write(there.join(format!("f{}", n % 20)), vec![b'z'; n % 3000]);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let (mut seen, mut since, mut stopped) = (0, Instant::now(), 0);
            while seen < ROUNDS * 4 {
                std::thread::sleep(Duration::from_millis(50));
                let now = done.load(Ordering::Relaxed);
                if now > seen {
                    (seen, since) = (now, Instant::now());
                }
                if since.elapsed() > PATIENCE {
                    end.store(true, Ordering::Relaxed);
                    // An unmount ends the hung operations with an error, so that the test can end and
                    // report it.
                    setting.unmount();
                    panic!("version {version}: nothing has been done for {PATIENCE:?}");
                }
                if stopped < 2 && now > (stopped + 1) * ROUNDS {
                    stopped += 1;
                    setting.stop_server();
                    std::thread::sleep(Duration::from_millis(300));
                    setting.start_server();
                }
            }
            end.store(true, Ordering::Relaxed);
            setting.unmount();
        });
    }
}
