//! RPCSEC_GSS with a KDC, and clients that do what an honest one never does.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod setting;

use std::time::{Duration, Instant};

use lab::with_realm;
use rpc::Credential;
use rpc::message::{CallHeader, Refusal};
use rpc::rpcsec_gss::Protection;
use rpc::rpcsec_gss::initiator::Error;
use rpc::rpcsec_gss::wire::{CREDPROBLEM, CTXPROBLEM, GssCredential, MAXSEQ, Procedure};
use setting::{COUNT, ECHO, PROGRAM, Setting, encoded};
use xdr::{Encode, Encoder, Opaque};

const ALL: [Protection; 3] = [Protection::None, Protection::Integrity, Protection::Privacy];

fn is_refused(error: &Error, status: u32) -> bool {
    matches!(error, Error::Refused(Refusal::Auth(found)) if *found == status)
}

#[test]
fn a_user_with_a_ticket_is_known_and_gets_answers_in_every_protection() {
    with_realm("a_user_with_a_ticket_is_known_and_gets_answers_in_every_protection", |realm| {
        let setting = Setting::start(realm);
        let (mut wire, context) = setting.alice();
        for protection in ALL {
            // Bytes of a size that is computed on the spot, and of one that is not.
            for bytes in [0, 4, 1 << 20] {
                let sent: Vec<u8> = (0..bytes / 4).flat_map(u32::to_be_bytes).collect();
                let echo = wire.call(&context, ECHO, protection, &sent).unwrap();
                assert!(echo == sent, "{protection}: {bytes} bytes");
                let proven = setting.program.newest();
                assert_eq!((proven.protection, &*proven.user.principal), (protection, "alice@LAB.TEST"));
                assert_eq!(proven.user.unix.as_ref().map(|user| (user.uid, user.gid)), Some((1000, 100)));
            }
            let unknown = (PROGRAM.0, PROGRAM.1, 9);
            let refused = wire.call(&context, unknown, protection, &[]).unwrap_err();
            assert!(matches!(refused, Error::Refused(Refusal::ProcedureUnavailable)), "{refused}");
        }
    });
}

#[test]
fn a_service_has_a_principal_and_is_no_user_of_the_system() {
    with_realm("a_service_has_a_principal_and_is_no_user_of_the_system", |realm| {
        let setting = Setting::start(realm);
        realm.add_service("host/client");
        let (mut wire, context) = setting.context(&realm.tickets("host/client"));
        wire.call(&context, ECHO, Protection::Integrity, b"four").unwrap();
        let user = setting.program.newest().user;
        assert_eq!((&*user.principal, &user.unix), ("host/client@LAB.TEST", &None));
    });
}

#[test]
fn what_is_encrypted_is_not_on_the_wire_and_what_is_signed_is() {
    with_realm("what_is_encrypted_is_not_on_the_wire_and_what_is_signed_is", |realm| {
        let setting = Setting::start(realm);
        let (_, context) = setting.alice();
        let secret = b"a secret of sixteen and more bytes!!";
        for (protection, shows) in ALL.into_iter().zip([true, true, false]) {
            let (_, record) = encoded(&context, ECHO, 1, protection, secret);
            let found = record.windows(secret.len()).any(|window| window == secret);
            assert_eq!(found, shows, "{protection}");
        }
    });
}

#[test]
fn a_repeated_call_does_nothing_and_others_may_come_in_any_order() {
    with_realm("a_repeated_call_does_nothing_and_others_may_come_in_any_order", |realm| {
        let setting = Setting::start(realm);
        let (mut wire, context) = setting.alice();
        let calls: Vec<_> =
            (1..=3).map(|xid| (xid, encoded(&context, COUNT, xid, Protection::None, &[]))).collect();
        for (xid, (sent, record)) in calls.iter().rev() {
            wire.send(record);
            context.reply(*sent, wire.hear(*xid).unwrap()).unwrap();
        }
        // The same bytes again, on this connection and on another one: the next answer is that of another
        // call.
        for mut wire in [wire, setting.wire()] {
            calls.iter().for_each(|(_, (_, record))| wire.send(record));
            wire.call(&context, ECHO, Protection::None, &[]).unwrap();
        }
        assert_eq!(setting.program.seen.lock().len(), 5);
    });
}

#[test]
fn a_lost_call_is_sent_with_another_number_and_gets_the_same_results() {
    with_realm("a_lost_call_is_sent_with_another_number_and_gets_the_same_results", |realm| {
        let setting = Setting::start(realm);
        let (mut wire, context) = setting.alice();
        for protection in ALL {
            let mut results = Vec::new();
            for _ in 0..3 {
                let xid = 7 + protection as u32;
                let (sent, record) = encoded(&context, COUNT, xid, protection, &[]);
                wire.send(&record);
                results.push(context.reply(sent, wire.hear(xid).unwrap()).unwrap().rest());
            }
            assert!(results.iter().all(|other| *other == results[0]), "{protection}: {results:?}");
        }
        assert_eq!(setting.program.seen.lock().len(), 3);
    });
}

