//! Tests that a guest boots, runs scripts, reports their exit codes, and leaves nothing behind.

use lab::{Hand, Lab, Program, wait_for};
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_guest_runs_scripts_and_acts_on_files() {
    let Some(lab) = Lab::enter("guest") else { return };
    let started = Instant::now();
    let guest = lab.guest("alone");
    eprintln!("lab: booted in {:.1} s", started.elapsed().as_secs_f64());

    assert!(guest.linux() >= (6, 1), "{:?}", guest.linux());
    let output = guest.run("echo out; echo err >&2; uname -s; exit 7");
    assert_eq!((output.text.as_str(), output.code), ("out\nerr\nLinux\n", 7));
    assert_eq!(guest.run("true").code, 0);
    let output = guest.run("echo before\nfalse\necho after");
    assert_eq!(output.code, 1);
    assert!(
        output.text.contains("line 2 failed with 1: false") && !output.text.contains("after"),
        "{}",
        output.text
    );

    // Timeouts, long output, concurrent scripts, and the end of processes that a script leaves running.
    let output = guest.run_for(Duration::from_millis(300), "echo started; sleep 1000");
    assert_eq!(output.code, 124);
    assert!(output.text.starts_with("started\n"), "{}", output.text);
    assert_eq!(
        guest.run("seq 200000").text.len(),
        (1..=200_000).map(|n: u32| n.to_string().len() + 1).sum::<usize>()
    );
    let task = guest.spawn("echo going; read -r line </tmp/fifo || true; echo \"got $line\"");
    guest.sh("[ -p /tmp/fifo ] || { rm -f /tmp/fifo; mkfifo /tmp/fifo; }");
    drop(task);
    guest.sh("sleep 1000 & echo");
    let sleepers = || (guest.run("pgrep -c sleep || true").text.trim() == "0").then_some(());
    wait_for("the end of all sleepers", Duration::from_secs(10), sleepers);

    let mut hand = guest.hand();
    hand.write("/tmp/f", b"by hand").expect("write");
    assert_eq!(guest.sh("cat /tmp/f"), "by hand");
    assert_eq!(hand.read("/tmp/none").expect_err("no file").raw_os_error(), Some(2));
    assert!(hand.write("/etc/leasehold-lab", b"").is_err(), "the host's tree is read-only");

    let started = Instant::now();
    for _ in 0..100 {
        hand.stat("/tmp/f").expect("stat");
    }
    eprintln!("lab: an act takes {:.2} ms", started.elapsed().as_secs_f64() * 10.0);
}

#[test]
fn a_guest_whose_network_device_has_failed_opens_it_again() {
    let Some(lab) = Lab::enter("network") else { return };
    let guest = lab.guest("alone");
    let device = guest.device();
    let set = |state| {
        let status = Command::new("ip").args(["link", "set", &device, state]).status();
        assert!(status.expect("ip runs").success(), "{device} {state}");
    };
    set("down");
    // The guest's next packet fails with EIO; from then on it sends nothing, whatever becomes of the tap.
    wait_for("the loss of the device", Duration::from_secs(30), || {
        guest.console().contains("LAB-NETWORK").then_some(())
    });
    set("up");
    let answers = || (guest.run("echo back").text == "back\n").then_some(());
    wait_for("the guest's network", Duration::from_secs(60), answers);
}

#[test]
fn a_process_is_watched_killed_and_started_again() {
    let Some(lab) = Lab::enter("process") else { return };
    let patience = Duration::from_secs(10);
    let mut process =
        Program::new("sh").args(["-c", "echo \"ready $WORD\"; sleep 1000"]).env("WORD", "one").start(&lab);
    assert_eq!(process.wait_for_line("ready", patience), "ready one");
    let pid = process.pid();
    assert!(process.is_running());
    process.kill();
    assert!(!process.is_running());
    process.restart();
    process.wait_for_line("ready", patience);
    assert_ne!(process.pid(), pid);
    assert_eq!(process.log().matches("ready one").count(), 2, "{}", process.log());
    assert!(!process.terminate(patience).success());
    let mut brief = Program::new("sh").args(["-c", "exit 3"]).start(&lab);
    assert_eq!(brief.wait(patience).code(), Some(3));
}

#[test]
fn what_a_stay_made_is_gone_after_it() {
    let Some(lab) = Lab::enter("leavings") else { return };
    let directory = lab.directory().to_owned();
    let guest = lab.guest("short-lived");
    let address = guest.address().to_string();
    let tap = index_of_tap(&address).expect("a tap");
    assert!(directory.join("lab-hand").exists());
    drop(lab); // the guest keeps the lab open
    assert!(guest.run("true").ok());
    drop(guest);

    assert!(!directory.exists(), "{}", directory.display());
    // Another test may already be in the lane and have a tap of the same name.
    assert_ne!(index_of_tap(&address), Some(tap), "the tap of {address}");
    let mut host = Hand::on_host();
    for process in host.list("/proc").expect("/proc") {
        let name = String::from_utf8_lossy(&process).into_owned();
        let command = host.read(format!("/proc/{name}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        assert!(!command.contains(&*directory.to_string_lossy()), "left over: {name} {command}");
    }
}

/// The kernel's index of the device in a guest's network; the kernel does not reuse it.
fn index_of_tap(guest: &str) -> Option<String> {
    let network = guest.strip_suffix('2')?;
    let addresses = Command::new("ip").args(["-brief", "address"]).output().expect("ip").stdout;
    let addresses = String::from_utf8_lossy(&addresses).into_owned();
    let device = addresses.lines().find(|line| line.contains(network))?.split(' ').next()?;
    std::fs::read_to_string(format!("/sys/class/net/{device}/ifindex")).ok()
}
