//! A Kerberos realm for tests: MIT's KDC with a database of its own in a temporary directory.
//!
//! It needs neither the lab nor root. Programs find it by [`Realm::environment`]. A test that calls Kerberos
//! in its own process needs this environment itself: [`with_realm`] runs it in a process that has it.

mod again;
mod files;

pub use again::with_realm;
pub use files::REALM;

use crate::guard::Guard;
use crate::log::Log;
use crate::require::{find, kerberos_missing};
use crate::session::{HAND, free_port, wait_for};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the KDC may take to answer.
const KDC_PATIENCE: Duration = Duration::from_secs(20);
/// Variables that would lead Kerberos away from the realm.
const FOREIGN: [&str; 5] =
    ["KRB5CCNAME", "KRB5_KTNAME", "KRB5_CLIENT_KTNAME", "KRB5RCACHENAME", "KRB5_TRACE"];

/// A realm named [`REALM`] with its KDC. Dropping it stops the KDC and removes the directory.
#[derive(Debug)]
pub struct Realm {
    directory: PathBuf,
    address: SocketAddr,
    kdc: Mutex<Option<Child>>,
    log: Log,
    passwords: Mutex<HashMap<String, String>>,
    files: AtomicU32,
    /// Kills the KDC if the test dies, and removes the directory. Dropped last.
    guard: Guard,
}

impl Realm {
    /// Starts a realm whose KDC listens on a free port of 127.0.0.1.
    ///
    /// # Panics
    /// If the programs are missing, with a message that names their packages.
    pub fn start() -> Realm {
        Realm::start_at(Ipv4Addr::LOCALHOST)
    }

    /// Starts a realm whose KDC listens on an address of this host that guests can reach, such as
    /// [`Lab::address`](crate::Lab::address).
    ///
    /// # Panics
    /// As [`Realm::start`].
    pub fn start_at(address: Ipv4Addr) -> Realm {
        let directory = create_directory();
        let guard = start_guard();
        guard.add(&format!("directory {}", directory.display()));
        Realm::create(directory, address, guard)
    }

    /// Fills `directory` and starts the KDC.
    fn create(directory: PathBuf, address: Ipv4Addr, guard: Guard) -> Realm {
        let missing = kerberos_missing();
        assert!(missing.is_none(), "lab: a realm cannot run here: {missing}");
        let address = SocketAddr::new(address.into(), free_port(address.into()));
        let realm = Realm {
            directory,
            address,
            kdc: Mutex::default(),
            log: Log::default(),
            passwords: Mutex::default(),
            files: AtomicU32::new(0),
            guard,
        };
        realm.write("krb5.conf", &files::krb5_conf(address, Some(&realm.directory), files::CLOCK_SKEW));
        realm.write("kdc.conf", &files::kdc_conf(address, &realm.directory));
        realm.run("kdb5_util", ["-r", REALM, "create", "-s", "-P", "master"], "");
        realm.start_kdc();
        realm
    }

