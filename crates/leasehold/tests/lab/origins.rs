//! A kernel client with two origins behind one proxy, one of which stops answering.
//!
//! Promise: many-origins

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lab::{Guest, Lab, Origin, V3, V4_2, wait_for};
use rustix::process::{Pid, Signal};

use crate::stack::{self, Leasehold};

const PATIENCE: Duration = Duration::from_secs(120);
/// Work on the origin that answers must not take longer. A client alone needs a second or two.
const SOON: Duration = Duration::from_secs(30);

fn signal(leasehold: &Leasehold, signal: Signal) {
    let pid = Pid::from_raw(leasehold.process.pid() as i32).unwrap();
    if signal == Signal::STOP {
        lab::freeze(pid);
    } else {
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

/// A proxy of these origins, at `/a` and `/b`.
fn proxy(lab: &Lab, origins: [&Leasehold; 2]) -> Leasehold {
    let (address, state) = (lab.free_address(), lab.subdirectory("cache"));
    let table = |(path, origin): (&str, &Leasehold)| {
        format!("[[origin]]\nurl = '{}&vers=4.2&timeo=50'\npath = '{path}'\n", origin.origin().url())
    };
    let tables: String = ["/a", "/b"].into_iter().zip(origins).map(table).collect();
    let file = lab.subdirectory("config").join("site.toml");
    let whole = "min_free = 0\nsecure = false\nroot_squash = false\nrpcbind = false\noffline_after = 2\n";
    std::fs::write(&file, format!("{whole}{tables}")).unwrap();
    let program = stack::program().args(["proxy", "--config"]).arg(&file);
    let program = program.arg("--listen").arg(address.to_string()).arg("--cache").arg(&state);
    stack::start(lab, program, address, "/", state)
}

fn serve(lab: &Lab, name: &str) -> (Leasehold, PathBuf) {
    let served = lab.subdirectory(&format!("served-{name}"));
    std::fs::write(served.join("file"), name).unwrap();
    let state = format!("state-{name}");
    (stack::serve_at(lab, lab.free_address(), &served, &state, &[]), served)
}

/// Reads, lists and writes where the origin answers.
fn work(guest: &Guest, round: &str) -> Duration {
    let began = Instant::now();
    let script = format!(
        "cat /mnt/a/file; cp /mnt/a/file /mnt/a/copy-{round}; ls /mnt/a | grep -c copy-{round}; rm /mnt/a/copy-{round}"
    );
    let done = guest.run_for(PATIENCE, &script);
    assert!(done.ok(), "{}", done.tail());
    began.elapsed()
}

#[test]
fn a_kernel_client_goes_on_with_one_origin_while_another_does_not_answer() {
    let Some(lab) = Lab::enter("origins") else { return };
    let ((a, _), (b, served)) = (serve(&lab, "a"), serve(&lab, "b"));
    let proxy = proxy(&lab, [&a, &b]);
    let export = |path: &str| Origin { export: path.to_owned(), ..proxy.origin() };
    for version in [V4_2, V3] {
        let guest = lab.guest(&format!("client-{}", version.replace(['=', '.', ','], "-")));
        // One connection and one session for both.
        for path in ["/a", "/b"] {
            guest.mount_nfs(&export(path), Path::new("/mnt").join(&path[1..]).to_str().unwrap(), version);
        }
        let alone = work(&guest, "before");
        guest.sh("cat /mnt/b/file >/dev/null");
        signal(&b, Signal::STOP);
        // Many requests that wait, of each kind: more than a session has slots.
        let script = "for i in $(seq 100); do ls /mnt/b/absent-$i >/dev/null 2>&1 & done; \
                      for i in $(seq 20); do sh -c \"echo $i >/mnt/b/made-$i\" & done; wait; sync";
        let waiting = guest.spawn(script);
        wait_for("the outage", PATIENCE, || {
            let status = proxy.status();
            (status["origins"]["/b"]["link"]["unanswered_ms"].as_u64()? > 2000).then_some(())
        });
        let mut longest = Duration::ZERO;
        for round in 0..5 {
            longest = longest.max(work(&guest, &round.to_string()));
        }
        eprintln!("lab: origins: {version}: alone {alone:?}; while the other is away at most {longest:?}");
        assert!(longest < SOON, "{version}: {longest:?}");
        assert!(!served.join("made-1").exists());
        signal(&b, Signal::CONT);
        let done = waiting.wait(PATIENCE);
        assert!(done.ok(), "{}", done.tail());
        for number in 1..=20 {
            let made = std::fs::read_to_string(served.join(format!("made-{number}"))).unwrap();
            assert_eq!(made, format!("{number}\n"));
        }
        guest.sh("rm /mnt/b/made-*; umount /mnt/a /mnt/b");
    }
}
