//! `leasehold cache record` and `leasehold cache warm --profile`: a program whose profile was brought makes
//! almost no call, and a replay gives no user more than the user may have.
//!
//! Promise: profiles

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::setting::{Setting, VERSIONS, may_mount, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");
const DIRECTORIES: usize = 6;
const FILES: usize = 5;
/// How far this machine's clock may be ahead of the origin's, and one granularity.
const NONRACY: Duration = Duration::from_millis(3100);
/// What a program does in the tree: it lists, follows a link, looks for names that are absent, and reads
/// every second file of each directory, in an order that is no order of names.
const PROGRAM_TEXT: &str = "cd \"$1\" && find . >/dev/null && cat link/f0 >/dev/null &&
    for n in 4 1 5 0; do
        for f in 4 0 2; do cat d$n/f$f || exit 1; test ! -e d$n/absent$f || exit 1; done
    done >/dev/null; exit 3";

fn grow(setting: &Setting) {
    for n in 0..DIRECTORIES {
        let directory = setting.there(format!("d{n}"));
        fs::create_dir(&directory).unwrap();
        for file in 0..FILES {
            // Larger than what comes with an open.
            let bytes = if file == 2 { 700_000 } else { 100 };
            fs::write(directory.join(format!("f{file}")), vec![b'a' + file as u8; bytes]).unwrap();
        }
    }
    std::os::unix::fs::symlink("d3", setting.there("link")).unwrap();
    // Until its timestamps are nonracy, what is known of the tree is good for one open.
    std::thread::sleep(NONRACY);
}

fn work(at: &Path) -> Option<i32> {
    Command::new("sh").args(["-c", PROGRAM_TEXT, "sh"]).arg(at).status().unwrap().code()
}

fn record(setting: &Setting, mount: &str) -> PathBuf {
    let (at, profile) = (setting.at(mount, ""), setting.place("profile"));
    let mut command = Command::new(PROGRAM);
    command.args(["cache", "record"]).arg(&at).arg("-o").arg(&profile);
    let output = command.args(["--", "sh", "-c", PROGRAM_TEXT, "sh"]).arg(&at).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "the exit code is the command's: {said}");
    assert!(said.contains("recorded in"), "{said}");
    profile
}

fn warm(setting: &Setting, mount: &str, profile: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["cache", "warm", "--json", "--profile"]).arg(profile).args(more);
    command.arg(setting.at(mount, "")).output().unwrap()
}

fn warm_in_words(setting: &Setting, mount: &str, profile: &Path) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(["cache", "warm", "--profile"]).arg(profile).arg(setting.at(mount, "")).output().unwrap()
}

/// The last line of the answer of a replay that succeeds.
#[track_caller]
fn warmed(setting: &Setting, mount: &str, profile: &Path, more: &[&str]) -> Value {
    let output = warm(setting, mount, profile, more);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str::<Value>(text.lines().last().unwrap()).unwrap()["done"].clone()
}

/// The calls that a mount makes to its server while `work` runs there, by procedure.
fn calls(setting: &Setting, mount: &str) -> BTreeMap<String, u64> {
    let all = || -> BTreeMap<String, u64> {
        let status = setting.status(mount);
        let of =
            |(procedure, calls): (&String, &Value)| (procedure.clone(), calls["calls"].as_u64().unwrap());
        status["upstream"].as_object().unwrap().iter().map(of).collect()
    };
    let before = all();
    assert_eq!(work(&setting.at(mount, "")), Some(3));
    let since = |(procedure, calls): (String, u64)| {
        let calls = calls - before.get(&procedure).copied().unwrap_or(0);
        (procedure, calls)
    };
    all().into_iter().map(since).filter(|(_, calls)| *calls > 0).collect()
}

