//! The proxies of other NFS servers as clients of a `serve` that lists their addresses and no other:
//! nfs-ganesha's, and the Linux kernel's re-export of a mount. Clients that are not listed work through them.

use std::path::Path;

use lab::{Ganesha, Guest, Lab, Link, Origin, V3, V4_0, V4_1, V4_2};

use crate::stack;

/// Mounts an origin in a guest and exports the mount.
const REEXPORT: &str = include_str!("foreign_proxies.sh");
/// Files that the client writes at once.
const FILES: usize = 20;

#[test]
fn ganeshas_proxy_gets_in_where_it_is_listed() {
    let Some(lab) = Lab::enter("ganesha-proxy") else { return };
    let served = lab.subdirectory("served");
    let serve = stack::serve_listed(&lab, &served, &lab.address().to_string());
    let proxy = Ganesha::proxy(&lab, &serve.origin());
    let client = lab.guest("client");
    gets_nothing(&client, &serve.origin());
    for (version, name) in [(V3, "three"), (V4_1, "four")] {
        works_through(&client, &proxy.origin(), version, name, &served);
    }
}

#[test]
fn the_kernels_reexport_gets_in_where_it_is_listed() {
    let Some(lab) = Lab::enter("reexport") else { return };
    let served = lab.subdirectory("served");
    let exporter = lab.guest("reexport");
    let serve = stack::serve_listed(&lab, &served, &exporter.address().to_string());
    let Origin { host, port, export, .. } = serve.origin();
    let options = format!("{V4_2},port={port}");
    exporter.sh(&format!("set -- '{host}:{export}' '{options}'\n{REEXPORT}"));
    let of_exporter =
        Origin { host: exporter.address(), port: 2049, mountport: 20048, export: "/mnt/origin".to_owned() };
    let link = Link::to(&lab, &of_exporter);
    let client = lab.guest("client");
    gets_nothing(&client, &serve.origin());
    works_through(&client, &link.origin(), V3, "three", &served);
    works_through(&client, &Origin { export: "/".to_owned(), ..link.origin() }, V4_1, "four", &served);
}

/// Mounting fails over each version. That version 4 fails even at the root shows that the host makes no
/// client there.
fn gets_nothing(guest: &Guest, origin: &Origin) {
    for version in [V3, V4_0, V4_1, V4_2] {
        let tried = guest.try_mount_nfs(origin, "/mnt/refused", &format!("{version},retry=0"));
        assert!(!tried.ok(), "{version} gets in: {}", tried.text);
        assert_ne!(tried.code, 124, "{version} waits for an answer");
    }
    let root = Origin { export: "/".to_owned(), ..origin.clone() };
    assert!(!guest.try_mount_nfs(&root, "/mnt/refused", &format!("{V4_2},retry=0")).ok());
}

/// Writes, reads, appends, renames and removes files through a mount of the proxy. `served` is the directory
/// that `serve` exports: all arrives there.
fn works_through(guest: &Guest, proxy: &Origin, version: &str, name: &str, served: &Path) {
    guest.mount_nfs(proxy, "/mnt/nfs", &format!("{version},noacl"));
    guest.sh(&format!(
        "mkdir /mnt/nfs/{name} /tmp/{name}
        for i in $(seq {FILES}); do head -c $((i * 10007)) /dev/urandom >/tmp/{name}/$i; done
        cp /tmp/{name}/* /mnt/nfs/{name}/; sync"
    ));
    guest.drop_caches();
    guest.sh(&format!(
        "for i in $(seq {FILES}); do cmp /tmp/{name}/$i /mnt/nfs/{name}/$i; done
        echo more >>/mnt/nfs/{name}/1; mv /mnt/nfs/{name}/2 /mnt/nfs/{name}/renamed; rm /mnt/nfs/{name}/3"
    ));
    let directory = served.join(name);
    let length = |file: &str| std::fs::metadata(directory.join(file)).map(|found| found.len()).ok();
    assert_eq!(length("1"), Some(10_007 + 5));
    assert_eq!((length("2"), length("renamed")), (None, Some(2 * 10_007)));
    assert_eq!((length("3"), length("4")), (None, Some(4 * 10_007)));
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), FILES - 1);
    guest.sh(&format!("rm -r /mnt/nfs/{name}"));
    guest.unmount("/mnt/nfs");
    assert!(!directory.exists());
}
