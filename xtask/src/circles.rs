//! Import circles: the components of a crate, which are its top-level modules, import each other in one
//! direction only. `lib.rs` is a component too.
//!
//! The check reads paths that begin with `crate::`, or with as many `super::` as lead to the root of the
//! crate. It leaves out tests: files below `tests`, and items and modules under `#[cfg(test)]`. It does not
//! see paths that a macro makes, nor names that come through `use crate::*`.

mod paths;

use crate::steps::root;
use crate::tidy::rust_files;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::Path;

use paths::Read;

/// The crates that are checked.
const CRATES: [&str; 2] = ["server", "cache"];

/// An import that is known to close a circle, and is left out of the check.
struct Known {
    in_crate: &'static str,
    from: &'static str,
    to: &'static str,
    /// Why it stays.
    reason: &'static str,
}

const KNOWN: [Known; 2] = [
    Known {
        in_crate: "cache",
        from: "object",
        to: "writes",
        reason: "the state of a file has its delayed writes, whose bookkeeping is next to their calls",
    },
    Known {
        in_crate: "cache",
        from: "core",
        to: "writes",
        reason: "the core has the accounts of all delayed writes, which are next to their calls",
    },
];

/// The component of `lib.rs`.
const ROOT: &str = "lib";

/// A component, and for each component that it imports the place of one import.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// Checks the crates. Returns the faults.
pub fn faults() -> Vec<String> {
    let mut faults = Vec::new();
    for name in CRATES {
        let src = root().join("crates").join(name).join("src");
        match sources(&src) {
            Ok(sources) => faults.extend(faults_of(name, &imports(&sources), &KNOWN)),
            Err(error) => faults.push(format!("{}: {error}", src.display())),
        }
    }
    faults
}

/// The files of a crate: path below `src`, text.
fn sources(src: &Path) -> std::io::Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    rust_files(src, &mut files)?;
    files.sort();
    let named = |file: &std::path::PathBuf| {
        let path = file.strip_prefix(src).unwrap_or(file).display().to_string();
        Ok((path, fs::read_to_string(file)?))
    };
    files.iter().map(named).collect()
}

fn faults_of(name: &str, imports: &Imports, known: &[Known]) -> Vec<String> {
    let mut left = imports.clone();
    let mut faults = Vec::new();
    for Known { from, to, reason, .. } in known.iter().filter(|known| known.in_crate == name) {
        if left.get_mut(*from).and_then(|of| of.remove(*to)).is_none() {
            faults.push(format!(
                "crates/{name}: `{from}` imports `{to}` no more ({reason}): take it out of KNOWN"
            ));
        }
    }
    let mut seen = BTreeSet::new();
    for component in left.keys() {
        if seen.contains(component) {
            continue;
        }
        if let Some(circle) = circle_through(&left, component) {
            let steps = circle.windows(2).filter_map(|step| {
                let place = left.get(&step[0])?.get(&step[1])?;
                Some(format!("`{}` imports `{}` ({place})", step[0], step[1]))
            });
            let steps: Vec<String> = steps.collect();
            faults.push(format!(
                "crates/{name}: components import each other in a circle: {}",
                steps.join(", ")
            ));
            seen.extend(circle);
        }
    }
    faults
}

/// The shortest circle through a component, with the component at both ends.
fn circle_through(imports: &Imports, start: &str) -> Option<Vec<String>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for next in imports.get(at).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                let mut circle = vec![start.to_owned(), at.to_owned()];
                let mut back = at;
                while let Some(before) = came_from.get(back) {
                    circle.push((*before).to_owned());
                    back = before;
                }
                circle.reverse();
                return Some(circle);
            }
            if !came_from.contains_key(next.as_str()) {
                came_from.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

/// What each component imports.
fn imports(sources: &[(String, String)]) -> Imports {
    let components: BTreeSet<String> = sources.iter().map(|(path, _)| modules(path)[0].clone()).collect();
    let read: Vec<(Vec<String>, &str, Read)> = sources
        .iter()
        .map(|(path, text)| (modules(path), path.as_str(), Read::of(text, modules(path).len())))
        .collect();
    let of_root = read.iter().find(|(module, ..)| module[0] == ROOT);
    let moved = of_root.map(|(.., read)| read.re_exports()).unwrap_or_default();
    let tests: BTreeSet<Vec<String>> = read
        .iter()
        .flat_map(|(module, _, read)| {
            let parent: &[String] = if module[0] == ROOT { &[] } else { module };
            read.test_modules.iter().map(move |name| [parent, std::slice::from_ref(name)].concat())
        })
        .collect();
    let is_test = |module: &[String], path: &str| {
        path.split('/').any(|part| part == "tests" || part == "tests.rs")
            || (1..=module.len()).any(|length| tests.contains(&module[..length]))
    };
    let mut imports = Imports::new();
    for (module, path, read) in read.iter().filter(|(module, path, _)| !is_test(module, path)) {
        let of = imports.entry(module[0].clone()).or_default();
        for (name, line) in read.of_root(module[0] == ROOT, &components) {
            let to =
                if components.contains(name) { name } else { moved.get(name).map_or(ROOT, String::as_str) };
            if to != module[0] {
                of.entry(to.to_owned()).or_insert_with(|| format!("{path}:{line}"));
            }
        }
    }
    imports
}

/// The module path of a file: `a/b.rs` is `a::b`.
fn modules(path: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    path.split('/').map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)], known: &[Known]) -> Vec<String> {
        let sources: Vec<(String, String)> =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        faults_of("x", &imports(&sources), known)
    }

    #[test]
    fn imports_in_one_direction_are_no_fault() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use b::B; #[cfg(test)] mod c;"),
            ("a.rs", "use crate::b::B; use super::b;"),
            ("a/d.rs", "use super::e; use crate::B;"),
            ("b.rs", "#[cfg(test)] mod t { use crate::a; }"),
            ("b/tests.rs", "use crate::a;"),
            ("c.rs", "use crate::a;"),
            ("b/f.rs", "use super::a;"),
        ];
        assert_eq!(of(&files, &[]), [""; 0]);
    }

    #[test]
    fn a_circle_is_named_with_its_places() {
        let files = [
            ("a.rs", "use crate::b::B;"),
            ("b/deep.rs", "\nfn f() { super::super::c::g() }"),
            ("c.rs", "use crate::{a, d};"),
            ("d.rs", ""),
        ];
        assert_eq!(
            of(&files, &[]),
            [
                "crates/x: components import each other in a circle: `a` imports `b` (a.rs:1), `b` imports `c` \
              (b/deep.rs:2), `c` imports `a` (c.rs:1)"
            ]
        );
    }

    #[test]
    fn an_item_of_the_root_belongs_to_the_root() {
        let files = [("lib.rs", "mod a; pub struct Root(a::A);"), ("a.rs", "use crate::Root;")];
        assert_eq!(of(&files, &[]).len(), 1);
    }

    #[test]
    fn a_known_import_is_left_out_while_it_is_there() {
        let known = [Known { in_crate: "x", from: "b", to: "a", reason: "cheap" }];
        let files = [("a.rs", "use crate::b;"), ("b.rs", "use crate::a;")];
        assert_eq!(of(&files, &known), [""; 0]);
        assert_eq!(of(&[("a.rs", "use crate::b;"), ("b.rs", "")], &known).len(), 1);
    }
}