#[test]
fn no_changed_call_runs_with_what_its_user_did_not_send() {
    with_realm("no_changed_call_runs_with_what_its_user_did_not_send", |realm| {
        let setting = Setting::start(realm);
        let (_, context) = setting.alice();
        let arguments = b"arguments that are the users own";
        for protection in [Protection::Integrity, Protection::Privacy] {
            let (_, record) = encoded(&context, ECHO, 5, protection, arguments);
            for at in 0..record.len() {
                let (_, record) = encoded(&context, ECHO, 5, protection, arguments);
                let mut changed = record.to_vec();
                changed[at] ^= 1 << (at % 8);
                let mut wire = setting.wire();
                wire.send(&changed);
                // And a shorter one. The connection ends, or the call gets an error or nothing.
                wire.send(&record[..at]);
            }
        }
        let (mut wire, _) = setting.alice();
        wire.call(&context, ECHO, Protection::None, &[]).unwrap();
        for (credential, seen) in setting.program.seen.lock().iter().rev().skip(1) {
            // A changed flavor makes it a call without proof, which the program sees as such.
            let is_proven = matches!(credential, Credential::Proven(_));
            assert!(!is_proven || seen == &arguments[..], "{credential:?}: {seen:?}");
        }
    });
}

#[test]
fn a_context_that_is_not_there_is_made_again_by_the_client() {
    with_realm("a_context_that_is_not_there_is_made_again_by_the_client", |realm| {
        let setting = Setting::start(realm);
        let (mut wire, context) = setting.alice();
        assert_eq!(setting.acceptor.contexts(), 1);
        let xid = wire.xid();
        let (sent, record) = context.give_up(PROGRAM, xid).unwrap();
        wire.send(&record.to_bytes().unwrap());
        context.reply(sent, wire.hear(xid).unwrap()).unwrap();
        assert_eq!(setting.acceptor.contexts(), 0);
        let refused = wire.call(&context, ECHO, Protection::None, &[]).unwrap_err();
        assert!(is_refused(&refused, CREDPROBLEM), "{refused}");
        // Handles that nobody was given, and a number that no context has.
        for (handle, sequence, status) in
            [(&[0; 16][..], 1, CREDPROBLEM), (&[], 1, CREDPROBLEM), (&[7; 64], MAXSEQ, CTXPROBLEM)]
        {
            let handle = Opaque::new(handle.to_vec()).unwrap();
            let (procedure, protection) = (Procedure::Data, Protection::None);
            let credential = GssCredential { procedure, sequence, protection, handle };
            let claim =
                rpc::rpcsec_gss::Claim { credential, signed: <_>::default(), verifier: <_>::default() };
            let credential = Credential::Gss(Box::new(claim));
            let xid = wire.xid();
            let header = CallHeader { xid, program: PROGRAM.0, version: 1, procedure: 1, credential };
            let mut encoder = Encoder::new();
            header.encode(&mut encoder);
            wire.send(&encoder.finish().to_bytes().unwrap());
            let refused = rpc::message::parse_reply(wire.hear(xid).unwrap()).unwrap().unwrap_err();
            assert_eq!(refused, Refusal::Auth(status));
        }
        assert!(setting.program.seen.lock().is_empty());
    });
}

#[test]
fn a_context_ends_with_its_ticket() {
    with_realm("a_context_ends_with_its_ticket", |realm| {
        realm.set_clock_skew(Duration::from_secs(1));
        let setting = Setting::start(realm);
        realm.add_user("bob", "secret of bob");
        let (mut wire, context) = setting.context(&realm.tickets_for("bob", 4));
        wire.call(&context, ECHO, Protection::None, &[]).unwrap();
        let begun = Instant::now();
        let ended = loop {
            match wire.call(&context, ECHO, Protection::None, &[]) {
                Ok(_) => assert!(begun.elapsed() < Duration::from_secs(30), "it does not end"),
                Err(error) => break error,
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(is_refused(&ended, CREDPROBLEM), "{ended}");
    });
}

#[test]
fn a_ticket_for_a_key_that_the_server_does_not_have_makes_no_context() {
    with_realm("a_ticket_for_a_key_that_the_server_does_not_have_makes_no_context", |realm| {
        let setting = Setting::start(realm);
        realm.change_key("nfs/localhost");
        let error = setting.wire().context(&realm.tickets("alice")).unwrap_err();
        assert!(matches!(error, Error::Declined { .. }), "{error}");
        // Random bytes instead of a token.
        let mut wire = setting.wire();
        for (length, token) in [(4, &b"\x60\x82"[..]), (4, b"rubb"), (1 << 30, b"rubbish!")] {
            let handle = Opaque::default();
            let (procedure, protection) = (Procedure::Init, Protection::None);
            let credential = GssCredential { procedure, sequence: 0, protection, handle };
            let claim =
                rpc::rpcsec_gss::Claim { credential, signed: <_>::default(), verifier: <_>::default() };
            let xid = wire.xid();
            let credential = Credential::Gss(Box::new(claim));
            let header = CallHeader { xid, program: PROGRAM.0, version: 1, procedure: 0, credential };
            let mut encoder = Encoder::new();
            header.encode(&mut encoder);
            encoder.u32(length);
            encoder.raw(token);
            wire.send(&encoder.finish().to_bytes().unwrap());
            let _ = rpc::message::parse_reply(wire.hear(xid).unwrap()).unwrap();
        }
        assert_eq!(setting.acceptor.contexts(), 0);
        assert!(setting.program.seen.lock().is_empty());
    });
}
