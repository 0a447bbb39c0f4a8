//! Credentials and tokens that are refused, with a real KDC. Each message has one line.

mod support;

use gss::{Acceptor, Initiator, Source};
use lab::with_realm;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use support::{acceptor, alice, cache, establish, first_token, library, one_line, populate};

fn keytab_refused(path: &Path) -> String {
    let message = one_line(&Acceptor::new(&library(), Some(path)).expect_err("it has no key"));
    assert!(message.starts_with(&format!("keytab {}: ", path.display())), "{message}");
    let source = Source::Keytab { path: path.to_owned(), principal: None };
    let of_initiator = one_line(&Initiator::new(&library(), &source).expect_err("it has no key"));
    assert!(of_initiator.starts_with(&format!("keytab {}: ", path.display())), "{of_initiator}");
    assert!(!of_initiator.contains("cache"), "{of_initiator}");
    message
}

#[test]
fn a_keytab_without_keys_is_refused() {
    with_realm("a_keytab_without_keys_is_refused", |realm| {
        let missing = realm.directory().join("missing");
        assert!(keytab_refused(&missing).contains("No such file"));
        let empty = realm.directory().join("empty");
        fs::write(&empty, "").unwrap();
        keytab_refused(&empty);
        let header_alone = realm.directory().join("header");
        fs::write(&header_alone, [5, 2]).unwrap();
        assert!(keytab_refused(&header_alone).ends_with("give it a key of nfs/HOST@REALM (kadmin: ktadd)"));
        let text = realm.directory().join("text");
        fs::write(&text, "this is not a keytab\n".repeat(100)).unwrap();
        keytab_refused(&text);
        assert!(keytab_refused(realm.directory()).contains("not a regular file"));
    });
}

#[test]
fn a_keytab_of_another_user_is_refused() {
    with_realm("a_keytab_of_another_user_is_refused", |realm| {
        populate(realm);
        let keytab = realm.keytab(&["nfs/localhost"]);
        fs::set_permissions(&keytab, fs::Permissions::from_mode(0o0)).unwrap();
        // Root may read it anyway.
        match Acceptor::new(&library(), Some(&keytab)) {
            Ok(_) => assert!(lab::is_root()),
            Err(error) => assert!(one_line(&error).contains("Permission denied")),
        }
    });
}

#[test]
fn missing_tickets_are_told() {
    with_realm("missing_tickets_are_told", |realm| {
        populate(realm);
        let refused = |source: &Source| one_line(&Initiator::new(&library(), source).unwrap_err());
        let missing = realm.directory().join("missing");
        let message = refused(&cache(&missing));
        assert!(message.starts_with(&format!("ticket cache FILE:{}: ", missing.display())), "{message}");
        assert!(message.ends_with(&format!("get tickets: kinit -c FILE:{}", missing.display())));
        let message = refused(&Source::Default);
        assert!(message.starts_with("the default ticket cache: "), "{message}");
        assert!(message.ends_with("get tickets: kinit"), "{message}");
        let garbage = realm.directory().join("garbage");
        fs::write(&garbage, "no tickets").unwrap();
        refused(&cache(&garbage));
        refused(&Source::Cache("FILE:/a\0b".to_owned()));
        refused(&Source::Cache("NOTYPE:x".to_owned()));
    });
}

#[test]
fn a_key_that_has_changed_gets_no_tickets() {
    with_realm("a_key_that_has_changed_gets_no_tickets", |realm| {
        populate(realm);
        let path = realm.keytab(&["nfs/localhost"]);
        realm.change_key("nfs/localhost");
        let source =
            |principal: &str| Source::Keytab { path: path.clone(), principal: Some(principal.into()) };
        one_line(&Initiator::new(&library(), &source("nfs/localhost")).unwrap_err());
        let message = one_line(&Initiator::new(&library(), &source("nfs/other")).unwrap_err());
        assert!(message.contains("No key table entry found"), "{message}");
        realm.stop_kdc();
        let path = realm.keytab(&["nfs/localhost"]);
        let source = Source::Keytab { path, principal: None };
        let message = one_line(&Initiator::new(&library(), &source).unwrap_err());
        assert!(message.contains("KDC"), "{message}");
    });
}

#[test]
fn a_token_for_another_key_is_refused() {
    with_realm("a_token_for_another_key_is_refused", |realm| {
        populate(realm);
        realm.add_service("nfs/elsewhere");
        let token = first_token(&alice(realm)).unwrap();
        let other = Acceptor::new(&library(), Some(&realm.keytab(&["nfs/elsewhere"]))).unwrap();
        let message = one_line(&other.begin().step(&token).unwrap_err());
        assert!(message.contains("nfs/localhost"), "{message}");
        let keytab = realm.keytab(&["nfs/localhost"]);
        let acceptor = Acceptor::new(&library(), Some(&keytab)).unwrap();
        realm.change_key("nfs/localhost");
        let token = first_token(&alice(realm)).unwrap();
        let message = one_line(&acceptor.begin().step(&token).unwrap_err());
        assert!(message.contains("nfs/localhost"), "{message}");
        fs::rename(realm.keytab(&["nfs/localhost"]), &keytab).unwrap();
        acceptor.begin().step(&token).expect("the new key is read from the file");
    });
}

