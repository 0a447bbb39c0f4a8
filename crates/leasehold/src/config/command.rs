//! `leasehold config`: checks and explains configuration files.

use std::ffi::OsString;
use std::path::Path;

use clap::CommandFactory;
use serde_json::json;

use super::file::ConfigFile;
use super::{Configured, Place, Setting, Wrong, cluster, exports, keys, origins, parse};
use crate::cli::{Arguments, Command, ConfigCommand, ConfigKeys, ConfigShow};
use crate::{Failure, mount, proxy, serve};

/// Runs the command.
///
/// # Errors
/// The first mistake of the file.
pub fn run(command: &ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check(check) => {
            let (kind, configured) = configured(&check.file, &[])?;
            let wrong = |Failure(why)| Failure(format!("{}: {why}", check.file.display()));
            check_start(&configured.arguments.command).map_err(wrong)?;
            let set = configured.settings.iter().filter(|setting| matches!(setting.from, Place::Line(_)));
            crate::output::line(format_args!("{}: a {kind} with {} keys", check.file.display(), set.count()));
            Ok(())
        }
        ConfigCommand::Show(show) => self::show(show),
        ConfigCommand::Keys(of) => {
            list(of);
            Ok(())
        }
    }
}

/// Checks what a start would refuse before it touches anything, which the text of a file does not show.
fn check_start(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Serve(serve) => serve::check(serve),
        Command::Proxy(proxy) => proxy::check(proxy),
        Command::Mount(mount) => mount::check_start(mount),
        _ => Ok(()),
    }
}

/// What a file and options of a command line say together, and for which command.
fn configured(path: &Path, options: &[OsString]) -> Result<(&'static str, Configured), Failure> {
    let file = ConfigFile::load(path)?;
    let kind = kind(&file)?;
    let mut given: Vec<OsString> = ["leasehold", kind, "--config"].map(OsString::from).to_vec();
    given.push(path.into());
    given.extend(options.iter().cloned());
    match parse(&given, Path::new("")) {
        Ok(configured) => Ok((kind, configured)),
        Err(Wrong::File(failure)) => Err(failure),
        Err(Wrong::CommandLine(error)) => Err(Failure(super::first_line(&error))),
    }
}

/// The command to which a file belongs.
fn kind(file: &ConfigFile) -> Result<&'static str, Failure> {
    let table = file.table()?;
    let kinds = [("origin", "proxy"), ("source", "mount"), ("export", "serve")];
    let found = kinds.iter().find(|(key, _)| table.contains_key(*key)).map(|(_, kind)| *kind);
    found.ok_or_else(|| {
        file.lacks(
            "it is of no command: a proxy has `origin` or an [[origin]], a mount has `source`, and a serve has an [[export]]",
        )
    })
}

fn show(show: &ConfigShow) -> Result<(), Failure> {
    let (_, configured) = configured(&show.of.file, &show.options)?;
    let path = show.of.file.display().to_string();
    if show.json {
        for Setting { key, value, from } in &configured.settings {
            let line = if let Place::Line(line) = from { Some(*line) } else { None };
            let source = match from {
                Place::Default => "default",
                Place::Line(_) => "file",
                Place::CommandLine => "command line",
            };
            crate::output::line(json!({ "key": key, "value": value, "from": source, "line": line }));
        }
        return Ok(());
    }
    let width = |column: fn(&Setting) -> usize| configured.settings.iter().map(column).max().unwrap_or(0);
    let keys = width(|setting| setting.key.chars().count());
    let values =
        width(|setting| setting.value.as_deref().unwrap_or("-").chars().count()).min(VALUE_WIDTH_MAX);
    for Setting { key, value, from } in &configured.settings {
        let from = match from {
            Place::Default => "default".to_owned(),
            Place::Line(line) => format!("{path}:{line}"),
            Place::CommandLine => "command line".to_owned(),
        };
        let value = value.as_deref().unwrap_or("-");
        crate::output::line(format_args!("{key:keys$}  {value:values$}  {from}"));
    }
    Ok(())
}

/// The width of the column of values. A longer value moves what is right of it.
const VALUE_WIDTH_MAX: usize = 40;

fn list(of: &ConfigKeys) {
    let mut program = Arguments::command();
    program.build();
    let Some(command) = program.find_subcommand(&of.command) else { return };
    for key in keys::of(command) {
        crate::output::line(format_args!("{}\n    {}", key.heading(), key.help()));
    }
    if of.command == "proxy" {
        for (key, default) in origins::keys() {
            let default = match default {
                Some("") => String::new(),
                Some(default) => format!(" [default: {default}]"),
                None => format!(" [default: {key} of the file]"),
            };
            crate::output::line(format_args!("[[origin]] {key}{default}"));
        }
        list_table("[cluster]", &cluster::KEYS);
        list_table("[[server]]", &cluster::SERVER_KEYS);
    }
    if of.command == "serve" {
        list_table("[[export]]", &exports::KEYS);
    }
}

fn list_table(table: &str, keys: &[(&str, &str)]) {
    for (key, default) in keys {
        let default = if default.is_empty() { String::new() } else { format!(" [default: {default}]") };
        crate::output::line(format_args!("{table} {key}{default}"));
    }
}
