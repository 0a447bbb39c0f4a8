//! The agent: runs scripts and file operations inside a guest for a test outside.
//!
//! A connection carries either one script or any number of acts. For a script (`run`), the agent sends the
//! output as it comes and then the exit code; if the test closes the connection, the agent kills the script.
//! Each act gets one reply.
//!
//! Connections are independent: a script that hangs on a dead server does not delay the others.

use crate::files::Files;
use crate::{act, wire};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

/// How long the agent still reads output of leftover processes, after the script has ended and they were
/// killed.
const DRAIN: Duration = Duration::from_secs(1);

/// Serves connections on `address` forever.
pub fn serve(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("LAB-READY");
    for connection in listener.incoming() {
        let connection = connection?;
        thread::spawn(move || {
            if let Err(error) = converse(connection) {
                eprintln!("lab-hand: {error}");
            }
        });
    }
    Ok(())
}

fn converse(mut connection: TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut files = Files::default();
    while let Some(message) = wire::receive(&mut connection)? {
        match &message[..] {
            [verb, script] if verb == b"run" => return run(&connection, script),
            [verb, arguments @ ..] => match files
                .act(verb, arguments)
                .unwrap_or_else(|| act::act(verb, arguments))
            {
                Ok(reply) => wire::send(&mut connection, &[b"ok", &reply])?,
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(0).to_string();
                    wire::send(&mut connection, &[b"err", errno.as_bytes(), error.to_string().as_bytes()])?;
                }
            },
            [] => return Err(io::Error::other("an empty message")),
        }
    }
    Ok(())
}

/// Runs a script in its own process group. Kills the processes of that group when the script ends or the test
/// disconnects.
fn run(connection: &TcpStream, script: &[u8]) -> io::Result<()> {
    let (output, input) = io::pipe()?;
    let mut command = Command::new("bash");
    command.arg("-c").arg(OsStr::from_bytes(script)).current_dir("/tmp").process_group(0);
    command.stdin(Stdio::null()).stdout(input.try_clone()?).stderr(input);
    let mut child = command.spawn()?;
    drop(command); // closes the agent's copies of the write end, so that the pipe ends with the script
    let group = child.id();

    let replies = Arc::new(Mutex::new(connection.try_clone()?));
    let ended = Arc::new(AtomicBool::new(false));
    let (drained, until_drained) = mpsc::channel::<()>();
    thread::spawn({
        let replies = Arc::clone(&replies);
        move || {
            let _dropped_at_the_end = drained;
            forward(output, &replies)
        }
    });
    thread::spawn({
        let (mut connection, ended) = (connection.try_clone()?, Arc::clone(&ended));
        move || {
            let _ = connection.read(&mut [0u8]); // returns once the test has disconnected
            if !ended.load(Ordering::SeqCst) {
                kill_group(group);
            }
        }
    });

    let status = child.wait()?;
    ended.store(true, Ordering::SeqCst);
    kill_group(group);
    let _ = until_drained.recv_timeout(DRAIN);
    let code = exit_code(status).to_string();
    wire::send(&mut *locked(&replies), &[b"exit", code.as_bytes()])?;
    connection.shutdown(Shutdown::Both)
}

fn forward(mut output: impl Read, to: &Mutex<TcpStream>) -> io::Result<()> {
    let mut buffer = vec![0u8; 32 << 10];
    loop {
        let count = output.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        wire::send(&mut *locked(to), &[b"out", &buffer[..count]])?;
    }
}

fn locked(stream: &Mutex<TcpStream>) -> MutexGuard<'_, TcpStream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills a process group; it is no error if the group has already ended.
fn kill_group(group: u32) {
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).stderr(Stdio::null()).status();
}

/// The exit code as a shell reports it: 128 plus the signal for a killed process.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
