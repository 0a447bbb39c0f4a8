//! Locks between processes of one mount and between two mounts, also when a program or a whole mount that
//! holds a lock is killed.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::setting::{Setting, VERSIONS, may_mount, output, wait_until};

/// Takes and releases locks of one file on command: `fcntl` ranges and `flock`.
const HOLDER: &str = "import fcntl,os,sys,struct\n\
    f=os.open(sys.argv[1],os.O_RDWR|os.O_CREAT)\n\
    a=None\n\
    for line in sys.stdin:\n\
    \x20   w=line.split()\n\
    \x20   try:\n\
    \x20       if w[0]=='who':\n\
    \x20           g=struct.unpack('hhqqi4x',fcntl.fcntl(f,fcntl.F_GETLK,struct.pack('hhqqi4x',fcntl.F_WRLCK,0,0,0,0)))\n\
    \x20           print('free' if g[0]==fcntl.F_UNLCK else '%d+%d by %d'%(g[2],g[3],g[4]),flush=True)\n\
    \x20       elif w[0]=='read': print(os.pread(f,99,0).decode(),flush=True)\n\
    \x20       elif w[0]=='write': os.pwrite(f,w[1].encode(),0); print('done',flush=True)\n\
    \x20       elif w[0]=='append':\n\
    \x20           a=a or os.open(sys.argv[1],os.O_WRONLY|os.O_APPEND)\n\
    \x20           os.write(a,w[1].encode()); print('done',flush=True)\n\
    \x20       else:\n\
    \x20           how={'ex':fcntl.LOCK_EX,'sh':fcntl.LOCK_SH,'un':fcntl.LOCK_UN}[w[1]]\n\
    \x20           how|=0 if w[1]=='un' or 'wait' in w else fcntl.LOCK_NB\n\
    \x20           fcntl.flock(f,how) if w[0]=='flock' else fcntl.lockf(f,how,int(w[3]),int(w[2]))\n\
    \x20           print('done',flush=True)\n\
    \x20   except OSError as e: print(os.strerror(e.errno),flush=True)\n";

const BUSY: &str = "Resource temporarily unavailable";

struct Holder {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Holder {
    fn new(path: &Path) -> Holder {
        let mut python = Command::new("python3");
        python.arg("-c").arg(HOLDER).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Holder { child, to, from }
    }

