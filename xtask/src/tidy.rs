//! House rules that neither the compiler nor clippy knows.
//!
//! Over every Rust file of the workspace: at most 700 lines; a header comment that says what the module is;
//! `unsafe` in `sys.rs` alone; no `unwrap()` outside tests; no ignored test; no notes to self. [`circles`]
//! checks how the modules of a crate import each other.

use crate::circles;
use crate::promises;
use crate::prose::{self, Kind};
use crate::steps::root;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Most lines a file has.
const LINES_MAX: usize = 700;
/// Where Rust files are.
const PLACES: [&str; 3] = ["crates", "xtask", "fuzz"];
/// Words that stand for work not done. They are put together here so that this file does not hold them.
const NOTES_TO_SELF: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
/// What code looks like that the compiler does not check.
const UNSAFE: [&str; 5] = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe("];

/// The attribute of a test that does not run.
const IGNORED: &str = concat!("#[", "ignore");

/// Checks the workspace and prints what is wrong, as `file:line: what`.
pub fn run() -> bool {
    let root = root();
    let mut files = Vec::new();
    for place in PLACES {
        if let Err(error) = rust_files(&root.join(place), &mut files) {
            eprintln!("{place}: {error}");
            return false;
        }
    }
    files.sort();
    let mut faults = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap_or(file);
        match fs::read_to_string(file) {
            Ok(text) => {
                faults.extend(faults_of(name, &text));
                faults.extend(prose::faults_of(name, &text, Kind::Rust));
            }
            Err(error) => faults.push(format!("{}: {error}", name.display())),
        }
    }
    faults.extend(circles::faults());
    let documents = documents(&root, &mut faults);
    for fault in &faults {
        eprintln!("{fault}");
    }
    eprintln!("{} files, {documents} documents, {} faults", files.len(), faults.len());
    promises::check() && faults.is_empty()
}

/// Checks how the documents read. Returns their number.
fn documents(root: &Path, faults: &mut Vec<String>) -> usize {
    let mut files = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    if let Err(error) = files_below(&root.join("docs"), "md", &mut files) {
        faults.push(format!("docs: {error}"));
    }
    files.sort();
    for file in &files {
        let name = file.strip_prefix(root).unwrap_or(file);
        match fs::read_to_string(file) {
            Ok(text) => faults.extend(prose::faults_of(name, &text, Kind::Markdown)),
            Err(error) => faults.push(format!("{}: {error}", name.display())),
        }
    }
    files.len()
}

/// All Rust files below a directory.
pub fn rust_files(directory: &Path, to: &mut Vec<PathBuf>) -> io::Result<()> {
    files_below(directory, "rs", to)
}

fn files_below(directory: &Path, wanted: &str, to: &mut Vec<PathBuf>) -> io::Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                files_below(&path, wanted, to)?;
            }
        } else if path.extension().is_some_and(|extension| extension == wanted) {
            to.push(path);
        }
    }
    Ok(())
}

fn faults_of(name: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |line: usize, what: String| faults.push(format!("{}:{line}: {what}", name.display()));
    let count = text.lines().count();
    if count > LINES_MAX {
        fault(count, format!("{count} lines, the limit is {LINES_MAX}: split the file by ideas"));
    }
    let head = text.lines().find(|line| !line.starts_with("#![")).unwrap_or("");
    if !head.starts_with("//!") {
        fault(1, "no header: say with //! what this module models and assumes".to_owned());
    }
    let may_be_unsafe = name.file_name().is_some_and(|file| file == "sys.rs") || within(name, "sys");
    let tests_from = tests_begin_at(name, text);
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        if let Some(word) = NOTES_TO_SELF.iter().find(|word| has_word(line, word)) {
            fault(index + 1, format!("{word}: do it, or write an issue"));
        }
        if !may_be_unsafe && UNSAFE.iter().any(|form| code.contains(form)) && !code.contains('"') {
            fault(index + 1, "unsafe outside sys.rs".to_owned());
        }
        if code.trim_start().starts_with(IGNORED) {
            fault(index + 1, "an ignored test: CI takes none; make a measurement a bench".to_owned());
        }
        if index < tests_from && code.contains(".unwrap()") && !code.contains('"') {
            fault(index + 1, "unwrap() outside tests: say what happens instead".to_owned());
        }
    }
    faults
}

/// The line from which a file is tests: all of a test's file, or from `#[cfg(test)]` before a module with a
/// body.
fn tests_begin_at(name: &Path, text: &str) -> usize {
    let is_test_file = ["tests", "benches", "examples"].into_iter().any(|place| within(name, place))
        || name.ends_with("tests.rs");
    if is_test_file {
        return 0;
    }
    let lines: Vec<&str> = text.lines().collect();
    let begins = |pair: &[&str]| {
        pair[0].trim() == "#[cfg(test)]" && pair[1].contains("mod ") && pair[1].ends_with('{')
    };
    lines.windows(2).position(begins).unwrap_or(lines.len())
}

fn within(name: &Path, directory: &str) -> bool {
    name.parent().is_some_and(|parent| parent.components().any(|part| part.as_os_str() == directory))
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        ![before, after]
            .into_iter()
            .flatten()
            .any(|neighbour| neighbour.is_alphanumeric() || neighbour == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::faults_of;
    use std::path::Path;

    fn faults(name: &str, text: &str) -> usize {
        faults_of(Path::new(name), text).len()
    }

    #[test]
    fn each_rule_finds_its_fault() {
        let name = "crates/a/src/b.rs";
        assert_eq!(faults(name, "//! Good.\nfn f() {}\n"), 0);
        assert_eq!(faults(name, "fn f() {}\n"), 1);
        assert_eq!(faults(name, "//! Good.\nfn f() { g().unwrap(); }\n"), 1);
        assert_eq!(
            faults(name, "//! Good.\n#[cfg(test)]\nmod tests {\n    fn f() { g().unwrap(); }\n}\n"),
            0
        );
        assert_eq!(faults("crates/a/tests/b.rs", "//! Good.\nfn f() { g().unwrap(); }\n"), 0);
        let unchecked = concat!("//! Good.\nfn f() { un", "safe { g() } }\n");
        assert_eq!(faults(name, unchecked), 1);
        assert_eq!(faults("crates/a/src/sys.rs", unchecked), 0);
        assert_eq!(faults(name, concat!("//! Good.\n// TO", "DO later\n")), 1);
        assert_eq!(faults(name, concat!("//! Good.\n#[test]\n#[", "ignore = \"slow\"]\nfn f() {}\n")), 1);
        assert_eq!(faults(name, &"//! Long.\n".repeat(701)), 1);
    }
}
