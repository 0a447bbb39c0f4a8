//! The keys of a configuration file, and the arguments that their values become.
//!
//! A key has the name of its option, with `_` for `-`. An option that only turns something off, such as
//! `--no-udp`, is a key that is true unless it is set: `udp`. What stands without an option on the command
//! line is a key too: `origin`, `source`, `directory`.

use std::any::TypeId;
use std::error::Error;
use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::Spanned;
use toml::de::{DeArray, DeValue};

use super::file::ConfigFile;
use super::origins;
use crate::cli::{OF_ONE_EXPORT, SERVED};
use crate::{Failure, mount};

/// The commands that have configuration files.
const COMMANDS: [&str; 3] = ["serve", "proxy", "mount"];
/// Options that belong on a command line alone.
const NO_KEYS: [&str; 7] = ["help", "version", "config", "synthetic", "foreground", "sloppy", "ready"];
/// The options whose values are lists.
const LISTS: [&str; 2] = ["clients", "options"];
/// Options that turn something off, whose names do not begin with `no-`; and their keys.
const OPPOSITES: [(&str, &str); 2] = [("insecure", "secure"), ("async", "sync")];
/// How similar a name must be to a key to be taken for it (Jaro-Winkler).
const SIMILAR: f64 = 0.8;

/// Has this command a configuration file?
pub fn has_file(command: &str) -> bool {
    COMMANDS.contains(&command)
}

/// A key, and its option.
pub struct Key<'c> {
    /// Its name.
    pub name: String,
    arg: &'c Arg,
    /// The option turns off what the key turns on.
    is_opposite: bool,
}

/// The keys of a command.
pub fn of(command: &Command) -> impl Iterator<Item = Key<'_>> {
    let of_serve = command.get_name() == "serve";
    let of_exports = move |id: &str| of_serve && (OF_ONE_EXPORT.contains(&id) || id == SERVED);
    let known = move |arg: &&Arg| {
        let id = arg.get_id().as_str();
        !NO_KEYS.contains(&id) && !of_exports(id)
    };
    command.get_arguments().filter(known).map(Key::of)
}

impl Key<'_> {
    fn of(arg: &Arg) -> Key<'_> {
        let Some(long) = arg.get_long() else {
            return Key { name: arg.get_id().to_string(), arg, is_opposite: false };
        };
        let opposite = OPPOSITES.iter().find(|(option, _)| *option == long).map(|(_, key)| *key);
        let opposite = opposite.or_else(|| long.strip_prefix("no-"));
        Key { name: opposite.unwrap_or(long).replace('-', "_"), arg, is_opposite: opposite.is_some() }
    }

    /// The id of the option.
    pub fn id(&self) -> &str {
        self.arg.get_id().as_str()
    }

    fn is_flag(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::SetTrue)
    }

    /// The value on a command line.
    pub fn value(&self, matches: &ArgMatches) -> Option<String> {
        if self.is_flag() {
            return Some((matches.get_flag(self.id()) != self.is_opposite).to_string());
        }
        let values = matches.get_raw(self.id())?;
        Some(values.map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(","))
    }

    /// The arguments for a value.
    ///
    /// # Errors
    /// If the value has a wrong type.
    fn arguments(&self, value: &DeValue) -> Result<Vec<OsString>, String> {
        let option = self.arg.get_long();
        if self.is_flag() {
            let wanted = value.as_bool().ok_or_else(|| self.must_be("true or false", value))?;
            let flag = option.filter(|_| wanted != self.is_opposite);
            return Ok(flag.map(|flag| format!("--{flag}").into()).into_iter().collect());
        }
        let text = self.text(value)?;
        if option.is_none() && text.starts_with('-') {
            // As an argument it would be an option.
            return Err(format!("`{}` is `{text}`, and must not begin with -", self.name));
        }
        Ok(vec![option.map_or_else(|| text.clone(), |option| format!("--{option}={text}")).into()])
    }

    fn text(&self, value: &DeValue) -> Result<String, String> {
        let is_number = self.is_number();
        match value {
            DeValue::String(text) if !is_number => Ok(text.to_string()),
            DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
            DeValue::Array(values) if LISTS.contains(&self.id()) => self.list(values),
            _ if is_number => Err(self.must_be("a number", value)),
            _ if LISTS.contains(&self.id()) => Err(self.must_be("a list of strings", value)),
            _ => Err(self.must_be("a string", value)),
        }
    }

    fn list(&self, values: &DeArray) -> Result<String, String> {
        if values.is_empty() {
            return Err(format!("`{}` is empty: leave it out, or name one", self.name));
        }
        let text = |value: &Spanned<DeValue>| {
            let text = value.get_ref().as_str().map(str::to_owned);
            text.ok_or_else(|| self.must_be("a list of strings", value.get_ref()))
        };
        values.iter().map(text).collect::<Result<Vec<_>, _>>().map(|texts| texts.join(","))
    }

    /// Is the value a plain number? A size may have a unit.
    fn is_number(&self) -> bool {
        let numbers = [TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>(), TypeId::of::<usize>()];
        let parsed: &ValueParser = self.arg.get_value_parser();
        let is_size =
            self.arg.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "SIZE"));
        !is_size && numbers.iter().any(|number| parsed.type_id() == *number)
    }

    /// The key with the form of its value and its default, for a list of keys.
    pub fn heading(&self) -> String {
        let form = match self.arg.get_value_names() {
            _ if self.is_flag() => {
                return format!("{} = true|false [default: {}]", self.name, self.is_opposite);
            }
            Some([name, ..]) => name.to_string(),
            _ => "VALUE".to_owned(),
        };
        let choices = self.arg.get_possible_values();
        let choices: Vec<&str> = choices.iter().map(clap::builder::PossibleValue::get_name).collect();
        let form = if choices.is_empty() { form } else { choices.join("|") };
        match self.arg.get_default_values() {
            [] => format!("{} = {form}", self.name),
            [default, ..] => format!("{} = {form} [default: {}]", self.name, default.to_string_lossy()),
        }
    }

    /// The text of the option's help.
    pub fn help(&self) -> String {
        let help = self.arg.get_help().map(ToString::to_string).unwrap_or_default();
        self.arg.get_long().map_or_else(|| help.clone(), |option| format!("--{option}: {help}"))
    }

    fn must_be(&self, wanted: &str, value: &DeValue) -> String {
        let article = if value.type_str().starts_with(['a', 'i']) { "an" } else { "a" };
        format!("`{}` must be {wanted}, and this is {article} {}", self.name, value.type_str())
    }
}

