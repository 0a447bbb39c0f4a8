//! The JSON of etcd's gateway: a transaction becomes a request, and an answer becomes a result.
//!
//! The gateway writes keys and values in base64 and 64-bit integers as strings. It leaves out fields that are
//! zero, false or empty.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::store::{Change, Committed, Entry, StoreError, Transaction};

/// Longest text of a server that a message repeats, in characters.
const QUOTE_MAX: usize = 200;

/// gRPC codes that say that etcd has not carried out the request, and why.
const REFUSALS: [(u32, &str); 4] =
    [(3, "invalid argument"), (7, "permission denied"), (12, "not implemented"), (16, "not authenticated")];

#[derive(Serialize)]
struct TxnRequest {
    compare: Vec<Compare>,
    success: Vec<Operation>,
    failure: Vec<Operation>,
}

#[derive(Serialize)]
struct Compare {
    key: String,
    target: &'static str,
    result: &'static str,
    mod_revision: String,
}

#[derive(Clone, Serialize)]
enum Operation {
    #[serde(rename = "request_put")]
    Put { key: String, value: String },
    #[serde(rename = "request_delete_range")]
    DeleteRange { key: String },
    #[serde(rename = "request_range")]
    Range { key: String, range_end: String },
}

#[derive(Deserialize)]
struct TxnAnswer {
    header: Header,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<OperationAnswer>,
}

#[derive(Deserialize)]
struct Header {
    cluster_id: String,
    revision: String,
}

#[derive(Deserialize)]
struct OperationAnswer {
    response_range: Option<RangeAnswer>,
}

#[derive(Deserialize)]
struct RangeAnswer {
    #[serde(default)]
    kvs: Vec<KeyValue>,
    #[serde(default)]
    more: bool,
}

#[derive(Deserialize)]
struct KeyValue {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
    mod_revision: String,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    #[serde(default)]
    message: String,
    #[serde(default)]
    code: u32,
}

/// An answer to a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The id of the cluster that answered.
    pub cluster: u64,
    /// The result.
    pub committed: Committed,
}

/// The first key after all that begin with `prefix`: the `range_end` of a range. If there is none, it is one
/// zero byte, which etcd understands as the end of all keys.
pub(super) fn range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

/// The body of the request for a transaction.
pub(super) fn request(transaction: &Transaction) -> Result<Vec<u8>, StoreError> {
    // etcd has no empty key: the first possible key is one zero byte.
    let first = if transaction.prefix.is_empty() { &[0][..] } else { transaction.prefix.as_bytes() };
    let range = Operation::Range {
        key: STANDARD.encode(first),
        range_end: STANDARD.encode(range_end(transaction.prefix.as_bytes())),
    };
    let compare = transaction.conditions.iter().map(|condition| Compare {
        key: STANDARD.encode(&condition.key),
        target: "MOD",
        result: "EQUAL",
        mod_revision: condition.changed_at.to_string(),
    });
    let changes = transaction.changes.iter().map(|change| match change {
        Change::Put { key, value } => {
            Operation::Put { key: STANDARD.encode(key), value: STANDARD.encode(value) }
        }
        Change::Delete { key } => Operation::DeleteRange { key: STANDARD.encode(key) },
    });
    let request = TxnRequest {
        compare: compare.collect(),
        success: changes.chain([range.clone()]).collect(),
        failure: vec![range],
    };
    serde_json::to_vec(&request)
        .map_err(|error| StoreError::Refused(format!("cannot encode the transaction: {error}")))
}

/// The meaning of an answer with this HTTP status and body to `transaction`. Any answer that is not
/// understood is [`StoreError::Unknown`].
pub(super) fn answer(status: u16, body: &[u8], transaction: &Transaction) -> Result<Answer, StoreError> {
    if status == 200 {
        return success(body, transaction)
            .map_err(|cause| StoreError::Unknown(format!("the answer is not one of etcd: {cause}")));
    }
    let Ok(error) = serde_json::from_slice::<ErrorAnswer>(body) else {
        let cause = format!("HTTP status {status}: {}; is it etcd 3.4 or newer?", quote(body));
        return Err(StoreError::Unknown(cause));
    };
    let message = quote(error.message.as_bytes());
    match REFUSALS.iter().find(|(code, _)| *code == error.code) {
        Some((_, kind)) => Err(StoreError::Refused(format!("{kind}: {message}"))),
        None => Err(StoreError::Unknown(format!("{message} (gRPC code {})", error.code))),
    }
}

fn success(body: &[u8], transaction: &Transaction) -> Result<Answer, String> {
    let answer: TxnAnswer = serde_json::from_slice(body).map_err(|error| quote_text(&error.to_string()))?;
    let cluster = number("cluster_id", &answer.header.cluster_id)?;
    let revision = number("revision", &answer.header.revision)?;
    let changes = if answer.succeeded { transaction.changes.len() } else { 0 };
    if answer.responses.len() != changes + 1 {
        return Err(format!("{} responses to {} operations", answer.responses.len(), changes + 1));
    }
    let Some(OperationAnswer { response_range: Some(range) }) = answer.responses.into_iter().next_back()
    else {
        return Err("the last response is not that to the range".to_owned());
    };
    if range.more {
        return Err("the range is not complete".to_owned());
    }
    let mut entries: Vec<Entry> = Vec::with_capacity(range.kvs.len());
    for pair in range.kvs {
        let key = String::from_utf8(bytes("key", &pair.key)?)
            .map_err(|error| format!("the key {} is not UTF-8", quote(error.as_bytes())))?;
        let changed_at = number("mod_revision", &pair.mod_revision)?;
        if changed_at > revision {
            return Err(format!("mod_revision {changed_at} is after revision {revision}"));
        }
        if !key.starts_with(&transaction.prefix) {
            return Err(format!("the key {} is outside the range", quote_text(&key)));
        }
        if entries.last().is_some_and(|before| before.key >= key) {
            return Err(format!("the key {} is out of order", quote_text(&key)));
        }
        entries.push(Entry { key, value: bytes("value", &pair.value)?, changed_at });
    }
    Ok(Answer { cluster, committed: Committed { succeeded: answer.succeeded, revision, entries } })
}

/// An integer that is never zero in an answer.
fn number(field: &str, text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{field} is {}", quote_text(text))),
    }
}

fn bytes(field: &str, text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|error| format!("a {field} is not base64: {error}"))
}

fn quote(bytes: &[u8]) -> String {
    quote_text(&String::from_utf8_lossy(bytes))
}

/// A text of a server for a message of one line.
pub(super) fn quote_text(text: &str) -> String {
    let line = |character: char| if character.is_control() { ' ' } else { character };
    let mut quoted: String = text.trim().chars().take(QUOTE_MAX).map(line).collect();
    if text.trim().chars().nth(QUOTE_MAX).is_some() {
        quoted.push('…');
    }
    if quoted.is_empty() { "no message".to_owned() } else { quoted }
}
