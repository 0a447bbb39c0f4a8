//! SIGHUP: reads the configuration file again.
//!
//! The values that can change in a running process are in force at once; the log says which changed, and
//! which need a restart. If the file has a mistake, the values in force stay.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::config::{self, Configured, Setting, Wrong};
use crate::mount::log::notice;
use crate::units::counted;
use crate::{Failure, cli, logging, service};

/// Keys of the log, which can always change.
const LOG: [&str; 1] = ["log_level"];
/// Keys of the limits of a cache.
pub const LIMITS: [&str; 7] =
    ["cache_size", "cache_soft", "export_size", "min_free", "file_min", "file_max", "changed_min"];
/// Keys of who may do what with an export.
pub const ACCESS: [&str; 9] =
    ["ro", "root_squash", "all_squash", "anonuid", "anongid", "secure", "clients", "xprtsec", "sec"];

/// Of the origins of a proxy that has several: they come and go, and share the cache anew.
pub const ORIGINS: [&str; 3] = [ORIGIN, "cache_share", "url"];
/// Stands for an origin that comes or goes.
const ORIGIN: &str = "[[origin]]";

/// The configuration in force.
#[derive(Debug)]
pub struct Reload {
    given: Vec<OsString>,
    /// The working directory at the start: a mount leaves it later.
    base: PathBuf,
    settings: Vec<Setting>,
    has_file: bool,
}

impl Reload {
    /// The configuration of a command line, and the file that it names.
    pub fn new(given: Vec<OsString>, settings: Vec<Setting>) -> Reload {
        let has_file = settings.iter().any(|setting| matches!(setting.from, config::Place::Line(_)));
        Reload { given, base: std::env::current_dir().unwrap_or_default(), settings, has_file }
    }

    /// The command line of this process.
    pub fn given(&self) -> &[OsString] {
        &self.given
    }

    /// Is there a configuration file?
    pub fn has_file(&self) -> bool {
        self.has_file
    }

    /// Reads the file again. Calls `apply` with the new options if a value of one of the keys in `live` has
    /// changed, and sets the log itself. The last word of the key of an export counts. If `apply` fails, it
    /// has applied nothing, and all values stay.
    pub fn read_again(&mut self, live: &[&str], apply: impl FnOnce(&cli::Command) -> Result<(), Failure>) {
        if !self.has_file {
            return notice("SIGHUP: there is no configuration file to read again; start with --config FILE");
        }
        let Configured { arguments, settings } = match config::parse(&self.given, &self.base) {
            Ok(configured) => configured,
            Err(Wrong::File(failure)) => {
                return notice(&format!("the configuration in force stays: {failure}"));
            }
            Err(Wrong::CommandLine(error)) => {
                return notice(&format!("the configuration in force stays: {}", config::first_line(&error)));
            }
        };
        let changes = changes(&self.settings, &settings);
        if changes.is_empty() {
            return notice("the configuration has been read again; nothing has changed");
        }
        service::reloading();
        let is_live = |change: &Change| {
            let key = change.key.rsplit(' ').next().unwrap_or_default();
            if change.both {
                live.contains(&key) || LOG.contains(&key)
            } else {
                change.is_of_origin() && live.contains(&ORIGIN)
            }
        };
        let count = changes.iter().filter(|change| is_live(change)).count();
        if count > 0 {
            if let Err(failure) = apply(&arguments.command) {
                notice(&format!("the configuration in force stays: {failure}"));
                return service::reloaded();
            }
            logging::change(&arguments.logging);
        }
        for change in &changes {
            let restart = if is_live(change) { "" } else { "; this needs a restart" };
            notice(&format!("the configuration has changed: {}{restart}", change.text));
        }
        let waiting = changes.len() - count;
        notice(&format!(
            "the configuration has been read again: {} in force, {} a restart",
            counted(count as u64, "change is", "changes are"),
            counted(waiting as u64, "needs", "need")
        ));
        service::reloaded();
        self.keep(settings, &changes, is_live);
    }

    /// Keeps the values in force. A value that needs a restart is named again the next time.
    fn keep(&mut self, settings: Vec<Setting>, changes: &[Change], is_live: impl Fn(&Change) -> bool) {
        let live: Vec<&Change> = changes.iter().filter(|change| is_live(change)).collect();
        for gone in live.iter().filter(|change| !change.both) {
            self.settings.retain(|old| !gone.has(&old.key));
        }
        for new in settings {
            let is_new = live.iter().any(|change| !change.both && change.has(&new.key));
            let is_taken = live.iter().any(|change| change.key == new.key);
            match self.settings.iter_mut().find(|old| old.key == new.key) {
                Some(old) if is_taken => *old = new,
                None if is_new => self.settings.push(new),
                _ => {}
            }
        }
    }
}

/// A value that has changed.
#[derive(Debug)]
struct Change {
    key: String,
    text: String,
    /// The key was there before, and still is.
    both: bool,
}

impl Change {
    /// An export, an origin or a virtual server has come or gone, and all its keys with it: one change for
    /// all of them.
    fn of_table(setting: &Setting, has: &str) -> Option<Change> {
        let table =
            [" directory", " url", " address"].iter().find_map(|key| setting.key.strip_suffix(key))?;
        Some(Change { key: setting.key.clone(), text: format!("{table} is {has}"), both: false })
    }

    fn is_of_origin(&self) -> bool {
        self.key.starts_with("origin ")
    }

    /// Is the key one of the table that has come or gone?
    fn has(&self, key: &str) -> bool {
        let (table, _) = self.key.rsplit_once(' ').unwrap_or_default();
        key.rsplit_once(' ').is_some_and(|(of, _)| of == table)
    }
}

fn changes(old: &[Setting], new: &[Setting]) -> Vec<Change> {
    let shown = |setting: &Setting| setting.value.clone().unwrap_or_else(|| "not set".to_owned());
    let find = |among: &[Setting], key: &str| among.iter().find(|setting| setting.key == key).cloned();
    let mut changes = Vec::new();
    for now in new {
        match find(old, &now.key) {
            None => changes.extend(Change::of_table(now, "new")),
            Some(before) if before.value == now.value => {}
            Some(before) => {
                let text = format!("{} is {}, and was {}", now.key, shown(now), shown(&before));
                changes.push(Change { key: now.key.clone(), text, both: true });
            }
        }
    }
    let gone = old.iter().filter(|before| find(new, &before.key).is_none());
    changes.extend(gone.filter_map(|before| Change::of_table(before, "gone")));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Place;

    #[test]
    fn changes_are_named_with_both_values() {
        let setting = |key: &str, value: Option<&str>| Setting {
            key: key.into(),
            value: value.map(str::to_owned),
            from: Place::Default,
        };
        let export =
            |path: &str| ["directory", "ro"].map(|key| setting(&format!("export {path} {key}"), None));
        let old = [&[setting("a", Some("1")), setting("b", None)][..], &export("/x")].concat();
        let new = [&[setting("a", None), setting("b", None)][..], &export("/y")].concat();
        let texts: Vec<String> = changes(&old, &new).into_iter().map(|change| change.text).collect();
        assert_eq!(texts, ["a is not set, and was 1", "export /y is new", "export /x is gone"]);
    }
}
