//! `--manage-gids`, the word of rpc.mountd(8): the supplementary groups of an AUTH_SYS user are those of the
//! server's user database. Those that the client sent do not count. AUTH_SYS has space for sixteen.
//!
//! A look-up may take long (LDAP), so it runs in a thread of its own. The users whose groups are known do not
//! wait for it. For failures see [`Groups::of`].

mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use table::{Asked, Begun, Ended, Found, PATIENCE, Table};

/// The most threads that look users up.
const THREADS_MAX: usize = 8;
/// The most groups of one user: `NGROUPS_MAX` of Linux.
const GROUPS_MAX: usize = 65_536;

/// The user database of this machine.
pub trait UserDatabase: Send + Sync + 'static {
    /// The groups of a user, its group in the user database among them; none if there is no such user. This
    /// may block for long.
    ///
    /// # Errors
    /// If the database could not be asked.
    fn groups_of(&self, uid: u32) -> io::Result<Option<Vec<u32>>>;
}

/// The groups of users, cached.
#[derive(Clone)]
pub struct Groups(Arc<Inner>);

struct Inner {
    database: Box<dyn UserDatabase>,
    table: Mutex<Table>,
    threads: Arc<Semaphore>,
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Groups({:?})", self.counts())
    }
}

/// The groups of one user, or the wait for them.
pub(crate) enum Lookup {
    Known(Arc<[u32]>),
    Wait(Waiting),
}

/// See [`Lookup`].
pub(crate) struct Waiting {
    ended: Ended,
    until: Instant,
    otherwise: Arc<[u32]>,
}

impl Groups {
    /// Groups out of this database.
    pub fn new(database: impl UserDatabase) -> Groups {
        let (table, threads) = (Mutex::default(), Arc::new(Semaphore::new(THREADS_MAX)));
        Groups(Arc::new(Inner { database: Box::new(database), table, threads }))
    }

    /// Forgets all answers.
    pub fn forget(&self) {
        self.0.table.lock().forget();
    }

    /// The users that are remembered, and the look-ups in flight or waiting for a thread.
    pub fn counts(&self) -> (usize, usize) {
        let table = self.0.table.lock();
        (table.len(), table.look_ups())
    }

    /// The groups of a user, or the wait for a look-up that is then in flight.
    ///
    /// A user that does not exist has no groups. If the database fails or is late, the groups are those of
    /// the last answer, if it is not too old, and else none. So the server may refuse what the user may do.
    /// It grants more only where a mode gives the group less than others, as 0604 does, or where an access
    /// control list does so.
    pub(crate) fn of(&self, uid: u32) -> Lookup {
        let asked = self.0.table.lock().ask(uid, Instant::now());
        let (ended, until, otherwise) = match asked {
            Asked::Known(groups) => return Lookup::Known(groups),
            Asked::Wait { ended, until, otherwise } => (ended, until, otherwise),
            Asked::Begin { ended, until, otherwise, begun } => {
                tokio::spawn(look_up(self.0.clone(), begun));
                (ended, until, otherwise)
            }
        };
        Lookup::Wait(Waiting { ended, until, otherwise })
    }
}

impl Waiting {
    /// The groups, once they are looked up. Waits a few seconds at most.
    pub(crate) async fn groups(mut self) -> Arc<[u32]> {
        let ended = timeout_at(self.until, self.ended.wait_for(Option::is_some)).await;
        match ended.ok().and_then(Result::ok).and_then(|found| found.clone()) {
            Some(Found::Groups(groups)) => groups,
            Some(Found::NoUser) => Arc::new([]),
            Some(Found::Failed) | None => self.otherwise,
        }
    }
}

/// Makes a look-up, as soon as a thread is free. If none gets free in time, the look-up has failed.
async fn look_up(inner: Arc<Inner>, begun: Begun) {
    let uid = begun.uid;
    let permit = timeout_at(begun.began + PATIENCE, inner.threads.clone().acquire_owned()).await;
    let found = match permit {
        Ok(Ok(permit)) => in_thread(inner.clone(), uid, permit).await,
        _ => Err(io::Error::new(io::ErrorKind::TimedOut, "other look-ups take too long")),
    };
    let found = match found {
        Ok(Some(mut groups)) => {
            groups.truncate(GROUPS_MAX);
            Found::Groups(groups.into())
        }
        Ok(None) => Found::NoUser,
        Err(error) => {
            tracing::warn!(
                uid,
                "the groups of a user cannot be looked up: {error}; until then it has those of the last half hour, or none; look at nsswitch.conf(5) and its services"
            );
            Found::Failed
        }
    };
    inner.table.lock().end(begun, found, Instant::now());
}

/// Asks the database in a thread of its own: a thread of the runtime that hangs would delay the end of the
/// process.
async fn in_thread(
    inner: Arc<Inner>,
    uid: u32,
    permit: OwnedSemaphorePermit,
) -> io::Result<Option<Vec<u32>>> {
    let (answer, answered) = oneshot::channel();
    let thread = std::thread::Builder::new().name("groups".to_owned());
    thread.spawn(move || {
        let _ = answer.send(inner.database.groups_of(uid));
        drop(permit);
    })?;
    answered.await.unwrap_or_else(|_| Err(io::Error::other("the look-up ended without an answer")))
}
