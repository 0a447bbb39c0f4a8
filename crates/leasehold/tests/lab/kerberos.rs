//! Kernel clients with Kerberos, in every flavor and version: users and their rights, locks, what a client
//! finds out by itself, restarts and tickets that expire.

mod beside;
mod faults;

use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::{Guest, Lab, Origin, REALM, Realm, V3, V4_0, V4_1, V4_2, suite};

use crate::locks::{a_waiter_gets_its_turn, each_sees_the_others, seat};
use crate::nlm::{V3_LOCKS, monitored};
use crate::stack::{self, Leasehold};

const PATIENCE: Duration = Duration::from_secs(60);

/// A user that every machine has, so also the server: her principal is mapped to it. She owns the files.
const ALICE: (u32, &str) = (1, "daemon");
/// Another user, with a ticket and without rights.
const BOB: (u32, &str) = (5, "games");
/// A user that at first has no ticket.
const CAROL: (u32, &str) = (6, "man");

/// Takes every flavor of Kerberos.
const ALL: &str = "krb5:krb5i:krb5p";
const VERSIONS: [&str; 4] = [V4_2, V4_1, V4_0, V3];

/// `as UID COMMAND…`, and `denied COMMAND…`, which must fail for want of rights.
const PRELUDE: &str = r#"
as() { local id=$1; shift; setpriv --reuid="$id" --regid="$id" --clear-groups -- "$@"; }
denied() {
    local said
    if said=$("$@" 2>&1 >/dev/null); then echo "succeeded and must not: $*"; return 1; fi
    [[ "$said" =~ 'Permission denied'|'Operation not permitted' ]] || { echo "$*: $said"; return 1; }
}
"#;

/// A realm at the lab's address, with the server's principal and the users.
fn realm(lab: &Lab) -> Realm {
    let std::net::IpAddr::V4(address) = lab.address() else { panic!("an address of version 4") };
    let realm = Realm::start_at(address);
    realm.add_service(Guest::SERVER_PRINCIPAL);
    for (_, name) in [ALICE, BOB, CAROL] {
        realm.add_user(name, name);
    }
    realm
}

/// A guest in the realm. Alice and Bob have tickets.
fn member(lab: &Lab, realm: &Realm, name: &str) -> Guest {
    let guest = lab.guest(name);
    guest.join(realm);
    for (uid, name) in [ALICE, BOB] {
        guest.give_tickets(uid, &realm.tickets(name));
    }
    guest
}

/// A directory that every user may write to.
fn shared(lab: &Lab, name: &str) -> PathBuf {
    let directory = lab.subdirectory(name);
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o1777)).unwrap();
    directory
}

/// The server's keytab.
fn keytab(lab: &Lab) -> PathBuf {
    lab.directory().join("server.keytab")
}

/// Starts `leasehold` with a keytab of the realm. Root is squashed. The last argument is what it serves.
fn start(lab: &Lab, realm: &Realm, arguments: &[&str], export: &str) -> Leasehold {
    start_with(lab, realm, arguments, export, None)
}

/// The same with a further krb5.conf.
fn start_with(lab: &Lab, realm: &Realm, arguments: &[&str], export: &str, more: Option<&Path>) -> Leasehold {
    let (address, state) = (lab.free_address(), lab.subdirectory("state"));
    let mut program = stack::program();
    for (name, value) in realm.environment() {
        let value = match more {
            Some(more) if name == "KRB5_CONFIG" => format!("{}:{value}", more.display()),
            _ => value,
        };
        program = program.env(name, value);
    }
    program = program.args(&arguments[..1]).arg("--listen").arg(address.to_string());
    realm.add_keys(&keytab(lab), &[Guest::SERVER_PRINCIPAL]);
    program = program.arg("--keytab").arg(keytab(lab));
    program = program.arg(if arguments[0] == "proxy" { "--cache" } else { "--state" }).arg(&state);
    stack::start(lab, program.args(&arguments[1..]), address, export, state)
}

/// Serves a directory to users with tickets.
fn serve(lab: &Lab, realm: &Realm, directory: &Path, sec: &str) -> Leasehold {
    let mut arguments =
        vec!["serve", "--no-rpcbind", "--export", "/export", "--lease-time", "10", "--sec", sec];
    let directory = directory.to_string_lossy();
    arguments.push(&directory);
    start(lab, realm, &arguments, "/export")
}

/// A proxy for users with tickets. It calls its origin with AUTH_SYS.
fn proxy(lab: &Lab, realm: &Realm, origin: &Origin, vers: &str) -> Leasehold {
    let url = format!("{}&vers={vers}&nconnect=2&timeo=50", origin.url());
    let brief = ["--lease-time", "10", "--min-free", "0"];
    let arguments = [&["proxy", "--no-rpcbind", "--sec", ALL], &brief[..], &[&url]].concat();
    start(lab, realm, &arguments, &origin.export)
}

