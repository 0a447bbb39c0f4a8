//! The look-ups, over a database that a test writes.

use std::collections::HashMap;
use std::sync::mpsc;
use std::time::Duration;

use super::table::{FRESH, LOOK_UPS_MAX, OLD, PATIENCE_WITH_ANSWER, RETRY, UNKNOWN_FRESH};
use super::*;

/// A database that counts questions. A user in `slow` is not answered before a message comes.
#[derive(Default)]
struct Scripted {
    users: Arc<Mutex<HashMap<u32, Vec<u32>>>>,
    fails: Arc<Mutex<bool>>,
    asked: Arc<Mutex<Vec<u32>>>,
    slow: Option<(u32, Mutex<mpsc::Receiver<()>>)>,
}

impl UserDatabase for Scripted {
    fn groups_of(&self, uid: u32) -> io::Result<Option<Vec<u32>>> {
        self.asked.lock().push(uid);
        if let Some((slow, go)) = &self.slow
            && *slow <= uid
        {
            let _ = go.lock().recv();
        }
        if *self.fails.lock() {
            return Err(io::Error::other("the server is away"));
        }
        Ok(self.users.lock().get(&uid).cloned())
    }
}

async fn of(groups: &Groups, uid: u32) -> Vec<u32> {
    match groups.of(uid) {
        Lookup::Known(groups) => groups.to_vec(),
        Lookup::Wait(waiting) => waiting.groups().await.to_vec(),
    }
}

fn is_known(groups: &Groups, uid: u32) -> bool {
    matches!(groups.of(uid), Lookup::Known(_))
}

#[tokio::test]
async fn one_look_up_serves_all_callers() {
    let database = Scripted::default();
    let forty: Vec<u32> = (100..140).collect();
    database.users.lock().insert(7, forty.clone());
    let asked = database.asked.clone();
    let groups = Groups::new(database);
    let both = tokio::join!(of(&groups, 7), of(&groups, 7));
    assert_eq!(both, (forty.clone(), forty.clone()));
    assert!(is_known(&groups, 7));
    assert_eq!(of(&groups, 8).await, [], "there is no such user");
    assert!(is_known(&groups, 8));
    assert_eq!(*asked.lock(), [7, 8]);
    groups.forget();
    assert!(!is_known(&groups, 7));
    assert_eq!(of(&groups, 7).await, forty);
}

#[tokio::test]
async fn a_look_up_that_hangs_holds_up_no_other_user() {
    let (go, gone) = mpsc::channel();
    let database = Scripted { slow: Some((1000, Mutex::new(gone))), ..Scripted::default() };
    database.users.lock().extend([(7, vec![70]), (1000, vec![71])]);
    let groups = Groups::new(database);
    let Lookup::Wait(hanging) = groups.of(1000) else { panic!("nothing is known") };
    assert_eq!(of(&groups, 7).await, [70]);
    assert_eq!(groups.counts(), (2, 1));
    go.send(()).unwrap();
    assert_eq!(hanging.groups().await[..], [71]);
}

/// Time is paused: it moves when all tasks wait for it.
#[tokio::test(start_paused = true)]
async fn a_look_up_that_finds_no_thread_fails() {
    let (go, gone) = mpsc::channel();
    let database = Scripted { slow: Some((0, Mutex::new(gone))), ..Scripted::default() };
    let asked = database.asked.clone();
    let groups = Groups::new(database);
    let waiting: Vec<_> = (0..=THREADS_MAX as u32).map(|uid| groups.of(uid)).collect();
    let began = Instant::now();
    for lookup in waiting {
        let Lookup::Wait(waiting) = lookup else { panic!("nothing is known") };
        assert_eq!(waiting.groups().await[..], []);
    }
    assert_eq!(began.elapsed(), PATIENCE);
    assert!(is_known(&groups, 0), "nobody waits a second time for a look-up that hangs");
    assert!(asked.lock().len() <= THREADS_MAX);
    drop(go);
}

/// The table alone, with a clock that the test moves.
struct Clocked {
    table: Table,
    now: Instant,
}