/// A key that a file sets.
#[derive(Debug)]
pub struct Entry {
    /// The name of the key.
    pub key: String,
    /// The byte of the text where it stands.
    pub at: usize,
    /// The arguments that say the same.
    pub arguments: Vec<OsString>,
    id: String,
    /// Its position among the arguments without options, from 1.
    position: Option<usize>,
}

impl Entry {
    /// Does the command line say otherwise? Mount options add up; the last one counts.
    pub fn is_overridden(&self, command: &Command, matches: &ArgMatches) -> bool {
        let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let against = |arg: &&Arg| {
            let others = command.get_arg_conflicts_with(arg);
            others.iter().any(|other| given(other.get_id().as_str()))
        };
        let arg = command.get_arguments().find(|arg| *arg.get_id() == *self.id);
        if arg.is_some_and(|arg| matches!(arg.get_action(), ArgAction::Append)) {
            return false;
        }
        given(&self.id) || arg.as_ref().is_some_and(against)
    }
}

/// Reads the keys of a file, in the order that a command line needs.
///
/// # Errors
/// The first mistake: an unknown key, or a wrong value.
pub fn read(file: &ConfigFile, command: &Command) -> Result<Vec<Entry>, Failure> {
    let table = file.table()?;
    let mut pairs: Vec<_> = table.iter().collect();
    pairs.sort_by_key(|(key, _)| key.span().start);
    let mut entries = Vec::new();
    for (key, value) in pairs {
        let (name, at) = (key.get_ref(), key.span().start);
        if command.get_name() == "serve" && name == "export" {
            continue;
        }
        if command.get_name() == "proxy" && name == origins::TABLE && value.get_ref().as_array().is_some() {
            continue;
        }
        if command.get_name() == "proxy" && super::cluster::TABLES.contains(&name.as_ref()) {
            continue;
        }
        let Some(known) = of(command).find(|known| known.name == *name) else {
            return Err(file.wrong(at, unknown(command, name)));
        };
        let (from, value) = (value.span().start, value.get_ref());
        let arguments = known.arguments(value).map_err(|wrong| file.wrong(from, wrong))?;
        check(command, &known, &arguments).map_err(|wrong| file.wrong(from, wrong))?;
        entries.push(Entry {
            key: known.name.clone(),
            at,
            arguments,
            id: known.id().to_owned(),
            position: known.arg.get_index(),
        });
    }
    entries.sort_by_key(|entry| entry.position);
    Ok(entries)
}

