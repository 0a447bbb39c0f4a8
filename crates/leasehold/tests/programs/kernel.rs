//! A kernel's own client in a guest beside two of our mounts: random programs with the same model.
//!
//! A kernel trusts names and attributes as long as its mount options say. With `noac` and `lookupcache=none`
//! it trusts nothing, so it must see what the server shows. `LEASEHOLD_LAB_KERNEL` selects another kernel.
//!
//! Promise: unix-semantics

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lab::{Guest, Lab, Link, Origin, V4_2};

use crate::generate::Wanted;
use crate::model::{Client, Lifetimes};
use crate::random::{self, Mount, OPTIONS_4, PROGRAM_STEPS, Table, mount};
use crate::setting::may_mount;

/// Calls of one run; the checks of two mounts add more calls.
const STEPS: usize = 1200;
/// The guest's mount point.
const AT: &str = "/mnt/nfs";

/// The promises to a kernel that trusts nothing itself. Its server trusts names and attributes for this
/// time.
fn client(seconds: u64) -> Client {
    let lifetime = Duration::from_secs(seconds);
    let lifetimes = Lifetimes { present: lifetime, absent: lifetime };
    Client { lifetimes, confirms: false, has_locks: true, goes_stale: false, maps_show: false }
}

/// The guest, and its link to the server of a table or to the proxy.
struct Seated {
    guest: Guest,
    _link: Link,
}

impl Seated {
    fn new(lab: &Lab, table: &Table) -> Seated {
        let server: SocketAddr = table.address().parse().unwrap();
        let (host, port) = (server.ip(), server.port());
        let link = Link::to(lab, &Origin { host, port, mountport: port, export: "/export".to_owned() });
        let guest = lab.guest("kernel");
        guest.mount_nfs(&link.origin(), AT, &format!("{V4_2},noac,lookupcache=none"));
        Seated { guest, _link: link }
    }
}

fn play(name: &str, mounts: &[Mount], believes: u64) {
    if !may_mount() {
        return;
    }
    let Some(lab) = Lab::enter(name) else { return };
    let mut table = Table::new(mounts, &[0, 1]);
    let seated = Seated::new(&lab, &table);
    table.join("kernel", client(believes), seated.guest.hand(), PathBuf::from(AT));
    let rest_milliseconds = 1100 * (1 + believes);
    let wanted =
        Wanted { seats: &[0, 1, 2], steps: PROGRAM_STEPS, together: 0, rests: false, rest_milliseconds };
    random::run(&mut table.stage, wanted, STEPS);
}

#[test]
fn a_kernel_and_two_mounts_do_what_is_promised() {
    play("programs-serve", &[mount("a", OPTIONS_4, 4), mount("b", OPTIONS_4, 4)], 0);
}

#[test]
fn a_kernel_and_a_mount_of_a_proxy_and_one_of_its_origin_do_what_is_promised() {
    let near = mount("near", OPTIONS_4, 4).behind_a_proxy();
    play("programs-proxy", &[near, mount("far", OPTIONS_4, 4)], 1);
}
