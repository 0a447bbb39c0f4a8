//! A record as a line of JSON.
//!
//! Names are chosen by clients, so each character that a terminal could obey is escaped. Letters and digits
//! of all scripts stay.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use vfs::{SetAttributes, Share};

use super::paths::Paths;
use super::record::{Detail, Record};

/// Beginnings that are kept.
const BEGINNINGS_MAX: usize = 1024;

/// The parts of lines that are the same in many of them.
#[derive(Default)]
pub(super) struct Lines {
    /// The last second that a record was made in, and its text without the end.
    second: (u64, String),
    /// Beginnings, and where their texts are.
    beginnings: foldhash::HashMap<Beginning, usize>,
    texts: Vec<String>,
    /// The last one of these.
    last: Option<(Beginning, usize)>,
}

/// A client, a user and group, an operation, and the number of an export.
type Beginning = (Option<IpAddr>, Option<(u32, u32)>, &'static str, u64);

impl Lines {
    /// Writes the line of a record to the end of `out`.
    pub(super) fn push(&mut self, out: &mut String, record: &Record, paths: &mut Paths) {
        out.push_str("{\"time\":\"");
        self.push_time(out, record.at);
        out.push_str(self.beginning(record));
        push_files(out, record, paths);
        push_detail(out, &record.subject.detail);
        if record.times > 1 {
            out.push_str(",\"times\":");
            out.push_str(itoa::Buffer::new().format(record.times));
        }
        match record.result {
            Ok(()) => out.push_str(",\"result\":\"OK\"}\n"),
            Err(status) => {
                let status = format!("{status:?}").to_uppercase();
                // Writing to a string cannot fail, here and below.
                let _ = writeln!(out, ",\"result\":\"{status}\"}}");
            }
        }
    }

    /// From the end of the time to the path.
    fn beginning(&mut self, record: &Record) -> &str {
        let Record { client, user, operation, ref export, .. } = *record;
        let key = (client, user, operation, export.number);
        let at = match self.last {
            Some((last, at)) if last == key => at,
            _ => self.find(key, &export.of.path),
        };
        self.last = Some((key, at));
        &self.texts[at]
    }

    /// Where the text of a beginning is.
    fn find(&mut self, key: Beginning, path: &str) -> usize {
        if let Some(at) = self.beginnings.get(&key) {
            return *at;
        }
        if self.texts.len() >= BEGINNINGS_MAX {
            self.beginnings.clear();
            self.texts.clear();
        }
        let (client, user, operation, _) = key;
        let null = || "null".to_owned();
        let client = client.map_or_else(null, |client| format!("\"{client}\""));
        let uid = user.map_or_else(null, |(uid, _)| uid.to_string());
        let gid = user.map_or_else(null, |(_, gid)| gid.to_string());
        let mut text = format!(
            "Z\",\"client\":{client},\"uid\":{uid},\"gid\":{gid},\"operation\":\"{operation}\",\"export\":\""
        );
        push_plain(&mut text, path);
        text.push('"');
        self.texts.push(text);
        self.beginnings.insert(key, self.texts.len() - 1);
        self.texts.len() - 1
    }

    /// `2026-11-26T07:04:00.123`, the beginning of a time of RFC 3339.
    fn push_time(&mut self, out: &mut String, at: SystemTime) {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.second.1.is_empty() || self.second.0 != since.as_secs() {
            let [year, month, day, hour, minute, second] = vfs::civil(since.as_secs());
            let text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.");
            self.second = (since.as_secs(), text);
        }
        out.push_str(&self.second.1);
        // The leading zeros of three digits.
        let milliseconds = since.subsec_millis();
        out.push_str(["00", "0", ""][usize::from(milliseconds > 9) + usize::from(milliseconds > 99)]);
        out.push_str(itoa::Buffer::new().format(milliseconds));
    }
}

fn push_files(out: &mut String, record: &Record, paths: &mut Paths) {
    let mut file = |field: &str, handle, name: Option<&vfs::Name>| {
        out.push_str(field);
        let Some(path) = paths.of(&record.export, handle) else { return out.push_str("null") };
        out.push('"');
        out.push_str(path);
        if let Some(name) = name {
            if !path.ends_with('/') {
                out.push('/');
            }
            push_path(out, name.as_bytes());
        }
        out.push('"');
    };
    let subject = &record.subject;
    file(",\"path\":", &subject.at, subject.name.as_ref());
    if let Some(to) = &subject.to {
        file(",\"to\":", &to.0, to.1.as_ref());
    }
}

fn push_detail(out: &mut String, detail: &Detail) {
    match detail {
        Detail::None => {}
        Detail::Range { offset, count } => {
            out.push_str(",\"offset\":");
            out.push_str(itoa::Buffer::new().format(*offset));
            out.push_str(",\"count\":");
            out.push_str(itoa::Buffer::new().format(*count));
        }
        Detail::Set(set) => push_set(out, set),
        Detail::Target(target) => push_text(out, ",\"target\":\"", &String::from_utf8_lossy(target)),
        Detail::Open { access, created } => {
            let access = if access.contains(Share::WRITE) { "write" } else { "read" };
            push_text(out, ",\"access\":\"", access);
            if *created {
                out.push_str(",\"created\":true");
            }
        }
        Detail::Attribute(name) => {
            push_text(out, ",\"attribute\":\"", &String::from_utf8_lossy(name.as_bytes()));
        }
    }
}

/// The attributes that are set. A time is only named.
fn push_set(out: &mut String, set: &SetAttributes) {
    out.push_str(",\"set\":{");
    let first = out.len();
    if let Some(mode) = set.mode {
        let _ = write!(out, "\"mode\":\"{mode:04o}\",");
    }
    let numbers = [("uid", set.uid.map(u64::from)), ("gid", set.gid.map(u64::from)), ("size", set.size)];
    for (field, number) in numbers {
        if let Some(number) = number {
            let _ = write!(out, "\"{field}\":{number},");
        }
    }
    for (field, is_set) in [("atime", set.atime.is_some()), ("mtime", set.mtime.is_some())] {
        if is_set {
            let _ = write!(out, "\"{field}\":true,");
        }
    }
    if out.len() > first {
        out.pop();
    }
    out.push('}');
}

fn push_text(out: &mut String, field: &str, text: &str) {
    out.push_str(field);
    push_plain(out, text);
    out.push('"');
}

/// A path as JSON without the quotes. Bytes that are not UTF-8 are written `\xHH`, and a backslash `\\`; JSON
/// doubles both backslashes.
pub(super) fn push_path(out: &mut String, path: &[u8]) {
    for chunk in path.utf8_chunks() {
        for (index, part) in chunk.valid().split('\\').enumerate() {
            if index > 0 {
                out.push_str(r"\\\\");
            }
            push_plain(out, part);
        }
        for byte in chunk.invalid() {
            let _ = write!(out, r"\\x{byte:02X}");
        }
    }
}

/// Text as JSON without the quotes (RFC 8259, section 7).
fn push_plain(out: &mut String, text: &str) {
    let is_plain = |byte: &u8| (b' '..0x7f).contains(byte) && !matches!(byte, b'"' | b'\\');
    if text.as_bytes().iter().all(is_plain) {
        return out.push_str(text);
    }
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
            out.push(c);
        } else if c.is_alphanumeric() || (c.is_ascii() && !c.is_control()) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::Value;

    use super::*;

    #[test]
    fn times_are_those_of_rfc_3339() {
        let mut lines = Lines::default();
        let mut at = |seconds: u64, millis: u64| {
            let mut text = String::new();
            lines.push_time(&mut text, UNIX_EPOCH + Duration::from_millis(seconds * 1000 + millis));
            text
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000");
        assert_eq!(at(0, 70), "1970-01-01T00:00:00.070");
        assert_eq!(at(951_782_400, 7), "2000-02-29T00:00:00.007");
        assert_eq!(at(1_795_676_643, 999), "2026-11-26T07:04:03.999");
        assert_eq!(at(4_102_444_799, 0), "2099-12-31T23:59:59.000");
    }

    fn json(push: impl FnOnce(&mut String)) -> (String, Value) {
        let mut line = "\"".to_owned();
        push(&mut line);
        line.push('"');
        let value = serde_json::from_str(&line).expect("JSON");
        (line, value)
    }

    #[test]
    fn text_is_json_that_no_terminal_obeys() {
        let name = "ünï\u{202e}\u{9b}\u{7f}\n\"\\😀";
        let (line, value) = json(|out| push_plain(out, name));
        assert!(!line.contains(['\u{202e}', '\u{9b}', '\u{7f}', '\n']) && line.contains("ünï"), "{line}");
        assert_eq!(value, name);
    }

    #[test]
    fn a_path_is_text_on_one_line() {
        let path = |bytes: &[u8]| json(|out| push_path(out, bytes)).1;
        assert_eq!(path(b"/d/a\n\xff\\"), "/d/a\n\\xFF\\\\");
        assert_eq!(path(b"/d\"\\\xe2\x80x"), "/d\"\\\\\\xE2\\x80x");
        assert_eq!(path("/ä\u{9b}".as_bytes()), "/ä\u{9b}");
    }

    #[test]
    fn attributes_that_are_set_are_an_object() {
        let object = |set: &SetAttributes| {
            let mut text = "{\"path\":null".to_owned();
            push_set(&mut text, set);
            text.push('}');
            serde_json::from_str::<Value>(&text).expect("JSON")["set"].take()
        };
        assert_eq!(object(&SetAttributes::default()), serde_json::json!({}));
        let mtime = Some(vfs::SetTime::Server);
        let set = SetAttributes { mode: Some(0o640), size: Some(5), mtime, ..SetAttributes::default() };
        assert_eq!(object(&set), serde_json::json!({ "mode": "0640", "size": 5, "mtime": true }));
    }
}
