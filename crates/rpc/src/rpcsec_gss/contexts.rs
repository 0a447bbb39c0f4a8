//! The contexts of a server, by their handles, within bounds: in all, of one user, and of those that are
//! still being made.
//!
//! A handle has the number of the context behind a random number of this process, so that a handle of an
//! earlier process is unknown and not another context. Handles are no secrets: calls are signed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gss::{Accepting, Context};
use parking_lot::Mutex;

use super::User;
use super::window::Window;

/// The bounds of a table.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Contexts.
    pub contexts: usize,
    /// Contexts of one principal.
    pub of_user: usize,
    /// Contexts that are being made.
    pub begun: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { contexts: 16_384, of_user: 1_024, begun: 256 }
    }
}

/// How long a context may take to be made.
const MAKING: Duration = Duration::from_secs(30);

/// An established context.
#[derive(Debug)]
pub struct Established {
    /// The context.
    pub context: Context,
    /// Its user.
    pub user: Arc<User>,
    window: Mutex<Window>,
    ends: Instant,
    /// The turn of the table in which it was used last.
    used: AtomicU64,
}

impl Established {
    /// A context that has just been made.
    pub fn new(context: Context, user: User, now: Instant) -> Established {
        let ends = now + context.lifetime();
        let window = Mutex::new(Window::new());
        Established { context, user: Arc::new(user), window, ends, used: AtomicU64::new(0) }
    }

    /// Takes the number of a call. False if it was taken before.
    pub fn take(&self, number: u32) -> bool {
        self.window.lock().take(number)
    }
}

/// The contexts.
#[derive(Debug)]
pub struct Contexts {
    bounds: Bounds,
    process: [u8; 8],
    /// The number of the newest context.
    last: u64,
    /// Counts the uses.
    turn: u64,
    established: HashMap<u64, Arc<Established>>,
    begun: HashMap<u64, (Accepting, Instant)>,
}

