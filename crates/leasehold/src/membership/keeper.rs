//! Runs a virtual server for as long as this member is ordered to.
//!
//! | what happens | what the keeper does |
//! |---|---|
//! | the server is ordered | calls the hook with `add ADDRESS`, and starts the process |
//! | a beat has succeeded | tells the process the new end of the term, on its standard input |
//! | the server is to be given away | ends the process with SIGTERM, calls the hook with `remove ADDRESS`, and reports |
//! | the term is over, or this member was fenced | kills the process with SIGKILL, and calls the hook |
//! | the process ends by itself | starts it again |
//!
//! The process ends if its standard input does, so that none outlives its keeper.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use cluster::{Handle, Moment, Run, State};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::server_directory;
use super::virtual_server::{ENVIRONMENT, Order};
use crate::config::cluster::{ClusterConfig, ServerConfig};
use crate::reload::Reload;

/// Pauses before a process that has ended is started again: the first, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// A process that ran so long did not fail at its start.
const GOOD: Duration = Duration::from_secs(30);
/// After so many failures in a row, the member gives its servers to others.
const FAILURES_MAX: usize = 3;
/// How long the hook may take.
const HOOK_MAX: Duration = Duration::from_secs(5);

/// What all keepers of a member have in common.
pub struct Kin {
    /// The cluster.
    pub config: ClusterConfig,
    /// The member.
    pub handle: Handle,
    /// Tells apart two lives of the member.
    pub life: String,
    /// The digest of its configuration.
    pub digest: String,
}

