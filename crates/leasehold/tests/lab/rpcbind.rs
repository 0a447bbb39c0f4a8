//! rpcbind knows our ports while the server runs, and not afterwards.

use std::process::Command;

use lab::Lab;

/// In a network and a /run of its own: starts rpcbind, then a server on the usual port. Asks rpcbind before
/// and after the end of the server.
const SCRIPT: &str = r#"
set -eu
mount -t tmpfs run /run; mkdir /run/rpcbind; ip link set lo up
rpcbind -f & RPCBIND=$!
trap 'kill $RPCBIND' EXIT
until rpcinfo -p 127.0.0.1 >/dev/null 2>&1; do sleep 0.05; done
"$1" serve "$2" --state "$3" --listen 0.0.0.0:2049 >"$3/ready" & SERVE=$!
until [ -s "$3/ready" ]; do sleep 0.05; done
rpcinfo -p 127.0.0.1 | awk '$4 == 2049 { print $1, $2, $3 }' | sort
kill $SERVE; wait $SERVE
rpcinfo -p 127.0.0.1 | awk '$4 == 2049' | wc -l
"#;

#[test]
fn rpcbind_knows_us_while_we_run() {
    let Some(lab) = Lab::enter("rpcbind") else { return };
    let (served, state) = (lab.subdirectory("served"), lab.subdirectory("state"));
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", SCRIPT, "sh", env!("CARGO_BIN_EXE_leasehold")])
        .args([served, state])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let expected = "100003 2 tcp\n100003 2 udp\n100003 3 tcp\n100003 3 udp\n100005 1 tcp\n100005 1 udp\n100005 2 tcp\n\
                    100005 2 udp\n100005 3 tcp\n100005 3 udp\n100021 1 tcp\n100021 1 udp\n100021 3 tcp\n100021 3 udp\n\
                    100021 4 tcp\n100021 4 udp\n100024 1 tcp\n100024 1 udp\n300105 1 tcp\n300105 1 udp\n0\n";
    assert_eq!(text, expected);
}

/// In a network of its own, without rpcbind: starts a server on an address of the network, and asks the port
/// mapper that comes with it, in all versions.
const ALONE: &str = r#"
set -eu
mount -t tmpfs run /run; ip link set lo up; ip addr add 10.66.0.1/32 dev lo
"$1" serve "$2" --state "$3" --listen 10.66.0.1:2049 >"$3/ready" & SERVE=$!
until [ -s "$3/ready" ]; do sleep 0.05; done
rpcinfo -p 10.66.0.1 | awk '$1 == 100021 { print $1, $2, $3, $4 }' | sort
rpcinfo -s 10.66.0.1 | awk '$1 == 100024 { print $1, $2 }'
rpcinfo -t 10.66.0.1 100021 4; rpcinfo -u 10.66.0.1 100024 1
kill $SERVE; wait $SERVE
"#;

#[test]
fn where_no_rpcbind_runs_we_map_the_ports() {
    let Some(lab) = Lab::enter("portmapper") else { return };
    let (served, state) = (lab.subdirectory("served"), lab.subdirectory("state"));
    let output = Command::new("unshare")
        .args(["--net", "--mount", "sh", "-c", ALONE, "sh", env!("CARGO_BIN_EXE_leasehold")])
        .args([served, state])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let expected = "100021 1 tcp 2049\n100021 1 udp 2049\n100021 3 tcp 2049\n100021 3 udp 2049\n\
                    100021 4 tcp 2049\n100021 4 udp 2049\n100024 1\n\
                    program 100021 version 4 ready and waiting\nprogram 100024 version 1 ready and waiting\n";
    assert_eq!(text, expected);
}
