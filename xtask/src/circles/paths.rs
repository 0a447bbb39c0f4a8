//! The paths in a Rust file that begin at the root of its crate. A small reader: it knows words, signs,
//! groups and attributes, and no more of the language.

use std::collections::{BTreeMap, BTreeSet};

/// A word or a sign of Rust code.
#[derive(Debug, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

/// A file without its tests.
pub(super) struct Read {
    tokens: Vec<Token>,
    /// Modules in files of their own that are tests.
    pub(super) test_modules: Vec<String>,
    /// How many `super` lead to the root.
    depth: usize,
}

impl Read {
    pub(super) fn of(text: &str, depth: usize) -> Read {
        let mut read = Read { tokens: Vec::new(), test_modules: Vec::new(), depth };
        let all = tokens(text);
        let mut at = 0;
        while at < all.len() {
            if all[at].text == "#" {
                let end = after_group(&all, at + 1);
                let attribute = &all[at..end];
                let has = |word: &str| attribute.iter().any(|token| token.text == word);
                if has("cfg") && has("test") && !has("not") {
                    let item_end = after_item(&all, end);
                    let item = &all[end..item_end];
                    if let Some([_, name, _]) =
                        item.windows(3).find(|of| of[0].text == "mod" && of[2].text == ";")
                    {
                        read.test_modules.push(name.text.clone());
                    }
                    at = item_end;
                    continue;
                }
                at = end;
                continue;
            }
            read.tokens.push(Token { text: all[at].text.clone(), line: all[at].line });
            at += 1;
        }
        read
    }

    /// The items of the crate's root that the file names, with their lines. In the root itself these are
    /// all paths that begin with a component.
    pub(super) fn of_root(&self, is_root: bool, components: &BTreeSet<String>) -> Vec<(&str, usize)> {
        let text = |at: usize| self.tokens.get(at).map_or("", |token| token.text.as_str());
        let mut found = Vec::new();
        for at in 0..self.tokens.len() {
            if at > 0 && text(at - 1) == "::" {
                continue;
            }
            if is_root && text(at + 1) == "::" && components.contains(text(at)) {
                found.push((text(at), self.tokens[at].line));
            }
            let mut next = at;
            let reaches_root = if text(at) == "crate" && text(at + 1) == "::" {
                next += 2;
                true
            } else {
                while text(next) == "super" && text(next + 1) == "::" {
                    next += 2;
                }
                next > at && (next - at) / 2 == self.depth
            };
            if reaches_root {
                self.names_at(next, &mut found);
            }
        }
        found
    }

    /// The items that the root re-exports, with the component of each.
    pub(super) fn re_exports(&self) -> BTreeMap<String, String> {
        let mut moved = BTreeMap::new();
        let mut rest = self.tokens.iter().map(|token| token.text.as_str());
        while rest.by_ref().any(|text| text == "use") {
            let mut names = rest.by_ref().take_while(|text| *text != ";").filter(|text| is_name(text));
            let Some(component) = names.find(|name| *name != "crate") else { continue };
            moved.extend(names.map(|name| (name.to_owned(), component.to_owned())));
        }
        moved
    }

    /// The names that a path goes on with: one, or those of a group.
    fn names_at<'s>(&'s self, at: usize, found: &mut Vec<(&'s str, usize)>) {
        let Some(first) = self.tokens.get(at) else { return };
        if is_name(&first.text) {
            found.push((&first.text, first.line));
        }
        if first.text != "{" {
            return;
        }
        let end = after_group(&self.tokens, at).saturating_sub(1);
        let mut depth = 0;
        let mut begins = true;
        for token in &self.tokens[at + 1..end] {
            match token.text.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                "," if depth == 0 => begins = true,
                name if depth == 0 && begins && is_name(name) => {
                    begins = false;
                    found.push((name, token.line));
                }
                _ => {}
            }
        }
    }
}

/// The index after the group that opens at `at`, or after that one token.
fn after_group(tokens: &[Token], at: usize) -> usize {
    let mut depth = 0usize;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 && token.text != "!" {
            return index + 1;
        }
    }
    tokens.len()
}

/// The index after an item, statement, field, variant or arm.
fn after_item(tokens: &[Token], mut at: usize) -> usize {
    const ITEMS: [&str; 9] = ["fn", "mod", "impl", "struct", "enum", "trait", "use", "static", "const"];
    let is_item = tokens[at..].iter().take(5).any(|token| ITEMS.contains(&token.text.as_str()));
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            ")" | "]" | "}" => return at,
            "{" => {
                let end = after_group(tokens, at);
                // The braces of a `use` end before its semicolon.
                return if tokens.get(end).is_some_and(|next| next.text == ";") { end + 1 } else { end };
            }
            "(" | "[" => at = after_group(tokens, at),
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            _ => at += 1,
        }
    }
    at
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_alphabetic() || first == '_') && text != "self" && text != "as"
}

