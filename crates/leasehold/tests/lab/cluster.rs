//! A cluster of three members before one origin, with kernel clients of virtual servers and one of the
//! origin, while members are killed and drained and etcd loses its leader. Clients of version 4 count under
//! one lock. A client of version 3 uses the virtual server that does not have the origin.
//!
//! Promise: virtual-servers

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lab::{CloseToOpen, Etcd, Lab, Origin, Process, Rng, Seat, V3, V4_1, V4_2, wait_for};
use serde_json::Value;

use crate::close_to_open::mounted;
use crate::restart::adds_up;
use crate::stack::{self, Leasehold};

const PATIENCE: Duration = Duration::from_secs(60);
const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];

struct Cluster<'l> {
    lab: &'l Lab,
    /// The virtual server that has the origin.
    address: SocketAddr,
    members: Vec<Process>,
}

impl<'l> Cluster<'l> {
    /// With further virtual servers, which have no origin.
    fn start(lab: &'l Lab, origin: &Leasehold, etcd: &Etcd, others: &[SocketAddr]) -> Cluster<'l> {
        let key = lab.directory().join("key");
        std::fs::write(&key, [7; 16]).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let address = lab.free_address();
        let servers = others.iter().chain([&address]).map(|at| format!("[[server]]\naddress = '{at}'\n"));
        let servers: String = servers.collect();
        let members = MEMBERS.map(|member| {
            let file = lab.directory().join(format!("{member}.toml"));
            let text = format!(
                "cache = '{}'\nhandle_key = '{}'\nroot_squash = false\nsecure = false\nrpcbind = false\n\
                 min_free = '0'\nlease_time = 15\n[cluster]\nname = 'lab'\nmember = '{member}'\nendpoints = {:?}\nterm = 4\n\
                 {servers}[[origin]]\nurl = '{}&vers=4.2'\nserver = '{address}'\n",
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
        origin_at(self.address)
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
                let status = self.asked(*member, &["status"]).unwrap_or_default();
                let servers = status["servers"].as_array().cloned().unwrap_or_default();
                let address = self.address.to_string();
                servers.iter().any(|of| of["address"] == *address && of["member"] == MEMBERS[*member])
            })
        })
    }
}

fn origin_at(address: SocketAddr) -> Origin {
    let port = address.port();
    Origin { host: address.ip(), port, mountport: port, export: "/export".into() }
}

#[test]
fn what_is_counted_under_a_lock_adds_up_while_members_die() {
    let Some(lab) = Lab::enter("cluster-count") else { return };
    let served = lab.subdirectory("served");
    let serve = stack::serve(&lab, &served);
    let mut etcd = Etcd::start(3);
    let mut cluster = Cluster::start(&lab, &serve, &etcd, &[]);
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

#[test]
fn a_client_of_version_3_elsewhere_keeps_close_to_open_while_members_die() {
    let Some(lab) = Lab::enter("cluster-v3") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let etcd = Etcd::start(1);
    let other = lab.free_address();
    let mut cluster = Cluster::start(&lab, &serve, &etcd, &[other]);
    cluster.members[0].wait_for_connect(other, PATIENCE);
    // Linux's client of version 4 opens a known file by its handle, also if its name has another one by now.
    let looks_up = format!("{V4_2},lookupcache=none");
    let mounts = [
        ("elsewhere", origin_at(other), format!("{V3},noacl")),
        ("there", cluster.origin(), looks_up),
        ("direct", serve.origin(), format!("{V3},noacl")),
    ];
    let guests = mounted(&lab, mounts);
    let mut seats = guests.each_ref().map(|guest| Seat::new(guest.name(), guest.hand(), "/mnt/nfs"));
    let checker = CloseToOpen { rounds: 60, ..CloseToOpen::default() };
    let mut rng = Rng::from_environment();
    let mut reads = 0;
    for round in 0..3 {
        let holder = cluster.holder();
        match round {
            0 => drop(cluster.asked(holder, &["drain"]).expect("a drain")),
            1 => drop(cluster.asked((holder + 1) % 3, &["drain"]).expect("a drain")),
            _ => cluster.members[holder].kill(),
        }
        reads += checker.run(&mut seats, &mut rng);
        if round < 2 {
            (0..MEMBERS.len()).for_each(|member| drop(cluster.asked(member, &["resume"])));
        }
    }
    eprintln!("lab: {}: {reads} reads, none stale", lab.name());
}
