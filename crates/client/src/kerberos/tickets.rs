//! The places of tickets: the keytab of this machine, and the ticket caches of its users.
//!
//! As for rpc.gssd(8), the cache of a user is the newest file of that user in certain directories whose name
//! begins with `krb5cc`. Other users can write to these directories. So the file is opened first, without
//! following a link, and its owner is that of the open file. The library gets the open file by its name in
//! /proc.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gss::Source;
use rustix::fs::OFlags;

use super::Who;

/// The keytab of a machine.
const KEYTAB: &str = "/etc/krb5.keytab";
/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 100_000;
const PREFIX: &[u8] = b"krb5cc";

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tickets {
    /// The keytab of the machine. [`KEYTAB`], if `None` and it is there.
    pub keytab: Option<PathBuf>,
    /// The directory with the ticket caches. If `None`, /run/user/UID and /tmp.
    pub directory: Option<PathBuf>,
}

/// The credentials of a user.
#[derive(Debug)]
pub(super) struct Found {
    source: Source,
    /// The file that the source names in /proc. It stays open while the library reads it.
    file: Option<(File, PathBuf)>,
}

impl Found {
    fn new(source: Source) -> Found {
        Found { source, file: None }
    }

    /// The source, as the library takes it.
    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    /// A message of the library, with the name that the user knows.
    pub(super) fn named(&self, message: &str) -> String {
        match (&self.source, &self.file) {
            (Source::Cache(name), Some((_, path))) => message.replace(name, &path.display().to_string()),
            _ => message.to_owned(),
        }
    }
}

impl Tickets {
    /// The credentials of a user.
    ///
    /// # Errors
    /// A message if the user has no ticket cache.
    pub(super) fn source(&self, who: Who) -> Result<Found, String> {
        let own = rustix::process::geteuid();
        match who {
            Who::Machine => Ok(Found::new(self.of_machine())),
            // A mount of one user has the environment of that user.
            Who::User(uid) if uid == own.as_raw() && self.directory.is_none() => {
                Ok(Found::new(Source::Default))
            }
            Who::User(uid) => {
                let directories = match &self.directory {
                    Some(directory) => vec![directory.clone()],
                    None => vec![format!("/run/user/{uid}").into(), "/tmp".into()],
                };
                let newest = directories.iter().filter_map(|directory| newest_of(directory, uid)).max();
                let lacks = || format!("user {uid} has no tickets in {}; run kinit", shown(&directories));
                let (_, path) = newest.ok_or_else(lacks)?;
                let file = open_of(&path, uid).ok_or_else(lacks)?;
                let name = format!("FILE:/proc/self/fd/{}", file.as_raw_fd());
                Ok(Found { source: Source::Cache(name), file: Some((file, path)) })
            }
        }
    }

    fn of_machine(&self) -> Source {
        let usual = || Some(PathBuf::from(KEYTAB)).filter(|path| File::open(path).is_ok());
        match self.keytab.clone().or_else(usual) {
            Some(path) => Source::Keytab { path, principal: None },
            None => Source::Default,
        }
    }
}

fn shown(directories: &[PathBuf]) -> String {
    let names: Vec<String> = directories.iter().map(|directory| directory.display().to_string()).collect();
    names.join(" or ")
}

/// The newest ticket cache of a user in a directory.
fn newest_of(directory: &Path, uid: u32) -> Option<(SystemTime, PathBuf)> {
    let entries = std::fs::read_dir(directory).ok()?.take(ENTRIES_MAX).filter_map(Result::ok);
    let is_cache = |name: &OsStr| name.as_bytes().starts_with(PREFIX);
    let caches = entries.filter(|entry| is_cache(&entry.file_name())).filter_map(|entry| {
        // This does not follow links.
        let metadata = entry.metadata().ok()?;
        let changed = metadata.modified().ok()?;
        (metadata.is_file() && metadata.uid() == uid).then(|| (changed, entry.path()))
    });
    caches.max()
}

/// Opens the file if it is one of this user, and no link.
fn open_of(path: &Path, uid: u32) -> Option<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && metadata.uid() == uid).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    fn make(path: &Path, age: Duration) {
        let file = File::create(path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    #[test]
    fn the_newest_file_of_the_user_is_taken_and_no_link_to_one() {
        let directory = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let of = |name: &str| directory.path().join(name);
        assert_eq!(newest_of(directory.path(), own), None);
        make(&of("krb5cc_1"), Duration::from_secs(100));
        make(&of("krb5cc_1_new"), Duration::from_secs(50));
        make(&of("other"), Duration::ZERO);
        std::fs::create_dir(of("krb5cc_dir")).unwrap();
        symlink(of("other"), of("krb5cc_link")).unwrap();
        let (_, newest) = newest_of(directory.path(), own).unwrap();
        assert_eq!(newest, of("krb5cc_1_new"));
        assert_eq!(newest_of(directory.path(), own + 1), None, "files of another user");
        assert!(open_of(&newest, own).is_some() && open_of(&newest, own + 1).is_none());
        assert!(open_of(&of("krb5cc_link"), own).is_none() && open_of(&of("krb5cc_dir"), own).is_none());
    }

    #[test]
    fn root_is_the_machine_and_a_user_without_tickets_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let keytab = Some(PathBuf::from("/k"));
        let tickets = Tickets { keytab: keytab.clone(), directory: Some(directory.path().to_owned()) };
        let found = tickets.source(Who::Machine).unwrap();
        assert_eq!(found.source, Source::Keytab { path: "/k".into(), principal: None });
        let lacks = tickets.source(Who::User(4_000_000)).unwrap_err();
        assert!(lacks.contains("user 4000000") && lacks.contains("kinit"), "{lacks}");
    }
}
