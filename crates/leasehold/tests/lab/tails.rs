//! Reads files through the proxy whose last bytes end just before a page boundary. For these, the Linux 6.1
//! server damages the bytes that follow the data in its reply.

use lab::{Knfsd, Lab, V3, V4_2};

use crate::stack;

#[test]
fn files_of_every_length_are_read_through_the_proxy_before_knfsd() {
    let Some(lab) = Lab::enter("tails") else { return };
    let knfsd = Knfsd::start(&lab);
    knfsd.sh("mkdir tails; for n in $(seq 4080 4100) 8188 8189 12282; do head -c $n /dev/urandom >tails/$n; done
              mkdir names; (cd names; for n in $(seq 2000); do : >f$n; done); cd tails; sha256sum * >../sums; sync");
    let proxy = stack::proxy_in(&lab, &knfsd.origin_v4(), "4.2", "cache", &[]);
    let guest = lab.guest("client");
    for version in [V3, V4_2] {
        guest.mount_nfs(&proxy.origin(), "/mnt/nfs", version);
        guest.sh("cd /mnt/nfs/tails && sha256sum --quiet -c ../sums && [ $(ls ../names | wc -l) = 2000 ]");
        guest.unmount("/mnt/nfs");
    }
    assert_eq!(proxy.reads(), 25, "each of 24 files and their list once");
}
