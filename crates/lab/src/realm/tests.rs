//! Tests of the realm itself.

use super::{Realm, reports_failure, with_realm};
use std::fs;
use std::net::{TcpStream, UdpSocket};

#[test]
fn kinit_gets_tickets_and_klist_reads_them() {
    with_realm("realm::tests::kinit_gets_tickets_and_klist_reads_them", |realm| {
        realm.add_user("alice", "secret of alice");
        realm.add_service("nfs/localhost");
        for name in ["alice", "nfs/localhost"] {
            let tickets = realm.tickets(name);
            let output = realm.command("klist").arg("-c").arg(tickets).output().unwrap();
            let output = String::from_utf8(output.stdout).unwrap();
            assert!(output.contains(&format!("Default principal: {name}@LAB.TEST")), "{output}");
        }
        let config = std::env::var("KRB5_CONFIG").unwrap();
        assert_eq!(realm.environment()[0], ("KRB5_CONFIG", config));
        assert!(!realm.client_configuration().contains(&*realm.directory().to_string_lossy()));
    });
}

#[test]
fn the_kdc_stops_and_starts_on_its_port_and_ends_with_the_realm() {
    with_realm("realm::tests::the_kdc_stops_and_starts_on_its_port_and_ends_with_the_realm", |_| {
        let realm = Realm::start();
        let (address, directory) = (realm.address(), realm.directory().to_owned());
        realm.stop_kdc();
        assert!(TcpStream::connect(address).is_err());
        realm.start_kdc();
        assert!(TcpStream::connect(address).is_ok());
        assert!(UdpSocket::bind(address).is_err(), "it listens for UDP, too");
        drop(realm);
        assert!(TcpStream::connect(address).is_err());
        assert!(!fs::exists(directory).unwrap());
    });
}

#[test]
fn a_test_that_does_not_exist_is_not_taken_for_passed() {
    if super::kerberos_missing().is_none() {
        let failure = std::panic::catch_unwind(|| with_realm("realm::tests::none", |_| ()));
        let failure = failure.expect_err("there is no such test");
        let said = failure.downcast_ref::<String>().unwrap();
        assert!(said.contains("running 0 tests"), "{said}");
    }
}

#[test]
fn a_failure_of_kadmin_is_seen() {
    with_realm("realm::tests::a_failure_of_kadmin_is_seen", |realm| {
        realm.add_service("nfs/localhost");
        let again = std::panic::AssertUnwindSafe(|| realm.add_service("nfs/localhost"));
        let failure = std::panic::catch_unwind(again).expect_err("the principal exists");
        let said = failure.downcast_ref::<String>().unwrap();
        assert!(said.contains("lab: kadmin.local: ") && said.contains("already exists"), "{said}");
    });
    assert!(reports_failure("addprinc: Principal or policy already exists while creating \"a@LAB.TEST\"."));
    assert!(!reports_failure("Principal \"a@LAB.TEST\" created."));
}