    fn tell(&mut self, words: &str) {
        writeln!(self.to, "{words}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, words: &str) -> String {
        self.tell(words);
        self.hear()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn may_hold() -> bool {
    let python = Command::new("python3").arg("-V").stdout(Stdio::null()).status();
    let may = may_mount() && python.is_ok();
    if !may {
        eprintln!("skipped: locks take python3");
    }
    may
}

// Promise: lock-exclusion
#[test]
fn processes_of_one_mount_exclude_each_other_and_who_is_killed_gives_up() {
    if !may_hold() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version}"));
        let path = setting.at("a", "file");
        let (mut one, mut two) = (Holder::new(&path), Holder::new(&path));
        assert_eq!(one.ask("fcntl ex 10 10"), "done");
        assert_eq!(two.ask("fcntl ex 15 1"), BUSY);
        assert_eq!(two.ask("fcntl sh 0 10"), "done");
        assert_eq!(two.ask("who"), format!("10+10 by {}", one.child.id()), "version {version}");
        assert_eq!(one.ask("fcntl sh 10 5"), "done", "half of it is shared now");
        assert_eq!(two.ask("fcntl sh 12 1"), "done");
        assert_eq!(two.ask("fcntl ex 15 1"), BUSY);
        // The waiter gets the lock when the holder is killed.
        two.tell("fcntl ex 15 1 wait");
        one.child.kill().unwrap();
        assert_eq!(two.hear(), "done");
        let mut three = Holder::new(&path);
        assert_eq!(three.ask("flock sh"), BUSY, "both kinds are byte ranges at the server");
        assert_eq!(three.ask("flock un"), "done");
        two.child.kill().unwrap();
        two.child.wait().unwrap();
        wait_until(|| try_flock(&path));
        assert_eq!(three.ask("flock sh"), "done");
        assert!(!try_flock(&path));
    }
}

// Promise: deadlock-detection
#[test]
fn who_would_wait_for_itself_through_others_is_refused() {
    if !may_hold() {
        return;
    }
    // With a write lease, and without one.
    for (version, elsewhere) in [("3", false), ("4.2", false), ("4.2", true)] {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version}"));
        setting.mount("b", &format!("vers={version}"));
        let path = setting.at("a", "file");
        fs::write(&path, b"x").unwrap();
        let other = elsewhere.then(|| Holder::new(&setting.at("b", "file")));
        let mut holders = [0, 1, 2].map(|_| Holder::new(&path));
        for (n, holder) in holders.iter_mut().enumerate() {
            assert_eq!(holder.ask(&format!("fcntl ex {n}0 10")), "done");
        }
        let case = format!("version {version}, open elsewhere: {elsewhere}");
        // Each process waits for the next one, and the last one for the first. The last request is refused,
        // and its process releases its lock.
        let wait = |(n, holder): (usize, &mut Holder)| {
            let heard = holder.ask(&format!("fcntl ex {}0 10 wait", (n + 1) % 3));
            assert_eq!(holder.ask("fcntl un 0 30"), "done");
            heard
        };
        let heard: Vec<_> = std::thread::scope(|scope| {
            let waits: Vec<_> =
                holders.iter_mut().enumerate().map(|holder| scope.spawn(move || wait(holder))).collect();
            waits.into_iter().map(|wait| wait.join().unwrap()).collect()
        });
        let count = |what: &str| heard.iter().filter(|heard| *heard == what).count();
        let counts = (count("done"), count("Resource deadlock avoided"));
        assert_eq!(counts, (2, 1), "{case}: {heard:?}");
        // A chain is not a cycle, even if two processes have waited for each other before.
        let [one, two, _] = &mut holders;
        assert_eq!(one.ask("fcntl ex 0 10"), "done");
        two.tell("fcntl ex 0 10 wait");
        wait_until(|| waits_for_a_lock(two));
        assert_eq!(one.ask("fcntl un 0 10"), "done");
        assert_eq!(two.hear(), "done", "{case}");
        one.tell("fcntl ex 0 10 wait");
        wait_until(|| waits_for_a_lock(one));
        assert_eq!(two.ask("fcntl un 0 10"), "done");
        assert_eq!(one.hear(), "done", "{case}");
        drop(other);
    }
}

/// Is a process in the system call fcntl?
fn waits_for_a_lock(holder: &Holder) -> bool {
    let call = fs::read_to_string(format!("/proc/{}/syscall", holder.child.id())).unwrap_or_default();
    call.starts_with(&format!("{} ", libc::SYS_fcntl))
}

/// Could another process lock the whole file?
fn try_flock(path: &Path) -> bool {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
}

// Promise: lock-exclusion
// Promise: locks-as-points-of-coherence
// Promise: locks-at-a-version-3-origin
#[test]
fn two_mounts_exclude_each_other_and_see_what_was_written_under_the_lock() {
    if !may_hold() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version}"));
        setting.mount("b", &format!("vers={version}"));
        let (mut one, mut two) =
            (Holder::new(&setting.at("a", "file")), Holder::new(&setting.at("b", "file")));
        assert_eq!(one.ask("fcntl ex 0 100"), "done");
        assert_eq!(two.ask("fcntl sh 50 1"), BUSY);
        assert_eq!(two.ask("fcntl ex 100 1"), "done");
        assert!(two.ask("who").starts_with("0+100 by "));
        for round in 0..20 {
            // Both keep the file open, so only the lock tells them when to read again.
            assert_eq!(one.ask(&format!("write round-{round}")), "done");
            two.tell("fcntl ex 0 100 wait");
            assert_eq!(one.ask("fcntl un 0 100"), "done");
            assert_eq!(two.hear(), "done");
            assert_eq!(two.ask("read"), format!("round-{round}"), "version {version}");
            std::mem::swap(&mut one, &mut two);
        }
        // A holder is killed, then a whole mount. The server releases the lock when the lease expires, or at
        // the next mount. Over version 3 it is the next mount that gives it up.
        two.tell("fcntl ex 0 100 wait");
        one.child.kill().unwrap();
        assert_eq!(two.hear(), "done");
        let lock_of_killed = setting.at("b", "other");
        fs::write(&lock_of_killed, b"x").unwrap();
        let mut three = Holder::new(&lock_of_killed);
        assert_eq!(three.ask("flock ex"), "done");
        setting.kill("b");
        if version == "3" {
            assert!(!try_flock(&setting.at("a", "other")));
        }
        setting.mount("b", &format!("vers={version}"));
        wait_until(|| try_flock(&setting.at("a", "other")));
    }
}

/// The server loses the locks of version 3 clients, which reclaim them in its grace period. Each lock is
/// tried meanwhile by another mount.
// Promise: locks-at-a-version-3-origin
#[test]
fn locks_of_version_3_are_reclaimed_after_a_kill_of_the_server() {
    if !may_hold() {
        return;
    }
    let mut setting = Setting::with_brief_grace();
    setting.mount("a", "vers=3");
    setting.mount("b", "vers=3");
    let mut holders: Vec<_> = (0..5).map(|n| Holder::new(&setting.at("a", format!("file{n}")))).collect();
    for (n, holder) in holders.iter_mut().enumerate() {
        assert_eq!(holder.ask(&format!("fcntl ex {n}0 10")), "done");
        assert_eq!(holder.ask(&format!("fcntl sh {n}4 2")), "done");
    }
    setting.restart_server();
    for (n, holder) in holders.iter_mut().enumerate() {
        let mut other = Holder::new(&setting.at("b", format!("file{n}")));
        // The first answer comes after the grace period.
        assert_eq!(other.ask(&format!("fcntl ex {n}0 1")), BUSY);
        assert_eq!(other.ask(&format!("fcntl sh {n}4 2")), "done");
        assert_eq!(other.ask("fcntl un 0 0"), "done");
        assert_eq!(holder.ask("fcntl un 0 0"), "done");
        assert_eq!(other.ask("fcntl ex 0 0"), "done");
    }
}

