//! The lab's helper program:
//!
//! - `lab-hand agent ADDRESS` serves a test inside a guest;
//! - `lab-hand network DEVICE GATEWAY` keeps a guest's network alive;
//! - `lab-hand guard` cleans up on the host after a test;
//! - `lab-hand pattern write|check PATH OFFSET LENGTH SEED` fills and verifies large files;
//! - `lab-hand exercise PATH OPERATIONS SEED` does random operations on a file and compares it with a model.
//!
//! It uses only the standard library, because build.rs calls the compiler directly.

use std::process::ExitCode;

#[path = "../hand/act.rs"]
mod act;
#[path = "lab-hand/agent.rs"]
mod agent;
#[path = "lab-hand/exercise.rs"]
mod exercise;
#[path = "../hand/files.rs"]
mod files;
#[path = "lab-hand/guard.rs"]
mod guard;
#[path = "lab-hand/network.rs"]
mod network;
#[path = "lab-hand/pattern.rs"]
mod pattern;
#[path = "../hand/sys.rs"]
mod sys;
#[path = "../hand/wire.rs"]
mod wire;

const USAGE: &str = "usage: lab-hand agent ADDRESS:PORT | network DEVICE GATEWAY | guard | \
    pattern write|check PATH OFFSET LENGTH SEED | exercise PATH OPERATIONS SEED";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["agent", address] => agent::serve(address),
        ["network", device, gateway] => network::watch(device, gateway),
        ["guard"] => guard::watch(),
        ["pattern", "write", path, offset, length, seed] => numbers([offset, length, seed])
            .and_then(|[offset, length, seed]| pattern::write(path, offset, length, seed)),
        ["pattern", "check", path, offset, length, seed] => numbers([offset, length, seed])
            .and_then(|[offset, length, seed]| pattern::check(path, offset, length, seed)),
        ["exercise", path, operations, seed] => numbers([operations, seed])
            .and_then(|[operations, seed]| exercise::run(path, operations, seed.max(1))),
        _ => Err(std::io::Error::other(USAGE)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab-hand: {error}");
            ExitCode::FAILURE
        }
    }
}

fn numbers<const N: usize>(words: [&str; N]) -> std::io::Result<[u64; N]> {
    let mut numbers = [0; N];
    for (number, word) in numbers.iter_mut().zip(words) {
        *number = word.parse().map_err(|_| std::io::Error::other(format!("not a number: {word}")))?;
    }
    Ok(numbers)
}
