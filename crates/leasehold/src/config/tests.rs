//! Files that are right, files that are wrong, and files of noise.

use std::ffi::OsString;
use std::path::Path;

use proptest::prelude::*;

use super::{Configured, Place, Wrong, first_line, parse};
use crate::cli::Command;

/// What a command says with a file of this text, and further arguments.
fn parse_text(command: &str, text: &str, more: &[&str]) -> Result<Configured, String> {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("f"), text).unwrap();
    let given: Vec<OsString> =
        ["leasehold", command, "--config", "f"].iter().chain(more).map(OsString::from).collect();
    parse(&given, directory.path()).map_err(|wrong| match wrong {
        Wrong::CommandLine(error) => first_line(&error),
        Wrong::File(failure) => failure.0.replace(&format!("{}/", directory.path().display()), ""),
    })
}

fn value<'c>(configured: &'c Configured, key: &str) -> (Option<&'c str>, &'c Place) {
    let setting = configured.settings.iter().find(|setting| setting.key == key).unwrap();
    (setting.value.as_deref(), &setting.from)
}

#[test]
fn a_file_says_what_the_options_say() {
    let text = "# of a proxy\norigin = 'nfs://filer/export'\ncache_size = '100G'\nudp = false\nsecure = false\n\
                clients = ['10.0.0.0/8', '::1']\nlease_time = 30\nmetrics = 9464\nfill = true\n";
    let configured = parse_text("proxy", text, &[]).unwrap();
    let Command::Proxy(proxy) = &configured.arguments.command else { panic!("a proxy") };
    assert_eq!(proxy.origin.as_ref().unwrap().to_string(), "nfs://filer/export");
    assert_eq!((proxy.keeping.cache_size, proxy.keeping.no_fill), (100 << 30, false));
    assert!(proxy.network.no_udp && proxy.access.insecure && !proxy.network.no_rpcbind);
    assert!(proxy.access.clients.admits("10.9.9.9".parse().unwrap()));
    assert_eq!(proxy.version4.lease_time, 30);
    assert_eq!(proxy.network.metrics, Some("127.0.0.1:9464".parse().unwrap()));
    assert_eq!(value(&configured, "cache_size"), (Some("100G"), &Place::Line(3)));
    assert_eq!(value(&configured, "secure"), (Some("false"), &Place::Line(5)));
    assert_eq!(value(&configured, "min_free"), (Some("1G"), &Place::Default));
    assert_eq!(value(&configured, "rpcbind"), (Some("true"), &Place::Default));
    assert_eq!(value(&configured, "handle_key"), (None, &Place::Default));
}

#[test]
fn the_command_line_overrides_a_file() {
    let text = "origin = 'nfs://filer/export'\ncache_size = '100G'\nall_squash = true\n";
    let more = ["--cache-size", "1G", "--no-root-squash", "nfs://other/export"];
    let configured = parse_text("proxy", text, &more).unwrap();
    let Command::Proxy(proxy) = &configured.arguments.command else { panic!("a proxy") };
    assert_eq!(
        (proxy.origin.as_ref().unwrap().to_string().as_str(), proxy.keeping.cache_size),
        ("nfs://other/export", 1 << 30)
    );
    // `all_squash` contradicts `--no-root-squash`.
    assert!(proxy.access.no_root_squash && !proxy.access.all_squash);
    assert_eq!(value(&configured, "cache_size"), (Some("1G"), &Place::CommandLine));
    assert_eq!(value(&configured, "all_squash"), (Some("false"), &Place::Default));
}

#[test]
fn a_mount_has_its_source_and_its_directory_in_any_order() {
    let text = "options = ['vers=4.2', 'cachesize=1G']\ndirectory = '/mnt'\nsource = 'filer:/export'\n";
    let configured = parse_text("mount", text, &["--foreground", "-o", "cachesize=2G"]).unwrap();
    let Command::Mount(mount) = &configured.arguments.command else { panic!("a mount") };
    assert_eq!((mount.source.as_str(), mount.directory.as_path()), ("filer:/export", Path::new("/mnt")));
    assert_eq!(mount.options, ["vers=4.2,cachesize=1G", "cachesize=2G"]);
    assert!(mount.foreground);
}

#[test]
fn a_serve_has_its_own_keys_and_those_of_its_exports() {
    let text = "listen = '127.0.0.1:2050'\nlog_level = 'info'\n\n[[export]]\ndirectory = '/srv'\nro = true\n";
    let configured = parse_text("serve", text, &[]).unwrap();
    let Command::Serve(serve) = &configured.arguments.command else { panic!("a serve") };
    assert_eq!(serve.network.listen, "127.0.0.1:2050".parse().unwrap());
    assert_eq!(configured.arguments.logging.log_level.as_deref(), Some("info"));
    assert_eq!(value(&configured, "export /srv ro"), (Some("true"), &Place::Line(6)));
    assert_eq!(value(&configured, "export /srv secure"), (Some("true"), &Place::Default));
}