/// The message for a key that does not exist.
fn unknown(command: &Command, name: &str) -> String {
    let of_export = super::exports::KEYS.iter().any(|(key, _)| *key == name);
    if command.get_name() == "serve" && of_export {
        return format!("`{name}` belongs to an export: write it below [[export]]");
    }
    if command.get_name() == "proxy" && origins::keys().any(|(key, _)| key == name) {
        return format!("`{name}` belongs to an origin: write it below [[origin]]");
    }
    let alike = |key: &Key| strsim::jaro_winkler(&key.name, name);
    let nearest = of(command).max_by(|a, b| alike(a).total_cmp(&alike(b)));
    let command = command.get_name();
    match nearest.filter(|key| alike(key) > SIMILAR) {
        Some(key) => format!("unknown key `{name}`: did you mean `{}`?", key.name),
        None => format!("unknown key `{name}`: `leasehold config keys {command}` lists those of `{command}`"),
    }
}

/// Checks one value by the parser of its option.
fn check(command: &Command, key: &Key, arguments: &[OsString]) -> Result<(), String> {
    if command.get_name() == "mount" {
        let text = arguments.first().map(|text| text.to_string_lossy()).unwrap_or_default();
        match key.id() {
            "source" => mount::check_source(&text),
            "options" => mount::check_words(text.trim_start_matches("--options=")),
            _ => Ok(()),
        }
        .map_err(|failure| failure.0)?;
    }
    let alone = command.clone().no_binary_name(true);
    let alone = alone.mut_args(|arg| arg.required(false).required_unless_present_any(<[&str; 0]>::default()));
    let Err(error) = alone.try_get_matches_from(arguments) else { return Ok(()) };
    let value = match error.get(ContextKind::InvalidValue) {
        Some(ContextValue::String(value)) => value.as_str(),
        _ => "",
    };
    match error.kind() {
        ErrorKind::InvalidValue => {
            let choices: Vec<String> =
                key.arg.get_possible_values().iter().map(|it| it.get_name().to_owned()).collect();
            Err(format!("`{}` is one of {}, and not `{value}`", key.name, choices.join(", ")))
        }
        ErrorKind::ValueValidation => {
            let why = error.source().map(ToString::to_string).unwrap_or_default();
            Err(format!("`{}`: {why}", key.name))
        }
        // The other kinds are about several arguments.
        _ => Ok(()),
    }
}

/// Checks that no two keys contradict each other.
///
/// # Errors
/// The first two that do.
pub fn check_together(file: &ConfigFile, command: &Command, entries: &[&Entry]) -> Result<(), Failure> {
    let said = |entry: &&&Entry| !entry.arguments.is_empty();
    for entry in entries.iter().filter(said) {
        let Some(arg) = command.get_arguments().find(|arg| *arg.get_id() == *entry.id) else { continue };
        let against = command.get_arg_conflicts_with(arg);
        let is_other = |other: &&&Entry| against.iter().any(|arg| *arg.get_id() == *other.id);
        if let Some(other) = entries.iter().filter(said).find(is_other) {
            let (first, second) = if entry.at < other.at { (entry, other) } else { (other, entry) };
            let line = file.line(first.at);
            return Err(file.wrong(
                second.at,
                format_args!(
                    "`{}` contradicts `{}` of line {line}: leave one of them out",
                    second.key, first.key
                ),
            ));
        }
    }
    Ok(())
}

/// The keys, and the arguments, of a proxy of one origin.
pub const OF_ONE_ORIGIN: [&str; 2] = ["origin", "export"];

/// Checks that a file with several origins, and the command line, name none besides.
///
/// # Errors
/// If they do.
pub fn check_several(file: &ConfigFile, entries: &[Entry], matches: &ArgMatches) -> Result<(), Failure> {
    if let Some(entry) = entries.iter().find(|entry| OF_ONE_ORIGIN.contains(&entry.key.as_str())) {
        return Err(
            file.wrong(entry.at, "`export` is of a proxy of one origin: write `path` below each [[origin]]")
        );
    }
    let given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    match OF_ONE_ORIGIN.iter().find(|id| given(id)) {
        Some(&"origin") => {
            Err(file.lacks("it has an [[origin]], and the command line has a URL: leave one of them out"))
        }
        Some(_) => Err(file.lacks("it has an [[origin]]: write its `path` there, and leave --export out")),
        None => Ok(()),
    }
}

/// Checks that nothing is missing.
///
/// # Errors
/// If something is neither in the file nor on the command line.
pub fn check_complete(
    file: &ConfigFile,
    command: &Command,
    entries: &[&Entry],
    matches: &ArgMatches,
) -> Result<(), Failure> {
    for key in of(command).filter(|key| key.arg.get_long().is_none()) {
        let given = matches.value_source(key.id()).is_some();
        if !given && !entries.iter().any(|entry| entry.key == key.name) {
            return Err(file.lacks(format_args!("it does not say `{}`", key.name)));
        }
    }
    Ok(())
}
