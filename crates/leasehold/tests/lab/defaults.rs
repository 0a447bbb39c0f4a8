//! Two clients with default mount options: how often does one client not see the other's change at once?
//!
//! A kernel trusts names and attributes for seconds, so some checks differ on every server. A proxy must not
//! add to that. The test compares `serve`, the kernel's server and the proxy, for each kind of check. It is
//! run by hand, because a person must compare the shares: `LAB_STEPS=4000`.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use lab::{Hand, Knfsd, Lab, Origin, Rng, V4_2};

use crate::stack;

/// Names in the shared directory.
const NAMES: usize = 8;
/// The longest pause between a change and its check.
const WAIT_MS: usize = 40;

/// The number of acts that are printed with a wrong listing, and the number of listings that are printed.
const HISTORY_MAX: usize = 12;
const TOLD_MAX: usize = 3;

/// For each kind of check: the number of checks, and how many differed from the truth.
type Shares = BTreeMap<&'static str, (usize, usize)>;

/// Two clients of one directory, and its true content.
struct Game {
    hands: [Hand; 2],
    directory: String,
    truth: [Option<Vec<u8>>; NAMES],
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
                let _ = hand.remove(&path);
                self.truth[name] = None;
                return Ok(());
            }
            1 => hand.replace(&path, &data)?,
            _ => hand.write(&path, &data)?,
        }
        self.truth[name] = Some(data);
        Ok(())
    }

    fn check(&mut self, by: usize, name: usize, rng: &mut Rng) -> io::Result<()> {
        let path = self.path(name);
        let hand = &mut self.hands[by];
        let truth = &self.truth[name];
        let (kind, right) = match rng.below(4) {
            0 => {
                let stat = hand.stat(&path).ok();
                let kind = if truth.is_some() { "stat of a file" } else { "stat of nothing" };
                (kind, stat.map(|stat| stat.size) == truth.as_ref().map(|data| data.len() as u64))
            }
            1 => {
                let listed = hand.list(&self.directory)?;
                let there = |(name, data): (usize, &Option<Vec<u8>>)| {
                    data.as_ref().map(|_| format!("f{name}").into_bytes())
                };
                let names: Vec<Vec<u8>> = self.truth.iter().enumerate().filter_map(there).collect();
                if listed != names && self.told < TOLD_MAX {
                    self.told += 1;
                    let text = |names: &[Vec<u8>]| {
                        names
                            .iter()
                            .map(|name| String::from_utf8_lossy(name).into_owned())
                            .collect::<String>()
                    };
                    let history: Vec<&str> = self.history.iter().map(String::as_str).collect();
                    let (listed, names) = (text(&listed), text(&names));
                    eprintln!("lab: {by} lists {listed} and not {names}:\n  {}", history.join("\n  "));
                }
                ("list", listed == names)
            }
            _ => {
                let data = hand.read(&path);
                match (data, truth) {
                    (Ok(data), Some(truth)) => ("read of a file", data == *truth),
                    (Ok(_), None) => ("read of nothing", false),
                    (Err(_), truth) => {
                        (if truth.is_some() { "read of a file" } else { "read of nothing" }, truth.is_none())
                    }
                }
            }
        };
        self.note(&format!("{by} checks f{name}: {kind}, {}", if right { "right" } else { "wrong" }));
        let (checks, differ) = self.shares.entry(kind).or_default();
        *checks += 1;
        *differ += usize::from(!right);
        Ok(())
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
    let truth = [const { None }; NAMES];
    let mut game = Game {
        hands,
        directory,
        truth,
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
    let (checks, differ) = game.shares.values().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let percent = |differ: usize, checks: usize| 100.0 * differ as f64 / checks.max(1) as f64;
    eprintln!("lab: {what}: {:.1} % of {checks} checks differ", percent(differ, checks));
    for (kind, (checks, differ)) in &game.shares {
        eprintln!("lab: {what}: {kind}: {:.1} % of {checks}", percent(*differ, *checks));
    }
}

fn steps() -> Option<usize> {
    let steps = std::env::var("LAB_STEPS").ok().and_then(|text| text.parse().ok());
    if steps.is_none() {
        eprintln!("shares of checks that differ are compared by hand: LAB_STEPS=4000");
    }
    steps
}

#[test]
fn default_mounts_of_serve_differ_so_often() {
    let Some(steps) = steps() else { return };
    let Some(lab) = Lab::enter("defaults-serve") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    play(&lab, &serve.origin(), steps, "serve");
}

#[test]
fn default_mounts_of_knfsd_differ_so_often() {
    let Some(steps) = steps() else { return };
    let Some(lab) = Lab::enter("defaults-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    play(&lab, &knfsd.origin_v4(), steps, "knfsd");
}

#[test]
fn default_mounts_of_a_proxy_differ_so_often() {
    let Some(steps) = steps() else { return };
    let Some(lab) = Lab::enter("defaults-proxy") else { return };
    let serve = stack::serve(&lab, &lab.subdirectory("served"));
    let proxy = stack::proxy_in(&lab, &serve.origin(), "4.2", "cache", &[]);
    play(&lab, &proxy.origin(), steps, "proxy");
}

#[test]
fn default_mounts_of_a_proxy_before_knfsd_differ_so_often() {
    let Some(steps) = steps() else { return };
    let Some(lab) = Lab::enter("defaults-proxied-knfsd") else { return };
    let knfsd = Knfsd::start(&lab);
    let proxy = stack::proxy_in(&lab, &knfsd.origin_v4(), "4.2", "cache", &[]);
    play(&lab, &proxy.origin(), steps, "proxy of knfsd");
}
