//! Prints the answers of `leasehold cache`.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::time;
use crate::Failure;
use crate::cli::cache::CacheCommand;
use crate::units::{ago, counted, human};

/// The command whose answers are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ls,
    Stat,
    Du,
    Pin,
    Unpin,
    Warm,
    Replay,
    Drop,
    Verify,
}

/// Prints the lines of answers, and adds up the last ones.
pub struct Show {
    json: bool,
    kind: Kind,
    bar: Option<ProgressBar>,
    failures: u64,
    /// The sums over the last lines of all requests of this command.
    sums: serde_json::Map<String, Value>,
}

impl Show {
    /// For a command. `progress`: show a progress bar, because standard error is a terminal.
    pub fn new(json: bool, progress: bool, command: &CacheCommand) -> Show {
        let kind = match command {
            CacheCommand::Ls(_) => Kind::Ls,
            CacheCommand::Stat(_) => Kind::Stat,
            CacheCommand::Du(_) => Kind::Du,
            CacheCommand::Pin(_) => Kind::Pin,
            CacheCommand::Unpin(_) => Kind::Unpin,
            CacheCommand::Warm(warm) if warm.profile.is_some() => Kind::Replay,
            // `record` prints by itself.
            CacheCommand::Warm(_) | CacheCommand::Record(_) => Kind::Warm,
            CacheCommand::Drop(_) => Kind::Drop,
            CacheCommand::Verify(_) => Kind::Verify,
        };
        let bar =
            (progress && matches!(kind, Kind::Warm | Kind::Replay | Kind::Verify | Kind::Drop)).then(bar);
        Show { json, kind, bar, failures: 0, sums: serde_json::Map::new() }
    }

    /// Prints a line of an answer. Skips lines that it does not know.
    pub fn line(&mut self, line: &Value) {
        if let Some(failed) = line.get("failed") {
            self.failures += 1;
            let text = |field: &str| failed[field].as_str().unwrap_or_default();
            let line = format!("{}: {}", text("path"), text("why"));
            match &self.bar {
                Some(bar) => bar.suspend(|| crate::output::tell(format_args!("{line}"))),
                None => crate::output::tell(format_args!("{line}")),
            }
        }
        if self.json {
            crate::output::line(format_args!("{line}"));
        } else if let Some(entry) = line.get("entry") {
            crate::output::line(format_args!("{}", self.entry(entry)));
        } else if let (Some(progress), Some(bar)) = (line.get("progress"), &self.bar) {
            self.advance(bar, progress);
        }
    }

    fn advance(&self, bar: &ProgressBar, progress: &Value) {
        let number = |field: &str| progress[field].as_u64().unwrap_or_default();
        let bytes = number("bytes").max(number("good_bytes"));
        let more = if progress["walking"] == true { " so far" } else { "" };
        if self.kind == Kind::Warm {
            bar.set_length(number("files"));
            bar.set_position(number("done"));
            bar.set_message(format!(
                "files{more}, {} fetched, {} complete",
                human(bytes),
                number("complete")
            ));
        } else if self.kind == Kind::Replay {
            bar.set_length(number("uses"));
            bar.set_position(number("done"));
            bar.set_message(format!("uses, {} fetched, {} gone", human(bytes), number("gone")));
        } else {
            bar.set_position(number("files"));
            bar.set_message(format!("files, {}", human(bytes)));
        }
    }

    /// Adds the last line of an answer to the sums.
    pub fn done(&mut self, done: &Value) {
        let Value::Object(done) = done else { return };
        for (name, value) in done {
            let sum = self
                .sums
                .get(name)
                .and_then(Value::as_u64)
                .zip(value.as_u64())
                .map(|(a, b)| Value::from(a + b));
            self.sums.insert(name.clone(), sum.unwrap_or_else(|| value.clone()));
        }
    }

