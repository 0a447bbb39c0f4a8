//! Tests the promise of docs/semantics.md with clients that try to break it. Every open sees the content at
//! the last writer's close, if changes are further apart than the origin's timestamp granularity. That holds
//! however small a change is, and however similar to the one before.
//!
//! Promise: close-to-open

use lab::{CloseToOpen, Ganesha, Guest, Knfsd, Lab, Origin, Rng, Seat, V3};

use crate::stack;

/// ganesha 4.3 answers SETACL with garbage; the other origins do not need this option.
fn options() -> String {
    format!("{V3},noacl")
}

fn seat(guest: &Guest, origin: &Origin) -> Seat {
    guest.mount_nfs(origin, "/mnt/nfs", &options());
    Seat::new(guest.name(), guest.hand(), "/mnt/nfs")
}

/// Two clients of the proxy, and one of the origin.
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
