//! The lab's helper program: `lab-hand agent ADDRESS` serves a test inside a guest, `lab-hand guard` cleans up after one on the host.
//!
//! It uses the standard library alone, because build.rs builds it with the compiler alone.

use std::process::ExitCode;

#[path = "../hand/act.rs"]
mod act;
#[path = "lab-hand/agent.rs"]
mod agent;
#[path = "lab-hand/guard.rs"]
mod guard;
#[path = "../hand/wire.rs"]
mod wire;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["agent", address] => agent::serve(address),
        ["guard"] => guard::watch(),
        _ => Err(std::io::Error::other("usage: lab-hand agent ADDRESS:PORT | lab-hand guard")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab-hand: {error}");
            ExitCode::FAILURE
        }
    }
}
