//! How documents and comments read: the part of the house style that a program can check.
//!
//! Over every Markdown file and every comment of the workspace:
//! - a sentence of a document has at most [`WORDS_MAX`] words,
//! - a line of prose has at most [`COLUMNS_MAX`] columns (tables, code and links excepted),
//! - no sentence has "Who …" or "What is …" as its subject: a noun does something,
//! - a concept has the word that docs/glossary.md gives it, and none of those in [`INSTEAD`].

use std::path::Path;

/// Most words of a sentence.
const WORDS_MAX: usize = 30;
/// Most columns of a line.
const COLUMNS_MAX: usize = 110;
/// Beginnings of sentences in which a clause stands where a noun should stand.
const CLAUSES: [&str; 12] = [
    "Who ",
    "Whoever ",
    "What is ",
    "What was ",
    "What has ",
    "What comes ",
    "What the ",
    "Whatever is ",
    "That which ",
    "Of a ",
    "Of what ",
    "Of several ",
];
/// Words that do not name a concept, and the word that does.
const INSTEAD: [(&str, &str); 13] = [
    ("granule", "timestamp granularity"),
    ("granules", "timestamp granularity"),
    ("farewell", "return all"),
    ("asker", "requester"),
    ("askers", "requesters"),
    ("whoever", "the client, the holder, the caller"),
    ("last life", "earlier incarnation"),
    ("next life", "next incarnation"),
    ("life before", "earlier incarnation"),
    ("no room", "no capacity, no space"),
    ("make room", "free capacity, free space"),
    ("makes room", "frees capacity, frees space"),
    ("rides on", "is piggybacked on"),
];

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Prose with code in it.
    Markdown,
    /// Code with prose in its comments.
    Rust,
}

/// Faults of one file, as `file:line: what`.
pub fn faults_of(name: &Path, text: &str, kind: Kind) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |line: usize, what: String| faults.push(format!("{}:{line}: {what}", name.display()));
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        fenced ^= comment(line).unwrap_or(line).starts_with("```");
        if !fenced && is_prose(line, kind) && line.chars().count() > COLUMNS_MAX {
            fault(index + 1, format!("more than {COLUMNS_MAX} columns: wrap the line"));
        }
    }
    for (line, block) in blocks(text, kind) {
        for sentence in sentences(&block) {
            let words = sentence.split_whitespace().count();
            if kind == Kind::Markdown && words > WORDS_MAX {
                fault(line, format!("{words} words in a sentence: split it: {}", beginning(sentence)));
            }
            if CLAUSES.iter().any(|clause| sentence.starts_with(clause)) && !sentence.ends_with('?') {
                fault(line, format!("a clause is the subject: name the actor: {}", beginning(sentence)));
            }
        }
        let lower = block.to_lowercase();
        for (word, instead) in INSTEAD {
            if has_phrase(&lower, word) {
                fault(line, format!("\"{word}\": docs/glossary.md has another word: {instead}"));
            }
        }
    }
    faults
}

fn beginning(sentence: &str) -> String {
    sentence.chars().take(60).collect::<String>() + "…"
}

/// May the line be wrapped? Not a table, a heading, code, a picture or a lone link.
fn is_prose(line: &str, kind: Kind) -> bool {
    let text = match kind {
        Kind::Markdown if line.starts_with("    ") => return false,
        Kind::Markdown => line.trim_start(),
        Kind::Rust => match comment(line) {
            Some(text) => text,
            None => return false,
        },
    };
    !text.starts_with(['|', '#', '`', '<', '[']) && !text.contains("://") && text.contains(' ')
}

/// The text of a line that is a comment alone.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

/// Paragraphs with the number of their first line. Code in backticks counts as one word.
fn blocks(text: &str, kind: Kind) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let (mut open, mut fenced) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let prose = match kind {
            Kind::Markdown if line.starts_with("    ") && !open => None,
            Kind::Markdown => Some(line.trim()),
            Kind::Rust => comment(line),
        };
        let Some(prose) = prose else {
            open = false;
            continue;
        };
        fenced ^= prose.starts_with("```");
        if fenced || prose.is_empty() || prose.starts_with(['|', '#', '<', '`']) && !open {
            open = false;
            continue;
        }
        let begins_item = prose.starts_with("- ") || prose.starts_with(|digit: char| digit.is_ascii_digit());
        match blocks.last_mut().filter(|_| open && !begins_item) {
            Some((_, block)) => {
                block.push(' ');
                block.push_str(prose);
            }
            None => blocks.push((index + 1, prose.to_owned())),
        }
        open = true;
    }
    for (_, block) in &mut blocks {
        *block = without_code(block);
    }
    blocks
}

fn without_code(block: &str) -> String {
    let parts = block.split('`').enumerate();
    parts.map(|(index, part)| if index % 2 == 0 { part } else { "x" }).collect()
}

/// Splits behind `.`, `?`, `!` or `:` where a space and the beginning of a sentence follow.
fn sentences(block: &str) -> Vec<&str> {
    let (mut sentences, mut from) = (Vec::new(), 0);
    let begins =
        |rest: &str| rest.starts_with(|first: char| first.is_uppercase() || "x*[(\"".contains(first));
    for (at, _) in block.match_indices(['.', '?', '!', ':']) {
        let end = at + 1;
        if let Some(rest) = block[end..].strip_prefix(' ')
            && begins(rest)
        {
            sentences.push(block[from..end].trim());
            from = end;
        }
    }
    sentences.push(block[from..].trim());
    sentences
}

fn has_phrase(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        ![before, after].into_iter().flatten().any(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use super::{Kind, faults_of};
    use std::path::Path;

    fn faults(text: &str, kind: Kind) -> usize {
        faults_of(Path::new("a"), text, kind).len()
    }

    #[test]
    fn each_rule_finds_its_fault_in_documents() {
        let faults = |text: &str| faults(text, Kind::Markdown);
        assert_eq!(faults("The proxy holds the WRITE until the holder returns the lease.\n"), 0);
        assert_eq!(faults(&format!("The {}proxy.\n", "very ".repeat(30))), 2, "words and columns");
        assert_eq!(faults(&format!("The\n{}proxy.\n", "very\n".repeat(30))), 1, "a paragraph is one text");
        assert_eq!(faults(&format!("| The {}proxy. |\n", "very ".repeat(30))), 0, "tables are no prose");
        assert_eq!(faults(&format!("```\nThe {}proxy.\n```\n", "very ".repeat(30))), 0, "nor is code");
        assert_eq!(faults("Who waits is answered at once.\n"), 1);
        assert_eq!(faults("It ends. What is delayed goes first.\n"), 1);
        assert_eq!(faults("The asker waits.\n"), 1);
        assert_eq!(faults("The `asker` waits, and the basker too.\n"), 0);
    }

    #[test]
    fn comments_are_checked_and_code_is_not() {
        let faults = |text: &str| faults(text, Kind::Rust);
        assert_eq!(faults("/// The client waits for a granule.\nfn granule() {}\n"), 1);
        assert_eq!(faults("let asker = \"a farewell\";\n"), 0);
        assert_eq!(faults(&format!("    // {}\n", "word ".repeat(30))), 1);
    }
}