impl Contexts {
    /// An empty table.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new(bounds: Bounds) -> Result<Contexts, getrandom::Error> {
        let mut process = [0; 8];
        getrandom::fill(&mut process)?;
        let (established, begun) = (HashMap::new(), HashMap::new());
        Ok(Contexts { bounds, process, last: 0, turn: 0, established, begun })
    }

    /// The context of a handle, unless it has ended.
    pub fn get(&mut self, handle: &[u8], now: Instant) -> Option<Arc<Established>> {
        let number = self.number(handle)?;
        let found = self.established.get(&number)?;
        if found.ends <= now {
            self.established.remove(&number);
            return None;
        }
        self.turn += 1;
        found.used.store(self.turn, Ordering::Relaxed);
        Some(found.clone())
    }

    /// Adds a context. Drops others if there are too many: those that have ended, or the one that was not
    /// used for the longest time. Returns the handle.
    pub fn add(&mut self, established: Established, now: Instant) -> [u8; 16] {
        let principal = &established.user.principal;
        let of_user = |other: &Established| other.user.principal == *principal;
        if self.established.values().filter(|other| of_user(other)).count() >= self.bounds.of_user {
            self.drop_oldest(of_user);
        }
        if self.established.len() >= self.bounds.contexts {
            self.established.retain(|_, other| other.ends > now);
        }
        if self.established.len() >= self.bounds.contexts {
            self.drop_oldest(|_| true);
        }
        self.turn += 1;
        established.used.store(self.turn, Ordering::Relaxed);
        self.last += 1;
        self.established.insert(self.last, Arc::new(established));
        self.handle(self.last)
    }

    fn drop_oldest(&mut self, among: impl Fn(&Established) -> bool) {
        let candidates = self.established.iter().filter(|(_, established)| among(established));
        let used = |established: &Established| established.used.load(Ordering::Relaxed);
        if let Some((&oldest, _)) = candidates.min_by_key(|(_, established)| used(established)) {
            self.established.remove(&oldest);
        }
    }

    /// Removes a context that its client gave up.
    pub fn remove(&mut self, handle: &[u8]) {
        if let Some(number) = self.number(handle) {
            self.established.remove(&number);
        }
    }

    /// Keeps a context that needs another token. `None` if too many are being made.
    pub fn keep_begun(&mut self, accepting: Accepting, now: Instant) -> Option<[u8; 16]> {
        self.begun.retain(|_, (_, begun)| now.duration_since(*begun) < MAKING);
        if self.begun.len() >= self.bounds.begun {
            return None;
        }
        self.last += 1;
        self.begun.insert(self.last, (accepting, now));
        Some(self.handle(self.last))
    }

    /// Takes a context that needs another token.
    pub fn take_begun(&mut self, handle: &[u8]) -> Option<Accepting> {
        let number = self.number(handle)?;
        self.begun.remove(&number).map(|(accepting, _)| accepting)
    }

    /// The number of contexts.
    pub fn len(&self) -> usize {
        self.established.len()
    }

    fn handle(&self, number: u64) -> [u8; 16] {
        let mut handle = [0; 16];
        handle[..8].copy_from_slice(&self.process);
        handle[8..].copy_from_slice(&number.to_be_bytes());
        handle
    }

    fn number(&self, handle: &[u8]) -> Option<u64> {
        let number = handle.strip_prefix(&self.process)?;
        Some(u64::from_be_bytes(number.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gss::{Acceptor, Initiator, Library, Source, Step};
    use lab::{Realm, with_realm};

    /// Makes contexts of a principal.
    fn maker(realm: &Realm) -> impl Fn(&str) -> Established {
        realm.add_service("nfs/localhost");
        let library = Library::open().unwrap();
        let keys = Acceptor::new(&library, Some(&realm.keytab(&["nfs/localhost"]))).unwrap();
        let tickets = ["alice", "bob"].map(|name| {
            realm.add_user(name, "a secret");
            (name, format!("FILE:{}", realm.tickets(name).display()))
        });
        move |name| {
            let (_, cache) = tickets.iter().find(|(of, _)| *of == name).unwrap();
            let initiator = Initiator::new(&library, &Source::Cache(cache.clone())).unwrap();
            let step = initiator.begin("nfs@localhost").unwrap().step(None).unwrap();
            let Step::Continue { token, .. } = step else { panic!("a token") };
            let Step::Done { context, .. } = keys.begin().step(&token).unwrap() else { panic!("made") };
            let user = User { principal: context.peer().to_owned(), unix: None };
            Established::new(context, user, Instant::now())
        }
    }

    #[test]
    fn the_table_stays_within_its_bounds_and_drops_the_longest_unused() {
        let name =
            "rpcsec_gss::contexts::tests::the_table_stays_within_its_bounds_and_drops_the_longest_unused";
        with_realm(name, |realm| {
            let (of, now) = (maker(realm), Instant::now());
            let mut table = Contexts::new(Bounds { contexts: 4, of_user: 3, begun: 1 }).unwrap();
            let bob = table.add(of("bob"), now);
            let alice: Vec<_> = (0..3).map(|_| table.add(of("alice"), now)).collect();
            // Alice has as many as a user may. Her first is used, so her second goes, and none of bob.
            assert!(table.get(&alice[0], now).is_some());
            let fourth = table.add(of("alice"), now);
            let is_there = |table: &mut Contexts, handle: &[u8]| table.get(handle, now).is_some();
            assert!(is_there(&mut table, &bob) && !is_there(&mut table, &alice[1]));
            // The table is full. The longest unused goes: the first is used again, so it is the third.
            assert!(is_there(&mut table, &alice[0]) && is_there(&mut table, &fourth));
            table.add(of("bob"), now);
            assert_eq!(table.len(), 4);
            assert!(!is_there(&mut table, &alice[2]) && is_there(&mut table, &bob));
            table.remove(&bob);
            assert!(!is_there(&mut table, &bob) && !is_there(&mut table, &alice[0][..8]));
            // All of them end with their tickets.
            let late = now + Duration::from_secs(400 * 24 * 3600);
            assert!(table.get(&fourth, late).is_none() && table.len() == 2);
        });
    }

    #[test]
    fn contexts_that_nobody_completes_give_way() {
        with_realm("rpcsec_gss::contexts::tests::contexts_that_nobody_completes_give_way", |realm| {
            realm.add_service("nfs/localhost");
            let library = Library::open().unwrap();
            let keys = Acceptor::new(&library, Some(&realm.keytab(&["nfs/localhost"]))).unwrap();
            let mut table = Contexts::new(Bounds { contexts: 4, of_user: 3, begun: 1 }).unwrap();
            let now = Instant::now();
            let first = table.keep_begun(keys.begin(), now).unwrap();
            assert!(table.keep_begun(keys.begin(), now).is_none());
            assert!(table.take_begun(&first).is_some() && table.take_begun(&first).is_none());
            table.keep_begun(keys.begin(), now).unwrap();
            assert!(table.keep_begun(keys.begin(), now + MAKING).is_some());
        });
    }
}
