//! Tests the promise of docs/semantics.md with clients that try to break it. Every open sees the content at
//! the last writer's close, if changes are further apart than the origin's timestamp granularity. That holds
//! however small a change is, and however similar to the one before.
//!
//! Promise: close-to-open

use lab::{CloseToOpen, Ganesha, Guest, Knfsd, Lab, Origin, Rng, Seat, V3, V4_2};

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

/// Guests that have mounted these origins with these options.
pub fn mounted<const N: usize>(lab: &Lab, mounts: [(&str, Origin, String); N]) -> [Guest; N] {
    mounts.map(|(name, origin, options)| {
        let guest = lab.guest(name);
        guest.mount_nfs(&origin, "/mnt/nfs", &options);
        guest
    })
}

/// A client of version 3 of the second of two proxies of version 4.2, a client of version 4.2 of the first,
/// and one of the origin.
#[test]
fn a_client_of_version_3_of_a_second_level_keeps_close_to_open() {
    let Some(lab) = Lab::enter("cto-levels") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let first = stack::proxy_in(&lab, &serve.origin(), "4.2", "first", &[]);
    let second = stack::proxy_in(&lab, &first.origin(), "4.2", "second", &[]);
    // Linux's client of version 4 opens a known file by its handle, also if its name has another one by now.
    let looks_up = format!("{V4_2},lookupcache=none");
    let mounts = [
        ("second", second.origin(), options()),
        ("first", first.origin(), looks_up),
        ("direct", serve.origin(), options()),
    ];
    let guests = mounted(&lab, mounts);
    let mut seats = guests.each_ref().map(|guest| Seat::new(guest.name(), guest.hand(), "/mnt/nfs"));
    let checker = CloseToOpen { rounds: 150, ..CloseToOpen::default() };
    let reads = checker.run(&mut seats, &mut Rng::from_environment());
    eprintln!("lab: {}: {reads} reads, none stale", lab.name());
}
