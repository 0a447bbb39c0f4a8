//! A second process, which aborts the FUSE connection of a mount whose process was killed.
//!
//! A thread that notifies the kernel may wait in the kernel for a lock. The program that holds this lock may
//! wait for a reply of the mount's process (see `mount::notify`). If the process is killed at that moment,
//! the thread cannot exit. It keeps all descriptors of the process open, `/dev/fuse` among them, so the
//! kernel goes on waiting for the reply. The program cannot be killed, and every other program that looks at
//! the mount (`df`, for example) hangs too. Only an abort of the connection ends that.
//!
//! A pipe, a lock or a pidfd does not report such a death, because all of them wait for the last thread. The
//! parent-death signal of a child (`PR_SET_PDEATHSIG`) does: the kernel sends it when the thread that
//! started the child exits. Here that is the main thread, which never notifies the kernel.
//!
//! The guardian is this program, executed once more. It holds one descriptor, the connection's `abort` file.
//! That descriptor never refers to a later connection with the same number.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use tokio::signal::unix::{SignalKind, signal};

use super::{KIND, places};
use crate::{Failure, cli};

/// The parent-death signal that the kernel sends to the guardian.
const DEATH: (Signal, SignalKind) = (Signal::USR1, SignalKind::user_defined1());

/// The guardian of a connection; dropping the value ends it.
#[derive(Debug)]
pub struct Guardian(Option<Child>);

impl Guardian {
    /// Starts the guardian. Only the main thread may call this. If the start fails, it logs a warning: a
    /// mount works without.
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

/// Runs the guardian: waits for the death of the mount's process, then aborts the connection.
///
/// # Errors
/// If the connection's `abort` file, the signals or the runtime are not available.
pub fn run(arguments: &cli::Guard) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure(format!("cannot guard a mount: {error}"));
    // Signals of the terminal, such as Ctrl-C, are for the mount's process.
    rustix::process::setsid().map_err(|errno| failed(errno.into()))?;
    let mut breaker = mount::breaker(arguments.connection).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        // A service manager sends these signals to all processes of a service. The guardian must survive
        // them, because the mount's process may be killed afterwards.
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

/// Has the parent process exited, or its main thread?
fn is_over(process: i32) -> bool {
    rustix::process::getppid().map(Pid::as_raw_nonzero).is_none_or(|parent| parent.get() != process)
        || is_remains(process)
}

/// Is a process dead except for a thread that cannot exit?
fn is_remains(process: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, fields)| fields.trim_start().chars().next());
    matches!(state, Some('Z' | 'X'))
}

/// If the process of a mount is dead except for a thread that cannot exit, aborts its connection. The
/// guardian may have been killed with it.
pub fn stand_in(directory: &Path) {
    let dead = places::process_of(directory).is_some_and(is_remains);
    if let Some((kind, connection)) = mount::mounted_at(directory).filter(|_| dead)
        && kind == KIND
    {
        let broken = mount::break_connection(connection);
        tracing::info!(?broken, "the process of the mount on {} was killed", directory.display());
    }
}
