//! The Debian package on a machine with systemd: a proxy and a mount from it, an upgrade while a client is at
//! work, and the purge.
//!
//! Promise: held-state

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::{Guest, GuestOptions, Lab, V4_2, wait_for};

use crate::restart::{HOLD_PL, may_lock};
use crate::stack;

const PATIENCE: Duration = Duration::from_secs(120);
/// The machine with systemd.
const SITE: &str = include_str!("package/site.sh");
/// `work.pl DIRECTORY RELEASE`: opens and locks a file. Until the file RELEASE exists, writes one line after
/// the other to another file and syncs each. Then writes under the lock, and prints the number of lines and
/// the longest time that one of them took, in milliseconds. Any failure ends it.
const WORK: &str = r#"cat >/tmp/work.pl <<'PERL'
use Fcntl; use IO::Handle; use Time::HiRes "time";
my ($directory, $release) = @ARGV;
open(my $locked, "+>", "$directory/locked") or die "open: $!";
my $lock = pack("ssx4qqlx4", F_WRLCK, 0, 100, 50, 0);
fcntl($locked, F_SETLK, $lock) or die "lock: $!";
open(my $log, ">", "$directory/log") or die "open: $!";
$| = 1; print "held\n";
my ($lines, $longest) = (0, 0);
while (!-e $release) {
    my $began = time;
    $lines++;
    syswrite($log, sprintf("line %08d\n", $lines)) == 14 or die "write: $!";
    $log->sync or die "sync: $!";
    my $took = time - $began;
    $longest = $took if $took > $longest;
    select(undef, undef, undef, 0.01);
}
sysseek($locked, 100, 0);
syswrite($locked, "mine") == 4 or die "write under the lock: $!";
close($locked) or die "close: $!";
printf("lines %d longest %d\n", $lines, $longest * 1000);
PERL
"#;

/// A package of the program under test, with this version.
fn package(lab: &Lab, version: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_leasehold"));
    let to = lab.subdirectory(&format!("package-{version}"));
    let mut xtask = Command::new(program.with_file_name("xtask"));
    xtask.args(["package", "--number", version, "--program"]).arg(program).arg("--to").arg(&to);
    // `cargo xtask test` has built it; by hand, `cargo build -p xtask` does.
    let output = xtask.env("DPKG_DEB_COMPRESSOR_TYPE", "none").output();
    let output = output.expect("cargo build -p xtask makes target/debug/xtask");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made = std::fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().path());
    made.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "deb")).unwrap()
}

/// Runs a script on the machine with systemd.
#[track_caller]
fn site(guest: &Guest, script: &str) -> String {
    guest.sh(&format!("site '{script}'"))
}

/// Installs the package from the lab's directory, as an administrator does.
fn install(guest: &Guest, lab: &Lab, package: &Path) {
    let place = Path::new("/mnt/lab").join(package.strip_prefix(lab.directory()).unwrap());
    let apt = format!("apt-get -qq -o APT::Sandbox::User=root install -y {} 2>&1", place.display());
    site(guest, &format!("DEBIAN_FRONTEND=noninteractive {apt}"));
}

fn process_of(guest: &Guest, unit: &str) -> String {
    site(guest, &format!("systemctl show -P MainPID {unit}"))
}

/// A client of the proxy works while the package is upgraded. Nothing of it fails, and a client of the origin
/// never gets its lock.
fn upgrade(guest: &Guest, rival: &Guest, install: impl FnOnce()) {
    let before = process_of(guest, "leasehold-proxy@filer");
    let trying = rival.spawn(
        "tries=0; while [ ! -e /tmp/release ]; do code=0; perl /tmp/try.pl /mnt/nfs/locked >/dev/null || code=$?; \
         [ $code = 3 ] || { echo \"code $code\"; exit 1; }; tries=$((tries+1)); sleep 0.05; done; echo tries $tries",
    );
    install();
    assert_ne!(process_of(guest, "leasehold-proxy@filer"), before, "the proxy runs the new program");
    assert_eq!(site(guest, "systemctl is-active leasehold-proxy@filer").trim(), "active");
    // The client goes on with the new process.
    guest.sh("lines() { stat -c %s /mnt/nfs/log; }; now=$(lines); \
         for _ in $(seq 600); do [ $(lines) -gt $((now + 140)) ] && exit 0; sleep 0.1; done; exit 1");
    assert!(!may_lock(rival), "the lock is held");
    rival.sh("touch /tmp/release");
    let tried = trying.wait(PATIENCE);
    assert!(tried.ok(), "{}", tried.text);
    println!("{}", tried.text.trim());
}

