//! `leasehold bench`: runs the benchmarks with this program as the server under test, and shows a progress
//! bar.

use std::io::Write;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::Failure;

/// Measures and reports. The servers under test are further processes of this program.
pub async fn run(arguments: ::bench::Arguments) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure(format!("cannot find this program in order to start servers: {error}; is /proc mounted?"))
    })?;
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed_precise} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    let shown = bar.clone();
    let ran = arguments.run(program, move |progress| {
        if shown.is_hidden() {
            let _ = writeln!(std::io::stderr(), "{}/{} {}", progress.done, progress.of, progress.doing);
        }
        shown.set_length(progress.of as u64);
        shown.set_position(progress.done as u64);
        shown.set_message(progress.doing.to_owned());
        if progress.done == progress.of {
            shown.finish_and_clear();
        }
    });
    let ran = ran.await;
    bar.finish_and_clear();
    if ran.map_err(Failure)? {
        Ok(())
    } else {
        Err(Failure(
            "counts are above the baseline; fix the code that sends more calls, or accept them with --accept"
                .to_owned(),
        ))
    }
}
