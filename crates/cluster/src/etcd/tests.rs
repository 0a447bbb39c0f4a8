//! Requests and answers as text: those of etcd, and any others.

use proptest::prelude::*;

use super::wire::{self, Answer};
use super::{Endpoint, EndpointError};
use crate::store::{Change, Committed, Condition, Entry, StoreError, Transaction};

const GOOD: &str = r#"{"header":{"cluster_id":"18446744073709551615",
    "member_id":"3","revision":"7","raft_term":"2"},
    "succeeded":true,"responses":[{"response_put":{"header":{"revision":"7"}}},
    {"response_range":{"header":{"revision":"7"},"kvs":[
    {"key":"YQ==","create_revision":"2","mod_revision":"6","version":"1","value":"MQ=="},
    {"key":"YWI=","create_revision":"2","mod_revision":"7","version":"1"}],"count":"2"}}]}"#;

fn put() -> Transaction {
    Transaction {
        conditions: vec![Condition { key: "a".to_owned(), changed_at: 6 }],
        changes: vec![Change::Put { key: "ab".to_owned(), value: Vec::new() }],
        prefix: "a".to_owned(),
    }
}

#[test]
fn endpoints_are_parsed() {
    for (text, displayed) in [
        ("http://a.example:1", "http://a.example:1"),
        ("HTTP://a/", "http://a:2379"),
        ("http://10.0.0.1", "http://10.0.0.1:2379"),
        ("http://[::1]", "http://[::1]:2379"),
        ("HTTPS://a:1", "https://a:1"),
        ("http://[fe80:0::1]:65535/", "http://[fe80::1]:65535"),
    ] {
        assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), displayed);
    }
    let error = |text: &str| text.parse::<Endpoint>().unwrap_err();
    for text in ["", "a:2379", "ftp://a", "://a"] {
        assert_eq!(error(text), EndpointError::Scheme(text.to_owned()));
    }
    for text in ["http://", "http://:1", "http://::1", "http://[::1", "http://[a]", "http://a\nb", "http://é"]
    {
        assert_eq!(error(text), EndpointError::Host(text.to_owned()));
        assert_eq!(error(text).to_string().lines().count(), 1);
    }
    for text in ["http://a:", "http://a:0", "http://a:65536", "http://a:+1", "http://[::1]1", "http://[::1]:"]
    {
        assert_eq!(error(text), EndpointError::Port(text.to_owned()));
    }
    for text in ["http://a/b", "http://a//", "http://u@a", "http://a?b", "http://a#b"] {
        assert_eq!(error(text), EndpointError::Excess(text.to_owned()));
    }
}

#[test]
fn the_end_of_a_range_follows_its_prefix() {
    for (prefix, end) in [
        (&b"a"[..], &b"b"[..]),
        (b"a/", b"a0"),
        (b"", b"\0"),
        (b"\xff", b"\0"),
        (b"a\xff\xff", b"b"),
        (b"a\xfe", b"a\xff"),
    ] {
        assert_eq!(wire::range_end(prefix), end);
    }
}

#[test]
fn a_request_is_the_json_of_etcd() {
    let range = serde_json::json!({ "request_range": { "key": "YQ==", "range_end": "Yg==" } });
    let expected = serde_json::json!({
        "compare": [{ "key": "YQ==", "target": "MOD", "result": "EQUAL", "mod_revision": "6" }],
        "success": [{ "request_put": { "key": "YWI=", "value": "" } }, range],
        "failure": [range],
    });
    let body = wire::request(&put()).unwrap();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), expected);
}

#[test]
fn an_answer_is_understood() {
    let entry = |key: &str, value: &[u8], changed_at| Entry {
        key: key.to_owned(),
        value: value.to_vec(),
        changed_at,
    };
    let entries = vec![entry("a", b"1", 6), entry("ab", b"", 7)];
    let committed = Committed { succeeded: true, revision: 7, entries };
    assert_eq!(wire::answer(200, GOOD.as_bytes(), &put()), Ok(Answer { cluster: u64::MAX, committed }));
}

