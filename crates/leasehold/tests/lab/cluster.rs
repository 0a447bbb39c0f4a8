//! A cluster of three members before one origin, with kernel clients of the virtual server and one of the
//! origin that count under one lock, while members are killed and drained and etcd loses its leader.
//!
//! Promise: virtual-servers

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lab::{Etcd, Lab, Origin, Process, V4_1, V4_2, wait_for};
use serde_json::Value;

use crate::restart::adds_up;
use crate::stack::{self, Leasehold};

const PATIENCE: Duration = Duration::from_secs(60);
const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];

struct Cluster<'l> {
    lab: &'l Lab,
    address: SocketAddr,
    members: Vec<Process>,
}

impl<'l> Cluster<'l> {
    fn start(lab: &'l Lab, origin: &Leasehold, etcd: &Etcd) -> Cluster<'l> {
        let key = lab.directory().join("key");
        std::fs::write(&key, [7; 16]).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let address = lab.free_address();
        let members = MEMBERS.map(|member| {
            let file = lab.directory().join(format!("{member}.toml"));
            let text = format!(
                "cache = '{}'\nhandle_key = '{}'\nroot_squash = false\nsecure = false\nrpcbind = false\n\
                 min_free = '0'\n[cluster]\nname = 'lab'\nmember = '{member}'\nendpoints = {:?}\nterm = 4\n\
                 [[server]]\naddress = '{address}'\n[[origin]]\nurl = '{}&vers=4.2'\n",
                lab.directory().join(member).display(),
                key.display(),
                etcd.endpoints(),
                origin.origin().url(),
            );
            std::fs::write(&file, text).unwrap();
            stack::program().args(["proxy", "--config"]).arg(&file).start(lab)
        });
        let cluster = Cluster { lab, address, members: members.into() };
        cluster.holder();
        cluster.members[0].wait_for_connect(address, PATIENCE);
        cluster
    }

    fn origin(&self) -> Origin {
        let port = self.address.port();
        Origin { host: self.address.ip(), port, mountport: port, export: "/export".into() }
    }

    fn directory(&self, member: usize) -> PathBuf {
        self.lab.directory().join(MEMBERS[member])
    }

    fn asked(&self, member: usize, what: &[&str]) -> Option<Value> {
        let output = Command::new(env!("CARGO_BIN_EXE_leasehold"))
            .args(["cluster", "--json"])
            .args(what)
            .arg(self.directory(member))
            .output()
            .unwrap();
        serde_json::from_slice(&output.stdout).ok().filter(|_| output.status.success())
    }

    /// The member that runs the server, by what it says itself.
    fn holder(&self) -> usize {
        wait_for("a member that runs the server", PATIENCE, || {
            (0..MEMBERS.len()).find(|member| {
                self.asked(*member, &["status"])
                    .is_some_and(|status| status["servers"][0]["member"] == MEMBERS[*member])
            })
        })
    }
}

#[test]
fn what_is_counted_under_a_lock_adds_up_while_members_die() {
    let Some(lab) = Lab::enter("cluster-count") else { return };
    let served = lab.subdirectory("served");
    let serve = stack::serve(&lab, &served);
    let mut etcd = Etcd::start(3);
    let mut cluster = Cluster::start(&lab, &serve, &etcd);
    let clients =
        [("one", cluster.origin(), V4_1), ("two", cluster.origin(), V4_2), ("direct", serve.origin(), V4_2)];
    adds_up(&lab, &clients, &served.join("number"), || {
        for round in 0..6 {
            std::thread::sleep(Duration::from_secs(3));
            let holder = cluster.holder();
            match round {
                1 | 4 => {
                    cluster.asked(holder, &["drain"]).expect("a drain");
                    cluster.asked(holder, &["resume"]).expect("the end of a drain");
                }
                2 => {
                    let leader = etcd.leader();
                    etcd.restart(leader);
                }
                _ => {
                    cluster.members[holder].kill();
                    std::thread::sleep(Duration::from_secs(8));
                    cluster.members[holder].restart();
                }
            }
        }
        cluster.holder();
    });
}