/// Wrong files, and the message for each. A file of a proxy has an origin on its first line, before what is
/// here.
const WRONG: [(&str, &str, &str); 37] = [
    ("proxy", "cache_sise = '1G'", "f:2:1: unknown key `cache_sise`: did you mean `cache_size`?"),
    ("proxy", "cache-size = '1G'", "f:2:1: unknown key `cache-size`: did you mean `cache_size`?"),
    (
        "proxy",
        "no_udp = true",
        "f:2:1: unknown key `no_udp`: `leasehold config keys proxy` lists those of `proxy`",
    ),
    ("proxy", "x = 1", "f:2:1: unknown key `x`: `leasehold config keys proxy` lists those of `proxy`"),
    ("proxy", "config = 'g'", "f:2:1: unknown key `config`"),
    ("proxy", "help = true", "f:2:1: unknown key `help`"),
    ("proxy", "[cache]\nsize = 1", "f:2:1: `cache` must be a string, and this is a table"),
    ("proxy", "cache_size = 'lots'", "f:2:14: `cache_size`: `lots` is not a size: write a number of bytes"),
    ("proxy", "cache_size = 1.5", "f:2:14: `cache_size` must be a string, and this is a float"),
    ("proxy", "cache_size = true", "f:2:14: `cache_size` must be a string, and this is a boolean"),
    ("proxy", "cache_size = -1", "f:2:14: `cache_size`: `-1` is not a size"),
    ("proxy", "udp = 'no'", "f:2:7: `udp` must be true or false, and this is a string"),
    ("proxy", "udp = 0", "f:2:7: `udp` must be true or false, and this is an integer"),
    ("proxy", "lease_time = '90'", "f:2:14: `lease_time` must be a number, and this is a string"),
    ("proxy", "lease_time = 1", "f:2:14: `lease_time`: 1 is not in 5..=3600"),
    ("proxy", "lease_time = 0x10", "f:2:14: `lease_time` must be a number, and this is an integer"),
    ("proxy", "anonuid = 99999999999", "f:2:11: `anonuid`: 99999999999 is not in 0..=4294967295"),
    ("proxy", "offline = 'perhaps'", "f:2:11: `offline` is one of wait, read, and not `perhaps`"),
    ("proxy", "delegations = 2026-11-26", "f:2:15: `delegations` must be a string, and this is a datetime"),
    ("proxy", "listen = '2049'", "f:2:10: `listen`: write an address and a port"),
    ("proxy", "metrics = 99999", "f:2:11: `metrics`: `99999` is not a port"),
    ("proxy", "clients = []", "f:2:11: `clients` is empty: leave it out, or name one"),
    ("proxy", "clients = [1]", "f:2:11: `clients` must be a list of strings, and this is an integer"),
    ("proxy", "clients = ['fil er']", "f:2:11: `clients`: `fil er` is no client address"),
    ("proxy", "log_level = ''", "f:2:13: `log_level`: `` is not a level"),
    ("proxy", "log_format = 'xml'", "f:2:14: `log_format` is one of text, json, and not `xml`"),
    ("proxy", "udp = true\nudp = false", "f:3:1: duplicate key"),
    ("proxy", "udp = ", "f:2:7: string values must be quoted"),
    ("proxy", "cache = \"/var", "f:2:14: invalid basic string"),
    (
        "proxy",
        "all_squash = true\nro = true\nroot_squash = false",
        "f:4:1: `root_squash` contradicts `all_squash` of line 2: leave one of them out",
    ),
    ("serve", "ro = true", "f:1:1: `ro` belongs to an export: write it below [[export]]"),
    ("serve", "listen = '[::]:2049'", "f: it exports nothing: add an [[export]] with a directory"),
    ("serve", "[[export]]\nro = true", "f:1:1: missing field `directory`"),
    ("serve", "[export]\ndirectory = '/srv'", "f:1:1: invalid type: map, expected a sequence"),
    ("mount", "directory = '--sloppy'", "f:1:13: `directory` is `--sloppy`, and must not begin with -"),
    ("mount", "source = 'filer:/export'", "f: it does not say `directory`"),
    ("mount", "source = 'filer'\ndirectory = '/mnt'", "f:1:10: `filer` is not a server: write nfs:"),
];

#[test]
fn a_mistake_is_named_with_its_place_and_the_way_out() {
    for (command, text, message) in WRONG {
        let first = if command == "proxy" { "origin = 'nfs://filer/export'\n" } else { "" };
        let said = parse_text(command, &format!("{first}{text}\n"), &[]).unwrap_err();
        assert!(said.starts_with(message), "{command}: {text}\n{said}\n{message}");
        assert!(!said.contains('\n'), "{said}");
    }
}

#[test]
fn what_neither_the_file_nor_the_command_line_says_is_named() {
    let said = parse_text("proxy", "udp = false\n", &[]).unwrap_err();
    assert_eq!(said, "f: it does not say `origin`");
    let options = "source = 'h:/e'\ndirectory = '/mnt'\noptions = 'rw,nocache'\n";
    let said = parse_text("mount", options, &[]).unwrap_err();
    assert!(said.starts_with("f:3:11: ") && said.contains("`nocache`"), "{said}");
}

proptest! {
    /// Whatever a file has, it is read, or one line says why not.
    #[test]
    fn noise_is_refused_in_one_line(
        text in "(([a-z_]{1,12}|export|origin|udp|clients) ?= ?('[^']{0,9}'|[0-9.xe-]{1,6}|true|\\[.{0,5}\\])\n|\\[\\[?[a-z.]{1,8}\\]\\]?\n|\\PC{0,20}\n){0,6}",
        command in prop::sample::select(vec!["serve", "proxy", "mount"]),
    ) {
        if let Err(said) = parse_text(command, &text, &[]) {
            prop_assert!(!said.contains('\n') && !said.is_empty(), "{said}");
        }
    }
}