#[test]
fn another_answer_is_unknown() {
    for (from, to) in [
        ("{\"header\"", "{\"no\""),
        ("}]}", ""),
        ("\"7\",\"raft", "\"0\",\"raft"),
        ("\"7\",\"raft", "7,\"raft"),
        ("\"revision\":\"7\",\"raft", "\"raft"),
        ("18446744073709551615", "18446744073709551616"),
        ("18446744073709551615", "-1"),
        ("18446744073709551615", ""),
        ("\"succeeded\":true,", ""),
        ("\"succeeded\":true", "\"succeeded\":1"),
        ("response_range", "response_put"),
        ("{\"response_put\":{\"header\":{\"revision\":\"7\"}}},", ""),
        ("\"count\"", "\"more\":true,\"count\""),
        ("\"YQ==\"", "\"YQ=\""),
        ("\"YQ==\"", "\"/w==\""),
        ("\"YQ==\"", "\"Yg==\""),
        ("\"YQ==\"", "\"YWI=\""),
        ("\"key\":\"YQ==\",", ""),
        ("\"MQ==\"", "\"%\""),
        ("\"MQ==\"", "null"),
        ("\"mod_revision\":\"6\"", "\"mod_revision\":\"-6\""),
        ("\"mod_revision\":\"6\"", "\"mod_revision\":\"8\""),
        ("\"mod_revision\":\"6\"", "\"mod_revision\":\"18446744073709551616\""),
        ("\"mod_revision\":\"6\",", ""),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let answer = wire::answer(200, GOOD.replacen(from, to, 1).as_bytes(), &put());
        let Err(StoreError::Unknown(message)) = answer else { panic!("{from} → {to}: {answer:?}") };
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    let deep = "[".repeat(1 << 20);
    for body in ["", "{}", "null", "[]", "\"\"", "<html>\n</html>", deep.as_str()] {
        for status in [200, 204, 302, 400, 404, 500, 503] {
            let answer = wire::answer(status, body.as_bytes(), &put());
            let Err(StoreError::Unknown(message)) = answer else { panic!("{status} {body}: {answer:?}") };
            assert_eq!(message.lines().count(), 1, "{message}");
            assert!(message.len() < 400, "{message}");
        }
    }
}

#[test]
fn an_error_is_refused_or_unknown_by_its_code() {
    let body = |code: u32| format!(r#"{{"error":"x","message":"etcdserver: x\ny","code":{code}}}"#);
    for (status, code) in [(400, 3), (403, 7), (501, 12), (401, 16)] {
        let answer = wire::answer(status, body(code).as_bytes(), &put());
        assert!(
            matches!(&answer, Err(StoreError::Refused(m)) if m.contains("etcdserver: x y")),
            "{answer:?}"
        );
    }
    for (status, code) in [(408, 1), (500, 2), (504, 4), (429, 8), (412, 9), (503, 14), (500, 15)] {
        let answer = wire::answer(status, body(code).as_bytes(), &put());
        assert!(
            matches!(&answer, Err(StoreError::Unknown(m)) if m.contains("etcdserver: x y")),
            "{answer:?}"
        );
    }
}

proptest! {
    /// Any bytes in the place of any part of an answer.
    #[test]
    fn no_answer_panics(
        status in prop_oneof![Just(200), 100_u16..600],
        start in 0..GOOD.len(),
        length in 0_usize..40,
        middle in proptest::collection::vec(any::<u8>(), 0..20),
    ) {
        let end = (start + length).min(GOOD.len());
        let body = [&GOOD.as_bytes()[..start], &middle, &GOOD.as_bytes()[end..]].concat();
        let _ = wire::answer(status, &body, &put());
        let _ = wire::answer(status, &middle, &put());
    }
}