    /// The directory of the realm.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The address of the KDC, for TCP and UDP.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The environment of programs that should use the realm.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        files::environment(&self.directory)
    }

    /// Text of a krb5.conf for another machine, such as a guest. It names no file of this host.
    pub fn client_configuration(&self) -> String {
        files::krb5_conf(self.address, None, files::CLOCK_SKEW)
    }

    /// Changes how far clocks may be apart, also in processes that run. A shorter time lets tickets expire
    /// sooner: an acceptor takes a ticket for this long after its end.
    pub fn set_clock_skew(&self, skew: Duration) {
        self.write("krb5.conf", &files::krb5_conf(self.address, Some(&self.directory), skew));
    }

    /// Adds a user. `name` is a principal without the realm.
    pub fn add_user(&self, name: &str, password: &str) {
        self.admin(["addprinc", "-pw", password, name]);
        self.passwords().insert(name.to_owned(), password.to_owned());
    }

    /// Adds a service with a random key, such as `nfs/localhost`.
    pub fn add_service(&self, name: &str) {
        self.admin(["addprinc", "-randkey", name]);
    }

    /// A new keytab with the present keys of these principals.
    pub fn keytab(&self, principals: &[&str]) -> PathBuf {
        let path = self.new_file("keytab");
        self.add_keys(&path, principals);
        path
    }

    /// Adds the present keys of these principals to a keytab, which keeps those that it has.
    pub fn add_keys(&self, keytab: &Path, principals: &[&str]) {
        let path = keytab.to_string_lossy();
        self.admin(["ktadd", "-k", &path, "-norandkey"].into_iter().chain(principals.iter().copied()));
    }

    /// Gives a service another random key. Keytabs of before have the old one.
    pub fn change_key(&self, name: &str) {
        self.admin(["cpw", "-randkey", name]);
    }

    /// Tickets of a user or service, as a new cache. Its name for Kerberos is `FILE:` and the path.
    pub fn tickets(&self, name: &str) -> PathBuf {
        self.get_tickets(name, &[])
    }

    /// As [`Realm::tickets`], for tickets that last a number of seconds.
    pub fn tickets_for(&self, name: &str, seconds: u32) -> PathBuf {
        self.get_tickets(name, &["-l", &format!("{seconds}s")])
    }

    fn get_tickets(&self, name: &str, options: &[&str]) -> PathBuf {
        let path = self.new_file("tickets");
        let cache = format!("FILE:{}", path.display());
        let password = self.passwords().get(name).cloned();
        let mut arguments: Vec<String> = vec!["-c".to_owned(), cache];
        arguments.extend(options.iter().map(|option| (*option).to_owned()));
        if password.is_none() {
            let keytab = self.keytab(&[name]).to_string_lossy().into_owned();
            arguments.extend(["-k".to_owned(), "-t".to_owned(), keytab]);
        }
        arguments.push(name.to_owned());
        self.run("kinit", arguments, &password.unwrap_or_default());
        path
    }

    /// Stops the KDC. Tickets stay valid.
    pub fn stop_kdc(&self) {
        if let Some(mut child) = self.kdc().take() {
            let _ = child.kill(); // it may have ended by itself
            let _ = child.wait();
            self.guard.forget(&format!("group {}", child.id()));
        }
    }

    /// Starts the KDC, on the same port as before. Does nothing if it runs.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn start_kdc(&self) {
        let mut kdc = self.kdc();
        if kdc.is_some() {
            return;
        }
        let (reader, writer) = std::io::pipe().unwrap_or_else(|error| panic!("lab: no pipe: {error}"));
        let errors = writer.try_clone().unwrap_or_else(|error| panic!("lab: no pipe: {error}"));
        let mut command = self.command("krb5kdc");
        command.arg("-n").stdin(Stdio::null()).stdout(writer).stderr(errors).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("lab: cannot start krb5kdc: {error}"));
        drop(command); // closes this process's copies of the write end
        self.guard.add(&format!("group {}", child.id()));
        self.log.collect(reader);
        let child = kdc.insert(child);
        wait_for("an answer of the KDC", KDC_PATIENCE, || {
            if let Ok(Some(status)) = child.try_wait() {
                panic!("lab: krb5kdc: {status}\n{}", self.kdc_log());
            }
            TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).ok()
        });
    }

    /// The output and log of the KDC.
    pub fn kdc_log(&self) -> String {
        let file = fs::read_to_string(self.directory.join("kdc.log")).unwrap_or_default();
        format!("{}{file}", self.log.text())
    }

    /// A command with the environment of the realm. The program is also looked for in `sbin`.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(find(program).unwrap_or_else(|| PathBuf::from(program)));
        set_environment(&mut command, &self.directory);
        command
    }

    fn admin<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) {
        self.run("kadmin.local", ["-r", REALM].into_iter().chain(arguments), "");
    }

    /// Runs a program to its end, with a line of input. Panics with its output if it fails.
    #[track_caller]
    fn run<A: AsRef<OsStr>>(&self, program: &str, arguments: impl IntoIterator<Item = A>, input: &str) {
        let mut command = self.command(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("lab: cannot run {program}: {error}"));
        if let Some(mut stdin) = child.stdin.take() {
            let _ = writeln!(stdin, "{input}"); // a program that reads none may have ended
        }
        let output = child.wait_with_output();
        let output = output.unwrap_or_else(|error| panic!("lab: {program}: {error}"));
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        // kadmin.local succeeds even if the request failed, and then names itself before the cause.
        let failed = !output.status.success() || (program == "kadmin.local" && reports_failure(&said));
        assert!(!failed, "lab: {program}: {}: {}\n{}", output.status, said.trim(), self.kdc_log());
    }

    fn write(&self, name: &str, text: &str) {
        // Replaced as one step: another thread may be reading it.
        let (path, draft) = (self.directory.join(name), self.new_file("draft"));
        let written = fs::write(&draft, text).and_then(|()| fs::rename(&draft, &path));
        written.unwrap_or_else(|error| panic!("lab: cannot write {}: {error}", path.display()));
    }

    fn new_file(&self, kind: &str) -> PathBuf {
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        self.directory.join(format!("{kind}.{number}"))
    }

    fn kdc(&self) -> MutexGuard<'_, Option<Child>> {
        self.kdc.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passwords(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.passwords.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Realm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("log of krb5kdc:\n{}", self.kdc_log());
        }
        self.stop_kdc();
    }
}

/// Does the output of kadmin.local report a failed request, such as `addprinc: Principal … exists while …`?
fn reports_failure(said: &str) -> bool {
    said.lines().any(|line| line.contains(" while ") || line.contains("usage: "))
}

fn start_guard() -> Guard {
    let none = File::open("/dev/null").unwrap_or_else(|error| panic!("lab: /dev/null: {error}"));
    Guard::start(Path::new(HAND), none)
}

/// Creates a directory for a realm. A guard removes it.
fn create_directory() -> PathBuf {
    let directory = tempfile::Builder::new().prefix("leasehold-realm.").tempdir();
    directory.unwrap_or_else(|error| panic!("lab: no directory for a realm: {error}")).keep()
}

fn set_environment(command: &mut Command, directory: &Path) {
    for name in FOREIGN {
        command.env_remove(name);
    }
    command.envs(files::environment(directory));
}

#[cfg(test)]
mod tests;
