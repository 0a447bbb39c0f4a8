//! Builds `lab-hand`, the program that serves a test inside a guest, by calling the compiler directly.
//!
//! Cargo gives a test of another crate no access to a binary of this crate. So the library contains the path
//! of its own copy.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The root file of the program.
const MAIN: &str = "src/bin/lab-hand.rs";

fn main() {
    for source in ["build.rs", MAIN, "src/bin/lab-hand", "src/hand"] {
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
        .arg(MAIN)
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("building lab-hand failed: {other:?}"),
    }
    println!("cargo:rustc-env=LAB_HAND={}", hand.display());
}