impl Clocked {
    fn new() -> Clocked {
        Clocked { table: Table::default(), now: Instant::now() }
    }

    fn begin(&mut self, uid: u32) -> Begun {
        match self.table.ask(uid, self.now) {
            Asked::Begin { begun, .. } => begun,
            other => panic!("no look-up begins: {other:?}"),
        }
    }

    fn known(&mut self, uid: u32) -> Option<Vec<u32>> {
        match self.table.ask(uid, self.now) {
            Asked::Known(groups) => Some(groups.to_vec()),
            Asked::Wait { .. } => None,
            Asked::Begin { begun, .. } => {
                self.table.end(begun, Found::Failed, self.now);
                None
            }
        }
    }

    fn learn(&mut self, uid: u32, groups: &[u32]) {
        let begun = self.begin(uid);
        self.table.end(begun, Found::Groups(groups.into()), self.now);
    }
}

#[tokio::test]
async fn answers_expire_and_serve_on_while_the_database_fails() {
    let mut of = Clocked::new();
    of.learn(7, &[70]);
    of.now += FRESH * 9 / 10;
    assert_eq!(of.known(7), Some(vec![70]));
    of.now += FRESH / 10;
    let begun = of.begin(7);
    let began = of.now;
    match of.table.ask(7, of.now) {
        Asked::Wait { until, otherwise, .. } => {
            assert_eq!((until, &otherwise[..]), (began + PATIENCE_WITH_ANSWER, &[70][..]));
        }
        other => panic!("{other:?}"),
    }
    of.now += PATIENCE_WITH_ANSWER;
    assert_eq!(of.known(7), Some(vec![70]), "the look-up is late");
    of.table.end(begun, Found::Failed, of.now);
    assert_eq!(of.known(7), Some(vec![70]), "no second look-up at once");
    of.now += RETRY;
    let begun = of.begin(7);
    of.now = began + OLD;
    assert_eq!(of.known(7), Some(vec![]), "too old");
    of.table.end(begun, Found::NoUser, of.now);
    assert_eq!(of.known(7), Some(vec![]));
    of.now += UNKNOWN_FRESH;
    of.learn(7, &[71]);
    assert_eq!(of.known(7), Some(vec![71]));
}

#[tokio::test]
async fn an_answer_from_before_forgetting_is_not_kept() {
    let mut of = Clocked::new();
    let Asked::Begin { ended, begun, .. } = of.table.ask(7, of.now) else { panic!("a look-up") };
    of.table.forget();
    let next = of.begin(7);
    of.table.end(begun, Found::Groups([70].into()), of.now);
    assert_eq!(*ended.borrow(), Some(Found::Groups([70].into())), "those who wait get it");
    of.table.end(next, Found::Groups([71].into()), of.now);
    assert_eq!(of.known(7), Some(vec![71]));
}

#[tokio::test]
async fn users_groups_and_look_ups_are_bounded() {
    let mut of = Clocked::new();
    of.learn(0, &[1]);
    for uid in 1..40_000 {
        let begun = of.begin(uid);
        of.table.end(begun, Found::NoUser, of.now);
        of.now += Duration::from_micros(1);
    }
    assert!(of.table.len() <= 16_384);
    assert_eq!(of.known(0), Some(vec![1]), "users that do not exist go first");
    let many: Vec<u32> = (0..65_536).collect();
    for uid in 50_000..50_100 {
        of.learn(uid, &many);
        of.now += Duration::from_micros(1);
    }
    let kept = (50_000..50_100).filter(|uid| of.known(*uid).is_some()).count();
    assert!((8..=16).contains(&kept), "{kept}");
    of.table.forget();
    let begun: Vec<_> = (0..LOOK_UPS_MAX as u32).map(|uid| of.begin(uid)).collect();
    assert_eq!(of.known(5000), Some(vec![]), "no further look-up");
    for begun in begun {
        of.table.end(begun, Found::Failed, of.now);
    }
    assert_eq!(of.known(5000), None);
}
