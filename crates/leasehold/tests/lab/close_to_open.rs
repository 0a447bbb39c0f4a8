//! The promise of docs/semantics.md, and two who try to break it: every open sees what was there when the last writer
//! closed, for changes one granule of the origin's time stamps apart, however small and however like the last one.
//!
//! Promise: close-to-open

use lab::{CloseToOpen, Ganesha, Guest, Knfsd, Lab, Origin, Rng, Seat, V3};

use crate::stack;

/// ganesha 4.3 answers SETACL with garbage; the others do not mind.
fn options() -> String {
    format!("{V3},noacl")
}

fn seat(guest: &Guest, origin: &Origin) -> Seat {
    guest.mount_nfs(origin, "/mnt/nfs", &options());
    Seat::new(guest.name(), guest.hand(), "/mnt/nfs")
}

/// One client of the proxy beside one of the origin, and a second client of the proxy.
fn play(lab: &Lab, origin: &Origin) {
    let proxy = stack::proxy(lab, origin, "cache", &[]);
    let guests = ["proxied", "proxied-too", "direct"].map(|name| lab.guest(name));
    let mut seats =
        [seat(&guests[0], &proxy.origin()), seat(&guests[1], &proxy.origin()), seat(&guests[2], origin)];
    let reads = CloseToOpen::default().run(&mut seats, &mut Rng::from_environment());
    eprintln!("lab: {}: {reads} reads, none stale", lab.name());
}

#[test]
fn clients_of_proxy_and_serve_keep_close_to_open() {
    let Some(lab) = Lab::enter("cto-serve") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    play(&lab, &serve.origin());
}

#[test]
fn clients_of_proxy_and_ganesha_keep_close_to_open() {
    let Some(lab) = Lab::enter("cto-ganesha") else { return };
    let ganesha = Ganesha::start(&lab);
    play(&lab, &ganesha.origin());
}

#[test]
fn clients_of_proxy_and_knfsd_keep_close_to_open() {
    let Some(lab) = Lab::enter("cto-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    play(&lab, &knfsd.origin());
}