    /// Prints the summary. Fails if anything failed.
    pub fn finish(self) -> Result<(), Failure> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let sums = Value::Object(self.sums.clone());
        if self.json {
            crate::output::line(format_args!("{}", serde_json::json!({ "done": sums })));
        } else {
            self.last_words(&sums);
        }
        let damaged = sums["damaged"].as_u64().unwrap_or_default();
        match (self.kind, self.failures) {
            (_, 0) => Ok(()),
            (Kind::Verify, _) if damaged > 0 => Err(Failure(format!(
                "{} damaged: check the disk",
                counted(damaged, "file was", "files were")
            ))),
            (_, failures) => {
                Err(Failure(format!("{} failed, as reported above", counted(failures, "path", "paths"))))
            }
        }
    }

    fn last_words(&self, sums: &Value) {
        let number = |field: &str| sums[field].as_u64().unwrap_or_default();
        match self.kind {
            Kind::Du if !sums["objects"].is_null() => {
                crate::output::line(format_args!(
                    "{} of {}",
                    human(number("disk_bytes")),
                    sums["origin"].as_str().unwrap_or_default()
                ));
                if let Some(max) = sums["max_bytes"].as_u64() {
                    crate::output::line(format_args!(
                        "limits: {} (soft), {} (hard)",
                        human(number("soft_bytes")),
                        human(max)
                    ));
                }
                crate::output::line(format_args!(
                    "files: {}, {} of them complete; pins: {}",
                    number("files"),
                    number("complete"),
                    number("pins")
                ));
                crate::output::line(format_args!("known: {} files and directories", number("objects")));
            }
            Kind::Unpin => {
                crate::output::line(format_args!("{} removed", counted(number("unpinned"), "pin", "pins")));
            }
            Kind::Pin if number("pinned") > 0 => {
                crate::output::line(format_args!("{} pinned", number("pinned")));
            }
            Kind::Warm => crate::output::line(format_args!(
                "{}: {} fetched ({}), {} complete already, {} excluded by options, {} failed",
                counted(number("files"), "file", "files"),
                number("fetched"),
                human(number("bytes")),
                number("complete"),
                number("skipped"),
                number("failed")
            )),
            Kind::Replay => {
                crate::output::line(format_args!(
                    "{}: {} and {} fetched ({}), {} complete already; {} gone, {} denied, {} excluded by options, {} failed",
                    counted(number("uses"), "use", "uses"),
                    counted(number("listings"), "listing", "listings"),
                    counted(number("fetched"), "file", "files"),
                    human(number("bytes")),
                    number("here"),
                    number("gone"),
                    number("denied"),
                    number("skipped"),
                    number("failed")
                ));
                if number("present") > 0 && number("gone") >= number("present") {
                    crate::output::tell(format_args!(
                        "no path of the profile exists: is it of another tree?"
                    ));
                }
            }
            Kind::Drop => {
                let files = counted(number("files"), "file", "files");
                crate::output::line(format_args!("{files} dropped, {} freed", human(number("bytes"))));
            }
            Kind::Verify => {
                crate::output::line(format_args!(
                    "{}: {} good, {} without a checksum; {} damaged, {} changed at the origin",
                    counted(number("files"), "file", "files"),
                    human(number("good_bytes")),
                    human(number("unchecked_bytes")),
                    number("damaged"),
                    number("changed")
                ));
            }
            _ => {}
        }
    }

    fn entry(&self, entry: &Value) -> String {
        let text = |field: &str| entry[field].as_str().unwrap_or("-").to_owned();
        let number = |field: &str| entry[field].as_u64().unwrap_or_default();
        match self.kind {
            Kind::Du if !entry["file_system"].is_null() => {
                let of =
                    entry["max_bytes"].as_u64().map_or_else(String::new, |max| format!(" of {}", human(max)));
                format!("{:>8}{of}  file system {}", human(number("disk_bytes")), text("file_system"))
            }
            Kind::Du => format!(
                "{:>8}  {}, {} complete, {} pinned  {}",
                human(number("disk_bytes")),
                counted(number("files"), "file", "files"),
                number("complete"),
                human(number("pinned_bytes")),
                text("path")
            ),
            Kind::Pin => {
                let (path, as_) = (text("path"), text("pinned_as"));
                let was = if path == as_ { String::new() } else { format!("  (pinned as {as_})") };
                format!("{}  {path}{was}", entry["since"].as_i64().map_or("-".into(), time::show))
            }
            Kind::Stat => stat(entry),
            _ => {
                let pin = if entry["pinned"].is_null() { "" } else { "pinned" };
                let size = match (text("type").as_str(), text("complete").as_str()) {
                    ("file", "part") => {
                        format!("{}/{}", human(number("cached_bytes")), human(number("size")))
                    }
                    ("file", _) => human(number("size")),
                    (other, _) => other.to_owned(),
                };
                let complete = if text("type") == "file" { text("complete") } else { "-".into() };
                format!("{complete:8}{pin:8}{size:>16}  {}", text("path"))
            }
        }
    }
}

fn stat(entry: &Value) -> String {
    let text = |field: &str| entry[field].as_str().unwrap_or("-").to_owned();
    let number = |field: &str| entry[field].as_u64().unwrap_or_default();
    let moment = |field: &str| entry[field].as_i64().map_or("never".into(), time::show);
    let age = entry["age_s"].as_u64().map_or("not known".into(), ago);
    let pinned = match entry["pinned"].as_str() {
        None => "no".to_owned(),
        Some("itself") => "yes".to_owned(),
        Some(above) => format!("by {above}"),
    };
    [
        text("path"),
        format!("  type       {}, inode {}", text("type"), number("inode")),
        format!("  size       {} bytes, modified {}", number("size"), moment("modified")),
        format!(
            "  cached     {}: {} bytes, {} on disk",
            text("complete"),
            number("cached_bytes"),
            human(number("disk_bytes"))
        ),
        format!("  validity   {}", text("validity")),
        format!("  age        {age} (last asked the origin: {})", moment("confirmed")),
        format!("  pinned     {pinned}"),
        format!("  last use   {}", moment("used")),
    ]
    .join("\n")
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}
