//! Contexts between an initiator and an acceptor, with a real KDC: the peers, and protected messages.

mod support;

use gss::{Acceptor, Context, Initiator, Source, Step};
use lab::{Realm, with_realm};
use std::time::Duration;
use support::{TARGET, acceptor, alice, establish, first_token, library, one_line, populate};

const MESSAGE: &[u8] = b"a message of thirty-one bytes..";

/// Contexts of alice and of the service.
fn pair(realm: &Realm) -> (Context, Context) {
    populate(realm);
    establish(&alice(realm), &acceptor(realm)).expect("both sides are good")
}

#[test]
fn each_side_knows_the_other() {
    with_realm("each_side_knows_the_other", |realm| {
        let (client, server) = pair(realm);
        assert_eq!(server.peer(), "alice@LAB.TEST");
        assert_eq!(server.local_name().as_deref(), Some("alice"));
        assert_eq!(client.peer(), "nfs/localhost@", "krb5.conf leaves the realm of a host to the KDC");
        assert_eq!(client.local_name(), None);
        let day = Duration::from_secs(24 * 60 * 60);
        for context in [&client, &server] {
            assert!(context.lifetime() > Duration::from_secs(60) && context.lifetime() <= day);
        }
    });
}

#[test]
fn a_keytab_gives_tickets_to_an_initiator() {
    with_realm("a_keytab_gives_tickets_to_an_initiator", |realm| {
        populate(realm);
        realm.add_service("host/client");
        let path = realm.keytab(&["host/client", "nfs/localhost", "alice"]);
        for (principal, expected) in [
            (None, "host/client@LAB.TEST"),
            (Some("host/client"), "host/client@LAB.TEST"),
            (Some("nfs/localhost@LAB.TEST"), "nfs/localhost@LAB.TEST"),
            (Some("alice"), "alice@LAB.TEST"),
        ] {
            let source = Source::Keytab { path: path.clone(), principal: principal.map(str::to_owned) };
            let initiator = Initiator::new(&library(), &source).unwrap();
            assert_eq!(initiator.principal(), expected);
            let (_, server) = establish(&initiator, &acceptor(realm)).unwrap();
            assert_eq!(server.peer(), expected);
            assert_eq!(server.local_name().as_deref(), principal.filter(|name| *name == "alice"));
        }
    });
}

#[test]
fn the_defaults_of_the_configuration_are_used() {
    with_realm("the_defaults_of_the_configuration_are_used", |realm| {
        populate(realm);
        std::fs::copy(realm.tickets("alice"), realm.directory().join("default.tickets")).unwrap();
        let message = one_line(&Acceptor::new(&library(), None).unwrap_err());
        assert!(message.starts_with("the default keytab: "), "{message}");
        std::fs::copy(realm.keytab(&["nfs/localhost"]), realm.directory().join("default.keytab")).unwrap();
        let initiator = Initiator::new(&library(), &Source::Default).unwrap();
        assert_eq!(initiator.principal(), "alice@LAB.TEST");
        establish(&initiator, &Acceptor::new(&library(), None).unwrap()).unwrap();
    });
}

#[test]
fn tickets_do_without_the_kdc() {
    with_realm("tickets_do_without_the_kdc", |realm| {
        populate(realm);
        let (initiator, acceptor) = (alice(realm), acceptor(realm));
        establish(&initiator, &acceptor).unwrap();
        realm.stop_kdc();
        establish(&initiator, &acceptor).expect("the ticket of the service is in the cache");
        let message = one_line(&initiator.begin("nfs@elsewhere").unwrap().step(None).unwrap_err());
        assert!(message.contains("LAB.TEST"), "{message}");
        realm.start_kdc();
        realm.add_service("nfs/elsewhere");
        initiator.begin("nfs@elsewhere").unwrap().step(None).expect("the KDC is there again");
    });
}

#[test]
fn a_signature_holds_for_its_message_alone() {
    with_realm("a_signature_holds_for_its_message_alone", |realm| {
        let (client, server) = pair(realm);
        for (from, to) in [(&client, &server), (&server, &client)] {
            for message in [MESSAGE, b"", &vec![7; 1 << 20]] {
                let mic = from.mic(message).unwrap();
                to.verify_mic(message, &mic).unwrap();
                to.verify_mic(message, &mic).expect("replays are the caller's to find");
                let other = [message, b"x"].concat();
                assert!(to.verify_mic(&other, &mic).unwrap_err().is_bad_signature());
                assert!(from.verify_mic(message, &mic).is_err(), "a signature has a direction");
            }
            let mic = from.mic(MESSAGE).unwrap();
            for damaged in damaged(&mic) {
                let error = to.verify_mic(MESSAGE, &damaged).unwrap_err();
                assert!(error.is_bad_signature(), "{error}");
            }
            for at in 0..MESSAGE.len() {
                let mut message = MESSAGE.to_vec();
                message[at] ^= 1;
                assert!(to.verify_mic(&message, &mic).unwrap_err().is_bad_signature());
            }
        }
        let (other, _) = establish(&alice(realm), &acceptor(realm)).unwrap();
        let error = server.verify_mic(MESSAGE, &other.mic(MESSAGE).unwrap()).unwrap_err();
        assert!(error.is_bad_signature() && !error.is_expired());
        one_line(&error);
    });
}

