//! Clients with and without Kerberos beside each other.

use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use lab::{Lab, V3, V4_0, V4_1, V4_2};

use super::{ALICE, PATIENCE, PRELUDE, flavor, member, realm, serve, shared};
use crate::locks::{hold, may, release, seat};
use crate::stack;

/// Linux then makes its calls about leases with Kerberos first, on mounts of `sec=sys` too.
#[test]
fn a_client_with_kerberos_mounts_a_server_without() {
    let Some(lab) = Lab::enter("kerberos-without") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let serve = stack::serve(&lab, &served);
    let guest = member(&lab, &realm, "client");
    for version in [V4_2, V4_0, V3] {
        for options in [version.to_owned(), format!("{version},sec=sys")] {
            let began = Instant::now();
            guest.mount_nfs(&serve.origin(), "/mnt/nfs", &options);
            guest.sh("cd /mnt/nfs; echo text >file; [ $(cat file) = text ]; rm file");
            assert_eq!(flavor(&guest, "/mnt/nfs"), "sec=sys", "{options}");
            guest.unmount("/mnt/nfs");
            eprintln!("lab: {options}: {:?}", began.elapsed());
            assert!(began.elapsed() < PATIENCE, "{options}");
        }
        let refused = guest.try_mount_nfs(&serve.origin(), "/mnt/nfs", &format!("{version},sec=krb5"));
        assert!(!refused.ok() && refused.code != 124, "{version}: {}", refused.text);
        eprintln!("lab: {version},sec=krb5: {}", refused.text.trim());
    }
}

#[test]
fn mounts_with_and_without_kerberos_share_a_client() {
    let Some(lab) = Lab::enter("kerberos-mixed") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let mut serve = serve(&lab, &realm, &served, "sys:krb5:krb5i:krb5p");
    let guest = member(&lab, &realm, "client");
    let (alice, _) = ALICE;
    for version in [V4_2, V4_0] {
        guest.mount_nfs(&serve.origin(), "/mnt/sys", &format!("{version},sec=sys"));
        guest.mount_nfs(&serve.origin(), "/mnt/krb5", &format!("{version},sec=krb5p"));
        assert_eq!(
            (flavor(&guest, "/mnt/sys"), flavor(&guest, "/mnt/krb5")),
            ("sec=sys".into(), "sec=krb5p".into())
        );
        let write = || {
            guest.sh(&format!(
                "{PRELUDE}
                 for way in sys krb5; do as {alice} bash -c \"echo $way >/mnt/$way/of-$way; sync /mnt/$way/of-$way\"; done
                 as {alice} grep krb5 /mnt/sys/of-krb5; as {alice} grep sys /mnt/krb5/of-sys"
            ))
        };
        write();
        serve.kill_and_restart();
        write();
        for way in ["sys", "krb5"] {
            assert_eq!(std::fs::metadata(served.join(format!("of-{way}"))).unwrap().uid(), alice);
        }
        guest.sh("umount /mnt/sys /mnt/krb5");
    }
}

/// Linux names itself by its host name. Somebody without the machine's key cannot end its lease by that.
#[test]
fn a_host_of_the_same_name_without_a_key_does_not_end_a_lease() {
    let Some(lab) = Lab::enter("kerberos-impostor") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let serve = serve(&lab, &realm, &served, "sys:krb5:krb5i:krb5p");
    let (client, impostor) = (member(&lab, &realm, "client"), lab.guest("impostor"));
    impostor.sh("hostname client");
    for version in [V4_2, V4_1, V4_0] {
        seat(&client, &serve.origin(), &format!("{version},sec=krb5"));
        client.sh("head -c 1000 /dev/zero >/mnt/nfs/file");
        let held = hold(&client, "w 100 50 try");
        let mounted = impostor.try_mount_nfs(&serve.origin(), "/mnt/nfs", &format!("{version},sec=sys"));
        eprintln!("lab: {version}: {} {}", mounted.code, mounted.text.trim());
        client.sh("echo of-client >>/mnt/nfs/file; sync /mnt/nfs/file");
        assert!(!mounted.ok(), "{version}");
        // The lock is the server's, or the client's own under its delegation.
        assert!(serve.held("locks") + serve.held("write_leases") > 0 && serve.revoked() == 0, "{version}");
        release(&client, held);
        assert!(may(&client, "w 100 50"));
        client.unmount("/mnt/nfs");
    }
}
