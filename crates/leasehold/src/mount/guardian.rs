//! A second process, which ends the connection of a mount whose process was killed.
//!
//! A thread that notifies the kernel may wait there for a lock, and a program that holds this lock may wait for a reply of
//! ours (see `mount::notify`). If the process is killed then, that thread cannot end. It keeps every descriptor of the process
//! open, `/dev/fuse` among them, so that the kernel believes in a reply for ever: the program cannot be killed, and
//! whoever looks at the mount (`df`, say) hangs too. Only an abort of the connection ends that.
//!
//! No pipe, lock or pidfd tells of such a death, since all of them wait for the last thread. What tells is the signal
//! that a child has asked for (`PR_SET_PDEATHSIG`): it comes when the thread ends that has started the child. Here that is
//! the main thread, which never notifies the kernel.
//!
//! The guardian is the program itself, run once more. It holds one descriptor, the connection's `abort` file, which is
//! that of no later connection with the same number.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use tokio::signal::unix::{SignalKind, signal};

use super::{KIND, places};
use crate::{Failure, cli};

/// What the kernel sends to the guardian.
const DEATH: (Signal, SignalKind) = (Signal::USR1, SignalKind::user_defined1());

/// The guardian of a connection. It goes with the value, when the connection is over.
#[derive(Debug)]
pub struct Guardian(Option<Child>);

impl Guardian {
    /// Starts it. To be called by the main thread. A mount without one works, and so it is no reason to fail.
    pub fn start(connection: u32) -> Guardian {
        let mut command = Command::new("/proc/self/exe");
        command.args(["guard", "--process", &std::process::id().to_string()]);
        command.args(["--connection", &connection.to_string()]).current_dir("/");
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        if let Err(error) = &started {
            tracing::warn!("cannot start a guardian: {error}; if this process is killed, the mount may hang");
        }
        Guardian(started.ok())
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The guardian: waits for the death of the mount's process, and aborts the connection.
///
/// # Errors
/// If it cannot do so.
pub fn run(arguments: &cli::Guard) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure(format!("cannot guard a mount: {error}"));
    // Ctrl-C at the terminal, and the like, is for the mount.
    rustix::process::setsid().map_err(|errno| failed(errno.into()))?;
    let mut breaker = mount::breaker(arguments.connection).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        // A service manager tells all processes of a service to end; the mount's may be killed after that.
        let ignored = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()].map(signal);
        let mut death = signal(DEATH.1).map_err(failed)?;
        rustix::process::set_parent_process_death_signal(Some(DEATH.0))
            .map_err(|errno| failed(errno.into()))?;
        while !is_over(arguments.process) {
            death.recv().await;
        }
        drop(ignored);
        breaker.write_all(b"1").map_err(failed)
    })
}

/// Has the process that started this one ended, or its main thread?
fn is_over(process: i32) -> bool {
    rustix::process::getppid().map(Pid::as_raw_nonzero).is_none_or(|parent| parent.get() != process)
        || is_remains(process)
}

/// Is a process dead, but for a thread that cannot end?
fn is_remains(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.trim_start().chars().next());
    matches!(state, Some('Z' | 'X'))
}

/// Aborts the connection of what is mounted there if its process is dead, but for a thread that cannot end: the guardian
/// may have been killed too.
pub fn stand_in(directory: &Path) {
    let dead = places::process_of(directory).is_some_and(is_remains);
    if let Some((kind, connection)) = mount::mounted_at(directory).filter(|_| dead)
        && kind == KIND
    {
        let broken = mount::break_connection(connection);
        tracing::info!(?broken, "the process of the mount on {} was killed", directory.display());
    }
}
