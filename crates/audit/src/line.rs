//! A record as a line of JSON.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use vfs::{Handle, Name};

use super::Record;

/// The line of a record, without its end. `find` finds paths.
pub(super) fn of(record: &Record, mut find: impl FnMut(&Handle) -> Option<Vec<u8>>) -> String {
    let mut fields = Map::new();
    let mut add = |field: &str, value: Value| drop(fields.insert(field.to_owned(), value));
    add("time", json!(time(record.at)));
    add("client", json!(record.client));
    add("uid", json!(record.user.map(|(uid, _)| uid)));
    add("gid", json!(record.user.map(|(_, gid)| gid)));
    add("operation", json!(record.operation));
    add("export", json!(record.export.path));
    let subject = &record.subject;
    let mut path = |handle: &Handle, name: Option<&Name>| json!(find(handle).map(|at| shown(at, name)));
    if let Some(handle) = &subject.at {
        add("path", path(handle, subject.name.as_ref()));
    }
    if let Some((handle, name)) = &subject.to {
        add("to", path(handle, name.as_ref()));
    }
    for (field, value) in &subject.more {
        add(field, value.clone());
    }
    let result =
        record.result.map_or_else(|status| format!("{status:?}").to_uppercase(), |()| "OK".to_owned());
    add("result", json!(result));
    plain(&Value::Object(fields).to_string())
}

/// The same JSON, with an escape for each character that a terminal could obey: names are chosen by clients.
/// Letters and digits of all scripts stay.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        if c.is_alphanumeric() || (c.is_ascii() && !c.is_control()) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// A path as text. Bytes that are not UTF-8 are written `\xHH`, and a backslash `\\`.
fn shown(mut at: Vec<u8>, name: Option<&Name>) -> String {
    if let Some(name) = name {
        if at.last() != Some(&b'/') {
            at.push(b'/');
        }
        at.extend_from_slice(name.as_bytes());
    }
    let mut text = String::with_capacity(at.len());
    for chunk in at.utf8_chunks() {
        text.push_str(&chunk.valid().replace('\\', "\\\\"));
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02X}");
        }
    }
    text
}

/// `2026-11-26T07:04:00.123Z` (RFC 3339).
fn time(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let [year, month, day, hour, minute, second] = vfs::civil(since.as_secs());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        let at =
            |seconds: u64, millis: u64| time(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + millis));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400, 7), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_795_676_643, 999), "2026-11-26T07:04:03.999Z");
        assert_eq!(at(4_102_444_799, 0), "2099-12-31T23:59:59.000Z");
    }

    #[test]
    fn a_line_is_json_that_no_terminal_obeys() {
        let name = "ünï\u{202e}\u{9b}\u{7f}\n😀";
        let line = plain(&json!({ "path": name }).to_string());
        assert!(!line.contains(['\u{202e}', '\u{9b}', '\u{7f}', '\n']) && line.contains("ünï"), "{line}");
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["path"], name);
    }

    #[test]
    fn a_path_is_text_on_one_line() {
        let name = Name::new(b"a\n\xff\\").unwrap();
        assert_eq!(shown(b"/".to_vec(), Some(&name)), "/a\n\\xFF\\\\");
        assert_eq!(shown(b"/d".to_vec(), Some(&name)), "/d/a\n\\xFF\\\\");
        assert_eq!(shown(b"/d".to_vec(), None), "/d");
    }
}
