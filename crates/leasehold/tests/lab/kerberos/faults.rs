//! Kerberos over time: tickets that expire, servers that restart, keys that change, and networks that fail.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use lab::{Cut, Guest, Lab, Link, Task, V3, V4_0, V4_1, V4_2, wait_for};

use super::{ALICE, ALL, BOB, CAROL, PATIENCE, PRELUDE, keytab, member, proxy, realm, serve, shared};
use crate::stack::{self, Leasehold};

/// `keep.sh FILE`: prints `expired` when bytes of an open file cannot be read any more, and `renewed` when
/// they can. Then writes to the file.
const KEEP_SH: &str = r#"cat >/tmp/keep.sh <<'SH'
exec 5<>"$1"; echo open
try() { said=$(dd bs=4096 count=1 iflag=direct status=none 2>&1 <&5 >/dev/null); }
while try; do sleep 0.2; done; echo "$said"; echo expired
until try; do sleep 0.2; done; echo renewed
echo written >&5; sync "$1"; exec 5>&-
SH
"#;

#[test]
fn a_ticket_lets_a_user_in_until_it_expires_and_again_when_it_is_renewed() {
    let Some(lab) = Lab::enter("kerberos-tickets") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let serve = serve(&lab, &realm, &served, ALL);
    let guest = member(&lab, &realm, "client");
    guest.sh(KEEP_SH);
    let (carol, name) = CAROL;
    let mounts = [("42", V4_2, "krb5p"), ("40", V4_0, "krb5i"), ("3", V3, "krb5")];
    let touch = |at: &str| guest.run(&format!("{PRELUDE} as {carol} touch /mnt/{at}/of-{at}"));
    for (at, version, flavor) in mounts {
        guest.mount_nfs(&serve.origin(), &format!("/mnt/{at}"), &format!("{version},sec={flavor}"));
        let refused = touch(at);
        assert!(!refused.ok() && refused.text.contains("Permission denied"), "{at}: {}", refused.text);
    }
    guest.give_tickets(carol, &realm.tickets_for(name, 14));
    let tasks = mounts.map(|(at, ..)| {
        // The kernel asks rpc.gssd again after 5 s.
        wait_for("a user with a new ticket", PATIENCE, || touch(at).ok().then_some(()));
        let as_carol = format!("setpriv --reuid={carol} --regid={carol} --clear-groups");
        guest.spawn(&format!("{as_carol} bash /tmp/keep.sh /mnt/{at}/of-{at}"))
    });
    for (task, (at, ..)) in tasks.iter().zip(mounts) {
        wait_for("the ticket to expire", PATIENCE, || task.output().contains("expired\n").then_some(()));
        assert!(!touch(at).ok(), "{at}");
    }
    guest.give_tickets(carol, &realm.tickets(name));
    for (task, (at, ..)) in tasks.into_iter().zip(mounts) {
        let kept = task.wait(PATIENCE);
        assert!(kept.ok() && kept.text.ends_with("renewed\n"), "{at}: {}", kept.text);
        assert!(kept.text.contains("Key has expired"), "{at}: {}", kept.text);
        assert_eq!(std::fs::read_to_string(served.join(format!("of-{at}"))).unwrap(), "written\n", "{at}");
        eprintln!("lab: {at}: {}", kept.text.replace('\n', "; "));
    }
}

/// `append.pl FILE RELEASE`: locks a new file, appends numbered lines, and syncs each, until the file RELEASE
/// exists. Prints how many lines it wrote.
const APPEND_PL: &str = r#"cat >/tmp/append.pl <<'PERL'
use Fcntl; use IO::Handle;
my ($file, $release) = @ARGV;
open(my $fh, "+>", $file) or die "open: $!";
my $lock = pack("ssx4qqlx4", F_WRLCK, 0, 0, 0, 0);
fcntl($fh, F_SETLK, $lock) or die "lock: $!";
$| = 1; print "held\n";
my $count = 0;
until (-e $release) {
    syswrite($fh, sprintf("%07d\n", $count++)) == 8 or die "write: $!";
    $fh->sync or die "sync: $!";
    select(undef, undef, undef, 0.05);
}
close($fh) or die "close: $!";
print "wrote $count\n";
PERL
"#;

