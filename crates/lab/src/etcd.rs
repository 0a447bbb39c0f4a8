//! etcd on the loopback interface, with one member or several. It needs neither the lab nor root.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::require::etcd_missing;
use crate::session::wait_for;

/// How long it may take to start, or to elect a leader.
const READY_MAX: Duration = Duration::from_secs(30);

/// The certificates of an etcd whose clients must prove who they are.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The CA of the servers and the clients.
    pub ca: PathBuf,
    /// The certificate of each member, for its address and for etcdctl.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl EtcdTls {
    fn arguments(&self, names: [&str; 3]) -> Vec<String> {
        let files = [&self.ca, &self.certificate, &self.key];
        names.iter().zip(files).map(|(name, file)| format!("{name}={}", file.display())).collect()
    }
}

/// A running etcd. Dropping it kills its processes and removes its data.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    tls: Option<EtcdTls>,
    directory: tempfile::TempDir,
}

#[derive(Debug)]
struct Member {
    process: Child,
    arguments: Vec<String>,
    log: PathBuf,
    endpoint: String,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for index in 0..self.members.len() {
            self.kill(index);
        }
    }
}

impl Etcd {
    /// Starts etcd with so many members, and waits until each answers.
    ///
    /// # Panics
    /// If etcd is not installed, or does not start.
    pub fn start(members: usize) -> Etcd {
        Etcd::start_over(members, None)
    }

    /// The same, over TLS.
    ///
    /// # Panics
    /// As [`Etcd::start`].
    pub fn start_over(members: usize, tls: Option<EtcdTls>) -> Etcd {
        let missing = etcd_missing();
        assert!(missing.is_none(), "lab: etcd cannot run here: {missing}");
        let directory = tempfile::tempdir().expect("a directory");
        // All listeners live until the last port is known, so that the ports differ.
        let listeners: Vec<TcpListener> =
            (0..2 * members).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port")).collect();
        let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().expect("its address"));
        let urls: Vec<String> = listeners.iter().map(url).collect();
        drop(listeners);
        let (clients, peers) = urls.split_at(members);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let clients: Vec<String> = clients.iter().map(|url| url.replace("http", scheme)).collect();
        let initial: Vec<String> = peers.iter().enumerate().map(|(i, url)| format!("m{i}={url}")).collect();
        let start = |(index, (client, peer)): (usize, (&String, &String))| {
            let arguments = [
                ("--name", format!("m{index}")),
                ("--data-dir", directory.path().join(format!("m{index}")).display().to_string()),
                ("--listen-client-urls", client.clone()),
                ("--advertise-client-urls", client.clone()),
                ("--listen-peer-urls", peer.clone()),
                ("--initial-advertise-peer-urls", peer.clone()),
                ("--initial-cluster", initial.join(",")),
            ];
            let mut arguments: Vec<String> =
                arguments.map(|(name, value)| format!("{name}={value}")).to_vec();
            if let Some(tls) = &tls {
                arguments.push("--client-cert-auth=true".to_owned());
                arguments.extend(tls.arguments(["--trusted-ca-file", "--cert-file", "--key-file"]));
            }
            let log = directory.path().join(format!("m{index}.log"));
            Member { process: spawn(&arguments, &log), arguments, log, endpoint: client.clone() }
        };
        let members = clients.iter().zip(peers).enumerate().map(start).collect();
        let etcd = Etcd { members, tls, directory };
        (0..etcd.members.len()).for_each(|index| etcd.wait(index));
        etcd
    }

    /// The URLs of all members.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    /// Waits until a member answers.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait(&self, index: usize) {
        let what = format!("member {index} of etcd in {}", self.directory.path().display());
        let answers = || self.etcdctl(index, &["endpoint", "health"]).status.success().then_some(());
        wait_for(&what, READY_MAX, answers);
    }

    /// The index of the leader.
    ///
    /// # Panics
    /// If there is none.
    pub fn leader(&self) -> usize {
        let is_leader = |index: &usize| {
            let told = self.etcdctl(*index, &["endpoint", "status"]).stdout;
            // endpoint, id, version, size, leader, …
            String::from_utf8_lossy(&told).split(", ").nth(4) == Some("true")
        };
        (0..self.members.len()).find(is_leader).expect("a leader")
    }

    fn etcdctl(&self, index: usize, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.members[index].endpoint));
        let tls = self.tls.as_ref().map(|tls| tls.arguments(["--cacert", "--cert", "--key"]));
        command.args(tls.into_iter().flatten()).args(arguments).output().expect("etcdctl")
    }

    /// Kills a member with SIGKILL.
    pub fn kill(&mut self, index: usize) {
        // It may be dead already.
        let _ = self.members[index].process.kill();
        let _ = self.members[index].process.wait();
    }

    /// Kills a member and starts it again with its data.
    pub fn restart(&mut self, index: usize) {
        self.kill(index);
        let member = &mut self.members[index];
        member.process = spawn(&member.arguments, &member.log);
    }

    /// Sends a signal to a member: STOP suspends it, CONT resumes it.
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self, index: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.members[index].process), signal).expect("a process");
    }

    /// Sends a signal to all members.
    ///
    /// # Panics
    /// If one does not run.
    pub fn signal_all(&self, signal: Signal) {
        (0..self.members.len()).for_each(|index| self.signal(index, signal));
    }
}

fn spawn(arguments: &[String], log: &PathBuf) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("a log");
    let mut command = Command::new("etcd");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().expect("etcd")
}