#[test]
fn a_program_whose_profile_was_brought_makes_almost_no_call() {
    if !may_mount() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        grow(&setting);
        // Without guesses, each call that the profile saves shows.
        let options = format!("vers={version},prefetch=0");
        setting.mount("recorded", &options);
        // The kernel has all of it, and asks again while something is recorded.
        assert_eq!(work(&setting.at("recorded", "")), Some(3));
        let profile = record(&setting, "recorded");
        let text = fs::read_to_string(&profile).unwrap();
        for line in ["list /d0", "link /link", "read 0+700000 /d4/f2", "absent /d1/absent0"] {
            assert!(text.lines().any(|there| there == line), "{line} is not in {text}");
        }
        let at = |line: &str| text.lines().position(|there| there == line).unwrap();
        let order = ["read 0+100 /d4/f4", "read 0+100 /d4/f0", "read 0+100 /d1/f4", "read 0+100 /d0/f0"];
        assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{text}");

        setting.mount("cold", &options);
        let cold = calls(&setting, "cold");

        // Attributes that expire on a loaded machine would cost calls.
        setting.mount("warm", &format!("{options},actimeo=60"));
        let done = warmed(&setting, "warm", &profile, &[]);
        assert_eq!((&done["gone"], &done["failed"], &done["denied"]), (&0.into(), &0.into(), &0.into()));
        assert_eq!(done["fetched"], 13, "{version}: {done}");
        let warm = calls(&setting, "warm");
        eprintln!("version {version}, cold: {cold:?}, behind the profile: {warm:?}");
        let cold: u64 = cold.values().sum();
        if version == "3" {
            // Each open asks whether something has changed, as close-to-open demands. find(1) asks
            // for the space of the file system.
            let revalidates = |procedure: &String| procedure == "GETATTR" || procedure == "FSSTAT";
            assert!(warm.keys().all(revalidates), "{warm:?}");
        } else {
            assert!(warm.values().sum::<u64>() <= 4 && cold > 20, "{cold} {warm:?}");
        }
        let again = warmed(&setting, "warm", &profile, &[]);
        assert_eq!((&again["fetched"], &again["here"]), (&0.into(), &14.into()), "{version}: {again}");
    }
}

#[test]
fn what_is_gone_or_forbidden_is_counted_and_what_is_wrong_is_refused() {
    if !may_mount() {
        return;
    }
    let mut setting = Setting::new();
    grow(&setting);
    setting.mount("recorded", "vers=4.2");
    let profile = record(&setting, "recorded");
    fs::remove_dir_all(setting.there("d4")).unwrap();
    fs::remove_file(setting.there("d1/f2")).unwrap();
    let secret = setting.there("d1/f0");
    fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    setting.mount("b", "vers=4.2");
    let done = warmed(&setting, "b", &profile, &["--as", "1000:1000,27"]);
    let gone = done["gone"].as_u64().unwrap();
    assert!(gone >= 5, "{done}");
    assert_eq!((&done["denied"], &done["failed"]), (&1.into(), &0.into()), "{done}");
    let mut stat = Command::new(PROGRAM);
    let stat =
        stat.args(["cache", "stat", "--json"]).arg(setting.at("b", "")).arg("/d1/f0").output().unwrap();
    let stat: Value =
        serde_json::from_slice(stat.stdout.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!(stat["entry"]["cached_bytes"], 0, "what the user may not read is not here: {stat}");

    // The profile of another tree is no failure, and says so.
    let other = setting.place("other");
    fs::write(&other, "# leasehold profile 1\nlist /\nlist /x\nread 0+10 /x/y\nabsent /z\n").unwrap();
    let done = warmed(&setting, "b", &other, &[]);
    assert_eq!((&done["gone"], &done["uses"], &done["done"]), (&2.into(), &4.into(), &4.into()), "{done}");
    let said = String::from_utf8(warm_in_words(&setting, "b", &other).stderr).unwrap();
    assert!(said.contains("no path of the profile exists"), "{said}");
    // A hostile one is refused as a whole, before anything is asked.
    for wrong in ["look /../etc/shadow", "look etc", "read 0+18446744073709551615,1+1 /d1", "\u{7}"] {
        fs::write(&other, format!("# leasehold profile 1\nlist /\n{wrong}\n")).unwrap();
        let output = warm(&setting, "b", &other, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("other:3: "), "{said}");
    }
    // One recording at a time; a recording ends with the process that asked for it.
    let mut running = Command::new(PROGRAM)
        .args(["cache", "record"])
        .arg(setting.at("b", ""))
        .arg("-o")
        .arg(setting.place("first"))
        .args(["--", "sh", "-c", "echo $$ >\"$0\"; exec sleep 600"])
        .arg(setting.place("begun"))
        .spawn()
        .unwrap();
    let pid = || fs::read_to_string(setting.place("begun")).ok()?.trim().parse::<i32>().ok();
    wait_until(|| pid().is_some());
    let second = || {
        let mut command = Command::new(PROGRAM);
        command.args(["cache", "record"]).arg(setting.at("b", "")).arg("-o").arg(setting.place("second"));
        command.args(["--", "true"]).output().unwrap()
    };
    let said = second();
    assert!(String::from_utf8_lossy(&said.stderr).contains("another recording is running"), "{said:?}");
    running.kill().unwrap();
    running.wait().unwrap();
    let left = pid().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(left, rustix::process::Signal::KILL).unwrap();
    wait_until(|| second().status.success());
    let nothing = Command::new(PROGRAM)
        .args(["cache", "record"])
        .arg(setting.place("no-cache"))
        .arg("-o")
        .arg(setting.place("third"))
        .args(["--", "true"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&nothing.stderr);
    assert!(nothing.status.code() == Some(1) && said.contains("nothing runs on"), "{said}");
}