/// Programs with open files and locks go on when the server restarts, which has no contexts then.
fn go_on(guest: &Guest, server: &mut Leasehold, served: &Path, mounts: &[(&str, &str, &str)]) {
    guest.sh(APPEND_PL);
    let append = |(name, version, flavor): &(&str, &str, &str)| {
        guest.mount_nfs(&server.origin(), &format!("/mnt/{name}"), &format!("{version},sec={flavor}"));
        let (alice, _) = ALICE;
        let as_alice = format!("setpriv --reuid={alice} --regid={alice} --clear-groups");
        let task =
            guest.spawn(&format!("{as_alice} perl /tmp/append.pl /mnt/{name}/file-{name} /tmp/release"));
        wait_for("a lock", PATIENCE, || task.output().contains("held").then_some(()));
        task
    };
    let tasks: Vec<Task> = mounts.iter().map(append).collect();
    let file = |name: &str| served.join(format!("file-{name}"));
    let sizes = || -> Vec<u64> {
        mounts.iter().map(|(name, ..)| std::fs::metadata(file(name)).unwrap().len()).collect()
    };
    for _ in 0..2 {
        std::thread::sleep(Duration::from_secs(4));
        server.kill_and_restart();
        let before = sizes();
        wait_for("all programs to go on", PATIENCE, || {
            sizes().iter().zip(&before).all(|(now, before)| *now > before + 80).then_some(())
        });
    }
    guest.sh("touch /tmp/release");
    for (task, (name, ..)) in tasks.into_iter().zip(mounts) {
        let output = task.wait(PATIENCE);
        let wrote = output.text.rsplit("wrote ").next().and_then(|count| count.trim().parse::<usize>().ok());
        assert!(output.ok() && wrote.is_some_and(|count| count > 10), "{name}: {}", output.text);
        let text = std::fs::read_to_string(file(name)).unwrap();
        let wanted: Vec<String> = (0..wrote.unwrap()).map(|number| format!("{number:07}\n")).collect();
        let wanted = wanted.concat();
        assert!(text == wanted, "{name}: {} bytes of {}", text.len(), wanted.len());
        eprintln!("lab: {name}: {} lines", wrote.unwrap());
    }
}

#[test]
fn programs_go_on_when_serve_restarts_and_its_contexts_are_gone() {
    let Some(lab) = Lab::enter("kerberos-restart") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let mut serve = serve(&lab, &realm, &served, ALL);
    let guest = member(&lab, &realm, "client");
    go_on(&guest, &mut serve, &served, &[("42", V4_2, "krb5p"), ("40", V4_0, "krb5i"), ("3", V3, "krb5")]);
}

#[test]
fn programs_go_on_when_a_proxy_restarts_and_its_contexts_are_gone() {
    let Some(lab) = Lab::enter("kerberos-proxy-restart") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let origin = stack::serve(&lab, &served);
    let mut proxy = proxy(&lab, &realm, &origin.origin(), "4.2");
    let guest = member(&lab, &realm, "client");
    go_on(&guest, &mut proxy, &served, &[("42", V4_2, "krb5p"), ("41", V4_1, "krb5i")]);
}

/// Fails if a call that is sent again runs twice: names are made and removed, and a file is written.
const MANY_SH: &str = r#"
cd "$1"
for n in $(seq 30); do
    mkdir d$n; touch d$n/a; ln d$n/a d$n/b; mv d$n/a d$n/c; rm d$n/b d$n/c; rmdir d$n
done &
names=$!
for n in 1 2 3; do dd if=/tmp/big of=big$n bs=1M conv=fsync status=none & jobs[$n]=$!; done
for job in $names ${jobs[*]}; do wait $job; done
echo made
"#;

