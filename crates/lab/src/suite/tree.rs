//! A source tree for copy tests: a C program of 24 modules among other files, identical in every run.
//!
//! make and gcc build it, and the program prints a number that is known here.

use crate::rng::Rng;
use crate::session::Lab;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// Translation units.
const MODULES: usize = 24;
/// Entries per table.
const TABLE_ENTRIES: usize = 16;

/// How many files a tree has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// 200, for tests that do many things with each.
    Small,
    /// 544.
    Large,
}

impl Size {
    /// Headers with one table each.
    const fn tables(self) -> usize {
        match self {
            Size::Small => 2 * MODULES,
            Size::Large => 8 * MODULES,
        }
    }

    /// Text files of all sizes.
    const fn documents(self) -> usize {
        match self {
            Size::Small => 100,
            Size::Large => 300,
        }
    }
}

/// Writes the tree to `tree` in the lab's directory, and the checksums of its files to `tree.sha256`, once
/// per test.
pub fn provide(lab: &Lab, size: Size) {
    let root = lab.directory().join("tree");
    if root.exists() {
        return;
    }
    let made = generate(&root, size).and_then(|()| checksum(&root, &lab.directory().join("tree.sha256")));
    made.unwrap_or_else(|error| panic!("lab: cannot make the source tree in {}: {error}", root.display()));
}

/// Writes the tree to `root`, which must not exist.
pub fn generate(root: &Path, size: Size) -> io::Result<()> {
    let mut rng = Rng::new(1985);
    let tables = write_tables(root, &mut rng, size.tables())?;
    let answer = write_modules(root, &mut rng, &tables)?;
    write_documents(root, &mut rng, size.documents())?;
    fs::write(root.join("ANSWER"), format!("{answer}\n"))?;
    fs::write(root.join("configure"), "#!/bin/sh\necho nothing to configure\n")?;
    fs::set_permissions(root.join("configure"), fs::Permissions::from_mode(0o755))?;
    symlink("doc/chapter-00/text-000.txt", root.join("README"))
}

/// Writes headers `tables/tNNN.h`; returns the sum of each table.
fn write_tables(root: &Path, rng: &mut Rng, count: usize) -> io::Result<Vec<u64>> {
    fs::create_dir_all(root.join("include/tables"))?;
    (0..count)
        .map(|index| {
            let entries: Vec<u64> = (0..TABLE_ENTRIES).map(|_| rng.next_u64() >> 32).collect();
            let words: Vec<String> = entries.iter().map(|entry| format!("    {entry}ULL,\n")).collect();
            let text =
                format!("static const unsigned long long table_{index}[] = {{\n{}}};\n", words.concat());
            fs::write(root.join(format!("include/tables/t{index:03}.h")), text)?;
            Ok(entries.iter().sum())
        })
        .collect()
}

/// Writes modules `src/mNN.c` with one header each, a main program and a Makefile. Returns the number that
/// the program prints.
fn write_modules(root: &Path, rng: &mut Rng, tables: &[u64]) -> io::Result<u64> {
    fs::create_dir_all(root.join("src"))?;
    let (mut includes, mut calls, mut answer) = (String::new(), String::new(), 0u64);
    for module in 0..MODULES {
        let mut text = format!("#include \"m{module:02}.h\"\n");
        let mut sums = String::new();
        let mine = tables.len() / MODULES;
        for (table, sum) in tables.iter().enumerate().skip(module * mine).take(mine) {
            let _ = writeln!(text, "#include \"tables/t{table:03}.h\"");
            let _ = writeln!(sums, "    for (int i = 0; i < {TABLE_ENTRIES}; i++) sum += table_{table}[i];");
            answer = answer.wrapping_add(*sum);
        }
        let salt = rng.next_u64() >> 40;
        answer = answer.wrapping_add(salt);
        let _ = write!(
            text,
            "\nunsigned long long m{module:02}(void) {{\n    unsigned long long sum = {salt}ULL;\n{sums}    return sum;\n}}\n"
        );
        fs::write(root.join(format!("src/m{module:02}.c")), text)?;
        let declaration = format!("#pragma once\nunsigned long long m{module:02}(void);\n");
        fs::write(root.join(format!("include/m{module:02}.h")), declaration)?;
        let _ = writeln!(includes, "#include \"m{module:02}.h\"");
        let _ = writeln!(calls, "    sum += m{module:02}();");
    }
    let main = format!(
        "{includes}#include <stdio.h>\n\nint main(void) {{\n    unsigned long long sum = 0;\n{calls}    printf(\"%llu\\n\", sum);\n    return 0;\n}}\n"
    );
    fs::write(root.join("src/main.c"), main)?;
    fs::write(root.join("Makefile"), include_str!("tree.mk"))?;
    Ok(answer)
}

/// Writes text files from 0 to 60 KiB in nested directories.
fn write_documents(root: &Path, rng: &mut Rng, count: usize) -> io::Result<()> {
    const WORDS: [&str; 12] = [
        "lease", "vnode", "the", "cache", "of", "server", "handle", "and", "reply", "client", "is", "stable",
    ];
    for index in 0..count {
        let chapter =
            root.join(format!("doc/chapter-{:02}", index % 10)).join(["", "notes", "notes/old"][index % 3]);
        fs::create_dir_all(&chapter)?;
        let bytes = match index % 7 {
            0 => rng.below(60 << 10),
            6 => 0,
            _ => rng.below(4000),
        };
        let mut text = String::new();
        while text.len() < bytes {
            text.push_str(WORDS[rng.below(WORDS.len())]);
            text.push(if rng.below(9) == 0 { '\n' } else { ' ' });
        }
        fs::write(chapter.join(format!("text-{index:03}.txt")), text)?;
    }
    Ok(())
}

fn checksum(root: &Path, to: &Path) -> io::Result<()> {
    let command = "find . -type f -print0 | sort -z | xargs -0 sha256sum";
    let output = Command::new("sh").args(["-c", command]).current_dir(root).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    fs::write(to, output.stdout)
}

#[cfg(test)]
mod tests {
    use super::{Size, generate};
    use std::fs;
    use std::process::Command;

    #[test]
    fn a_tree_has_its_size_and_is_always_the_same() {
        let directory = tempfile::tempdir().expect("a directory");
        for (size, wanted) in [(Size::Small, 200), (Size::Large, 544)] {
            let roots = ["a", "b"].map(|name| directory.path().join(format!("{name}-{wanted}")));
            for root in &roots {
                generate(root, size).expect("a tree");
            }
            let files = Command::new("find").arg(&roots[0]).args(["-type", "f"]).output().expect("find");
            assert_eq!(String::from_utf8_lossy(&files.stdout).lines().count(), wanted);
            let same = Command::new("diff").arg("-r").args(&roots).status().expect("diff");
            assert!(same.success());
            let answer = fs::read_to_string(roots[0].join("ANSWER")).expect("ANSWER");
            assert!(answer.trim().parse::<u64>().is_ok());
        }
    }
}