/// The keeper of a virtual server. Dropping it kills the process.
pub struct Keeper {
    task: JoinHandle<()>,
    reload: watch::Sender<()>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Keeper {
    /// Starts to keep a server.
    pub fn start(of: &Arc<Kin>, server: &ServerConfig, directory: &Path, reload: &Reload) -> Keeper {
        let (reloads, reloaded) = watch::channel(());
        let address = server.address.to_string();
        let kept = Kept {
            directory: server_directory(directory, &address),
            command: command_line(reload.given(), server, &server_directory(directory, &address)),
            address,
            handle: of.handle.clone(),
            states: of.handle.state(),
            of: of.clone(),
            reloaded,
        };
        Keeper { task: tokio::spawn(kept.keep()), reload: reloads }
    }

    /// Makes the process read its configuration again.
    pub fn reload(&self) {
        self.reload.send_replace(());
    }
}

/// Why a process does not run any more.
enum Ended {
    /// It is to be given away.
    Given,
    /// The term is over, or the member was fenced.
    Over,
    /// By itself.
    ByItself,
}

struct Kept {
    address: String,
    directory: PathBuf,
    command: Vec<OsString>,
    of: Arc<Kin>,
    handle: Handle,
    states: watch::Receiver<State>,
    reloaded: watch::Receiver<()>,
}

impl Kept {
    async fn keep(mut self) {
        let (mut pause, mut failures) = (AGAIN.0, 0);
        // A member that was killed has left its address here.
        self.hook("remove").await;
        loop {
            let Some(run) = self.next_order().await else { return };
            self.hook("add").await;
            self.reloaded.mark_unchanged();
            let begun = tokio::time::Instant::now();
            // The hook may take longer than what was left of the term.
            let until = ordered(&self.states.borrow(), &self.address).filter(|(now, _)| *now == run);
            let ended = match until.map(|(run, until)| self.start(run, until)) {
                None => Ended::Over,
                Some(Ok(child)) => self.attend(child, run).await,
                Some(Err(error)) => {
                    let address = &self.address;
                    crate::output::tell(format_args!("cannot start the process of {address}: {error}"));
                    Ended::ByItself
                }
            };
            self.hook("remove").await;
            match ended {
                Ended::Given => self.handle.stopped(&self.address, run.epoch).await,
                Ended::Over => {}
                Ended::ByItself => {
                    let was_good = begun.elapsed() > GOOD;
                    pause = if was_good { AGAIN.0 } else { (pause * 2).min(AGAIN.1) };
                    failures = if was_good { 0 } else { failures + 1 };
                    if failures >= FAILURES_MAX {
                        failures = 0;
                        self.give_up().await;
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    /// Waits for the order to run the server. Reports it as stopped if it is to be given away before it ran.
    async fn next_order(&mut self) -> Option<Run> {
        loop {
            let concerns = |state: &State| {
                state.orders.give.contains_key(&self.address) || ordered(state, &self.address).is_some()
            };
            let (found, given) = {
                let state = self.states.wait_for(concerns).await.ok()?;
                (ordered(&state, &self.address), state.orders.give.get(&self.address).copied())
            };
            if let Some((run, _)) = found {
                return Some(run);
            }
            if let Some(run) = given {
                self.handle.stopped(&self.address, run.epoch).await;
            }
            self.states.changed().await.ok()?;
        }
    }

    /// The process has failed again and again: another member may have more luck.
    async fn give_up(&self) {
        crate::output::tell(format_args!(
            "the process of {} has ended {FAILURES_MAX} times; this member gives its servers to others, until `leasehold cluster resume`",
            self.address
        ));
        self.handle.drain(true).await;
    }

    fn start(&self, run: Run, until: Moment) -> std::io::Result<Child> {
        let order = Order {
            cluster: self.of.config.name.clone(),
            address: self.address.clone(),
            epoch: run.epoch,
            changed_at: run.changed_at,
            until_nanos: nanos(until),
            life: self.of.life.clone(),
            digest: self.of.digest.clone(),
        };
        std::fs::create_dir_all(&self.directory)?;
        Command::new(std::env::current_exe()?)
            .args(&self.command)
            .env(ENVIRONMENT, serde_json::to_string(&order).unwrap_or_default())
            // The service manager hears of this process alone.
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::piped())
            // Ctrl-C is for the member, which stops its servers in order.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }

    /// Attends a process until it has ended.
    async fn attend(&mut self, mut child: Child, run: Run) -> Ended {
        let mut input = child.stdin.take();
        let mut until = Moment::ZERO;
        loop {
            let now = self.states.borrow_and_update().clone();
            match ordered(&now, &self.address) {
                Some((ordered, end)) if ordered == run => {
                    if end != until
                        && let Some(input) = &mut input
                    {
                        until = end;
                        let _ = input.write_all(format!("{}\n", nanos(end)).as_bytes()).await;
                        let _ = input.flush().await;
                    }
                }
                None if now.orders.give.contains_key(&self.address)
                    && now.orders.until.is_some_and(|end| end > cluster::now()) =>
                {
                    return self.give(child, until).await;
                }
                _ => {
                    end_now(&mut child).await;
                    return Ended::Over;
                }
            }
            tokio::select! {
                _ = child.wait() => {
                    // At the end of the term, and without etcd, it ends as it should.
                    let is_well = until > cluster::now() && self.states.borrow().trouble.is_none();
                    return if is_well { Ended::ByItself } else { Ended::Over };
                }
                changed = self.states.changed() => {
                    if changed.is_err() {
                        end_now(&mut child).await;
                        return Ended::Over;
                    }
                }
                Ok(()) = self.reloaded.changed() => signal(&child, Signal::HUP),
                () = tokio::time::sleep(until.saturating_sub(cluster::now())) => {}
            }
        }
    }

    /// Stops a process in order, before the term is over.
    async fn give(&self, mut child: Child, until: Moment) -> Ended {
        signal(&child, Signal::TERM);
        let left = until.saturating_sub(cluster::now());
        if timeout(left, child.wait()).await.is_err() {
            end_now(&mut child).await;
        }
        Ended::Given
    }

    /// Calls the administrator's program, which moves the address.
    async fn hook(&self, what: &str) {
        let Some(hook) = &self.of.config.hook else { return };
        let ip = self.address.rsplit_once(':').map_or(self.address.as_str(), |(ip, _)| ip);
        let mut command = Command::new(hook);
        command.arg(what).arg(ip.trim_matches(['[', ']'])).stdin(Stdio::null()).kill_on_drop(true);
        let failed = match timeout(HOOK_MAX, command.status()).await {
            Ok(Ok(status)) if status.success() => return,
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it took longer than {} s", HOOK_MAX.as_secs()),
        };
        crate::output::tell(format_args!("the hook {} {what} {ip} failed: {failed}", hook.display()));
    }
}

/// The order to run this server, while the term lasts.
fn ordered(state: &State, address: &str) -> Option<(Run, Moment)> {
    let until = state.orders.until.filter(|until| *until > cluster::now())?;
    state.orders.run.get(address).map(|run| (*run, until))
}

async fn end_now(child: &mut Child) {
    let _ = child.start_kill();
    let _ = child.wait().await;
}

fn signal(child: &Child, signal: Signal) {
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        let _ = kill_process(pid, signal);
    }
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

/// The command line of a server's process: that of this one, with an address and a directory of its own.
fn command_line(given: &[OsString], server: &ServerConfig, directory: &Path) -> Vec<OsString> {
    const OWN: [&str; 2] = ["--cache", "--listen"];
    let mut line = Vec::new();
    let mut arguments = given.iter().skip(1);
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if OWN.contains(&&*text) {
            arguments.next();
        } else if !OWN.iter().any(|own| text.strip_prefix(own).is_some_and(|rest| rest.starts_with('='))) {
            line.push(argument.clone());
        }
    }
    let mut add = |option: &str, value: OsString| line.extend([option.into(), value]);
    add("--cache", directory.into());
    add("--listen", server.address.to_string().into());
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_the_command_line_of_its_member_with_places_of_its_own() {
        let given = ["leasehold", "proxy", "--cache", "/c", "--config=/f", "--listen=1.2.3.4:1", "--no-udp"];
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        let server = ServerConfig { address: "10.0.0.5:2049".parse().unwrap(), metrics: None };
        let line = command_line(&given, &server, Path::new("/c/servers/5"));
        let expected =
            ["proxy", "--config=/f", "--no-udp", "--cache", "/c/servers/5", "--listen", "10.0.0.5:2049"];
        assert_eq!(line, expected.map(OsString::from));
    }
}
