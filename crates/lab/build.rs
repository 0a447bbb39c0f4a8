//! Builds `lab-hand`, the program that serves a test inside a guest, with the compiler alone.
//!
//! A test of another crate cannot ask cargo for a binary of this one, so the library carries the path of its own copy.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let sources = ["src/bin/lab-hand.rs", "src/hand/wire.rs", "src/hand/act.rs", "src/bin/lab-hand/agent.rs"];
    for source in sources.into_iter().chain(["src/bin/lab-hand/guard.rs", "build.rs"]) {
        println!("cargo:rerun-if-changed={source}");
    }
    let var = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name} for build scripts"));
    let hand = PathBuf::from(var("OUT_DIR")).join("lab-hand");
    let status = Command::new(var("RUSTC"))
        .args([
            "--edition",
            "2024",
            "--crate-name",
            "lab_hand",
            "--crate-type",
            "bin",
            "-O",
            "-A",
            "warnings",
        ])
        .arg("--target")
        .arg(var("TARGET"))
        .arg("-o")
        .arg(&hand)
        .arg(sources[0])
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("building lab-hand failed: {other:?}"),
    }
    println!("cargo:rustc-env=LAB_HAND={}", hand.display());
}
