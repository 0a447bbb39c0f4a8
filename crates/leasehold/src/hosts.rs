//! Looks up the names of clients: before serving, once a minute, and after a change of the configuration.
//!
//! A look-up may block for long, so a thread of its own makes it. A server that starts while the name server
//! is away serves those clients that it knows by address, and the others once they are found.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rpc::Server;
use server::{ClientList, Front, HostDatabase};
use tokio::sync::oneshot;

use crate::Failure;
use crate::users::Nsswitch;

/// How old an answer may get.
const EVERY: Duration = Duration::from_secs(60);
/// How long serving waits for the first answers, and a change of the configuration for those of its names.
const FIRST_MAX: Duration = Duration::from_secs(10);
/// How long getent(1) may take, in seconds.
const GETENT_MAX_SECONDS: &str = "10";

impl HostDatabase for Nsswitch {
    fn addresses_of(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
    }

    /// Asks getent(1), because the C library's functions for netgroups share one state among all threads.
    fn hosts_of(&self, netgroup: &str) -> io::Result<Vec<String>> {
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", GETENT_MAX_SECONDS, "getent", "netgroup", "--", netgroup]);
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such netgroup"));
        }
        Ok(hosts_in(&String::from_utf8_lossy(&output.stdout)))
    }
}

/// The hosts in a line of getent(1): `NETGROUP (HOST,USER,DOMAIN) …`. A triple without a host means any host
/// to innetgr(3). It names nobody here, and so does `-`.
fn hosts_in(line: &str) -> Vec<String> {
    let triples = line.split('(').skip(1);
    let hosts = triples.filter_map(|triple| Some(triple.split_once(',')?.0.trim()));
    hosts.filter(|host| !host.is_empty() && *host != "-").map(str::to_owned).collect()
}

/// A message to the thread.
enum Told {
    /// The server runs: its connections follow from now on.
    Serving(Weak<Server>),
    /// These lists will be in force.
    New(Vec<ClientList>, mpsc::Sender<()>),
}

/// The thread. It ends with this.
#[derive(Debug)]
pub struct HostLookUp {
    tell: mpsc::Sender<Told>,
}

impl HostLookUp {
    /// Starts the thread, and waits until it has looked up the names for the first time, but not for longer
    /// than [`FIRST_MAX`].
    pub async fn start(front: Arc<Front>) -> Result<HostLookUp, Failure> {
        let (tell, told) = mpsc::channel();
        let (first, looked_up) = oneshot::channel();
        let work = move || {
            front.exports().look_up_clients(&Nsswitch);
            let _ = first.send(());
            keep(&front, &told);
        };
        std::thread::Builder::new()
            .name("hosts".to_owned())
            .spawn(work)
            .map_err(|error| Failure(format!("cannot start a thread that looks up hosts: {error}")))?;
        if tokio::time::timeout(FIRST_MAX, looked_up).await.is_err() {
            tracing::warn!(
                "names of clients are still being looked up: those that are not found yet are not admitted"
            );
        }
        Ok(HostLookUp { tell })
    }

    /// The server runs. Connections that another address decides differently end.
    pub fn serving(&self, server: &Arc<Server>) {
        let _ = self.tell.send(Told::Serving(Arc::downgrade(server)));
    }

    /// Looks up the names of lists that will be in force. Waits for that, but not for longer than
    /// [`FIRST_MAX`]. A name stands for nobody until it is found.
    pub fn prepare(&self, lists: Vec<ClientList>) {
        let (done, looked_up) = mpsc::channel();
        let _ = self.tell.send(Told::New(lists, done));
        if looked_up.recv_timeout(FIRST_MAX) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                "new names of clients are still being looked up: those that are not found yet are not admitted"
            );
        }
    }
}

fn keep(front: &Arc<Front>, told: &mpsc::Receiver<Told>) {
    let mut server = Weak::new();
    loop {
        match told.recv_timeout(EVERY) {
            Ok(Told::Serving(serving)) => {
                server = serving;
                // The first look-up may have ended only now, with connections that were refused meanwhile.
                judge_again(&server, front);
            }
            Ok(Told::New(lists, done)) => {
                lists.iter().for_each(|list| list.look_up(&Nsswitch));
                // If nobody waits any more, the lists are in force, and connections follow.
                if done.send(()).is_err() {
                    judge_again(&server, front);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                if front.exports().look_up_clients(&Nsswitch) {
                    judge_again(&server, front);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn judge_again(server: &Weak<Server>, front: &Front) {
    if let Some(server) = server.upgrade() {
        server.judge_again(front);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_knows_itself() {
        let addresses = Nsswitch.addresses_of("localhost").unwrap();
        assert!(addresses.iter().all(IpAddr::is_loopback) && !addresses.is_empty(), "{addresses:?}");
        assert!(Nsswitch.addresses_of("no-such-host.invalid").is_err());
        assert!(Nsswitch.hosts_of("no-such-netgroup").is_err());
    }

    #[test]
    fn a_netgroup_has_the_hosts_of_its_triples() {
        let line = "farm                  ( render01,,) (render02, -, example.org) (-,user,) ( ,user,)\n";
        assert_eq!(hosts_in(line), ["render01", "render02"]);
        assert!(hosts_in("farm\n").is_empty());
    }
}