#[test]
fn a_ticket_for_another_service_is_refused_on_request() {
    with_realm("a_ticket_for_another_service_is_refused_on_request", |realm| {
        populate(realm);
        realm.add_service("host/localhost");
        let keytab = realm.keytab(&["host/localhost", "nfs/localhost"]);
        let token = |target: &str| match alice(realm).begin(target).unwrap().step(None).unwrap() {
            gss::Step::Continue { token, .. } => token,
            gss::Step::Done { .. } => panic!("the initiator asks for mutual authentication"),
        };
        let any = Acceptor::new(&library(), Some(&keytab)).unwrap();
        any.begin().step(&token("host@localhost")).unwrap();
        let nfs = Acceptor::for_service(&library(), "nfs", Some(&keytab)).unwrap();
        nfs.begin().step(&token("nfs@localhost")).unwrap();
        one_line(&nfs.begin().step(&token("host@localhost")).unwrap_err());
        let without = realm.keytab(&["host/localhost"]);
        one_line(&Acceptor::for_service(&library(), "nfs", Some(&without)).unwrap_err());
    });
}

#[test]
fn a_token_is_accepted_once() {
    with_realm("a_token_is_accepted_once", |realm| {
        populate(realm);
        let (token, acceptor) = (first_token(&alice(realm)).unwrap(), acceptor(realm));
        acceptor.begin().step(&token).unwrap();
        one_line(&acceptor.begin().step(&token).unwrap_err());
    });
}

#[test]
fn tokens_that_are_too_long_or_damaged_are_refused() {
    with_realm("tokens_that_are_too_long_or_damaged_are_refused", |realm| {
        populate(realm);
        let (token, acceptor) = (first_token(&alice(realm)).unwrap(), acceptor(realm));
        for length in (0..token.len()).step_by(7) {
            assert!(acceptor.begin().step(&token[..length]).is_err());
        }
        let mut long = token.clone();
        long.resize((64 << 10) + 1, 0);
        let error = acceptor.begin().step(&long).unwrap_err();
        assert!(error.is_bad_signature() && one_line(&error).ends_with("too long"));
        assert!(alice(realm).begin("nfs@localhost").unwrap().step(Some(&long)).is_err());
        for at in (0..token.len()).step_by(3) {
            let mut token = token.clone();
            token[at] ^= 0x10;
            let _ = acceptor.begin().step(&token).map_err(|error| one_line(&error)); // some bytes mean nothing
        }
    });
}

#[test]
fn an_error_has_a_token_for_the_initiator() {
    with_realm("an_error_has_a_token_for_the_initiator", |realm| {
        populate(realm);
        let (token, acceptor) = (first_token(&alice(realm)).unwrap(), acceptor(realm));
        acceptor.begin().step(&token).unwrap();
        let error = acceptor.begin().step(&token).unwrap_err();
        let answer = error.token().expect("a KRB-ERROR").to_vec();
        let gss::Step::Continue { next, .. } =
            alice(realm).begin("nfs@localhost").unwrap().step(None).unwrap()
        else {
            panic!("the initiator asks for mutual authentication")
        };
        one_line(&next.step(Some(&answer)).unwrap_err());
    });
}

#[test]
fn an_unknown_service_is_refused() {
    with_realm("an_unknown_service_is_refused", |realm| {
        populate(realm);
        let message = one_line(&alice(realm).begin("nfs@nowhere").unwrap().step(None).unwrap_err());
        assert!(message.contains("nfs/nowhere@LAB.TEST"), "{message}");
    });
}

fn wait_past(seconds: u64) {
    std::thread::sleep(Duration::from_secs(seconds) + Duration::from_millis(100));
}

#[test]
fn an_expired_ticket_is_refused_by_both_sides() {
    with_realm("an_expired_ticket_is_refused_by_both_sides", |realm| {
        populate(realm);
        let acceptor = acceptor(realm);
        let path = realm.tickets_for("alice", 3);
        let initiator = Initiator::new(&library(), &cache(&path)).unwrap();
        let (client, _) = establish(&initiator, &acceptor).unwrap();
        assert!(client.lifetime() <= Duration::from_secs(3));
        let token = first_token(&initiator).unwrap();
        realm.set_clock_skew(Duration::from_secs(1));
        wait_past(5);
        let error = acceptor.begin().step(&token).unwrap_err();
        one_line(&error);
        assert!(error.is_expired());
        let error = first_token(&initiator).unwrap_err();
        one_line(&error);
        assert!(error.is_expired());
        let error = Initiator::new(&library(), &cache(&path)).unwrap_err();
        one_line(&error);
        assert!(error.is_expired());
    });
}
