//! `leasehold mount` as a user runs it: in the background, killed, stopped, and from mount(8). Skipped on
//! machines where nothing can be mounted.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_leasehold");

fn may_mount() -> bool {
    let device = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    let may = device && rustix::process::geteuid().is_root();
    if !may {
        eprintln!("skipped: mounting takes root and /dev/fuse");
    }
    may
}

/// A server, and directories for a cache and a mount.
struct Setting {
    directory: tempfile::TempDir,
    server: Child,
    address: String,
}

impl Setting {
    fn new() -> Setting {
        let directory = tempfile::tempdir().unwrap();
        ["served", "state", "cache", "mnt"]
            .iter()
            .for_each(|name| fs::create_dir(directory.path().join(name)).unwrap());
        fs::write(directory.path().join("served/file"), b"content").unwrap();
        let (server, address) = serve(directory.path(), "127.0.0.1:0");
        Setting { directory, server, address }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn options(&self, more: &str) -> String {
        let (cache, log) = (self.at("cache"), self.at("log"));
        format!("cache={},minfree=0,noresvport,log={},{more}", cache.display(), log.display())
    }

    fn mount(&self, more: &str) -> Output {
        let url = format!("nfs://{}/export", self.address);
        Command::new(PROGRAM)
            .args(["mount", &url])
            .arg(self.at("mnt"))
            .args(["-o", &self.options(more)])
            .output()
            .unwrap()
    }

    /// The process in the background.
    fn pid(&self) -> rustix::process::Pid {
        self.background().unwrap()
    }

    fn background(&self) -> Option<rustix::process::Pid> {
        let mine = |entry: &fs::DirEntry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.contains(&self.at("mnt").as_os_str().as_encoded_bytes()) && words.contains(&&b"--ready"[..])
        };
        let found = fs::read_dir("/proc").unwrap().flatten().find(mine)?;
        rustix::process::Pid::from_raw(found.file_name().to_str().unwrap().parse().unwrap())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        table.lines().any(|line| line.contains(self.at("mnt").to_str().unwrap()))
    }

    fn file(&self) -> String {
        fs::read_to_string(self.at("mnt/file")).unwrap()
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at("mnt")).stderr(Stdio::null()).status();
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn serve(directory: &Path, listen: &str) -> (Child, String) {
    let mut server = Command::new(PROGRAM)
        .arg("serve")
        .arg(directory.join("served"))
        .args(["--export", "/export", "--insecure", "--no-root-squash", "--listen", listen, "--state"])
        .arg(directory.join("state"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split_once(" on ").unwrap().1.split(';').next().unwrap().to_owned();
    (server, address)
}

fn wait_until(condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "it did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn it_is_mounted_when_the_command_returns_and_tells_of_itself() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new();
    let mounted = setting.mount("vers=4.2");
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    assert_eq!(setting.file(), "content");
    let status = Command::new(PROGRAM).args(["status", "--json"]).arg(setting.at("mnt")).output().unwrap();
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!((&status["role"], &status["origin_version"]), (&"mount".into(), &"4.2".into()));
    assert_eq!(status["locks"], "at the origin");
    assert!(status["kernel"]["requests"].as_u64().unwrap() > 0);
    let listed = Command::new(PROGRAM).args(["cache", "ls"]).arg(setting.at("mnt")).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("/file"), "{listed}");
    let twice = setting.mount("vers=4.2");
    let error = String::from_utf8_lossy(&twice.stderr).into_owned();
    assert!(twice.status.code() == Some(1) && error.contains("`leasehold umount"), "{error}");
    let unmounted = Command::new(PROGRAM).arg("umount").arg(setting.at("mnt")).status().unwrap();
    assert!(unmounted.success() && !setting.is_mounted());
    let again = Command::new(PROGRAM).arg("umount").arg(setting.at("mnt")).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
}

#[test]
fn a_mount_is_made_read_only_and_writable_again() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new();
    let failed = |output: Output, said: &str| {
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error.contains(said), "{error}");
    };
    failed(setting.mount("remount,ro"), "nothing of Leasehold is mounted there");
    assert!(setting.mount("vers=4.2,dev").status.success());
    let flags = || {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = table.lines().find(|line| line.contains(setting.at("mnt").to_str().unwrap())).unwrap();
        let words: Vec<String> = line.split(' ').nth(3).unwrap().split(',').map(str::to_owned).collect();
        ["ro", "nosuid", "nodev"].map(|flag| words.iter().any(|word| word == flag))
    };
    assert_eq!(flags(), [false, true, false]);
    let written = fs::File::create(setting.at("mnt/new")).unwrap();
    failed(setting.mount("remount,ro"), "open for writing");
    drop(written);
    // The kernel reports the close without waiting for the reply. The options include some that the kernel
    // adds and mount(8) passes on.
    wait_until(|| setting.mount("remount,ro,user_id=0,helper=leasehold").status.success());
    assert_eq!(flags(), [true, true, false], "what was not named stays");
    let refused = fs::write(setting.at("mnt/new"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(setting.file(), "content");
    assert!(setting.mount("remount,rw").status.success());
    fs::write(setting.at("mnt/new"), "x").unwrap();
    assert_eq!(flags(), [false, true, false]);
    assert!(Command::new(PROGRAM).arg("umount").arg(setting.at("mnt")).status().unwrap().success());
}

#[test]
fn a_bind_mount_of_it_ends_without_a_word() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new();
    assert!(setting.mount("vers=4.2").status.success());
    fs::create_dir(setting.at("elsewhere")).unwrap();
    let bind =
        Command::new("mount").arg("--bind").args([setting.at("mnt"), setting.at("elsewhere")]).status();
    assert!(bind.unwrap().success());
    let unmount = |name: &str| Command::new(PROGRAM).arg("umount").arg(setting.at(name)).output().unwrap();
    let ended = unmount("elsewhere");
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.success() && error.is_empty(), "{error}");
    assert_eq!(setting.file(), "content");
    assert!(unmount("mnt").status.success());
}

