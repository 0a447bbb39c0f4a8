//! A member of a cluster: `leasehold proxy` with a table `[cluster]`.
//!
//! This process decides nothing about files. It takes part in the cluster (crate `cluster`), and starts a
//! process for each virtual server that it is to run ([`keeper`]). That process is a proxy of several
//! origins, with three things more ([`virtual_server`]). It may speak until the end of the member's term. It
//! keeps a copy of its records in the store. And it refers clients of version 4 to the other virtual servers
//! for their origins.
//!
//! A process for each server means that a server that must stop at once is killed, whatever it is doing.

pub mod command;
mod digest;
mod keeper;
pub mod status;
pub mod virtual_server;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cluster::{Driver, Handle, Identity, Member, State, Times, Trouble};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::admin::{Admin, Caches, Sources};
use crate::cli::Proxy;
use crate::config::cluster::ClusterConfig;
use crate::config::origins::OriginConfig;
use crate::live::Live;
use crate::metrics::{Measured, Metrics};
use crate::reload::Reload;
use crate::stack::{End, Told};
use crate::{Failure, service, state, usage};
use keeper::{Keeper, Kin};

/// The end of the process waits for so many terms until all servers are given away. Without etcd, none runs
/// after one.
const LEAVE_TERMS: u32 = 3;
/// How long a drain waits for another member.
const OTHERS_MAX: Duration = Duration::from_secs(5);

/// A request about the cluster, over the admin socket of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterRequest {
    /// Give all servers of this member to others.
    Drain,
    /// Take servers again.
    Resume,
}

/// The member of this process.
#[derive(Clone, Debug)]
pub struct Membership {
    handle: Handle,
    name: String,
}

/// Takes part in a cluster until the process is told to stop.
///
/// # Errors
/// If the directory, the handle key or the program itself cannot be used, or if another member is of another
/// configuration.
pub async fn run(
    arguments: Proxy,
    config: ClusterConfig,
    origins: Vec<OriginConfig>,
    directory: PathBuf,
    reload: Reload,
) -> Result<(), Failure> {
    let mut end = End::listen(reload.has_file())?;
    let state = crate::proxy::make_state(&directory)?;
    let lock = tokio::select! {
        lock = state::lock_after(&state, &directory) => lock?,
        () = end.wait() => return Ok(()),
    };
    let digest = digest::of(&config, &origins, arguments.handle_key.as_deref())?;
    let life = random()?;
    let identity = Identity {
        name: config.member.clone(),
        life: life.clone(),
        place: place(&directory, &state)?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        digest: digest.clone(),
    };
    for server in &config.servers {
        // The processes of an earlier member end with it, and this one must not be taken for it before.
        let state = server_directory(&directory, &server.address.to_string()).join("state");
        if state.is_dir() {
            drop(state::lock_after(&state, &directory).await?);
        }
    }
    let servers = config.servers.iter().map(|server| server.address.to_string()).collect();
    let times = Times { term: config.term, ..Times::default() };
    let member = Member::new(&config.name, identity, servers, times);
    let (driver, handle) = Driver::new(config.store()?, member);
    let membership = Membership { handle: handle.clone(), name: config.member.clone() };
    let admin = Admin::start(&directory, sources(&config, &membership))?;
    let measured = measured(&config, &membership, &directory);
    let usage = usage::of_state(measured.status.clone());
    let metrics = Metrics::start(arguments.network.metrics, measured, usage).await?;
    let driving = tokio::spawn(driver.run());
    crate::output::announce(format_args!(
        "member {} of cluster {} on {}; leasehold cluster status {} shows it",
        config.member,
        config.name,
        crate::units::counted(config.servers.len() as u64, "virtual server", "virtual servers"),
        directory.display()
    ));
    metrics.iter().for_each(Metrics::announce);
    service::started(&format!("member {} of cluster {}", config.member, config.name));
    let _watchdog = service::watched();
    let kin = Arc::new(Kin { config, handle: handle.clone(), life, digest });
    let servers = kin.config.servers.iter();
    let keepers: Vec<Keeper> =
        servers.map(|server| Keeper::start(&kin, server, &directory, &reload)).collect();
    let told = tokio::spawn(tell_of_changes(handle.state(), kin.config.member.clone()));
    while end.next().await == Told::Reload {
        keepers.iter().for_each(Keeper::reload);
    }
    service::stopping();
    told.abort();
    handle.leave().await;
    let mut states = handle.state();
    let out = states.wait_for(|state| state.is_out);
    if tokio::time::timeout(times.term * LEAVE_TERMS, out).await.is_err() {
        crate::output::tell("the cluster was not left in time: another member waits for the end of the term");
    }
    drop(keepers);
    driving.abort();
    admin.end(None).await;
    lock.until_exit();
    Ok(())
}

