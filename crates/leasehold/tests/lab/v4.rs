//! Version 4 with real kernels: the suite in every minor version, and clients of all versions on one proxy.

use lab::{Ganesha, Guest, Knfsd, Lab, Origin, V3, V4_0, V4_1, V4_2, suite};

use crate::stack;

/// A proxy that uses the given version at its origin.
fn through(lab: &Lab, origin: &Origin, vers: &str) -> stack::Leasehold {
    stack::proxy_in(lab, origin, vers, "cache", &[])
}

fn run_quick(guest: &Guest, origin: &Origin, versions: &[&str]) {
    for version in versions {
        guest.mount_nfs(origin, "/mnt/nfs", version);
        suite::run_only(guest, "/mnt/nfs", &suite::QUICK_STEPS);
        guest.sh("rm -rf /mnt/nfs/*");
        guest.unmount("/mnt/nfs");
    }
}

#[test]
fn serve_passes_the_suite_in_every_minor_version() {
    let Some(lab) = Lab::enter("serve-v4") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let guest = lab.guest("client");
    run_quick(&guest, &serve.origin(), &[V4_0, V4_1, V4_2]);
}

#[test]
fn the_proxy_before_serve_passes_the_suite_in_version_4() {
    let Some(lab) = Lab::enter("proxy-serve-v4") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let proxy = through(&lab, &serve.origin(), "4.2");
    run_quick(&lab.guest("client"), &proxy.origin(), &[V4_0]);
}

#[test]
fn the_proxy_before_ganesha_passes_the_suite_in_version_4() {
    let Some(lab) = Lab::enter("proxy-ganesha-v4") else { return };
    let ganesha = Ganesha::start(&lab);
    let proxy = through(&lab, &ganesha.origin(), "4.1");
    run_quick(&lab.guest("client"), &proxy.origin(), &[V4_1]);
}

#[test]
fn the_proxy_before_knfsd_passes_the_suite_in_version_4() {
    let Some(lab) = Lab::enter("proxy-knfsd-v4") else { return };
    let knfsd = Knfsd::start(&lab);
    let proxy = through(&lab, &knfsd.origin_v4(), "4.2");
    run_quick(&lab.guest("client"), &proxy.origin(), &[V4_2]);
}

#[test]
fn clients_of_every_version_share_one_proxy() {
    let Some(lab) = Lab::enter("versions") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let guest = lab.guest("client");
    for vers in ["3", "4.1", "4.2"] {
        let proxy = stack::proxy_in(&lab, &serve.origin(), vers, &format!("cache-{vers}"), &[]);
        let mounts = [("3", V3), ("40", V4_0), ("41", V4_1), ("42", V4_2)];
        for (name, options) in mounts {
            guest.mount_nfs(&proxy.origin(), &format!("/mnt/{name}"), options);
        }
        for (writer, _) in mounts {
            guest.sh(&format!(
                "cd /mnt/{writer}; mkdir from-{writer}; head -c 200000 /dev/urandom >from-{writer}/data; ln -s data from-{writer}/link; sync"
            ));
            for (reader, _) in mounts {
                guest.sh(&format!(
                    "cmp /mnt/{writer}/from-{writer}/data /mnt/{reader}/from-{writer}/link
                     [ $(stat -c %i /mnt/{writer}/from-{writer}/data) = $(stat -c %i /mnt/{reader}/from-{writer}/data) ]"
                ));
            }
        }
        for (name, _) in mounts {
            guest.sh(&format!("rm -r /mnt/{name}/from-{name}"));
        }
        for (name, _) in mounts {
            guest.unmount(&format!("/mnt/{name}"));
        }
    }
}

#[test]
fn clients_of_version_3_pass_the_suite_before_an_origin_of_version_4() {
    let Some(lab) = Lab::enter("v3-of-v4") else { return };
    let knfsd = Knfsd::start(&lab);
    let proxy = through(&lab, &knfsd.origin_v4(), "4.2");
    run_quick(&lab.guest("client"), &proxy.origin(), &[V3]);
}