// Promise: locks-as-points-of-coherence
#[test]
fn a_counter_under_a_lock_counts_each_time() {
    if !may_hold() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version}"));
        setting.mount("b", &format!("vers={version}"));
        fs::write(setting.at("a", "counter"), b"0").unwrap();
        let script = "for n in $(seq 20); do flock $0 sh -c 'echo $(($(cat '$0') + 1)) >'$0; done";
        let count =
            |name| Command::new("sh").arg("-c").arg(script).arg(setting.at(name, "counter")).spawn().unwrap();
        for mut child in ["a", "b", "a", "b"].map(count) {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(output(Command::new("cat").arg(setting.at("b", "counter"))).trim(), "80");
        drop(File::open(setting.at("a", "counter")).unwrap());
    }
}

/// All keep the file open and do not ask for its size, so only the lock tells them where the file ends.
// Promise: appends
#[test]
fn what_two_mounts_append_under_a_lock_is_there_in_order() {
    if !may_hold() {
        return;
    }
    for version in VERSIONS {
        let mut setting = Setting::new();
        setting.mount("a", &format!("vers={version},actimeo=3600"));
        setting.mount("b", &format!("vers={version},actimeo=3600"));
        let path = |name| setting.at(name, "log");
        let mut holders = [Holder::new(&path("a")), Holder::new(&path("b"))];
        let mut wanted = String::new();
        for round in 0..20 {
            let holder = &mut holders[round % 2];
            assert_eq!(holder.ask("fcntl ex 0 0 wait"), "done");
            for part in 0..=round % 3 {
                let text = format!("{round}.{part};").repeat(round * 70 + 1);
                assert_eq!(holder.ask(&format!("append {text}")), "done");
                wanted += &text;
            }
            if round % 5 == 4 {
                assert_eq!(holder.ask("read"), wanted[..99]);
            }
            assert_eq!(holder.ask("fcntl un 0 0"), "done");
        }
        for name in ["a", "b"] {
            assert_eq!(fs::metadata(path(name)).unwrap().len(), wanted.len() as u64, "{name}");
            assert!(fs::read_to_string(path(name)).unwrap() == wanted, "{name}");
        }
        assert!(fs::read_to_string(setting.there("log")).unwrap() == wanted);
    }
}

/// A reader keeps a file open that the kernel reads by itself (passthrough), and locks it before each read,
/// as a database does.
// Promise: passthrough
#[test]
fn who_gets_a_lock_on_a_file_that_the_kernel_reads_by_itself_sees_what_the_last_holder_wrote() {
    if !may_hold() {
        return;
    }
    let mut setting = Setting::new();
    setting.mount("a", "vers=4.2");
    setting.mount("b", "vers=4.2");
    let passed = |setting: &Setting| setting.status("a")["kernel"]["opens_passthrough"].as_u64().unwrap();
    fs::write(setting.at("b", "file"), b"round-x").unwrap();
    let mut reader = None;
    // That an earlier open used passthrough says nothing about the next open, so check this open.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while reader.is_none() {
        if std::time::Instant::now() > deadline {
            eprintln!("skipped: this kernel has no passthrough");
            return;
        }
        assert_eq!(fs::read(setting.at("a", "file")).unwrap(), b"round-x");
        let before = passed(&setting);
        let file = File::open(setting.at("a", "file")).unwrap();
        reader = (passed(&setting) > before).then_some(file);
    }
    let reader = reader.unwrap();
    let writer = OpenOptions::new().write(true).open(setting.at("b", "file")).unwrap();
    for round in 0..5 {
        flock(&writer, rustix::fs::FlockOperation::LockExclusive);
        writer.write_all_at(format!("round-{round}").as_bytes(), 0).unwrap();
        flock(&writer, rustix::fs::FlockOperation::Unlock);
        flock(&reader, rustix::fs::FlockOperation::LockShared);
        let mut bytes = [0; 7];
        reader.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(std::str::from_utf8(&bytes).unwrap(), format!("round-{round}"));
        flock(&reader, rustix::fs::FlockOperation::Unlock);
    }
}

fn flock(file: &File, how: rustix::fs::FlockOperation) {
    rustix::fs::flock(file, how).unwrap();
}

/// flock(2) locks end with the RELEASE of the open, which Linux sends after close(2) has returned.
// Promise: locks-of-closed-files
#[test]
fn a_lock_of_an_open_file_is_free_when_its_close_has_returned() {
    if !may_hold() {
        return;
    }
    let mut setting = Setting::new();
    setting.mount("a", "vers=4.2");
    let path = setting.at("a", "file");
    fs::write(&path, b"x").unwrap();
    let wants = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    for round in 0..300 {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let locked = rustix::fs::flock(&file, wants);
        assert_eq!(locked, Ok(()), "round {round}: the last holder has closed the file");
    }
}
