//! Runs the suite on the kernel's NFS server in a guest, through a link that can be cut.

use lab::{CloseToOpen, Cut, Knfsd, Lab, Rng, Seat, V3, suite};
use std::time::Duration;

#[test]
fn the_suite_passes_on_knfsd() {
    let Some(lab) = Lab::enter("knfsd") else { return };
    let mut knfsd = Knfsd::start(&lab);
    let guest = lab.guest("client");
    guest.mount_nfs(&knfsd.origin(), "/mnt/nfs", V3);
    let before = knfsd.nfs3_calls();
    suite::run_only(&guest, "/mnt/nfs", &suite::QUICK_STEPS); // other tests run all steps through a proxy
    let (answered, passed) = (knfsd.nfs3_calls().since(&before), knfsd.link().nfs3_calls());
    eprintln!("lab: knfsd answered {answered}");
    for procedure in ["READ", "WRITE", "CREATE", "REMOVE", "RENAME"] {
        assert_eq!(
            passed.of(procedure),
            answered.of(procedure),
            "{procedure}: the link and the server count the same"
        );
    }

    knfsd.sh("echo 'behind its back' >f");
    assert_eq!(guest.sh("cat /mnt/nfs/f"), "behind its back\n");

    // Stop the service, cut the network, kill the server's guest: in each case a hard mount waits.
    let count = "cd /mnt/nfs; for i in $(seq 200); do echo $i >>log; done; sync log; wc -l <log; rm log";
    let counted = |task: lab::Task| {
        let output = task.wait(Duration::from_secs(120));
        assert_eq!((output.text.as_str(), output.code), ("200\n", 0));
    };
    let task = guest.spawn(count);
    knfsd.stop_service();
    knfsd.start_service();
    counted(task);

    let task = guest.spawn(count);
    knfsd.link().cut(Cut::Reset);
    assert!(task.ended_within(Duration::from_secs(1)).is_none(), "nothing answers");
    knfsd.link().restore();
    counted(task);

    let task = guest.spawn(count);
    knfsd.link().cut(Cut::BlackHole);
    assert!(task.ended_within(Duration::from_secs(1)).is_none(), "nothing answers");
    knfsd.link().restore();
    counted(task);

    guest.sh("echo kept >/mnt/nfs/kept; sync /mnt/nfs/kept");
    let task = guest.spawn(count);
    knfsd.crash();
    counted(task);
    assert_eq!(guest.sh("cat /mnt/nfs/kept"), "kept\n");
    assert_eq!(knfsd.sh("cat kept"), "kept\n");
}

#[test]
fn two_clients_and_the_server_itself_keep_close_to_open() {
    let Some(lab) = Lab::enter("knfsd-cto") else { return };
    let knfsd = Knfsd::start(&lab);
    let guests = ["a", "b"].map(|name| lab.guest(name));
    let clients = guests.iter().map(|guest| {
        guest.mount_nfs(&knfsd.origin(), "/mnt/nfs", V3);
        Seat::new(guest.name(), guest.hand(), "/mnt/nfs")
    });
    let server = Seat::new("server", knfsd.guest().hand(), "/mnt/exp");
    let mut seats: Vec<Seat> = clients.chain([server]).collect();
    let reads = CloseToOpen::default().run(&mut seats, &mut Rng::from_environment());
    eprintln!("lab: {reads} reads, none stale");
}
