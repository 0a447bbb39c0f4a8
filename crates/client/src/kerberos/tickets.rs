//! The places of tickets: the keytab of this machine, and the ticket caches of its users.
//!
//! As for rpc.gssd(8), the cache of a user is the newest file of that user in certain directories whose name
//! begins with `krb5cc`. Other users can write to these directories. So the file is opened first, without
//! following a link, and its owner is that of the open file. The library gets the open file by its name in
//! /proc.
//!
//! Then come the user's persistent keyring (persistent-keyring(7)) and KCM. The kernel and the daemon of KCM
//! give each user the own tickets alone, whom they know by the effective user id. So the library runs in a
//! thread which has that of the user. The real and the saved one stay those of root, so that the user cannot
//! send signals to the thread.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use gss::Source;
use rpc::NoContext;
use rpc::rpcsec_gss::initiator;
use rustix::fs::OFlags;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;

use super::Who;

/// The keytab of a machine.
const KEYTAB: &str = "/etc/krb5.keytab";
/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 100_000;
const PREFIX: &[u8] = b"krb5cc";
/// `(uid_t) -1` is no user: setresuid(2) would leave root as it is.
const NOBODY: u32 = u32::MAX;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tickets {
    /// The keytab of the machine. [`KEYTAB`], if `None` and it is there.
    pub keytab: Option<PathBuf>,
    /// The directory with the ticket caches. If `None`, /run/user/UID and /tmp; then keyrings and KCM.
    pub directory: Option<PathBuf>,
}

/// Credentials that a user may have.
#[derive(Debug)]
struct Place {
    source: Source,
    /// The file that the source names in /proc. It stays open while the library reads it.
    file: Option<(File, PathBuf)>,
    /// The user as whom the library must look there.
    of_user: Option<Uid>,
}

impl Place {
    fn new(source: Source) -> Place {
        Place { source, file: None, of_user: None }
    }

    /// Has the library begin there.
    fn begin<T: Send>(&self, begin: &Begin<'_, T>) -> Result<T, Failed> {
        let Some(uid) = self.of_user else { return begin(&self.source).map_err(Failed::There) };
        std::thread::scope(|threads| {
            let as_user = move || {
                set_thread_res_uid(None, uid, None).map_err(|_| Failed::Elsewhere)?;
                begin(&self.source).map_err(Failed::There)
            };
            let running = std::thread::Builder::new().spawn_scoped(threads, as_user);
            running.map_err(|_| Failed::Elsewhere)?.join().unwrap_or(Err(Failed::Elsewhere))
        })
    }

    /// A message of the library, with the name that the user knows.
    fn named(&self, message: &str) -> String {
        match (&self.source, &self.file) {
            (Source::Cache(name), Some((_, path))) => message.replace(name, &path.display().to_string()),
            _ => message.to_owned(),
        }
    }

    /// Does a failure there say that the user has tickets, or had?
    fn explains(&self, error: &initiator::Error) -> bool {
        self.of_user.is_none() || error.is_expired() || error.is_no_answer()
    }
}

/// Begins a context with credentials.
type Begin<'b, T> = dyn Fn(&Source) -> Result<T, initiator::Error> + Sync + 'b;

/// Why a context was not begun at a place.
enum Failed {
    There(initiator::Error),
    /// This process cannot look there.
    Elsewhere,
}

impl Tickets {
    /// Begins a context with the first credentials of a user with which that works.
    ///
    /// # Errors
    /// The most useful of the failures, or a message that the user has no tickets.
    pub(super) fn begin<T: Send>(&self, who: Who, begin: &Begin<'_, T>) -> Result<T, NoContext> {
        let mut lacks = None;
        for place in self.places(who) {
            match place.begin(begin) {
                Ok(begun) => return Ok(begun),
                Err(Failed::There(error)) if lacks.is_none() && place.explains(&error) => {
                    lacks = Some(NoContext::of(&error, &place.named(&error.to_string())));
                }
                Err(_) => {}
            }
        }
        Err(lacks.unwrap_or_else(|| NoContext::because(&self.lacks(who))))
    }

    fn places(&self, who: Who) -> Vec<Place> {
        let own = rustix::process::geteuid();
        let uid = match who {
            Who::Machine => return vec![Place::new(self.of_machine())],
            // A mount of one user has the environment of that user.
            Who::User(uid) if uid == own.as_raw() && self.directory.is_none() => {
                return vec![Place::new(Source::Default)];
            }
            Who::User(uid) => uid,
        };
        let newest = self.directories(uid).iter().filter_map(|directory| newest_of(directory, uid)).max();
        let in_file = newest.and_then(|(_, path)| {
            let file = open_of(&path, uid)?;
            let source = Source::Cache(format!("FILE:/proc/self/fd/{}", file.as_raw_fd()));
            Some(Place { source, file: Some((file, path)), of_user: None })
        });
        let mut places = Vec::from_iter(in_file);
        if own.is_root() && self.directory.is_none() && uid != NOBODY {
            places.extend(["KEYRING:persistent", "KCM"].map(|kind| Place {
                source: Source::Cache(format!("{kind}:{uid}")),
                file: None,
                of_user: Some(Uid::from_raw(uid)),
            }));
        }
        places
    }

    fn directories(&self, uid: u32) -> Vec<PathBuf> {
        match &self.directory {
            Some(directory) => vec![directory.clone()],
            None => vec![format!("/run/user/{uid}").into(), "/tmp".into()],
        }
    }

    fn lacks(&self, who: Who) -> String {
        let Who::User(uid) = who else { return "this machine has no key".to_owned() };
        let directories = shown(&self.directories(uid));
        let elsewhere = if self.directory.is_none() { ", in its persistent keyring or in KCM" } else { "" };
        format!("user {uid} has no tickets in {directories}{elsewhere}; run kinit")
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
        let source = tickets.places(Who::Machine).remove(0).source;
        assert_eq!(source, Source::Keytab { path: "/k".into(), principal: None });
        let begin = |_: &Source| -> Result<(), _> { panic!("there is no ticket") };
        let lacks = tickets.begin(Who::User(4_000_000), &begin).unwrap_err().to_string();
        assert!(lacks.contains("user 4000000") && lacks.contains("kinit"), "{lacks}");
    }
}
