//! Random programs. A failure prints the shortest failing program that was found, and the seed.
//!
//! Promise: lock-files
//! Promise: opens-through-a-mount
//! Promise: unix-semantics

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lab::{Agent, Hand, Rng};

pub use crate::generate::READ;
use crate::generate::{self, Wanted};
use crate::model::{Client, Lifetimes};
use crate::play::Stage;
use crate::program::Op;
use crate::seat::{Event, Seat};
use crate::setting::{Running, Setting, may_mount};

/// Calls of one run.
const STEPS: usize = 3000;
/// Steps of one program.
pub const PROGRAM_STEPS: usize = 160;
/// A call that takes longer counts as hung.
const PATIENCE: Duration = Duration::from_secs(30);
/// One program of this many ends with a rest.
const REST_EVERY: usize = 4;

/// A mount and its options.
pub struct Mount {
    name: &'static str,
    options: &'static str,
    version: u8,
    /// Whether a proxy is between the mount and the server.
    through_proxy: bool,
}

impl Mount {
    /// The same mount through a proxy.
    pub fn behind_a_proxy(self) -> Mount {
        Mount { through_proxy: true, ..self }
    }
}

/// A mount. Its options set the attribute timeout to a second, so that short runs test its end.
pub const fn mount(name: &'static str, options: &'static str, version: u8) -> Mount {
    Mount { name, options, version, through_proxy: false }
}

/// The served directory itself: every change is visible at once.
const SERVED: Client = Client {
    lifetimes: Lifetimes { present: Duration::ZERO, absent: Duration::ZERO },
    confirms: true,
    has_locks: false,
    goes_stale: false,
    maps_show: true,
};

fn client(mount: &Mount) -> Client {
    let seconds = mount.options.split(',').find_map(|word| word.strip_prefix("actimeo=")?.parse().ok());
    // A proxy trusts attributes for another second.
    let present =
        Duration::from_secs(seconds.unwrap_or(60)) + Duration::from_secs(mount.through_proxy.into());
    let absent = Duration::from_secs(1 + u64::from(mount.through_proxy));
    let lifetimes = Lifetimes { present, absent };
    let version = mount.version;
    Client { lifetimes, confirms: true, has_locks: version == 4, goes_stale: version == 3, maps_show: true }
}

/// Mounts of one server, and the seats on them. The last seat works in the served directory.
pub struct Table {
    pub stage: Stage,
    /// Dropped before the mounts.
    _agents: Vec<Agent>,
    proxy: Option<Running>,
    setting: Setting,
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(proxy) = &mut self.proxy {
            proxy.kill();
        }
    }
}

impl Table {
    /// `seats` has the index of the mount of each seat.
    pub fn new(mounts: &[Mount], seats: &[usize]) -> Table {
        let mut setting = Setting::new();
        let behind = mounts.iter().any(|mount| mount.through_proxy);
        let proxy = behind.then(|| setting.proxy_with("127.0.0.1:0", "actimeo=1").start());
        for Mount { name, options, through_proxy, .. } in mounts {
            match &proxy {
                Some(proxy) if *through_proxy => setting.mount_from(&proxy.address, name, options),
                _ => setting.mount(name, options),
            }
        }
        let agents: Vec<Agent> = mounts.iter().map(|_| Agent::start()).collect();
        let seat = |(number, client): (usize, &usize)| {
            let name = format!("{}{}", mounts[*client].name, number);
            let hand = agents[*client].hand(PATIENCE);
            Seat::new(name, *client, hand, setting.at(mounts[*client].name, ""))
        };
        let mut seats: Vec<Seat> = seats.iter().enumerate().map(seat).collect();
        seats.push(Seat::new("served", mounts.len(), Hand::on_host(), setting.there("")));
        let clients = mounts.iter().map(client).chain([SERVED]).collect();
        Table { stage: Stage { seats, clients }, _agents: agents, proxy, setting }
    }

    /// The address of the proxy, or of the server if there is no proxy.
    pub fn address(&self) -> String {
        self.proxy.as_ref().map_or_else(|| self.setting.address(), |proxy| proxy.address.clone())
    }

    /// Adds a client with one seat.
    pub fn join(&mut self, name: &str, client: Client, hand: Hand, at: PathBuf) {
        let Stage { seats, clients } = &mut self.stage;
        // The served directory stays the last one.
        let last = clients.len() - 1;
        clients.insert(last, client);
        seats.iter_mut().filter(|seat| seat.client == last).for_each(|seat| seat.client += 1);
        seats.insert(seats.len() - 1, Seat::new(name, last, hand, at));
    }
}

