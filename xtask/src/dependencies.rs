//! Checks the crates that we build in but have not written: their source, their licence, and known
//! advisories.
//!
//! All checks but the last need no network once the crates are downloaded. `cargo audit` checks for
//! advisories. Where that program is installed, it runs on the database that it fetched last.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::steps::{self, root, succeeds};

/// The only permitted source of crates, as Cargo writes it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";
/// Licences whose code may be part of a program under ours.
const LICENCES: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Checks all crates of the lock file and prints what is wrong. Also returns a note for the summary.
pub fn run() -> (bool, String) {
    let (faults, crates) = match metadata().and_then(|metadata| Ok((metadata, lock()?))) {
        Ok((metadata, lock)) => (faults_of(&metadata, &lock), packages(&metadata).count()),
        Err(error) => (vec![error], 0),
    };
    for fault in &faults {
        eprintln!("{fault}");
    }
    let audited = if succeeds("cargo", &["audit", "--version"]) {
        steps::run("cargo", ["audit", "--no-fetch", "--deny", "warnings"], &[]).then_some("audited")
    } else {
        Some("not audited: there is no cargo-audit here")
    };
    let note = format!("{crates} crates, {}", audited.unwrap_or("advisories against some"));
    (faults.is_empty() && audited.is_some(), note)
}

/// Crates for this platform only: the sources of others need not be downloaded.
fn metadata() -> Result<Value, String> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new("cargo");
    command.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", &platform]);
    let output = command.current_dir(root()).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo metadata: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))
}

fn lock() -> Result<String, String> {
    fs::read_to_string(root().join("Cargo.lock")).map_err(|error| format!("Cargo.lock: {error}"))
}

fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    metadata["packages"].as_array().into_iter().flatten()
}

fn faults_of(metadata: &Value, lock: &str) -> Vec<String> {
    let sums = sums(lock);
    let mut faults = Vec::new();
    for package in packages(metadata) {
        let text = |field: &str| package[field].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        // Crates of this workspace have no source.
        if package["source"].is_null() {
            continue;
        }
        if text("source") != REGISTRY {
            faults.push(format!("{name} is from {}; take crates from crates.io alone", text("source")));
        } else if !sums.get(&name).is_some_and(|summed| *summed) {
            faults.push(format!("{name} has no checksum in Cargo.lock; run cargo update -p {name}"));
        }
        if !allows(text("license")) {
            let licence = text("license");
            faults.push(format!("{name} is under '{licence}', which is not among the licences we take"));
        }
    }
    faults
}

/// The crates of a lock file, and whether each has a checksum.
fn sums(lock: &str) -> BTreeMap<String, bool> {
    let field = |block: &str, name: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        line.map(|value| value.trim_end_matches('"').to_owned())
    };
    let crates = lock.split("[[package]]").skip(1).filter_map(|block| {
        let name = format!("{} {}", field(block, "name")?, field(block, "version")?);
        Some((name, field(block, "checksum").is_some_and(|sum| sum.len() == 64)))
    });
    crates.collect()
}

/// Do our licences alone satisfy an SPDX expression? In the expressions of crates, parentheses only enclose
/// alternatives; a slash is the old form of OR.
fn allows(expression: &str) -> bool {
    let plain = expression.replace(['(', ')'], "").replace('/', " OR ");
    let one_of = |part: &str| part.split(" OR ").any(|licence| LICENCES.contains(&licence.trim()));
    !plain.is_empty() && plain.split(" AND ").all(one_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_licence_is_taken_if_one_of_its_alternatives_is() {
        for expression in ["MIT", "GPL-2.0-only OR MIT", "Apache-2.0/MIT", "(MIT OR X) AND Unicode-3.0"] {
            assert!(allows(expression), "{expression}");
        }
        for expression in ["", "GPL-2.0-only", "(MIT OR Apache-2.0) AND GPL-3.0", "MITX"] {
            assert!(!allows(expression), "{expression}");
        }
    }

    #[test]
    fn each_fault_of_a_crate_is_found() {
        let sum = "0".repeat(64);
        let lock = format!(
            "version = 4\n\n[[package]]\nname = \"good\"\nversion = \"1.0.0\"\nchecksum = \"{sum}\"\n\n\
             [[package]]\nname = \"unsummed\"\nversion = \"1.0.0\"\n"
        );
        let of = |name: &str, source: &str, license: &str| json!({ "name": name, "version": "1.0.0", "source": source, "license": license });
        let faults = |package: Value| faults_of(&json!({ "packages": [package] }), &lock);
        assert!(faults(of("good", REGISTRY, "MIT")).is_empty());
        assert!(faults(json!({ "name": "ours", "version": "0.1.0", "source": null })).is_empty());
        assert!(faults(of("good", "git+https://example.com/good", "MIT"))[0].contains("is from git+"));
        assert!(faults(of("unsummed", REGISTRY, "MIT"))[0].contains("no checksum"));
        assert!(faults(of("good", REGISTRY, "SSPL-1.0"))[0].contains("SSPL-1.0"));
    }
}