/// All truncations of a token, and all tokens that differ in one bit.
fn damaged(token: &[u8]) -> Vec<Vec<u8>> {
    let flipped = (0..token.len() * 8).map(|bit| {
        let mut token = token.to_vec();
        token[bit / 8] ^= 1 << (bit % 8);
        token
    });
    (0..token.len()).map(|length| token[..length].to_vec()).chain(flipped).collect()
}

#[test]
fn a_wrapped_message_is_unwrapped_or_refused() {
    with_realm("a_wrapped_message_is_unwrapped_or_refused", |realm| {
        let (client, server) = pair(realm);
        for (from, to) in [(&client, &server), (&server, &client)] {
            for private in [false, true] {
                for message in [MESSAGE, b"", &vec![7; 1 << 20]] {
                    let token = from.wrap(message, private).unwrap();
                    assert_eq!(to.unwrap(&token).unwrap(), (message.to_vec(), private));
                }
                let token = from.wrap(MESSAGE, private).unwrap();
                let is_readable = token.windows(MESSAGE.len()).any(|window| window == MESSAGE);
                assert_eq!(is_readable, !private);
                assert!(from.unwrap(&token).is_err(), "a token has a direction");
                check_damaged(to, &token);
            }
        }
    });
}

/// The count in bytes 6 and 7 (RRC) says how far the rest is rotated, and is not protected (RFC 4121, 4.2.5).
/// A rotation by a multiple of the length changes nothing.
fn check_damaged(to: &Context, token: &[u8]) {
    for damaged in damaged(token) {
        match to.unwrap(&damaged) {
            Err(error) => assert!(error.is_bad_signature(), "{error}"),
            Ok((message, _)) => {
                assert_eq!(message, MESSAGE);
                assert!(damaged.len() == token.len() && damaged[6..8] != token[6..8]);
            }
        }
    }
}

#[test]
fn random_tokens_are_refused() {
    with_realm("random_tokens_are_refused", |realm| {
        use proptest::prelude::*;
        let (client, server) = pair(realm);
        let (initiator, acceptor) = (alice(realm), acceptor(realm));
        let (token, wrapped) = (first_token(&initiator).unwrap(), client.wrap(MESSAGE, true).unwrap());
        let bytes = || prop::collection::vec(any::<u8>(), 0..200);
        proptest!(|(head in 0..64usize, tail in bytes())| {
            let with_head = |of: &[u8]| [&of[..head.min(of.len())], &tail].concat();
            prop_assert!(acceptor.begin().step(&with_head(&token)).is_err());
            let Ok(Step::Continue { next, .. }) = initiator.begin(TARGET).unwrap().step(None) else {
                panic!("the initiator asks for mutual authentication")
            };
            prop_assert!(next.step(Some(&tail)).is_err());
            prop_assert!(server.unwrap(&with_head(&wrapped)).is_err());
            prop_assert!(server.verify_mic(MESSAGE, &tail).is_err());
        });
    });
}

#[test]
fn one_context_serves_several_threads() {
    with_realm("one_context_serves_several_threads", |realm| {
        let (client, server) = pair(realm);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let (client, server) = (&client, &server);
                scope.spawn(move || {
                    for round in 0..200u8 {
                        let message = [thread, round];
                        server.verify_mic(&message, &client.mic(&message).unwrap()).unwrap();
                        let token = server.wrap(&message, round % 2 == 0).unwrap();
                        assert_eq!(client.unwrap(&token).unwrap().0, message);
                    }
                });
            }
        });
    });
}

#[test]
fn one_acceptor_and_one_initiator_serve_several_threads() {
    with_realm("one_acceptor_and_one_initiator_serve_several_threads", |realm| {
        populate(realm);
        let (initiator, acceptor) = (alice(realm), acceptor(realm));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let (client, server) = establish(&initiator, &acceptor).unwrap();
                        server.verify_mic(MESSAGE, &client.mic(MESSAGE).unwrap()).unwrap();
                    }
                });
            }
        });
    });
}
