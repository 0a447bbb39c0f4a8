//! Two clients with default mount options: how often does one client not see the other's change at once?
//!
//! A kernel trusts names and attributes for seconds, so some checks differ on every server. Two bounds are
//! promised. A client shows no state that ended longer ago than the attribute timeouts, and none that never
//! was. And when nothing changes any more, both clients show the same within these timeouts.
//!
//! A proxy must not add to the share of checks that differ. A person compares the shares of `serve`, of the
//! kernel's server and of the proxy, for each kind of check: `LAB_STEPS=4000` and `--nocapture`. Without
//! `LAB_STEPS` a short run checks the bounds, and the kernel's server is left out.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use lab::{Hand, Knfsd, Lab, Origin, Rng, V4_2};

use crate::stack;

/// Names in the shared directory.
const NAMES: usize = 8;
/// The longest pause between a change and its check.
const WAIT_MS: usize = 40;
/// Changes of a run that nobody watches.
const STEPS: usize = 200;
/// `acregmax` and `acdirmax` of nfs(5), the second for which a negative entry may be used twice, and some
/// time for a busy machine.
const BELIEVED_MAX: Duration = Duration::from_secs(60 + 2 + 8);
/// How often the clients are compared at the end.
const COMPARED_EVERY: Duration = Duration::from_millis(500);

/// The number of acts that are printed with a wrong listing, and the number of listings that are printed.
const HISTORY_MAX: usize = 12;
const TOLD_MAX: usize = 3;

/// For each kind of check: the number of checks, and how many differed from the truth.
type Shares = BTreeMap<&'static str, (usize, usize)>;

/// The content of a file; `None` if the name is absent.
type State = Option<Vec<u8>>;

/// What a client shows of a name.
#[derive(Debug, PartialEq, Eq)]
struct View {
    listed: bool,
    bytes: Option<u64>,
    data: State,
}

impl View {
    /// Do the calls that made it agree?
    fn is_coherent(&self) -> bool {
        let bytes = self.data.as_ref().map(|data| data.len() as u64);
        self.bytes == bytes && self.listed == self.data.is_some()
    }
}

/// Two clients of one directory, and its true content.
struct Game {
    hands: [Hand; 2],
    directory: String,
    truth: [State; NAMES],
    /// The earlier states of each name, and when each ended.
    ended: [Vec<(Instant, State)>; NAMES],
    shares: Shares,
    made: usize,
    began: Instant,
    history: VecDeque<String>,
    told: usize,
}

impl Game {
    fn path(&self, name: usize) -> String {
        format!("{}/f{name}", self.directory)
    }

    fn note(&mut self, what: &str) {
        self.history.push_back(format!("{:.3} {what}", self.began.elapsed().as_secs_f64()));
        if self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
    }

    /// One client changes a file: it makes, overwrites, replaces or removes the file.
    fn change(&mut self, by: usize, name: usize, rng: &mut Rng) -> io::Result<()> {
        self.made += 1;
        let mut data = format!("{:08}", self.made).into_bytes();
        data.resize(data.len() + rng.below(3) * 1000, b'.');
        let path = self.path(name);
        let kind = rng.below(4);
        self.note(&format!("{by} {} f{name}", ["removes", "replaces", "writes", "writes"][kind]));
        let hand = &mut self.hands[by];
        match kind {
            0 => {
                // This client may see an old state, too, and find nothing to remove.
                if hand.remove(&path).is_ok() {
                    self.set(name, None);
                }
                return Ok(());
            }
            1 => hand.replace(&path, &data)?,
            _ => hand.write(&path, &data)?,
        }
        self.set(name, Some(data));
        Ok(())
    }

    fn set(&mut self, name: usize, state: State) {
        let before = std::mem::replace(&mut self.truth[name], state);
        self.ended[name].push((Instant::now(), before));
    }

    /// A client shows a name. That must be the present state, or one that ended not long ago.
    fn judge(&self, (by, name): (usize, usize), kind: &str, shows: impl Fn(&State) -> bool) {
        let late = |ended: &Instant| ended.elapsed() < BELIEVED_MAX;
        let mut recent = self.ended[name].iter().rev().take_while(|(ended, _)| late(ended));
        let may = shows(&self.truth[name]) || recent.any(|(_, state)| shows(state));
        let history: Vec<&str> = self.history.iter().map(String::as_str).collect();
        assert!(may, "{kind}: {by} shows of f{name} what was not there lately:\n  {}", history.join("\n  "));
    }

    fn view(&mut self, by: usize, name: usize) -> io::Result<View> {
        let path = self.path(name);
        let hand = &mut self.hands[by];
        let listed = hand.list(&self.directory)?.contains(&format!("f{name}").into_bytes());
        let data = hand.read(&path).ok();
        Ok(View { listed, bytes: hand.stat(&path).ok().map(|stat| stat.size), data })
    }

    /// Waits until both clients show the same. Nothing changes any more.
    fn agree(&mut self) -> io::Result<()> {
        let began = Instant::now();
        for name in 0..NAMES {
            loop {
                let [one, other] = [self.view(0, name)?, self.view(1, name)?];
                if one == other && one.is_coherent() {
                    break;
                }
                let waited = began.elapsed();
                assert!(waited < BELIEVED_MAX, "f{name} differs after {waited:?}: {one:?}, {other:?}");
                std::thread::sleep(COMPARED_EVERY);
            }
        }
        Ok(())
    }