/// The tokens of a text, without comments, literals of text, and lifetimes.
fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = literal_or_comment(rest).unwrap_or_else(|| {
            let is_word = |part: char| part.is_alphanumeric() || part == '_';
            let length = if is_word(first) {
                rest.find(|part| !is_word(part)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            if !first.is_whitespace() {
                tokens.push(Token { text: rest[..length].to_owned(), line });
            }
            length
        });
        line += rest[..taken].matches('\n').count();
        rest = &rest[taken..];
    }
    tokens
}

/// The length of the comment, literal or lifetime at the beginning, if there is one.
fn literal_or_comment(rest: &str) -> Option<usize> {
    let until = |end: &str, from: usize| {
        rest.get(from..).and_then(|rest| rest.find(end)).map_or(rest.len(), |at| from + at + end.len())
    };
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(until("*/", 2));
    }
    let prefix = ["br", "cr", "b", "c", "r"].into_iter().find(|prefix| {
        let behind = rest.strip_prefix(prefix).unwrap_or("");
        let hashes = behind.trim_start_matches('#');
        hashes.starts_with('"') && (hashes.len() == behind.len() || prefix.ends_with('r'))
    });
    let behind = &rest[prefix.map_or(0, str::len)..];
    if prefix.is_some_and(|prefix| prefix.ends_with('r')) {
        let hashes = behind.len() - behind.trim_start_matches('#').len();
        let begin = rest.len() - behind.len() + hashes + 1;
        return Some(until(&format!("\"{}", "#".repeat(hashes)), begin));
    }
    if behind.starts_with('"') {
        return Some(after_quoted(rest, rest.len() - behind.len(), '"'));
    }
    let mut of_char = rest.strip_prefix('\'')?.chars();
    let (first, second) = (of_char.next()?, of_char.next());
    if first == '\\' || second == Some('\'') {
        return Some(after_quoted(rest, 0, '\''));
    }
    // A lifetime.
    Some(1 + rest[1..].find(|part: char| !part.is_alphanumeric() && part != '_').unwrap_or(rest.len() - 1))
}

/// The index after the literal whose opening quote is at `at`.
fn after_quoted(text: &str, at: usize, quote: char) -> usize {
    let mut escaped = false;
    for (index, part) in text.char_indices().skip_while(|(index, _)| *index <= at) {
        match part {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            part if part == quote => return index + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of the root that a file of this depth imports.
    fn of_root(depth: usize, text: &str) -> Vec<String> {
        let read = Read::of(text, depth);
        read.of_root(false, &BTreeSet::new()).into_iter().map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn paths_from_the_root_are_found() {
        let text = "use crate::a::{B, C};\nuse crate::{d::E, f::{self, g}, H};\nfn i() { crate::j::k(); }";
        assert_eq!(of_root(1, text), ["a", "d", "f", "H", "j"]);
        assert_eq!(of_root(1, "use super::a::B; use super::super::c;"), ["a"]);
        assert_eq!(of_root(2, "use super::a::B; use super::super::{c, d};"), ["c", "d"]);
        assert_eq!(of_root(1, "pub(in crate::a) fn b() {}"), ["a"]);
    }

    #[test]
    fn comments_and_literals_are_left_out() {
        let text = "// crate::a\n/* crate::b */ const C: &str = \"crate::d \\\" crate::e\";
            const F: &str = r#\"crate::g\"#; fn h<'i>(j: &'i u8) -> char { 'k'; '\\''; b'\"'; crate::l }";
        assert_eq!(of_root(1, text), ["l"]);
    }

    #[test]
    fn tests_are_left_out() {
        let text =
            "#[cfg(test)]\nuse crate::a::{B};\n#[cfg(any(test, feature = \"c\"))]\n#[path = \"d\"]\nmod d;
            #[cfg(test)]\nmod e { use crate::f; fn g() { {} } }\n#[cfg(not(test))]\nuse crate::h;
            fn i() { match j { #[cfg(test)]\n J(k) => drop(crate::l, k), _ => crate::m } }";
        assert_eq!(of_root(1, text), ["h", "m"]);
        assert_eq!(Read::of(text, 1).test_modules, ["d"]);
    }

    #[test]
    fn the_root_names_its_components_and_what_it_re_exports() {
        let read = Read::of("pub use a::{B, c::D};\nuse crate::e::F;\nfn g() { a::h(); i::j::a::k(); }", 0);
        let components = ["a", "e"].into_iter().map(str::to_owned).collect();
        let found: Vec<_> = read.of_root(true, &components).into_iter().collect();
        assert_eq!(found, [("a", 1), ("e", 2), ("a", 3)]);
        let moved = read.re_exports();
        assert_eq!(moved.get("D").map(String::as_str), Some("a"));
        assert_eq!(moved.get("F").map(String::as_str), Some("e"));
    }
}