fn play(mounts: &[Mount], seats: &'static [usize], together: usize) {
    if !may_mount() {
        return;
    }
    let mut table = Table::new(mounts, seats);
    let rest_milliseconds = if mounts.iter().any(|mount| mount.through_proxy) { 2100 } else { 1100 };
    let wanted = Wanted { seats, steps: PROGRAM_STEPS, together, rests: false, rest_milliseconds };
    run(&mut table.stage, wanted, STEPS);
}

/// Plays programs with this many calls together, unless `LAB_STEPS` sets another number.
pub fn run(stage: &mut Stage, wanted: Wanted, steps: usize) {
    let steps = std::env::var("LAB_STEPS").ok().and_then(|text| text.parse().ok()).unwrap_or(steps);
    // A test run plays the same programs each time. `LAB_SEED` selects others.
    let mut seeds =
        if std::env::var_os("LAB_SEED").is_some() { Rng::from_environment() } else { Rng::new(SEED) };
    let mut rng = seeds.clone();
    let began = Instant::now();
    let (mut calls, mut programs) = (0, 0);
    let mut slowest: Vec<Event> = Vec::new();
    while calls < steps {
        let seed = rng.clone();
        let rests = programs % REST_EVERY == REST_EVERY - 1;
        let wanted = Wanted { rests, ..wanted };
        let mut program = generate::program(&mut rng, wanted);
        let served = stage.seats.len() - 1;
        program.extend(generate::epilogue(&program, wanted, served));
        match stage.run(&program) {
            Ok(made) => {
                calls += made.len();
                let mut made = made;
                made.retain(|call| !matches!(call.op, Op::Pause { .. }));
                slowest.extend(made);
                slowest.sort_by_key(|call| std::cmp::Reverse(call.ended.saturating_sub(call.began)));
                slowest.truncate(3);
            }
            Err(failure) => {
                // The state of the generator is its seed.
                let seed: String = format!("{seed:?}").chars().filter(char::is_ascii_digit).collect();
                let found = format!(
                    "program {programs}, after {calls} calls and {:.1} s, LAB_SEED={seed}",
                    began.elapsed().as_secs_f64()
                );
                slowest.iter().for_each(|call| eprintln!("{}", stage.tell_call(call)));
                eprintln!("{found}: {}; making it shorter", failure.what);
                assert!(std::env::var_os("LAB_TELL").is_none(), "{}", stage.tell(&failure));
                let (shortest, failure) = stage.shrink(&program, failure);
                panic!("{found}; {} steps are left:\n{}", shortest.len(), stage.tell(&failure));
            }
        }
        programs += 1;
        rng = Rng::new(seeds.next_u64());
    }
    slowest.iter().for_each(|call| eprintln!("{}", stage.tell_call(call)));
    eprintln!("{calls} calls of {programs} programs in {:.1} s, none wrong", began.elapsed().as_secs_f64());
}

/// The seed of a test run.
const SEED: u64 = 16;
pub const OPTIONS_4: &str = "vers=4.2,actimeo=1";
pub const OPTIONS_3: &str = "vers=3,actimeo=1";

#[test]
fn two_mounts_of_version_4_2_do_what_is_promised() {
    play(&[mount("a", OPTIONS_4, 4), mount("b", OPTIONS_4, 4)], &[0, 1], 0);
}

#[test]
fn two_mounts_of_version_3_do_what_is_promised() {
    play(&[mount("a", OPTIONS_3, 3), mount("b", OPTIONS_3, 3)], &[0, 1], 0);
}

#[test]
fn mounts_of_versions_3_and_4_2_do_what_is_promised() {
    play(&[mount("a", OPTIONS_3, 3), mount("b", OPTIONS_4, 4)], &[0, 1], 0);
}

// Promise: chained-proxies
#[test]
fn a_mount_of_a_proxy_and_one_of_its_origin_do_what_is_promised() {
    let near = mount("near", OPTIONS_4, 4).behind_a_proxy();
    play(&[near, mount("far", OPTIONS_4, 4)], &[0, 1], 0);
}

/// Percentage of phrases in which several seats call at once.
const TOGETHER: usize = 30;

#[test]
fn seats_that_call_at_once_see_what_is_promised() {
    play(&[mount("a", OPTIONS_4, 4), mount("b", OPTIONS_4, 4)], &[0, 1, 0, 1], TOGETHER);
}

#[test]
fn seats_that_call_at_once_over_version_3_see_what_is_promised() {
    play(&[mount("a", OPTIONS_3, 3), mount("b", OPTIONS_3, 3)], &[0, 1, 0, 1], TOGETHER);
}
