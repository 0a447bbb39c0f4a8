//! Paths in JSON and on the screen: control characters and bytes that are not UTF-8 are written `\xHH`, a
//! backslash `\\`.

/// Writes a path as text that [`read`] turns back into the same path.
pub fn show(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() => c.to_string().bytes().for_each(|byte| escape(&mut text, byte)),
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| escape(&mut text, *byte));
    }
    text
}

fn escape(text: &mut String, byte: u8) {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or_default();
    text.extend(['\\', 'x', digit(byte >> 4), digit(byte & 15)]);
}

/// The path that a text stands for. A backslash that begins no escape stands for itself, and so do bytes
/// that are not UTF-8.
pub fn read(text: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = text.as_ref();
    let mut path = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let hex = rest.get(2..4).and_then(|hex| std::str::from_utf8(hex).ok());
        let escaped =
            hex.filter(|_| rest.starts_with(b"\\x")).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(escaped) = escaped {
            path.push(escaped);
            at += 4;
        } else if rest.starts_with(b"\\\\") {
            path.push(b'\\');
            at += 2;
        } else {
            path.push(*byte);
            at += 1;
        }
    }
    path
}

/// A path with one slash before each component and none after the last.
pub fn tidy(path: &[u8]) -> Vec<u8> {
    let components = path.split(|byte| *byte == b'/').filter(|component| !component.is_empty());
    let tidy = components.fold(Vec::new(), |path, component| [&path, &b"/"[..], component].concat());
    if tidy.is_empty() { b"/".to_vec() } else { tidy }
}

/// The path of a child.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    while path.last() == Some(&b'/') {
        path.pop();
    }
    path.push(b'/');
    path.extend_from_slice(name);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_come_back() {
        for path in
            [&b"/a/b c"[..], b"/caf\xc3\xa9", b"/\xff\xfe", b"/a\\b", b"/a\\x41", b"/new\nline\x7f", b"/"]
        {
            let text = show(path);
            assert!(!text.chars().any(char::is_control), "{text}");
            assert_eq!(read(&text), path, "{text}");
        }
        assert_eq!(show("/café".as_bytes()), "/café");
        assert_eq!(read("/what\\ever\\x4"), b"/what\\ever\\x4");
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(read(show(&all)), all);
    }

    #[test]
    fn children_are_below() {
        assert_eq!(join(b"/", b"a"), b"/a");
        assert_eq!(join(b"", b"a"), b"/a");
        assert_eq!(join(b"/d/", b"a"), b"/d/a");
        assert_eq!(
            [&b""[..], b"//", b"a//b/", b"/a"].map(tidy),
            [&b"/"[..], b"/", b"/a/b", b"/a"].map(<[u8]>::to_vec)
        );
    }
}