#[test]
fn a_mistake_is_told_where_the_command_was_given() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new();
    for (words, said) in
        [("nonsense", "`nonsense`"), ("vers=3,cachesize=lots", "lots"), ("vers=7", "`vers=7`")]
    {
        let output = setting.mount(words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(said) && error.trim_end().lines().count() == 1, "{error}");
    }
    let mut command = Command::new(PROGRAM);
    command.args(["mount", "nowhere", "/mnt"]);
    assert_eq!(command.output().unwrap().status.code(), Some(2));
}

#[test]
fn a_directory_that_cannot_be_mounted_on_is_told_before_the_server_is_waited_for() {
    if !may_mount() {
        return;
    }
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nfs://{}/export", silent.local_addr().unwrap());
    for directory in ["/nonexistent/directory", PROGRAM] {
        let output = Command::new(PROGRAM).args(["mount", &url, directory]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(directory) && error.trim_end().lines().count() == 1, "{error}");
    }
}

#[test]
fn a_command_that_is_ended_while_it_waits_leaves_no_process() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nfs://{}/export", silent.local_addr().unwrap());
    let mut command = Command::new(PROGRAM)
        .args(["mount", &url])
        .arg(setting.at("mnt"))
        .args(["-o", &setting.options("vers=4.2")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(command.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("has not answered yet"), "{said}");
    assert!(setting.background().is_some());
    command.kill().unwrap();
    command.wait().unwrap();
    wait_until(|| setting.background().is_none());
    assert!(!setting.is_mounted());
}

#[test]
fn a_process_that_was_killed_leaves_nothing_that_the_next_mount_does_not_clean() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new();
    assert!(setting.mount("vers=4.2").status.success());
    assert_eq!(setting.file(), "content");
    // Under a write delegation the close sends nothing, so sync the data that the kill must not lose.
    let mut written = fs::File::create(setting.at("mnt/written")).unwrap();
    written.write_all(b"written").unwrap();
    written.sync_all().unwrap();
    drop(written);
    let removed = fs::File::create(setting.at("mnt/removed")).unwrap();
    fs::remove_file(setting.at("mnt/removed")).unwrap();
    setting.signal(rustix::process::Signal::KILL);
    wait_until(|| fs::metadata(setting.at("mnt")).is_err());
    drop(removed);
    assert!(setting.is_mounted(), "a dead mount point");
    wait_until(|| setting.mount("vers=4.2").status.success());
    assert_eq!(setting.file(), "content");
    assert_eq!(fs::read(setting.at("served/written")).unwrap(), b"written");
    wait_until(|| fs::read_dir(setting.at("served")).unwrap().count() == 2);
}

#[test]
fn what_was_written_is_at_the_server_when_it_is_unmounted() {
    if !may_mount() {
        return;
    }
    for vers in ["3", "4.2"] {
        let setting = Setting::new();
        assert!(setting.mount(&format!("vers={vers}")).status.success());
        // Under a write delegation the close sends nothing.
        fs::write(setting.at("mnt/written"), b"written").unwrap();
        fs::copy(setting.at("mnt/written"), setting.at("mnt/copied")).unwrap();
        let unmounted = Command::new(PROGRAM).arg("umount").arg(setting.at("mnt")).status().unwrap();
        assert!(unmounted.success());
        for file in ["written", "copied"] {
            let path = setting.at("served").join(file);
            wait_until(|| fs::read(&path).is_ok_and(|content| content == b"written"));
        }
    }
}