/// The calls of this client come from ports that every user could have.
#[test]
fn calls_that_are_sent_again_run_once_in_every_flavor() {
    let Some(lab) = Lab::enter("kerberos-cuts") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let serve = serve(&lab, &realm, &served, ALL);
    let link = Link::to(&lab, &serve.origin());
    let guest = member(&lab, &realm, "client");
    guest.sh(&format!(
        "head -c 16000000 /dev/urandom >/tmp/big; chmod 644 /tmp/big\ncat >/tmp/many.sh <<'END'\n{MANY_SH}\nEND"
    ));
    let (alice, _) = ALICE;
    let as_alice = format!("setpriv --reuid={alice} --regid={alice} --clear-groups");
    let mounts = [("42", V4_2, "krb5p"), ("41", V4_1, "krb5"), ("40", V4_0, "krb5i")];
    let tasks = mounts.map(|(name, version, flavor)| {
        let options = format!("{version},nconnect=4,timeo=20,retrans=2,sec={flavor}");
        guest.mount_nfs(&link.origin(), &format!("/mnt/{name}"), &options);
        let directory = format!("/mnt/{name}/{name}");
        guest.spawn(&format!("{as_alice} mkdir {directory}; {as_alice} bash -eu /tmp/many.sh {directory}"))
    });
    for cut in [Cut::BlackHole, Cut::Reset] {
        std::thread::sleep(Duration::from_millis(1500));
        link.cut(cut);
        std::thread::sleep(Duration::from_millis(2500));
        link.restore();
    }
    for (task, (name, ..)) in tasks.into_iter().zip(mounts) {
        let output = task.wait(Duration::from_secs(120));
        assert!(output.ok() && output.text.ends_with("made\n"), "{name}: {}", output.text);
    }
    guest.drop_caches();
    for (name, ..) in mounts {
        guest.sh(&format!(
            "{PRELUDE}
             for n in 1 2 3; do as {alice} cmp /tmp/big /mnt/{name}/{name}/big$n & jobs[$n]=$!; done
             for job in ${{jobs[*]}}; do wait $job; done
             [ \"$(ls /mnt/{name}/{name} | tr '\n' ' ')\" = 'big1 big2 big3 ' ]"
        ));
    }
}

/// What one client has cached under a delegation is current when another one has written.
#[test]
fn delegations_are_recalled_from_clients_with_kerberos() {
    let Some(lab) = Lab::enter("kerberos-recalls") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let serve = serve(&lab, &realm, &served, ALL);
    let (holder, writer) = (member(&lab, &realm, "holder"), member(&lab, &realm, "writer"));
    let (alice, _) = ALICE;
    writer.mount_nfs(&serve.origin(), "/mnt/nfs", &format!("{V4_2},sec=krb5"));
    for (name, version, flavor) in [("42", V4_2, "krb5p"), ("40", V4_0, "krb5i")] {
        // A file that no client has used gets a delegation at once.
        std::fs::write(served.join(name), "before\n").unwrap();
        std::fs::set_permissions(served.join(name), std::fs::Permissions::from_mode(0o666)).unwrap();
        holder.mount_nfs(&serve.origin(), "/mnt/nfs", &format!("{version},sec={flavor}"));
        let read = || holder.sh(&format!("{PRELUDE} as {alice} cat /mnt/nfs/{name}"));
        wait_for("a delegation", PATIENCE, || {
            assert_eq!(read(), "before\n");
            (serve.held("read_leases") > 0).then_some(())
        });
        let began = Instant::now();
        writer
            .sh(&format!("{PRELUDE} as {alice} bash -c 'echo after >/mnt/nfs/{name}; sync /mnt/nfs/{name}'"));
        let took = began.elapsed();
        assert_eq!(read(), "after\n", "{version},sec={flavor}");
        assert!(took < Duration::from_secs(5) && serve.revoked() == 0, "{version},sec={flavor}: {took:?}");
        eprintln!("lab: {version},sec={flavor}: {took:?}");
        holder.unmount("/mnt/nfs");
    }
}

/// An administrator gives the service a new key, and adds it to the keytab. The server runs meanwhile.
#[test]
fn a_new_key_counts_without_a_restart_and_old_tickets_stay_good() {
    let Some(lab) = Lab::enter("kerberos-keys") else { return };
    let (realm, served) = (realm(&lab), shared(&lab, "served"));
    let serve = serve(&lab, &realm, &served, "krb5p");
    let guest = member(&lab, &realm, "client");
    guest.mount_nfs(&serve.origin(), "/mnt/nfs", V4_2);
    let ((alice, _), (bob, _), (carol, name)) = (ALICE, BOB, CAROL);
    guest.sh(&format!("{PRELUDE} as {alice} touch /mnt/nfs/of-alice"));
    realm.change_key(Guest::SERVER_PRINCIPAL);
    guest.give_tickets(carol, &realm.tickets(name));
    let touch = |uid: u32| guest.run(&format!("{PRELUDE} as {uid} touch /mnt/nfs/of-{uid}"));
    assert!(!touch(carol).ok(), "the server has no such key yet");
    guest.sh(&format!("{PRELUDE} as {alice} touch /mnt/nfs/of-alice"));
    realm.add_keys(&keytab(&lab), &[Guest::SERVER_PRINCIPAL]);
    wait_for("the new key", PATIENCE, || touch(carol).ok().then_some(()));
    assert!(touch(alice).ok() && touch(bob).ok());
}