fn sources(config: &ClusterConfig, membership: &Membership) -> Sources {
    let status = status::source(config, membership);
    Sources {
        usage: usage::of_state(status.clone()),
        status,
        cache: Caches::None,
        holders: None,
        before_recording: None,
        cluster: Some(membership.clone()),
    }
}

/// The sources of the metrics of a member. Its virtual servers have their own.
fn measured(config: &ClusterConfig, membership: &Membership, directory: &Path) -> Measured {
    Measured {
        role: "member",
        serving: None,
        caching: Live::fixed(Vec::new()),
        awaited: Live::fixed(Vec::new()),
        cluster: Some(status::numbers(config, membership)),
        mounted: Weak::new(),
        status: status::source(config, membership),
        directory: directory.to_owned(),
    }
}

impl Membership {
    /// Carries out a request. Returns when this member has done its part.
    ///
    /// # Errors
    /// If there is nobody who would take the servers.
    pub async fn execute(&self, request: ClusterRequest) -> Result<Value, String> {
        let mut states = self.handle.state();
        if request == ClusterRequest::Resume {
            self.handle.drain(false).await;
            return Ok(json!({ "draining": false }));
        }
        let has_others = |state: &State| {
            let mut members = state.view.iter().flat_map(|view| &view.members);
            members.any(|(name, (of, _))| *name != self.name && !of.draining)
        };
        // One that has just been started or resumed is seen with the next beats.
        let seen = tokio::time::timeout(OTHERS_MAX, states.wait_for(has_others)).await;
        let has_others = seen.is_ok_and(|seen| seen.is_ok());
        if !has_others {
            return Err("no other member would take the servers; start one first".to_owned());
        }
        self.handle.drain(true).await;
        let given = states.wait_for(|state| {
            let is_drained = |view: &cluster::View| {
                let mine = view.servers.keys().filter(|server| view.holder(server) == Some(&self.name));
                mine.count() == 0 && view.members.get(&self.name).is_none_or(|(of, _)| of.draining)
            };
            state.view.as_deref().is_some_and(is_drained)
        });
        match given.await {
            Ok(_) => Ok(json!({ "draining": true })),
            Err(_) => Err("the member has ended".to_owned()),
        }
    }
}

/// Says on standard error what the administrator should know: troubles, and which servers run here.
async fn tell_of_changes(mut states: watch::Receiver<State>, member: String) {
    let mut trouble = None;
    let mut was_in = false;
    loop {
        let (now, is_in) = {
            let state = states.borrow_and_update();
            (state.trouble.clone(), state.orders.until.is_some())
        };
        if now != trouble {
            match &now {
                Some(Trouble::Silent(why)) => {
                    // One that comes and goes with each beat is told once.
                    if !matches!(trouble, Some(Trouble::Silent(_))) {
                        crate::output::tell(format_args!("etcd does not answer: {why}; still trying"));
                    }
                }
                Some(Trouble::Refused(why)) => crate::output::tell(format_args!("{why}")),
                None => crate::output::tell("etcd answers again, and the cluster takes this member"),
            }
            trouble = now;
        }
        if was_in && !is_in {
            crate::output::tell(format_args!(
                "member {member} was taken for dead by another one, and joins again"
            ));
        }
        was_in = is_in;
        if states.changed().await.is_err() {
            return;
        }
    }
}

/// A random text.
fn random() -> Result<String, Failure> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| Failure(format!("the system has no randomness: {error}")))?;
    Ok(format!("{:016x}", u64::from_be_bytes(bytes)))
}

/// The place of a member: its host and directory, and a random text that is in the directory alone. Machines
/// may have the same name and the same paths.
fn place(directory: &Path, state: &Path) -> Result<String, Failure> {
    let file = state.join("place");
    let failed = |error: std::io::Error| {
        Failure(format!("cannot use {}: {error}; make it readable and writable", file.display()))
    };
    let known = match std::fs::read_to_string(&file) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other.map_err(failed)?,
    };
    let random = if known.is_empty() { random()? } else { known };
    std::fs::write(&file, &random).map_err(failed)?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(format!("{host}:{} ({random})", directory.display()))
}

/// The directory of a virtual server, in that of the member.
fn server_directory(directory: &Path, address: &str) -> PathBuf {
    directory.join(state::file_name(address))
}