#[test]
fn it_ends_in_order_while_the_server_is_away() {
    if !may_mount() {
        return;
    }
    for vers in ["vers=3", "vers=4.2"] {
        let mut setting = Setting::new();
        assert!(setting.mount(vers).status.success());
        assert_eq!(setting.file(), "content");
        setting.server.kill().unwrap();
        setting.server.wait().unwrap();
        let pid = setting.pid();
        let mut stuck =
            Command::new("cat").arg(setting.at("mnt/other")).stderr(Stdio::null()).spawn().unwrap();
        setting.signal(rustix::process::Signal::TERM);
        wait_until(|| !setting.is_mounted());
        wait_until(|| rustix::process::test_kill_process(pid).is_err());
        stuck.kill().unwrap();
        stuck.wait().unwrap();
    }
}

#[test]
fn mount8_finds_it_under_its_helpers_name() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new();
    let port = setting.address.rsplit(':').next().unwrap();
    let mut helper = Command::new(PROGRAM);
    helper.arg0("/sbin/mount.leasehold").arg("127.0.0.1:/export").arg(setting.at("mnt")).arg("-v").arg("-o");
    helper.arg(setting.options(&format!("rw,_netdev,x-test,port={port},vers=4.2")));
    let output = helper.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(setting.file(), "content");
    let mut wrong = Command::new(PROGRAM);
    wrong.arg0("mount.leasehold").arg("127.0.0.1:/export").arg(setting.at("mnt")).args(["-o", "nonsense"]);
    assert_eq!(wrong.output().unwrap().status.code(), Some(32), "as mount(8) wants it");
}

#[test]
fn a_mount_that_may_try_once_finds_a_healthy_server_and_shows_what_was_given() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new();
    let port = setting.address.rsplit(':').next().unwrap();
    let mut mount = Command::new(PROGRAM);
    mount.args(["mount", "127.0.0.1:/export"]).arg(setting.at("mnt")).arg("-o");
    mount.arg(setting.options(&format!("retry=0,vers=4.2,port={port}")));
    let mounted = mount.output().unwrap();
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(setting.at("mnt").to_str().unwrap())).unwrap();
    assert!(line.starts_with(&format!("nfs://127.0.0.1:{port}/export ")), "{line}");
    // A server that does not exist is reported at once.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut mount = Command::new(PROGRAM);
    mount.args(["mount", &format!("nfs://{free}/export")]).arg(setting.at("served"));
    let began = Instant::now();
    let refused =
        mount.args(["-o", &format!("retry=0,cache={}", setting.at("none").display())]).output().unwrap();
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && error.trim_end().lines().count() == 1, "{error}");
    assert!(began.elapsed() < Duration::from_secs(20));
}

/// A small disk mounted on a directory; dropping the value unmounts it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(at: PathBuf) -> SmallDisk {
        let mount = ["-t", "tmpfs", "-o", "size=64m,mode=700", "leasehold-test"];
        assert!(Command::new("mount").args(mount).arg(&at).status().unwrap().success());
        SmallDisk(at)
    }

    fn fill(&self) {
        let mut ballast = fs::File::create(self.0.join("lost+found")).unwrap();
        for chunk in [1 << 20, 4096, 1] {
            while ballast.write_all(&vec![1; chunk]).is_ok() {}
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

// Promise: full-cache-disk
#[test]
fn a_mount_with_its_cache_on_a_full_disk_works_and_says_why_nothing_is_cached() {
    if !may_mount() {
        return;
    }
    let setting = Setting::new();
    let disk = SmallDisk::new(setting.at("cache"));
    disk.fill();
    let broken = || {
        let status =
            Command::new(PROGRAM).args(["status", "--json"]).arg(setting.at("mnt")).output().unwrap();
        serde_json::from_slice::<Value>(&status.stdout).unwrap()["cache"]["index_broken"] == true
    };
    for round in 0..2 {
        let mounted = setting.mount("vers=4.2");
        let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
        assert!(mounted.status.success(), "{said}");
        assert!(said.contains("disk is full") && !said.contains("damaged"), "{said}");
        assert!(broken());
        assert_eq!(setting.file(), "content");
        fs::write(setting.at("mnt/written"), round.to_string()).unwrap();
        // A file that is removed while it is open stays usable.
        let open = fs::File::create_new(setting.at("mnt/open")).unwrap();
        fs::remove_file(setting.at("mnt/open")).unwrap();
        drop(open);
        if round == 1 {
            fs::remove_file(disk.0.join("lost+found")).unwrap();
            wait_until(|| !broken());
        }
        assert!(Command::new(PROGRAM).arg("umount").arg(setting.at("mnt")).status().unwrap().success());
        assert_eq!(fs::read_to_string(setting.at("served/written")).unwrap(), round.to_string());
    }
    let mounted = setting.mount("vers=4.2");
    assert!(mounted.status.success() && mounted.stderr.is_empty(), "{mounted:?}");
}