/// Alice makes a private file, and nobody else has it: not Bob, not root, not before and not after she has
/// read it. `served` is the directory on the server's disk.
fn alice_alone(guest: &Guest, server: &Origin, served: &Path, options: &str) {
    let ((alice, _), (bob, _)) = (ALICE, BOB);
    guest.mount_nfs(server, "/mnt/nfs", options);
    let made = guest.sh(&format!(
        "{PRELUDE}
         head -c 1048576 /dev/urandom >/tmp/random; chmod 644 /tmp/random
         cd /mnt/nfs; as {alice} dd if=/tmp/random of=private bs=64k conv=fsync status=none
         as {alice} chmod 600 private
         denied cat private; sha256sum </tmp/random"
    ));
    guest.unmount("/mnt/nfs");
    let (file, metadata) = (served.join("private"), std::fs::metadata(served.join("private")).unwrap());
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (1, 1, 0o600), "{options}");
    let sum = std::process::Command::new("sha256sum").stdin(std::fs::File::open(&file).unwrap()).output();
    assert_eq!(String::from_utf8(sum.unwrap().stdout).unwrap(), made, "{options}");
    // A file that neither the client nor a proxy has seen.
    std::fs::write(served.join("unseen"), "unseen\n").unwrap();
    std::fs::set_permissions(served.join("unseen"), std::fs::Permissions::from_mode(0o600)).unwrap();
    chown(served.join("unseen"), Some(alice), Some(alice)).unwrap();
    // A file for a group. The server looks up who is in it: a ticket tells no groups.
    std::fs::write(served.join("grouped"), "grouped\n").unwrap();
    std::fs::set_permissions(served.join("grouped"), std::fs::Permissions::from_mode(0o640)).unwrap();
    chown(served.join("grouped"), Some(0), Some(60)).unwrap();
    guest.mount_nfs(server, "/mnt/nfs", options);
    guest.sh(&format!(
        "{PRELUDE}
         cd /mnt/nfs; denied as {alice} cat grouped
         [ \"$(as {bob} cat grouped)\" = grouped ]; denied as {alice} cat grouped
         denied as {bob} cat unseen; denied cat unseen
         for file in private unseen; do
             as {alice} cat $file >/tmp/read
             denied as {bob} cat $file; denied cat $file; denied as {bob} chmod 666 $file
             echo 3 >/proc/sys/vm/drop_caches
             denied as {bob} cat $file; denied cat $file
         done
         as {alice} cmp private /tmp/random
         touch of-root; as {bob} touch of-bob
         [ \"$(stat -c '%u %g %n' of-root of-bob | tr '\\n' ' ')\" = '65534 65534 of-root 5 60 of-bob ' ]
         denied as {bob} rm private
         as {alice} rm private unseen; rm of-root; as {bob} rm of-bob"
    ));
    std::fs::remove_file(served.join("grouped")).unwrap();
    guest.unmount("/mnt/nfs");
}

#[test]
fn users_have_their_rights_at_serve_in_every_flavor_and_version() {
    let Some(lab) = Lab::enter("kerberos-serve") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let serve = serve(&lab, &realm, &served, ALL);
    let guest = member(&lab, &realm, "client");
    let encrypted = VERSIONS.map(|version| (version, "krb5p"));
    let others = [(V4_2, "krb5"), (V4_1, "krb5i"), (V3, "krb5")];
    for (version, flavor) in encrypted.into_iter().chain(others) {
        let started = std::time::Instant::now();
        alice_alone(&guest, &serve.origin(), &served, &format!("{version},sec={flavor}"));
        eprintln!("lab: {version},sec={flavor}: {:.1} s", started.elapsed().as_secs_f64());
    }
}

#[test]
fn users_have_their_rights_at_a_proxy_whose_origin_knows_no_kerberos() {
    let Some(lab) = Lab::enter("kerberos-proxy") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let origin = stack::serve(&lab, &served);
    let guest = member(&lab, &realm, "client");
    let proxy = proxy(&lab, &realm, &origin.origin(), "4.2");
    for (version, flavor) in [(V4_2, "krb5p"), (V4_0, "krb5"), (V3, "krb5i")] {
        alice_alone(&guest, &proxy.origin(), &served, &format!("{version},sec={flavor}"));
    }
}

/// The flavor of a mount, as the kernel shows it.
fn flavor(guest: &Guest, mountpoint: &str) -> String {
    guest
        .sh(&format!("findmnt -no options {mountpoint} | grep -o 'sec=[a-z0-9]*' | tail -1"))
        .trim()
        .to_owned()
}

#[test]
fn an_export_of_krb5p_alone_takes_nothing_else_and_clients_find_out() {
    let Some(lab) = Lab::enter("kerberos-krb5p") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let serve = serve(&lab, &realm, &served, "krb5p");
    let guest = member(&lab, &realm, "client");
    for version in VERSIONS {
        for wrong in ["sys", "krb5", "krb5i"] {
            let output = guest.try_mount_nfs(&serve.origin(), "/mnt/nfs", &format!("{version},sec={wrong}"));
            assert!(!output.ok() && output.code != 124, "{version},sec={wrong}: {}", output.text);
            eprintln!("lab: {version},sec={wrong}: {}", output.text.trim());
        }
        guest.mount_nfs(&serve.origin(), "/mnt/nfs", version);
        assert_eq!(flavor(&guest, "/mnt/nfs"), "sec=krb5p", "{version}");
        let (alice, _) = ALICE;
        guest.sh(&format!("{PRELUDE} as {alice} touch /mnt/nfs/file; as {alice} rm /mnt/nfs/file"));
        guest.unmount("/mnt/nfs");
    }
}

#[test]
fn a_client_goes_from_an_export_of_one_flavor_to_one_of_another() {
    let Some(lab) = Lab::enter("kerberos-exports") else { return };
    let realm = realm(&lab);
    let mut file = String::new();
    for (name, sec) in [("open", "sys"), ("proven", "krb5"), ("private", "krb5p:krb5i")] {
        let directory = shared(&lab, name);
        std::fs::write(directory.join("name"), format!("{name}\n")).unwrap();
        let directory = directory.display();
        writeln!(file, "[[export]]\ndirectory = '{directory}'\npath = '/{name}'\nsec = '{sec}'").unwrap();
    }
    let config = lab.directory().join("exports.toml");
    std::fs::write(&config, file).unwrap();
    let config = config.to_string_lossy();
    let serve =
        start(&lab, &realm, &["serve", "--no-rpcbind", "--lease-time", "10", "--config", &config], "/");
    let guest = member(&lab, &realm, "client");
    let (alice, _) = ALICE;
    for version in [V4_2, V4_0] {
        guest.mount_nfs(&serve.origin(), "/mnt/nfs", version);
        for (name, sec) in [("open", "sys"), ("proven", "krb5"), ("private", "krb5p")] {
            let read = guest.sh(&format!("{PRELUDE} as {alice} cat /mnt/nfs/{name}/name"));
            assert_eq!(read, format!("{name}\n"), "{version}");
            assert_eq!(flavor(&guest, &format!("/mnt/nfs/{name}")), format!("sec={sec}"), "{version}");
        }
        guest.sh("umount /mnt/nfs/*; umount /mnt/nfs");
    }
    // In version 3, MOUNT tells the flavors of each export.
    let proven = Origin { export: "/proven".to_owned(), ..serve.origin() };
    guest.mount_nfs(&proven, "/mnt/nfs", V3);
    assert_eq!(guest.sh(&format!("{PRELUDE} as {alice} cat /mnt/nfs/name")), "proven\n");
    assert_eq!(flavor(&guest, "/mnt/nfs"), "sec=krb5");
}

#[test]
fn clients_with_kerberos_lock_each_other_out() {
    let Some(lab) = Lab::enter("kerberos-locks") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let served = served.to_string_lossy();
    let arguments = ["serve", "--export", "/export", "--lease-time", "10", "--sec", ALL, &served];
    let serve = start(&lab, &realm, &arguments, "/export");
    let (one, two) = (monitored(&lab, "one"), monitored(&lab, "two"));
    let four = lab.guest("four");
    for guest in [&one, &two, &four] {
        guest.join(&realm);
    }
    seat(&one, &serve.origin(), &format!("{V3_LOCKS},sec=krb5"));
    seat(&two, &serve.origin(), &format!("{V3_LOCKS},sec=krb5p"));
    seat(&four, &serve.origin(), &format!("{V4_2},sec=krb5i"));
    one.sh("head -c 1000 /dev/zero >/mnt/nfs/file");
    each_sees_the_others(&[&one, &two, &four]);
    a_waiter_gets_its_turn(&one, &two);
    a_waiter_gets_its_turn(&four, &one);
    one.sh("flock -n /mnt/nfs/file true; flock -n -s /mnt/nfs/file true");
}

/// Root is root here: on the server, a rule of krb5.conf says so of the machine's principal.
#[test]
fn the_suite_passes_over_krb5i() {
    let Some(lab) = Lab::enter("kerberos-suite") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let rule = lab.directory().join("rule.conf");
    std::fs::write(
        &rule,
        format!(
            "[realms]\n    {REALM} = {{\n        auth_to_local = RULE:[2:$1/$2](nfs/client)s/.*/root/\n        \
             auth_to_local = DEFAULT\n    }}\n"
        ),
    )
    .unwrap();
    let guest = member(&lab, &realm, "client");
    let directory = served.to_string_lossy();
    let arguments =
        ["serve", "--no-rpcbind", "--export", "/export", "--no-root-squash", "--sec", ALL, &directory];
    let serve = start_with(&lab, &realm, &arguments, "/export", Some(&rule));
    guest.mount_nfs(&serve.origin(), "/mnt/nfs", &format!("{V4_2},sec=krb5i"));
    suite::run_only(&guest, "/mnt/nfs", &["files", "append-truncate", "rename", "links", "names", "sparse"]);
    // A client with Kerberos tells owners by name.
    guest.sh("cd /mnt/nfs; touch named; chown games:man named; stat -c '%u %g' named | grep -x '5 12'
              grep -q user:5: /proc/keys && grep -q group:12: /proc/keys");
    let metadata = std::fs::metadata(served.join("named")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (5, 12));
}
