//! Runs the suite on nfs-ganesha itself: a foreign server passes what the lab requires of a proxy.

use lab::{CloseToOpen, Ganesha, Lab, Rng, Seat, V3, suite};

/// ganesha 4.3 returns an undecodable reply to SETACL, which cp -a sends if the mount permits it.
fn options() -> String {
    format!("{V3},noacl")
}

#[test]
fn the_suite_passes_on_ganesha() {
    let Some(lab) = Lab::enter("ganesha") else { return };
    let mut ganesha = Ganesha::start(&lab);
    let guest = lab.guest("client");
    guest.mount_nfs(&ganesha.origin(), "/mnt/nfs", &options());
    suite::run_only(&guest, "/mnt/nfs", &suite::QUICK_STEPS); // other tests run all steps through a proxy

    // A hard mount survives a restart of its server.
    guest.sh("echo before >/mnt/nfs/f");
    let writing =
        guest.spawn("cd /mnt/nfs; for i in $(seq 300); do echo $i >>log; done; sync log; wc -l <log");
    ganesha.kill();
    ganesha.restart();
    let output = writing.wait(std::time::Duration::from_secs(120));
    assert_eq!((output.text.as_str(), output.code), ("300\n", 0));
    assert!(guest.nfs3_calls().of("WRITE") > 0);
}

#[test]
fn two_clients_of_ganesha_keep_close_to_open() {
    let Some(lab) = Lab::enter("ganesha-cto") else { return };
    let ganesha = Ganesha::start(&lab);
    let guests = ["a", "b"].map(|name| lab.guest(name));
    let mut seats = guests.each_ref().map(|guest| {
        guest.mount_nfs(&ganesha.origin(), "/mnt/nfs", &options());
        Seat::new(guest.name(), guest.hand(), "/mnt/nfs")
    });
    let reads = CloseToOpen::default().run(&mut seats, &mut Rng::from_environment());
    eprintln!("lab: {reads} reads, none stale");
}
