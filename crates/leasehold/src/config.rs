//! Configuration files: TOML with a key for each option of `serve`, `proxy` or `mount`.
//!
//! A file is a second command line. Its values become arguments, and the parsers of the options check them:
//! so a file and a command line cannot mean different things. An option on the command line overrides its
//! key, and a key that contradicts it. The exports of `serve`, and the
//! origins of a `proxy` with several, are tables of their own: see [`exports`] and [`origins`].

pub mod cluster;
pub mod command;
pub mod exports;
mod file;
mod keys;
pub mod origins;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

use crate::Failure;
use crate::cli::Arguments;
use file::ConfigFile;
use keys::{Entry, Key};

/// Why there are no arguments.
#[derive(Debug)]
pub enum Wrong {
    /// The command line is wrong, or asks for help.
    CommandLine(clap::Error),
    /// The configuration file is wrong.
    File(Failure),
}

impl From<clap::Error> for Wrong {
    fn from(error: clap::Error) -> Wrong {
        Wrong::CommandLine(error)
    }
}

impl From<Failure> for Wrong {
    fn from(failure: Failure) -> Wrong {
        Wrong::File(failure)
    }
}

/// The arguments of a command line and of the configuration file that it names.
#[derive(Debug)]
pub struct Configured {
    /// All arguments.
    pub arguments: Arguments,
    /// The value of each key, and where it is from. Empty for commands without configuration files.
    pub settings: Vec<Setting>,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key. For one of a table: `export PATH KEY`, `origin PATH KEY`, `cluster KEY` or
    /// `server ADDRESS KEY`.
    pub key: String,
    /// The value; none if there is none.
    pub value: Option<String>,
    /// Where it is from.
    pub from: Place,
}

/// Where a value is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nobody has set it.
    Default,
    /// This line of the configuration file, from 1.
    Line(usize),
    /// The command line.
    CommandLine,
}

/// Parses a command line, and the configuration file that it names. A relative name of the file starts at
/// `base`.
///
/// # Errors
/// The first mistake.
pub fn parse(given: &[OsString], base: &Path) -> Result<Configured, Wrong> {
    let mut program = Arguments::command();
    // Gives the commands the options that all of them have.
    program.build();
    let matches = program.clone().try_get_matches_from(given)?;
    let Some((name, of_command)) = matches.subcommand().filter(|(name, _)| keys::has_file(name)) else {
        return Ok(Configured { arguments: Arguments::from_arg_matches(&matches)?, settings: Vec::new() });
    };
    let Some(command) = program.find_subcommand(name).cloned() else {
        return Ok(Configured { arguments: Arguments::from_arg_matches(&matches)?, settings: Vec::new() });
    };
    let named = of_command.get_one::<PathBuf>("config");
    let file = named.map(|path| ConfigFile::load(&base.join(path))).transpose()?;
    let Some(file) = file else {
        let settings = settings(&command, of_command, &HashMap::new());
        return Ok(Configured { arguments: Arguments::from_arg_matches(&matches)?, settings });
    };
    let has_tables = name == "proxy" && origins::has_tables(&file)?;
    let entries = keys::read(&file, &command)?;
    if has_tables {
        origins::read(&file)?;
        cluster::read(&file)?;
        keys::check_several(&file, &entries, of_command)?;
    }
    let used: Vec<&Entry> =
        entries.iter().filter(|entry| !entry.is_overridden(&command, of_command)).collect();
    keys::check_together(&file, &command, &used)?;
    if !has_tables {
        keys::check_complete(&file, &command, &used, of_command)?;
    }
    let whole = insert(given, name, used.iter().flat_map(|entry| entry.arguments.iter().cloned()));
    let matches = program.try_get_matches_from(whole)?;
    let lines: HashMap<String, usize> =
        used.iter().map(|entry| (entry.key.clone(), file.line(entry.at))).collect();
    let mut settings = match matches.subcommand() {
        Some((_, of_command)) => settings(&command, of_command, &lines),
        None => Vec::new(),
    };
    if name == "serve" {
        settings.extend(exports::settings(&file)?);
    }
    if has_tables {
        let of_origins = origins::settings(&file, &settings)?;
        settings.retain(|setting| !keys::OF_ONE_ORIGIN.contains(&setting.key.as_str()));
        settings.extend(of_origins);
        settings.extend(cluster::settings(&file)?);
    }
    Ok(Configured { arguments: Arguments::from_arg_matches(&matches)?, settings })
}

/// Adds arguments behind the name of the command. So mount options of the command line follow those of the
/// file, and count.
fn insert(given: &[OsString], command: &str, more: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let behind =
        given.iter().skip(1).position(|argument| argument == command).map_or(given.len(), |at| at + 2);
    let (before, rest) = given.split_at(behind);
    before.iter().cloned().chain(more).chain(rest.iter().cloned()).collect()
}

fn settings(command: &Command, matches: &ArgMatches, lines: &HashMap<String, usize>) -> Vec<Setting> {
    let setting = |key: Key| {
        let from = match (matches.value_source(key.id()), lines.get(&key.name)) {
            (_, Some(line)) => Place::Line(*line),
            (Some(ValueSource::CommandLine), None) => Place::CommandLine,
            _ => Place::Default,
        };
        Setting { value: key.value(matches), key: key.name, from }
    };
    keys::of(command).map(setting).collect()
}

/// The first line of a message of clap's, without the word `error`.
pub fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
