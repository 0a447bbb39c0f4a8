//! The numbers of users and groups whose names a client of version 4 sends (RFC 7530, section 5.9): a client
//! with Kerberos sends names. A look-up may take long (LDAP), so it runs in a thread of its own.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// How long a call waits for a look-up. The client then asks again.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most threads that look names up.
const THREADS_MAX: usize = 8;

/// User or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A user, as in `owner`.
    User,
    /// A group, as in `owner_group`.
    Group,
}

/// The names that this machine knows.
pub trait NameDatabase: Send + Sync + 'static {
    /// The number of a user or group; none if there is none of this name. This may block for long.
    ///
    /// # Errors
    /// If the database could not be asked.
    fn number_of(&self, name: &str, kind: Kind) -> io::Result<Option<u32>>;
}

/// passwd(5) and group(5).
struct Files;

impl NameDatabase for Files {
    fn number_of(&self, name: &str, kind: Kind) -> io::Result<Option<u32>> {
        let table = match kind {
            Kind::User => "/etc/passwd",
            Kind::Group => "/etc/group",
        };
        Ok(find(&std::fs::read_to_string(table)?, name))
    }
}

/// The third field of the line that begins with this name: the number in passwd(5) and group(5).
fn find(table: &str, name: &str) -> Option<u32> {
    let mut lines = table.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok()).flatten())
}

/// Looks names up in a database.
#[derive(Clone)]
pub(crate) struct Names {
    database: Arc<dyn NameDatabase>,
    threads: Arc<Semaphore>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

impl Default for Names {
    /// By the files alone.
    fn default() -> Names {
        Names::new(Files)
    }
}

impl Names {
    pub(crate) fn new(database: impl NameDatabase) -> Names {
        Names { database: Arc::new(database), threads: Arc::new(Semaphore::new(THREADS_MAX)) }
    }

    /// The number of a name; none if there is none of this name.
    ///
    /// # Errors
    /// If the database fails or takes too long.
    pub(crate) async fn number_of(&self, name: &str, kind: Kind) -> io::Result<Option<u32>> {
        timeout(PATIENCE, self.in_thread(name.to_owned(), kind))
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "the look-up takes too long")))
    }

    /// A thread of the runtime that hangs would delay the end of the process.
    async fn in_thread(&self, name: String, kind: Kind) -> io::Result<Option<u32>> {
        let ended = || io::Error::other("the look-up ended without an answer");
        let permit = self.threads.clone().acquire_owned().await.map_err(|_| ended())?;
        let (answer, answered) = oneshot::channel();
        let database = self.database.clone();
        std::thread::Builder::new().name("names".to_owned()).spawn(move || {
            let _ = answer.send(database.number_of(&name, kind));
            drop(permit);
        })?;
        answered.await.unwrap_or_else(|_| Err(ended()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_of_the_files_have_numbers() {
        assert_eq!(find("daemon:x:1:1::/:\nalice:x:1001:100:A:/:\n", "alice"), Some(1001));
        let names = Names::default();
        assert_eq!(names.number_of("root", Kind::User).await.unwrap(), Some(0));
        assert_eq!(names.number_of("root", Kind::Group).await.unwrap(), Some(0));
        assert_eq!(names.number_of("nobody of that name", Kind::User).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_up_that_hangs_is_an_error() {
        struct Hangs;
        impl NameDatabase for Hangs {
            fn number_of(&self, _: &str, _: Kind) -> io::Result<Option<u32>> {
                loop {
                    std::thread::park();
                }
            }
        }
        let error = Names::new(Hangs).number_of("alice", Kind::User).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