#[test]
fn a_proxy_from_the_package_is_upgraded_under_load_and_purged() {
    let Some(lab) = Lab::enter("package") else { return };
    let (old, new) = (package(&lab, "0.1.0"), package(&lab, "0.1.0+1"));
    let served = lab.subdirectory("served");
    let origin = stack::serve(&lab, &served);
    let url = origin.origin().url();
    let guest = lab.boot(GuestOptions { memory_mib: 1536, ..GuestOptions::named("site") });
    let rival = lab.guest("rival");
    guest.sh(SITE);

    // Install, some lines of configuration, start.
    install(&guest, &lab, &old);
    let keys = "noresvport&timeo=50";
    site(
        &guest,
        &format!(
            "echo \"origin = \\\"{url}&{keys}\\\"\" >/etc/leasehold/proxy/filer.toml; \
             echo \"min_free = 0\" >>/etc/leasehold/proxy/filer.toml; \
             echo \"metrics = 9464\" >>/etc/leasehold/proxy/filer.toml; \
             echo \"rpcbind = false\" >>/etc/leasehold/proxy/filer.toml; \
             echo \"root_squash = false\" >>/etc/leasehold/proxy/filer.toml; \
             leasehold config check /etc/leasehold/proxy/filer.toml; \
             systemctl enable -q --now leasehold-proxy@filer"
        ),
    );
    let healthy = "for path in healthz readyz; do exec 3<>/dev/tcp/127.0.0.1/9464; \
                   printf \"GET /$path HTTP/1.0\\r\\n\\r\\n\" >&3; head -1 <&3; done";
    assert_eq!(guest.sh(healthy).matches("200 OK").count(), 2);

    let through =
        lab::Origin { host: [127, 0, 0, 1].into(), port: 2049, mountport: 2049, export: "/export".into() };
    for (machine, server) in [(&guest, &through), (&rival, &origin.origin())] {
        machine.sh(HOLD_PL);
        machine.sh(WORK);
        machine.mount_nfs(server, "/mnt/nfs", V4_2);
    }
    let work = guest.spawn("perl /tmp/work.pl /mnt/nfs /tmp/release");
    wait_for("a lock", PATIENCE, || work.output().contains("held").then_some(()));
    assert!(!may_lock(&rival));
    upgrade(&guest, &rival, || install(&guest, &lab, &new));
    guest.sh("touch /tmp/release");
    let worked = work.wait(PATIENCE);
    assert!(worked.ok(), "{}", worked.text);
    println!("{}", worked.text.trim());
    let written = worked.text.split("lines ").nth(1).and_then(|text| text.split(' ').next()?.parse().ok());
    let log = std::fs::read_to_string(served.join("log")).unwrap();
    let lines: Vec<_> = (1..=written.unwrap_or(0_usize)).map(|line| format!("line {line:08}")).collect();
    assert_eq!(log.lines().collect::<Vec<_>>(), lines);
    assert_eq!(std::fs::read(served.join("locked")).unwrap()[100..], *b"mine");

    // A mount as a unit: what is written in it is stored when the package goes.
    site(
        &guest,
        &format!(
            "mkdir /srv/filer; echo \"source = \\\"{url}&{keys}\\\"\" >/etc/leasehold/mount/filer.toml; \
             echo \"directory = \\\"/srv/filer\\\"\" >>/etc/leasehold/mount/filer.toml; \
             echo \"options = [\\\"minfree=0\\\", \\\"vers=4.2\\\"]\" >>/etc/leasehold/mount/filer.toml; \
             systemctl start leasehold-mount@filer || {{ journalctl --no-pager -n 30 -u leasehold-mount@filer; exit 1; }}; \
             dd if=/dev/urandom of=/srv/filer/made bs=1M count=8 2>&1; cksum </srv/filer/made >/srv/filer/sum"
        ),
    );
    guest.sh("umount /mnt/nfs");
    site(&guest, "DEBIAN_FRONTEND=noninteractive apt-get -qq purge -y leasehold 2>&1");
    let made = std::fs::read(served.join("made")).unwrap();
    assert_eq!(made.len(), 8 << 20);
    let sum = Command::new("sh").arg("-c").arg("cksum <made").current_dir(&served).output().unwrap();
    assert_eq!(sum.stdout, std::fs::read(served.join("sum")).unwrap());
    // Only what was installed or made here is in the upper layer, where a removed file is a character device.
    let left = guest.sh(
        "pgrep -x leasehold || true; cd /mnt/site/upper; find etc usr var srv -name '*leasehold*' -not -type c \\
         -not -path 'var/cache/apt/*' -prune",
    );
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["var/cache/leasehold"], "nothing but the cache");
}