    fn check(&mut self, by: usize, name: usize, rng: &mut Rng) -> io::Result<()> {
        let path = self.path(name);
        let hand = &mut self.hands[by];
        let (kind, right) = match rng.below(4) {
            0 => {
                let shown = hand.stat(&path).ok().map(|stat| stat.size);
                let shows = |state: &State| shown == state.as_ref().map(|data| data.len() as u64);
                self.judge((by, name), "stat", shows);
                let truth = &self.truth[name];
                let kind = if truth.is_some() { "stat of a file" } else { "stat of nothing" };
                (kind, shows(truth))
            }
            1 => ("list", self.check_list(by)?),
            _ => {
                let shown = hand.read(&path).ok();
                let shows = |state: &State| shown == *state;
                self.judge((by, name), "read", shows);
                let truth = &self.truth[name];
                let kind = if truth.is_some() { "read of a file" } else { "read of nothing" };
                (kind, shows(truth))
            }
        };
        self.note(&format!("{by} checks f{name}: {kind}, {}", if right { "right" } else { "wrong" }));
        let (checks, differ) = self.shares.entry(kind).or_default();
        *checks += 1;
        *differ += usize::from(!right);
        Ok(())
    }

    /// Does a client list the present names?
    fn check_list(&mut self, by: usize) -> io::Result<bool> {
        let listed = self.hands[by].list(&self.directory)?;
        let file = |name: usize| format!("f{name}").into_bytes();
        for name in 0..NAMES {
            let shown = listed.contains(&file(name));
            self.judge((by, name), "list", |state| shown == state.is_some());
        }
        let names: Vec<Vec<u8>> = (0..NAMES).filter(|name| self.truth[*name].is_some()).map(file).collect();
        if listed != names && self.told < TOLD_MAX {
            self.told += 1;
            let text = |names: &[Vec<u8>]| {
                names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<String>()
            };
            let history: Vec<&str> = self.history.iter().map(String::as_str).collect();
            let (listed, names) = (text(&listed), text(&names));
            eprintln!("lab: {by} lists {listed} and not {names}:\n  {}", history.join("\n  "));
        }
        Ok(listed == names)
    }
}

fn play(lab: &Lab, origin: &Origin, steps: usize, what: &str) {
    let guests = ["one", "other"].map(|name| lab.guest(name));
    for guest in &guests {
        guest.mount_nfs(origin, "/mnt/nfs", V4_2);
    }
    let mut hands = guests.each_ref().map(lab::Guest::hand);
    let directory = "/mnt/nfs/shared".to_owned();
    hands[0].mkdir(&directory).unwrap();
    let mut game = Game {
        hands,
        directory,
        truth: [const { None }; NAMES],
        ended: [const { Vec::new() }; NAMES],
        shares: Shares::new(),
        made: 0,
        began: Instant::now(),
        history: VecDeque::new(),
        told: 0,
    };
    let mut rng = Rng::from_environment();
    for _ in 0..steps {
        let (by, name) = (rng.below(2), rng.below(NAMES));
        game.change(by, name, &mut rng).unwrap_or_else(|error| panic!("{what}: {error}"));
        std::thread::sleep(Duration::from_millis(rng.below(WAIT_MS) as u64));
        for checked in [name, rng.below(NAMES)] {
            game.check(1 - by, checked, &mut rng).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
    }
    game.agree().unwrap_or_else(|error| panic!("{what}: {error}"));
    let (checks, differ) = game.shares.values().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let percent = |differ: usize, checks: usize| 100.0 * differ as f64 / checks.max(1) as f64;
    eprintln!("lab: {what}: {:.1} % of {checks} checks differ", percent(differ, checks));
    for (kind, (checks, differ)) in &game.shares {
        eprintln!("lab: {what}: {kind}: {:.1} % of {checks}", percent(*differ, *checks));
    }
}

/// The steps of a run that a person watches.
fn watched() -> Option<usize> {
    std::env::var("LAB_STEPS").ok().and_then(|text| text.parse().ok())
}

#[test]
fn default_mounts_of_serve_differ_so_often() {
    let Some(lab) = Lab::enter("defaults-serve") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    play(&lab, &serve.origin(), watched().unwrap_or(STEPS), "serve");
}

#[test]
fn default_mounts_of_knfsd_differ_so_often() {
    let Some(steps) = watched() else {
        eprintln!("the kernel's server is only compared with ours: LAB_STEPS=4000");
        return;
    };
    let Some(lab) = Lab::enter("defaults-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    play(&lab, &knfsd.origin_v4(), steps, "knfsd");
}

#[test]
fn default_mounts_of_a_proxy_differ_so_often() {
    let Some(lab) = Lab::enter("defaults-proxy") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let proxy = stack::proxy_in(&lab, &serve.origin(), "4.2", "cache", &[]);
    play(&lab, &proxy.origin(), watched().unwrap_or(STEPS), "proxy");
}

#[test]
fn default_mounts_of_a_proxy_before_knfsd_differ_so_often() {
    let Some(lab) = Lab::enter("defaults-proxied-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    let proxy = stack::proxy_in(&lab, &knfsd.origin_v4(), "4.2", "cache", &[]);
    play(&lab, &proxy.origin(), watched().unwrap_or(STEPS), "proxy of knfsd");
}
