//! Kernel clients run the suite of file operations on `serve`, and through `proxy` with each origin.

use lab::{Ganesha, Knfsd, Lab, Origin, V2, V3, suite};

use crate::stack;

fn through_proxy(lab: &Lab, origin: &Origin) {
    let proxy = stack::proxy(lab, origin, "cache", &[]);
    let guest = lab.guest("client");
    guest.mount_nfs(&proxy.origin(), "/mnt/nfs", V3);
    suite::run(&guest, "/mnt/nfs");
}

#[test]
fn serve_passes_the_suite() {
    let Some(lab) = Lab::enter("serve") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let guest = lab.guest("client");
    guest.mount_nfs(&serve.origin(), "/mnt/nfs", V3);
    suite::run(&guest, "/mnt/nfs");
}

#[test]
fn the_proxy_before_serve_passes_the_suite() {
    let Some(lab) = Lab::enter("proxy-serve") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    through_proxy(&lab, &serve.origin());
}

#[test]
fn the_proxy_before_ganesha_passes_the_suite() {
    let Some(lab) = Lab::enter("proxy-ganesha") else { return };
    let ganesha = Ganesha::start(&lab);
    through_proxy(&lab, &ganesha.origin());
}

#[test]
fn the_proxy_before_knfsd_passes_the_suite() {
    let Some(lab) = Lab::enter("proxy-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    through_proxy(&lab, &knfsd.origin());
}

#[test]
fn a_client_of_version_2_works_through_the_proxy() {
    let Some(lab) = Lab::enter("proxy-v2") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let proxy = stack::proxy(&lab, &serve.origin(), "cache", &[]);
    let guest = lab.guest("client");
    guest.mount_nfs(&proxy.origin(), "/mnt/nfs", V2);
    let text = guest.sh("cd /mnt/nfs
         mkdir -p d/e; cd d
         head -c 1000000 /dev/urandom >big; cp big copy; cmp big copy
         ln -s big sym; ln big hard; mkfifo pipe; mv copy moved
         for i in $(seq 300); do echo $i >e/f$i; done
         sync; ls e | wc -l; stat -c %h big; readlink sym; rm -r e; ls | sort | tr '\\n' ' '");
    assert_eq!(text, "300\n2\nbig\nbig hard moved pipe sym ");
    guest.drop_caches();
    guest.sh("cd /mnt/nfs/d && cmp big moved && cmp big hard");
}
